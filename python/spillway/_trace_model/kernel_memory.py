"""What operators take of the device beside their results, where PyTorch's source says so.

Not known here: workspaces of cuDNN, of NCCL, and of kernels that choose an algorithm by measuring.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .._errors import SpillwayError
from .._pytorch import releases

aten = torch.ops.aten

# Products by their operators, and what takes a handle of cuBLAS or of cuBLASLt for them.
ADDMM = frozenset((aten.addmm, aten.addmm_, aten._addmm_activation))
GEMM = ADDMM | {aten.mm, aten.bmm, aten.baddbmm, aten.baddbmm_}
CUBLAS = GEMM | {aten.addmv, aten.addmv_, aten.mv, aten.dot, aten.vdot, aten.linalg_solve_triangular}
CUBLAS_LT = frozenset((aten._scaled_mm,))
CUBLAS_LT_WITHOUT_WORKSPACE = frozenset((aten._int_mm,))
# Efficient attention, in aten/src/ATen/native/transformers/cuda/attention.cu: which argument is dropout, which results
# are its seed and offset.
DROPOUT = {
    aten._scaled_dot_product_efficient_attention.default: 5,
    aten._efficient_attention_forward.default: 8,
}
SEEDS = (2, 3)
ATTENTION_BACKWARD = frozenset(
    (
        aten._scaled_dot_product_efficient_attention_backward.default,
        aten._scaled_dot_product_flash_attention_backward.default,
    )
)
CONVOLUTIONS = frozenset((aten.convolution.default, aten.convolution_backward.default))
REDUCTIONS = frozenset(
    (aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.amax.default, aten.amin.default)
)
SUMS = frozenset((aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim))
# With more indices than this embeddings sort them, and add up rows of gradients in parts (aten/src/ATen/native/cuda/
# Embedding.cu and EmbeddingBackwardKernel.cu): rows of a part, columns that threads take together. Tables of few rows
# have no such parts.
MOST_UNSORTED, PART_ROWS, PART_COLUMNS, FEW_ROWS = 3072, 10, 32, 128
# Losses whose result keeps the storage of one for each element, which is shrunk to their mean: which argument is the
# reduction; 0 is none. Those of aten/src/ATen/native/Loss.cpp that are structured make the mean of a second one.
LOSSES = {
    aten.mse_loss.default: 2,
    aten.smooth_l1_loss.default: 2,
    aten.soft_margin_loss.default: 2,
    aten.binary_cross_entropy.default: 3,
}
OF_A_SECOND_ONE = frozenset((aten.mse_loss.default, aten.smooth_l1_loss.default))
# aten/src/ATen/native/cuda/Reduce.cuh: threads of a block, lanes of a warp, outputs of one load, values of a thread.
MAX_THREADS, WARP, INPUT_VECTOR, OUTPUT_VECTORS, LEAST_VALUES, MOST_VALUES = 512, 32, 4, (4, 2), 16, 256


def on_host(func: Any, args: Any, kwargs: Any) -> tuple[int, ...]:
    """Which results are on the host, though fake tensors have them on the device."""
    if func not in DROPOUT:
        return ()
    at = DROPOUT[func]
    dropout = args[at] if len(args) > at else kwargs.get("dropout_p", 0.0)
    return SEEDS if releases.has_seeds_on_host(torch, dropout) else ()


@functools.cache
def blas() -> releases.BlasWorkspaces:
    return releases.blas_workspaces(torch)


def workspaces(func: Any, args: Any, kwargs: Any) -> list[tuple[str, int, int]]:
    """Library, device and bytes of each workspace that the operator takes for its products."""
    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    if not tensors or tensors[0].device.type != "cuda" or any(each.numel() == 0 for each in tensors):
        return []
    operator = getattr(func, "overloadpacket", None)
    if func in CONVOLUTIONS and without_cudnn(func, args):
        operator = aten.mm  # with columns
    device = tensors[0].device.index or 0
    return [(library, device, workspace_bytes(library)) for library in _libraries(operator, args, kwargs)]


def _libraries(operator: Any, args: Any, kwargs: Any) -> list[str]:
    with_handle = [] if blas().lt_has_handles else ["cublas"]
    if operator in CUBLAS_LT_WITHOUT_WORKSPACE:
        return with_handle
    prefers_lt = operator in GEMM and torch.backends.cuda.preferred_blas_library() == torch._C._BlasBackend.Cublaslt
    if operator in CUBLAS_LT or prefers_lt or (operator in ADDMM and lt_adds(operator, args, kwargs)):
        return list(dict.fromkeys([*with_handle, "cublas" if blas().are_shared else "cublasLt"]))
    return ["cublas"] if operator in CUBLAS else []


def lt_adds(operator: Any, args: Any, kwargs: Any) -> bool:
    """Whether cuBLASLt adds the bias to the product: addmm_out_cuda_impl in aten/src/ATen/native/cuda/Blas.cpp."""
    bias, left, right = args[:3]
    in_place, activates = operator is aten.addmm_, operator is aten._addmm_activation
    result = bias if in_place else kwargs.get("out")
    if left.dtype.is_complex or 1 in right.shape or (result is not None and not result.is_contiguous()):
        return False
    shape, beta = (left.shape[0], right.shape[1]), kwargs.get("beta", 1)
    if bias.is_contiguous() and bias.dim() > 0 and bias.numel() == bias.shape[-1] == shape[1]:
        return bool(beta == 1)
    if activates:
        return bool(beta == 1 and bias.dim() == 2)
    return bool(
        blas().lt_adds_matrices
        and not in_place
        and beta != 0
        and bias.dtype == left.dtype
        and left.dtype.itemsize == 2
        and bias.is_contiguous()
        and bias.shape == shape
    )


@functools.cache
def _torch_cuda() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))


def workspace_bytes(library: str) -> int:
    """As PyTorch itself has them, for the device that it is on."""
    if re.search(r"\d{20}", os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")):
        raise SpillwayError("CUBLAS_WORKSPACE_CONFIG has a number that is no 64-bit one")  # PyTorch would throw
    try:
        ask = _torch_cuda()[releases.WORKSPACE_BYTES[library]]
    except AttributeError:
        other = ".".join(map(str, releases.NEWEST_TESTED))
        raise SpillwayError(
            f"PyTorch {torch.__version__} does not tell the size of {library}'s workspaces: trace with {other}"
        ) from None
    ask.restype = ctypes.c_size_t
    return int(ask())


def kept_bytes(func: Any, args: Any, kwargs: Any) -> int:
    """Of the result's storage, where it is larger than the result; else 0."""
    return _elementwise_loss(args) if func in LOSSES and _is_reduced(func, args, kwargs) else 0


