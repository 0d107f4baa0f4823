# SPDX-License-Identifier: Apache-2.0
"""Python's cyclic garbage collection, paused while a graph is made.

A trace makes many objects that stay, and each full collection goes through everything that PyTorch has imported.
Dynamo's own part of a compile is as long as the backend's: its callbacks tell when one begins and ends.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from torch._dynamo.callback import CallbackArgs, callback_handler

_paused_for_dynamo = False
_uncollected = 0  # objects made in pauses since the last full collection after one


def pause_during_compiles() -> None:
    """Asks Dynamo for its callbacks; again, after `torch._dynamo.reset` has dropped them."""
    if _compile_starts not in callback_handler.start_callbacks:
        callback_handler.register_start_callback(_compile_starts)
    if _compile_ends not in callback_handler.end_callbacks:
        callback_handler.register_end_callback(_compile_ends)


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    mine = _pause()
    try:
        yield
    finally:
        if mine:
            _resume()


def _compile_starts(_: CallbackArgs) -> None:
    global _paused_for_dynamo
    _paused_for_dynamo = _pause()


def _compile_ends(_: CallbackArgs) -> None:
    global _paused_for_dynamo
    if _paused_for_dynamo:
        _paused_for_dynamo = False
        _resume()


def _pause() -> bool:
    """Whether there was something to pause."""
    if not gc.isenabled():
        return False
    gc.disable()
    return True


def _resume() -> None:
    """Lets the new objects pass for old ones, which spares a collection of them all right now. It is due when as
    many have been made in pauses as there are."""
    global _uncollected
    if gc.get_freeze_count() == 0:  # else the program has frozen objects of its own
        _uncollected += gc.get_count()[0]
        gc.freeze()
        total = gc.get_freeze_count()
        gc.unfreeze()
        if _uncollected > total:
            _uncollected = 0
            gc.collect()
    gc.enable()
