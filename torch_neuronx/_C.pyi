# SPDX-License-Identifier: Apache-2.0
# The C++ extension; csrc/*/bindings.cc say what it holds.
from typing import Any

def __getattr__(name: str) -> Any: ...
