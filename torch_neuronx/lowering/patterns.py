# SPDX-License-Identifier: Apache-2.0
"""Groups of nodes that a host kernel computes in one pass over memory.

Each group ends in a node that replaces what the others would give; those become dead code. Host kernels (see
`Builder.composite`), of float32 and bfloat16, rounded once:

    neuron.gated_silu  gate, x -> silu(gate) * x. Config `gate=0;x=3072`: from which column of its operand each is.
    neuron.rms_norm    x, weight: see families/normalization.py.
    neuron.normalize_channels  x, shift, scale, bias: the same.
    neuron.rotary      x, cosine, sine -> x * cosine + turned(x) * sine, where (x0, x1) turns into (-x1, x0): pairs are
                       the halves of the last dimension (`neighbours=0`) or neighbours in it. Config
                       `cosine=0,64,0;sine=0,64,0`: strides of the angles along the leading dimensions of x.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from ..stablehlo import Builder, Value
from .families.normalization import group_norm_with_silu, rms_norm_kernel
from .indexing import wrap_dim

aten = torch.ops.aten
Node = torch.fx.Node

# Elements from which on a kernel is faster than XLA's code.
_PAYS = 2**15
_TYPES = (torch.float32, torch.bfloat16)


def lower_pattern(b: Builder, node: Node, environment: dict[Node, Any]) -> Value | None:
    """The value of `node`, if it ends a group that a kernel of the target computes; else None."""
    rule = _RULES.get(node.target)
    if b.rounds_between or rule is None or node.meta["val"].numel() < _PAYS:
        return None
    return rule(b, node, environment)


def _is(node: Any, *targets: Any) -> bool:
    return isinstance(node, Node) and node.target in targets


def _is_inner(node: Any, *targets: Any) -> bool:
    """Whether it is such a node, and nothing else reads it."""
    return _is(node, *targets) and len(node.users) == 1


# -- gates ----------------------------------------------------------------------------------------


def _gated_silu(b: Builder, node: Node, environment: dict[Node, Any]) -> Value | None:
    first, second = node.args
    silu, x = (first, second) if _is_inner(first, aten.silu.default) else (second, first)
    if "neuron.gated_silu" not in b.kernels or not _is_inner(silu, aten.silu.default) or not isinstance(x, Node):
        return None
    gate = silu.args[0]  # type: ignore[union-attr]
    tensors = [n.meta["val"] for n in (node, gate, x)]  # type: ignore[union-attr]
    if any((t.dtype, t.shape) != (tensors[0].dtype, tensors[0].shape) for t in tensors):
        return None
    if tensors[0].dtype not in _TYPES or tensors[0].dim() == 0:
        return None
    (gate, gate_column), (x, x_column) = _columns(gate), _columns(x)
    config = f"gate={gate_column};x={x_column}"
    shape = tuple(tensors[0].shape)
    return b.custom_call("neuron.gated_silu", [environment[gate], environment[x]], [(shape, tensors[0].dtype)], config)[
        0
    ]


def _columns(node: Any) -> tuple[Any, int]:
    """The tensor of whose last dimension `node` is a part, or a part of a part, and where that begins."""
    column = 0
    while (part := _part(node)) is not None and part[1] == node.meta["val"].dim() - 1:
        node, column = part[0], column + part[2]
    return node, column


# -- normalizations -------------------------------------------------------------------------------


def _rms_norm(b: Builder, node: Node, environment: dict[Node, Any]) -> Value | None:
    """As models write it: weight * (x * rsqrt(mean(x²) + eps)).to(dtype), with x widened."""
    for weight, normal in (node.args, reversed(node.args)):
        rounded = _is_inner(normal, aten._to_copy.default)
        product: Any = normal.args[0] if rounded else normal  # type: ignore[union-attr]
        if not _is_inner(product, aten.mul.Tensor) or not isinstance(weight, Node):
            continue
        for wide, scale in (product.args, reversed(product.args)):
            x, eps = _before_cast(wide), _epsilon(scale, wide)
            if eps is not None and x.meta["val"].dtype == node.meta["val"].dtype:
                found = rms_norm_kernel(b, environment[x], environment[weight], eps, rounded)
                return None if found is None else found[0]
    return None


def _epsilon(scale: Any, x: Any) -> float | None:
    """eps, if `scale` is rsqrt(mean(x²) + eps) over the last dimension."""
    if not _is_inner(scale, aten.rsqrt.default) or not _is_inner(
        total := scale.args[0], aten.add.Tensor, aten.add.Scalar
    ):
        return None
    mean, eps = total.args
    if not isinstance(eps, float) or total.kwargs or not _is_inner(mean, aten.mean.dim):
        return None
    square, dims, keep = (*mean.args, False)[:3]
    if not keep or [wrap_dim(d, x.meta["val"].dim()) for d in dims] != [x.meta["val"].dim() - 1]:
        return None
    return eps if _is_inner(square, aten.pow.Tensor_Scalar) and tuple(square.args) == (x, 2) else None


def _normalized_silu(b: Builder, node: Node, environment: dict[Node, Any]) -> Value | None:
    (normal,) = node.args
    if not _is_inner(normal, operator.getitem) or normal.args[1] != 0:  # type: ignore[union-attr]
        return None
    norm = normal.args[0]  # type: ignore[union-attr]
    if not _is_inner(norm, aten.native_group_norm.default) or norm.kwargs:  # type: ignore[union-attr]
        return None
    return group_norm_with_silu(b, *torch.fx.map_arg(norm.args, lambda n: environment[n]))  # type: ignore[union-attr]


# -- rotary embeddings ------------------------------------------------------------------------------


def _rotary(b: Builder, node: Node, environment: dict[Node, Any]) -> Value | None:
    if "neuron.rotary" not in b.kernels or len(node.args) != 2 or node.kwargs:
        return None
    for straight, crossed in (node.args, reversed(node.args)):
        if not (_is_inner(straight, aten.mul.Tensor) and _is_inner(crossed, aten.mul.Tensor)):
            return None
        for x, cosine in (straight.args, reversed(straight.args)):  # type: ignore[union-attr]
            for turned, sine in (crossed.args, reversed(crossed.args)):  # type: ignore[union-attr]
                found = _turned(_before_cast(turned))
                if found is not None and found[0] is _before_cast(x) and isinstance(cosine, Node):
                    return _turn(b, node, found, (cosine, sine), environment)
    return None


def _turn(
    b: Builder, node: Node, found: tuple[Node, bool], angles: tuple[Any, Any], environment: dict[Node, Any]
) -> Value | None:
    source, neighbours = found
    x, tensor, users = environment[source], node.meta["val"], list(node.users)
    dtype = tensor.dtype
    if len(users) == 1 and _is(users[0], aten._to_copy.default):
        dtype = users[0].meta["val"].dtype
    cosine, sine = (environment[n] for n in angles)
    if x.dtype not in _TYPES or dtype != x.dtype or tensor.shape != x.shape or cosine.dtype != sine.dtype:
        return None
    if cosine.dtype not in (torch.float32, x.dtype) or any(a.shape[-1:] != x.shape[-1:] for a in (cosine, sine)):
        return None
    # Where x was transposed, it is turned as it lay before, and transposed afterwards.
    lain, permutation = b.transposed.get(x.name, (x, tuple(range(x.ndim))))
    if permutation[-1] != x.ndim - 1:
        return None
    strides = []
    for angle in (cosine, sine):
        shape = (*[1] * (x.ndim - angle.ndim), *angle.shape)
        steps = [0 if n == 1 else math.prod(shape[d + 1 :]) for d, n in enumerate(shape)]
        strides.append([steps[permutation.index(d)] for d in range(x.ndim - 1)])
    config = ";".join(f"{name}={','.join(map(str, s))}" for name, s in zip(("cosine", "sine"), strides, strict=True))
    config += f";neighbours={int(neighbours)}"
    (result,) = b.custom_call("neuron.rotary", [lain, cosine, sine], [(lain.shape, lain.dtype)], config)
    return b.convert(b.transpose(result, permutation), tensor.dtype)


def _before_cast(node: Any) -> Any:
    """What was widened to `node`, or `node` itself."""
    if not _is(node, aten._to_copy.default):
        return node
    source = node.args[0]
    return source if source.meta["val"].dtype in _TYPES and node.meta["val"].dtype == torch.float32 else node


def _turned(node: Any) -> tuple[Node, bool] | None:
    """The tensor that `node` is when turned, and whether its pairs are neighbours."""
    neighbours = _is(node, aten.view.default, aten._unsafe_view.default, aten.reshape.default)
    joined = node.args[0] if neighbours else node
    if not _is(joined, aten.stack.default if neighbours else aten.cat.default) or len(joined.args[0]) != 2:
        return None
    rank = joined.meta["val"].dim()
    first, second = joined.args[0]
    if not _is(first, aten.neg.default) or wrap_dim((*joined.args, 0)[1], rank) != rank - 1:
        return None
    upper, lower = _part(first.args[0]), _part(second)
    if upper is None or lower is None:
        return None
    (source, dim, begin, length), (other, *where) = upper, lower
    size = source.meta["val"].shape[dim]
    if source is not other or dim != rank - 1 or where != [dim, 0, length] or begin != length or size != 2 * length:
        return None
    if not neighbours:
        return source, False
    # (..., size / 2, 2) is a view of what is turned, and is viewed as that again.
    if not _is(source, aten.view.default, aten._unsafe_view.default):
        return None
    whole: Any = source.args[0]
    pairs = (*whole.meta["val"].shape[:-1], whole.meta["val"].shape[-1] // 2, 2)
    if source.meta["val"].shape != pairs or node.meta["val"].shape != whole.meta["val"].shape:
        return None
    return whole, True


def _part(node: Any) -> tuple[Node, int, int, int] | None:
    """Of which tensor `node` is a part, along which dimension, where it begins and how long it is."""
    if not isinstance(node, Node):
        return None
    given: Any = node.args
    source: Any
    dim: Any
    if node.target is aten.slice.Tensor:
        source, dim, begin = (*given, 0, 0)[:3]
        if len(given) > 4 and given[4] != 1:
            return None
    elif node.target is aten.select.int:
        source, dim, begin = given
    elif node.target is operator.getitem and _is(given[0], *_SPLITS):
        split, number = given
        if split.target is aten.unbind.int:
            source, dim = (*split.args, 0)[:2]
            begin = number
        else:
            source, sizes, dim = (*split.args, 0)[:3]
            begin = sum(sizes[:number]) if isinstance(sizes, (list, tuple)) else number * sizes
    else:
        return None
    shape = source.meta["val"].shape
    dim = wrap_dim(dim, len(shape))
    length = node.meta["val"].shape[dim] if node.meta["val"].dim() == len(shape) else 1
    begin = begin or 0
    return source, dim, max(begin + shape[dim], 0) if begin < 0 else begin, length


_SPLITS = (aten.unbind.int, aten.split.Tensor, aten.split_with_sizes.default)

_RULES: dict[Any, Callable[[Builder, Node, dict[Node, Any]], Value | None]] = {
    aten.mul.Tensor: lambda *group: _gated_silu(*group) or _rms_norm(*group),
    aten.add.Tensor: _rotary,
    aten.silu.default: _normalized_silu,
}
