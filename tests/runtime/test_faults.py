"""Faults around a compilation: right or a clear error, nothing corrupt, the next run fine."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vtc
import vtc.compiler
from vtc.lowering import cache, profile
from vtc.runtime import dvm, dvm_compile

pytestmark = [
    pytest.mark.filterwarnings("error::vtc.errors.VtcWarning"),
    pytest.mark.usefixtures("clean_dynamo"),
]
r = torch.randn


def fn(x: Tensor, w: Tensor) -> Tensor:
    return torch.cat([x @ w, (x + 1) @ w], 0) @ w


def args() -> tuple[Tensor, Tensor]:
    return r(2048, 64), r(64, 64)


def profiled(folder: Path) -> Any:
    """Compiled by measured costs that are kept in the folder."""
    options = {"verify": False, "min_gain_us": 0.0, "cache_dir": folder}
    return vtc.compile(fn, dynamic=False, options=options)


def check(compiled: Callable[..., Tensor]) -> None:
    x, w = args()
    torch.testing.assert_close(compiled(x, w), fn(x, w), rtol=1e-3, atol=1e-3)


# A process that compiles as above, in the folder that it is told. What stands between is run first.
PROGRAM = """
import json, os, signal, sys, warnings
from pathlib import Path
import torch
sys.path.insert(0, {tests!r})
from runtime import test_faults as t
from vtc.lowering import cache, profile
warnings.simplefilter("error", t.vtc.errors.VtcWarning)
torch.set_num_threads(1)
{prelude}
with torch.no_grad():
    t.check(t.profiled(Path(sys.argv[1])))
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"
WHILE_MEASURING = f"""
measure = profile.measure
def killed(*args):
    measure(*args)
    {KILL}
profile.measure = killed
"""
WHILE_WRITING = f"""
def half(value, file):
    file.write(json.dumps(value)[:9])
    file.flush()
    {KILL}
cache.json.dump = half
"""


def start(folder: Path, prelude: str = "") -> subprocess.Popen[bytes]:
    text = PROGRAM.format(tests=str(Path(__file__).parents[1]), prelude=prelude)
    command = [sys.executable, "-c", text, str(folder)]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})


def costs(folder: Path) -> list[float]:
    return [json.loads(file.read_text())["microseconds"] for file in folder.rglob("*.json")]


@pytest.mark.slow
@pytest.mark.parametrize("prelude", [WHILE_MEASURING, WHILE_WRITING], ids=["measuring", "writing"])
@torch.no_grad()
def test_a_killed_process_leaves_nothing_corrupt(tmp_path: Path, prelude: str) -> None:
    assert start(tmp_path, prelude).wait() == -signal.SIGKILL
    assert all(cost > 0 for cost in costs(tmp_path))
    check(profiled(tmp_path))  # without a warning
    assert costs(tmp_path)


@pytest.mark.slow
def test_two_processes_compile_at_once(tmp_path: Path) -> None:
    processes = [start(tmp_path) for _ in range(2)]
    assert [p.wait() for p in processes] == [0, 0]
    assert costs(tmp_path)
    assert not list(tmp_path.rglob("*.tmp"))


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@torch.no_grad()
def test_a_full_disk_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache.json, "dump", full)
    with pytest.warns(vtc.errors.CacheUnwritableWarning, match="No space left") as given:
        check(profiled(tmp_path))
    assert len(given) == 1
    assert not [f for f in tmp_path.rglob("*") if f.is_file()]
    monkeypatch.undo()
    torch._dynamo.reset()
    check(profiled(tmp_path))
    assert costs(tmp_path)


@torch.no_grad()
def test_a_read_only_home_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, writable = tmp_path / "home", Path.mkdir

    def read_only(self: Path, *args: Any, **kwargs: Any) -> None:
        if not self.is_relative_to(home):  # TorchInductor's own folders
            return writable(self, *args, **kwargs)
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    monkeypatch.setattr(cache.Path, "mkdir", read_only)
    with pytest.warns(vtc.errors.CacheUnwritableWarning, match="Read-only file system") as given:
        check(profiled(home))
    assert len(given) == 1


@torch.no_grad()
def test_out_of_memory_while_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any) -> Any:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:114] DefaultCPUAllocator: not enough")

    monkeypatch.setattr(profile.timing, "operands", exhausted)
    with pytest.warns(vtc.errors.FallbackWarning, match="DefaultCPUAllocator"):
        check(profiled(tmp_path))
    assert not costs(tmp_path)
    monkeypatch.undo()
    torch._dynamo.reset()
    check(profiled(tmp_path))


@pytest.mark.parametrize("engine", ["inductor", "dvm"])
@torch.no_grad()
def test_an_interrupted_compilation_is_done_again(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name = (dvm_compile, "lower") if engine == "dvm" else (vtc.compiler, "choose")

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    before = torch._dynamo.config.capture_scalar_outputs, torch._inductor.config.freezing
    options = {"cost": "static", "verify": False, "freeze": engine == "inductor"}
    compiled = vtc.compile(fn, engine=engine, options=options)
    with monkeypatch.context() as patch:
        patch.setattr(module, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            compiled(*args())
    assert before == (torch._dynamo.config.capture_scalar_outputs, torch._inductor.config.freezing)
    check(compiled)


@pytest.mark.parametrize("engine", ["inductor", "dvm"])
def test_eight_threads_call_one_compiled_model(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first call on, with sizes that the DVM encodes and drops again meanwhile."""
    monkeypatch.setattr(dvm, "KEPT", 3)
    model = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.ReLU(), torch.nn.Linear(24, 8))
    options = {"cost": "static", "verify": False}
    compiled = vtc.compile(model, engine=engine, options=options)
    rows = range(2, 9) if engine == "dvm" else (5,)
    failures: list[BaseException] = []
    ready = threading.Barrier(8)

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        ready.wait()
        try:
            with torch.no_grad():
                for k in range(40):
                    x = torch.randn(rows[(k + seed) % len(rows)], 16, generator=generator)
                    torch.testing.assert_close(compiled(x), model(x))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
