# SPDX-License-Identifier: Apache-2.0
"""The eager path: which program serves a call, what views and in-place updates do, how errors surface."""

import threading

import pytest
import torch
from torch.testing import assert_close

import torch_neuronx
from torch_neuronx import metrics


def programs() -> int:
    """Programs that this process has asked the compiler or the cache for."""
    torch.neuron.synchronize()
    return metrics.get_counter_value("CompilationCache.InMemoryMisses") or 0


class Counted:
    """Counts the programs that a block makes the eager path ask for."""

    def __enter__(self):
        self.before = programs()
        return self

    def __exit__(self, *exception):
        self.made = programs() - self.before


def pair(*shape, dtype=torch.float32, seed=0):
    """A CPU tensor and its copy on the device."""
    generator = torch.Generator().manual_seed(seed)
    cpu = torch.randn(*shape, generator=generator).to(dtype)
    return cpu, cpu.to("neuron")


class TestKey:
    def test_a_call_seen_before_compiles_nothing(self):
        _, x = pair(7, 5)
        x + x
        with Counted() as programs_of:
            x + x
        assert programs_of.made == 0

    def test_another_shape_compiles(self):
        _, x = pair(7, 5)
        x * x
        _, y = pair(5, 11)
        with Counted() as programs_of:
            y * y
        assert programs_of.made == 1

    def test_numbers_are_operands(self):
        cpu, x = pair(3, 4)
        x * 0.5 + 1
        with Counted() as programs_of:
            for factor in (0.25, -3.0, 1e-3):
                assert_close((x * factor + 7).cpu(), cpu * factor + 7)
            assert_close(torch.add(x, x, alpha=2.5).cpu(), torch.add(cpu, cpu, alpha=2.5))
            assert_close(torch.add(x, x, alpha=-1.5).cpu(), torch.add(cpu, cpu, alpha=-1.5))
        assert programs_of.made <= 1

    def test_cpu_scalars_are_operands(self):
        cpu, x = pair(3, 4)
        x - torch.tensor(1.0)
        with Counted() as programs_of:
            for value in (2.0, 3.5):
                assert_close((x - torch.tensor(value)).cpu(), cpu - value)
        assert programs_of.made == 0

    def test_static_arguments_are_part_of_the_key(self):
        cpu, x = pair(3, 4)
        assert_close(x.sum(0).cpu(), cpu.sum(0))
        assert_close(x.sum(1).cpu(), cpu.sum(1))
        assert_close(x.sum(1, keepdim=True).cpu(), cpu.sum(1, keepdim=True))

    def test_default_dtype_is_part_of_the_key(self):
        integers = torch.arange(4).to("neuron")
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            try:
                assert_close((integers * 0.1).cpu(), torch.arange(4) * 0.1, rtol=0, atol=0)
                assert_close(torch.full((2,), 0.1, device="neuron").cpu(), torch.full((2,), 0.1), rtol=0, atol=0)
                assert torch.arange(0.0, 3.0, device="neuron").dtype == dtype
            finally:
                torch.set_default_dtype(torch.float32)

    def test_dtype_of_numbers_follows_promotion(self):
        integers = torch.arange(6).to("neuron")
        assert (integers + 1).dtype == torch.int64
        assert (integers + 1.5).dtype == torch.float32
        assert_close((integers * 1.5).cpu(), torch.arange(6) * 1.5)
        half = torch.ones(3, dtype=torch.bfloat16).to("neuron")
        assert (half * 3.0).dtype == torch.bfloat16
        double = torch.ones(3, dtype=torch.float64).to("neuron")
        assert_close((double * 0.1).cpu(), torch.ones(3, dtype=torch.float64) * 0.1, rtol=0, atol=0)


VIEWS = {
    "transposed": lambda t: t.t(),
    "rows": lambda t: t[1:3],
    "columns": lambda t: t[:, 3:9],
    "one column": lambda t: t[:, 2],
    "one row": lambda t: t[2],
    "steps": lambda t: t[::2, 1::3],
    "expanded": lambda t: t[:, :1].expand(-1, 5),
    "permuted slice": lambda t: t.view(2, 3, 16).permute(2, 0, 1)[4:],
    "diagonal": lambda t: t.diagonal(),
    "windows": lambda t: t.unfold(1, 4, 2),
    "odd offset": lambda t: t.flatten()[5:23],
}


