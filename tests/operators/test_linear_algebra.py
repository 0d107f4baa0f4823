# SPDX-License-Identifier: Apache-2.0
"""Distances, Cholesky factors and triangular systems."""

from __future__ import annotations

import math

import pytest
import torch
from case import Case, check, parametrize, sample

aten = torch.ops.aten

DTYPES = (torch.float32, torch.float64)
CLOSE = {"rtol": 1e-4, "atol": 1e-4, "strides": False, "layouts": ()}
ORDERS = (2.0, 1.0, 0.0, math.inf, 3.0, 0.5)


def distances(x, y, p: float, mode: int | None, dtypes=DTYPES) -> Case:
    label = f"{'x'.join(map(str, x))}-{p}-{mode}"
    make = lambda d: ((sample(*x, dtype=d), sample(*y, dtype=d, seed=1), p, mode), {})  # noqa: E731
    return Case(aten._cdist_forward.default, make, dtypes, label, mutable=False, **CLOSE)


def distances_backward(p: float) -> Case:
    def make(dtype):
        x, y = sample(2, 3, 4, dtype=dtype), sample(2, 5, 4, dtype=dtype, seed=1)
        y[:, 0] = x[:, 0]
        distance = aten._cdist_forward.default(x, y, p, 2)
        return (sample(2, 3, 5, dtype=dtype, seed=2), x, y, p, distance), {}

    return Case(aten._cdist_backward.default, make, DTYPES, str(p), mutable=False, **CLOSE)


def pairs(n: int, p: float) -> Case:
    return Case(
        aten._pdist_forward.default,
        lambda d: ((sample(n, 5, dtype=d), p), {}),
        DTYPES,
        f"{n}-{p}",
        mutable=False,
        **CLOSE,
    )


def pairs_backward(p: float) -> Case:
    def make(dtype):
        x = sample(6, 5, dtype=dtype)
        return (sample(15, dtype=dtype, seed=1), x, p, aten._pdist_forward.default(x, p)), {}

    return Case(aten._pdist_backward.default, make, DTYPES, str(p), mutable=False, **CLOSE)


DISTANCES = [
    *(distances((2, 3, 4), (2, 5, 4), p, None) for p in ORDERS),
    *(distances((30, 4), (5, 4), 2.0, mode) for mode in (None, 1, 2)),
    distances((0, 4), (3, 4), 2.0, None),
    distances((3, 0), (2, 0), 2.0, None),
    *(distances_backward(p) for p in ORDERS[:-1]),
    *(pairs(n, 2.0) for n in (1, 2, 7, 100)),
    *(pairs(7, p) for p in ORDERS[1:-1]),
    *(pairs_backward(p) for p in ORDERS[:-1]),
    Case(
        aten._euclidean_dist.default,
        lambda d: ((sample(2, 3, 4, dtype=d), sample(2, 6, 4, dtype=d, seed=1)), {}),
        DTYPES,
        mutable=False,
        **CLOSE,
    ),
]


@parametrize(DISTANCES)
def test_distances(case, dtype, variant):
    check(case, dtype, variant)


def positive_definite(shape, dtype) -> torch.Tensor:
    x = sample(*shape, dtype=dtype)
    return x @ x.mT.conj() + 2 * torch.eye(shape[-1], dtype=dtype)


def factor(shape, dtype, upper: bool) -> torch.Tensor:
    return torch.linalg.cholesky(positive_definite(shape, dtype), upper=upper)


SQUARE = (2, 5, 5)
WITH_COMPLEX = (*DTYPES, torch.complex64)
SYSTEMS = [
    case
    for upper in (False, True)
    for case in (
        Case(
            aten.linalg_cholesky_ex.default,
            lambda d, u=upper: ((positive_definite(SQUARE, d),), {"upper": u}),
            WITH_COMPLEX,
            f"{upper}",
            **CLOSE,
        ),
        Case(
            aten.cholesky_solve.default,
            lambda d, u=upper: ((sample(2, 5, 3, dtype=d), factor(SQUARE, d, u), u), {}),
            WITH_COMPLEX,
            f"{upper}",
            **CLOSE,
        ),
        Case(
            aten.cholesky_inverse.default,
            lambda d, u=upper: ((factor(SQUARE, d, u), u), {}),
            DTYPES,
            f"{upper}",
            **CLOSE,
        ),
        *(
            Case(
                aten.linalg_solve_triangular.default,
                lambda d, u=upper, s=shape, f=flags: ((factor(SQUARE, d, u), sample(*s, dtype=d)), {"upper": u, **f}),
                DTYPES,
                f"{upper}-{'-'.join(flags)}",
                **CLOSE,
            )
            for shape, flags in (((2, 5, 3), {}), ((2, 3, 5), {"left": False}), ((5, 3), {"unitriangular": True}))
        ),
        *(
            Case(
                aten.triangular_solve.default,
                lambda d, u=upper, t=transpose: ((sample(2, 5, 3, dtype=d), factor(SQUARE, d, u), u, t), {}),
                DTYPES,
                f"{upper}-{transpose}",
                mutable=False,
                **CLOSE,
            )
            for transpose in (False, True)
        ),
    )
]


@parametrize(SYSTEMS)
def test_triangular_systems(case, dtype, variant):
    check(case, dtype, variant)


def test_a_matrix_that_is_not_positive_definite():
    x = torch.diag(torch.tensor([1.0, 1.0, -1.0])).to("neuron")
    assert torch.linalg.cholesky_ex(x).info.item() > 0
    with pytest.raises(torch.linalg.LinAlgError):
        torch.linalg.cholesky(x)
