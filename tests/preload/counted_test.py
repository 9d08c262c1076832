"""Memory that the driver serves and Spillway only counts."""

from __future__ import annotations

import unittest

from under import PROGRAMS, Run, run

MIB = 1 << 20


class Counted(unittest.TestCase):
    def case(self, name: str, **variables: str) -> Run:
        done = run(PROGRAMS / "preload_counted", name, preload=None, simulated="capacity:1GiB", **variables)
        self.assertEqual((done.code, done.err), (0, ""))
        return done

    def test_what_the_driver_serves_is_counted(self) -> None:
        done = self.case("everything")
        notes = done.device()["annotations"]
        self.assertEqual(notes["preload_managed_bytes"], 3 * MIB)
        self.assertEqual(notes["preload_array_bytes"], 256 * 256 * 4)
        self.assertEqual(notes["preload_host_bytes"], MIB)
        self.assertEqual(notes["preload_vmm_bytes"], 4 * MIB)  # which belongs to no context
        self.assertRegex(done.report(), rf"(?s)As annotated\n.*preload_managed_bytes +{3 * MIB:,} .*preload_vmm_bytes")

    def test_memory_of_graphs_is_counted(self) -> None:
        done = self.case("graph-memory")
        self.assertEqual(done.served(), 3)
        self.assertEqual(done.device()["annotations"]["preload_graph_bytes"], 4 * MIB)

    def test_memory_that_a_graph_holds_between_launches_is_counted(self) -> None:
        done = self.case("graph-relaunched")
        self.assertEqual(done.served(), 3 + 4)
        self.assertEqual(done.device()["annotations"]["preload_graph_bytes"], 0)

    def test_cached_memory_makes_room_for_a_graphs(self) -> None:
        self.case("graph-full")

    def test_memory_of_nodes_of_any_kind_is_counted(self) -> None:
        done = self.case("graph-nodes")
        self.assertEqual(done.device()["annotations"]["preload_graph_bytes"], (1 + 2 + 3 + 4) * MIB)

    def test_plain_memory_is_counted_until_either_call_frees_it(self) -> None:
        done = self.case("plain", SPILLWAY_CONF="preload_ipc:plain")
        self.assertEqual(done.device()["annotations"]["preload_plain_bytes"], 3 * MIB)

    def test_memory_of_the_programs_mappings_is_counted_until_it_is_mapped_nowhere(self) -> None:
        self.case("mapped")

    def test_a_program_that_has_mappings_of_its_own_alone(self) -> None:
        done = self.case("only-created")
        self.assertEqual(done.device()["annotations"]["preload_vmm_bytes"], 6 * MIB)


if __name__ == "__main__":
    unittest.main()
