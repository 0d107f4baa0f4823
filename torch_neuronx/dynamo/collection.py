# SPDX-License-Identifier: Apache-2.0
"""Python's cyclic garbage collection, paused while a graph is made.

A trace makes many objects that stay, and each full collection goes through everything that PyTorch has imported.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_uncollected = 0  # objects made in pauses since the last full collection after one
_due = 1_000_000  # of them: what is made in a few pauses, then the number of all objects at the last count


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    mine = pause()
    try:
        yield
    finally:
        if mine:
            resume()


def pause() -> bool:
    """Whether there was something to pause."""
    if not gc.isenabled():
        return False
    gc.disable()
    return True


def resume() -> None:
    """Lets the new objects pass for old ones, which spares a collection of them all right now. It is due when as
    many have been made in pauses as there are; to count those takes a walk through them, too."""
    global _uncollected, _due
    if gc.get_freeze_count() == 0:  # else the program has frozen objects of its own
        _uncollected += gc.get_count()[0]
        gc.freeze()
        if _uncollected > _due:
            _due = gc.get_freeze_count()
        gc.unfreeze()
        if _uncollected > _due:
            _uncollected = 0
            gc.collect()
    gc.enable()
