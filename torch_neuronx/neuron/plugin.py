# SPDX-License-Identifier: Apache-2.0
"""Finds the XLA CPU plugin that the software NeuronCore runs on."""

from __future__ import annotations

import importlib.util
import os

# Packages that carry one, the preferred first.
_PACKAGES = (
    ("lammps_jax_pjrt_cpu", "pjrt_c_api_cpu_plugin.so"),
    ("fastatomstruct_xla_cpu", "libpjrt_cpu.so"),
)


def find_pjrt_plugin() -> str | None:
    """Path of an installed plugin, or None. Imports none of the packages."""
    for package, file in _PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            path = os.path.join(folder, file)
            if os.path.isfile(path):
                return path
    return None
