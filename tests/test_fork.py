# SPDX-License-Identifier: Apache-2.0
"""A forked child of a process that uses the device gets a clear error; one that does not may use it."""

SPAWN_HINT = "Cannot re-initialize neuron in forked subprocess"


def test_a_forked_child_is_refused(run_python):
    result = run_python(
        """
        import os, sys, torch
        x = torch.ones(3).to("neuron")
        torch.neuron.synchronize()
        pid = os.fork()
        if pid == 0:
            assert torch.neuron._is_in_bad_fork()
            uses = (lambda: torch.empty(2, device="neuron"), lambda: x.cpu(), lambda: x.clone(),
                    torch.neuron.synchronize, torch.neuron.init)
            for use in uses:
                try:
                    use()
                except RuntimeError as error:
                    assert "Cannot re-initialize neuron" in str(error) and "'spawn'" in str(error), error
                else:
                    os._exit(3)
            del x
            torch.manual_seed(0)
            assert torch.ones(4).sum() == 4
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert not torch.neuron._is_in_bad_fork()
        assert x.cpu().sum() == 3
        """
    )
    assert SPAWN_HINT not in result.stderr


def test_fork_before_first_use(run_python):
    run_python(
        """
        import os, torch
        assert torch.neuron.device_count() > 0
        pid = os.fork()
        if pid == 0:
            ok = torch.ones(3).to("neuron").cpu().sum() == 3 and not torch.neuron._is_in_bad_fork()
            os._exit(0 if ok else 4)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        """
    )


def test_data_loader_workers_that_stay_on_the_host(run_python):
    run_python(
        """
        import torch
        x = torch.ones(3).to("neuron")
        loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=4, num_workers=1)
        assert torch.cat(list(loader)).sum() == 28
        assert x.cpu().sum() == 3
        """
    )


def test_spawn(run_python, tmp_path):
    program = tmp_path / "spawned.py"
    program.write_text(
        "import torch\n"
        "def work(rank, queue):\n"
        "    queue.put(torch.full((2,), float(rank)).to('neuron').cpu().tolist())\n"
        "if __name__ == '__main__':\n"
        "    x = torch.ones(3).to('neuron')\n"
        "    context = torch.multiprocessing.get_context('spawn')\n"
        "    queue = context.SimpleQueue()\n"
        "    process = context.Process(target=work, args=(1, queue))\n"
        "    process.start()\n"
        "    assert queue.get() == [1.0, 1.0]\n"
        "    process.join()\n"
        "    assert process.exitcode == 0\n"
    )
    run_python(f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')")


def test_exit_with_work_in_flight(run_python):
    run_python(
        """
        import torch
        keep = [torch.ones(1 << 20).pin_memory().to("neuron", non_blocking=True) for _ in range(20)]
        """,
        timeout=60,
    )
