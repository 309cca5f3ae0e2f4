"""Saved programs: what they answer, what they refuse, and that a damaged file does no harm."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
import types
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vtc
from vtc.errors import ArtifactError, SaveError, SignatureError
from vtc.runtime import artifact, dvm
from vtc.vm import machine

try:
    dvm.native_machine()
except vtc.errors.EngineUnavailableError as error:  # a processor or build without the machine
    pytest.skip(str(error), allow_module_level=True)

HELD = types.SimpleNamespace(x=torch.ones(4))
pytestmark = [
    pytest.mark.filterwarnings("error::vtc.errors.VtcWarning"),
    pytest.mark.usefixtures("clean_dynamo"),
]
r = torch.randn


class Small(nn.Module):
    """Two products, one of them packed, a norm, a result in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 40), nn.Linear(40, 9)
        self.norm = nn.LayerNorm(40)

    def forward(self, x: Tensor, scale: float = 2.0, *, mask: Tensor) -> dict[str, Any]:
        hidden = self.norm(self.first(x).relu()) * scale
        hidden = hidden * mask
        return {"y": self.second(hidden), "parts": (hidden[:2], [hidden.sum(), None])}


def exported() -> tuple[nn.Module, Any]:
    model = Small().eval()
    return model, vtc.export(model, (r(20, 24),), {"mask": r(40)}, engine="dvm")


def saved(path: Path) -> nn.Module:
    model, compiled = exported()
    vtc.save(compiled, path)
    return model


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifact") / "small.vtc"
    saved(path)
    return path


def test_a_loaded_model_answers_like_the_model(tmp_path: Path) -> None:
    model = saved(tmp_path / "small.vtc")
    loaded = vtc.load(tmp_path / "small.vtc")
    for _ in range(3):
        x, mask = r(20, 24), r(40)
        with torch.no_grad():
            torch.testing.assert_close(loaded(x, mask=mask), model(x, mask=mask))


def test_a_loaded_model_checks_its_arguments(file: Path) -> None:
    loaded = vtc.load(file)
    for args, kwargs, name in (
        ((r(21, 24),), {"mask": r(40)}, "args[0]"),
        ((r(24, 20).t(),), {"mask": r(40)}, "args[0]"),
        ((r(20, 24).double(),), {"mask": r(40)}, "args[0]"),
        ((r(20, 24), 3.0), {"mask": r(40)}, "args[1]"),
        ((r(20, 24),), {"other": r(40)}, "other"),
        ((r(20, 24),), {}, "mask"),
    ):
        with pytest.raises(SignatureError) as found:
            loaded(*args, **kwargs)
        assert found.value.argument in (name, "mask")


def test_outputs_of_two_calls_are_apart(file: Path) -> None:
    loaded = vtc.load(file)
    x, mask = r(20, 24), r(40)
    first = loaded(x, mask=mask)["y"]
    kept = first.clone()
    loaded(r(20, 24), mask=mask)["y"].zero_()
    torch.testing.assert_close(first, kept, rtol=0, atol=0)


def test_updated_arguments_are_updated_in_place(tmp_path: Path) -> None:
    class Cache(nn.Module):
        def forward(self, cache: Tensor, at: Tensor, x: Tensor) -> Tensor:
            cache.index_copy_(0, at, x)
            return cache.sum(0)

    args = (torch.zeros(8, 5), torch.tensor([3]), r(1, 5))
    vtc.save(vtc.export(Cache(), args, engine="dvm"), tmp_path / "cache.vtc")
    loaded = vtc.load(tmp_path / "cache.vtc")
    ours, theirs = torch.zeros(8, 5), torch.zeros(8, 5)
    for step in (2, 5, 2):
        at, x = torch.tensor([step]), r(1, 5)
        before = ours._version
        torch.testing.assert_close(loaded(ours, at, x), Cache()(theirs, at, x))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        assert ours._version > before
    with pytest.raises(IndexError):
        loaded(ours, torch.tensor([8]), r(1, 5))
    whole = r(9, 5)
    with pytest.raises(SignatureError):
        loaded(whole[:8], torch.tensor([1]), whole[7:8])


