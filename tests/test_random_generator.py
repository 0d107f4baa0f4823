# SPDX-License-Identifier: Apache-2.0
"""Generators: seeds, states, and the functions of torch.neuron that handle them."""

import pytest
import torch

neuron = torch.neuron


@pytest.fixture(autouse=True)
def restore_states():
    states = neuron.get_rng_state_all()
    yield
    neuron.set_rng_state_all(states)


def test_generator_of_the_device():
    generator = torch.Generator("neuron")
    assert generator.device.type == "neuron"
    generator.manual_seed(7)
    assert generator.initial_seed() == 7
    assert torch.Generator(device="neuron:0").device == torch.device("neuron:0")


def test_state_is_sixteen_bytes_on_the_host():
    state = neuron.get_rng_state()
    assert state.device.type == "cpu" and state.dtype == torch.uint8 and state.numel() == 16


def test_state_round_trip():
    generator = torch.Generator("neuron").manual_seed(11)
    generator.set_offset(20)
    state = generator.get_state()
    other = torch.Generator("neuron").set_state(state)
    assert other.initial_seed() == 11 and other.get_offset() == 20
    torch.testing.assert_close(other.get_state(), state)


def test_seeding_resets_the_offset():
    generator = torch.Generator("neuron")
    generator.set_offset(20)
    assert generator.manual_seed(3).get_offset() == 0


def test_clone_is_independent():
    generator = torch.Generator("neuron").manual_seed(5)
    clone = generator.clone_state()
    clone.manual_seed(6)
    assert generator.initial_seed() == 5


@pytest.mark.parametrize("state", [torch.zeros(15, dtype=torch.uint8), torch.zeros(16, dtype=torch.float32)])
def test_bad_states_are_refused(state):
    with pytest.raises((RuntimeError, TypeError)):
        torch.Generator("neuron").set_state(state)


def test_torch_manual_seed_seeds_all_devices():
    torch.manual_seed(123)
    assert neuron.initial_seed() == 123
    states = neuron.get_rng_state_all()
    assert len(states) == neuron.device_count()
    assert all(torch.equal(state, states[0]) for state in states)


def test_manual_seed_is_for_the_current_device():
    neuron.manual_seed_all(1)
    neuron.manual_seed(2)
    assert neuron.initial_seed() == 2
    if neuron.device_count() > 1:
        with neuron.device(1):
            assert neuron.initial_seed() == 1


def test_seed_is_random():
    neuron.seed()
    first = neuron.initial_seed()
    neuron.seed_all()
    assert neuron.initial_seed() != first


def test_default_generator_is_one_object_of_the_device():
    neuron.manual_seed(9)
    state = neuron.get_rng_state("neuron")
    neuron.manual_seed(10)
    assert not torch.equal(neuron.get_rng_state(), state)
    neuron.set_rng_state(state, "neuron")
    assert neuron.initial_seed() == 9


def test_fork_rng_restores_the_state():
    neuron.manual_seed(4)
    with torch.random.fork_rng(devices=[0], device_type="neuron"):
        neuron.manual_seed(5)
    assert neuron.initial_seed() == 4


def test_random_numbers_follow_the_generator():
    a = torch.rand(100, generator=torch.Generator("neuron").manual_seed(1), device="neuron")
    b = torch.rand(100, generator=torch.Generator("neuron").manual_seed(1), device="neuron")
    c = torch.rand(100, generator=torch.Generator("neuron").manual_seed(2), device="neuron")
    assert torch.equal(a.cpu(), b.cpu())
    assert not torch.equal(a.cpu(), c.cpu())


def test_the_default_generator_moves_on():
    torch.manual_seed(1)
    a, b = torch.rand(100, device="neuron"), torch.rand(100, device="neuron")
    assert not torch.equal(a.cpu(), b.cpu())
    torch.manual_seed(1)
    assert torch.equal(torch.rand(100, device="neuron").cpu(), a.cpu())


def test_a_generator_of_the_host_is_refused():
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(3, generator=torch.Generator(), device="neuron")
