# SPDX-License-Identifier: Apache-2.0
"""Views of memory as the first, or last, step of a program.

An operand that is a view arrives as its *window*: a 1-D value of the element dtype, the run of memory
that holds the view, possibly longer. Where the view begins in the window is known when the program is
built (0), or a 0-dim operand `delta`, so that views which differ only in their offset share a program.

The steps are those that XLA folds into the consumer's loop: a flat slice, a reshape, a slice, a
transpose, a broadcast. Only strides that do not divide one another, and overlapping windows, need a gather.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ..stablehlo import Builder, Value


class Run(NamedTuple):
    """`size` elements, `stride` elements apart."""

    size: int
    stride: int


class Layout(NamedTuple):
    """Strides in normal form.

    order: the dimensions that really step through memory (size > 1, stride > 0), from the largest stride on.
    repeated: dimensions of size > 1 with stride 0.
    runs: the dimensions of `order`, neighbours merged where they are one evenly spaced run.
    """

    order: tuple[int, ...]
    repeated: tuple[int, ...]
    runs: tuple[Run, ...]

    @property
    def span(self) -> int:
        """Elements from the first to the last one of the view."""
        return 1 + sum((run.size - 1) * run.stride for run in self.runs)

    @property
    def dense(self) -> bool:
        """Whether the view fills its span."""
        return not self.runs or (len(self.runs) == 1 and self.runs[0].stride == 1)

    @property
    def divisible(self) -> bool:
        """Whether the view is a block of some contiguous tensor that starts with it."""
        return all(
            outer.stride % inner.stride == 0 and inner.size * inner.stride <= outer.stride
            for outer, inner in zip(self.runs, self.runs[1:], strict=False)
        )


def layout_of(sizes: Sequence[int], strides: Sequence[int]) -> Layout:
    moving = [d for d, n in enumerate(sizes) if n > 1 and strides[d] != 0]
    # Equal strides: the longer dimension first, so that the order is the same for every spelling of a view.
    order = sorted(moving, key=lambda d: (-strides[d], -sizes[d]))
    repeated = [d for d, n in enumerate(sizes) if n > 1 and strides[d] == 0]
    runs: list[Run] = []
    for d in order:
        if runs and runs[-1].stride == sizes[d] * strides[d]:
            runs[-1] = Run(runs[-1].size * sizes[d], strides[d])
        else:
            runs.append(Run(sizes[d], strides[d]))
    return Layout(tuple(order), tuple(repeated), tuple(runs))


def memory_permutation(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The order of dimensions in which a dense view's elements lie one behind the other; None if it is not dense."""
    layout = layout_of(sizes, strides)
    if not layout.dense or layout.repeated:
        return None
    if layout.order == tuple(sorted(layout.order)):
        return tuple(range(len(sizes)))
    return (*layout.order, *(d for d in range(len(sizes)) if d not in layout.order))


def read_view(
    b: Builder, window: Value, sizes: Sequence[int], strides: Sequence[int], delta: Value | None = None
) -> Value:
    """The view as a value of shape `sizes`. Strides are in elements and not negative."""
    if math.prod(sizes) == 0:
        return b.constant(0, window.dtype, sizes)
    layout = layout_of(sizes, strides)
    x = _read_runs(b, window, layout, delta)
    x = b.reshape(x, [sizes[d] for d in layout.order])
    kept = sorted(layout.order)
    x = b.transpose(x, [layout.order.index(d) for d in kept])
    if not layout.repeated:
        return b.reshape(x, sizes)
    return b.broadcast_in_dim(x, sizes, kept)


def write_view(
    b: Builder, window: Value, value: Value, sizes: Sequence[int], strides: Sequence[int], delta: Value | None = None
) -> Value:
    """The window with `value`, of shape `sizes`, written into the view; made to be updated in place.

    Where elements of the view share memory, which of them is written is undefined, as in PyTorch.
    """
    if math.prod(sizes) == 0:
        return window
    layout = layout_of(sizes, strides)
    flat = _in_order(b, value, layout)
    if layout.dense:
        if flat.shape == window.shape:
            return flat
        start = b.constant(0, torch.int64) if delta is None else delta
        return b.dynamic_update_slice(window, flat, [start])
    outer, inner = _split_rows(layout)
    starts = _starts(b, outer, delta)
    updates = b.reshape(flat, (*starts.shape, inner)) if inner > 1 else b.reshape(flat, starts.shape)
    if inner == 1:
        return b.scatter(window, starts, updates, lambda old, new: new, [], [0], [0], starts.ndim, True)
    return b.scatter(window, starts, updates, lambda old, new: new, [starts.ndim], [], [0], starts.ndim, True)


def to_memory_order(b: Builder, value: Value, strides: Sequence[int]) -> Value:
    """A dense result as the 1-D value that lies in memory when its strides are `strides`."""
    if value.numel == 0:
        return b.reshape(value, (0,))
    return _in_order(b, value, layout_of(value.shape, strides))


def _in_order(b: Builder, value: Value, layout: Layout) -> Value:
    """The elements of `value` in the order of their addresses, 1-D."""
    if layout.repeated:
        limits = [1 if d in layout.repeated else n for d, n in enumerate(value.shape)]
        value = b.slice(value, [0] * value.ndim, limits)
    still = [d for d in range(value.ndim) if d not in layout.order]
    value = b.transpose(value, [*layout.order, *still]) if layout.order != tuple(sorted(layout.order)) else value
    return b.reshape(value, (value.numel,))


def _read_runs(b: Builder, window: Value, layout: Layout, delta: Value | None) -> Value:
    """The view's elements in the order of their addresses, in any shape of that many elements."""
    runs, span = layout.runs, layout.span
    if not (layout.dense or layout.divisible):
        return _gather_runs(b, window, layout, delta)
    if delta is not None:
        # From here on the view begins the window, wherever it lay, even across the ends of rows.
        window = b.dynamic_slice(window, [delta], [span])
    if layout.dense:
        return b.slice_dim(window, 0, 0, span)
    whole = runs[0].size * runs[0].stride
    available = window.shape[0]
    window = b.slice_dim(window, 0, 0, whole) if available >= whole else b.pad(window, [0], [whole - available])
    inner_strides = [run.stride for run in runs[1:]] + [1]
    parent = [runs[0].size] + [run.stride // step for run, step in zip(runs, inner_strides, strict=True)]
    sizes = [run.size for run in runs] + [1]
    return b.slice(b.reshape(window, parent), [0] * len(parent), sizes)


def _split_rows(layout: Layout) -> tuple[list[Run], int]:
    """The runs that step from row to row, and the length of a contiguous row (1: single elements)."""
    runs = list(layout.runs)
    if runs[-1].stride == 1:
        return runs[:-1], runs[-1].size
    return runs, 1


def _starts(b: Builder, runs: Sequence[Run], delta: Value | None) -> Value:
    """Positions in the window where the rows begin, one dimension a run."""
    shape = [run.size for run in runs]
    dtype = torch.int64 if delta is None else delta.dtype
    total = b.constant(0, dtype, shape) if delta is None else b.broadcast_to(delta, shape)
    for d, run in enumerate(runs):
        total = b.add(total, b.multiply(b.iota(shape, d, dtype), run.stride))
    return total


def _gather_runs(b: Builder, window: Value, layout: Layout, delta: Value | None) -> Value:
    outer, inner = _split_rows(layout)
    starts = _starts(b, outer, delta)
    if inner == 1:
        return b.gather(window, starts, starts.shape, [], [0], [0], starts.ndim, [1])
    return b.gather(window, starts, (*starts.shape, inner), [starts.ndim], [], [0], starts.ndim, [inner])
