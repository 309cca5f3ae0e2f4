"""`vtc dis`: the programs of a model, at the sizes of a call and at others."""

import pytest
import torch

from vtc import cli
from vtc.vm import machine

pytestmark = pytest.mark.skipif(machine._native is None, reason="the native module is not built")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(12, 8)

    def forward(self, x):
        return torch.softmax(self.linear(x), -1)


def make(batch=1):
    """A model with a batch size of any value."""
    torch.manual_seed(0)
    return Net().eval(), (torch.randn(batch + 2, 12),)


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as done:
        cli.main(["dis", f"{__name__}:make", *arguments])
    captured = capsys.readouterr()
    return done.value.code or 0, captured.out, captured.err


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _self())


def _self():
    import types

    own = types.ModuleType(__name__)
    own.make = make
    return own


def test_symbolic_kernels_stand_above_their_words(capsys, clean_dynamo):
    code, out, err = run(capsys, "--batch", "3")
    assert code == 0, err
    assert "; kernel" in out
    assert "matmul f32 left=" in out
    assert "matmul k=12" in out
    assert "exp r" in out
    assert "module 0 at s" in out


def test_other_sizes(capsys, clean_dynamo):
    _, out, _ = run(capsys)
    symbol = out.partition("module 0 at ")[2].partition("=")[0]
    code, out, err = run(capsys, "--shape", f"{symbol}=77")
    assert code == 0, err
    assert f"{symbol}=77" in out
    assert "d0=77" in out or "=77" in out.partition("kernel 0")[2]


@pytest.mark.parametrize(
    ("shape", "reason"), [("s0:3", "SYMBOL=NUMBER"), ("q9=3", "unknown size symbol 'q9'")]
)
def test_wrong_shapes_are_refused(capsys, clean_dynamo, shape, reason):
    code, _, err = run(capsys, "--shape", shape)
    assert code == 1
    assert reason in err
