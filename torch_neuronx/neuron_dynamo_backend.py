# SPDX-License-Identifier: Apache-2.0
"""Helpers around torch.compile(backend="neuron")."""

from __future__ import annotations

from .dynamo.errors import NEFFCompilationError, NEFFExecutionError
from .dynamo.statistics import get_dynamo_metrics, get_model_name, reset_dynamo_metrics, set_model_name

__all__ = [
    "NEFFCompilationError",
    "NEFFExecutionError",
    "get_dynamo_metrics",
    "get_model_name",
    "reset_dynamo_metrics",
    "set_model_name",
]
