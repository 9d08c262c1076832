"""install() follows what `spillway doctor --probe` kept of this driver. A process for each."""

from __future__ import annotations

import json
import os
import tempfile
import unittest
from pathlib import Path
from typing import Any

import warm
from spillway._pytorch import profile

INSTALL = """
import warnings
warnings.simplefilter("always")
import spillway
from spillway._library import option
spillway.install("plain")
print(option("profile"), option("share_edges"), option("backend"))
"""


class Profile(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache = Path(folder.name)
        driver = profile.driver_name()
        assert driver is not None
        self.driver = driver

    def keep(self, kept: Any) -> None:
        (self.cache / profile.KEPT).write_text(kept if isinstance(kept, str) else json.dumps(kept))

    def keep_words(self, **words: Any) -> None:
        self.keep({"schema_version": 1, "drivers": {self.driver: words, "another": {"X": "plain"}}})

    def install(self, **environment: str) -> tuple[str, list[str]]:
        """What is in force, and what was said of it."""
        done = warm.run(INSTALL, **({"SPILLWAY_CACHE": str(self.cache), "SPILLWAY_CONF": ""} | environment))
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip(), [line for line in done.stderr.splitlines() if "profile" in line]

    def test_nothing_is_said_where_nothing_was_kept(self) -> None:
        self.assertEqual(self.install(), ("ordinary on vmm", []))

    def test_the_verdict_is_followed_and_said_once(self) -> None:
        self.keep_words(A="careful")
        found, said = self.install()
        self.assertEqual(found, "careful off vmm")
        self.assertEqual(len(said), 1, said)
        for word in "profile:careful", self.driver, "with A", "doctor --probe", "SPILLWAY_CONF=profile:ordinary":
            self.assertIn(word, said[0])

    def test_the_least_of_its_devices_counts(self) -> None:
        self.keep_words(A="ordinary", B="plain", C="careful")
        self.assertEqual(self.install()[0], "plain on malloc")

    def test_an_ordinary_driver_hears_nothing(self) -> None:
        self.keep_words(A="ordinary")
        self.assertEqual(self.install(), ("ordinary on vmm", []))

    def test_what_the_user_names_wins(self) -> None:
        self.keep_words(A="careful")
        self.assertEqual(self.install(SPILLWAY_CONF="limit:50%, profile : ordinary"), ("ordinary on vmm", []))
        found, said = self.install(SPILLWAY_CONF="share_edges:on")
        self.assertEqual((found, len(said)), ("careful on vmm", 1))
        file = self.cache / "options"
        file.write_text("limit:50%\nprofile:ordinary\n")
        self.assertEqual(self.install(SPILLWAY_CONF_FILE=str(file)), ("ordinary on vmm", []))
        file.write_text("# profile:ordinary\n")
        self.assertEqual(self.install(SPILLWAY_CONF_FILE=str(file))[0], "careful off vmm")

    def test_garbage_counts_as_nothing(self) -> None:
        garbage: list[Any] = [
            *("", "{", "[]", "null", "[" * 100000, "\x00\xff"),
            {"drivers": []},
            {"drivers": {self.driver: ["careful"]}},
            {"drivers": {self.driver: {"A": "carefree", "B": 7, "C": None}}},
        ]
        for kept in garbage:
            with self.subTest(kept=str(kept)[:40]):
                self.keep(kept)
                self.assertEqual(self.install(), ("ordinary on vmm", []))

    def test_a_file_that_may_not_be_read_counts_as_nothing(self) -> None:
        (self.cache / profile.KEPT).mkdir()
        self.assertEqual(self.install(), ("ordinary on vmm", []))

    def test_too_late_is_said(self) -> None:
        self.keep_words(A="careful")
        late = """
import ctypes, os
import spillway
from spillway._library import library
from spillway._pytorch import profile
driver = ctypes.CDLL(os.environ["SPILLWAY_LIBCUDA"])
context, block = ctypes.c_void_p(), ctypes.c_void_p()
assert driver.cuInit(0) == 0 and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert library().spw_alloc(ctypes.c_size_t(4096), 0, None, ctypes.byref(block)) == 0
print(profile.follow())
"""
        done = warm.run(late, SPILLWAY_CACHE=str(self.cache), SPILLWAY_CONF="")
        self.assertIn("without profile:careful", done.stdout, done.stderr)

    def test_the_driver_is_named_without_a_device(self) -> None:
        self.assertRegex(self.driver, r"^(\d+\.\d+(\.\d+)?, )?CUDA \d+\.\d+$")
        if os.environ.get("SPILLWAY_LIBCUDA"):
            self.assertTrue(self.driver.startswith("CUDA"), self.driver)
        nowhere = warm.run(
            "from spillway._pytorch import profile; print(profile.driver_name())", SPILLWAY_LIBCUDA="/none/libcuda.so"
        )
        self.assertEqual(nowhere.stdout.strip(), "None")


if __name__ == "__main__":
    unittest.main()
