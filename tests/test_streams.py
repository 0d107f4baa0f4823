# SPDX-License-Identifier: Apache-2.0
"""Streams and events. One queue runs all work of a device in the order it was given."""

import itertools
import threading

import pytest
import torch

needs_two = pytest.mark.skipif(torch.neuron.device_count() < 2, reason="needs two NeuronCores")


def some_work():
    return torch.arange(1 << 16, dtype=torch.float32).pin_memory().to("neuron", non_blocking=True)


def test_classes():
    stream, event = torch.neuron.Stream(), torch.neuron.Event()
    assert isinstance(stream, torch.Stream) and isinstance(stream, torch.neuron.Stream)
    assert isinstance(event, torch.Event) and isinstance(event, torch.neuron.Event)
    assert isinstance(torch.neuron.current_stream(), torch.neuron.Stream)


def test_streams_compare_by_identity():
    a, b = torch.neuron.Stream(), torch.neuron.Stream(priority=-1)
    assert a != b and a == a and len({a, b, a}) == 2
    assert torch.neuron.default_stream() == torch.neuron.default_stream()
    assert a.device.type == "neuron"


def test_the_default_stream_is_current_at_first():
    assert torch.neuron.current_stream() == torch.neuron.default_stream()
    assert torch.neuron.current_stream().stream_id == 0


def test_stream_context():
    stream = torch.neuron.Stream()
    with torch.neuron.stream(stream):
        assert torch.neuron.current_stream() == stream
        with torch.neuron.stream(None):
            assert torch.neuron.current_stream() == stream
    assert torch.neuron.current_stream() == torch.neuron.default_stream()


def test_set_stream():
    stream = torch.neuron.Stream()
    torch.neuron.set_stream(stream)
    try:
        assert torch.neuron.current_stream() == stream
    finally:
        torch.neuron.set_stream(torch.neuron.default_stream())


def test_the_current_stream_belongs_to_a_thread():
    seen = []
    with torch.neuron.stream(torch.neuron.Stream()):
        thread = threading.Thread(target=lambda: seen.append(torch.neuron.current_stream().stream_id))
        thread.start()
        thread.join()
    assert seen == [0]


@needs_two
def test_a_stream_of_another_device_changes_the_device():
    stream = torch.neuron.Stream(1)
    before = torch.neuron.current_device()
    with torch.neuron.stream(stream):
        assert torch.neuron.current_device() == 1
        assert torch.neuron.current_stream(0) == torch.neuron.default_stream(0)
    assert torch.neuron.current_device() == before


def test_work_of_one_stream_is_seen_by_another():
    side = torch.neuron.Stream()
    side.wait_stream(torch.neuron.current_stream())
    with torch.neuron.stream(side):
        x = some_work()
    torch.neuron.current_stream().wait_stream(side)
    x.record_stream(torch.neuron.current_stream())
    torch.testing.assert_close(x.cpu(), torch.arange(1 << 16, dtype=torch.float32))


def test_synchronize_and_query():
    stream = torch.neuron.current_stream()
    some_work()
    stream.synchronize()
    assert stream.query()


def test_polling_ends():
    some_work()
    event = torch.neuron.Event()
    event.record()
    while not event.query():
        pass
    assert torch.neuron.current_stream().query()


def test_an_event_that_was_never_recorded_is_done():
    event = torch.neuron.Event()
    assert event.query()
    event.synchronize()
    event.wait()


def test_record_event():
    event = torch.neuron.current_stream().record_event()
    assert isinstance(event, torch.neuron.Event)
    torch.neuron.Stream().wait_event(event)
    event.synchronize()
    assert event.query()


def test_elapsed_time_grows_with_the_work_between():
    start, middle, end = (torch.neuron.Event(enable_timing=True) for _ in range(3))
    start.record()
    for _ in range(5):
        some_work()
    middle.record()
    some_work()
    end.record()
    end.synchronize()
    assert start.elapsed_time(middle) > 0
    total = start.elapsed_time(end)
    assert total == pytest.approx(start.elapsed_time(middle) + middle.elapsed_time(end), rel=1e-6)
    assert end.elapsed_time(start) == pytest.approx(-total)


def test_elapsed_time_needs_recorded_events_with_timing():
    recorded, other = torch.neuron.Event(enable_timing=True), torch.neuron.Event(enable_timing=True)
    recorded.record()
    torch.neuron.synchronize()
    with pytest.raises((RuntimeError, ValueError), match="recorded"):
        recorded.elapsed_time(other)
    untimed = torch.neuron.Event()
    untimed.record()
    torch.neuron.synchronize()
    with pytest.raises((RuntimeError, ValueError), match="timing"):
        recorded.elapsed_time(untimed)


def test_an_event_may_be_recorded_again():
    event = torch.neuron.Event(enable_timing=True)
    first = torch.neuron.Event(enable_timing=True)
    event.record()
    first.record()
    some_work()
    event.record()
    event.synchronize()
    assert first.elapsed_time(event) > 0


@needs_two
def test_an_event_orders_two_devices():
    with torch.neuron.device(0):
        x = some_work()
        event = torch.neuron.Event()
        event.record()
    with torch.neuron.device(1):
        event.wait(torch.neuron.current_stream(1))
        y = torch.ones(4, device="cpu").to("neuron:1")
        torch.neuron.synchronize(1)
    assert event.query()
    torch.testing.assert_close(x.cpu()[:2], torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(y.cpu(), torch.ones(4))


def test_generic_classes_work():
    event = torch.Event("neuron", enable_timing=True)
    stream = torch.Stream("neuron")
    event.record(stream)
    event.synchronize()
    stream.synchronize()
    assert event.query() and stream.query()


def test_many_events_fill_the_queue():
    events = [torch.neuron.Event(enable_timing=True) for _ in range(3000)]
    for event in events:
        event.record()
    torch.neuron.synchronize()
    assert all(event.query() for event in events)
    assert all(a.elapsed_time(b) >= 0 for a, b in itertools.pairwise(events))


def test_events_of_several_threads():
    def work():
        for _ in range(200):
            event = torch.neuron.Event()
            some = torch.ones(8).to("neuron")
            event.record()
            event.synchronize()
            assert some.cpu().sum() == 8

    errors = []

    def guarded():
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
