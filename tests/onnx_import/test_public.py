"""ONNX files through the public functions and commands, and models of torch exported and imported
back."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import vtc
from compiling import QUICK
from onnx_import.onnx_models import node, simple
from vtc.bench.models import build
from vtc.cli import main
from vtc.errors import InvalidOptionError, MissingExtraError, OnnxFileError
from vtc.graph.onnx.importer import load

r = np.random.default_rng(0)


@pytest.fixture
def split_and_join(tmp_path):
    """A file: two halves of a matmul, one of them rotated to the other side, joined by a concat."""
    made = simple(
        [
            node("MatMul", "x w", "a"),
            node("Split", "a", "b c", axis=-1, num_outputs=2),
            node("Sigmoid", "c", "d"),
            node("Concat", "d b", "e", axis=-1),
            node("MatMul", "e v", "y"),
        ],
        {"x": ["batch", 16, 32]},
        ["y"],
        {
            "w": r.standard_normal((32, 64)).astype(np.float32),
            "v": r.standard_normal((64, 8)).astype(np.float32),
        },
    )
    path = tmp_path / "halves.onnx"
    onnx.save(made, path, save_as_external_data=True, location="halves.weights", size_threshold=0)
    return path


def expected(path, x):
    module = load(path)
    b, c = (x @ module.w).chunk(2, -1)
    return torch.cat([c.sigmoid(), b], -1) @ module.v


@pytest.mark.filterwarnings("error::vtc.errors.VtcWarning")
def test_compile(split_and_join, clean_dynamo):
    compiled = vtc.compile(split_and_join, objective="bytes", options=QUICK)
    for batch in (2, 5):
        x = torch.randn(batch, 16, 32)
        assert torch.allclose(compiled(x), expected(split_and_join, x), atol=1e-4)


@pytest.mark.filterwarnings("error::vtc.errors.VtcWarning")
def test_export_takes_the_declared_signature(split_and_join, clean_dynamo):
    exported = vtc.export(split_and_join, objective="bytes", options=QUICK)
    x = torch.randn(1, 16, 32)
    assert torch.allclose(exported(x), expected(split_and_join, x), atol=1e-4)
    with pytest.raises(vtc.errors.SignatureError):
        exported(torch.randn(2, 16, 32))


def test_explain_names_the_file_and_its_movement(split_and_join, clean_dynamo):
    report = vtc.explain(str(split_and_join), objective="bytes", options=QUICK)
    assert report.model == "halves.onnx"
    operators = {o.operator for g in report.graphs for o in g.operators}
    assert {"Split", "Concat"} <= operators


def test_commands(split_and_join, capsys, clean_dynamo):
    with pytest.raises(SystemExit) as end:
        main(["explain", str(split_and_join), "--objective", "bytes", "--batch", "2"])
    assert not end.value.code
    assert "Concat" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        main(["explain", str(split_and_join.with_name("none.onnx"))])
    assert end.value.code == 1


def test_a_case_of_the_bench(split_and_join):
    case = build(str(split_and_join), batch=3)
    assert [tuple(a.shape) for a in case.args] == [(3, 16, 32)]
    exact = case.double().call()
    assert exact.dtype == torch.float64
    assert torch.allclose(case.call().double(), exact, atol=1e-4)
    assert build(str(split_and_join), dtype="bfloat16").call().dtype == torch.bfloat16
    with pytest.raises(InvalidOptionError):
        build(str(split_and_join), size=8)


def test_a_batch_that_the_file_fixes(tmp_path):
    path = tmp_path / "fixed.onnx"
    onnx.save(simple([node("Relu", "x", "y")], {"x": [2, 3]}, ["y"]), path)
    assert build(str(path)).args[0].shape == (2, 3)
    with pytest.raises(InvalidOptionError):
        build(str(path), batch=4)
    with pytest.raises(OnnxFileError):
        build(str(tmp_path / "none.onnx"))


def test_the_package_is_imported_when_a_file_is():
    code = "import sys, vtc, vtc.cli; assert 'onnx' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_the_package(monkeypatch, split_and_join):
    def missing(name):
        raise ModuleNotFoundError("No module named 'onnx'", name="onnx")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(MissingExtraError, match=r"vtc\[onnx\]"):
        vtc.compile(split_and_join)


# Models of torch, exported and imported back.


class Attention(nn.Module):
    """Grouped heads, a mask and rotary positions, as language models write them."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 64), nn.Linear(32, 32)
        self.norm = nn.RMSNorm(32)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).split([32, 16, 16], -1)
        q = q.view(b, n, 4, 8).transpose(1, 2)
        k, v = (t.view(b, n, 2, 8).transpose(1, 2).repeat_interleave(2, 1) for t in (k, v))
        turned = torch.cat([-q[..., 4:], q[..., :4]], -1)
        mask = torch.full((n, n), float("-inf")).triu(1)
        y = F.scaled_dot_product_attention(q + turned, k, v, attn_mask=mask)
        return x + self.out(y.transpose(1, 2).reshape(b, n, -1))


