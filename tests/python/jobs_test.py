"""The examples for torchrun, Slurm and Kubernetes: their syntax, and that the command has the words that they use."""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import unittest
from pathlib import Path
from typing import Any

import yaml

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
COMMAND = os.environ["SPILLWAY_COMMAND"]


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

    def mounted(self, pod: dict[str, Any], container: dict[str, Any], folder: str) -> None:
        volumes = {volume["name"] for volume in pod["volumes"]}
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        self.assertIn(mounts.get(folder), volumes)


if __name__ == "__main__":
    unittest.main()
