"""What vLLM's tests of its sleeping allocator demand, and its workers use, on the late simulated device."""

from __future__ import annotations

import unittest
from typing import Any

import spillway
from on_seeds import Outcome, Program, check_counters, torch
from spilling import configure, every_seed
from spillway.compat.vllm_sleep import SleepingAllocator, WakeUpPartialFailure

MIB = 1 << 20


def filled(value: int, mebibytes: int = 8) -> Any:
    return torch.full((mebibytes * MIB // 4,), value, dtype=torch.int32, device="cuda")


def wrong(tensor: Any, value: int) -> int:
    return int((tensor.cpu() != value).any())


def free() -> int:
    torch.cuda.synchronize()
    return int(torch.cuda.mem_get_info()[0])


def woken_in_part(allocator: SleepingAllocator, tags: list[str] | None = None) -> WakeUpPartialFailure:
    try:
        allocator.wake_up(tags)
    except WakeUpPartialFailure as problem:
        assert isinstance(problem, RuntimeError) and isinstance(problem, spillway.SpillwayError)
        return problem
    raise AssertionError("all are awake")


def tensors_of_the_pool_sleep_and_are_as_they_were(outcome: Outcome) -> None:
    """Where no tag is said, it is "default", whose bytes a sleep without tags keeps."""
    allocator = SleepingAllocator.get_instance()
    assert allocator is SleepingAllocator.get_instance() is SleepingAllocator.instance
    assert SleepingAllocator.default_tag == "default" and SleepingAllocator.is_available()
    # A worker looks whether another had it before.
    assert allocator.get_current_usage() == 0
    outside = filled(1)
    with allocator.use_memory_pool():
        assert allocator.current_tag == "default"
        first, second = filled(2), filled(3)
    before, places = free(), (first.data_ptr(), second.data_ptr())
    assert allocator.get_current_usage() >= 16 * MIB
    for _ in range(2):
        allocator.sleep()
        assert free() == before + 16 * MIB and torch.cuda.memory_allocated() == 8 * MIB
        allocator.wake_up()
        assert (first.data_ptr(), second.data_ptr()) == places
        outcome.damaged += wrong(first, 2) + wrong(second, 3) + wrong(outside, 1)
    check_counters()


def waking_without_room_is_an_error_of_python(outcome: Outcome) -> None:
    allocator = SleepingAllocator.get_instance()
    with allocator.use_memory_pool():
        tensor = filled(1, 170)
    allocator.sleep()
    other = filled(2, 170)
    problem = woken_in_part(allocator)
    assert "out of memory" in str(problem).splitlines()[0], str(problem)
    outcome.damaged += wrong(other, 2)
    del other
    torch.cuda.empty_cache()
    allocator.wake_up()
    outcome.damaged += wrong(tensor, 1)


def a_graph_runs_over_what_woke_up(outcome: Outcome) -> None:
    """With weights that are kept, and a cache that is not."""
    allocator = SleepingAllocator.get_instance()
    with allocator.use_memory_pool():
        weights = filled(3)
    with allocator.use_memory_pool(tag="discard"):
        cache = filled(0)
    result = torch.zeros_like(cache)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        cache.copy_(weights)
        result.copy_(cache)
    before = free()
    allocator.sleep()
    assert free() == before + 16 * MIB and spillway.tier_stats()["region_host_bytes"] == 8 * MIB
    filled(9, 100)
    torch.cuda.empty_cache()
    allocator.wake_up()
    graph.replay()
    outcome.damaged += wrong(result, 3) + wrong(cache, 3) + wrong(weights, 3)


def level_two_drops_weights_and_a_worker_restores_its_buffers(outcome: Outcome) -> None:
    allocator = SleepingAllocator.get_instance()
    with allocator.use_memory_pool(tag="weights"):
        weights, buffer = filled(1), filled(2, 1)
    with allocator.use_memory_pool(tag="kv_cache"):
        cache = filled(3, 32)
    saved = buffer.cpu().clone()
    allocator.sleep(offload_tags=())
    assert torch.cuda.memory_allocated() == 0 and spillway.tier_stats()["region_host_bytes"] == 0
    allocator.wake_up(tags=["weights"])
    assert torch.cuda.memory_allocated() == 9 * MIB
    buffer.copy_(saved)
    weights.fill_(4)  # what was loaded anew
    allocator.wake_up(["kv_cache"])
    allocator.wake_up(["kv_cache", "nobody's"])  # what is awake stays so
    cache.fill_(5)
    outcome.damaged += wrong(weights, 4) + wrong(buffer, 2) + wrong(cache, 5)


def one_tag_is_discarded(outcome: Outcome) -> None:
    """Without the others, and without what sleeps with its bytes."""
    allocator = SleepingAllocator.get_instance()
    with allocator.use_memory_pool("weights"):
        weights = filled(1)
    with allocator.use_memory_pool("kv_cache"):
        cache = filled(2, 32)
    before = free()
    for tags in ("kv_cache", ("kv_cache", "nobody's")):
        allocator.discard(tags)
        allocator.discard(tags)
        assert free() == before + 32 * MIB
        outcome.damaged += wrong(weights, 1)
        allocator.wake_up()
        cache.fill_(3)
        outcome.damaged += wrong(cache, 3)
    allocator.sleep("weights")
    allocator.discard("weights")
    allocator.wake_up()
    outcome.damaged += wrong(weights, 1)


def what_cannot_wake_does_not_keep_the_others_asleep(outcome: Outcome) -> None:
    """The error names both, and a second call goes on with what is asleep."""
    allocator = SleepingAllocator.get_instance()
    held = {}
    for value, (tag, size) in enumerate({"weights": 8, "large": 120, "small": 4}.items()):
        with allocator.use_memory_pool(tag):
            held[tag] = filled(value, size)
    with allocator.use_memory_pool("unused"):
        pass
    allocator.sleep(("weights", "large"))
    other = filled(9, 140)
    for _ in range(2):
        problem = woken_in_part(allocator)
        assert problem.failed_tags == ["large"], problem.failed_tags
        assert problem.awake_tags == ["weights", "small", "unused"], problem.awake_tags
        assert isinstance(problem.first_exception, spillway.SpillwayError)
        first = str(problem).splitlines()[0]
        assert "asleep still: large; awake: weights, small, unused" in first, first
        outcome.damaged += wrong(held["weights"], 0) + wrong(other, 9)
        held["small"].fill_(7)
    assert woken_in_part(allocator, ["large", "small"]).failed_tags == ["large"]
    allocator.wake_up(["small"])
    del other
    torch.cuda.empty_cache()
    allocator.wake_up()
    outcome.damaged += wrong(held["large"], 1) + wrong(held["small"], 7)
    allocator.wake_up()


def a_sleep_that_fails_goes_on_later(outcome: Outcome) -> None:
    configure("pinned_limit:16MiB")
    allocator = SleepingAllocator.get_instance()
    with allocator.use_memory_pool("weights"):
        weights = filled(1, 40)
    with allocator.use_memory_pool("kv_cache"):
        cache = filled(2, 16)
    for _ in range(2):
        try:
            allocator.sleep("weights")
        except spillway.SpillwayError as problem:
            assert "no room" in str(problem), problem
        else:
            raise AssertionError("it slept")
        outcome.damaged += wrong(weights, 1) + wrong(cache, 2)
    configure("pinned_limit:1GiB")
    spillway.empty_host_cache()
    allocator.sleep("weights")
    assert torch.cuda.memory_allocated() == 0
    allocator.wake_up()
    outcome.damaged += wrong(weights, 1)


def what_is_allocated_under_a_tag_that_sleeps_is_awake(outcome: Outcome) -> None:
    """And the tag that was current is current again, also where the inside ends with an error."""
    allocator = SleepingAllocator.get_instance()
    with allocator.use_memory_pool("weights"):
        first = filled(1)
    allocator.sleep("weights")
    try:
        with allocator.use_memory_pool("weights"):
            second = filled(2)
            outcome.damaged += wrong(second, 2)
            raise KeyError
    except KeyError:
        assert allocator.current_tag == "default"
    for _ in range(2):
        allocator.sleep("weights")
        assert torch.cuda.memory_allocated() == 0 and allocator.get_current_usage() == 16 * MIB
    allocator.wake_up(["weights"])
    outcome.damaged += wrong(first, 1) + wrong(second, 2)
    with allocator.use_memory_pool("weights"):
        filled(3)
    # What was freed inside is given back at its end.
    assert torch.cuda.memory_reserved() == 16 * MIB and allocator.get_current_usage() == 16 * MIB


PROGRAMS: list[Program] = [
    tensors_of_the_pool_sleep_and_are_as_they_were,
    waking_without_room_is_an_error_of_python,
    a_graph_runs_over_what_woke_up,
    level_two_drops_weights_and_a_worker_restores_its_buffers,
    one_tag_is_discarded,
    what_cannot_wake_does_not_keep_the_others_asleep,
    a_sleep_that_fails_goes_on_later,
    what_is_allocated_under_a_tag_that_sleeps_is_awake,
]

OnEverySeed = every_seed(PROGRAMS)


if __name__ == "__main__":
    unittest.main()
