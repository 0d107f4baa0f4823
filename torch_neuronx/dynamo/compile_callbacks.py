# SPDX-License-Identifier: Apache-2.0
"""What surrounds a compile, Dynamo's own part included: that takes longer than the backend's.

Dynamo calls back when it begins and when it ends, whatever the backend and however it ends.
"""

from __future__ import annotations

from torch._dynamo.callback import CallbackArgs, callback_handler

from .. import _C
from . import collection
from .function_names import function_names

_paused_collection = False
_keeps_frame_memory = False


def ask_for_callbacks() -> None:
    """Of Dynamo; again, after `torch._dynamo.reset` has dropped them."""
    if _compile_starts not in callback_handler.start_callbacks:
        callback_handler.register_start_callback(_compile_starts)
    if _compile_ends not in callback_handler.end_callbacks:
        callback_handler.register_end_callback(_compile_ends)


def _compile_starts(_: CallbackArgs) -> None:
    global _paused_collection, _keeps_frame_memory
    _paused_collection = collection.pause()
    _keeps_frame_memory = _C.keep_frame_memory()
    function_names().recall()


def _compile_ends(_: CallbackArgs) -> None:
    global _paused_collection, _keeps_frame_memory
    if _keeps_frame_memory:
        _keeps_frame_memory = False
        _C.free_frame_memory()
    if _paused_collection:
        _paused_collection = False
        collection.resume()
    function_names().remember()
