"""What trace-model says that operators take of the device beside their results is what PyTorch takes."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from spillway._pytorch.releases import release_of
from spillway._trace_model import kernel_memory
from spillway._trace_model.fake_trace import Recorder
from torch._subclasses.fake_tensor import FakeTensorMode

aten = torch.ops.aten
# Results are smaller, workspaces are not.
LEAST_WORKSPACE = 1 << 20
ROWS, INNER, COLUMNS = 32, 64, 48
# Read by PyTorch once in a process.
SETTINGS: list[dict[str, str]] = [
    {},
    {"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8"},
    {"CUBLASLT_WORKSPACE_SIZE": "4096"},
    {"CUBLASLT_WORKSPACE_SIZE": "65536"},
    {"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "0"},
    {"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "1"},
    {"TORCH_CUBLAS_WORKSPACE_CACHE": "1"},
    {"TORCH_CUBLAS_WORKSPACE_CACHE": "1", "TORCH_CUBLASLT_UNIFIED_WORKSPACE": "0"},
]

Product = tuple[str, Any, tuple[Any, ...], dict[str, Any]]


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype, device="cuda")


def biases(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {
        "vector": zeros(COLUMNS, dtype=dtype),
        "strided vector": zeros(2 * COLUMNS, dtype=dtype)[::2],
        "one value": zeros(1, dtype=dtype),
        "scalar": torch.zeros((), dtype=dtype, device="cuda"),
        "row": zeros(1, COLUMNS, dtype=dtype),
        "column": zeros(ROWS, 1, dtype=dtype),
        "matrix": zeros(ROWS, COLUMNS, dtype=dtype),
        "transposed matrix": zeros(COLUMNS, ROWS, dtype=dtype).t(),
        "expanded vector": zeros(COLUMNS, dtype=dtype).expand(ROWS, COLUMNS),
    }


def sums() -> Iterator[Product]:
    """Products with a bias, for which cuBLASLt is chosen by the bias."""
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64):
        left, right = zeros(ROWS, INNER, dtype=dtype), zeros(INNER, COLUMNS, dtype=dtype)
        for name, bias in biases(dtype).items():
            for beta in (1, 0, 0.5):
                yield f"addmm {dtype} {name} beta={beta}", aten.addmm.default, (bias, left, right), {"beta": beta}
                if not dtype.is_complex:
                    args = (bias, left, right)
                    yield f"activation {dtype} {name} {beta}", aten._addmm_activation.default, args, {"beta": beta}
        matrix, vector = zeros(ROWS, COLUMNS, dtype=dtype), zeros(COLUMNS, dtype=dtype)
        yield f"addmm_ {dtype}", aten.addmm_.default, (matrix, left, right), {}
        for bias in (matrix.clone(), vector):
            for out in (matrix, zeros(COLUMNS, ROWS, dtype=dtype).t()):
                yield f"addmm.out {dtype} {bias.dim()}", aten.addmm.out, (bias, left, right), {"out": out}
        for rows, inner, columns in ((1, INNER, COLUMNS), (ROWS, 1, COLUMNS), (ROWS, INNER, 1), (0, INNER, COLUMNS)):
            args = (zeros(columns, dtype=dtype), zeros(rows, inner, dtype=dtype), zeros(inner, columns, dtype=dtype))
            yield f"addmm {dtype} {rows} {inner} {columns}", aten.addmm.default, args, {}


def products() -> Iterator[Product]:
    square, batch, vector = zeros(INNER, INNER), zeros(2, INNER, INNER), zeros(INNER)
    eighths, one = zeros(INNER, INNER, dtype=torch.float8_e4m3fn), torch.ones((), device="cuda")
    whole = zeros(INNER, INNER, dtype=torch.int8)
    yield "mm", aten.mm.default, (square, square), {}
    yield "mm.out", aten.mm.out, (square, square), {"out": zeros(INNER, INNER)}
    yield "mm of nothing", aten.mm.default, (zeros(0, INNER), square), {}
    yield "bmm", aten.bmm.default, (batch, batch), {}
    yield "baddbmm", aten.baddbmm.default, (batch, batch, batch), {}
    yield "baddbmm_", aten.baddbmm_.default, (batch.clone(), batch, batch), {}
    yield "addmv", aten.addmv.default, (vector, square, vector), {}
    yield "mv", aten.mv.default, (square, vector), {}
    yield "dot", aten.dot.default, (vector, vector), {}
    yield "vdot", aten.vdot.default, (vector.to(torch.complex64), vector.to(torch.complex64)), {}
    yield "addr", aten.addr.default, (square, vector, vector), {}
    yield "solve_triangular", aten.linalg_solve_triangular.default, (square, square), {"upper": True}
    yield "_scaled_mm", aten._scaled_mm.default, (eighths, eighths.t(), one, one), {"out_dtype": torch.bfloat16}
    yield "_int_mm", aten._int_mm.default, (whole, whole), {}
    convolution = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    yield "convolution", aten.convolution.default, (zeros(2, 3, 8, 8), zeros(4, 3, 3, 3), None, *convolution), {}


def taken(call: Callable[[], object]) -> tuple[list[int], bool]:
    """The workspaces that PyTorch took, smallest first, and whether it kept them."""
    torch._C._cuda_clearCublasWorkspaces()
    before = torch.cuda.memory_allocated()
    torch.cuda.memory._record_memory_history(None)
    torch.cuda.memory._record_memory_history(context=None)
    result = call()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    sizes = {row["size"] for row in trace if row["action"] == "alloc" and row["size"] >= LEAST_WORKSPACE}
    del result
    return sorted(sizes), torch.cuda.memory_allocated() - before >= LEAST_WORKSPACE


# What kernels take is written down as of 2.11; docs/trace-model.md says where 2.10 differs.
IS_OLDER = release_of(torch) < (2, 11)


class Workspaces(unittest.TestCase):
    def compare(self, all_products: Iterator[Product]) -> None:
        for name, func, args, kwargs in all_products:
            with self.subTest(name):
                sizes, kept = taken(lambda func=func, args=args, kwargs=kwargs: func(*args, **kwargs))  # type: ignore[misc]
                said = kernel_memory.workspaces(func, args, kwargs)
                self.assertEqual(sorted({size for _, _, size in said}), sizes)
                self.assertEqual(kept, bool(sizes) and kernel_memory.blas().are_kept)

    @unittest.skipIf(IS_OLDER, "PyTorch 2.10 has another workspace for sums of one row")
    def test_of_sums(self) -> None:
        self.compare(sums())

    def test_of_other_products(self) -> None:
        self.compare(products())

    @unittest.skipIf(IS_OLDER, "PyTorch 2.10 has another workspace for sums of one row")
    def test_where_cublas_lt_is_preferred(self) -> None:
        torch.backends.cuda.preferred_blas_library("cublaslt")
        try:
            self.compare(products())
            self.compare(sums())
        finally:
            torch.backends.cuda.preferred_blas_library("default")


class Seeds(unittest.TestCase):
    def test_of_attention_are_where_pytorch_has_them(self) -> None:
        states = zeros(2, 4, 128, 64)
        rows = states.transpose(1, 2).contiguous()
        for dropout in (0.0, 0.1):
            for func, args in (
                (aten._scaled_dot_product_efficient_attention.default, (states, states, states, None, True, dropout)),
                (aten._efficient_attention_forward.default, (rows, rows, rows, *[None] * 5, dropout, 0, True)),
            ):
                with self.subTest(f"{func} {dropout}"):
                    results = enumerate(func(*args))
                    there = tuple(at for at, each in results if isinstance(each, torch.Tensor) and each.is_cpu)
                    self.assertEqual(kernel_memory.on_host(func, args, {}), there)


TOKENS, WIDTH, ROWS_OF_TABLE = 4096, 256, 32000
Operator = tuple[str, Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]


def picked(of: int) -> torch.Tensor:
    return torch.randint(of, (TOKENS,)).cuda()


def operators() -> Iterator[Operator]:
    """With the shapes of what they are given; gradients of all of it are asked for."""
    states, table, image = (TOKENS, WIDTH), (ROWS_OF_TABLE, WIDTH), (4, 64, 32, 32)
    heads = (2, 4, 512, 64)
    yield "softmax", lambda x: x.softmax(-1), (states,)
    yield "logsumexp", lambda x: x.logsumexp(-1), (states,)
    yield "layer_norm", lambda x: F.layer_norm(x, (WIDTH,)), (states,)
    yield "group_norm", lambda x: F.group_norm(x, 32), (image,)
    for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
        yield name, getattr(F, name), (states, states)
    yield "bce", lambda x: F.binary_cross_entropy(x.sigmoid(), torch.zeros_like(x)), (states,)
    yield "cross_entropy", lambda x: F.cross_entropy(x, picked(WIDTH)), (states,)
    yield "embedding", lambda x: F.embedding(picked(ROWS_OF_TABLE), x), (table,)
    yield "embedding of few tokens", lambda x: F.embedding(picked(ROWS_OF_TABLE)[:2048], x), (table,)
    yield "embedding in few rows", lambda x: F.embedding(picked(2), x), ((2, WIDTH),)
    yield "gather", lambda x: x.gather(1, torch.zeros(TOKENS, 8, dtype=torch.int64, device="cuda")), (states,)
    yield "index_select", lambda x: x.index_select(0, picked(TOKENS)), (states,)
    yield "index", lambda x: x[picked(TOKENS)], (states,)
    yield "index_add", lambda x, y: x.index_add(0, picked(TOKENS), y), (states, states)
    yield "topk", lambda x: x.topk(8, -1)[0], (states,)
    yield "max", lambda x: x.max(-1)[0], (states,)
    yield "amax", lambda x: x.amax(-1), (states,)
    yield "masked_scatter", _scattered, (states, states)
    yield "isinf", lambda x: torch.isinf(x) * x, (states,)
    yield "convolution by channels", lambda x, y: F.conv2d(x, y, padding=1, groups=64), (image, (64, 1, 3, 3))
    yield "attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (heads, heads, heads)
    yield "grouped attention", _grouped_attention, (heads, (2, 2, 512, 64), (2, 2, 512, 64))


def _scattered(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.masked_scatter(torch.zeros_like(x) > 0, y.detach())


def _grouped_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


def differentiated(operator: Callable[..., torch.Tensor], given: list[torch.Tensor]) -> None:
    result = operator(*given)
    torch.autograd.grad(result, given, torch.empty_like(result), allow_unused=True)


@unittest.skipIf("SPILLWAY_TEST_ONE_SETTING" in os.environ, "no workspaces are looked at")
class Peaks(unittest.TestCase):
    """Of an operator and its gradients: on fake tensors what PyTorch takes, but for the tables of sorting."""

    def test_on_fake_tensors_and_on_the_device(self) -> None:
        for dtype in (torch.float32, torch.bfloat16):
            for name, operator, shapes in operators():
                if IS_OLDER and name == "embedding in few rows":
                    continue
                with self.subTest(f"{name} {dtype}"):
                    there = self.on_the_device(operator, shapes, dtype)
                    here = self.on_fake_tensors(operator, shapes, dtype)
                    self.assertLess(abs(here / there - 1), 0.02, f"{here} and {there} bytes")

    def on_the_device(self, operator: Callable[..., torch.Tensor], shapes: Any, dtype: torch.dtype) -> int:
        given = [zeros(*shape, dtype=dtype).requires_grad_() for shape in shapes]
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        differentiated(operator, given)
        return int(torch.cuda.memory_stats()["requested_bytes.all.peak"] - before)

    def on_fake_tensors(self, operator: Callable[..., torch.Tensor], shapes: Any, dtype: torch.dtype) -> int:
        recorder = Recorder()
        with FakeTensorMode(allow_non_fake_inputs=True, allow_fallback_kernels=False), recorder:
            recorder.calibrate()
            given = [zeros(*shape, dtype=dtype).requires_grad_() for shape in shapes]
            before = recorder.peak_bytes[0] = recorder.live_bytes[0]
            differentiated(operator, given)
            peak = recorder.peak_bytes[0]
            del given
        return peak - before


@unittest.skipIf("SPILLWAY_TEST_ONE_SETTING" in os.environ, "started by this test")
class Settings(unittest.TestCase):
    def test_the_same_under_other_settings(self) -> None:
        for setting in SETTINGS:
            with self.subTest(setting):
                given = {**os.environ, **setting, "SPILLWAY_TEST_ONE_SETTING": "1"}
                done = subprocess.run(
                    [sys.executable, __file__], env=given, capture_output=True, text=True, check=False
                )
                self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    unittest.main()