def test_what_cannot_be_saved_says_why(tmp_path: Path) -> None:
    model = Small().eval()
    with pytest.raises(SaveError, match=r"vtc\.export"):
        vtc.save(vtc.compile(model, engine="dvm"), tmp_path / "x")
    with pytest.warns(vtc.errors.FallbackWarning):
        unlike = vtc.export(lambda x: torch.linalg.inv(x) + 1, (r(4, 4),), engine="dvm")
    with pytest.raises(SaveError, match="eager PyTorch"):
        vtc.save(unlike, tmp_path / "x")
    odd = vtc.export(lambda x, how: x + how.real, (r(4), 2j), engine="dvm")
    with pytest.raises(SaveError, match=r"args\[1\]"):
        vtc.save(odd, tmp_path / "x")
    typed = vtc.export(lambda x: {"y": x + 1, "dtype": x.dtype}, (r(4),), engine="dvm")
    with pytest.raises(SaveError, match="holds a dtype that is no output"):
        vtc.save(typed, tmp_path / "x")
    held = vtc.export(lambda x: x + HELD.x, (r(4),), engine="dvm")
    with pytest.raises(SaveError, match=r"takes a tensor out of .*HELD"):
        vtc.save(held, tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_weights_are_those_of_the_time_of_saving(tmp_path: Path) -> None:
    model, compiled = exported()
    x, mask = r(20, 24), r(40)
    with torch.no_grad():
        compiled(x, mask=mask)
        model.first.weight.mul_(3)  # type: ignore[union-attr,operator]
        model.second = nn.Linear(40, 9)
        expected = model(x, mask=mask)["y"]
    vtc.save(compiled, tmp_path / "x")
    with torch.no_grad():
        model.first.weight.zero_()  # type: ignore[union-attr,operator]
    torch.testing.assert_close(vtc.load(tmp_path / "x")(x, mask=mask)["y"], expected)


def test_weights_are_mapped(tmp_path: Path) -> None:
    """Writing to a loaded tensor changes neither the file nor another's."""
    saved(tmp_path / "x")
    before = (tmp_path / "x").read_bytes()
    one, two = vtc.load(tmp_path / "x"), vtc.load(tmp_path / "x")
    for tensor in one.tensors:
        tensor.view(-1).zero_()
    x, mask = r(20, 24), r(40)
    assert not torch.equal(one(x, mask=mask)["y"], two(x, mask=mask)["y"])
    assert (tmp_path / "x").read_bytes() == before


def test_a_file_of_another_machine_is_refused(file: Path, monkeypatch: Any) -> None:
    here = machine.features()
    monkeypatch.setattr(machine, "features", lambda: here | {"instruction_set": "avx1024"})
    with pytest.raises(ArtifactError, match=r"saved for .* and this machine is .*avx1024"):
        vtc.load(file)


def test_a_file_of_another_instruction_set_is_refused(file: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(machine, "isa_version", lambda: "other")
    with pytest.raises(ArtifactError, match="another version of the instruction set"):
        vtc.load(file)


@pytest.mark.parametrize("kept", [0, 7, 39, 40, 300, -65, -1])
def test_a_truncated_file_is_refused(file: Path, tmp_path: Path, kept: int) -> None:
    (tmp_path / "cut").write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ArtifactError):
        vtc.load(tmp_path / "cut", check=False)


def test_a_flipped_bit_is_found(file: Path, tmp_path: Path) -> None:
    data = file.read_bytes()
    random.seed(3)
    length = struct.unpack_from("<Q", data, 8)[0]
    start = -(-(40 + length) // 64) * 64
    places = [*range(40), *(random.randrange(40, 40 + length) for _ in range(40))]
    places += [random.randrange(start, len(data)) for _ in range(40)]
    for place in places:
        damaged = bytearray(data)
        damaged[place] ^= 1 << random.randrange(8)
        (tmp_path / "damaged").write_bytes(damaged)
        with pytest.raises(ArtifactError):
            vtc.load(tmp_path / "damaged")


def rewritten(path: Path, change: Any) -> bytes:
    """The file with another description, and checksums that fit it."""
    data = path.read_bytes()
    length = struct.unpack_from("<Q", data, 8)[0]
    start = -(-(40 + length) // 64) * 64
    description, rest = json.loads(data[40 : 40 + length]), bytearray(data[start:])
    change(description, rest)
    text = json.dumps(description).encode()
    new = -(-(40 + len(text)) // 64) * 64
    head = artifact.HEAD.pack(
        artifact.MAGIC, len(text), zlib.crc32(text), new + len(rest), zlib.crc32(bytes(rest))
    )
    return head + text + bytes(new - 40 - len(text)) + bytes(rest)


def _sizes(own: dict[str, Any], data: bytearray) -> None:
    for facts in own["signature"]["args"]:
        if "tensor" in facts:
            facts["tensor"][0][0] -= 1


def _smaller(own: dict[str, Any], data: bytearray) -> None:
    for space in own["spaces"]:
        space["shape"] = [max(0, n - 1) for n in space["shape"]]


def _tensors(own: dict[str, Any], data: bytearray) -> None:
    for tensor in own["tensors"]:
        tensor["extent"] = max(0, tensor["extent"] - 1)


def _outside(own: dict[str, Any], data: bytearray) -> None:
    own["tensors"][0]["at"] = len(data)


def _types(own: dict[str, Any], data: bytearray) -> None:
    for tensor in own["tensors"]:
        tensor["dtype"] = "int8"


def _result(own: dict[str, Any], data: bytearray) -> None:
    own["result"] = {"output": 99}


def _words(own: dict[str, Any], data: bytearray) -> None:
    at = own["steps"][0]["words"]
    data[at + 8 : at + 16] = struct.pack("<Q", 5)


def _nothing(own: dict[str, Any], data: bytearray) -> None:
    del own["steps"]


@pytest.mark.parametrize(
    "change", [_sizes, _smaller, _tensors, _outside, _types, _result, _words, _nothing]
)
def test_a_forged_description_is_refused(file: Path, tmp_path: Path, change: Any) -> None:
    (tmp_path / "forged").write_bytes(rewritten(file, change))
    with pytest.raises(ArtifactError):
        vtc.load(tmp_path / "forged")


def test_forged_numbers_do_no_harm(file: Path, tmp_path: Path) -> None:
    """Every number of the description changed, in a process of its own: it is refused, or the
    program runs inside of its memory."""
    code = f"""
import json, random, sys
sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}
import torch, vtc
from test_artifact import numbers, rewritten
from pathlib import Path
path, forged = Path({str(file)!r}), Path({str(tmp_path / "forged")!r})
random.seed(1)
ran = refused = 0
for n in range(150):
    forged.write_bytes(rewritten(path, lambda own, data: numbers(own, data)))
    try:
        loaded = vtc.load(forged)
        loaded(torch.randn(20, 24), mask=torch.randn(40))
        ran += 1
    except (vtc.errors.VtcError, IndexError, ValueError, RuntimeError):
        refused += 1
print(ran, refused)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    ran, refused = map(int, done.stdout.split()[-2:])
    assert refused > 30
    assert ran + refused == 150


def numbers(own: dict[str, Any], data: bytearray) -> None:
    """Changes one or two numbers of a description, or a word of its programs."""
    places: list[tuple[Any, Any]] = []

    def visit(value: Any) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in items:
            if isinstance(part, dict | list):
                visit(part)
            elif isinstance(part, int) and not isinstance(part, bool):
                places.append((value, key))

    visit(own)
    for _ in range(random.choice((1, 1, 2))):
        if random.random() < 0.3:
            step = own["steps"][0]
            at = step["words"] + 8 * random.randrange(step["count"])
            data[at : at + 8] = struct.pack("<Q", random.choice((0, 1, 7, 1 << 20, 2**64 - 1)))
            continue
        value, key = random.choice(places)
        value[key] = random.choice((0, 1, -1, value[key] + 1, value[key] - 1, 1 << 20, 1 << 43))
