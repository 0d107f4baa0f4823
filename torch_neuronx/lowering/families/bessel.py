# SPDX-License-Identifier: Apache-2.0
"""Modified Bessel functions of the first kind."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...stablehlo import Builder, Value
from ..pointwise import arithmetic

aten = torch.ops.aten

# Chebyshev coefficients (the first one counts half), computed with 40 digits at 64 nodes:
# exp(-x) I0(x) for x in [0, 8], in the variable x / 4 - 1.
_I0_SMALL = (
    *(0.6767952744094761, -0.3046826723431984, 0.17162090152220877, -0.09490109704804764, 0.04930528423967071),
    *(-0.02373741480589947, 0.010546460394594998, -0.004324309995050576, 0.0016394756169413357, -0.0005763755745385824),
    *(0.00018850288509584165, -5.754195010082104e-05, 1.6448448070728896e-05, -4.4167383584587505e-06),
    *(1.1173875391201037e-06, -2.670793853940612e-07, 6.046995022541919e-08, -1.300025009986248e-08),
    *(2.6598237246823866e-09, -5.189795601635263e-10, 9.675809035373237e-11, -1.726826291441556e-11),
    *(2.95505266312964e-12, -4.856446783111929e-13, 7.676185498604936e-14, -1.1685332877993451e-14),
    *(1.715391285555133e-15, -2.431279846547955e-16, 3.3307945188222384e-17),
)
# sqrt(x) exp(-x) I0(x) for x > 8, in the variable 16 / x - 1.
_I0_LARGE = (
    *(0.8044904110141088, 0.0033691164782556943, 6.889758346916825e-05, 2.8913705208347567e-06, 2.0489185894690638e-07),
    *(2.266668990498178e-08, 3.3962320257083865e-09, 4.94060238822497e-10, 1.1889147107846439e-11),
    *(-3.1499165279632416e-11, -1.3215811840447713e-11, -1.7941785315068062e-12, 7.180124451383666e-13),
    *(3.8527783827421426e-13, 1.54008621752141e-14, -4.150569347287222e-14, -9.554846698828307e-15),
    *(3.8116806693526224e-15, 1.7725601330565263e-15, -3.425485619677219e-16, -2.8276239805165836e-16),
)


def _chebyshev(b: Builder, u: Value, coefficients: Sequence[float]) -> Value:
    """Clenshaw's recurrence; coefficients too small for the dtype are left out."""
    used = [c for c in coefficients if abs(c) > torch.finfo(u.dtype).eps / 8]
    twice = b.multiply(u, 2.0)
    last = before = b.constant(0, u.dtype)
    for c in reversed(used[1:]):
        last, before = b.add(b.subtract(b.multiply(twice, last), before), c), last
    return b.add(b.subtract(b.multiply(u, last), before), used[0] / 2)


def _scaled_i0(b: Builder, x: Value) -> Value:
    """exp(-|x|) I0(x)."""
    x = b.abs(x)
    small = _chebyshev(b, b.subtract(b.multiply(x, 0.25), 1.0), _I0_SMALL)
    large = _chebyshev(b, b.subtract(b.divide(b.constant(16, x.dtype), x), 1.0), _I0_LARGE)
    return b.select(b.compare(x, 8, "LE"), small, b.multiply(large, b.rsqrt(x)))


arithmetic(aten.special_i0e.default)(_scaled_i0)
arithmetic(aten.special_i1e.default)(lambda b, x: b.bessel_i1e(x))


@arithmetic(aten.i0.default, aten.special_modified_bessel_i0.default)
def _i0(b: Builder, x: Value) -> Value:
    return b.multiply(_scaled_i0(b, x), b.exponential(b.abs(x)))


@arithmetic(aten.special_i1.default, aten.special_modified_bessel_i1.default)
def _i1(b: Builder, x: Value) -> Value:
    return b.multiply(b.bessel_i1e(x), b.exponential(b.abs(x)))
