# SPDX-License-Identifier: Apache-2.0
"""Operator families; importing this package fills the table."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
