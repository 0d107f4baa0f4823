# SPDX-License-Identifier: Apache-2.0
"""neuron-ls: the Neuron devices of this machine, as a table or as JSON.

On a machine with Neuron devices this hands over to the vendor's tool. The software machine is
shown in the same form: as many devices as its cores fill.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

VENDOR_TOOL = "/opt/aws/neuron/bin/neuron-ls"

PHYSICAL_CORES_PER_DEVICE = 8
CORE_LIBRARY = "libneuroncore.so"


def devices(core_count: int, logical_core_size: int, core_memory: int) -> list[dict[str, Any]]:
    """The devices that `core_count` logical cores make, with the fields of the vendor's JSON.

    core_memory: bytes of one logical core.
    """
    per_device = max(1, PHYSICAL_CORES_PER_DEVICE // logical_core_size)
    starts = range(0, core_count, per_device)
    processes = core_processes()
    return [
        {
            "neuron_device": index,
            "bdf": f"software:{index}",
            "cpu_affinity": _ranges(os.sched_getaffinity(0)),
            "numa_node": "0",
            "connected_to": [other for other in range(len(starts)) if other != index],
            "nc_count": len(cores),
            "logical_neuroncore_config": logical_core_size,
            "memory_size": core_memory * len(cores),
            "neuroncore_ids": list(cores),
            "neuron_processes": [p for p in processes if not p["cores"] or set(p["cores"]) & set(cores)],
        }
        for index, start in enumerate(starts)
        for cores in [range(start, min(start + per_device, core_count))]
    ]


def core_processes() -> list[dict[str, Any]]:
    """Processes of this user that have the software NeuronCore loaded.

    cores: those that NEURON_RT_VISIBLE_CORES gave it; empty for all.
    """
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry.name}/maps", encoding="utf-8", errors="replace") as file:
                if CORE_LIBRARY not in file.read():
                    continue
            with open(f"/proc/{entry.name}/cmdline", encoding="utf-8", errors="replace") as file:
                command = file.read().replace("\0", " ").strip()
            with open(f"/proc/{entry.name}/environ", encoding="utf-8", errors="replace") as file:
                variables = dict(item.split("=", 1) for item in file.read().split("\0") if "=" in item)
        except (PermissionError, FileNotFoundError, ProcessLookupError):
            continue
        found.append(
            {
                "pid": int(entry.name),
                "command": command,
                "neuron_runtime_version": "software",
                "cores": _cores(variables.get("NEURON_RT_VISIBLE_CORES", "")),
            }
        )
    return found


def _cores(text: str) -> list[int]:
    """ "0-3" and "4,5": the ids meant; empty for nonsense, which the runtime refuses."""
    try:
        cores: list[int] = []
        for part in filter(None, text.split(",")):
            first, _, last = part.partition("-")
            cores.extend(range(int(first), int(last or first) + 1))
        return cores
    except ValueError:
        return []


def _ranges(numbers: set[int]) -> str:
    """{0, 1, 2, 5} as "0-2,5"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _bytes(count: int) -> str:
    return f"{count / 2**30:.0f} GB"


def format_table(rows: list[list[str]]) -> str:
    """Rows of text, the first of them the header, with borders."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    line = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    text = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return "\n".join([line, text[0], line, *text[1:], line])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="neuron-ls", description="Lists the Neuron devices of this machine.")
    parser.add_argument("-j", "--json-output", action="store_true", help="JSON instead of a table")
    parser.add_argument("-a", "--show-all-procs", action="store_true", help="also the processes that use each device")
    parser.add_argument("-w", "--wide", action="store_true", help="do not shorten commands")
    parser.add_argument("-t", "--topology", action="store_true", help="also which devices are connected")
    options = parser.parse_args(arguments)

    from .. import _C, environment, utils

    if _C.device_count() == 0:
        print(_C.unavailable_reason() or "There are no Neuron devices.", file=sys.stderr)
        return 1
    if not _C.runtime_is_software() and os.access(VENDOR_TOOL, os.X_OK):
        os.execv(VENDOR_TOOL, [VENDOR_TOOL, *(sys.argv[1:] if arguments is None else arguments)])

    _, core_memory = _C.memory_info(0)
    size = utils.get_logical_neuron_cores()
    found = devices(environment.get("TORCH_NEURONX_SOFTWARE_CORES"), size, core_memory)
    if options.json_output:
        for device in found:
            device["neuron_processes"] = [
                {name: value for name, value in process.items() if name != "cores"}
                for process in device["neuron_processes"]
            ]
        print(json.dumps(found, indent=4))
        return 0

    print(f"instance-type: software ({utils.get_platform_target()})")
    print(f"instance-id: {os.uname().nodename}")
    print(f"logical-neuroncore-config: {size}")
    rows = [["NEURON DEVICE", "NEURON CORES", "NEURON CORE IDS", "NEURON MEMORY", "CPU AFFINITY"]]
    rows[0] += ["CONNECTED DEVICES"] if options.topology else []
    rows[0] += ["PID", "COMMAND"] if options.show_all_procs else []
    for device in found:
        row = [
            str(device["neuron_device"]),
            str(device["nc_count"]),
            _ranges(set(device["neuroncore_ids"])),
            _bytes(device["memory_size"]),
            device["cpu_affinity"],
        ]
        row += [", ".join(map(str, device["connected_to"]))] if options.topology else []
        if not options.show_all_procs:
            rows.append(row)
            continue
        for process in device["neuron_processes"] or [{"pid": "", "command": ""}]:
            command = process["command"]
            rows.append(
                [*row, str(process["pid"]), command if options.wide or len(command) <= 40 else command[:39] + "…"]
            )
            row = [""] * len(row)
    print(format_table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