class Convolutions(nn.Module):
    """Split, shuffle, upsample and join, as detectors write them."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 2, 1)
        self.norm = nn.BatchNorm2d(16)
        self.depth = nn.Conv2d(8, 8, 3, 1, 1, groups=8)
        self.last = nn.Conv2d(24, 4, 1)

    def forward(self, x):
        x = F.silu(self.norm(self.stem(x)))
        a, b = x.chunk(2, 1)
        b = F.max_pool2d(self.depth(b), 2)
        x = torch.cat([a, F.interpolate(b, scale_factor=2.0), a.mean((2, 3), keepdim=True) * a], 1)
        n, c, h, w = x.shape
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        return F.pixel_shuffle(F.pad(self.last(x), (1, 1, 1, 1), mode="reflect"), 2)


def exported_file(module, args, folder, **options):
    pytest.importorskip("onnxscript")
    path = folder / "model.onnx"
    torch.onnx.export(module, args, path, dynamo=True, verbose=False, **options)
    return path


def agree(path, module, args):
    """The import, ONNX Runtime and torch agree."""
    with torch.no_grad():
        got, want = load(path)(*args), module(*args)
    assert torch.allclose(got, want, rtol=1e-3, atol=1e-4)
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feed = {i.name: a.numpy() for i, a in zip(session.get_inputs(), args, strict=True)}
    assert np.allclose(session.run(None, feed)[0], got.numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize(
    ("kind", "shape"), [(Attention, (2, 6, 32)), (Convolutions, (2, 3, 16, 16))], ids=["a", "c"]
)
def test_exported_and_imported_back(kind, shape, opset, tmp_path):
    torch.manual_seed(0)
    module, x = kind().eval(), torch.randn(shape)
    agree(exported_file(module, (x,), tmp_path, opset_version=opset), module, (x,))


def test_exported_with_dynamic_axes(tmp_path):
    torch.manual_seed(0)
    module = Attention().eval()
    dims = {"x": {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", min=2, max=64)}}
    path = exported_file(
        module, (torch.randn(2, 6, 32),), tmp_path, opset_version=18, dynamic_shapes=dims
    )
    for shape in ((2, 6, 32), (3, 9, 32)):
        agree(path, module, (torch.randn(shape),))


@pytest.mark.slow
def test_a_vision_model(tmp_path):
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    module = torchvision.models.shufflenet_v2_x0_5(weights=None).eval()
    x = torch.randn(1, 3, 64, 64)
    agree(exported_file(module, (x,), tmp_path, opset_version=18), module, (x,))


@pytest.mark.slow
def test_a_language_model(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=16,
    )
    model = transformers.BertModel(config).eval()

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids):
            return self.model(ids).last_hidden_state

    ids = torch.randint(0, 50, (2, 7))
    agree(exported_file(Last().eval(), (ids,), tmp_path, opset_version=18), Last(), (ids,))
