# SPDX-License-Identifier: Apache-2.0
"""Streams and events inside compiled functions."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_a_stream_and_an_event_in_one_graph():
    """The event lies behind the graph's work, whose order is that of its data."""
    stream, event = torch.Stream(device="neuron"), torch.Event(device="neuron")

    def function(x):
        with stream:
            y = x * 2
            event.record(stream)
        event.wait()
        return y + 1

    x = torch.randn(4)
    compiled = torch.compile(function, backend="neuron", fullgraph=True, dynamic=False)
    for _ in range(2):
        assert_close(compiled(x.to("neuron")).cpu(), x * 2 + 1)
    event.synchronize()
    assert event.query()


def check_the_host_waits(wait):
    """`wait()` in a compiled function: what the function has computed is there when it returns."""
    event = torch.Event(device="neuron")
    weight = torch.randn(512, 512, device="neuron")

    def function(x):
        y = (x @ weight).relu()
        event.record()
        wait()
        return y

    compiled = torch.compile(function, backend="neuron", fullgraph=True, dynamic=False)
    for _ in range(3):
        actual = compiled(weight)
        assert event.query()
    assert_close(actual.cpu(), (weight.cpu() @ weight.cpu()).relu(), rtol=1e-4, atol=1e-3)


def test_the_host_waits_for_a_stream():
    stream = torch.Stream(device="neuron")
    check_the_host_waits(lambda: stream.synchronize())


def test_stream_functions_of_the_device_module():
    """They are traced like those of torch.accelerator."""
    stream = torch.neuron.Stream()
    event = torch.neuron.Event()

    def function(x):
        stream.synchronize()
        with torch.neuron.stream(stream):
            y = x * 2
            event.record(torch.neuron.current_stream())
        with torch.neuron.stream(None):
            torch.neuron.current_stream(x.device).wait_stream(stream)
        torch.neuron.current_stream(device=0).wait_event(event)
        return y + 1

    x = torch.randn(4)
    compiled = torch.compile(function, backend="neuron", fullgraph=True, dynamic=False)
    for _ in range(2):
        assert_close(compiled(x.to("neuron")).cpu(), x * 2 + 1)
    event.synchronize()
    assert torch.neuron.current_stream() == torch.neuron.default_stream()


@pytest.mark.parametrize("arguments", [(), (0,), ("neuron:0",), (None,)])
def test_the_host_waits_for_the_device(arguments):
    check_the_host_waits(lambda: torch.neuron.synchronize(*arguments))
