# SPDX-License-Identifier: Apache-2.0
"""Devices: how many there are, which one is current, and what `import torch` does."""

import pytest
import torch

MANY = torch.neuron.device_count() > 1
needs_two = pytest.mark.skipif(not MANY, reason="needs two NeuronCores")


@pytest.fixture(autouse=True)
def restore_current_device():
    before = torch.neuron.current_device()
    yield
    torch.neuron.set_device(before)


def test_import_torch_registers_the_device():
    assert torch.device("neuron:0").type == "neuron"
    assert torch.neuron.is_available()
    assert torch.neuron.device_count() >= 1


def test_empty_is_on_the_device():
    x = torch.empty(2, 3, device="neuron")
    assert x.device == torch.device("neuron", torch.neuron.current_device())
    assert x.is_neuron and x.shape == (2, 3) and x.dtype == torch.float32


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_empty_takes_a_memory_format(memory_format):
    x = torch.empty(2, 3, 4, 5, device="neuron", memory_format=memory_format)
    assert x.is_contiguous(memory_format=memory_format)


def test_empty_strided():
    x = torch.empty_strided((2, 3), (1, 2), device="neuron")
    assert x.stride() == (1, 2)


def test_current_device_is_an_int():
    assert isinstance(torch.neuron.current_device(), int)


@needs_two
@pytest.mark.parametrize("device", [1, "neuron:1", torch.device("neuron:1")])
def test_set_device(device):
    torch.neuron.set_device(device)
    assert torch.neuron.current_device() == 1
    assert torch.empty(1, device="neuron").device.index == 1


@needs_two
def test_device_context_restores_the_device():
    torch.neuron.set_device(0)
    with torch.neuron.device(1):
        assert torch.neuron.current_device() == 1
        with torch.neuron.device(None):
            assert torch.neuron.current_device() == 1
    assert torch.neuron.current_device() == 0


@needs_two
def test_device_of():
    x = torch.empty(1, device="neuron:1")
    with torch.neuron.device_of(x):
        assert torch.neuron.current_device() == 1
    with torch.neuron.device_of(torch.empty(1)):
        assert torch.neuron.current_device() == 0


@needs_two
def test_the_current_device_belongs_to_a_thread():
    import threading

    torch.neuron.set_device(1)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.neuron.current_device()))
    thread.start()
    thread.join()
    assert seen == [0]


def test_a_device_that_does_not_exist_is_refused():
    count = torch.neuron.device_count()
    with pytest.raises(RuntimeError, match=f"neuron:{count}"):
        torch.empty(1, device=f"neuron:{count}")
    with pytest.raises(RuntimeError, match=f"neuron:{count}"):
        torch.neuron.set_device(count)


def test_another_device_type_is_refused():
    with pytest.raises(ValueError, match="cpu"):
        torch.neuron.set_device("cpu")


def test_properties():
    properties = torch.neuron.get_device_properties()
    assert properties.name.startswith(("trn", "inf"))
    assert properties.total_memory > 1 << 28
    assert torch.neuron.get_device_name(0) == properties.name


def test_low_precision_support():
    assert torch.neuron.is_bf16_supported()
    assert torch.bfloat16 in torch.neuron.get_amp_supported_dtype()


def test_platform_questions():
    from torch_neuronx import utils

    assert utils.get_platform_target().startswith(("trn", "inf"))
    assert utils.get_logical_neuron_cores() in (1, 2)
    assert utils.is_sync_mode_enabled() in (True, False)
    assert utils.use_mlir_aten_ops() is True


def test_unsupported_layouts_and_pinning_are_refused():
    with pytest.raises(RuntimeError, match="pinned"):
        torch.empty(2, device="neuron", pin_memory=True)
    with pytest.raises(NotImplementedError, match="Quantizedneuron"):
        torch.empty(2, device="neuron", dtype=torch.qint8)


@pytest.mark.parametrize(
    ("first", "autoload"), [("torch", "1"), ("torch_neuronx", "1"), ("torch_neuronx", "0"), ("torch", "0")]
)
def test_either_package_may_be_imported_first_and_says_nothing(run_python, first, autoload):
    result = run_python(
        f"import {first}\nimport torch, torch_neuronx\nassert torch.empty(2, device='neuron').is_neuron",
        TORCH_DEVICE_BACKEND_AUTOLOAD=autoload,
    )
    assert result.stdout == "" and result.stderr == ""


def test_import_loads_neither_runtime_nor_compiler(run_python):
    run_python(
        """
        import sys, torch
        assert not torch.neuron.is_initialized()
        heavy = [m for m in sys.modules if m.startswith(("torch._dynamo", "diffusers", "torch_neuronx.lowering"))]
        assert not heavy, heavy
        assert not torch.neuron.is_initialized() and torch.neuron.device_count() > 0
        torch.neuron.init()
        assert torch.neuron.is_initialized()
        """
    )


def test_the_local_rank_chooses_the_first_current_device(run_python):
    run_python(
        """
        import torch
        assert torch.neuron.current_device() == 1
        assert torch.empty(1, device="neuron").device.index == 1
        """,
        LOCAL_RANK="1",
        LOCAL_WORLD_SIZE="2",
        TORCH_NEURONX_RUNTIME="software",
    )


def test_visible_cores(run_python):
    run_python(
        """
        import torch
        assert torch.neuron.device_count() == 2
        assert torch.ones(3).to("neuron:1").cpu().sum() == 3
        """,
        NEURON_RT_VISIBLE_CORES="2-3",
        TORCH_NEURONX_RUNTIME="software",
    )


def test_vendor_library_under_a_launcher(run_python, tmp_path):
    """A libnrt.so.1 is used through the public ABI alone; each process claims the core of its rank."""
    import pathlib

    import torch_neuronx._C
    from torch_neuronx.neuron.plugin import find_pjrt_plugin

    (tmp_path / "libnrt.so.1").symlink_to(pathlib.Path(torch_neuronx._C.__file__).parent / "libneuroncore.so")
    run_python(
        """
        import os, torch
        assert torch.neuron.current_device() == 1 and torch.neuron.device_count() == 2
        assert not torch.neuron.get_device_properties().is_software
        x = torch.empty(4, device="neuron").copy_(torch.arange(4.0))
        assert x.device.index == 1 and x.cpu().tolist() == [0, 1, 2, 3]
        try:
            torch.empty(4, device="neuron:0")
        except RuntimeError as error:
            assert "belongs to another process" in str(error)
        else:
            raise AssertionError("a core of another process was given out")
        """,
        LD_LIBRARY_PATH=str(tmp_path),
        LOCAL_RANK="1",
        LOCAL_WORLD_SIZE="2",
        NEURON_RT_VISIBLE_CORES=None,
        TORCH_NEURONX_PJRT_PLUGIN=find_pjrt_plugin(),
        TORCH_NEURONX_RUNTIME="nrt",
    )


def test_another_torch_version_is_refused(run_python):
    result = run_python(
        """
        import sys, types, torch
        build = types.ModuleType("torch_neuronx._build")
        build.TORCH_VERSION = "2.1.0"
        import importlib.machinery
        sys.modules["torch_neuronx._build"] = build
        import torch_neuronx
        """,
        check=False,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert result.returncode != 0
    assert "ImportError: torch_neuronx was built against torch 2.1.0" in result.stderr
    assert "make setup" in result.stderr
