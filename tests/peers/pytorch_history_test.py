"""What PyTorch's tests demand of the memory history, snapshots and what draws them."""

from __future__ import annotations

import ctypes
import importlib
import inspect
import json
import pickle
import random
import unittest
import warnings
from pathlib import Path
from typing import Any

from pytorch_demands import (
    Case,
    Table,  # noqa: F401
    bytes_of,
    main,
    mebibytes,
    memory,
    torch,
    viewer,
)

HERE = Path(__file__).name
PICKLED = "_ZN5torch4cuda24_memory_snapshot_pickledB5cxx11Ev"  # torch::cuda::_memory_snapshot_pickled()
LEAVES_OUT_ACTIONS = "skip_actions" in inspect.signature(memory._record_memory_history_impl).parameters


class History(Case):
    def record(self, *arguments: Any, **options: Any) -> None:
        self.addCleanup(memory._record_memory_history, None)
        memory._record_memory_history(None)
        memory._record_memory_history(*arguments, **options)

    def events(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = memory._snapshot()["device_traces"][0]
        return found

    def block_of(self, requested: int) -> dict[str, Any]:
        blocks = [block for segment in memory._snapshot()["segments"] for block in segment["blocks"]]
        found: list[dict[str, Any]] = [block for block in blocks if block["requested_size"] == requested]
        self.assertEqual(len(found), 1)
        return found[0]

    def test_a_block_says_where_it_was_asked_for(self) -> None:
        self.record("state", stacks="python")
        mebibytes(3)
        unused, kept = bytes_of(500_000), bytes_of(511_111)
        dice = random.Random(1)
        small = [bytes_of(512) for _ in range(1000)]
        while small:
            del small[dice.randrange(len(small))]
        bytes_of(2560)
        found = self.block_of(511_111)
        self.assertEqual(found["address"], kept.data_ptr())
        self.assertIn(HERE, [Path(frame["filename"]).name for frame in found["frames"]])
        self.assertTrue(all("frames" in segment for segment in memory._snapshot()["segments"]))
        # This is what _save_segment_usage() draws; its drawing is done by a program that it downloads.
        self.assertIn(HERE, viewer.segments(memory._snapshot(), lambda lines: lines))
        del unused

    def test_a_block_says_it_of_cpp_too(self) -> None:
        self.record("state", stacks="all")
        kept = bytes_of(311_411)
        self.assertIn("::empty", str(self.block_of(311_411)["frames"]))
        del kept

    def test_a_block_says_it_of_a_script(self) -> None:
        self.record("state", stacks="python")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            script = torch.jit.CompilationUnit(
                "def made_by_a_script():\n  return torch.rand([311, 411], device='cuda')\n"
            )
        kept = script.made_by_a_script()
        self.assertEqual(self.block_of(311 * 411 * 4)["frames"][0]["name"], "made_by_a_script")
        del kept

    def test_the_last_event_of_an_emptied_cache_is_of_a_segment(self) -> None:
        self.record("all", stacks="python")
        mebibytes(5)
        torch.cuda.empty_cache()
        actions = [event["action"] for event in self.events() if event["action"] != "snapshot"]
        self.assertIn(actions[-1], ("segment_free", "segment_unmap"))

    def test_stacks_are_of_what_the_context_names(self) -> None:
        def ask() -> Any:
            return bytes_of(12)

        def give_back(held: list[Any]) -> None:
            held.clear()

        for context in ("alloc", "all", "state", None):
            with self.subTest(context=context):
                self.record("all", context=context, stacks="python")
                held = [ask()]
                give_back(held)
                torch.cuda.empty_cache()
                text = json.dumps(memory._snapshot())
                self.assertEqual("ask" in text, context in ("alloc", "all"))
                self.assertEqual("give_back" in text, context == "all")
                self.assertEqual('"empty_cache"' in text, context == "all")

    def test_stacks_may_be_left_out_for_a_while(self) -> None:
        def seen_first() -> Any:
            return bytes_of(16)

        def not_seen() -> Any:
            return bytes_of(12)

        def seen_again() -> Any:
            return bytes_of(16)

        self.record(context="all", stacks="python")
        kept = [seen_first()]
        memory._record_memory_history(context=None)
        kept.append(not_seen())
        memory._record_memory_history(context="all", stacks="python")
        kept.append(seen_again())
        text = json.dumps(memory._snapshot())
        self.assertEqual([name in text for name in ("seen_first", "not_seen", "seen_again")], [True, False, True])

    def test_plots_are_made_of_every_kind_of_stack(self) -> None:
        for context, stacks in (("all", "all"), ("all", "python"), (None, "python")):
            with self.subTest(context=context, stacks=stacks):
                self.record("all", context=context, stacks=stacks)
                bytes_of(65_432)
                snapshot = memory._snapshot()
                text = json.dumps(snapshot)
                for page in (
                    viewer.trace_plot(snapshot),
                    viewer.trace_plot(snapshot, filter_freed=True),
                    viewer.segment_plot(snapshot),
                ):
                    self.assertIn("<!DOCTYPE html>", page)
                self.assertEqual("bytes_of" in text, context is not None)
                self.assertEqual("::empty" in text, stacks == "all")
                self.assertIn("65432", text)

    def test_every_event_has_the_programs_words(self) -> None:
        for context in ("alloc", "all", "state"):
            memory._set_memory_metadata("in words")
            self.record(context=context)
            bytes_of(12)
            torch.cuda.empty_cache()
            memory._set_memory_metadata("")
            found = {event["user_metadata"] for event in self.events() if event["action"] != "snapshot"}
            self.assertEqual(found, {"in words"})

    @unittest.skipUnless(LEAVES_OUT_ACTIONS, "PyTorch leaves actions out as of 2.11")
    def test_actions_may_be_left_out(self) -> None:
        everything = {"alloc", "free_requested", "free_completed"}
        for left_out in (["free_requested"], ["free_requested", "free_completed"], ["alloc"], [], None):
            with self.subTest(left_out=left_out):
                self.record(context="all", stacks="python", skip_actions=left_out)
                bytes_of(65_536)
                torch.cuda.synchronize()
                found = {event["action"] for event in self.events()}
                self.assertEqual(found & everything, everything - set(left_out or []))

    def test_events_name_the_compiled_region(self) -> None:
        dynamo: Any = importlib.import_module("torch._dynamo")
        self.addCleanup(dynamo.reset)

        def copy(source: Any) -> Any:
            return source.clone()

        region: Any = torch.compile(copy, backend="eager")
        source = bytes_of(1000)
        self.record(context="all", stacks="python", compile_context=True)
        region(source)
        found = {event["compile_context"] for event in self.events()}
        self.assertIn("Torch-Compiled Region: 0/0", found)

    def test_a_profile_is_drawn_with_its_categories(self) -> None:
        with torch.profiler.profile(with_stack=True, profile_memory=True, record_shapes=True) as profile:
            numbers = torch.zeros(128, 128, device="cuda")
            numbers.clone()
        self.assertIn("<!DOCTYPE html>", viewer.profile_plot(profile))
        text = json.dumps(viewer._profile_to_snapshot(profile))
        for word in (HERE, "test_a_profile_is_drawn", "category", "65536"):
            self.assertIn(word, text)

    def test_a_snapshot_has_every_key(self) -> None:
        self.record()
        kept = [bytes_of(1000), mebibytes(3)]
        snapshot = memory._snapshot()
        wanted = {"device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream"}
        wanted |= {"segment_type", "segment_pool_id", "is_expandable", "frames", "blocks"}
        for segment in snapshot["segments"]:
            self.assertLessEqual(wanted, set(segment))
            self.assertIn(segment["segment_type"], ("small", "large"))
            live = [block["size"] for block in segment["blocks"] if block["state"] == "active_allocated"]
            self.assertEqual(segment["allocated_size"], sum(live))
            for block in segment["blocks"]:
                self.assertLessEqual({"address", "size", "requested_size", "state", "frames"}, set(block))
        del kept

    def test_cpp_has_the_snapshot_pickled(self) -> None:
        class Text(ctypes.Structure):
            """std::string, as a function of C++ returns it."""

            _fields_ = (("begin", ctypes.c_void_p), ("size", ctypes.c_size_t), ("rest", ctypes.c_uint8 * 16))

        function = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))[PICKLED]
        function.restype = Text
        self.record("all", context="all", stacks="python")
        kept = bytes_of(311_411)
        text = function()
        snapshot = pickle.loads(ctypes.string_at(text.begin, text.size))
        blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
        self.assertIn((kept.data_ptr(), 311_411), [(block["address"], block["requested_size"]) for block in blocks])
        events = [event for event in snapshot["device_traces"][0] if event["action"] != "snapshot"]
        self.assertEqual((events[-1]["action"], events[-1]["size"]), ("alloc", 311_411))


if __name__ == "__main__":
    main()
