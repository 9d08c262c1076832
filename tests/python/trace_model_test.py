"""`spillway trace-model`: what it counts is what PyTorch allocates, and what it cannot count it says."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import unittest
from importlib.metadata import version
from pathlib import Path
from typing import Any

import warm

COMMAND = os.environ["SPILLWAY_COMMAND"]
HERE = Path(__file__).resolve().parent
MIB = 1 << 20
# The same step on real tensors of the simulated device, each in a process of its own. One has imported what all need.
REAL = """
import os, sys, torch, torch._dynamo, spillway, traced_steps
for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        spillway.install()
        step = getattr(traced_steps, name)()
        for _ in range(2):
            step()
        print(name, torch.cuda.memory_stats()["requested_bytes.all.peak"], flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit(f"{name} failed")
"""
STEPS = (
    "foreach",
    "fused",
    "by_default",
    "checkpointed",
    "bf16",
    "accumulated",
    "convolutions",
    "wide_sums",
    "own_bias",
    "copied",
    "scaled",
)


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(HERE), os.environ["PYTHONPATH"]])
    return {**os.environ, "PYTHONPATH": path, "SPILLWAY_PYTHON": warm.python("torch", "torch._dynamo"), **more}


def trace_model(function: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    given = environment(**more)
    del given["LD_PRELOAD"]  # the command brings the simulated device itself
    return subprocess.run(
        [COMMAND, "trace-model", function, *words], env=given, capture_output=True, text=True, check=False
    )


@functools.cache
def trace_step(step: str, *words: str) -> subprocess.CompletedProcess[str]:
    return trace_model(f"traced_steps:{step}", "--json", *words)


IS_OLDER = tuple(int(part) for part in version("torch").split("+")[0].split(".")[:2]) < (2, 11)


class Steps(unittest.TestCase):
    def trace(self, step: str, *words: str) -> dict[str, Any]:
        done = trace_step(step, *words)
        self.assertIn(done.returncode, (0, 2), done.stderr)
        return dict(json.loads(done.stdout))

    def findings(self, answer: dict[str, Any]) -> dict[str, list[str]]:
        return {each["kind"]: [place["place"] for place in each["places"]] for each in answer["findings"]}


class BesideRealTensors(Steps):
    real_peaks: dict[str, int]

    @classmethod
    def setUpClass(cls) -> None:
        words = [sys.executable, "-c", REAL, *STEPS]
        done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        cls.real_peaks = {name: int(peak) for name, peak in (line.split() for line in done.stdout.splitlines())}

    def same(self, step: str) -> None:
        answer = self.trace(step)
        self.assertEqual(answer["peak_live_bytes"], self.real_peaks[step])
        self.assertEqual(answer["findings"], [])
        self.assertGreaterEqual(answer["peak_reserved_bytes"], answer["peak_live_bytes"])
        self.assertLess(answer["peak_reserved_bytes"], answer["peak_live_bytes"] + 32 * MIB)

    def test_foreach(self) -> None:
        self.same("foreach")

    def test_fused(self) -> None:
        self.same("fused")

    def test_the_optimizers_own_choice(self) -> None:
        self.same("by_default")

    def test_checkpointing(self) -> None:
        self.same("checkpointed")

    def test_autocast_to_bf16_with_flash_attention(self) -> None:
        self.same("bf16")

    def test_accumulated_gradients(self) -> None:
        self.same("accumulated")

    def test_convolutions(self) -> None:
        self.same("convolutions")

    def test_buffers_of_reductions_and_sums_of_gradients(self) -> None:
        self.same("wide_sums")

    def test_a_bias_that_the_program_adds(self) -> None:
        self.same("own_bias")

    def test_deep_copies(self) -> None:
        self.same("copied")
        traced = trace_step("copied")
        self.assertEqual(traced.stderr, "")
        self.assertNotIn("copy.py", traced.stdout, "places are the program's own")

    def test_a_gradient_scaler_and_pinned_memory(self) -> None:
        answer = self.trace("scaled")
        self.assertEqual(answer["peak_live_bytes"], self.real_peaks["scaled"])
        self.assertEqual(list(self.findings(answer)), ["value-read"])


class Answers(Steps):
    def test_what_is_live_at_the_peak(self) -> None:
        answer = self.trace("fused")
        peak = answer["peak"]
        roles = {row["role"]: row["bytes"] for row in peak["roles"]}
        self.assertEqual(sum(roles.values()), answer["peak_live_bytes"])
        self.assertEqual(sum(row["bytes"] for row in peak["sites"]) + peak["other_bytes"], answer["peak_live_bytes"])
        # Two moments; and a count of steps for each tensor.
        self.assertLess(abs(roles["optimizer states"] / roles["parameters"] - 2), 0.001)
        self.assertIn("language_model.py", json.dumps(peak["sites"]))
        phases = {(row["step"], row["phase"]): row["peak_live_bytes"] for row in answer["phases"]}
        self.assertEqual(max(phases.values()), answer["peak_live_bytes"])
        self.assertEqual(phases[peak["step"], peak["phase"]], answer["peak_live_bytes"])
        self.assertEqual({name for _, name in phases}, {"load", "forward", "backward", "optimizer"})

    def test_a_file_is_as_good_as_its_module(self) -> None:
        done = trace_model(f"{HERE / 'traced_steps.py'}:fused", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["peak_live_bytes"], self.trace("fused")["peak_live_bytes"])

    def test_the_verdict(self) -> None:
        needed = self.trace("fused")["peak_reserved_bytes"]
        for capacity, verdict, code in ((needed, "FITS", 0), (needed // 2, "NO", 2)):
            done = trace_model("traced_steps:fused", "--json", "--capacity", str(capacity))
            self.assertEqual((json.loads(done.stdout)["verdict"], done.returncode), (verdict, code), done.stderr)
        done = trace_model("traced_steps:fused", "--capacity", str(needed // 2))
        self.assertEqual(done.returncode, 2)
        self.assertIn("NO: out of memory", done.stdout)

    def test_the_trace_is_kept_and_replays_to_the_same(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "trace.pickle")
            answer = self.trace("fused", "--out", path)
            replayed = subprocess.run([COMMAND, "replay", path, "--json"], capture_output=True, text=True, check=True)
        row = json.loads(replayed.stdout)[0]
        self.assertEqual(row["peak_live_bytes"], answer["peak_live_bytes"])
        self.assertEqual(row["peak_reserved_bytes"], answer["peak_reserved_bytes"])

    def test_the_answer_goes_where_it_is_asked_to(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "answer.json"
            done = trace_model("traced_steps:fused", "--json", "--output", str(path))
            self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
            self.assertGreater(json.loads(path.read_text())["peak_live_bytes"], 0)

    def test_the_schema(self) -> None:
        root = HERE.parents[1]
        schema = root / "docs" / "schema" / "trace-model.schema.json"
        words = [COMMAND, "trace-model", "traced_steps:reads_a_value", "--json"]
        given = environment()
        del given["LD_PRELOAD"]
        checker = [sys.executable, str(root / "tests" / "stats" / "schema.py"), str(schema)]
        done = subprocess.run([*checker, *words], env=given, capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)

    def test_what_the_program_prints_is_not_the_answer(self) -> None:
        done = trace_model("traced_steps:reads_a_value")
        self.assertNotIn("loss", done.stdout)
        self.assertIn("loss", done.stderr)
        self.assertIn("traced_steps.py", done.stdout)


class OnTheDevice(Steps):
    """What PyTorch itself allocates on the simulated device."""

    def test_it_is_what_fake_tensors_show(self) -> None:
        for step in ("fused", "checkpointed", "bf16"):
            fake, real = self.trace(step), self.trace(step, "--tensors", "device")
            for key in ("peak_live_bytes", "workspace_bytes", "findings"):
                self.assertEqual(real[key], fake[key], f"{step}: {key}")
            # At the end of a pass PyTorch's own thread lets go of some blocks a little later.
            there, here = (
                [(row["step"], row["phase"], row["peak_live_bytes"]) for row in each["phases"]] for each in (real, fake)
            )
            self.assertEqual(there, here, step)
            sums = [{row["role"]: row["bytes"] for row in each["peak"]["roles"]} for each in (real, fake)]
            for role in ("parameters", "optimizer states", "workspaces"):
                self.assertEqual(sums[0].get(role), sums[1].get(role), f"{step}: {role}")
            self.assertEqual([fake["tensors"], real["tensors"], real["because"]], ["fake", "device", None])

    def test_what_fake_tensors_cannot_show_runs_there(self) -> None:
        for step, reason in (
            ("nonzero", "the size of its result depends on values"),
            ("custom_operator", "traced_steps::doubled"),
            ("captured", "a CUDA graph's capture cannot be traced"),
            ("compiled_eager", "torch.compile cannot be traced"),
            ("allocates_on_a_thread", "allocated past the trace"),
        ):
            answer = self.trace(step)
            self.assertEqual(answer["tensors"], "device", step)
            self.assertIn(reason, answer["because"])
            self.assertGreater(answer["peak_live_bytes"], 0)
        self.assertGreater(self.trace("allocates_on_a_thread")["peak_live_bytes"], 1 << 20)

    @unittest.skipIf(IS_OLDER, "jobs are traced on the device before PyTorch 2.11")
    def test_a_rank_of_a_job_needs_what_it_needs_in_the_job(self) -> None:
        for step, rank, job in (
            ("buckets", 0, ("--world-size", "4", "--devices", "4")),
            ("sharded", 1, ("--world-size", "4", "--devices", "2")),
            ("tensor_parallel", 0, ("--world-size", "2", "--devices", "2")),
            ("pipelined", 1, ("--world-size", "2", "--devices", "1")),
            ("sharded_in_two_ways", 1, ("--world-size", "4", "--devices", "2")),
        ):
            needed = self.needed_in_the_job(step, rank, job)
            for tensors in ("device", "auto"):
                answer = self.trace(step, *job, "--rank", str(rank), "--tensors", tensors)
                # A bucket of DDP's gradients is let go by a thread of PyTorch's, now or a little later.
                most_difference = 2 * MIB if step == "buckets" else 0
                self.assertLessEqual(abs(answer["peak_live_bytes"] - needed), most_difference, f"{step}, {tensors}")
                is_fake = tensors == "auto" and step != "buckets"
                self.assertEqual(answer["tensors"], "fake" if is_fake else "device", f"{step}: {answer['because']}")

    def needed_in_the_job(self, step: str, rank: int, job: tuple[str, ...]) -> int:
        """What a dry run counts for this rank."""
        given = environment()
        del given["LD_PRELOAD"]
        with tempfile.TemporaryDirectory() as folder:
            script, report = Path(folder) / "job.py", Path(folder) / "report.json"
            script.write_text("import sys, traced_steps\nstep = getattr(traced_steps, sys.argv[1])()\nstep()\nstep()\n")
            asked = ["--gpu-memory", "80GiB", "--allocator", "native", "--json", "--output", str(report)]
            words = [*asked, *job, "--ranks", str(rank), "--", given["SPILLWAY_PYTHON"], str(script), step]
            subprocess.run([COMMAND, "dryrun", *words], env=given, capture_output=True, check=True)
            (device,) = json.loads(report.read_text())["processes"][0]["devices"]
        return int(device["peak_requested_bytes"])

    def test_a_look_at_what_is_not_real_is_said(self) -> None:
        found = self.findings(self.trace("looks", "--tensors", "device"))
        self.assertEqual(list(found), ["value-read"])
        self.assertIn("traced_steps.py", found["value-read"][0])
        strict = trace_model("traced_steps:looks", "--tensors", "device", "--strict")
        self.assertEqual((strict.returncode, strict.stdout), (1, ""))
        self.assertRegex(strict.stderr.strip().splitlines()[-1], r"not real .*traced_steps\.py")

    def test_strict_names_everything_that_is_not_exact(self) -> None:
        strict = trace_model("traced_steps:looks_and_asks", "--tensors", "device", "--strict")
        self.assertEqual((strict.returncode, strict.stdout), (1, ""))
        (said,) = [line for line in strict.stderr.splitlines() if line.startswith("spillway trace-model:")]
        self.assertRegex(said, r"mem_get_info was asked.*traced_steps\.py.*; .*not real .*traced_steps\.py")

    def test_a_bound_that_was_not_used_is_said(self) -> None:
        because = self.trace("captured", "--bound", "0.5")["because"]
        self.assertRegex(because, "cannot be traced.*; --bound was not used: .*sizes are computed")

    def test_a_history_that_the_program_keeps_is_not_in_the_way(self) -> None:
        kept, plain = (self.trace(step, "--tensors", "device") for step in ("keeps_a_history", "fused"))
        self.assertEqual(kept["peak_live_bytes"], plain["peak_live_bytes"])


class Bounded(Steps):
    def test_results_have_the_share_that_is_given(self) -> None:
        whole, half = (self.trace("selects", "--bound", bound) for bound in ("1", "0.5"))
        self.assertEqual([list(self.findings(each)) for each in (whole, half)], [["value-size"]] * 2)
        self.assertIn("traced_steps.py", self.findings(half)["value-size"][0])
        peaks = [[phase["peak_live_bytes"] for phase in each["phases"]] for each in (half, whole)]
        self.assertLess(*peaks)
        self.assertTrue(all(less <= more for less, more in zip(*peaks, strict=True)), peaks)

    def test_every_such_operator(self) -> None:
        answer = self.trace("picks", "--bound", "0.25")
        self.assertEqual((answer["tensors"], list(self.findings(answer))), ("fake", ["value-size"]))


class Inexact(Steps):
    """Each is said with its place, and refused where only an exact trace is wanted."""

    def said(self, step: str, kind: str, place: str) -> dict[str, Any]:
        answer = self.trace(step, "--tensors", "fake")
        places = self.findings(answer)
        self.assertEqual(list(places), [kind])
        self.assertIn(place, places[kind][0])
        strict = trace_model(f"traced_steps:{step}", "--tensors", "fake", "--strict")
        self.assertEqual((strict.returncode, strict.stdout), (1, ""))
        self.assertIn(place, strict.stderr.strip().splitlines()[-1])
        return answer

    def test_a_value_is_read(self) -> None:
        self.said("reads_a_value", "value-read", "traced_steps.py")

    def test_a_value_that_the_host_took_from_the_device(self) -> None:
        self.said("overwritten", "value-read", "traced_steps.py")

    @unittest.skipIf(IS_OLDER, "jobs are traced on the device before PyTorch 2.11")
    def test_a_value_that_other_ranks_have_a_part_in(self) -> None:
        answer = self.trace("counted_by_all", "--world-size", "2", "--tensors", "fake")
        self.assertEqual(list(self.findings(answer)), ["value-read"])

    def test_the_hosts_own_integers_are_exact(self) -> None:
        answer = self.trace("lengths", "--strict")
        self.assertEqual((answer["tensors"], answer["findings"]), ("fake", []))
        self.assertGreater(answer["peak_live_bytes"], 3 * 9 << 18)

    def test_a_branch_on_a_value(self) -> None:
        self.said("branches", "value-read", "traced_steps.py")

    def test_a_compiled_model(self) -> None:
        self.said("compiled", "compile", "in compiled")

    def test_free_memory_is_asked_for(self) -> None:
        self.said("asks_for_memory", "memory-read", "in step")

    def test_reference_cycles(self) -> None:
        answer = self.said("makes_cycles", "reference-cycle", "after step 1")
        self.assertEqual(answer["peak_live_bytes"], MIB)

    def test_storages_that_change_their_size(self) -> None:
        self.assertEqual(self.trace("resizes")["peak_live_bytes"], MIB)


class Refused(Steps):
    def refused(self, function: str, said: str, *words: str) -> None:
        done = trace_model(function, *words)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        lines = done.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertRegex(lines[0], said)

    def test_what_cannot_be_traced_is_named_with_its_line(self) -> None:
        for step, said in (
            ("selects", r"aten\.nonzero.*depends on values, at .*traced_steps\.py:\d+"),
            ("nonzero", r"aten\.nonzero.*depends on values, at .*traced_steps\.py:\d+"),
            ("custom_operator", r"traced_steps::doubled.*traced_steps\.py:\d+"),
            ("captured", r"CUDA graph.*traced_steps\.py:\d+"),
            ("buckets", r"a process group without --world-size cannot be traced, at .*traced_steps\.py:\d+"),
            ("data_parallel", r"DistributedDataParallel.*traced_steps\.py:\d+"),
            ("allocates_on_a_thread", "allocated past the trace"),
            ("fails", r"ValueError: no data, at .*traced_steps\.py:\d+"),
        ):
            with self.subTest(step):
                self.refused(f"traced_steps:{step}", said, "--tensors", "fake")

    def test_wrong_words(self) -> None:
        for function, said, words in (
            (
                "traced_steps",
                "'traced_steps' names no function; allowed: FILE.py:function or package.module:function",
                [],
            ),
            (":step", "names no function", []),
            ("no_such_file.py:step", "no such file; allowed: FILE.py:function or package.module:function", []),
            ("traced_steps:", "names no function", []),
            ("no_such_module:step", "No module named 'no_such_module'", []),
            ("traced_steps:no_such_step", "traced_steps has no no_such_step", []),
            ("traced_steps:no_step", "returned int; wanted: a function", []),
            ("traced_steps:ends", "ended with code 0 before its steps were done", []),
            ("traced_steps:on_the_host", "nothing was allocated on the device", []),
            ("traced_steps:fused", "--capacity 'much' is no size; allowed: such as 80GiB", ["--capacity", "much"]),
            ("traced_steps:fused", "--steps", ["--steps", "0"]),
            ("traced_steps:buckets", "environment variable RANK.*; --world-size N makes it a rank of a job", []),
            ("traced_steps:buckets", "--rank 4: allowed: 0 to 3", ["--world-size", "4", "--rank", "4"]),
            ("traced_steps:fused", "--rank goes with --world-size", ["--rank", "1"]),
            ("traced_steps:fused", "allowed: --tensors device", ["--no-bytes", "--tensors", "fake"]),
            ("traced_steps:buckets", "DistributedDataParallel", ["--world-size", "4", "--tensors", "fake"]),
            ("traced_steps:nonzero", "--bound is of fake tensors", ["--bound", "0.5", "--tensors", "device"]),
            ("traced_steps:nonzero", "--bound", ["--bound", "1.5"]),
            ("traced_steps:fused", "no_such_folder", ["--out", "/no_such_folder/trace.pickle"]),
        ):
            with self.subTest(said):
                self.refused(function, said, *words)

    def test_a_workspace_that_pytorch_cannot_read(self) -> None:
        done = trace_model("traced_steps:own_bias", "--tensors", "fake", CUBLAS_WORKSPACE_CONFIG=f":{10**20}:1")
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done.stderr)
        self.assertIn("CUBLAS_WORKSPACE_CONFIG has a number", done.stderr)

    def test_a_python_without_pytorch(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "torch.py").write_text("raise ImportError('none here')\n")
            done = trace_model("traced_steps:fused", PYTHONPATH=folder, SPILLWAY_PYTHON=sys.executable)
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done.stderr)
        self.assertIn("has no PyTorch", done.stderr)

    def test_a_machine_whose_devices_are_hidden(self) -> None:
        done = trace_model("traced_steps:fused", CUDA_VISIBLE_DEVICES="")
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
