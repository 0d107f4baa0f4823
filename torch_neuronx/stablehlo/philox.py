# SPDX-License-Identifier: Apache-2.0
"""The Philox 4x32-10 generator in elementwise operations.

Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011. XLA's CPU
compiler expands `rng_bit_generator` into code that is 6 to 60 times slower than this fused loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .builder import Builder, Value

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def words(b: Builder, x: Value) -> tuple[Value, Value]:
    """Low and high half of a 64-bit value."""
    x = b.convert(x, torch.uint64)
    return b.convert(x, torch.uint32), b.convert(b.shift_right_logical(x, 32), torch.uint32)


def philox(b: Builder, key: tuple[Value, Value], counter: Sequence[Value]) -> tuple[Value, ...]:
    """Four words of random bits for every element of the counter (four ui32 values)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        (low0, high0), (low1, high1) = (
            words(b, b.multiply(b.convert(word, torch.uint64), factor))
            for word, factor in zip((c0, c2), _MULTIPLIERS, strict=True)
        )
        c0, c1, c2, c3 = b.xor(b.xor(high1, c1), k0), low1, b.xor(b.xor(high0, c3), k1), low0
        k0, k1 = (b.add(k, step) for k, step in zip((k0, k1), _KEY_STEPS, strict=True))
    return c0, c1, c2, c3


def philox_pairs(b: Builder, seed: Value, offset: Value, stream: int, count: int) -> Value:
    """`count` ui64 values. The seed is the key; position, stream and offset are the counter."""
    counter = [b.iota((count,), 0, torch.uint32), b.constant(stream, torch.uint32), *words(b, offset)]
    low, high, _, _ = philox(b, words(b, seed), b.broadcast(*counter))
    return b.or_(b.convert(low, torch.uint64), b.shift_left(b.convert(high, torch.uint64), 32))
