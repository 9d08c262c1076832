"""What ends the process, or goes wrong, under torch_memory_saver: each by its idea, on the late simulated device."""

from __future__ import annotations

import threading
import unittest
from typing import Any

from on_seeds import Outcome, Program, check_counters, torch
from spilling import every_seed, refused
from torch_memory_saver_demands import EVERYTHING, MIB, filled, saver_in, used, wrong


def what_is_allocated_under_a_paused_tag_is_live(outcome: Outcome) -> None:
    saver = saver_in()
    first = {}
    for keeps in (True, False):
        with saver.region("tag", enable_cpu_backup=keeps):
            first[keeps] = filled(1)
    saver.pause("tag")
    later = {}
    for keeps in (True, False):
        with saver.region("tag", enable_cpu_backup=keeps):
            later[keeps] = filled(2)
        outcome.damaged += wrong(later[keeps], 2)
    assert torch.cuda.memory_allocated() == 16 * MIB
    # Both leave, and both come back; what is paused stays so.
    for _ in range(2):
        saver.pause("tag")
        assert torch.cuda.memory_allocated() == 0
    outcome.damaged += wrong(saver.get_cpu_backup(first[True]), 1) + wrong(saver.get_cpu_backup(later[True]), 2)
    saver.resume("tag")
    outcome.damaged += wrong(first[True], 1) + wrong(later[True], 2)
    check_counters()


def what_is_allocated_while_everything_is_paused_is_live(outcome: Outcome) -> None:
    saver = saver_in(**EVERYTHING)
    held = []
    for value in range(3):
        held.append(filled(value))
        outcome.damaged += wrong(held[-1], value)
        saver.pause()
        assert used() == 0
    saver.resume()
    for value, tensor in enumerate(held):
        outcome.damaged += wrong(tensor, value)
    # There is one region again, and room that is free in it is used.
    before = used()
    del held[0]
    held.append(filled(3))
    assert used() == before


def a_region_is_paused_while_it_is_open(outcome: Outcome) -> None:
    saver = saver_in()
    with saver.region("outer", enable_cpu_backup=True):
        with saver.region("tag", enable_cpu_backup=True):
            before = filled(1)
            saver.pause()
            assert used() == 0
            after = filled(2)
            outcome.damaged += wrong(after, 2)
            saver.resume()
            outcome.damaged += wrong(before, 1)
            last = filled(3)
        outer = filled(4)
    outside = filled(5)
    saver.pause("tag")
    assert torch.cuda.memory_allocated() == outer.nbytes + outside.nbytes
    saver.pause("outer")
    assert torch.cuda.memory_allocated() == outside.nbytes
    saver.resume()
    outcome.damaged += sum(wrong(tensor, value + 1) for value, tensor in enumerate((before, after, last, outer)))


def a_region_that_another_thread_has_open_stays(outcome: Outcome) -> None:
    saver = saver_in()
    opened, paused = threading.Event(), threading.Event()
    held = []

    def allocate() -> None:
        with saver.region("tag", enable_cpu_backup=True):
            held.append(filled(1))
            opened.set()
            paused.wait()

    thread = threading.Thread(target=allocate)
    thread.start()
    opened.wait()
    refused("open", saver.pause, "tag")
    outcome.damaged += wrong(held[0], 1)
    paused.set()
    thread.join()
    saver.pause("tag")
    saver.resume("tag")
    outcome.damaged += wrong(held[0], 1)


def graphs_are_captured_while_their_tag_is_paused(outcome: Outcome) -> None:
    saver = saver_in()
    source = filled(1)
    captured: list[Any] = []
    pool = torch.cuda.graph_pool_handle()
    torch.cuda.synchronize()
    for _ in range(2):
        graph = torch.cuda.CUDAGraph()
        with saver.cuda_graph(graph, pool=pool, tag="graph", enable_cpu_backup=True):
            result = source.clone()
        captured.append((graph, result))
        saver.pause("graph")
    saver.resume("graph")
    for value, (graph, result) in enumerate(captured):
        source.fill_(value)
        graph.replay()
        outcome.damaged += wrong(result, value)


PROGRAMS: list[Program] = [
    what_is_allocated_under_a_paused_tag_is_live,
    what_is_allocated_while_everything_is_paused_is_live,
    a_region_is_paused_while_it_is_open,
    a_region_that_another_thread_has_open_stays,
    graphs_are_captured_while_their_tag_is_paused,
]

OnEverySeed = every_seed(PROGRAMS)


if __name__ == "__main__":
    unittest.main()