class TestViews:
    @pytest.mark.parametrize("name", VIEWS)
    def test_as_operand(self, name):
        cpu, x = pair(6, 16)
        expected, got = VIEWS[name](cpu) * 2 + 1, VIEWS[name](x) * 2 + 1
        assert_close(got.cpu(), expected)
        assert got.stride() == expected.stride()

    @pytest.mark.parametrize("name", [n for n in VIEWS if n not in ("expanded", "windows")])
    def test_updated_in_place(self, name):
        cpu, x = pair(6, 16)
        VIEWS[name](cpu).mul_(3).sub_(1)
        VIEWS[name](x).mul_(3).sub_(1)
        assert_close(x.cpu(), cpu)

    @pytest.mark.parametrize("name", [n for n in VIEWS if n not in ("expanded", "windows")])
    def test_copied_into(self, name):
        cpu, x = pair(6, 16)
        source, y = pair(*VIEWS[name](cpu).shape, seed=1)
        VIEWS[name](cpu).copy_(source)
        VIEWS[name](x).copy_(y)
        assert_close(x.cpu(), cpu)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
    def test_slices_of_every_offset(self, dtype):
        cpu = (torch.arange(7 * 9).reshape(7, 9) % 5).to(dtype)
        x = cpu.to("neuron")
        for start in range(7):
            assert_close((x[:, start : start + 2] == 1).cpu(), cpu[:, start : start + 2] == 1)

    def test_slices_of_one_shape_share_a_program(self):
        cpu, x = pair(8, 48)
        torch.exp(x[:, 0:16])
        with Counted() as programs_of:
            for start in (16, 32, 7):
                assert_close(torch.exp(x[:, start : start + 16]).cpu(), torch.exp(cpu[:, start : start + 16]))
        assert programs_of.made == 0

    def test_a_slice_outlives_its_parent(self):
        cpu, x = pair(4, 32)
        part = x[1:3]
        del x
        torch.neuron.empty_cache()
        assert_close((part + 0).cpu(), cpu[1:3])


class TestInPlace:
    def test_operand_that_is_also_the_target(self):
        cpu, x = pair(5, 5)
        x.add_(x)
        assert_close(x.cpu(), cpu + cpu)

    def test_overlapping_source(self):
        cpu, x = pair(5, 16)
        x.add_(x.t()[:5].sum())
        assert_close(x.cpu(), cpu + cpu.t()[:5].sum())
        x[0].copy_(x[1])
        assert_close(x.cpu()[0], x.cpu()[1])

    def test_a_view_sees_the_update(self):
        cpu, x = pair(4, 16)
        row = x[2]
        x.mul_(2)
        assert_close(row.cpu(), cpu[2] * 2)
        row.zero_()
        cpu = cpu * 2
        cpu[2] = 0
        assert_close(x.cpu(), cpu)

    def test_result_is_cast_to_the_target(self):
        x = torch.ones(4, dtype=torch.bfloat16).to("neuron")
        y = torch.full((4,), 0.3).to("neuron")
        x.add_(y)
        assert x.dtype == torch.bfloat16
        assert_close(x.cpu(), torch.ones(4, dtype=torch.bfloat16).add_(torch.full((4,), 0.3)))

    def test_what_cannot_be_cast_is_refused_as_on_the_cpu(self):
        x = torch.ones(4, dtype=torch.int64).to("neuron")
        with pytest.raises(RuntimeError, match="can't be cast"):
            x.add_(0.5)
        with pytest.raises(RuntimeError):
            torch.ones(3).to("neuron").add_(torch.ones(2, 3).to("neuron"))

    def test_version_counter_guards_backward(self):
        _, x = pair(3)
        x.requires_grad_()
        y = x.exp()
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


class TestOut:
    def test_written_into(self):
        cpu, x = pair(4, 6)
        out = torch.empty(4, 6, device="neuron")
        assert torch.add(x, x, out=out) is out
        assert_close(out.cpu(), cpu + cpu)

    def test_resized(self):
        cpu, x = pair(4, 6)
        out = torch.empty(0, device="neuron")
        torch.mul(x, x, out=out)
        assert_close(out.cpu(), cpu * cpu)

    def test_strided(self):
        cpu, x = pair(4, 6)
        base = torch.zeros(8, 12, device="neuron")
        torch.mul(x, 2, out=base[::2, ::2])
        expected = torch.zeros(8, 12)
        expected[::2, ::2] = cpu * 2
        assert_close(base.cpu(), expected)

    def test_alias_of_an_operand(self):
        cpu, x = pair(4, 6)
        torch.sub(x, 1, out=x)
        assert_close(x.cpu(), cpu - 1)

    def test_several_results(self):
        cpu, x = pair(4, 6)
        values, indices = torch.empty(0, device="neuron"), torch.empty(0, dtype=torch.int64, device="neuron")
        torch.max(x, 1, out=(values, indices))
        assert_close(values.cpu(), cpu.max(1).values)
        assert_close(indices.cpu(), cpu.max(1).indices)

    def test_dtype_that_does_not_fit(self):
        _, x = pair(4)
        with pytest.raises(RuntimeError, match="can't be cast"):
            torch.add(x, x, out=torch.empty(4, dtype=torch.int64, device="neuron"))


