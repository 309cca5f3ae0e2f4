"""The threads that programs run on: how many, when they sleep, beside PyTorch's, after a fork."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from program.building import Kernel, buffer, module
from vm.running import encoded
from vtc.program.dtypes import DType
from vtc.vm import machine
from vtc.vm.machine import Encoded

pytestmark = pytest.mark.skipif(machine._native is None, reason="the native module is not built")

POINTS = 1_000_000  # enough for several threads
ASLEEP_S = 0.05  # longer than a team of OpenMP or an idle helper spins


def scaled(factor: float) -> Encoded:
    """y = factor * x in two kernels with a barrier between them."""
    first, second = Kernel("first", (POINTS,)), Kernel("second", (POINTS,))
    first.store(2, first.op("mul", first.load(0, 1), first.const(factor * 2)), 1)
    second.store(1, second.op("mul", second.load(2, 1), second.const(0.5)), 1)
    buffers = [buffer(name, DType.F32, POINTS) for name in "xy"]
    return encoded(module(first, second, buffers=[*buffers, buffer("t", DType.F32, POINTS)]))


def right(program: Encoded, factor: float) -> bool:
    x, y = torch.randn(POINTS), torch.empty(POINTS)
    program.run([x.data_ptr(), y.data_ptr(), 0])
    return torch.equal(y, x * factor)


@pytest.fixture
def many_threads() -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield 4
    torch.set_num_threads(before)


def helpers() -> list[Path]:
    """The tasks of this process that are helpers."""
    tasks = Path("/proc/self/task").glob("*")
    return [t for t in tasks if (t / "comm").read_text().strip() == "vtc-helper"]


def alone(work: Callable[[], None]) -> None:
    """Runs it in a process of its own, which ends well or fails the test."""
    process = multiprocessing.get_context("spawn").Process(target=work)
    process.start()
    process.join(240)
    if process.exitcode is None:
        process.kill()
    assert process.exitcode == 0


def _helpers_sleep() -> None:
    torch.set_num_threads(3)
    program = scaled(4.0)
    assert right(program, 4.0)
    assert machine.native_module().helpers_started() == 0  # a team's first region is to create it
    time.sleep(ASLEEP_S)
    assert right(program, 4.0)
    assert machine.native_module().helpers_started() == 2
    torch.set_num_threads(2)
    time.sleep(ASLEEP_S)
    assert right(program, 4.0)
    found = helpers()
    assert len(found) == 2
    time.sleep(ASLEEP_S)
    for task in found:
        before = (task / "stat").read_text().rpartition(") ")[2].split()
        time.sleep(4 * ASLEEP_S)
        after = (task / "stat").read_text().rpartition(") ")[2].split()
        assert before[0] == after[0] == "S"
        assert before[11:13] == after[11:13]  # processor time
        status = (task / "status").read_text()
        blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
        assert blocked >> signal.SIGINT - 1 & 1


def test_helpers_are_as_many_as_pytorch_has_threads_and_sleep_when_idle() -> None:
    alone(_helpers_sleep)


def _child_of_a_fork() -> None:
    torch.set_num_threads(3)
    program = scaled(2.0)
    for _ in range(2):
        assert right(program, 2.0)
        time.sleep(ASLEEP_S)
    x, y = torch.randn(POINTS), torch.empty(POINTS)
    child = os.fork()
    if child == 0:
        # PyTorch's own parallel regions would wait for ever in a child; programs do not.
        for _ in range(3):
            program.run([x.data_ptr(), y.data_ptr(), 0])
        given, found = x[:100].tolist(), y[:100].tolist()
        started = machine.native_module().helpers_started()
        os._exit(0 if found == [2 * v for v in given] and started == 2 else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert right(program, 2.0)


def test_programs_run_in_the_child_of_a_fork() -> None:
    alone(_child_of_a_fork)


@pytest.mark.parametrize("idle", [0.0, ASLEEP_S])
def test_programs_run_right_on_a_team_and_on_helpers(many_threads: int, idle: float) -> None:
    program = scaled(-3.0)
    for _ in range(5):
        time.sleep(idle)
        assert right(program, -3.0)


def test_threads_that_are_late_keep_what_they_read(many_threads: int) -> None:
    """Programs end while other threads call others: helpers that come late find their words."""
    failed: list[float] = []

    def work(own: int) -> None:
        for n in range(60):
            factor = float(own * 100 + n)
            if not right(scaled(factor), factor):
                failed.append(factor)
            time.sleep(0.0002 * (n % 7))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_the_memory_that_programs_use_beside_their_buffers_is_counted() -> None:
    program = scaled(2.0)
    take = machine.native_module().take_workspace_peak
    take()
    assert right(program, 2.0)
    assert program.arena_bytes >= 4 * POINTS
    assert (
        program.arena_bytes <= take() <= program.arena_bytes + (1 << 20) * torch.get_num_threads()
    )
    assert take() == 0
