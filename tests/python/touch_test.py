"""What sim.touch_operands() tells the simulated device of each operator. One process, no allocator of ours."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
import unittest
from collections.abc import Callable
from typing import Any

from spillway import sim

torch: Any = importlib.import_module("torch")
os.environ["SPILLWAY_SIM"] = "devices:2"

Action = Callable[[], object]


class Touched(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        sim.touch_operands()
        cls.first = torch.cuda.Stream()
        cls.second = torch.cuda.Stream()

    first: Any
    second: Any

    def count(self, action: Action) -> int:
        before = sim.touched()
        action()
        return sim.touched() - before

    def races(self, one: Action, other: Action) -> bool:
        """Whether the two, on two streams without an order, are reported."""
        torch.cuda.synchronize()
        sim.clear_reports()
        with torch.cuda.stream(self.first):
            kept = one()
        with torch.cuda.stream(self.second):
            kept = other(), kept
        torch.cuda.synchronize()
        found = sim.reports()
        sim.clear_reports()
        del kept
        return bool(found)


class Accesses(Touched):
    def setUp(self) -> None:
        self.x = torch.zeros(64, 64, device="cuda")
        self.y = torch.zeros(64, 64, device="cuda")

    def test_inputs_are_read(self) -> None:
        self.assertTrue(self.races(lambda: self.x + self.y, lambda: self.y.mul_(2)))
        self.assertFalse(self.races(lambda: self.x + self.y, lambda: self.y * 2))

    def test_matrix_products_are_seen(self) -> None:
        self.assertTrue(self.races(lambda: self.x @ self.y, lambda: self.y.mul_(2)))

    def test_mutated_arguments_are_written(self) -> None:
        self.assertTrue(self.races(lambda: self.x.add_(1), lambda: self.x + 1))
        self.assertFalse(self.races(lambda: self.x.add_(1), lambda: self.y + 1))
        self.assertTrue(self.races(lambda: torch._foreach_add_([self.x, self.y], 1), lambda: self.y + 1))
        self.assertTrue(self.races(lambda: torch.add(self.x, 1, out=self.y), lambda: self.y + 1))

    def test_an_argument_that_grows_is_written_where_it_is_then(self) -> None:
        grows = torch.empty(0, device="cuda")
        self.assertTrue(self.races(lambda: torch.add(self.x, 1, out=grows), lambda: grows + 1))

    def test_results_are_written(self) -> None:
        made: list[Any] = []
        self.assertTrue(self.races(lambda: made.append(self.x + 1), lambda: made[0] + 1))
        self.assertTrue(self.races(lambda: made.extend(self.x.max(0)), lambda: made[2] + 1))

    def test_lists_and_optional_tensors(self) -> None:
        self.assertTrue(self.races(lambda: torch.cat([self.x, self.y]), lambda: self.y.mul_(2)))
        index = torch.zeros(3, dtype=torch.int64, device="cuda")
        self.assertTrue(self.races(lambda: self.x[:, index], lambda: index.mul_(2)))

    def test_views_cover_their_own_elements(self) -> None:
        left, right = self.x[:, :32], self.x[:, 32:]
        self.assertFalse(self.races(lambda: left.mul_(2), lambda: right.mul_(2)))
        self.assertTrue(self.races(lambda: left.mul_(2), lambda: self.x[5, 31:33] + 1))
        self.assertFalse(self.races(lambda: self.x.t()[3].mul_(2), lambda: self.x[:, 4] + 1))
        self.assertTrue(self.races(lambda: self.x[0].expand(9, 64) + 1, lambda: self.x[0].mul_(2)))

    def test_copies_by_the_driver_and_by_kernels(self) -> None:
        pinned = torch.zeros(64, 64).pin_memory()
        self.assertTrue(self.races(lambda: self.x.copy_(pinned, non_blocking=True), lambda: self.x + 1))
        self.assertTrue(self.races(lambda: self.x.copy_(self.y), lambda: self.y.mul_(2)))
        self.assertTrue(self.races(lambda: self.x.copy_(self.y.t()), lambda: self.y.mul_(2)))
        self.assertTrue(self.races(lambda: self.x.half(), lambda: self.x.zero_()))

    def test_an_operator_that_waited_leaves_nothing_behind(self) -> None:
        self.assertFalse(self.races(lambda: self.x.cpu(), lambda: self.x.mul_(2)))
        self.assertFalse(self.races(lambda: self.x.copy_(torch.ones(64, 64)), lambda: self.x + 1))
        self.assertFalse(self.races(lambda: self.x[0, 0].item(), lambda: self.x.mul_(2)))

    def test_views_and_metadata_touch_nothing(self) -> None:
        x = self.x
        for action in (
            lambda: x.view(-1),
            lambda: x.t(),
            lambda: x[3:5, 1],
            lambda: x.expand(2, 64, 64),
            lambda: x.detach(),
            lambda: x.reshape(32, 128).contiguous(),
            lambda: x.to("cuda"),
            lambda: x.split(8),
            lambda: torch.empty_like(x),
            lambda: torch.empty(9, device="cuda").resize_(5),
            lambda: x.record_stream(self.second),
        ):
            self.assertEqual(self.count(action), 0)
        self.assertFalse(self.races(lambda: torch.zeros_like(x), lambda: x.mul_(2)))

    def test_operands_on_two_devices(self) -> None:
        other = torch.zeros(64, 64, device="cuda:1")
        self.assertFalse(self.races(lambda: other.copy_(self.x), lambda: other + 1))
        self.assertTrue(self.races(lambda: other.copy_(self.x), lambda: self.x.mul_(2)))

    def test_tensors_without_bytes_touch_nothing(self) -> None:
        fake = importlib.import_module("torch._subclasses.fake_tensor")
        with fake.FakeTensorMode() as mode:
            self.assertEqual(self.count(lambda: torch.ones(9, device="cuda") + 1), 0)
        self.assertEqual(self.count(lambda: mode.from_tensor(self.x) + 1), 0)

    def test_host_tensors_touch_nothing(self) -> None:
        self.assertEqual(self.count(lambda: torch.ones(9) + 1), 0)


class Threads(Touched):
    def test_backward(self) -> None:
        weight = torch.zeros(64, 64, device="cuda", requires_grad=True)
        inputs = torch.zeros(64, 64, device="cuda")
        seen: list[str] = []
        weight.register_hook(lambda gradient: seen.append(threading.current_thread().name))

        def step() -> None:
            loss = (inputs @ weight).relu().sum()
            torch.cuda.synchronize()
            loss.backward()

        self.assertTrue(self.races(step, lambda: inputs.mul_(2)))
        self.assertEqual(len(seen), 1)
        self.assertNotEqual(seen[0], threading.main_thread().name)

    def test_a_thread_that_has_not_used_the_device(self) -> None:
        x = torch.zeros(64, device="cuda")
        counted: list[int] = []
        thread = threading.Thread(target=lambda: counted.append(self.count(lambda: x.mul_(2))))
        thread.start()
        thread.join()
        self.assertEqual(counted, [1])
        self.assertEqual(sim.reports(), [])

    def test_a_graph_touches_at_each_replay(self) -> None:
        x = torch.zeros(64, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x.mul_(2)
        for _ in range(2):
            self.assertTrue(self.races(graph.replay, lambda: x + 1))


class Values(Touched):
    def test_fill_writes_what_it_says(self) -> None:
        for dtype in (
            torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
            torch.float32, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn,
        ):  # fmt: skip
            value = True if dtype == torch.bool else 3
            wanted = torch.full((1000,), value, dtype=dtype)
            made = torch.full((1000,), value, dtype=dtype, device="cuda").cpu()
            self.assertEqual(made.view(torch.uint8).tolist(), wanted.view(torch.uint8).tolist(), dtype)
        self.assertTrue(torch.equal(torch.ones(9, device="cuda").cpu(), torch.ones(9)))
        filled = torch.empty(9, device="cuda").fill_(torch.tensor(2.5))
        self.assertTrue(torch.equal(filled.cpu(), torch.full((9,), 2.5)))

    def test_lists_are_copied(self) -> None:
        given = [torch.arange(7.0).cuda(), torch.arange(6).reshape(2, 3).cuda(), torch.zeros(0, device="cuda")]
        wide = torch.zeros(9, device="cuda")
        copies = [wide[1:8], torch.zeros(2, 3, dtype=torch.int64, device="cuda"), torch.zeros(0, device="cuda")]
        torch._foreach_copy_(copies, given)
        for copy, source in zip(copies, given, strict=True):
            self.assertTrue(torch.equal(copy.cpu(), source.cpu()))
        self.assertEqual((wide[0].item(), wide[8].item()), (0, 0))

    def test_fill_of_a_view_leaves_the_rest(self) -> None:
        x = torch.zeros(8, 8, device="cuda")
        x[1:3, ::2].fill_(7)
        wanted = torch.zeros(8, 8)
        wanted[1:3, ::2].fill_(7)
        self.assertTrue(torch.equal(x.cpu(), wanted))
        x[:, 2].zero_()
        wanted[:, 2].zero_()
        self.assertTrue(torch.equal(x.cpu(), wanted))

    def test_copies_keep_their_bytes(self) -> None:
        source = torch.arange(1000)
        there = source.cuda()
        there.view(10, 100).t()
        self.assertTrue(torch.equal(there.clone().cpu(), source))
        other = torch.empty_like(there)
        other.copy_(there)
        self.assertTrue(torch.equal(other.cpu(), source))
        self.assertTrue(torch.equal(torch.zeros_like(there).cpu(), torch.zeros_like(source)))


class Refusals(unittest.TestCase):
    def test_a_process_without_the_simulated_driver(self) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        done = subprocess.run(
            [sys.executable, "-c", "from spillway import sim; sim.touch_operands()"],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        self.assertIn("preload the simulated one", done.stderr.strip().splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
