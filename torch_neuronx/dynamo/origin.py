# SPDX-License-Identifier: Apache-2.0
"""Where a graph comes from: the function that Dynamo compiles, and its inputs by the names that the function uses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..stablehlo.program import TensorSpec
from .static_shapes import input_name


class Origin(NamedTuple):
    """function: qualified name; empty when Dynamo compiles nothing. line: "file.py:12", where it begins.
    inputs: of Dynamo's graph, in order: the Python expression and what it was."""

    function: str = ""
    line: str = ""
    inputs: tuple[tuple[str, str], ...] = ()


def origin_of(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Origin:
    """gm, inputs: what Dynamo hands to a backend."""
    nodes = gm.graph.find_nodes(op="placeholder")
    described = tuple((input_name(node), describe(value)) for node, value in zip(nodes, inputs, strict=False))
    from torch._dynamo import symbolic_convert

    translator = getattr(symbolic_convert.tls, "current_tx", None)
    if translator is None:
        return Origin(inputs=described)
    code = translator.output.root_tx.f_code
    name = getattr(code, "co_qualname", code.co_name)  # Python 3.10 has no qualified name
    return Origin(name.replace("<locals>.", ""), f"{code.co_filename}:{code.co_firstlineno}", described)


def with_attributes(origin: Origin, attributes: dict[str, torch.Tensor]) -> Origin:
    """Of a graph that takes these tensors behind its inputs."""
    described = tuple((name, describe(tensor)) for name, tensor in attributes.items())
    return origin._replace(inputs=origin.inputs + described)


def describe(value: Any) -> str:
    """ "float32[3, 4]", with the strides of what is not contiguous."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    text = str(TensorSpec(tuple(value.shape), value.dtype))
    if not value.is_contiguous():
        text += f" with strides {list(value.stride())}"
    if value.device.type != "neuron":
        text += f" on {value.device.type}"
    return text + (" requiring gradients" if value.requires_grad else "")


def argument_names(placeholders: Sequence[torch.fx.Node], origin: Origin) -> list[str]:
    """Names of the inputs of AOTAutograd's graph: the function's own expressions where they are known.

    AOTAutograd calls Dynamo's inputs arg0_1, arg1_1 … or primals_1, primals_2 …
    """
    names = []
    for node in placeholders:
        match = re.fullmatch(r"arg(\d+)_1|primals_(\d+)", node.name)
        position = -1 if match is None else int(match[1]) if match[1] else int(match[2]) - 1
        known = 0 <= position < len(origin.inputs)
        names.append(origin.inputs[position][0] if known else node.name)
    return names
