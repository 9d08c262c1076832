"""The cases of docs/pytorch-conformance.md: what works on PyTorch's own allocator works on Spillway as well."""

from __future__ import annotations

import os
import sys
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[1:1] = [str(ROOT / "tests" / "python" / "conformance"), str(ROOT / "bench" / "pytorch"), str(ROOT / "bench")]
from cases import NOT_APPLICABLE, REFUSES, WORKS, WRONG, Case, NotApplicableError, find, torch  # noqa: E402
from findings import SET, Findings, every_case, find_all, functions_without_case, worse  # noqa: E402
from spillway._pytorch.releases import release_of  # noqa: E402

# cudaIpcGetMemHandle takes no mapped memory; PyTorch's own expandable segments have the same trouble.
LACKING = {"vllm#42609, #9774, aiter#4174"}


class Conformance(unittest.TestCase):
    findings: Findings

    @classmethod
    def setUpClass(cls) -> None:
        cls.findings = find_all(every_case(), ("native", "plain", "full"))

    def test_full_has_what_native_has(self) -> None:
        found = {name: self.findings[name]["full"] for name in worse(self.findings, "full", "native")}
        self.assertEqual({name: found[name] for name in found.keys() - LACKING}, {})

    def test_plain_refuses_what_it_lacks(self) -> None:
        for name in set(worse(self.findings, "plain", "native")) - LACKING:
            finding = self.findings[name]["plain"]
            self.assertEqual(finding.kind, REFUSES, f"{name}: {finding.words}")
            self.assertIn("install(mode='full')", finding.words, name)

    def test_a_setting_answers_what_full_lacks_without_it(self) -> None:
        for case in every_case():
            found = self.findings[case.name]
            with self.subTest(case.name):
                self.assertEqual(bool(case.setting), found["full"].kind in (REFUSES, WRONG), found["full"].words)
                if case.setting:
                    self.assertEqual(found[SET].kind, WORKS, found[SET].words)

    def test_complaints_are_real(self) -> None:
        """Native has the troubles that these programs are about."""
        mended = 0 if release_of(torch) < (2, 15) else 2  # pytorch#159674 and pytorch#173049
        self.assertGreaterEqual(len(worse(self.findings, "native", "full")), 12 - mended)


def good() -> None:
    pass


def wrong() -> None:
    raise AssertionError("2 bytes\nand more")


def refusing() -> None:
    torch.empty(1 << 50, dtype=torch.uint8, device="cuda")


def skipping() -> None:
    raise NotApplicableError("why")


def dying() -> None:
    os._exit(1)


class Judgement(unittest.TestCase):
    def test_what_a_case_does_is_what_is_found(self) -> None:
        for body, kind, words in (
            (good, WORKS, ""),
            (wrong, WRONG, "2 bytes"),
            (refusing, REFUSES, "OutOfMemoryError: CUDA out of memory"),
            (skipping, NOT_APPLICABLE, "why"),
            (dying, WRONG, "the process died"),
        ):
            finding = find(Case("case", "", body, ""), "native")
            self.assertEqual((finding.kind, finding.words[: len(words)]), (kind, words))

    def test_a_function_without_a_case_is_named(self) -> None:
        self.assertEqual(functions_without_case(), [])
        memory = torch.cuda.memory
        with (
            mock.patch.object(memory, "__all__", [*memory.__all__, "empty_cache_twice"]),
            mock.patch.object(memory, "empty_cache_twice", create=True),
        ):
            self.assertEqual(functions_without_case(), ["torch.cuda.memory.empty_cache_twice"])


if __name__ == "__main__":
    unittest.main()
