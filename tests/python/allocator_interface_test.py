"""What C++ in PyTorch's process asks of the allocator, which Python has no function for."""

from __future__ import annotations

import ctypes
import unittest
from pathlib import Path
from typing import Any

import spillway
from spillway._pytorch import build

spillway.install("full")

import torch  # noqa: E402

MIB = 1 << 20


def load() -> Any:
    folder = Path(__file__).resolve().parent / "allocator_interface"
    loaded = ctypes.CDLL(str(build.compiled(torch, "allocator_interface", folder, folder, [])))
    loaded.largest_block.restype = loaded.segment_bytes.restype = ctypes.c_size_t
    return loaded


class AllocatorInterface(unittest.TestCase):
    asked: Any

    @classmethod
    def setUpClass(cls) -> None:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        # Half of what can be had is taken: of a large device that takes long, and leaves others little.
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, (1 << 30) / total))
        cls.asked = load()

    def test_the_largest_block_can_be_had(self) -> None:
        kept = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        del kept
        largest = self.asked.largest_block(0)
        self.assertGreaterEqual(largest, 64 * MIB)
        self.assertLessEqual(largest, torch.cuda.get_device_properties(0).total_memory)
        half = torch.empty(largest // 2, dtype=torch.uint8, device="cuda")
        self.assertLessEqual(self.asked.largest_block(0), largest - largest // 2)
        del half

    def test_segments_are_all_that_is_reserved(self) -> None:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        kept = [torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")]
        with torch.cuda.stream(side):
            kept.append(torch.empty(20 * MIB, dtype=torch.uint8, device="cuda"))
        streams = ctypes.c_int()
        bytes_there = self.asked.segment_bytes(0, ctypes.byref(streams))
        self.assertEqual(bytes_there, torch.cuda.memory_reserved())
        self.assertGreaterEqual(streams.value, 2)

    def test_a_tracker_sees_each_allocation_and_each_free(self) -> None:
        self.asked.attach_tracker()
        before = (self.asked.tracked_allocations(), self.asked.tracked_frees())
        for _ in range(3):
            torch.empty(MIB, dtype=torch.uint8, device="cuda")
        found = (self.asked.tracked_allocations() - before[0], self.asked.tracked_frees() - before[1])
        self.assertEqual(found, (3, 3))


if __name__ == "__main__":
    unittest.main()
