# SPDX-License-Identifier: Apache-2.0
"""Maximum and average pooling over windows and adaptive ones, with gradients."""

from __future__ import annotations

import math

import pytest
import torch
from case import FLOATS, Case, check, parametrize, sample

aten = torch.ops.aten

FULL, HALF = FLOATS[:2], FLOATS[2:]


def image(dtype: torch.dtype, rank: int = 2, batch: tuple = (2, 3)) -> torch.Tensor:
    return sample(*batch, *(9, 8, 7)[:rank], dtype=dtype)


def ties(dtype: torch.dtype, rank: int = 2) -> torch.Tensor:
    """Whole numbers with many equal ones, infinities and NaN; a window of nothing but -inf."""
    x = image(dtype, rank).round()
    flat = x.view(-1)
    flat[40:70] = -math.inf
    flat[[5, 9]] = math.nan
    flat[100] = math.inf
    return x


def on(op, make, *args, dtypes=FULL, id="", **options) -> Case:
    # The variants come once, with the last windows of a kind.
    options = {
        "layouts": (),
        "mutable": not id or "cut" in id,
        **({"rtol": 2e-2, "atol": 1e-2} if dtypes[0] in HALF else {}),
        **options,
    }
    return Case(op, lambda dtype: ((make(dtype), *args), {}), dtypes, id, **options)


# kernel, stride, padding, dilation, ceil_mode
MAXIMUM = {
    "tiles": ([2, 2], [], [0], [1], False),
    "overlapping": ([3, 3], [2], [1], [1], False),
    "rectangle-ceil": ([3, 2], [2, 3], [1, 0], [1], True),
    "dilated": ([3, 3], [1], [1], [2], False),
    "gaps-ceil": ([2, 2], [3], [1], [1], True),
}
# kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
AVERAGE = {
    "tiles": ([2, 2], [], [0], False, True, None),
    "overlapping": ([3, 3], [2], [1], False, True, None),
    "without-padding": ([3, 3], [2], [1], True, False, None),
    "divisor": ([3, 2], [2, 3], [1, 0], True, True, 5),
    "gaps-ceil": ([2, 2], [3], [1], True, False, None),
    "tiles-cut": ([2, 2], [2], [1], False, False, None),
}
ADAPTIVE = {"one": (1, 1), "divides": (3, 4), "uneven": (4, 3), "wider": (12, 11), "identity": (9, 8)}

CASES = [
    *(on(aten.max_pool2d_with_indices.default, ties, *a, dtypes=FLOATS, id=n) for n, a in MAXIMUM.items()),
    *(on(aten.max_pool2d.default, ties, *a, id=n) for n, a in MAXIMUM.items()),
    on(aten.max_pool2d_with_indices.default, image, *MAXIMUM["tiles"], id="views", layouts=("transposed", "sliced")),
    on(aten.max_pool2d_with_indices.default, lambda d: sample(3, 6, 6, dtype=d), [3, 3], dtypes=(torch.int64,)),
    on(aten.max_pool3d_with_indices.default, lambda d: ties(d, 3), [3, 2, 2], [2, 1, 2], [1, 0, 1], [1], True),
    on(aten.max_pool1d.default, lambda d: image(d, 1), [3], [2], [1]),
    *(on(aten.avg_pool2d.default, image, *a, id=n) for n, a in AVERAGE.items()),
    on(aten.avg_pool2d.default, image, *AVERAGE["overlapping"], dtypes=HALF, id="half", layouts=("transposed",)),
    on(aten.avg_pool3d.default, lambda d: image(d, 3), [3, 2, 2], [2, 1, 2], [1, 0, 1], True, False, None),
    on(aten.avg_pool1d.default, lambda d: image(d, 1), [3], [2], [1]),
    *(on(aten._adaptive_avg_pool2d.default, image, size, id=n) for n, size in ADAPTIVE.items()),
    on(aten._adaptive_avg_pool2d.default, image, (4, 3), dtypes=HALF, id="half"),
    on(aten._adaptive_avg_pool3d.default, lambda d: image(d, 3), (2, 8, 3)),
    on(aten.adaptive_avg_pool1d.default, lambda d: image(d, 1), [4]),
    *(on(aten.adaptive_max_pool2d.default, ties, list(size), id=n) for n, size in ADAPTIVE.items()),
    on(aten.adaptive_max_pool3d.default, lambda d: image(d, 3), [2, 8, 3], mutable=False),
]


@parametrize(CASES)
def test_pooling(case, dtype, variant):
    # The CPU's results of 3-D pooling over channels-last memory differ in layout only.
    check(case._replace(strides=False), dtype, variant)


FUNCTIONS = {
    **{f"max-{n}": (2, lambda x, a=a: torch.max_pool2d(x, *a)) for n, a in MAXIMUM.items()},
    **{f"avg-{n}": (2, lambda x, a=a: torch.nn.functional.avg_pool2d(x, *a)) for n, a in AVERAGE.items()},
    **{f"adaptive-avg-{n}": (2, lambda x, s=s: aten._adaptive_avg_pool2d(x, s)) for n, s in ADAPTIVE.items()},
    **{f"adaptive-max-{n}": (2, lambda x, s=s: aten.adaptive_max_pool2d(x, s)[0]) for n, s in ADAPTIVE.items()},
    "max-1d": (1, lambda x: torch.max_pool1d(x, 3, 2, 1)),
    "max-3d": (3, lambda x: torch.max_pool3d(x, 3, 2, 1)),
    "avg-1d": (1, lambda x: torch.nn.functional.avg_pool1d(x, 3, 2, 1)),
    "avg-3d": (3, lambda x: torch.nn.functional.avg_pool3d(x, 3, 2, 1)),
    "adaptive-avg-3d": (3, lambda x: torch.nn.functional.adaptive_avg_pool3d(x, (2, 8, 3))),
    "adaptive-max-1d": (1, lambda x: torch.nn.functional.adaptive_max_pool1d(x, 4)),
}


@pytest.mark.parametrize(
    "batch, dtype", (((2, 3), torch.float32), ((3,), torch.bfloat16)), ids=("batch-float32", "no-batch-bfloat16")
)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name, batch, dtype):
    """Against the CPU in float32, where the gradients of half types are sums of rounded ones."""
    rank, function = FUNCTIONS[name]
    x = image(dtype, rank, batch)
    leaf = x.float().clone().requires_grad_()
    expected = function(leaf)
    grad = sample(*expected.shape, dtype=dtype, seed=1)
    expected.backward(grad.float())
    device_leaf = x.to("neuron", copy=True).requires_grad_()
    function(device_leaf).backward(grad.to("neuron"))
    close = {} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(device_leaf.grad.cpu(), leaf.grad.to(dtype), **close)
