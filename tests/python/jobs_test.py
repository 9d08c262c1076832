"""The examples for torchrun, Slurm and Kubernetes: their syntax, and that the command has the words that they use.
They are run, on two simulated devices. Slurm's commands are stand-ins for one node. Instead of Kubernetes the test
itself begins the sidecar and the program as the job's description says, with folders in place of its volumes.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path
from typing import Any

import warm
import yaml

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
COMMAND = os.environ["SPILLWAY_COMMAND"]


TRAIN = """
import os, time, torch
from torch import distributed, nn
distributed.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = nn.parallel.DistributedDataParallel(nn.Linear(1024, 1024).cuda())
for _ in range(2):
    model(torch.randn(64, 1024, device="cuda")).sum().backward()
distributed.destroy_process_group()
waits_for = os.environ.get("TEST_WAITS_FOR")
for _ in range(600):
    if not waits_for or os.path.exists(waits_for):
        break
    time.sleep(0.1)
"""

# Programs that the examples find by name. Of a machine with eight GPUs, two are there; ports are whichever are free.
STAND_INS = {
    "spillway": f'exec {COMMAND} "$@"',
    "torchrun": 'set -- "${@/%8/2}"; set -- "${@/%:29500/:0}"; '
    f'exec {warm.python("torch")} -m torch.distributed.run "$@"',
    "srun": 'while [[ "$1" == --* ]]; do shift; done; exec "$@"',
    "scontrol": "echo localhost",
}


@functools.cache
def described(word: str) -> str:
    done = subprocess.run([COMMAND, word, "--help"], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


class Jobs(unittest.TestCase):
    def known(self, words: list[str]) -> None:
        """`words` come after "spillway"; those after "--" are another program's."""
        own = words[: words.index("--")] if "--" in words else words
        said = described(own[0])
        self.assertTrue(said, f"spillway has no {own[0]}")
        for option in own[1:]:
            if option.startswith("--"):
                self.assertIn(option, said, own)

    def configured(self, conf: str) -> None:
        page = (EXAMPLES.parent / "docs" / "configuration.md").read_text()
        for setting in conf.split(","):
            self.assertIn(f"| `{setting.partition(':')[0]}` |", page)

    def code(self, script: Path) -> str:
        subprocess.run(["bash", "-n", script], check=True)
        text = script.read_text().replace("\\\n", " ")
        self.assertTrue(text.startswith("#!/bin/bash\n"))
        code = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        found = re.findall(r"(?m)(?:^|srun[^|&\n]*? )spillway (.*)$", code)
        self.assertEqual([words.split()[0] for words in found], ["exporter", "run", "report"])
        for words in found:
            self.known(shlex.split(words))
        return code

    def test_torchrun(self) -> None:
        self.code(EXAMPLES / "torchrun" / "train.sh")

    def test_slurm(self) -> None:
        code = self.code(EXAMPLES / "slurm" / "train.sbatch")
        self.configured(re.findall(r'SPILLWAY_CONF="([^"]*)"', code)[0])

    def prepare(self, folder: Path, **environment: str) -> dict[str, str]:
        """The variables for an example that runs in `folder`, which gets a train.py."""
        (folder / "train.py").write_text(TRAIN)
        (folder / "bin").mkdir()
        for name, code in STAND_INS.items():
            program = folder / "bin" / name
            program.write_text(f"#!/bin/bash\n{code}\n")
            program.chmod(0o755)
        path = f"{folder / 'bin'}:{os.environ['PATH']}"
        return (
            os.environ
            | {"PATH": path, "PYTHON_EXEC": warm.python("torch"), "SPILLWAY_SIM": "devices:2,capacity:8GiB"}
            | environment
        )

    def run_example(self, script: Path, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = self.prepare(folder, **environment)
        done = subprocess.run(
            ["bash", str(script)], cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=600
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def test_torchrun_runs(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            done = self.run_example(EXAMPLES / "torchrun" / "train.sh", Path(name))
            dumps = sorted(path.name for path in Path(name, "memory").iterdir())
        self.assertEqual(dumps, ["rank0.json", "rank1.json"])
        self.assertIn("2 ranks and devices in 2 files, 0 not read", done.stdout)

    def test_slurm_runs(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            job = {"SLURM_SUBMIT_DIR": name, "SLURM_JOB_ID": "17", "SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "node"}
            done = self.run_example(EXAMPLES / "slurm" / "train.sbatch", Path(name), **job, SPILLWAY_CONF="")
            dumps = sorted(path.name for path in Path(name, "memory-17").iterdir())
        self.assertEqual(dumps, ["rank0.json", "rank1.json"])
        self.assertIn("2 ranks and devices in 2 files, 0 not read", done.stdout)

    def test_kubernetes(self) -> None:
        (job,) = yaml.safe_load_all((EXAMPLES / "kubernetes" / "train.yaml").read_text())
        self.assertEqual((job["apiVersion"], job["kind"]), ("batch/v1", "Job"))
        pod = job["spec"]["template"]["spec"]
        (sidecar,), (train,) = pod["initContainers"], pod["containers"]
        self.assertEqual(sidecar["restartPolicy"], "Always")
        self.known(sidecar["args"])
        self.assertEqual(train["command"][0], "spillway")
        self.known(train["command"][1:])
        environment = {each["name"]: each["value"] for each in train["env"]}
        self.configured(environment["SPILLWAY_CONF"])
        folder = dict(setting.split(":", 1) for setting in environment["SPILLWAY_CONF"].split(","))["live_dir"]
        self.assertEqual(folder, sidecar["args"][sidecar["args"].index("--dir") + 1])
        self.mounted(pod, sidecar, folder)
        self.mounted(pod, train, folder)
        self.mounted(pod, train, os.path.dirname(environment["SPILLWAY_STATS"]))
        port = job["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"]
        self.assertIn(f"0.0.0.0:{port}", sidecar["args"])
        self.assertEqual(sidecar["ports"][0]["containerPort"], int(port))

    def test_kubernetes_runs(self) -> None:
        (job,) = yaml.safe_load_all((EXAMPLES / "kubernetes" / "train.yaml").read_text())
        pod = job["spec"]["template"]["spec"]
        (sidecar,), (train,) = pod["initContainers"], pod["containers"]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for volume in ("live", "dumps"):
                (folder / volume).mkdir()
            put = functools.partial(re.sub, r"(?<![\w/])/(live|dumps)\b", rf"{folder}/\1")
            given = {each["name"]: put(each["value"]) for each in train["env"]}
            variables = self.prepare(folder, **given, TEST_WAITS_FOR=str(folder / "scraped"))
            words = [put(word).replace("0.0.0.0:9835", "127.0.0.1:0") for word in sidecar["args"]]
            exporter = subprocess.Popen(["spillway", *words], env=variables, stdout=subprocess.PIPE, text=True)
            self.addCleanup(exporter.communicate)
            self.addCleanup(exporter.kill)
            assert exporter.stdout
            port = re.findall(r"port (\d+)", exporter.stdout.readline())[0]
            program = subprocess.Popen(train["command"], cwd=folder, env=variables)
            self.addCleanup(program.kill)
            served = self.scrape(f"http://127.0.0.1:{port}/metrics", program)
            (folder / "scraped").touch()
            self.assertEqual(program.wait(timeout=300), 0)
            dumps = sorted(path.name for path in (folder / "dumps").iterdir())
        self.assertEqual(served, {"0", "1"})
        self.assertEqual(dumps, ["rank0.json", "rank1.json"])

    def scrape(self, address: str, program: subprocess.Popen[bytes]) -> set[str]:
        """The devices of which the exporter tells, once it tells of two."""
        devices: set[str] = set()
        while len(devices) < 2 and program.poll() is None:
            with urllib.request.urlopen(address) as answer:
                devices |= set(re.findall(r'spillway_reserved_bytes{[^}]*device="(\d+)"', answer.read().decode()))
            time.sleep(0.1)
        return devices

    def mounted(self, pod: dict[str, Any], container: dict[str, Any], folder: str) -> None:
        volumes = {volume["name"] for volume in pod["volumes"]}
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        self.assertIn(mounts.get(folder), volumes)


if __name__ == "__main__":
    unittest.main()