def _is_reduced(func: Any, args: Any, kwargs: Any) -> bool:
    at = LOSSES[func]
    return bool((args[at] if len(args) > at else kwargs.get("reduction", 1)) != 0)


def _elementwise_loss(args: Any) -> int:
    one, other = args[:2]
    elements = math.prod(torch.broadcast_shapes(one.shape, other.shape))  # type: ignore[no-untyped-call]
    return int(elements * torch.result_type(one, other).itemsize)


def temporaries(func: Any, args: Any, kwargs: Any) -> list[tuple[int, int]]:
    """Device and bytes of each block that the operator takes and gives back before it ends."""
    tensor = args[0] if args and isinstance(args[0], torch.Tensor) else None
    if tensor is None or tensor.device.type != "cuda":
        return []
    sizes: list[int] = []
    if func in REDUCTIONS:
        dims = args[1] if len(args) > 1 else kwargs.get("dim")
        sizes = reduction_temporaries(func, tensor, dims, kwargs.get("dtype"))
    elif func in OF_A_SECOND_ONE and _is_reduced(func, args, kwargs):
        sizes = [_elementwise_loss(args)]
    elif func in ATTENTION_BACKWARD:
        sizes = attention_buffers(func, args)
    elif func in CONVOLUTIONS and without_cudnn(func, args):
        sizes = convolution_columns(func, args)
    elif (of_operator := OF_OPERATORS.get(func)) is not None:
        sizes = of_operator(*args, **kwargs)
    return [(tensor.device.index or 0, size) for size in sizes]


