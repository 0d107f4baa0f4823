# SPDX-License-Identifier: Apache-2.0
"""Matrix products.

Half types are multiplied into a float32 accumulator and rounded once, after bias and scaling:
that is PyTorch's definition, and XLA reaches the processor's bf16 instructions through it.

Host kernels `neuron.matmul` and `neuron.matmul_f32` (see `Builder.composite`): a product of bfloat16 or
float32 operands, result in the operands' dtype, rounded once. Operands: x, y and, optionally, a bias as
long as the last dimension of the result. Their config is
`lhs_batch=0;rhs_batch=0;lhs_contracting=2;rhs_contracting=1`, lists of dimensions joined by commas, in the
order of stablehlo.dot_general; the result has the batch dimensions, then the free ones of x, then those of y.

Host kernel `neuron.matmul_few_rows`: the same of x (..., inner), of some rows, and y, which is (..., inner) with
`transposed=1` in its config `inner=768;transposed=1`, else (inner, ...).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...stablehlo import Builder, Value
from ..pointwise import finish
from ..promotion import opmath
from ..registry import lowers

aten = torch.ops.aten

Dims = tuple[Sequence[int], Sequence[int]]
_NONE: Dims = ((), ())
_ROWS_BY_COLUMNS: Dims = ((1,), (0,))
_BATCHED: Dims = ((2,), (1,))
_BATCH: Dims = ((0,), (0,))

# What the kernel `neuron.matmul_few_rows` is for: more rows do work enough to be limited by it, not by memory.
_FEW_ROWS = 8


def _accumulated(b: Builder, x: Value, y: Value, contracting: Dims, batch: Dims = _NONE) -> Value:
    """The product in the compute dtype: float32 for half types."""
    if x.ndim == y.ndim == 1 and contracting != _NONE:
        # XLA adds up a dot product of vectors one by one, a reduction in groups: the error stays small.
        x, y = (b.convert(v, opmath(v.dtype)) for v in (x, y))
        return b.reduce(b.multiply(x, y), [0], "add")
    if opmath(x.dtype) != x.dtype:
        # XLA folds a transpose before the product into it, and then has no kernel for half-type operands.
        x, y = b.optimization_barrier(x), b.optimization_barrier(y)
    return b.dot_general(x, y, contracting, batch, opmath(x.dtype))


def contract(
    b: Builder, x: Value, y: Value, contracting: Dims, batch: Dims = _NONE, bias: Value | None = None
) -> Value:
    """The product in the dtype of the operands, with `bias` added along the last dimension."""
    x, *x_dims = _as_it_lies(b, x, contracting[0], batch[0])
    y, *y_dims = _as_it_lies(b, y, contracting[1], batch[1])
    contracting, batch = (x_dims[0], y_dims[0]), (x_dims[1], y_dims[1])

    def decomposition(x: Value, y: Value, bias: Value | None = None) -> Value:
        result = _accumulated(b, x, y, contracting, batch)
        if bias is not None:
            result = b.add(result, b.convert(bias, result.dtype))
        return b.convert(result, x.dtype)

    free = [v.shape[d] for v, c, s in zip((x, y), contracting, batch, strict=True) for d in _free(v, c, s)]
    result = [([x.shape[d] for d in batch[0]] + free, x.dtype)]
    operands = [x, y] if bias is None else [x, y, bias]
    if (few := _few_rows(x, y, contracting, batch)) is not None:
        swapped, config = few
        if not swapped:
            return b.composite("neuron.matmul_few_rows", operands, result, decomposition, config)[0]
        operands = [y, x, *operands[2:]]
        return b.composite(
            "neuron.matmul_few_rows", operands, result, lambda y, x, *bias: decomposition(x, y, *bias), config
        )[0]
    if not _kernel_pays(x, y, contracting, batch):
        return decomposition(*operands)
    names = ("lhs_batch", "rhs_batch", "lhs_contracting", "rhs_contracting")
    lists = (*batch, *contracting)
    config = ";".join(f"{name}={','.join(map(str, dims))}" for name, dims in zip(names, lists, strict=True))
    name = "neuron.matmul" if x.dtype == torch.bfloat16 else "neuron.matmul_f32"
    return b.composite(name, operands, result, decomposition, config)[0]


def _as_it_lies(
    b: Builder, x: Value, contracting: Sequence[int], batch: Sequence[int]
) -> tuple[Value, Sequence[int], Sequence[int]]:
    """A transposed operand as it was before, with its dimensions renamed: a linear layer's weight in a graph, say.

    Only where one dimension is left free: the result has the free dimensions in the order of the operand's.
    """
    found = b.transposed.get(x.name)
    if found is None or len(_free(x, contracting, batch)) > 1:
        return x, contracting, batch
    source, permutation = found
    return source, [permutation[d] for d in contracting], [permutation[d] for d in batch]


def _few_rows(x: Value, y: Value, contracting: Dims, batch: Dims) -> tuple[bool, str] | None:
    """Whether to call `neuron.matmul_few_rows`: None, or whether with x and y swapped, and its config.

    XLA reads a large matrix for few rows slower than memory gives it, and writes one of bfloat16 in float32 first.
    """
    if batch[0] or x.dtype not in (torch.float32, torch.bfloat16) or len(contracting[0]) != 1 or x.ndim == y.ndim == 1:
        return None
    # A vector on the right is a row on the left of the transposed matrix.
    swapped = y.ndim == 1
    if swapped:
        x, y, contracting = y, x, (contracting[1], contracting[0])
    (x_dim,), (y_dim,) = contracting
    inner = x.shape[x_dim]
    rows = x.numel // max(inner, 1)
    transposed = y_dim == y.ndim - 1
    if not 1 <= rows <= _FEW_ROWS or (x_dim != x.ndim - 1 and rows > 1) or not (transposed or y_dim == 0):
        return None
    if x.dtype == torch.float32:
        # XLA is as fast with a matrix that lies as it is written.
        pays = transposed and y.numel >= 2**16
    else:
        pays = y.numel >= (2**13 if rows == 1 else 2**16)
    if not pays:
        return None
    return swapped, f"inner={inner};transposed={int(transposed)}"


def _kernel_pays(x: Value, y: Value, contracting: Dims, batch: Dims) -> bool:
    """Whether to call the host kernel of `x`'s dtype where there is one.

    Where that of bfloat16 exists the processor multiplies it natively. It pays for rather few rows, for which XLA
    reads a large matrix up to four times slower; for results that are not small, for which XLA fills a float32
    temporary first; and for a left operand that lies transposed (a weight's gradient), which XLA copies first.
    That of float32 exists where ATen calls MKL and MKL knows the processor: it is faster than XLA in large products.
    Where the processor has AMX it adds up products of bfloat16 (csrc/kernels/float_parts.h), no less exact.
    """
    if batch[0] or x.dtype not in (torch.float32, torch.bfloat16):
        return False
    inner = max(math.prod(x.shape[d] for d in contracting[0]), 1)
    rows, columns = x.numel // inner, y.numel // inner
    if x.dtype == torch.float32:
        return rows * y.numel >= 2**28
    if rows * y.numel < 2**21:
        return False
    return rows <= 16 or rows * columns >= 2**18 or tuple(contracting[0]) != (x.ndim - 1,)


def _free(x: Value, contracting: Sequence[int], batch: Sequence[int]) -> list[int]:
    return [d for d in range(x.ndim) if d not in contracting and d not in batch]


# overload -> contracting and batch dimensions of its two operands
_PRODUCTS: dict[torch._ops.OpOverload, tuple[Dims, Dims]] = {
    aten.mm.default: (_ROWS_BY_COLUMNS, _NONE),
    aten.bmm.default: (_BATCHED, _BATCH),
    aten.mv.default: (_ROWS_BY_COLUMNS, _NONE),
    aten.dot.default: (((0,), (0,)), _NONE),
}
# overload -> the same of mat1 and mat2 in beta * self + alpha * (mat1 @ mat2)
_ADDED_PRODUCTS: dict[torch._ops.OpOverload, tuple[Dims, Dims]] = {
    aten.addmm.default: (_ROWS_BY_COLUMNS, _NONE),
    aten.addmv.default: (_ROWS_BY_COLUMNS, _NONE),
    aten.baddbmm.default: (_BATCHED, _BATCH),
    aten.addbmm.default: (((0, 2), (0, 1)), _NONE),
    aten.addr.default: (_NONE, _NONE),
}


def _product_rule(overload: torch._ops.OpOverload, contracting: Dims, batch: Dims) -> None:
    @lowers(overload)
    def rule(b: Builder, x: Value, y: Value) -> Value:
        return contract(b, x, y, contracting, batch)


def _added_product_rule(overload: torch._ops.OpOverload, contracting: Dims, batch: Dims) -> None:
    # beta and alpha hardly ever differ from 1 and 0: as operands they would cost a pass each.
    @lowers(overload, static=("beta", "alpha"))
    def rule(b: Builder, addend: Value, x: Value, y: Value, *, beta: float, alpha: float) -> Value:
        if beta == alpha == 1 and addend.shape == b.out[0].shape[-1:] and addend.dtype == x.dtype == y.dtype:
            return contract(b, x, y, contracting, batch, addend)
        dtype = b.out[0].dtype
        result = _accumulated(b, b.convert(x, dtype), b.convert(y, dtype), contracting, batch)
        if alpha != 1:
            result = b.multiply(result, alpha)
        # With beta = 0 the addend is ignored, NaN and all.
        if beta != 0:
            addend = b.convert(addend, result.dtype)
            result = b.add(result, addend if beta == 1 else b.multiply(addend, beta))
        return finish(b, result)


for _overload, _dims in _PRODUCTS.items():
    _product_rule(_overload, *_dims)
for _overload, _dims in _ADDED_PRODUCTS.items():
    _added_product_rule(_overload, *_dims)


@lowers(aten.vdot.default)
def vdot(b: Builder, x: Value, y: Value) -> Value:
    if x.dtype.is_complex:
        x = b.complex(b.real(x), b.negate(b.imag(x)))
    return contract(b, x, y, ((0,), (0,)))


@lowers(aten._int_mm.default)
def int_mm(b: Builder, x: Value, y: Value) -> Value:
    return b.dot_general(x, y, _ROWS_BY_COLUMNS, dtype=torch.int32)


@lowers(aten.linear.default, whole=True)
def linear(b: Builder, x: Value, weight: Value, bias: Value | None) -> Value:
    return contract(b, x, weight, ((x.ndim - 1,), (weight.ndim - 1,)), bias=bias)


@lowers(aten.matmul.default, whole=True)
def matmul(b: Builder, x: Value, y: Value) -> Value:
    """NumPy's matmul: 1-D operands are a row on the left and a column on the right; batch dimensions broadcast."""
    shape = b.out[0].shape
    inner_x, inner_y = x.ndim - 1, max(y.ndim - 2, 0)
    # One matrix against many is one product with more rows (or columns), not a batch of products.
    if y.ndim <= 2 or _is_single(y):
        y = y if y.ndim <= 2 else b.reshape(y, y.shape[-2:])
        return b.reshape(contract(b, x, y, ((inner_x,), (max(y.ndim - 2, 0),))), shape)
    if x.ndim <= 2 or _is_single(x):
        x = x if x.ndim <= 2 else b.reshape(x, x.shape[-2:])
        result = contract(b, y, x, ((inner_y,), (x.ndim - 1,)))  # batch, columns, rows
        if x.ndim == 2:
            result = b.transpose(result, [*range(result.ndim - 2), result.ndim - 1, result.ndim - 2])
        return b.reshape(result, shape)
    lead = shape[:-2]
    x, y = (b.broadcast_to(v, [*lead, *v.shape[-2:]]) for v in (x, y))
    dims = list(range(len(lead)))
    return contract(b, x, y, ((x.ndim - 1,), (y.ndim - 2,)), (dims, dims))


def _is_single(x: Value) -> bool:
    """Whether all batch dimensions have size 1."""
    return all(n == 1 for n in x.shape[:-2])
