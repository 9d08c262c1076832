"""A trainer's life in random steps: models are built, trained, offloaded and dropped, regions sleep and wake, graphs
are captured, pools opened, requests fail and are tried again, the process forks.

Whenever everything is dropped, the device, host memory, the disk and the regions are as they were at the beginning.
While it lives, no region holds more than what lives in it, and no request is refused that there is room for.

SPILLWAY_TEST_LIFE sets the steps of a life, SPILLWAY_TEST_SEEDS how many lives.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import random
import threading
import unittest
from collections import Counter
from typing import Any

import spillway
from on_seeds import Outcome, check_counters, run, torch
from spilling import SEEDS, on_disk
from spillway._library import check, library
from spillway._offload.tiers import free_bytes

STEPS = int(os.environ.get("SPILLWAY_TEST_LIFE", "300"))
STEPS_TO_REST = 40
CAPACITY = 256 << 20
DEVICE = f"capacity:{CAPACITY}"
PAGE = 2 << 20
# Small tensors share pages by size and stream; what libraries keep is among them.
SLACK = 24 << 20
MOST_REQUEST = 24 << 20
MOST_MODELS, MOST_REGIONS, MOST_GRAPHS, MOST_TENSORS = 3, 4, 3, 8


def tensor(bytes_: int) -> Any:
    return torch.empty(bytes_, dtype=torch.uint8, device="cuda")


def pages_of(tensors: list[Any]) -> int:
    """Bytes of the pages that these could lie on."""
    return sum((each.numel() // PAGE + 2) * PAGE for each in tensors)


class Model:
    def __init__(self, dice: random.Random) -> None:
        self.width = dice.choice((128, 256, 384))
        self.layers = torch.nn.Sequential(
            *(torch.nn.Linear(self.width, self.width, device="cuda") for _ in range(dice.randint(2, 5)))
        )
        make = dice.choice((torch.optim.AdamW, torch.optim.SGD))
        self.optimizer = make(self.layers.parameters(), lr=0.1, foreach=False)
        self.handles: dict[str, Any] = {}

    def train(self, dice: random.Random) -> None:
        batch = torch.zeros(dice.choice((8, 64, 512)), self.width, device="cuda")
        self.layers(batch).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=dice.random() < 0.8)

    def offload(self, kind: str) -> None:
        if kind in self.handles:
            return
        if kind == "optimizer":
            self.handles[kind] = spillway.offload_optimizer(self.optimizer)
        elif kind == "activations":
            self.handles[kind] = spillway.offload_activations(self.layers, min_bytes=1 << 10)
        else:
            layers = list(self.layers)
            self.handles[kind] = spillway.offload_parameters(self.layers, 0, layers=layers, optimizer=self.optimizer)


class Region:
    """Tensors whose bytes are known, by the first four of them."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.tensors: list[tuple[Any, int | None]] = []  # None: what was in it is gone
        self.away = ""
        self.captured = False

    def report(self) -> dict[str, int]:
        found: dict[str, int] = spillway.regions().get(self.tag, {})
        return found