def reduction_temporaries(func: Any, tensor: torch.Tensor, dims: Any, asked: torch.dtype | None) -> list[int]:
    """Sums are of inputs in the result's type (aten/src/ATen/native/ReduceOpsUtils.h, make_reduction_from_out_ty)."""
    whole = not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
    dtype = asked or (torch.int64 if whole and func in SUMS else tensor.dtype)
    widens = dtype is torch.float32 and tensor.dtype in (torch.float16, torch.bfloat16)  # which kernels do
    copied = func in SUMS and dtype is not tensor.dtype and not widens
    return [tensor.numel() * dtype.itemsize] * copied + reduction_buffers(tensor, dims, dtype)


def _flat_indices(_table: Any, indices: torch.Tensor, *_: Any, **__: Any) -> list[int]:
    return [] if indices.is_contiguous() else [_size(indices)]


def embedding_sums(gradient: torch.Tensor, indices: torch.Tensor, rows: int, *_: Any, **__: Any) -> list[int]:
    """Indices in order, where those of each row begin, and what each part of them adds up to in 32 bits or more."""
    count, width = indices.numel(), gradient.shape[-1]
    if count <= MOST_UNSORTED:
        return []
    most_rows = min(count, rows)
    most_parts = count // PART_ROWS + most_rows
    columns = _ceil(width, PART_COLUMNS) * PART_COLUMNS
    sums = 8 * most_parts if rows <= FEW_ROWS else most_parts * columns * max(4, gradient.element_size())
    return [8 * count] * 3 + [8 * most_rows] * 2 + [8 * most_parts, sums]


def index_sums(_tensor: torch.Tensor, indices: Any, _values: Any, accumulate: bool = False, *_: Any) -> list[int]:
    """Sums go by indices in order: as they come, in order, and where they came. Masks choose one place or none."""
    if not accumulate:
        return []
    numbers = [each for each in indices if each is not None and each.dtype not in (torch.bool, torch.uint8)]
    masks = [each.numel() for each in indices if each is not None and each.dtype in (torch.bool, torch.uint8)]
    shape = torch.broadcast_shapes(*(each.shape for each in numbers))  # type: ignore[no-untyped-call]
    return [8 * max([*masks, math.prod(shape) if numbers else 0])] * 4


# In kernels of this name in aten/src/ATen/native/cuda, but for isinf (native/TensorCompare.cpp), losses (native/
# Loss.cpp) and _safe_softmax (native/SoftMax.cpp).
OF_OPERATORS: dict[Any, Callable[..., list[int]]] = {
    aten.embedding.default: _flat_indices,
    aten.embedding_dense_backward.default: embedding_sums,
    aten.index_put.default: index_sums,
    aten.index_put_.default: index_sums,
    # Gradients times results.
    aten._softmax_backward_data.default: lambda gradient, *_, **__: [_size(gradient)],
    # Which element of the source each one of the mask takes.
    aten.masked_scatter.default: lambda tensor, *_, **__: [8 * tensor.numel()],
    aten.masked_scatter_.default: lambda tensor, *_, **__: [8 * tensor.numel()],
    # Absolute values.
    aten.isinf.default: lambda tensor, *_, **__: [_size(tensor)] if tensor.dtype.is_floating_point else [],
    # A loss of each element.
    aten.huber_loss.default: lambda one, _, reduction=1, *__: [_size(one)] if reduction else [],
    # Which scores are minus infinity.
    aten._safe_softmax.default: lambda scores, *_, **__: [scores.numel()],
}


def attention_buffers(func: Any, args: Any) -> list[int]:
    """aten/src/ATen/native/transformers/cuda/attention_backward.cu; and flash_attn/flash_api.cpp, mha_bwd."""
    gradient, query, key, output = args[0], args[1], args[2], args[4]
    sizes = [] if gradient.transpose(1, 2).is_contiguous() else [_size(gradient)]  # in rows
    batch, heads, length, width = query.shape
    if func is aten._scaled_dot_product_efficient_attention_backward.default:
        # gradient times output in 32 bits, then summed over the width
        return [*sizes, 4 * gradient.numel(), 4 * batch * heads * length, 4 * batch * heads * length]
    sizes += [] if output.transpose(1, 2).is_contiguous() else [_size(output)]
    rows = 128 * _ceil(length, 128)
    sizes += [4 * batch * heads * rows, 4 * batch * heads * rows * 32 * _ceil(width, 32)]
    if key.shape[1] != heads:  # grouped heads: gradients of each head before they are summed
        sizes += 2 * [batch * heads * key.shape[2] * width * key.element_size()]
    return sizes


