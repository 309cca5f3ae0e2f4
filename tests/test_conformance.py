"""Parts of the conformance suites: real models through the DVM, and operators of OpInfo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vtc.errors import EngineUnavailableError
from vtc.runtime import dvm

try:
    dvm.native_machine()
except EngineUnavailableError as error:
    pytest.skip(str(error), allow_module_level=True)

QUICK = ("transformers/gpt2", "transformers/vit", "torchvision/alexnet")
MODELS = (
    *("transformers/bert", "transformers/llama", "transformers/t5", "transformers/swin"),
    *("transformers/deberta-v2", "transformers/mamba", "timm/convnext_atto", "timm/repvgg_a0"),
    *("torchvision/shufflenet_v2_x0_5", "torchvision/squeezenet1_1"),
)
OPERATORS = (
    *("ceil", "add", "maximum", "meshgrid", "flip", "expand_copy", "linspace", "batch_norm"),
    *("replicate_negative", "cumsum", "cross", "native_dropout", "max_pool1d"),
)


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in MODELS)]
)
def test_a_model_is_right_on_the_dvm(name: str, clean_dynamo: None) -> None:
    pytest.importorskip(name.partition("/")[0])
    models = pytest.importorskip("models")
    verdict = models.judge(models.models()[name], "dvm")
    assert verdict.status == "right", verdict.reason


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["function", "inplace", "view"])
def test_operators_are_right_on_the_dvm(variant: str, tmp_path: Path) -> None:
    """In a process of its own: PyTorch's testing modules change global settings."""
    pytest.importorskip("expecttest")
    command = Path(__file__).parents[1] / "conformance" / "opinfo.py"
    score = tmp_path / "score.json"
    more = ["--filter", "|".join(OPERATORS), "--variant", variant, "--each", "2"]
    files = ["--state", str(tmp_path / "state.jsonl"), "--json", str(score)]
    subprocess.run([sys.executable, str(command), *more, *files], check=True)
    found = json.loads(score.read_text())
    assert found["samples"] > 5
    assert found["cases"] == []
