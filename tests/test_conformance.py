"""Parts of the conformance suites: real models through the DVM, and operators of OpInfo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from math import inf, nan
from pathlib import Path

import pytest
import torch

from vtc.errors import EngineUnavailableError
from vtc.runtime import dvm

try:
    dvm.native_machine()
except EngineUnavailableError as error:
    pytest.skip(str(error), allow_module_level=True)  # the interpreter is not built

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
    files = ["--state", str(tmp_path / "state"), "--json", str(score)]
    subprocess.run([sys.executable, str(command), *more, *files], check=True)
    found = json.loads(score.read_text())
    assert found["samples"] > 5
    assert found["cases"] == []


@pytest.mark.parametrize(
    ("values", "right"),
    [
        ([inf, 1.0], True),
        ([3e38, 1.0], True),
        ([3e38, 1.0000001], True),
        ([3e38, 1.1], False),
        ([nan, 1.0001], False),
        ([3e38, inf], False),
    ],
)
def test_an_element_that_eager_pytorch_has_infinitely_wrong_leaves_the_others_to_be_judged(
    values: list[float], right: bool
) -> None:
    judge = pytest.importorskip("opinfo_judge")
    reference = judge._Reference(lambda: torch.tensor([3e38, 1.0], dtype=torch.float64))
    with nullcontext() if right else pytest.raises(judge.Wrong):
        judge.compare_values(0, torch.tensor(values), torch.tensor([inf, 1.0]), reference)


def test_a_journal_is_read_from_all_files_and_written_to_one(tmp_path: Path) -> None:
    journal = pytest.importorskip("journal")
    first, second = (journal.Journal(tmp_path, f"{k}/2") for k in range(2))
    first.append({"begun": ["add", 0]})
    assert first.pending() == ["add", 0]
    first.append({"status": "right"})
    second.append({"status": "wrong"})
    assert first.pending() is second.pending() is None
    assert sorted(row.get("status", "") for row in first.rows()) == ["", "right", "wrong"]
    second.forget(lambda row: row.get("status") == "wrong")
    assert len(first.rows()) == 2
    assert journal.part([*range(7)], "1/3") == [1, 4]


def test_what_ends_a_process_is_a_row_and_the_rest_goes_on(tmp_path: Path) -> None:
    """Item 1 ends the process that begins it."""
    script = tmp_path / "suite.py"
    script.write_text(
        f"""
import os, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[1] / "conformance")!r})
from journal import Journal, part, spread
state = Path({str(tmp_path / "state")!r})
if "--share" in sys.argv:
    share = sys.argv[sys.argv.index("--share") + 1]
    journal = Journal(state, share)
    known = [row.get("item") for row in journal.rows()]
    for item in part([*range(16)], share):
        if item not in known:
            journal.append({{"begun": item}})
            if item == 1:
                os.abort()
            journal.append({{"item": item, "died": False}})
else:
    spread(state, 2, 0, lambda begun, code: {{"item": begun, "died": True}})
"""
    )
    subprocess.run([sys.executable, str(script)], check=True)
    journal = pytest.importorskip("journal").Journal(tmp_path / "state")
    rows = [row for row in journal.rows() if "item" in row]
    assert sorted(row["item"] for row in rows) == [*range(16)]
    assert [row["item"] for row in rows if row["died"]] == [1]


def test_a_journal_reads_folders_of_other_machines(tmp_path: Path) -> None:
    journal = pytest.importorskip("journal")
    journal.Journal(tmp_path, "0/1").append({"case": "here"})
    journal.Journal(tmp_path / "other", "0/1").append({"case": "there"})
    assert {row["case"] for row in journal.Journal(tmp_path).rows()} == {"here", "there"}


def test_what_hangs_ends_its_process(tmp_path: Path) -> None:
    """Where Python does not come to run a signal's handler, too."""
    journal = pytest.importorskip("journal")
    lines = (
        f"import sys; sys.path.append({str(Path(journal.__file__).parent)!r})",
        "import ctypes, journal",
        "with journal.watched(0.5):",
        "    ctypes.PyDLL(None).pause()",
    )
    ended = subprocess.run([sys.executable, "-c", "\n".join(lines)], timeout=100, check=False)
    assert ended.returncode != 0


def test_a_slice_ends_what_takes_too_long_with_all_its_processes(tmp_path: Path) -> None:
    slices = pytest.importorskip("slices")
    marks = tmp_path / "marks"
    child = f"import time; time.sleep(3); open({str(marks)!r}, 'w')"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    slices.run([sys.executable, "-c", parent], 1)
    time.sleep(4)
    assert not marks.exists()


@pytest.mark.slow
def test_every_suite_of_a_slice_is_a_command_that_takes_its_options(tmp_path: Path) -> None:
    slices = pytest.importorskip("slices")
    options: dict[str, set[str]] = {}
    for name in slices.SUITES:
        _, script, *given = slices.command(name, tmp_path, jobs=30, seconds=500)
        options.setdefault(script, set()).update(w for w in given if w.startswith("--"))
    for script, used in options.items():
        assert {"--jobs", "--seconds", "--json"} <= used
        shown = subprocess.run(
            [sys.executable, script, "--help"],
            env={**os.environ, "COLUMNS": "200", "TERM": "dumb"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert [option for option in used if option not in shown.stdout] == []
