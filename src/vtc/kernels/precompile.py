"""Compiling many generated kernels at once, in processes of their own.

Triton's compiler holds the interpreter lock for half of its time, so threads do not do. A launch is
asked for its specialisation instead of running; workers compile that into Triton's cache on disk,
where the launch finds it when it is run.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from triton import knobs
from triton.runtime import driver

from vtc.kernels import jit

logger = logging.getLogger(__name__)

WORKER = Path(__file__).with_name("compile_worker.py")
FEW = 4
"""Fewer kernels than this are compiled sooner than workers start."""

Job = dict[str, Any]


def begin(
    launches: Iterable[Callable[[], object]], workers: int | None = None
) -> Callable[[], int]:
    """Begin to compile the generated kernels that these calls launch, and that this process has not
    compiled. The result waits until they are, and gives their number.

    A call is made with generated kernels not running: what else it does on the device, it does. A
    kernel that cannot be compiled is left to the launch, which fails as it would have.
    """
    if knobs.runtime.interpret:
        return lambda: 0
    jobs = {job["key"]: job for job in _wanted(launches)}
    if len(jobs) < FEW or not sys.executable:
        return lambda: 0
    queue = iter(list(jobs.values()))
    count = min(workers or os.cpu_count() or 1, len(jobs))
    pool = ThreadPoolExecutor(count)
    serving = [pool.submit(_served, queue) for _ in range(count)]
    pool.shutdown(wait=False)
    return lambda: sum(served.result() for served in serving)


def _wanted(launches: Iterable[Callable[[], object]]) -> list[Job]:
    """What Triton would have compiled for each launch."""
    jobs: list[Job] = []
    with _asking(jobs):
        for launch in launches:
            try:
                launch()
            except Exception:  # what cannot run is found out when it is to run
                logger.debug("a kernel cannot be asked for", exc_info=True)
    return jobs


@contextmanager
def _asking(jobs: list[Job]) -> Iterator[None]:
    """While it lasts, generated kernels that are not compiled yet are noted and do not run."""
    before, device = knobs.runtime.jit_cache_hook, driver.active.get_current_target()
    target = [device.backend, device.arch, device.warp_size]

    def hook(*, fn: Any, compile: dict[str, Any], key: Any, **rest: Any) -> bool | None:
        path = jit.file_of(fn.module)
        if path is None:
            if before is None:
                return None
            answer: bool | None = before(fn=fn, compile=compile, key=key, **rest)
            return answer
        data = compile["specialization_data"]
        job = {"path": str(path), "module": fn.module, "name": fn.name, "specialization": data}
        jobs.append({**job, "target": target, "key": f"{fn.module} {data}"})
        return True

    knobs.runtime.jit_cache_hook = hook
    try:
        yield
    finally:
        knobs.runtime.jit_cache_hook = before


def _served(queue: Iterator[Job]) -> int:
    """Kernels that one worker compiled; what it could not is left to the launches."""
    try:
        return _serve(queue)
    except (OSError, ValueError):  # no process to be had, or one that does not answer in JSON
        logger.debug("a compile worker failed", exc_info=True)
        return 0


def _serve(queue: Iterator[Job]) -> int:
    """One worker on jobs of the queue, until none is left or the worker fails."""
    first = next(queue, None)
    if first is None:
        return 0
    # -P: the modules beside the worker have names of the standard library's.
    command = [sys.executable, "-P", str(WORKER)]
    done = 0
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        for job in _and(first, queue):
            try:
                worker.stdin.write(json.dumps(job) + "\n")
                worker.stdin.flush()
                answer = worker.stdout.readline()
            except OSError:
                answer = ""
            if not answer:
                logger.debug("a compile worker has ended")
                break
            if error := json.loads(answer):
                logger.debug("%s is not compiled: %s", job["module"], error)
            done += 1
        worker.stdin.close()
    return done


def _and(first: Job, rest: Iterator[Job]) -> Iterator[Job]:
    yield first
    yield from rest
