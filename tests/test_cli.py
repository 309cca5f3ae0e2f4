"""The commands, their files, and their errors: one sentence and exit code 1."""

from __future__ import annotations

import dataclasses
import logging
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

import vtc.log
from vtc import cli
from vtc.bench import peers, records, suite
from vtc.bench.peers import Prepared


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    def eager(case, settings, progress):
        twin = case.twin()
        return Prepared("vtc", twin, twin.call, twin.call, engine=settings.engine)

    monkeypatch.setitem(peers._PREPARE, "vtc", eager)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(capfd, *arguments):
    """(exit code, stdout, stderr) of `vtc` with these arguments."""
    code = 0
    try:
        cli.main(arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    written = capfd.readouterr()
    return code, written.out, written.err


@pytest.fixture(autouse=True)
def _wide_plain_consoles(monkeypatch):
    """Consoles of a fixed width that follow the captured streams."""
    from rich.console import Console

    monkeypatch.setattr(cli, "out", Console(width=200))
    monkeypatch.setattr(cli, "status_console", Console(width=200, stderr=True))


def test_help_and_version():
    runner = CliRunner()
    for command in ([], ["models"], ["explain"], ["bench"]):
        shown = runner.invoke(cli.app, [*command, "--help"])
        assert shown.exit_code == 0
        assert "Usage" in shown.output
    for command in ("models", "explain", "bench"):
        assert (
            "--json" in runner.invoke(cli.app, [command, "--help"], env={"COLUMNS": "200"}).output
        )
    shown = runner.invoke(cli.app, ["--version"])
    assert (shown.exit_code, shown.output.split()[1]) == (0, vtc.__version__)


def test_models_lists_all_and_writes_them(capfd, tmp_path):
    code, out, _ = run(capfd, "models", "--json", str(tmp_path / "m.json"))
    assert code == 0
    cases = records.read(tmp_path / "m.json")
    for name in ("llama3", "gemma2", "efficientvit", "yolo11", "shufflenet"):
        assert name in out
        assert [c["device"] for c in cases if c["model"] == name] == ["cpu", "cuda"]


def test_bench_prints_a_table_and_writes_every_batch(capfd, tmp_path):
    path = tmp_path / "b.json"
    code, out, err = run(
        capfd, "bench", "shufflenet", "--size", "32", "--batch", "1,2", "--peers", "eager",
        "--seconds", "0", "--json", str(path),
    )  # fmt: skip
    assert code == 0, err
    assert "shufflenet, batch 2" in out
    assert "best peer's time over vtc's" in out
    assert "computing the answer in float64" in err
    cases = records.read(path)
    assert [case["batch"] for case in cases] == [1, 2]
    assert {row["system"] for row in cases[0]["rows"]} == {"eager", "vtc"}


def test_settings_reach_the_systems(monkeypatch, capfd):
    seen = []
    monkeypatch.setattr(suite, "bench", lambda request, *rest: seen.append(request) or 1 / 0)
    run(capfd, "bench", "llama3", "--engine", "inductor", "--objective", "memory", "--freeze",
        "--layers", "1", "--context", "64", "--dtype", "bfloat16", "--max-autotune")  # fmt: skip
    (request,) = seen
    assert request.settings == peers.Settings("inductor", "memory", True, True)
    assert (request.layers, request.context, request.dtype) == (1, 64, "bfloat16")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bench", "shuflenet"], "did you mean 'shufflenet'"),
        (["explain", "nothing:make"], "no module 'nothing'"),
        (["bench", "shufflenet", "--device", "cuda:77"], "device 'cuda:77' is not available"),
        (["explain", "shufflenet", "--device", "cuda:77"], "device 'cuda:77' is not available"),
        (["bench", "shufflenet", "--peers", "eager,tensorrt"], "unknown peer 'tensorrt'"),
        (["bench", "shufflenet", "--batch", "1,x"], "batch is '1,x'"),
        (["bench", "shufflenet", "--engine", "gpu"], "unknown engine 'gpu'"),
        (["bench", "shufflenet", "--objective", "speed"], "unknown objective 'speed'"),
        (["bench", "shufflenet", "--dtype", "int4"], "unknown dtype 'int4'"),
        (["explain", "shufflenet", "--search", "luck"], "unknown search 'luck'"),
        (["bench", "shufflenet", "--context", "9"], "context is 9"),
        (["models", "--json", "/dev/null/file.json"], "a file that can be written"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_1(capfd, arguments, words):
    code, _, err = run(capfd, *arguments)
    assert code == 1
    assert words in err
    assert "Traceback" not in err
    assert len([line for line in err.splitlines() if line.startswith("error: ")]) == 1


def test_an_error_that_is_not_ours_names_its_kind_and_how_to_see_more(monkeypatch, capfd):
    def fails(*_):
        raise RuntimeError("the kernel exploded\nsecond line")

    monkeypatch.setattr(suite, "bench", fails)
    code, _, err = run(capfd, "bench", "shufflenet")
    assert code == 1
    assert "error: RuntimeError: the kernel exploded (VTC_DEBUG=1 shows the traceback)" in err
    monkeypatch.setenv("VTC_DEBUG", "1")
    with pytest.raises(RuntimeError, match="second line"):
        cli.main(["bench", "shufflenet"])


def test_a_users_model_is_benched(monkeypatch, tmp_path, capfd):
    (tmp_path / "my_net.py").write_text(
        "import torch\n"
        "def make(batch=1):\n"
        "    return torch.nn.Linear(4, 4), (torch.randn(batch, 4),)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    code, out, err = run(
        capfd, "bench", "my_net:make", "--batch", "3", "--peers", "eager", "--seconds", "0"
    )
    assert code == 0, err
    assert "my_net:make, batch 3" in out
    sys.modules.pop("my_net", None)


@dataclasses.dataclass(frozen=True)
class StubReport:
    """What the command line uses of a report."""

    saved: list
    model: str = ""
    batch: int | None = None
    device: str = "cpu"
    settings: dict = dataclasses.field(default_factory=dict)

    def to_dict(self):
        numbers = ("operators", "virtual", "residual", "kernels_before", "kernels_after",
                   "bytes_before", "bytes_after")  # fmt: skip
        return {
            "movement": dict.fromkeys(numbers, 0),
            "peak_bytes": {"before": 1, "after": 1},
            "vtog": {"nodes": 0, "edges": 0, "conflicts": 0},
            "search": {"profiles": 0, "cache_hits": 0, "seconds": 0.0, "gap": None},
            "operators": [],
        }

    def save(self, path):
        self.saved.append(str(path))


def test_explain_shows_the_report_and_writes_both_files(monkeypatch, tmp_path, capfd):
    saved, calls = [], []
    monkeypatch.delenv("VTC_LOG_LEVEL", raising=False)

    def explain(model, *args, **options):
        calls.append((args, options))
        vtc.log.set_level(options["options"]["log_level"])
        logging.getLogger("vtc.lowering").info("measuring a region")
        return StubReport(saved)

    monkeypatch.setattr(vtc, "explain", explain, raising=False)
    code, out, err = run(
        capfd, "explain", "shufflenet", "--size", "32", "--search", "exhaustive", "--freeze",
        "--json", str(tmp_path / "e.json"), "--html", str(tmp_path / "e.html"),
    )  # fmt: skip
    assert code == 0, err
    assert "StubReport" in out
    ((args, options),) = calls
    assert args[0].shape == (1, 3, 32, 32)
    assert options["search"] == "exhaustive"
    assert options["options"] == {"freeze": True, "log_level": "info"}
    assert "vtc: measuring a region" in err
    (case,) = records.read(tmp_path / "e.json")
    assert case["rows"][0]["vtog"] == {"nodes": 0, "edges": 0, "conflicts": 0}
    assert case["config"]["freeze"] is True
    assert saved == [str(tmp_path / "e.html")]


def test_the_command_runs_as_a_process():
    done = subprocess.run(
        [sys.executable, "-m", "vtc.cli", "bench", "nothing"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "unknown model 'nothing'" in done.stderr