class TestBadArguments:
    @pytest.mark.parametrize(
        "call",
        [
            lambda d: torch.ones(3, device=d) + torch.ones(4, device=d),
            lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 3, device=d),
            lambda d: torch.ones(2, 3, device=d).sum(5),
            lambda d: torch.cat([torch.ones(2, 3, device=d), torch.ones(2, 4, device=d)]),
            lambda d: torch.ones(2, device=d).bitwise_and(torch.ones(2, device=d)),
            lambda d: torch.nn.functional.linear(torch.ones(2, 3, device=d), torch.ones(4, 5, device=d)),
            lambda d: torch.ones(2, 3, device=d).gather(0, torch.zeros(2, 3, device=d)),
        ],
    )
    def test_same_exception_type_as_the_cpu(self, call):
        with pytest.raises(Exception) as cpu:
            call("cpu")
        with pytest.raises(type(cpu.value)):
            call("neuron")

    def test_operands_on_two_devices(self):
        x = torch.ones(3).to("neuron")
        with pytest.raises(RuntimeError, match=r"aten::add.Tensor.*same device"):
            x + torch.ones(3)

    @pytest.mark.skipif(torch.neuron.device_count() < 2, reason="needs two cores")
    def test_operands_on_two_cores(self):
        with pytest.raises(RuntimeError, match=r"neuron:0 and neuron:1|neuron:1 and neuron:0"):
            torch.ones(3, device="neuron:0") + torch.ones(3, device="neuron:1")


class TestAsynchronousErrors:
    def test_index_out_of_range_surfaces_when_waiting(self):
        weight = torch.randn(10, 4).to("neuron")
        index = torch.tensor([3, 11]).to("neuron")
        torch.nn.functional.embedding(index, weight)
        with pytest.raises(IndexError, match=r"(?s)aten::embedding.*i64\[2\].*test_eager\.py"):
            torch.neuron.synchronize()
        assert_close((weight + 0).cpu(), weight.cpu())

    @pytest.mark.parametrize("name", ["gather", "index_select", "index", "take"])
    def test_every_indexing_operator(self, name):
        x = torch.randn(4, 4).to("neuron")
        index = torch.tensor([0, 99]).to("neuron")
        {
            "gather": lambda: x.gather(1, index.expand(4, 2)),
            "index_select": lambda: x.index_select(0, index),
            "index": lambda: x[index],
            "take": lambda: x.take(index),
        }[name]()
        with pytest.raises(IndexError):
            torch.neuron.synchronize()
        torch.neuron.synchronize()

    def test_reading_a_value_raises_too(self):
        x = torch.randn(4).to("neuron")
        y = x[torch.tensor([7]).to("neuron")]
        with pytest.raises(IndexError):
            y.item()


class TestOperatorLog:
    def test_names(self):
        _, x = pair(2, 3)
        torch.neuron.synchronize()
        torch_neuronx.clear_op_tracking()
        x.add_(1)
        torch.nn.functional.linear(x, x)
        torch.nn.functional.softmax(x, dim=-1)
        assert {"aten::add_.Tensor", "aten::linear", "aten::softmax"} <= set(torch_neuronx.get_executed_ops())
        assert torch_neuronx.get_fallback_ops() == []

    def test_fallback_warns_once_and_is_listed(self):
        x = torch.tensor([0.0, 1.0, 0.0, 2.0]).to("neuron")
        torch_neuronx.clear_op_tracking()
        assert_close(torch.nonzero(x).cpu(), torch.tensor([[1], [3]]))
        assert_close(torch.masked_select(x, x > 0).cpu(), torch.tensor([1.0, 2.0]))
        assert {"aten::nonzero", "aten::masked_select"} <= set(torch_neuronx.get_fallback_ops())

    def test_composites_decompose_when_differentiated(self):
        cpu, x = pair(3, 4)
        weight, w = pair(5, 4, seed=1)
        weight.requires_grad_()
        w.requires_grad_()
        torch.nn.functional.linear(cpu, weight).pow(2).sum().backward()
        torch.nn.functional.linear(x, w).pow(2).sum().backward()
        assert_close(w.grad.cpu(), weight.grad)


def test_several_threads():
    _, x = pair(16, 16)
    expected = x.clone()
    for _ in range(20):
        expected = torch.tanh(expected @ x)
    expected = expected.cpu()
    results, errors = {}, []

    def work(number):
        try:
            y = x.clone()
            for _ in range(20):
                y = torch.tanh(y @ x)
            results[number] = y.cpu()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for result in results.values():
        assert_close(result, expected, rtol=0, atol=0)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
def test_training_follows_the_cpu(optimizer):
    def run(device):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
        ).to(device)
        step = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-2)
        data, target = torch.randn(32, 8).to(device), torch.randn(32, 4).to(device)
        losses = []
        for _ in range(5):
            step.zero_grad()
            loss = torch.nn.functional.mse_loss(model(data), target)
            loss.backward()
            step.step()
            losses.append(loss.item())
        return torch.tensor(losses)

    assert_close(run("neuron"), run("cpu"), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*runs on the CPU")
def test_an_operator_without_meta_kernel_runs_on_fake_tensors():
    """PyTorch then makes zeros like the fake ones, which have no memory, and runs the operator on these."""
    mode = torch._subclasses.FakeTensorMode()
    fake = mode.from_tensor(torch.randn(3, 4, device="neuron"))
    with mode:
        result = torch.fake_quantize_per_tensor_affine(fake, 0.1, 0, -128, 127)
    assert (result.shape, result.device.type) == ((3, 4), "neuron")
