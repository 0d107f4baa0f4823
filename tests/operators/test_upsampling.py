# SPDX-License-Identifier: Apache-2.0
"""Resampling: nearest, linear, cubic, antialiased; gradients; what nearest by a whole factor compiles to."""

from __future__ import annotations

import pytest
import torch
from case import FLOATS, Case, check, parametrize, sample
from torch.nn.functional import interpolate

from torch_neuronx.lowering import load_rules, lower
from torch_neuronx.stablehlo import Builder

aten = torch.ops.aten

FULL, HALF = FLOATS[:2], FLOATS[2:3]
SIZE = (5, 6, 4)
# Output sizes and scale factors.
SIZES = {
    "twice": ((10, 12, 8), (None, None, None)),
    "factor": ((15, 18, 12), (3.0, 3.0, 3.0)),
    "fraction": ((7, 9, 6), (1.5, 1.5, 1.6)),
    "smaller": ((3, 3, 2), (None, None, None)),
    "uneven": ((13, 17, 9), (None, None, None)),
}
LINEAR = {1: "upsample_linear1d", 2: "upsample_bilinear2d", 3: "upsample_trilinear3d"}


def names(rank: int) -> list[tuple[str, tuple]]:
    """Overload packets and the arguments between output size and scale factors."""
    nearest = [(f"upsample_nearest{rank}d", ()), (f"_upsample_nearest_exact{rank}d", ())]
    linear = [(LINEAR[rank], (corners,)) for corners in (False, True)]
    planar = ("upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa") if rank == 2 else ()
    return nearest + linear + [(name, (corners,)) for name in planar for corners in (False, True)]


def cases():
    for rank in (1, 2, 3):
        for name, middle in names(rank):
            for id, (size, scales) in SIZES.items():
                options = (list(size[:rank]), *middle, *scales[:rank])
                dtypes = FULL if id == "uneven" else FULL[:1]
                close = {"rtol": 1e-5, "atol": 1e-5, "layouts": (), "mutable": False, "strides": False}
                label = f"{id}-{middle[0]}" if middle else id

                def forward(dtype, options=options, rank=rank):
                    return (sample(2, 3, *SIZE[:rank], dtype=dtype), *options), {}

                def backward(dtype, options=options, rank=rank):
                    grad = sample(2, 3, *options[0], dtype=dtype)
                    return (grad, options[0], [2, 3, *SIZE[:rank]], *options[1:]), {}

                yield Case(getattr(aten, name).default, forward, dtypes, label, **close)
                yield Case(getattr(aten, name + "_backward").default, backward, FULL[:1], label, **close)


def half(name, *options) -> Case:
    def make(dtype):
        return (sample(2, 3, 5, 6, dtype=dtype), [7, 13], *options, None, None), {}

    return Case(getattr(aten, name).default, make, HALF, "half", mutable=False, strides=False, rtol=2e-2, atol=2e-2)


def views(name, *options) -> Case:
    def make(dtype):
        return (sample(2, 3, 5, 6, dtype=dtype), [10, 12], *options, None, None), {}

    return Case(getattr(aten, name).default, make, id="views", strides=False, rtol=1e-5, atol=1e-5)


def bytes_case(name, *options) -> Case:
    def make(dtype):
        return (sample(1, 3, 9, 9, dtype=dtype, low=0, high=255), [5, 18], *options, None, None), {}

    return Case(getattr(aten, name).default, make, (torch.uint8,), "bytes", (), (), False, False, rtol=0, atol=1)


CASES = [
    *cases(),
    half("upsample_nearest2d"),
    half("upsample_bilinear2d", False),
    views("upsample_nearest2d"),
    views("upsample_bilinear2d", False),
    bytes_case("upsample_nearest2d"),
    bytes_case("upsample_bilinear2d", False),
    bytes_case("upsample_bicubic2d", False),
]


@parametrize(CASES)
def test_upsampling(case, dtype, variant):
    check(case, dtype, variant)


@pytest.mark.parametrize("mode", ("nearest", "nearest-exact", "bilinear", "bicubic", "area"))
@pytest.mark.parametrize("options", ({"scale_factor": 2}, {"scale_factor": 1.7}, {"size": (4, 9)}))
def test_interpolate(mode, options):
    x = sample(1, 2, 6, 7)
    actual = interpolate(x.to("neuron"), mode=mode, **options)
    torch.testing.assert_close(actual.cpu(), interpolate(x, mode=mode, **options), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", ([16, 24], [4, 4]), ids=("whole factor", "every other"))
def test_nearest_needs_no_gather(size):
    """A repetition is a broadcast, every n-th element a strided slice."""
    load_rules()
    b = Builder()
    x = b.input((1, 4, 8, 8), torch.float32)
    out = torch.empty(1, 4, *size, device="meta")
    values = lower(b, aten.upsample_nearest2d.default, (x, size), {}, (out,))
    assert "gather" not in b.finish(list(values)).text
