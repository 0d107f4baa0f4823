# SPDX-License-Identifier: Apache-2.0
"""Tables of measurements, as CSV files of this rank."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from typing import Any

from .. import environment, metrics
from ..compiler.directory import UntrustedError, open_trusted
from ..log import OncePer, logger

_log = logger(__name__)
_failed = OncePer()


def append(table: str, row: Mapping[str, Any]) -> None:
    """Appends a row, if the table is enabled. The columns are those of the first row."""
    chosen = environment.get("TORCH_NEURONX_ENABLED_METRIC_TABLES")
    if not (table in chosen or (not chosen and metrics.is_enabled())):
        return
    directory = environment.get("TORCH_NEURONX_METRICS_DIR")
    path = os.path.join(directory, f"metric_table_{table}_rank{environment.rank()}.csv")
    try:
        os.makedirs(directory, exist_ok=True)
        descriptor = open_trusted(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            text = io.StringIO()
            writer = csv.writer(text, lineterminator="\n")
            if os.fstat(descriptor).st_size == 0:
                writer.writerow(row.keys())
            writer.writerow(row.values())
            os.write(descriptor, text.getvalue().encode())
        finally:
            os.close(descriptor)
    except (OSError, UntrustedError) as error:
        if _failed.first(path):
            _log.warning("the metric table %s cannot be written: %s", path, error)
