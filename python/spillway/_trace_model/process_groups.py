"""A rank of a job on fake tensors. Its process groups move nothing: sizes are all that is asked of what they answer.

PyTorch has such a process group for tests of its own, the backend "fake". A program gets it for any that it asks for.
What is needed of torch.distributed is imported where there is a job: a PyTorch may be without.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

from .. import _ranks
from .replacing import replaced


@dataclass(frozen=True)
class Rank:
    """One of a job's."""

    number: int
    world_size: int
    devices: int  # of each node

    def environment(self) -> dict[str, str]:
        return _ranks.environment_of(self.number, self.world_size, self.devices)


@contextlib.contextmanager
def standing_in(rank: Rank) -> Iterator[None]:
    """Stands in for backends and for the stores in which ranks meet. A key that nobody set is an error."""
    from torch.distributed import distributed_c10d
    from torch.distributed.device_mesh import DeviceMesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    class Store(FakeStore):
        def set_timeout(self, _: Any) -> None:
            pass

    def rendezvous(*_args: Any, **_kwargs: Any) -> Iterator[tuple[Any, int, int]]:
        yield Store(), rank.number, rank.world_size

    make = distributed_c10d._new_process_group_helper

    def made(size: int, number: int, ranks: Any, _backend: Any, *rest: Any, **options: Any) -> Any:
        options.update(backend_options=None, device_id=None)
        return make(size, number, ranks, "fake", *rest, **options)

    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(distributed_c10d, "rendezvous", rendezvous))
        stack.enter_context(replaced(distributed_c10d, "_new_process_group_helper", made))
        for name, method in list(vars(DeviceMesh).items()):
            if isinstance(method, FunctionType):
                stack.enter_context(replaced(DeviceMesh, name, _on_real_tensors(method)))
        stack.enter_context(_random_numbers_of_any_rank())
        yield


@contextlib.contextmanager
def _random_numbers_of_any_rank() -> Iterator[None]:
    """DTensor sends the state of rank 0's generator around, and looks at it, so that ranks draw what fits together."""
    from torch.distributed.tensor import _random

    tracker = _random.OffsetBasedRNGTracker
    make = tracker.__init__

    def init(self: Any, device_mesh: Any, *_args: Any, **_kwargs: Any) -> None:
        make(self, device_mesh, run_state_sync=False)

    @contextlib.contextmanager
    def region(*_args: Any, **_kwargs: Any) -> Iterator[None]:
        yield

    with replaced(tracker, "__init__", init), replaced(tracker, "_distribute_region", region):
        yield


def _on_real_tensors(method: Callable[..., Any]) -> Callable[..., Any]:
    """A mesh keeps its ranks' numbers in tensors of the host, and looks at them."""

    @functools.wraps(method)
    def real(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return method(*args, **kwargs)

    return real
