# SPDX-License-Identifier: Apache-2.0
"""Builds one StableHLO function, operation by operation, and prints it.

Operations are printed in MLIR's generic form (`"stablehlo.add"(%0, %1) : (...) -> ...`): one
printer serves them all. Names follow the StableHLO specification.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch

from .elementwise import Elementwise
from .philox import philox_pairs
from .program import Program, TensorSpec
from .structured import Structured
from .types import literal, tensor_type


class Location(NamedTuple):
    """The operator an operation stems from and the Python line that called it."""

    operator: str
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        name = _quote(self.operator)
        return f"loc({name}({_quote(self.file)}:{self.line}:0))" if self.file else f"loc({name})"


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class Value:
    """An SSA value: a tensor of static shape.

    `wrapped` marks a Python number or a 0-dim CPU tensor that takes part in type promotion as
    PyTorch's wrapped numbers do.
    """

    __slots__ = ("builder", "dtype", "name", "shape", "wrapped")

    def __init__(self, builder: Builder, name: str, shape: Sequence[int], dtype: torch.dtype, wrapped: bool = False):
        self.builder = builder
        self.name = name
        self.shape = tuple(shape)
        self.dtype = dtype
        self.wrapped = wrapped

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def type(self) -> str:
        return tensor_type(self.shape, self.dtype)

    def __repr__(self) -> str:
        return f"<{self.name}: {self.type}>"


class Builder(Elementwise, Structured):
    """Collects operations of `func.func @main`.

    out: what PyTorch's meta kernel says of the results of the operator being lowered (meta
        tensors: shape, dtype, stride); the rules read shapes and dtypes from here.
    kernels: names of host kernels that the target offers; see `composite`.
    software: whether the target is the software NeuronCore (has bounds checks on indices).
    """

    def __init__(self, kernels: Iterable[str] = (), software: bool = True):
        self.kernels = frozenset(kernels)
        self.software = software
        self.out: tuple[torch.Tensor, ...] = ()
        self.location = Location("unknown")
        self._lines: list[tuple[str, Location | None]] = []
        self._inputs: list[Value] = []
        self._aliases: dict[int, int] = {}
        self._names = 0
        self._constants: dict[tuple, Value] = {}
        self.converted: dict[str, Value] = {}  # what each cast was before, by the name of its result
        # Names of rounded values whose readers may take what they were before: see lowering/rounding.py.
        self.unrounded: set[str] = set()
        # What each transposed value was before, for rules that can read it as it lies: (operand, permutation).
        self.transposed: dict[str, tuple[Value, tuple[int, ...]]] = {}
        # What values with one dimension more were before: (operand, new dimension).
        self.broadcasts: dict[str, tuple[Value, int]] = {}
        # What values whose slices of a dimension come several times each were before: (operand, that dimension).
        self.repeated: dict[str, tuple[Value, int]] = {}
        # Whether images are better kept with their channels last: see lowering/channels_last.py.
        self.channels_last = False
        # Whether every operator rounds its result, as eager PyTorch does: see lowering/rounding.py.
        self.rounds_between = True
        self._random: tuple[Value, Value] | None = None
        self._random_streams = 0
        # Of the last collective; the next one takes it, so that all ranks run them in one order.
        self.collective_token: Value | None = None

    # -- operands and results -------------------------------------------------------------

    def input(self, shape: Sequence[int], dtype: torch.dtype, wrapped: bool = False) -> Value:
        """The next parameter of main. All parameters are declared before the first operation."""
        value = Value(self, f"%arg{len(self._inputs)}", shape, dtype, wrapped)
        self._inputs.append(value)
        return value

    @property
    def parameter_count(self) -> int:
        """How many parameters main has so far."""
        return len(self._inputs)

    def alias(self, input_index: int, output_index: int) -> None:
        """Lets output `output_index` take the memory of input `input_index` (an in-place update)."""
        self._aliases[input_index] = output_index

    @property
    def uses_random(self) -> bool:
        """Whether a rule has asked for the generator's state."""
        return self._random is not None

    @property
    def random_increment(self) -> int:
        """How far a run moves the generator's offset. Runs differ in the offset, so one step is enough."""
        return int(self.uses_random)

    @property
    def random_streams(self) -> int:
        """How many calls draw random numbers so far."""
        return self._random_streams

    def random_state(self) -> tuple[Value, Value]:
        """Seed and offset of the device generator (two i64 scalars), as the last two parameters."""
        if self._random is None:
            self._random = (self.input((), torch.int64), self.input((), torch.int64))
        return self._random

    def random_bits(self, shape: Sequence[int], dtype: torch.dtype) -> Value:
        """Uniform bits of dtype ui32 or ui64, from a Philox stream that no other call or launch shares.

        The seed is the key. The counter holds the offset, the number of the call within the program
        and the position, each in bits of its own, so streams cannot overlap.
        """
        seed, offset = self.random_state()
        stream = self._random_streams
        self._random_streams += 1
        count = math.prod(shape)
        if count == 0:
            return self.constant(0, dtype, shape)
        if not self.software:
            state = [seed, self.constant(stream << 44, torch.uint64), offset]
            state = [self.reshape(self.convert(word, torch.uint64), (1,)) for word in state]
            return self.rng_bit_generator(self.concatenate(state, 0), shape, dtype)[1]
        if dtype == torch.uint64:
            return self.reshape(philox_pairs(self, seed, offset, stream, count), shape)
        pairs = philox_pairs(self, seed, offset, stream, (count + 1) // 2)
        bits = self.reshape(self.bitcast_convert(pairs, dtype, (*pairs.shape, 2)), (2 * pairs.numel,))
        return self.reshape(self.slice_dim(bits, 0, 0, count), shape)

    # -- emission -------------------------------------------------------------------------

    def _name(self) -> str:
        self._names += 1
        return f"%{self._names}"

    def results(
        self,
        name: str,
        operands: Sequence[Value],
        types: Sequence[tuple[Sequence[int], torch.dtype]],
        attributes: str = "",
        regions: Sequence[str] = (),
    ) -> tuple[Value, ...]:
        """Emits one operation with any number of results.

        attributes: the inside of an attribute dictionary, in MLIR syntax.
        regions: printed regions, from `region`.
        """
        values = tuple(Value(self, self._name(), shape, dtype) for shape, dtype in types)
        left = ", ".join(v.name for v in values)
        text = f"{left} = " if values else ""
        text += f'"{name}"({", ".join(v.name for v in operands)})'
        if regions:
            text += " (" + ", ".join(regions) + ")"
        if attributes:
            text += " {" + attributes + "}"
        result = ", ".join(v.type for v in values)
        result = result if len(values) == 1 else f"({result})"
        text += f" : ({', '.join(v.type for v in operands)}) -> {result}"
        self._lines.append((text, self.location))
        return values

    def op(
        self,
        name: str,
        operands: Sequence[Value],
        shape: Sequence[int],
        dtype: torch.dtype,
        attributes: str = "",
        regions: Sequence[str] = (),
    ) -> Value:
        """Emits `stablehlo.<name>` with one result."""
        return self.results(f"stablehlo.{name}", operands, [(shape, dtype)], attributes, regions)[0]

    def region(
        self, types: Sequence[tuple[Sequence[int], torch.dtype]], body: Callable[..., Value | Sequence[Value]]
    ) -> str:
        """Prints a region whose block arguments have `types`; `body` gets them and returns what it yields.

        A body may use its arguments and constants it makes itself, but no values of the enclosing
        function: XLA's importer refuses captured values everywhere but in `if` and `while`.
        """
        outer, outer_constants = self._lines, self._constants
        self._lines, self._constants = [], {}
        arguments = [Value(self, self._name(), shape, dtype) for shape, dtype in types]
        result = body(*arguments)
        yielded = [result] if isinstance(result, Value) else list(result)
        operands = ", ".join(v.name for v in yielded)
        self._lines.append((f'"stablehlo.return"({operands}) : ({", ".join(v.type for v in yielded)}) -> ()', None))
        inner = "\n      ".join(line for line, _ in self._lines)
        self._lines, self._constants = outer, outer_constants
        header = ", ".join(f"{a.name}: {a.type}" for a in arguments)
        return "{ ^bb0" + (f"({header})" if arguments else "") + ": " + inner + " }"

    def constant(self, value: bool | int | float | complex, dtype: torch.dtype, shape: Sequence[int] = ()) -> Value:
        """A splat constant."""
        text = literal(value, dtype)
        key = (text, dtype, tuple(shape))
        if key not in self._constants:
            self._constants[key] = self.op(
                "constant", (), shape, dtype, f"value = dense<{text}> : {tensor_type(shape, dtype)}"
            )
        return self._constants[key]

    def constant_array(self, values: Sequence, dtype: torch.dtype, shape: Sequence[int] | None = None) -> Value:
        """A small constant given element by element (row-major)."""
        shape = (len(values),) if shape is None else tuple(shape)
        if not values:
            return self.constant(0, dtype, shape)
        if len(values) == 1:
            return self.constant(values[0], dtype, shape)
        elements = [literal(v, dtype) for v in values]

        def nest(dims: Sequence[int], flat: list[str]) -> str:
            if not dims:
                return flat[0]
            step = len(flat) // dims[0]
            return "[" + ", ".join(nest(dims[1:], flat[i * step : (i + 1) * step]) for i in range(dims[0])) + "]"

        return self.op(
            "constant", (), shape, dtype, f"value = dense<{nest(shape, elements)}> : {tensor_type(shape, dtype)}"
        )

    def value(self, x: Value | bool | int | float | complex, dtype: torch.dtype) -> Value:
        """`x` as a value of `dtype`: a number becomes a scalar constant, a value is converted."""
        return self.convert(x, dtype) if isinstance(x, Value) else self.constant(x, dtype)

    # -- targets ---------------------------------------------------------------------------

    def composite(
        self,
        name: str,
        operands: Sequence[Value],
        types: Sequence[tuple[Sequence[int], torch.dtype]],
        decomposition: Callable[..., Value | Sequence[Value]],
        config: str = "",
        updated: int | None = None,
    ) -> tuple[Value, ...]:
        """A whole operator: a call of the host kernel `name` where the target has it, else its decomposition.

        updated: the operand whose memory the kernel's only result may take.
        """
        if name in self.kernels:
            return self.custom_call(name, operands, types, config, updated)
        result = decomposition(*operands)
        return (result,) if isinstance(result, Value) else tuple(result)

    def custom_call(
        self,
        name: str,
        operands: Sequence[Value],
        types: Sequence[tuple[Sequence[int], torch.dtype]],
        config: str = "",
        updated: int | None = None,
        has_side_effect: bool = False,
    ) -> tuple[Value, ...]:
        """A typed custom call; `config` reaches the kernel as its attribute of that name.

        updated: the operand whose memory the only result may take. has_side_effect: it happens though nobody uses
        its results.
        """
        attributes = (
            f"call_target_name = {_quote(name)}, api_version = 4 : i32, backend_config = {{config = {_quote(config)}}}"
        )
        if has_side_effect:
            attributes += ", has_side_effect = true"
        if updated is not None:
            attributes += (
                ", output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [], "
                f"operand_index = {updated}, operand_tuple_indices = []>]"
            )
        return self.results("stablehlo.custom_call", operands, types, attributes)

    def check_index(self, index: Value, limit: int, wrap: bool = False) -> Value:
        """`index`, checked at run time: an element outside [0, limit) makes the launch fail.

        With `wrap`, elements in [-limit, 0) count from the end and come back non-negative. Targets
        other than the software core check indices in hardware; there only the wrap is emitted.
        """
        if self.software:
            config = f"limit={limit};wrap={int(wrap)};op={self.location.operator}"
            return self.custom_call("neuroncore.check_index", [index], [(index.shape, index.dtype)], config)[0]
        if not wrap:
            return index
        zero = self.constant(0, index.dtype, index.shape)
        shifted = self.add(index, self.constant(limit, index.dtype, index.shape))
        return self.select(self.compare(index, zero, "LT"), shifted, index)

    # -- the finished program ----------------------------------------------------------------

    def finish(self, outputs: Sequence[Value], metadata: dict[str, object] | None = None) -> Program:
        """The program that returns `outputs`."""
        return Program(
            text=self._print(outputs, located=False),
            located_text=self._print(outputs, located=True),
            inputs=tuple(TensorSpec(v.shape, v.dtype) for v in self._inputs),
            outputs=tuple(TensorSpec(v.shape, v.dtype) for v in outputs),
            metadata=metadata or {},
        )

    def _print(self, outputs: Sequence[Value], located: bool) -> str:
        parameters = []
        for index, value in enumerate(self._inputs):
            alias = f" {{tf.aliasing_output = {self._aliases[index]} : i32}}" if index in self._aliases else ""
            parameters.append(f"{value.name}: {value.type}{alias}")
        results = ", ".join(v.type for v in outputs)
        lines = ["module {", f"  func.func public @main({', '.join(parameters)}) -> ({results}) {{"]
        for text, location in self._lines:
            lines.append(f"    {text} {location}" if located and location else f"    {text}")
        names = ", ".join(v.name for v in outputs)
        lines.append(f"    func.return {names} : {results}" if outputs else "    func.return")
        lines += ["  }", "}", ""]
        return "\n".join(lines)