def uses_cudnn(func: Any, args: Any) -> bool:
    name = func.name()
    return "cudnn" in name or (func in CONVOLUTIONS and torch.backends.cudnn.enabled and args[0].device.type == "cuda")


def without_cudnn(func: Any, args: Any) -> bool:
    """The convolution is a product with columns. cuDNN takes what the chosen algorithm wants: not known."""
    tensor, weight = (args[1], args[2]) if func is aten.convolution_backward.default else (args[0], args[1])
    transposed = args[7] if func is aten.convolution_backward.default else args[6]
    by_channel = weight.shape[1] == 1 and tensor.shape[1] > 1 and not transposed  # which kernels of their own do
    return not torch.backends.cudnn.enabled and tensor.dim() == 4 and weight.dim() == 4 and not by_channel


def convolution_columns(func: Any, args: Any) -> list[int]:
    """Of one sample: aten/src/ATen/native/cuda/ConvolutionMM2d.cu."""
    backward = func is aten.convolution_backward.default
    tensor, weight = (args[1], args[2]) if backward else (args[0], args[1])
    stride, padding, dilation = args[4:7] if backward else args[3:6]
    kernel = weight.shape[2:]
    places = [
        (side + 2 * pad - wide * (window - 1) - 1) // step + 1
        for side, window, step, pad, wide in zip(tensor.shape[2:], kernel, stride, padding, dilation, strict=True)
    ]
    return [weight.shape[1] * math.prod(kernel) * math.prod(places) * tensor.element_size()]


def _size(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def reduction_buffers(tensor: torch.Tensor, dims: Any, dtype: torch.dtype) -> list[int]:
    """Bytes of partial results and of semaphores where blocks share an output: setReduceConfig in Reduce.cuh."""
    wanted = range(tensor.dim()) if dims is None or len(dims) == 0 else [dim % tensor.dim() for dim in dims]
    # Dimensions from the fastest to the slowest, neighbours of a kind made one.
    order = sorted(
        (dim for dim in range(tensor.dim()) if tensor.shape[dim] > 1), key=lambda dim: (tensor.stride(dim), -dim)
    )
    kinds = [dim in wanted for dim in order]
    inputs = math.prod(tensor.shape[dim] for dim in order if dim in wanted)
    if not order or tensor.numel() == 0 or inputs == 1:
        return []
    outputs = tensor.numel() // inputs
    groups = sum(kind and (at == 0 or not kinds[at - 1]) for at, kind in enumerate(kinds))
    along = kinds[0]  # the fastest dimension is reduced
    across, deep = (inputs, outputs) if along else (outputs, inputs)
    vector = 1
    if tensor.stride(order[0]) == 1:
        if along and across >= 128 and groups == 1:
            across //= INPUT_VECTOR
        elif not along:
            inner = math.prod(tensor.shape[dim] for at, dim in enumerate(order) if not any(kinds[: at + 1]))
            vector = next((width for width in OUTPUT_VECTORS if inner % width == 0), 1)
            across //= vector
    threads = MAX_THREADS // vector
    width = min(_last_power(across, threads), WARP)
    height = min(_last_power(deep, threads), threads // width)
    width = min(_last_power(across, threads), threads // height)
    step_input, step_output = (width, 1) if along else (1, width)
    if _ceil(inputs, step_input) < min(height * 16, MOST_VALUES):
        return []  # each warp has outputs of its own
    step_input *= height
    properties = torch.cuda.get_device_properties(tensor.device)
    target = properties.multi_processor_count * (properties.max_threads_per_multi_processor // (width * height))
    grid = _ceil(outputs // vector, step_output)
    values = _ceil(inputs, step_input)
    if values < MOST_VALUES or grid > target:
        return []
    blocks = max(min(_ceil(target, grid), _ceil(values, LEAST_VALUES)), _ceil(values, MOST_VALUES))
    if blocks <= 1:
        return []
    accumulated = max(4, dtype.itemsize)
    return [accumulated * outputs * blocks * (1 if along else width * vector), 4 * grid]


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _last_power(number: int, most: int) -> int:
    """The largest power of two that is not above the number."""
    return most if number >= most else 1 << (max(number, 1).bit_length() - 1)
