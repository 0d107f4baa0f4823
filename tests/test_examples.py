# SPDX-License-Identifier: Apache-2.0
"""The examples run as they are, from a clean directory, and so does the script of Diffusers' page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from distributed_world import free_port
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


def torchrun(directory: Path, agents: int, ranks: int, script: str, *arguments: str) -> list[str]:
    """Runs an example with `ranks` ranks in all; each agent is a host to it. Returns what the agents printed."""
    port = str(free_port())
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={agents}", f"--node_rank={agent}"),
                *("--master_addr=127.0.0.1", f"--master_port={port}", f"--nproc_per_node={ranks // agents}"),
                *(str(EXAMPLES / script), *arguments),
            ],
            cwd=directory,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for agent in range(agents)
    ]
    outputs = [process.communicate(timeout=580)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * agents, "\n".join(outputs)[-8000:]
    return outputs


AGENTS = pytest.mark.parametrize("agents", [1, 2], ids=["one host", "two hosts"])


@AGENTS
def test_tensor_parallel_neuron(tmp_path: Path, agents: int) -> None:
    small = ["--size", "64", "--steps", "1"]
    first = torchrun(tmp_path, agents, 2, "tensor_parallel_neuron.py", *small)[0]
    assert "2 ranks" in first and "wrote output.png" in first
    check_image(tmp_path / "output.png", 64)


def test_train_fsdp_goes_on_with_another_number_of_hosts(tmp_path: Path) -> None:
    checkpoint = ["--checkpoint", "checkpoint"]
    first = torchrun(tmp_path, 2, 2, "train_fsdp.py", "--steps", "11", *checkpoint)[0]
    begun, ended = (float(loss) for loss in re.findall(r"loss ([\d.]+)", first))
    assert ended < begun
    again = torchrun(tmp_path, 1, 3, "train_fsdp.py", "--steps", "1", *checkpoint)[0]
    assert "continuing from checkpoint" in again
    (loss,) = (float(loss) for loss in re.findall(r"loss ([\d.]+)", again))
    assert loss < begun
