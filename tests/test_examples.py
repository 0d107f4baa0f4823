# SPDX-License-Identifier: Apache-2.0
"""The examples run as they are, from a clean directory, and so does the script of Diffusers' page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(directory: Path, *command: str) -> str:
    """Runs Python in `directory`; returns what it printed."""
    result = subprocess.run(
        [sys.executable, *command],
        cwd=directory,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout


def check_image(path: Path, size: int) -> None:
    image = Image.open(path)
    assert image.size == (size, size)
    assert np.asarray(image).std() > 10


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the tiny checkpoint."""
    directory = tmp_path_factory.mktemp("examples")
    output = run(directory, str(EXAMPLES / "make_tiny_flux2.py"), "checkpoints/tiny-flux2")
    assert "million parameters" in output
    return directory


def test_flux2_klein_makes_its_checkpoint_and_an_image(tmp_path: Path) -> None:
    script = str(EXAMPLES / "flux2_klein.py")
    small = ["--height", "64", "--width", "64", "--steps", "2", "--output", "small.png"]
    output = run(tmp_path, script, "tiny", *small)
    assert "making a tiny model" in output and "wrote small.png" in output
    check_image(tmp_path / "small.png", 64)
    output = run(tmp_path, script, "tiny", *small, "--prompt", "The moon", "--seed", "3", "--repeat", "1")
    assert "making" not in output
    assert "programs compiled: 0" in output


def test_flux2_klein_compiled(directory: Path) -> None:
    script = str(EXAMPLES / "flux2_klein.py")
    small = ["--height", "64", "--width", "64", "--steps", "2", "--output", "compiled.png"]
    assert "wrote compiled.png" in run(directory, script, "tiny", "--mode", "blocks", "--repeat", "1", *small)
    check_image(directory / "compiled.png", 64)


def test_the_same_seed_makes_the_same_checkpoint(directory: Path) -> None:
    from safetensors.torch import load_file

    from examples.make_tiny_flux2 import make_pipeline

    saved = load_file(directory / "checkpoints/tiny-flux2/transformer/diffusion_pytorch_model.safetensors")
    for name, value in make_pipeline().transformer.state_dict().items():
        assert value.equal(saved[name]), name


# The page's eager example; only the path of the model differs.
DIFFUSERS_PAGE = """
import torch
from diffusers import Flux2KleinPipeline

pipe = Flux2KleinPipeline.from_pretrained("checkpoints/tiny-flux2", dtype=torch.bfloat16)
pipe.to("neuron")

image = pipe(
    prompt="A cat holding a sign that says hello world",
    height=1024,
    width=1024,
    num_inference_steps=4,
).images[0]
image.save("output.png")
"""


def test_the_script_of_the_diffusers_page(directory: Path) -> None:
    run(directory, "-c", DIFFUSERS_PAGE)
    check_image(directory / "output.png", 1024)
