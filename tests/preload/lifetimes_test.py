"""Contexts that end, threads, and memory that must be the driver's own."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path

from under import COMMAND, PROGRAMS, Run, run

MIB = 1 << 20


class Lifetimes(unittest.TestCase):
    def case(self, name: str, errors: str = "", simulated: str = "capacity:1GiB", **variables: str) -> Run:
        done = run(PROGRAMS / "preload_lifetimes", name, preload=None, simulated=simulated, **variables)
        self.assertEqual(done.code, 0, done.err)
        self.assertIn(errors, done.err)
        if not errors:
            self.assertEqual(done.err, "")
        return done

    def test_primary_context_reset_and_released(self) -> None:
        # What was forgotten in the contexts before is gone, and counted.
        done = self.case("reset")
        self.assertEqual(done.served(), 3 * (1 + 20 + 1))
        self.assertEqual(done.stats()["allocation"]["all"]["current"], 0)

    def test_the_trace_of_contexts_that_ended_with_blocks_is_replayed(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.zst"
            self.case("reset", SPILLWAY_CONF=f"trace:{trace}")
            done = run(COMMAND, "replay", "--json", trace, preload=[])
        self.assertEqual((done.code, done.err), (0, ""))
        # In each of three contexts a block that is forgotten, beside the others; then three more.
        self.assertEqual(json.loads(done.out)[0]["events"], 3 * (1 + 2 * 20 + 1) + 2 * 3)

    def test_what_was_freed_on_another_stream_is_free_when_that_is_done(self) -> None:
        self.case("freed-on-another-stream", simulated="capacity:1GiB,completion:late")

    def test_the_driver_refuses_to_destroy_a_context(self) -> None:
        self.assertEqual(self.case("refused-end").served(), 4)

    def test_a_context_is_released_by_one_thread_and_retained_by_another(self) -> None:
        self.case("released-by-threads")

    def test_contexts_made_and_destroyed(self) -> None:
        done = self.case("created")
        # Nothing is left of the contexts but what they counted.
        self.assertEqual(done.served(), 63)
        self.assertEqual(done.device()["segments"], [])
        reserved = done.stats()["reserved_bytes"]["all"]
        self.assertEqual((reserved["current"], reserved["allocated"]), (0, reserved["freed"]))
        self.assertGreater(reserved["peak"], 0)

    def test_the_command_says_what_a_program_was_served_whose_contexts_have_ended(self) -> None:
        done = run(COMMAND, "run", "--preload", "--", PROGRAMS / "preload_lifetimes", "created", preload=[])
        self.assertIn("63 allocations served", done.err)

    def test_dumps_name_the_functions_that_hold_the_memory(self) -> None:
        done = self.case("held")
        self.assertEqual([dump["reason"] for dump in done.oom_dumps], ["oom"])
        self.assertEqual(len(done.oom_dumps[0]["stacks"]), 2)
        report = done.report()
        for holder, size in (("held_without_a_stream", "5.000 MiB"), ("held_on_a_stream", "3.000 MiB")):
            self.assertRegex(report, rf"{size} .* {holder} \(preload_lifetimes\+0x[0-9a-f]+\)")
        # Where it is not wanted, nothing is noted.
        report = self.case("held", SPILLWAY_CONF="dump_stacks:off").report()
        self.assertNotIn("held_", report)

    def test_contexts_end_while_the_process_is_looked_at(self) -> None:
        done = self.case("churned", SPILLWAY_CONF="live_interval:1")
        self.assertEqual(done.served(), 50 * 3)
        self.assertEqual(done.device()["segments"], [])

    def test_a_context_ends_that_more_than_blocks_depends_on(self) -> None:
        done = self.case("depended-on", "device 0: its context ended while")
        self.assertEqual(done.err.count("\n"), 1)
        self.assertEqual(done.served(), 20)
        self.assertEqual(done.device()["annotations"]["preload_plain_bytes"], 0)

    def test_a_context_ends_that_is_watched_for_idleness(self) -> None:
        self.case("watched", "device 0: its context ended while", SPILLWAY_CONF="evict_above:1MiB,idle_after:100ms")

    def test_a_context_that_a_runtime_keeps_too(self) -> None:
        self.assertEqual(self.case("shared").served(), 4)

    def test_a_second_context_is_left_to_the_driver(self) -> None:
        done = self.case("second", "device 0 is served in another context")
        self.assertEqual(done.served(), 6)
        # What the first of two such contexts forgot has gone with it.
        self.assertEqual(done.device()["annotations"]["preload_plain_bytes"], 5 * MIB)

    def test_a_primary_context_that_is_left_to_the_driver_ends(self) -> None:
        done = self.case("second-is-primary", "device 0 is served in another context")
        self.assertEqual(done.served(), 4)
        self.assertEqual(done.device()["annotations"]["preload_plain_bytes"], 0)

    def test_contexts_that_change_behind_the_hooks(self) -> None:
        done = self.case("switched", simulated="devices:3,capacity:1GiB")
        served = [device["stats"]["allocation"]["all"]["allocated"] for device in done.dumps[0]["devices"]]
        self.assertEqual(served, [20, 21, 1])

    def test_a_stream_has_the_handle_of_one_that_is_gone(self) -> None:
        self.case("recycled", simulated="devices:2,capacity:1GiB")

    def test_threads_come_and_go(self) -> None:
        done = self.case("threads")
        self.assertEqual(done.served(), 5 * 4 * 51)

    def test_captures(self) -> None:
        for conf in ("", "preload_free:sync"):
            self.case("captured", SPILLWAY_CONF=conf)

    def test_a_free_waits_where_it_is_told_to(self) -> None:
        for conf, said in (("", "did not wait\n"), ("preload_free:sync", "waited\n")):
            done = self.case("free-beside-work", simulated="capacity:1GiB,completion:late", SPILLWAY_CONF=conf)
            self.assertEqual(done.out, said)

    def test_memory_shown_to_other_processes_is_learned(self) -> None:
        done = self.case("ipc", "cuIpcGetMemHandle")
        self.assertEqual(done.out, "refused\nshown\n")
        self.assertEqual(done.err.count("\n"), 1)
        self.assertEqual(done.served(), 3)

    def test_memory_shown_to_other_processes_is_plain_where_asked_for(self) -> None:
        done = self.case("ipc", SPILLWAY_CONF="preload_ipc:plain")
        self.assertEqual(done.out, "shown\nshown\n")

    def test_memory_shown_to_other_processes_is_refused_where_asked_for(self) -> None:
        done = self.case("ipc", "preload_ipc:plain would serve it", SPILLWAY_CONF="preload_ipc:refuse")
        self.assertEqual(done.out, "refused\nrefused\n")
        self.assertEqual(done.err.count("\n"), 1)

    def test_memory_shown_as_a_dma_buf_is_learned(self) -> None:
        done = self.case("ranged", "cuMemGetHandleForAddressRange")
        self.assertEqual(done.out, "refused\nshown\n")
        self.assertEqual(done.err.count("\n"), 1)

    def test_memory_shown_as_a_dma_buf_is_plain_where_asked_for(self) -> None:
        done = self.case("ranged", SPILLWAY_CONF="preload_ipc:plain")
        self.assertEqual(done.out, "shown\nshown\n")

    def test_memory_shown_as_a_dma_buf_is_refused_where_asked_for(self) -> None:
        done = self.case("ranged", "preload_ipc:plain would serve it", SPILLWAY_CONF="preload_ipc:refuse")
        self.assertEqual(done.out, "refused\nrefused\n")
        self.assertEqual(done.err.count("\n"), 1)

    def test_memory_shown_where_there_are_no_mappings(self) -> None:
        """The driver has handles for that memory then, of more than the block."""
        for backend in ({"simulated": "capacity:1GiB,vmm:off"}, {"SPILLWAY_CONF": "backend:malloc"}):
            with self.subTest(**backend):
                done = self.case("ipc", "cuIpcGetMemHandle", **backend)
                self.assertEqual(done.out, "refused\nshown\n")

    def test_registered_memory_is_learned(self) -> None:
        """NCCL and UCX go a slow way where memory cannot be shown, and ask for no handle then."""
        done = self.case("registered", "CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE")
        self.assertEqual(done.out, "refused\nshown\n" * 2)
        self.assertEqual(done.err.count("\n"), 1)

    def test_registered_memory_is_plain_where_asked_for(self) -> None:
        done = self.case("registered", SPILLWAY_CONF="preload_ipc:plain")
        self.assertEqual(done.out, "shown\nshown\n" * 2)

    def test_registered_memory_is_refused_where_asked_for(self) -> None:
        done = self.case("registered", "preload_ipc:plain would serve it", SPILLWAY_CONF="preload_ipc:refuse")
        self.assertEqual(done.out, "refused\nrefused\n" * 2)
        self.assertEqual(done.err.count("\n"), 1)

    def test_memory_is_shown_from_any_context(self) -> None:
        """Threads of communication libraries have none, or another."""
        for simulated in ("capacity:1GiB", "capacity:1GiB,vmm:off"):
            with self.subTest(simulated):
                done = self.case("anywhere", "cuIpcGetMemHandle", simulated)
                self.assertEqual(done.err.count("\n"), 1)
                self.assertEqual(done.served(), 2)

    def test_memory_of_a_stream_that_is_registered_teaches_nothing(self) -> None:
        done = self.case("registered-on-a-stream")
        self.assertEqual(done.out, "refused\nrefused\n")
        self.assertEqual(done.served(), 4)

    def test_attributes_together(self) -> None:
        self.case("attributes", "CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE")

    def test_registered_mappings_of_the_program(self) -> None:
        self.case("registered-mapping")

    def test_other_programs_are_started(self) -> None:
        done = self.case("spawned")
        self.assertEqual(len(done.dumps), 1)
        self.assertEqual(done.served(), 21)
        self.assertEqual(done.stats()["allocated_bytes"]["all"]["current"], 0)

    def test_other_programs_that_use_cuda_are_started(self) -> None:
        done = self.case("spawned-users")
        served = [
            device["stats"]["allocation"]["all"]["allocated"] for dump in done.dumps for device in dump["devices"]
        ]
        self.assertEqual(sorted(served), [1 + 2 * 2, 5 * 4 * 51, 5 * 4 * 51])

    def test_memory_is_freed_when_the_program_ends(self) -> None:
        done = self.case("ended")
        self.assertEqual(done.out, "to the end\n")

    def test_pools(self) -> None:
        done = self.case("pools")
        self.assertEqual(done.served(), 3)
        self.assertEqual(done.device()["annotations"]["preload_pool_bytes"], 5 * MIB)

    def test_pools_of_devices(self) -> None:
        self.case("pools-of-devices", simulated="devices:2,capacity:1GiB")

    def test_the_driver_has_what_spillway_does_not_use(self) -> None:
        self.case("squeezed")

    def test_other_contexts_have_what_spillway_does_not_use(self) -> None:
        self.case("squeezed-from-another-context", "device 0 is served in another context", "devices:2,capacity:1GiB")


if __name__ == "__main__":
    unittest.main()
