# SPDX-License-Identifier: Apache-2.0
"""Collectives that write to an argument (`_c10d_functional.*_out`), made functional.

AOTAutograd wraps such an operator, makes its result the new contents of the argument, and copies those where the
argument was an input or a view. What is left is to call the functional operator of the same arguments.
"""

from __future__ import annotations

from typing import Any

import torch

_functional = torch.ops._c10d_functional

_FUNCTIONAL = {
    _functional.all_gather_into_tensor_out.default: _functional.all_gather_into_tensor.default,
    _functional.reduce_scatter_tensor_out.default: _functional.reduce_scatter_tensor.default,
}


def make_functional(gm: torch.fx.GraphModule) -> None:
    wrapped = gm.graph.find_nodes(op="call_function", target=torch.ops.higher_order.auto_functionalized_v2)
    wrapped = [node for node in wrapped if node.args[0] in _FUNCTIONAL]
    for node in wrapped:
        out: Any = node.args[0]
        overload = _FUNCTIONAL[out]
        with gm.graph.inserting_before(node):
            arguments = tuple(node.kwargs[argument.name] for argument in overload._schema.arguments)
            call = gm.graph.call_function(overload, arguments)
        call.meta = dict(node.meta)
        node.replace_all_uses_with(call)
        gm.graph.erase_node(node)
    if wrapped:
        gm.recompile()
