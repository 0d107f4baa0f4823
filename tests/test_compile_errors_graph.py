# SPDX-License-Identifier: Apache-2.0
"""torch.compile(backend="neuron") on what it cannot do: what it says, and that nothing is hidden."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from torch_neuronx import metrics
from torch_neuronx.compiler import software
from torch_neuronx.compiler.errors import CompilerFailure
from torch_neuronx.dynamo import backend, recompiles
from torch_neuronx.log import OncePer
from torch_neuronx.neuron_dynamo_backend import (
    NEFFCompilationError,
    NEFFExecutionError,
    get_dynamo_metrics,
    reset_dynamo_metrics,
)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    reset_dynamo_metrics()
    yield
    torch.neuron.synchronize()
    torch._dynamo.reset()


def compiled(function, **options):
    return torch.compile(function, backend="neuron", **{"dynamic": False, **options})


# -- what Dynamo and the lowering refuse ----------------------------------------------------------


def test_control_flow_on_data_is_refused_in_dynamos_words():
    def function(x):
        return x + 1 if x.sum() > 0 else x - 1

    x = torch.ones(3, device="neuron")
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"[Dd]ata-dependent"):
        compiled(function, fullgraph=True)(x)
    assert_close(compiled(function)(x).cpu(), torch.full((3,), 2.0))


def test_an_operator_without_a_rule_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch):
    with torch.library._scoped_library("neuron_test", "FRAGMENT") as library:
        library.define("opaque(Tensor x) -> Tensor")
        library.impl("opaque", torch.empty_like, "Meta")
        library.impl("opaque", lambda x: (x.cpu() / 2).to("neuron"), "PrivateUse1")

        def function(x):
            y = x + 1
            return torch.ops.neuron_test.opaque(y) * 2

        line = function.__code__.co_firstlineno + 2
        x = torch.ones(3, device="neuron")
        with pytest.raises(Exception, match=r"neuron_test\.opaque\.default has neither") as caught:
            compiled(function)(x)
        assert f"test_compile_errors_graph.py:{line}" in str(caught.value)

        monkeypatch.setenv("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", "0")
        torch._dynamo.reset()
        for _ in range(2):
            assert_close(compiled(function)(x).cpu(), torch.full((3,), 2.0))


@pytest.mark.parametrize("marked", [False, True])
def test_dynamic_shapes_are_refused_with_the_dimension_and_the_remedy(marked):
    x, y = torch.ones(5, 3, device="neuron"), torch.ones(3, 4, device="neuron")
    if marked:
        torch._dynamo.mark_dynamic(y, 1)
    function = compiled(lambda x, y: x @ y, dynamic=None if marked else True)
    with pytest.raises(Exception, match="mark_dynamic" if marked else "dynamic=True") as caught:
        function(x, y)
    dimension, remedy = (r"1 of L\['y'\] \(now 4\)", "Do not mark") if marked else (r"0 of L\['x'\] \(now 5\)", "Use")
    assert re.search("dimension " + dimension, str(caught.value))
    assert remedy in str(caught.value)


def test_a_mode_warns_once(messages, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(backend, "_ignored_modes", OncePer())
    x = torch.ones(3, device="neuron")
    for function in (lambda x: x + 1, lambda x: x + 2):
        compiled(function, mode="max-autotune")(x)
    assert messages.count("max-autotune") == 1
    compiled(lambda x: x + 3, mode="default")(x)
    assert messages.count("mode=") == 1


def test_unknown_options_raise():
    with pytest.raises(Exception, match=r"unknown options \['opt_level'\].*NEURON_CC_FLAGS"):
        compiled(lambda x: x + 1, options={"opt_level": 2})(torch.ones(3, device="neuron"))


def test_inputs_on_two_devices_are_refused():
    with pytest.raises(Exception, match=r"neuron:0.*neuron:1"):
        compiled(lambda x, y: x + y, fullgraph=True)(torch.ones(3, device="neuron:0"), torch.ones(3, device="neuron:1"))


# -- shapes ----------------------------------------------------------------------------------------


def test_each_shape_compiles_once_and_no_graph_is_dynamic(messages):
    function = torch.compile(lambda x: (x * 2).tanh(), backend="neuron")
    for size in (3, 4, 5, 3, 4, 5):
        x = torch.linspace(-1, 1, size)
        assert_close(function(x.to("neuron")).cpu(), (x * 2).tanh())
    assert len(get_dynamo_metrics()["per_graph"]) == 3
    assert messages.count("L['x'] is float32[4], was float32[3]")
    assert messages.count("L['x'] is float32[5], was float32[4]")
    assert not messages.count("size()")


def test_sizes_that_are_computed_with_stay_integers():
    """A view, a slice and a number made of a size that Dynamo has left open."""

    def function(x):
        n = x.shape[0]
        return x.reshape(n * 2, 2)[: n - 1].sum(0) / n, n

    call = torch.compile(function, backend="neuron", fullgraph=True)
    for size in (3, 4, 6, 4):
        x = torch.randn(size, 4)
        x.requires_grad_(size == 6)
        actual, n = call(x.to("neuron"))
        assert_close(actual.cpu(), function(x)[0])
        assert n == size


def test_views_with_open_sizes_and_strides():
    call = torch.compile(lambda x: x.t() + 1, backend="neuron", fullgraph=True)
    for size in (3, 4, 5):
        x = torch.randn(7, 8)
        assert_close(call(x.to("neuron")[1 : size + 1, :size]).cpu(), x[1 : size + 1, :size].t() + 1)


def test_inputs_that_share_memory_with_open_sizes():
    def function(x, y, z):
        x.add_(1)
        return y * 2 + z

    call = torch.compile(function, backend="neuron", fullgraph=True)
    for size in (4, 5, 6):
        x = torch.randn(9)
        a = x.to("neuron")
        actual = call(a[:size], a[1 : size + 1], a[8:])
        assert_close(actual.cpu(), function(x[:size], x[1 : size + 1], x[8:]))
        assert_close(a.cpu(), x)


def test_an_offset_compiles_nothing_when_sizes_are_open():
    call = torch.compile(lambda x: x.sin(), backend="neuron", fullgraph=True)
    x = torch.randn(30)
    base = x.to("neuron")
    for start, size in ((1, 3), (1, 4), (2, 4), (5, 4), (7, 4)):
        assert_close(call(base[start : start + size]).cpu(), x[start : start + size].sin())
    assert len(get_dynamo_metrics()["per_graph"]) == 2


def test_many_shapes_warn_with_the_input_and_its_values(messages):
    function = compiled(lambda x, y: x.sum() + y)
    y = torch.ones(2, device="neuron")
    for size in range(1, recompiles.WARN_AFTER):
        function(torch.ones(size, device="neuron"), y)
    assert not messages.count("has been compiled")
    function(torch.ones(9, device="neuron"), y)
    (warning,) = [line for line in messages.lines if "has been compiled" in line]
    assert "L['x'] was float32[1], float32[2]" in warning and "float32[9]" in warning
    assert "L['y']" not in warning


# -- compiles that fail ------------------------------------------------------------------------------


@pytest.fixture
def failing_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """No graph compiles; operators do."""
    compile = software.compile

    def fail(program, target, optimize_level, metadata):
        if metadata.get("kind") == "graph":
            raise CompilerFailure("the compiler says no")
        return compile(program, target, optimize_level, metadata)

    monkeypatch.setattr(software, "compile", fail)
    monkeypatch.setenv("TORCH_NEURONX_DEBUG_DIR", str(tmp_path / "debug"))


def failing_function(x: torch.Tensor) -> torch.Tensor:
    return (x * 3).sin() + x.shape[0] / 7


def test_a_failed_compile_says_all_and_is_not_kept(failing_compiler, monkeypatch: pytest.MonkeyPatch):
    function = compiled(failing_function)
    x = torch.ones(3, 5, device="neuron")
    torch.neuron.synchronize()  # what fills it may still be compiling
    before = metrics.get_counter_value("CompilationCache.TotalCompilations")
    for attempt in range(1, 3):
        with pytest.raises(NEFFCompilationError, match="the compiler says no") as caught:
            function(x)
        assert metrics.get_counter_value("CompilationCache.TotalCompilations") == before + attempt
    error = caught.value
    for expected in ("of failing_function", "float32[3, 5]", "test_compile_errors_graph.py:", str(error.program_path)):
        assert expected in str(error)
    program = Path(error.program_path or "")
    assert "stablehlo.sine" in program.read_text()
    assert "torch.ops.aten.sin" in (program.parent / "graph.txt").read_text()
    monkeypatch.undo()
    assert_close(function(x).cpu(), failing_function(torch.ones(3, 5)))


def test_a_failed_compile_may_run_eagerly_and_says_so(failing_compiler, monkeypatch: pytest.MonkeyPatch, messages):
    monkeypatch.setenv("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", "0")
    function = compiled(failing_function)
    x = torch.ones(3, 4, device="neuron")
    for _ in range(2):
        assert_close(function(x).cpu(), failing_function(torch.ones(3, 4)))
    assert messages.count("runs operator by operator: ") == 1
    assert messages.count("the compiler says no")


def test_a_graph_that_runs_eagerly_updates_counters_on_the_cpu_once(failing_compiler, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", "0")

    def step(weight, count):
        count.add_(1)
        weight.sub_(0.5 * count)

    weight, count = torch.zeros(3, device="neuron"), torch.tensor(0.0)
    function = compiled(step)
    for _ in range(2):
        function(weight, count)
    assert count.item() == 2
    assert_close(weight.cpu(), torch.full((3,), -1.5))


# -- failures on the device ----------------------------------------------------------------------------


def test_an_index_out_of_range_is_an_execution_error_at_the_next_wait():
    def function(x, index):
        return torch.index_select(x, 0, index) * 2

    x = torch.ones(4, 3, device="neuron")
    index = torch.tensor([0, 9], device="neuron")
    call = compiled(function)
    result = call(x, index)
    with pytest.raises(NEFFExecutionError, match="index 9 is out of bounds") as caught:
        result.cpu()
    assert "graph" in str(caught.value) and "of test_an_index_out_of_range" in str(caught.value)
    assert "test_compile_errors_graph.py" in str(caught.value)
    call(x, index)
    with pytest.raises(NEFFExecutionError):
        torch.neuron.synchronize()
    assert_close(call(x, torch.tensor([0, 3], device="neuron")).cpu(), torch.full((2, 3), 2.0))
    with pytest.raises(IndexError):  # an operator keeps PyTorch's exception
        torch.index_select(x, 0, index).cpu()


def test_an_execution_error_of_a_backward_pass():
    def function(x, index):
        return x.index_select(0, index).sin().sum()

    x = torch.ones(4, device="neuron", requires_grad=True)
    with pytest.raises(NEFFExecutionError):
        compiled(function)(x, torch.tensor([7], device="neuron")).backward()
        torch.neuron.synchronize()


def test_blocking_launches_raise_at_the_call(run_python):
    run_python(
        """
        import torch
        from torch_neuronx.neuron_dynamo_backend import NEFFExecutionError
        x, index = torch.ones(4, device="neuron"), torch.tensor([7], device="neuron")
        function = torch.compile(lambda x, index: x.index_select(0, index) + 1, backend="neuron", dynamic=False)
        try:
            function(x, index)
        except NEFFExecutionError as error:
            assert isinstance(error, RuntimeError) and "index 7" in str(error), error
        else:
            raise SystemExit("no error")
        """,
        NEURON_LAUNCH_BLOCKING="1",
    )
