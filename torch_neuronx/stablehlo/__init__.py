# SPDX-License-Identifier: Apache-2.0
"""A small StableHLO builder and printer: text only, no MLIR dependency."""

from .builder import Builder, Value
from .program import Program, TensorSpec
from .types import element_type, literal, tensor_type

__all__ = ["Builder", "Program", "TensorSpec", "Value", "element_type", "literal", "tensor_type"]
