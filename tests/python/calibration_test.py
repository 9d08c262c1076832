"""The closed loop: estimate, train on the simulated device, calibrate by the dump, estimate another training."""

from __future__ import annotations

import os
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(1, str(ROOT / "bench" / "pytorch"))
from calibration import Loop, Training, compare, measured_peak  # noqa: E402

BUILD = Path(os.environ["SPILLWAY_LIBRARY"]).resolve().parents[1]


class ClosedLoop(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.loop = Loop(BUILD, self.folder, 512, 6)

    def test_other_sizes_come_near_what_is_measured(self) -> None:
        learned = (Training(8, 512), Training(16, 512))
        for row in compare(self.loop, learned, (Training(16, 1024),)):
            with self.subTest(str(row)):
                self.assertGreater(abs(row.before), 0.04, "the estimate needs no calibration: make this test harder")
                self.assertLess(abs(row.one_dump), abs(row.before) / 4)
                self.assertLess(abs(row.two_dumps), 0.01)
                self.assertTrue(row.interval_holds)

    def test_checkpointing_is_not_judged_by_what_was_measured_without(self) -> None:
        catalog = self.folder / "catalog.jsonl"
        plain, recomputed = Training(16, 512), Training(16, 512, "full")
        self.loop.calibrate(plain, self.loop.train(plain), catalog)
        answer = self.loop.estimate(recomputed, catalog)
        groups = {group["name"]: group for group in answer["calibration"]["groups"]}
        self.assertEqual(groups["activations and loss"]["observations"], 0)
        # Model states are the same whatever is recomputed: known to the byte of a storage's rounding.
        self.assertEqual(groups["optimizer states"]["observations"], 1)
        measured = measured_peak(self.loop.train(recomputed))
        interval = answer["interval"]
        self.assertLess(abs(answer["peak_bytes"] / measured - 1), 0.1, interval)


if __name__ == "__main__":
    unittest.main()
