"""CUDA tensors between two processes, with real bytes: what Spillway answers, and PyTorch's own allocator too.

SPILLWAY_TEST_ALLOCATOR=native runs the same programs without Spillway, which judges the tests and the simulated device.
"""

from __future__ import annotations

import gc
import importlib
import os
import resource
import traceback
import unittest
from collections.abc import Callable
from typing import Any

NATIVE = os.environ.get("SPILLWAY_TEST_ALLOCATOR") == "native"
os.environ.setdefault("SPILLWAY_SIM", "capacity:1GiB,completion:run-ahead")

import spillway  # noqa: E402
from spillway import sim  # noqa: E402
from spillway._library import check, library  # noqa: E402

torch: Any = importlib.import_module("torch")
multiprocessing: Any = importlib.import_module("torch.multiprocessing")

ON_GPU = "SPILLWAY_TEST_GPU" in os.environ
MIB = 1 << 20
PATIENCE = 100  # seconds

# Every process that imports this file is served: this one, and those that it spawns.
if not NATIVE:
    spillway.install()
if not ON_GPU:
    sim.touch_operands()
# A page has a descriptor of its own; neither side may need many at a time.
resource.setrlimit(resource.RLIMIT_NOFILE, (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def numbers(count: int, first: int = 0) -> Any:
    return torch.arange(first, first + count, dtype=torch.int32)


def holds(tensor: Any, expected: Any) -> bool:
    return bool(torch.equal(tensor.cpu(), expected))


# ---- What the other process does, by name ---------------------------------------------------------------------------

kept: dict[str, Any] = {}


def keep(**tensors: Any) -> None:
    kept.update(tensors)


def drop() -> None:
    kept.clear()
    gc.collect()


def is_kept(name: str, first: int) -> bool:
    tensor = kept[name]
    return holds(tensor, numbers(tensor.numel(), first).reshape(tensor.shape))


def is_filled(name: str, value: int) -> bool:
    return holds(kept[name], torch.full(kept[name].shape, value, dtype=torch.int32))


def fill_kept(name: str, value: int) -> None:
    kept[name].fill_(value)
    torch.cuda.synchronize()


def kept_storages() -> list[int]:
    return [tensor.untyped_storage().data_ptr() for tensor in kept.values()]


def copy_behind_an_event(tensor: Any, handle: bytes) -> bool:
    event = torch.cuda.Event.from_ipc_handle(tensor.device, handle)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        event.wait(stream)
        return holds(tensor, torch.full(tensor.shape, 5, dtype=torch.int32))


def weights_of(model: Any) -> list[Any]:
    return [parameter.detach().cpu() for parameter in model.parameters()]


def make(count: int) -> Any:
    return numbers(count).cuda()


def show() -> tuple[Any, ...]:
    """What PyTorch sends of a tensor that stays here."""
    keep(shown=numbers(1000).cuda())
    return tuple(kept["shown"].untyped_storage()._share_cuda_())


def refusal_to_show() -> str:
    try:
        show()
    except RuntimeError as problem:
        return str(problem)
    return ""


def found() -> list[str]:
    drop()
    torch.cuda.synchronize()
    if not NATIVE:
        check(library().spw_validate(0))
    return [] if ON_GPU else sim.reports()


def serve(requests: Any, answers: Any) -> None:
    for name, arguments, named in iter(requests.get, None):
        try:
            answer, failure = globals()[name](*arguments, **named), None
        except Exception:
            answer, failure = None, traceback.format_exc()
        del arguments, named
        gc.collect()
        answers.put((answer, failure))


class Peer:
    """A process that calls functions of this file."""

    def __init__(self, method: str = "spawn") -> None:
        context = multiprocessing.get_context(method)
        self.requests, self.answers = context.Queue(), context.Queue()
        self.process = context.Process(target=serve, args=(self.requests, self.answers))
        self.process.start()

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        self.requests.put((function.__name__, arguments, named))
        answer, failure = self.answers.get(timeout=PATIENCE)
        if failure is not None:
            raise RuntimeError(failure)
        return answer

    def end(self) -> None:
        self.requests.put(None)
        self.process.join(PATIENCE)


class Sharing(unittest.TestCase):
    peer: Peer

    @classmethod
    def setUpClass(cls) -> None:
        cls.peer = Peer()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.peer.end()

    def setUp(self) -> None:
        self.before = torch.cuda.memory_allocated()

    def tearDown(self) -> None:
        self.assertEqual(self.peer.call(found), [])
        gc.collect()
        torch.cuda.ipc_collect()
        self.assertEqual(torch.cuda.memory_allocated(), self.before)
        self.assertEqual(found(), [])

    def test_a_small_tensor_both_ways(self) -> None:
        tensor = numbers(1000).cuda()
        self.peer.call(keep, tensor=tensor)
        self.assertTrue(self.peer.call(is_kept, "tensor", 0))
        self.peer.call(fill_kept, "tensor", 9)
        self.assertTrue(holds(tensor, torch.full((1000,), 9, dtype=torch.int32)))

    def test_a_tensor_of_many_pages_that_shares_its_edges(self) -> None:
        size = 36 * MIB + 77_777  # of four bytes each: more pages than descriptors are allowed
        neighbours = [numbers(300_000, first=7).cuda()]
        tensor = numbers(size).cuda()
        neighbours.append(numbers(300_000, first=7).cuda())
        self.peer.call(keep, tensor=tensor)
        self.assertTrue(self.peer.call(is_kept, "tensor", 0))
        self.peer.call(fill_kept, "tensor", 3)
        self.assertTrue(holds(tensor, torch.full((size,), 3, dtype=torch.int32)))
        for neighbour in neighbours:
            self.assertTrue(holds(neighbour, numbers(300_000, first=7)))

    def test_a_slice(self) -> None:
        rows = numbers(8 * MIB).cuda().reshape(-1, 1024)
        self.peer.call(keep, row=rows[777])
        self.assertTrue(self.peer.call(is_kept, "row", 777 * 1024))

    def test_a_storage_that_is_sent_again_is_the_same_there(self) -> None:
        tensor = numbers(3 * MIB).cuda()
        self.peer.call(keep, whole=tensor, part=tensor[5:])
        self.peer.call(keep, again=tensor.view(3, -1))
        self.assertEqual(len(set(self.peer.call(kept_storages))), 1)
        self.assertTrue(self.peer.call(is_kept, "part", 5) and self.peer.call(is_kept, "again", 0))

    def test_memory_lives_until_the_receiver_lets_go(self) -> None:
        tensor = numbers(5 * MIB).cuda()
        self.peer.call(keep, tensor=tensor)
        del tensor
        gc.collect()
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
        others = [torch.full((5 * MIB,), 1, dtype=torch.int32, device="cuda") for _ in range(8)]
        torch.cuda.synchronize()
        self.assertTrue(self.peer.call(is_kept, "tensor", 0))
        self.assertGreaterEqual(torch.cuda.memory_allocated() - self.before, 9 * 5 * MIB * 4)
        self.peer.call(drop)
        torch.cuda.ipc_collect()
        self.assertLess(torch.cuda.memory_allocated() - self.before, 9 * 5 * MIB * 4)
        del others

    def test_memory_that_the_receiver_let_go_serves_before_an_out_of_memory(self) -> None:
        tensor = torch.empty(400 * MIB, dtype=torch.uint8, device="cuda")
        self.peer.call(keep, tensor=tensor)
        del tensor
        self.peer.call(drop)
        torch.cuda.set_per_process_memory_fraction(700 * MIB / torch.cuda.mem_get_info()[1])
        self.addCleanup(torch.cuda.set_per_process_memory_fraction, 1.0)
        larger = torch.empty(500 * MIB, dtype=torch.uint8, device="cuda")
        del larger

    def test_pages_are_used_again_after_the_last_user(self) -> None:
        for step in range(6):
            tensor = numbers(2 * MIB, first=step).cuda()
            self.peer.call(keep, tensor=tensor)
            self.assertTrue(self.peer.call(is_kept, "tensor", step))
            del tensor
            self.peer.call(drop)
            torch.cuda.ipc_collect()
            if step == 3:
                torch.cuda.empty_cache()

    def test_what_is_enqueued_is_seen(self) -> None:
        tensor = numbers(4 * MIB).cuda()
        torch.cuda.synchronize()
        tensor.fill_(5)  # late: nothing waits for it here
        self.peer.call(keep, tensor=tensor)
        self.assertTrue(self.peer.call(is_filled, "tensor", 5))

    def test_events(self) -> None:
        tensor = numbers(4 * MIB).cuda()
        stream, event = torch.cuda.Stream(), torch.cuda.Event(interprocess=True)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            tensor.fill_(5)  # on a stream that PyTorch does not mark when it sends
            event.record()
        self.assertTrue(self.peer.call(copy_behind_an_event, tensor, event.ipc_handle()))

    def test_a_model(self) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.Linear(200, 100)).cuda().share_memory()
        expected = [parameter.detach().cpu() for parameter in model.parameters()]
        received = self.peer.call(weights_of, model)
        self.assertTrue(all(torch.equal(*pair) for pair in zip(received, expected, strict=True)))

    def test_a_process_of_the_fork_server(self) -> None:
        peer = Peer("forkserver")
        tensor = numbers(3 * MIB).cuda()
        peer.call(keep, tensor=tensor)
        self.assertTrue(peer.call(is_kept, "tensor", 0))
        peer.call(drop)
        peer.end()

    def test_a_sender_that_ends(self) -> None:
        sender = Peer()
        tensor = sender.call(make, 5 * MIB)
        sender.end()
        self.assertTrue(holds(tensor, numbers(5 * MIB)))


@unittest.skipIf(NATIVE, "the words are Spillway's")
class Refusals(unittest.TestCase):
    def assert_refused(self, words: str, handle: bytes, rest: tuple[Any, ...]) -> None:
        _, _, size, offset, counter, counter_offset, event, _ = rest
        for _ in range(2):  # nothing is left behind that would change the answer
            with self.assertRaisesRegex(RuntimeError, f"spillway: .*{words}"):
                torch.UntypedStorage._new_shared_cuda(0, handle, size, offset, counter, counter_offset, event, False)

    def test_handles(self) -> None:
        torch.cuda.init()
        own = show()
        self.assert_refused("of this process itself: use the pointer", own[1], own)
        drop()
        peer = Peer()
        shown = peer.call(show)
        self.assert_refused("a process without Spillway; install it there too", shown[1] + b"..", shown)
        self.assert_refused("no handle of spw_ipc_get_handle", bytes(64), shown)
        peer.end()
        self.assert_refused(f"memory of process {peer.process.pid} cannot be opened: it has ended", shown[1], shown)

    def test_what_is_not_made_to_be_shown(self) -> None:
        words = {
            "ipc:off": "its memory was not made to be shown to other processes (option ipc:on)",
            "backend:malloc": "sharing memory needs virtual memory management (backend:vmm)",
        }
        for configuration, expected in words.items():
            os.environ["SPILLWAY_CONF"] = configuration
            self.addCleanup(os.environ.pop, "SPILLWAY_CONF", None)
            peer = Peer()
            self.assertIn(expected, peer.call(refusal_to_show))
            peer.end()


if __name__ == "__main__":
    unittest.main()
