# SPDX-License-Identifier: Apache-2.0
"""Fourier transforms."""

from __future__ import annotations

import pytest
import torch
from case import Case, check, parametrize, sample

aten = torch.ops.aten

REAL = (torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
OPTIONS = {"rtol": 1e-4, "atol": 1e-4, "strides": False, "layouts": (), "mutable": False}
TRANSFORMS = [
    ((3, 8), [1]),
    ((3, 7), [0]),
    ((4, 5, 6), [0, 2]),
    ((2, 3, 2, 3, 4), [0, 1, 2, 3, 4]),
    ((4, 6), [1, 0]),
    ((1,), [0]),
]

CASES = [
    case
    for index, (shape, dims) in enumerate(TRANSFORMS)
    for norm in (0, 1, 2)
    for flag in (True, False)
    for case in (
        Case(
            aten._fft_c2c.default,
            lambda d, s=shape, a=(dims, norm, flag): ((sample(*s, dtype=d), *a), {}),
            COMPLEX,
            f"{index}-{norm}-{flag}",
            **OPTIONS,
        ),
        Case(
            aten._fft_r2c.default,
            lambda d, s=shape, a=(dims, norm, flag): ((sample(*s, dtype=d), *a), {}),
            REAL,
            f"{index}-{norm}-{flag}",
            **OPTIONS,
        ),
    )
]


@parametrize(CASES)
def test_transforms(case, dtype, variant):
    check(case, dtype, variant)


@pytest.mark.parametrize("norm", ("backward", "ortho", "forward"))
@pytest.mark.parametrize("size", (7, 8))
def test_real_signals_come_back(size, norm):
    x = sample(3, size)
    spectrum = torch.fft.rfft(x.to("neuron"), norm=norm)
    torch.testing.assert_close(spectrum.cpu(), torch.fft.rfft(x, norm=norm))
    torch.testing.assert_close(torch.fft.irfft(spectrum, n=size, norm=norm).cpu(), x)
