# SPDX-License-Identifier: Apache-2.0
"""StableHLO operations with structure: shapes, reductions, contractions, windows, indexing, control."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .builder import Builder, Value


def _array(values: Sequence[int]) -> str:
    return f"array<i64: {', '.join(map(str, values))}>" if values else "array<i64>"


def _bools(values: Sequence[bool]) -> str:
    return f"array<i1: {', '.join('true' if v else 'false' for v in values)}>" if values else "array<i1>"


def _pairs(pairs: Sequence[tuple[int, int]]) -> str:
    body = ", ".join(f"[{low}, {high}]" for low, high in pairs)
    return f"dense<[{body}]> : tensor<{len(pairs)}x2xi64>" if pairs else "dense<> : tensor<0x2xi64>"


def lowest(dtype: torch.dtype) -> float | int | bool:
    """The identity of maximum."""
    if dtype == torch.bool:
        return False
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def highest(dtype: torch.dtype) -> float | int | bool:
    """The identity of minimum."""
    if dtype == torch.bool:
        return True
    return math.inf if dtype.is_floating_point else torch.iinfo(dtype).max


class Structured:
    """Mixin of `Builder`."""

    # -- shapes ----------------------------------------------------------------------------

    def reshape(self: Builder, x: Value, shape: Sequence[int]) -> Value:
        if x.shape == tuple(shape):
            return x
        result = self.op("reshape", [x], shape, x.dtype)
        source, dim = self.broadcasts.get(x.name, (x, 0))
        if dim > 0 and tuple(shape) == (*x.shape[: dim - 1], x.shape[dim - 1] * x.shape[dim], *x.shape[dim + 1 :]):
            self.repeated[result.name] = (source, dim - 1)
        return result

    def transpose(self: Builder, x: Value, permutation: Sequence[int]) -> Value:
        """Result dimension i is operand dimension permutation[i]."""
        if x.name in self.transposed:
            x, before = self.transposed[x.name]
            permutation = [before[p] for p in permutation]
        if list(permutation) == list(range(x.ndim)):
            return x
        shape = [x.shape[p] for p in permutation]
        result = self.op("transpose", [x], shape, x.dtype, f"permutation = {_array(permutation)}")
        self.transposed[result.name] = (x, tuple(permutation))
        return result

    def broadcast_in_dim(self: Builder, x: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
        """Operand dimension i becomes result dimension dims[i]."""
        if x.shape == tuple(shape) and list(dims) == list(range(x.ndim)):
            return x
        result = self.op("broadcast_in_dim", [x], shape, x.dtype, f"broadcast_dimensions = {_array(dims)}")
        new = [d for d in range(len(shape)) if d not in dims]
        if len(new) == 1 and x.shape == tuple(n for d, n in enumerate(shape) if d != new[0]):
            self.broadcasts[result.name] = (x, new[0])
        return result

    def iota(self: Builder, shape: Sequence[int], dim: int, dtype: torch.dtype = torch.int64) -> Value:
        return self.op("iota", [], shape, dtype, f"iota_dimension = {dim} : i64")

    def concatenate(self: Builder, values: Sequence[Value], dim: int) -> Value:
        if len(values) == 1:
            return values[0]
        shape = list(values[0].shape)
        shape[dim] = sum(v.shape[dim] for v in values)
        return self.op("concatenate", values, shape, values[0].dtype, f"dimension = {dim} : i64")

    def slice(
        self: Builder, x: Value, start: Sequence[int], limit: Sequence[int], strides: Sequence[int] | None = None
    ) -> Value:
        strides = [1] * x.ndim if strides is None else strides
        shape = [max(0, -(-(hi - lo) // step)) for lo, hi, step in zip(start, limit, strides, strict=True)]
        if tuple(shape) == x.shape:
            return x
        attributes = f"start_indices = {_array(start)}, limit_indices = {_array(limit)}, strides = {_array(strides)}"
        return self.op("slice", [x], shape, x.dtype, attributes)

    def slice_dim(self: Builder, x: Value, dim: int, start: int, limit: int, step: int = 1) -> Value:
        """`slice` along one dimension."""
        lows, highs, steps = [0] * x.ndim, list(x.shape), [1] * x.ndim
        lows[dim], highs[dim], steps[dim] = start, limit, step
        return self.slice(x, lows, highs, steps)

    def dynamic_slice(self: Builder, x: Value, start: Sequence[Value], sizes: Sequence[int]) -> Value:
        """start: one 0-dim integer value a dimension; clamped so that the slice fits."""
        return self.op("dynamic_slice", [x, *start], sizes, x.dtype, f"slice_sizes = {_array(sizes)}")

    def dynamic_update_slice(self: Builder, x: Value, update: Value, start: Sequence[Value]) -> Value:
        return self.op("dynamic_update_slice", [x, update, *start], x.shape, x.dtype)

    def pad(
        self: Builder,
        x: Value,
        low: Sequence[int],
        high: Sequence[int],
        fill: Value | float = 0,
        interior: Sequence[int] | None = None,
    ) -> Value:
        """Negative amounts cut off."""
        interior = [0] * x.ndim if interior is None else interior
        if not (any(low) or any(high) or any(interior)):
            return x
        _, fill = self._pair(x, fill)
        shape = [
            lo + hi + (n + (n - 1) * mid if n else 0)
            for n, lo, hi, mid in zip(x.shape, low, high, interior, strict=True)
        ]
        edges = f"edge_padding_low = {_array(low)}, edge_padding_high = {_array(high)}"
        attributes = f"{edges}, interior_padding = {_array(interior)}"
        return self.op("pad", [x, fill], shape, x.dtype, attributes)

    def reverse(self: Builder, x: Value, dims: Sequence[int]) -> Value:
        return self.op("reverse", [x], x.shape, x.dtype, f"dimensions = {_array(dims)}") if dims else x

    # -- reductions ------------------------------------------------------------------------

    def reduce_with(
        self: Builder, operands: Sequence[Value], initial: Sequence[Value], dims: Sequence[int], body: Callable
    ) -> tuple[Value, ...]:
        """General reduction: `body` gets the accumulators, then the elements, and returns the accumulators."""
        kept = [n for d, n in enumerate(operands[0].shape) if d not in dims]
        scalars = [((), v.dtype) for v in operands]
        region = self.region(scalars + scalars, body)
        types = [(kept, v.dtype) for v in operands]
        attributes = f"dimensions = {_array(sorted(dims))}"
        return self.results("stablehlo.reduce", [*operands, *initial], types, attributes, [region])

    def reduce(self: Builder, x: Value, dims: Sequence[int], kind: str, keepdim: bool = False) -> Value:
        """kind: add multiply maximum minimum maximum_number minimum_number and or.

        Accumulates in the dtype of `x`: convert half types first. maximum and minimum return NaN if
        there is one; the _number kinds may miss it, and are faster: for where NaN comes through another way.
        """
        initial = {
            "add": 0,
            "multiply": 1,
            "maximum": lowest(x.dtype) if not x.dtype.is_complex else 0,
            "minimum": highest(x.dtype) if not x.dtype.is_complex else 0,
            "and": True,
            "or": False,
        }[kind.removesuffix("_number")]
        name = kind.removesuffix("_number")
        name = name + "_" if name in ("and", "or") else name
        body = getattr(self, name)
        if kind in ("maximum", "minimum") and x.dtype.is_floating_point:
            # XLA's CPU compiler drops NaN in a reduction whose body is plain maximum, but not in this one.
            direction = "GE" if kind == "maximum" else "LE"

            def body(a: Value, e: Value) -> Value:
                return self.select(self.or_(self.compare(a, e, direction), self.is_nan(a)), a, e)

        identity = self.constant(initial, x.dtype)
        (result,) = self.reduce_with([x], [identity], dims, lambda a, e: body(a, e))
        if keepdim:
            return self.reshape(result, [1 if d in dims else n for d, n in enumerate(x.shape)])
        return result

    def reduce_window(
        self: Builder,
        operands: Sequence[Value],
        initial: Sequence[Value],
        window: Sequence[int],
        strides: Sequence[int],
        padding: Sequence[tuple[int, int]],
        body: Callable,
        base_dilations: Sequence[int] | None = None,
        window_dilations: Sequence[int] | None = None,
    ) -> tuple[Value, ...]:
        rank = operands[0].ndim
        base = [1] * rank if base_dilations is None else base_dilations
        dilations = [1] * rank if window_dilations is None else window_dilations
        shape = []
        for n, w, s, (low, high), b, d in zip(
            operands[0].shape, window, strides, padding, base, dilations, strict=True
        ):
            padded = (0 if n == 0 else (n - 1) * b + 1) + low + high
            span = (w - 1) * d + 1
            shape.append(0 if padded < span else (padded - span) // s + 1)
        scalars = [((), v.dtype) for v in operands]
        region = self.region(scalars + scalars, body)
        attributes = (
            f"window_dimensions = {_array(window)}, window_strides = {_array(strides)}, "
            f"base_dilations = {_array(base)}, "
            f"window_dilations = {_array(dilations)}, padding = {_pairs(padding)}"
        )
        types = [(shape, v.dtype) for v in operands]
        return self.results("stablehlo.reduce_window", [*operands, *initial], types, attributes, [region])

    # -- contractions ------------------------------------------------------------------------

    def dot_general(
        self: Builder,
        x: Value,
        y: Value,
        contracting: tuple[Sequence[int], Sequence[int]],
        batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
        dtype: torch.dtype | None = None,
    ) -> Value:
        """Result dimensions: batch, the free ones of x, the free ones of y. `dtype`: of the accumulated result."""
        free_x = [n for d, n in enumerate(x.shape) if d not in contracting[0] and d not in batch[0]]
        free_y = [n for d, n in enumerate(y.shape) if d not in contracting[1] and d not in batch[1]]
        shape = [x.shape[d] for d in batch[0]] + free_x + free_y
        numbers = (
            f"lhs_batching_dimensions = [{_list(batch[0])}], rhs_batching_dimensions = [{_list(batch[1])}], "
            f"lhs_contracting_dimensions = [{_list(contracting[0])}], "
            f"rhs_contracting_dimensions = [{_list(contracting[1])}]"
        )
        attributes = f"dot_dimension_numbers = #stablehlo.dot<{numbers}>"
        return self.op("dot_general", [x, y], shape, x.dtype if dtype is None else dtype, attributes)

    def matmul(self: Builder, x: Value, y: Value, dtype: torch.dtype | None = None) -> Value:
        """(…, m, k) by (…, k, n) with equal batch dimensions."""
        batch = list(range(x.ndim - 2))
        return self.dot_general(x, y, ([x.ndim - 1], [y.ndim - 2]), (batch, batch), dtype)

    def convolution(
        self: Builder,
        x: Value,
        weight: Value,
        shape: Sequence[int],
        strides: Sequence[int],
        padding: Sequence[tuple[int, int]],
        lhs_dilation: Sequence[int],
        rhs_dilation: Sequence[int],
        groups: int = 1,
        batch_groups: int = 1,
        input_layout: str = "bf",
        kernel_layout: str = "oi",
        output_layout: str = "bf",
        reversal: bool = False,
        dtype: torch.dtype | None = None,
    ) -> Value:
        """Layouts give the order of the first two dimensions (b, f or o, i), the spatial ones follow."""
        spatial = [str(d) for d in range(len(strides))]
        order = [", ".join([*layout, *spatial]) for layout in (input_layout, kernel_layout, output_layout)]
        numbers = f"[{order[0]}]x[{order[1]}]->[{order[2]}]"
        attributes = (
            f"batch_group_count = {batch_groups} : i64, dimension_numbers = #stablehlo.conv<{numbers}>, "
            f"feature_group_count = {groups} : i64, lhs_dilation = {_array(lhs_dilation)}, "
            f"rhs_dilation = {_array(rhs_dilation)}, padding = {_pairs(padding)}, "
            f"window_reversal = {_bools([reversal] * len(strides))}, window_strides = {_array(strides)}"
        )
        return self.op("convolution", [x, weight], shape, x.dtype if dtype is None else dtype, attributes)

    # -- indexing ----------------------------------------------------------------------------

    def gather(
        self: Builder,
        x: Value,
        indices: Value,
        shape: Sequence[int],
        offset_dims: Sequence[int],
        collapsed_slice_dims: Sequence[int],
        start_index_map: Sequence[int],
        index_vector_dim: int,
        slice_sizes: Sequence[int],
        operand_batching_dims: Sequence[int] = (),
        start_indices_batching_dims: Sequence[int] = (),
    ) -> Value:
        """stablehlo.gather; indices are clamped, see `check_index` for an error instead."""
        batching = ""
        if operand_batching_dims:
            batching = (
                f"operand_batching_dims = [{_list(operand_batching_dims)}], "
                f"start_indices_batching_dims = [{_list(start_indices_batching_dims)}], "
            )
        numbers = (
            f"offset_dims = [{_list(offset_dims)}], collapsed_slice_dims = [{_list(collapsed_slice_dims)}], {batching}"
            f"start_index_map = [{_list(start_index_map)}], index_vector_dim = {index_vector_dim}"
        )
        sizes = f"slice_sizes = {_array(slice_sizes)}, indices_are_sorted = false"
        attributes = f"dimension_numbers = #stablehlo.gather<{numbers}>, {sizes}"
        return self.op("gather", [x, indices], shape, x.dtype, attributes)

    def scatter(
        self: Builder,
        x: Value,
        indices: Value,
        updates: Value,
        body: Callable,
        update_window_dims: Sequence[int],
        inserted_window_dims: Sequence[int],
        scatter_dims_to_operand_dims: Sequence[int],
        index_vector_dim: int,
        unique: bool = False,
        input_batching_dims: Sequence[int] = (),
        scatter_indices_batching_dims: Sequence[int] = (),
    ) -> Value:
        """stablehlo.scatter; `body(old, update)` combines. Updates out of bounds are dropped."""
        batching = ""
        if input_batching_dims:
            batching = (
                f"input_batching_dims = [{_list(input_batching_dims)}], "
                f"scatter_indices_batching_dims = [{_list(scatter_indices_batching_dims)}], "
            )
        numbers = (
            f"update_window_dims = [{_list(update_window_dims)}], "
            f"inserted_window_dims = [{_list(inserted_window_dims)}], "
            f"{batching}scatter_dims_to_operand_dims = [{_list(scatter_dims_to_operand_dims)}], "
            f"index_vector_dim = {index_vector_dim}"
        )
        region = self.region([((), x.dtype), ((), x.dtype)], body)
        attributes = (
            f"indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<{numbers}>, "
            f"unique_indices = {'true' if unique else 'false'}"
        )
        return self.op("scatter", [x, indices, updates], x.shape, x.dtype, attributes, [region])

    def sort(
        self: Builder, operands: Sequence[Value], dim: int, comparator: Callable, stable: bool = True
    ) -> tuple[Value, ...]:
        """comparator(a0, b0, a1, b1, …) -> bool value, one pair an operand: whether a goes before b."""
        types = [((), v.dtype) for v in operands for _ in range(2)]
        region = self.region(types, comparator)
        attributes = f"dimension = {dim} : i64, is_stable = {'true' if stable else 'false'}"
        return self.results("stablehlo.sort", operands, [(v.shape, v.dtype) for v in operands], attributes, [region])

    # -- control, random -----------------------------------------------------------------------

    def if_(self: Builder, predicate: Value, true: Callable, false: Callable) -> tuple[Value, ...]:
        """predicate: 0-dim bool. true, false: return the values of their branch, of the same types."""
        types: list[list[tuple[Sequence[int], torch.dtype]]] = []

        def branch(body: Callable) -> str:
            def typed() -> Sequence[Value]:
                values = body()
                types.append([(v.shape, v.dtype) for v in values])
                return values

            return self.region([], typed)

        regions = [branch(true), branch(false)]
        assert types[0] == types[1], f"the branches return {types[0]} and {types[1]}"
        return self.results("stablehlo.if", [predicate], types[0], "", regions)

    def while_loop(self: Builder, initial: Sequence[Value], condition: Callable, body: Callable) -> tuple[Value, ...]:
        types = [(v.shape, v.dtype) for v in initial]
        regions = [self.region(types, condition), self.region(types, body)]
        return self.results("stablehlo.while", initial, types, "", regions)

    def optimization_barrier(self: Builder, x: Value) -> Value:
        """`x`, of which the compiler may assume nothing (not even that a constant is one)."""
        return self.op("optimization_barrier", [x], x.shape, x.dtype)

    def rng_bit_generator(self: Builder, state: Value, shape: Sequence[int], dtype: torch.dtype) -> tuple[Value, Value]:
        """Philox: `state` is ui64[3] (key, counter low, counter high). Returns the new state and random bits."""
        attributes = "rng_algorithm = #stablehlo<rng_algorithm PHILOX>"
        types = [(state.shape, state.dtype), (tuple(shape), dtype)]
        new_state, bits = self.results("stablehlo.rng_bit_generator", [state], types, attributes)
        return new_state, bits


def _list(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))