class PoolHolder:
    """A thread that has a pool open until it is told otherwise."""

    def __init__(self) -> None:
        self._open, self._close = threading.Event(), threading.Event()
        self._refusal: torch.OutOfMemoryError | None = None
        self._thread = threading.Thread(target=self._hold, daemon=True)
        self._thread.start()
        self._open.wait()
        if self._refusal is not None:
            self.close()
            raise self._refusal

    def _hold(self) -> None:
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            try:
                tensor(PAGE // 4)
            except torch.OutOfMemoryError as refusal:
                self._refusal = refusal
            self._open.set()
            self._close.wait()

    def close(self) -> None:
        self._close.set()
        self._thread.join()


class Life:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.models: list[Model] = []
        self.regions: dict[str, Region] = {}
        self.graphs: list[tuple[Any, list[Any]]] = []
        self.tensors: list[Any] = []
        self.streams = [torch.cuda.Stream() for _ in range(2)]
        self.holder: PoolHolder | None = None
        self.done: Counter[str] = Counter()
        self.serial = 0

    # ---- Steps

    def build(self) -> None:
        if len(self.models) < MOST_MODELS:
            self.models.append(Model(self.dice))

    def train(self) -> None:
        for model in self.dice.sample(self.models, min(len(self.models), 2)):
            model.train(self.dice)

    def offload(self) -> None:
        if self.models:
            self.dice.choice(self.models).offload(self.dice.choice(("optimizer", "activations", "parameters")))

    def remove(self) -> None:
        model = self.dice.choice(self.models) if self.models else None
        if model is not None and model.handles:
            model.handles.pop(self.dice.choice(list(model.handles))).remove()

    def forget(self) -> None:
        """The handle alone is dropped: what it began goes on."""
        if self.models:
            self.dice.choice(self.models).handles.clear()

    def delete(self) -> None:
        if self.models:
            self.models.pop(self.dice.randrange(len(self.models)))
            if self.dice.random() < 0.5:
                gc.collect()

    def evaluate(self) -> None:
        if self.models:
            model = self.dice.choice(self.models)
            with torch.no_grad():
                model.layers(torch.zeros(16, model.width, device="cuda"))

    def fill(self) -> None:
        """A region gets tensors, of which some are gone before it is closed."""
        if len(self.regions) < MOST_REGIONS:
            self.serial += 1
            region = Region(f"life-{self.serial % 7}-{self.serial}")
            self.regions[region.tag] = region
        region = self.dice.choice(list(self.regions.values()))
        if region.away:
            return
        with spillway.region(region.tag):
            passing = []
            for _ in range(self.dice.choice((1, 2, 3, 4, 9))):  # more than the buffers to the disk
                made = tensor(self.dice.randint(1 << 16, 12 << 20))
                if self.dice.random() < 0.4:
                    passing.append(made)
                    continue
                value = self.dice.randrange(1 << 31)
                made[:4].copy_(torch.tensor([value], dtype=torch.int32).view(torch.uint8))
                region.tensors.append((made, value))

    def thin_out(self) -> None:
        """Tensors of a region go, whether it is away or not."""
        if self.regions:
            region = self.dice.choice(list(self.regions.values()))
            self.dice.shuffle(region.tensors)
            del region.tensors[self.dice.randint(0, len(region.tensors)) :]

    def sleep(self) -> None:
        if self.regions:
            region = self.dice.choice(list(self.regions.values()))
            if not region.away and region.report():
                to = self.dice.choice(("host", "disk", "nowhere"))
                spillway.evict(region.tag, to)
                region.away = to
                if to == "nowhere":
                    region.tensors = [(each, None) for each, _ in region.tensors]

    def wake(self) -> None:
        if self.away():
            region = self.dice.choice(self.away())
            spillway.restore(region.tag)
            region.away = ""
            self.read(region)

    def release(self) -> None:
        if self.regions:
            region = self.regions.pop(self.dice.choice(list(self.regions)))
            if region.away:
                self.regions[region.tag] = region
                return
            region.tensors.clear()
            if region.report() and not region.captured:
                spillway.release(region.tag)

    def capture(self) -> None:
        if len(self.graphs) >= MOST_GRAPHS:
            return
        kept: list[Any] = []
        graph = torch.cuda.CUDAGraph()
        pool = self.graphs[-1][0].pool() if self.graphs and self.dice.random() < 0.3 else None
        with torch.cuda.graph(graph, pool=pool):
            given = torch.ones(self.dice.randint(1, 4) << 18, device="cuda")
            between = given * 2
            kept.append(between + given)
            del between
        self.graphs.append((graph, kept))

    def replay(self) -> None:
        """Graphs that share their memory run one after the other."""
        if self.graphs:
            stream, current = self.dice.choice(self.streams), torch.cuda.current_stream()
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                self.dice.choice(self.graphs)[0].replay()
            current.wait_stream(stream)

    def drop_graph(self) -> None:
        if self.graphs:
            self.graphs.pop(self.dice.randrange(len(self.graphs)))

    def take(self) -> None:
        if len(self.tensors) >= MOST_TENSORS:
            self.tensors.pop(0)
        with torch.cuda.stream(self.dice.choice([*self.streams, torch.cuda.current_stream()])):
            self.tensors.append(tensor(self.dice.randint(1 << 10, 24 << 20)))

    def pass_on(self) -> None:
        """A tensor that another stream uses is freed."""
        if self.tensors:
            other = self.dice.choice(self.streams)
            passed = self.tensors.pop(self.dice.randrange(len(self.tensors)))
            other.wait_stream(torch.cuda.current_stream())
            for stream in self.streams:
                other.wait_stream(stream)
            with torch.cuda.stream(other):
                passed.zero_()
            passed.record_stream(other)

    def use_pool(self) -> None:
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            self.tensors.append(tensor(self.dice.randint(1, 8) << 20))
            self.tensors.pop(0)

    def hold_pool(self) -> None:
        if self.holder is None:
            self.holder = PoolHolder()
        else:
            self.holder.close()
            self.holder = None

    def fail(self) -> None:
        """Too much is asked for, and then what there is room for."""
        try:
            tensor(CAPACITY)
            raise AssertionError("more was served than there is")
        except torch.OutOfMemoryError:
            pass
        torch.cuda.synchronize()
        room = (int(torch.cuda.mem_get_info()[0]) - PAGE) // PAGE * PAGE
        if room > 0:
            tensor(room)

    def fork(self) -> None:
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

    def trim(self) -> None:
        torch.cuda.synchronize()
        told = free_bytes(0)
        torch.cuda.empty_cache()
        free = int(torch.cuda.mem_get_info()[0])
        # Pages of slabs that have become empty are not looked for.
        assert told + SLACK // 2 >= free, f"{told} bytes were told to be free, and {free} are"
        for region in self.regions.values():
            report = region.report()
            allowed = pages_of([each for each, _ in region.tensors])
            for kind in ("device_bytes", "host_bytes", "disk_bytes", "discarded_bytes"):
                assert report.get(kind, 0) <= allowed, (region.tag, report, allowed)

    # ---- Between them

    def read(self, region: Region) -> None:
        for each, value in region.tensors:
            if value is not None:
                found = int(each[:4].cpu().view(torch.int32).item())
                assert found == value, (region.tag, found, value)

    def step(self) -> None:
        name = self.dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        self.done[name] += 1
        try:
            getattr(self, name)()
        except (torch.OutOfMemoryError, spillway.SpillwayError) as problem:
            if "out of memory" not in str(problem):
                raise
            self.done[f"{name} refused"] += 1
            # What the step has taken so far lives as long as its frames, which the error names.
            self.check_refusal(name, str(problem))

    def check_refusal(self, name: str, report: str) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        wanted = max([MOST_REQUEST, *(pages_of([each for each, _ in region.tensors]) for region in self.away())])
        held = torch.cuda.memory_reserved()
        assert held + wanted + SLACK > CAPACITY, f"{name} was refused with {held} bytes held: {report}"

    def away(self) -> list[Region]:
        return [region for region in self.regions.values() if region.away]

    def rest(self) -> None:
        """Everything is dropped; only a thread may still have its pool open."""
        if self.holder is not None and self.dice.random() < 0.7:
            self.hold_pool()
        self.models.clear()
        self.graphs.clear()
        self.tensors.clear()
        for region in self.regions.values():
            region.tensors.clear()
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        for region in self.regions.values():
            report = region.report()
            assert not any(value for key, value in report.items() if key.endswith("_bytes")), (region.tag, report)
            if report:
                spillway.release(region.tag)
        self.regions.clear()
        torch.cuda.empty_cache()
        spillway.empty_host_cache()

    def held(self) -> dict[str, int]:
        of_holder = PAGE if self.holder is not None else 0
        tiers = spillway.tier_stats()
        kinds = [f"{what}_{where}_bytes" for what in ("region", "stash") for where in ("host", "disk")]
        return {
            "allocated": torch.cuda.memory_allocated(),
            "reserved": torch.cuda.memory_reserved() - of_holder,
            "on the device": simulator().spwSimPhysicalBytes(0) - of_holder,
            "regions": len(spillway.regions()),
            "threads": threading.active_count() - (self.holder is not None),
            "files": len(os.listdir("/proc/self/fd")),
            "pinned": pinned_bytes(),
            **{name: tiers[name] for name in (*kinds, "stashes", "stuck_bytes")},
        }


# Says how often each step is taken.
WEIGHTS = {
    "build": 6,
    "train": 12,
    "offload": 6,
    "remove": 2,
    "forget": 2,
    "delete": 4,
    "evaluate": 3,
    "fill": 10,
    "thin_out": 5,
    "sleep": 6,
    "wake": 6,
    "release": 2,
    "capture": 4,
    "replay": 4,
    "drop_graph": 3,
    "take": 10,
    "pass_on": 6,
    "use_pool": 3,
    "hold_pool": 2,
    "fail": 2,
    "fork": 1,
    "trim": 3,
}


class PinnedStats(ctypes.Structure):
    """The beginning of spw_pinned_stats; what follows is not read."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("version", ctypes.c_uint32),
        ("counters", ctypes.c_int64 * 4 * 5),
        ("rest", ctypes.c_int64 * 128),
    ]


def pinned_bytes() -> int:
    read = PinnedStats(size=ctypes.sizeof(PinnedStats))
    check(library().spw_pinned_stats_get(ctypes.byref(read)))
    return int(read.counters[4][0])


@functools.cache
def simulator() -> ctypes.CDLL:
    driver = ctypes.CDLL("libcuda.so.1")
    driver.spwSimPhysicalBytes.restype = ctypes.c_uint64
    return driver


def live(seed: int, outcome: Outcome) -> None:
    life = Life(seed)
    # What libraries keep for good is made now, and the file to spill to is opened.
    for name in ("build", "train", "evaluate", "capture", "replay", "fail"):
        getattr(life, name)()
    with spillway.region("first"):
        written = torch.ones(PAGE, dtype=torch.uint8).cuda()  # zeros are not written
    spillway.evict("first", "disk")
    spillway.restore("first")
    del written
    spillway.release("first")
    life.rest()
    before = life.held()
    for number in range(STEPS):
        life.step()
        if number % STEPS_TO_REST == STEPS_TO_REST - 1:
            life.rest()
            after = life.held()
            assert after == before, (f"step {number}", before, after, life.done)
            check_counters()
    if os.environ.get("SPILLWAY_TEST_LIFE"):
        print(STEPS, "steps:", dict(life.done), flush=True)


class Lives(unittest.TestCase):
    def test_leave_nothing(self) -> None:
        for seed in range(SEEDS):
            with self.subTest(seed=seed):
                outcome = run(on_disk(functools.partial(live, seed)), "spillway", seed, DEVICE)
                self.assertFalse(outcome.failure, outcome.failure)
                self.assertEqual(outcome.reports, [])
                self.assertGreater(outcome.touched, 0)


if __name__ == "__main__":
    unittest.main()
