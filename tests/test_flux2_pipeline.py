# SPDX-License-Identifier: Apache-2.0
"""Diffusers' Flux2KleinPipeline, whole and unchanged, on the device: against the CPU, and what it compiles."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

import torch_neuronx
from examples.flux2_klein import prepare
from examples.make_tiny_flux2 import make_pipeline
from torch_neuronx import metrics
from torch_neuronx.neuron_dynamo_backend import get_dynamo_metrics

PROMPT = "A cat holding a sign that says hello world"
SIZE = 128
STEPS = 2

# Operators whose result is a Python number: their value has to come to the host.
READS_OF_A_VALUE = {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal"}

Paint = Callable[..., np.ndarray]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tiny-flux2")
    make_pipeline().save_pretrained(path)
    return str(path)


def painter(checkpoint: str, device: str, dtype: torch.dtype, mode: str = "eager") -> Paint:
    """A function that paints an image [height, width, 3] with values in [0, 1]. mode: as in the example."""
    from diffusers import Flux2KleinPipeline

    pipe = Flux2KleinPipeline.from_pretrained(checkpoint, dtype=dtype).to(device)
    pipe.set_progress_bar_config(disable=True)
    prepare(pipe, mode)

    def paint(prompt: str = PROMPT, steps: int = STEPS, seed: int = 0, size: int = SIZE) -> np.ndarray:
        return pipe(
            prompt=prompt,
            height=size,
            width=size,
            num_inference_steps=steps,
            generator=torch.Generator().manual_seed(seed),
            max_sequence_length=64,
            output_type="np",
        ).images[0]

    return paint


@pytest.fixture(scope="module")
def cpu_f32_image(checkpoint: str) -> np.ndarray:
    return painter(checkpoint, "cpu", torch.float32)()


@pytest.fixture(scope="module")
def neuron_f32(checkpoint: str) -> Paint:
    return painter(checkpoint, "neuron", torch.float32)


@pytest.fixture(scope="module")
def neuron_bf16(checkpoint: str) -> Paint:
    return painter(checkpoint, "neuron", torch.bfloat16)


@pytest.fixture(scope="module")
def compiled_f32(checkpoint: str) -> Paint:
    return painter(checkpoint, "neuron", torch.float32, mode="compile")


@pytest.fixture(scope="module")
def cpu_bf16_image(checkpoint: str) -> np.ndarray:
    return painter(checkpoint, "cpu", torch.bfloat16)()


def psnr(image: np.ndarray, reference: np.ndarray) -> float:
    """Peak signal-to-noise ratio in dB, of images with values in [0, 1]."""
    return -10 * math.log10(float(((image - reference) ** 2).mean()))


def programs() -> int:
    """Programs that this process has asked for so far."""
    return metrics.get_counter_value("CompilationCache.InMemoryMisses") or 0


def graphs() -> int:
    """Compiled graphs that this process has waited for so far."""
    return get_dynamo_metrics()["graphs"]


def test_the_reference_says_something(checkpoint: str, cpu_f32_image: np.ndarray) -> None:
    """The image is no constant, and depends on prompt and seed by more than the bounds below."""
    assert np.isfinite(cpu_f32_image).all()
    assert cpu_f32_image.std() > 0.1
    paint = painter(checkpoint, "cpu", torch.float32)
    assert np.abs(paint(prompt="The moon over a quiet city") - cpu_f32_image).max() > 0.05
    assert np.abs(paint(seed=1) - cpu_f32_image).max() > 0.05


def test_float32_image_equals_the_cpus(neuron_f32: Paint, cpu_f32_image: np.ndarray) -> None:
    image = neuron_f32()
    assert image.shape == (SIZE, SIZE, 3)
    assert np.abs(image - cpu_f32_image).max() <= 1e-3


def test_bfloat16_is_as_good_as_on_the_cpu(
    neuron_bf16: Paint, cpu_f32_image: np.ndarray, cpu_bf16_image: np.ndarray
) -> None:
    assert psnr(neuron_bf16(), cpu_f32_image) >= psnr(cpu_bf16_image, cpu_f32_image) - 1.0


def test_no_operator_falls_back(neuron_bf16: Paint) -> None:
    torch_neuronx.clear_op_tracking()
    neuron_bf16()
    torch.neuron.synchronize()
    assert set(torch_neuronx.get_fallback_ops()) <= READS_OF_A_VALUE
    executed = set(torch_neuronx.get_executed_ops())
    assert {"aten::linear", "aten::convolution"} & executed or {"aten::linear", "aten::conv2d"} & executed


def test_the_same_call_compiles_nothing(neuron_bf16: Paint) -> None:
    first = neuron_bf16()
    before = programs()
    np.testing.assert_array_equal(neuron_bf16(), first)
    assert programs() == before


@pytest.mark.parametrize(
    "change",
    [{"prompt": "The moon over a quiet city"}, {"seed": 7}, {"steps": STEPS + 1}, {"steps": 1}],
    ids=["prompt", "seed", "more steps", "one step"],
)
def test_another_call_of_the_same_size_compiles_nothing(neuron_bf16: Paint, change: dict) -> None:
    first = neuron_bf16()
    before = programs()
    other = neuron_bf16(**change)
    assert programs() == before
    assert np.abs(other - first).max() > 0.01


def test_another_size_compiles_once(neuron_bf16: Paint) -> None:
    neuron_bf16()
    before = programs()
    assert neuron_bf16(size=SIZE + 16).shape == (SIZE + 16, SIZE + 16, 3)
    assert programs() > before
    before = programs()
    neuron_bf16(size=SIZE + 16)
    neuron_bf16()
    assert programs() == before


def test_compiled_float32_image_equals_the_cpus(compiled_f32: Paint, cpu_f32_image: np.ndarray) -> None:
    before = graphs()
    image = compiled_f32()
    assert graphs() - before == 2  # the transformer, the decoder
    assert np.abs(image - cpu_f32_image).max() <= 1e-3


def test_compiled_graphs_serve_other_prompts_seeds_and_steps(compiled_f32: Paint) -> None:
    first = compiled_f32()
    before = graphs()
    for change in ({"prompt": "The moon over a quiet city"}, {"seed": 7}, {"steps": STEPS + 1}):
        assert np.abs(compiled_f32(**change) - first).max() > 0.01
    np.testing.assert_array_equal(compiled_f32(), first)
    assert graphs() == before


def test_compiled_graphs_of_another_size_compile_once(compiled_f32: Paint) -> None:
    first = compiled_f32()
    before = graphs()
    compiled_f32(size=SIZE + 16)
    assert graphs() - before == 2
    before = graphs(), programs()
    compiled_f32(size=SIZE + 16)
    np.testing.assert_array_equal(compiled_f32(), first)
    assert (graphs(), programs()) == before


def test_compiled_bfloat16_is_as_good_as_on_the_cpu(
    checkpoint: str, cpu_f32_image: np.ndarray, cpu_bf16_image: np.ndarray
) -> None:
    image = painter(checkpoint, "neuron", torch.bfloat16, mode="compile")()
    assert psnr(image, cpu_f32_image) >= psnr(cpu_bf16_image, cpu_f32_image) - 1.0
