# SPDX-License-Identifier: Apache-2.0
"""Prints the XLA CPU PJRT plugins of this Python environment, separated by semicolons."""

import importlib.util
from pathlib import Path

PLUGINS = {
    "lammps_jax_pjrt_cpu": "pjrt_c_api_cpu_plugin.so",
    "fastatomstruct_xla_cpu": "libpjrt_cpu.so",
}


def find_plugins() -> list[str]:
    found = []
    for package, library in PLUGINS.items():
        spec = importlib.util.find_spec(package)
        for folder in spec.submodule_search_locations or [] if spec else []:
            path = Path(folder) / library
            if path.exists():
                found.append(str(path))
    return found


print(";".join(find_plugins()))
