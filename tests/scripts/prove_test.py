"""scripts/prove: what it packs runs without the checkout, what is done is not done again, what was found is recorded.

usage: prove_test.py BUILD
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from functools import partial
from pathlib import Path
from typing import Any

from proving import claims, record
from proving.layout import ROOT, TESTS, Machine, UnusableError
from proving.listed import Test
from proving.results import Results, read
from proving.running import SHORTEST_SECONDS, Stage, execute
from proving.stages.cpp import Program

BUILD = Path(sys.argv.pop()) if len(sys.argv) > 1 else Path()
PROVE = ROOT / "scripts" / "prove"
STAGES = ("facts", "probe", "cpp", "python")
# A few of each kind that take no time: the stages are what is tested.
FEW = ("device_test", "abi_oom_test", "allocator_legacy_pool_test", "python.eight_bits")


def prove(program: Path, *words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """With the environment of somebody who has just logged in: no path leads to the checkout but Python's own."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8"}
    command = [sys.executable, program, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


class Parcel(unittest.TestCase):
    folder: Path
    parcel: Path
    done: subprocess.CompletedProcess[str]
    results: dict[str, Any]

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = Path(tempfile.mkdtemp())
        cls.parcel = cls.folder / "parcel"
        packed = subprocess.run(
            [sys.executable, PROVE, "--pack", cls.parcel, "--build", BUILD, "--python", sys.executable],
            capture_output=True,
            text=True,
            check=False,
        )
        assert packed.returncode == 0, packed.stderr
        listed = json.loads((cls.parcel / TESTS).read_text())
        few = [test for test in listed if test["name"] in FEW or Path(test["command"][0]).name in FEW]
        (cls.parcel / TESTS).write_text(json.dumps(few))
        cls.done = cls.prove()
        cls.results = read(cls.folder / "proof")

    @classmethod
    def tearDownClass(cls) -> None:
        shutil.rmtree(cls.folder)

    @classmethod
    def prove(cls, *words: str) -> subprocess.CompletedProcess[str]:
        stages = [word for stage in STAGES for word in ("--stage", stage)]
        program = cls.parcel / "scripts" / "prove"
        return prove(program, "--simulated", "--python", sys.executable, *stages, *words, folder=cls.folder)

    def test_every_step_ends_well(self) -> None:
        self.assertEqual(self.done.returncode, 0, self.done.stdout + self.done.stderr)
        self.assertEqual(list(self.results["stages"]), list(STAGES))
        for name, stage in self.results["stages"].items():
            self.assertTrue(stage["done"], name)
            self.assertGreater(len(stage["steps"]), 0, name)

    def test_nothing_of_it_names_the_checkout(self) -> None:
        said = subprocess.run(
            ["readelf", "-d", self.parcel / "build/release/bin/abi_oom_test"],
            capture_output=True,
            text=True,
            check=True,
        )
        self.assertIn("[$ORIGIN/../lib]", said.stdout)
        self.assertNotIn(str(ROOT), (self.parcel / TESTS).read_text())

    def test_the_stages_found_what_claims_ask_for(self) -> None:
        report = claims.report_of(self.results)
        self.assertEqual(report["cpp"]["failed"], 0)
        self.assertGreater(report["cpp"]["passed"], 20)
        self.assertEqual(report["python"]["tests"], {"python.eight_bits": "passed"})
        self.assertEqual(report["facts"]["missing_libraries"], {})
        self.assertIn("cuMemCreate", report["costs_ns"])
        rows = {row.claim.get("fields", [""])[0]: row.outcome for row in claims.judge_all(self.results)}
        self.assertEqual(rows["aliasing.wrong_words_shared_edge"], claims.HELD)
        self.assertEqual(rows["aliasing_resident.wrong_words_edges"], claims.SILENT)
        self.assertEqual(rows["pytorch.same_losses"], claims.OPEN)

    def test_what_is_done_is_not_done_again_unless_asked(self) -> None:
        again = self.prove()
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(again.stdout.count("done before"), len(STAGES))
        self.assertEqual(read(self.folder / "proof"), self.results)
        anew = prove(
            self.parcel / "scripts/prove",
            *("--simulated", "--python", sys.executable, "--stage", "probe", "--again"),
            folder=self.folder,
        )
        self.assertIn("sections: ok", anew.stdout)

    def test_a_call_without_time_leaves_its_steps_for_the_next(self) -> None:
        words = ("--simulated", "--python", sys.executable, "--stage", "cpp", "--results", "short")
        program = self.parcel / "scripts" / "prove"
        short = prove(program, *words, "--seconds", "1", folder=self.folder)
        self.assertEqual(short.returncode, 1)
        self.assertFalse(read(self.folder / "short")["stages"]["cpp"]["done"])
        whole = prove(program, *words, folder=self.folder)
        self.assertEqual(whole.returncode, 0, whole.stdout)
        self.assertTrue(read(self.folder / "short")["stages"]["cpp"]["done"])

    def test_what_was_simulated_is_not_recorded(self) -> None:
        refused = prove(PROVE, "--record", self.folder / "proof", folder=self.folder)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("simulated", refused.stderr)

    def test_results_of_another_device_are_not_mixed_in(self) -> None:
        program = self.parcel / "scripts" / "prove"
        refused = prove(program, "--python", sys.executable, "--stage", "facts", folder=self.folder)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--results", refused.stderr)

    def test_a_run_is_recorded_with_its_costs(self) -> None:
        results = copy.deepcopy(self.results)
        results["simulated"] = results["stages"]["probe"]["found"]["simulated"] = False
        results["stages"]["facts"]["found"]["driver_release"] = "580.00"
        page, costs = self.folder / "page.md", self.folder / "costs.json"
        shutil.copy(record.DOCUMENT, page)
        record.record(results, page, costs, self.folder / "runs")
        text = page.read_text()
        self.assertNotIn("No hardware run yet", text)
        self.assertIn("**Spillway simulated device**, CUDA 13.0, driver 580.00", text)
        self.assertIn("| held: 0 |", text)
        done = subprocess.run(
            [self.parcel / "build/release/bin/driver_probe", "--sections", "answers"],
            env={
                "SPILLWAY_LIBCUDA": str(self.parcel / "build/release/lib/sim/libcuda.so.1"),
                "SPILLWAY_SIM": f"costs:{costs}",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        results["stages"]["probe"]["found"]["device"]["name"] = "Another"
        record.record(results, page, costs, self.folder / "runs")
        self.assertIn("| if not | Another | Spillway simulated device |", page.read_text())
        # Made anew, the page takes nothing else with it: costs may have been measured better since.
        costs.write_text("measured since")
        record.record(None, page, costs, self.folder / "runs")
        self.assertEqual(costs.read_text(), "measured since")
        record.record(None, page, costs, self.folder / "no_runs")
        self.assertIn("No hardware run yet", page.read_text())


class Claims(unittest.TestCase):
    def judged(self, rule: dict[str, Any], **report: Any) -> str:
        claim = {"claim": "", "rests": "", "fields": ["s.field"], "rule": rule, "holds": "", "if_not": ""}
        return claims.judge(claim, {"s": report}).outcome

    def test_rules(self) -> None:
        for rule, good, bad in (
            ({"is": 0}, 0, 1),
            ({"is": True}, True, False),
            ({"not": "accepted"}, "CUDA_ERROR", "accepted"),
            ({"at_most": 18}, 18, 19),
            ({"at_least": 2}, 2.0, 1.9),
            ({"same_as": "s.other"}, 10, 11),
            ({"share_of": "s.other", "most": 0.5}, 5, 6),
            ({"share_of": "s.other", "least": 0.7}, 7, 6),
        ):
            self.assertEqual(self.judged(rule, field=good, other=10), claims.HELD, rule)
            self.assertEqual(self.judged(rule, field=bad, other=10), claims.FAILED, rule)
            self.assertEqual(self.judged(rule, other=10), claims.OPEN, rule)

    def test_a_field_without_meaning_decides_nothing(self) -> None:
        self.assertEqual(self.judged({"is": 0}, field=1, says_nothing=["field"]), claims.SILENT)

    def test_a_crash_is_no_answer(self) -> None:
        self.assertEqual(self.judged({"any": True}, crashed="Segmentation fault"), claims.FAILED)
        self.assertEqual(self.judged({"any": True}, error="refused"), claims.OPEN)

    def test_tests_that_are_named_decide(self) -> None:
        claim = {"claim": "", "rests": "", "test": "`Ipc.*`, `python.ipc`"}
        outcomes = {"Ipc.One": "passed", "Ipc.Two": "skipped", "python.ipc": "passed", "Other.One": "wrong"}
        self.assertEqual(claims.judge_test(claim, outcomes).outcome, claims.HELD)
        self.assertEqual(claims.judge_test(claim, {**outcomes, "Ipc.Two": "wrong"}).outcome, claims.FAILED)
        self.assertEqual(claims.judge_test(claim, {"Ipc.Two": "skipped"}).outcome, claims.OPEN)

    def test_the_page_has_every_claim_as_it_is_listed(self) -> None:
        text = record.DOCUMENT.read_text()
        runs = [read(file) for file in sorted(record.RUNS.glob("*.json"))]
        self.assertEqual(record.document(text, runs), text, "scripts/prove --record none writes the page anew")


def stage_in(folder: Path, seconds: float = 60, is_short: bool = False) -> Stage:
    return Stage("cpp", Machine(ROOT, Path(sys.executable), simulated=True), Results(folder), seconds, is_short)


class Steps(unittest.TestCase):
    def test_one_that_does_not_end_is_ended_with_its_children(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            command = ["sh", "-c", "echo begun; sleep 60 & wait"]
            outcome = execute(command, dict(os.environ), 0.5, Path(folder) / "a.step")
            self.assertIsNone(outcome.code)
            self.assertEqual(outcome.out, "begun\n")
            self.assertLess(outcome.seconds, 5)

    def test_a_program_that_is_not_there(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            outcome = execute(["/nonexistent"], {}, 5, Path(folder) / "a.step")
            self.assertEqual(outcome.code, 127)
            self.assertIn("/nonexistent", outcome.error)

    def test_one_that_the_end_of_the_call_cuts_off_is_left_for_the_next(self) -> None:
        for is_short in (True, False):
            with self.subTest(is_short), tempfile.TemporaryDirectory() as folder:
                stage = stage_in(Path(folder), SHORTEST_SECONDS + 0.2, is_short)
                with contextlib.redirect_stdout(io.StringIO()):
                    stage.run("long", ["sleep", "60"], {"PATH": "/usr/bin:/bin"}, 30)
                self.assertEqual(stage.left_out, ["long"] if is_short else [])
                self.assertEqual(list(stage.kept["steps"]), [] if is_short else ["long"])

    def test_what_asks_for_the_whole_device_runs_when_nothing_else_does(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            stage = stage_in(Path(folder))
            running = 0
            beside: list[int] = []

            def job(seconds: float) -> None:
                nonlocal running
                running += 1
                beside.append(running)
                time.sleep(seconds)
                running -= 1

            stage.side_by_side([partial(job, 0.2)] * 4, [partial(job, 0.01)] * 2)
            self.assertEqual(beside[-2:], [1, 1])
            self.assertEqual(len(beside), 6)

    def test_what_a_lost_program_had_done_is_not_done_again(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "a_test"
            program.write_text(
                "#!/bin/sh\necho '[       OK ] A.One (3 ms)'\necho '[  SKIPPED ] A.Two (0 ms)'\nkill -9 $$\n"
            )
            program.chmod(0o755)
            cases = [Test(name, [str(program), f"--gtest_filter=A.{name}"], {}) for name in ("One", "Two", "Three")]
            found = Program(stage_in(Path(folder)), "a_test", cases).run()
            self.assertEqual(
                (found["skipped"], found["failed"]), (["A.Two"], {"A.Three": "it ended before its result"})
            )


class BadInput(unittest.TestCase):
    def check(self, *words: str | Path, wanted: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            done = prove(PROVE, *words, folder=Path(folder))
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn(wanted, done.stderr.splitlines()[-1])

    def test_a_stage_that_does_not_exist(self) -> None:
        self.check("--stage", "speed", wanted="pytorch")

    def test_a_python_without_pytorch(self) -> None:
        self.check("--python", "/usr/bin/false", wanted="--python")

    def test_a_build_that_does_not_exist(self) -> None:
        self.check("--pack", "parcel", "--build", "/nonexistent", "--python", sys.executable, wanted="/nonexistent")

    def test_a_folder_that_has_something_in_it(self) -> None:
        self.check("--pack", ROOT / "docs", "--build", BUILD, "--python", sys.executable, wanted="not empty")

    def test_results_that_do_not_exist(self) -> None:
        self.check("--record", "/nonexistent", wanted="/nonexistent")

    def test_results_that_are_none(self) -> None:
        for text in ('{"stages": {"facts"', "[1]", '{"stages": 3}', "\x00"):
            with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
                file.write(text)
                file.flush()
                self.check("--record", file.name, wanted=file.name)

    def test_seconds_that_are_none(self) -> None:
        for text in ("-5", "0", "nan", "inf", "soon"):
            self.check("--seconds", text, wanted="--seconds")

    def test_a_page_without_a_place_for_the_tables(self) -> None:
        with self.assertRaises(UnusableError):
            record.document("nothing", [])


if __name__ == "__main__":
    unittest.main()
