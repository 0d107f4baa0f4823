# SPDX-License-Identifier: Apache-2.0
"""Without a usable core nothing raises until a device is used; then the error says why, and what to do."""

import pytest

PROGRAM = """
    import torch
    assert not torch.neuron.is_available()
    assert torch.neuron.device_count() == 0
    assert not torch.accelerator.is_available()
    torch.manual_seed(1)
    assert torch.ones(3).sum() == 3
    for use in (torch.neuron.init, lambda: torch.empty(2, device="neuron"), lambda: torch.ones(2).to("neuron")):
        try:
            use()
        except RuntimeError as error:
            print(error)
        else:
            raise AssertionError("no error")
"""


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"TORCH_NEURONX_PJRT_PLUGIN": "/nowhere/plugin.so"}, ["TORCH_NEURONX_PJRT_PLUGIN", "cannot be read"]),
        ({"TORCH_NEURONX_RUNTIME": "nrt"}, ["libnrt.so.1", "TORCH_NEURONX_RUNTIME=software"]),
        ({"TORCH_NEURONX_RUNTIME": "hardware"}, ["auto, nrt or software"]),
        ({"NEURON_RT_VISIBLE_CORES": "3,1"}, ["NEURON_RT_VISIBLE_CORES"]),
    ],
    ids=["no plugin", "no libnrt", "unknown runtime", "bad cores"],
)
def test_the_reason_is_named(run_python, environment, words):
    environment = {"TORCH_NEURONX_RUNTIME": "software", **environment}
    output = run_python(PROGRAM, **environment).stdout
    for line_has in words:
        assert output.count(line_has) >= 3, output


def test_no_plugin_installed(run_python):
    output = run_python(
        """
        import importlib.util
        real = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *a: None if "xla_cpu" in name or "pjrt_cpu" in name else real(name, *a)
        """
        + PROGRAM.replace("\n    ", "\n        "),
        TORCH_NEURONX_RUNTIME="software",
        TORCH_NEURONX_PJRT_PLUGIN=None,
    ).stdout
    assert "pip install fastatomstruct-xla-cpu" in output
