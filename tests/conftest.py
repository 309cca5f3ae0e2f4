"""Options and fixtures that tests of several layers use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

# Triton settles how it runs kernels when it is first imported: without a GPU, interpreted.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what tests produce into their golden files instead of comparing",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # These run kernels and CUDA graphs on a device: there is nothing of them that a CPU could run.
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` compares text with golden/NAME.txt beside the test's file."""
    folder = Path(request.path).parent / "golden"

    def check(name: str, text: str) -> None:
        path = folder / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            path.write_text(text + "\n")
        assert path.read_text() == text + "\n"

    return check


@pytest.fixture
def clean_dynamo() -> None:
    """Nothing that other tests compiled, and fixed random values."""
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture
def without_gradients() -> Iterator[None]:
    """No gradients are recorded, and nothing is there that other tests compiled."""
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()
