# SPDX-License-Identifier: Apache-2.0
"""Writes the documents that are made from tables of the package: operators.md and environment.md."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from torch_neuronx import environment
from torch_neuronx.lowering import TABLE, load_rules

DIRECTORY = Path(__file__).parent


def operators() -> str:
    """The lowering table, one section a family."""
    load_rules()
    families: dict[str, list[str]] = defaultdict(list)
    for overload, rule in sorted(TABLE.items(), key=lambda item: item[0].name()):
        notes = []
        if rule.static:
            notes.append(f"compiled anew for each value of {', '.join(f'`{name}`' for name in sorted(rule.static))}")
        if rule.whole:
            notes.append("one program in inference; PyTorch's decomposition under autograd")
        family = rule.function.__module__.rpartition(".")[2]
        families[family].append(f"| `{overload.name()}` | {'; '.join(notes)} |")
    sections = []
    for family, rows in sorted(families.items()):
        title = family.replace("_", " ").capitalize()
        sections.append("\n".join([f"## {title}", "", "| operator | remark |", "| --- | --- |", *rows, ""]))
    return (
        "# Operators\n\n"
        "Written by `make docs` from the lowering table. Listed are functional overloads; their in-place and `out=`\n"
        "variants are derived from the schemas. Operators that PyTorch decomposes into these need no row. What is in\n"
        "neither set, or has results whose size depends on data, runs on the CPU, with a warning the first time;\n"
        "`torch_neuronx.get_fallback_ops()` lists it.\n\n"
        f"{len(TABLE)} operators have a lowering.\n\n" + "\n".join(sections)
    )


def variables() -> str:
    """The environment variables."""
    return (
        "# Environment variables\n\n"
        "Written by `make docs` from `torch_neuronx/environment.py`.\n\n" + environment.table()
    )


def documents() -> dict[str, str]:
    """File name in docs/ to text."""
    return {"operators.md": operators(), "environment.md": variables()}


def main() -> None:
    for name, text in documents().items():
        (DIRECTORY / name).write_text(text)
        print(f"wrote docs/{name}")


if __name__ == "__main__":
    main()
