"""The built-in models and users' models build, run, and start again where they started."""

from __future__ import annotations

import pytest
import torch

from vtc.bench import models
from vtc.bench.accuracy import STEPS, answer, compare, relative_error
from vtc.bench.case import Case
from vtc.errors import DeviceUnavailableError, InvalidOptionError, UnknownModelError

LANGUAGE = ("llama3", "gemma2")
VISION = {"efficientvit": 64, "yolo11": 64, "shufflenet": 64}


def tiny(name: str, **options: int) -> Case:
    """A built-in model small enough to run in well under a second on one thread."""
    if name in VISION:
        return models.build(name, size=VISION[name], **options)
    make = models.MODELS[name].make
    widths = models.decode.Widths(64, 96, 4, 2, 16, 128, layers=2, context=32, window=32)
    return make(
        widths,
        batch=options.get("batch", 1),
        device=torch.device("cpu"),
        dtype=torch.float32,
        seed=options.get("seed", 0),
    )


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("name", [*LANGUAGE, *VISION])
def test_runs_in_eager_at_any_batch_with_finite_values(name):
    case = tiny(name, batch=2)
    outputs = [t for t in torch.utils._pytree.tree_leaves(case.call()) if torch.is_tensor(t)]
    assert outputs[0].shape[0] == 2
    assert all(torch.isfinite(t).all() for t in outputs)


@pytest.mark.parametrize("name", [*LANGUAGE, *VISION])
def test_the_same_seed_gives_the_same_values_and_another_seed_others(name):
    first, second = (tiny(name) for _ in range(2))
    a, b = answer(first, first.call, 7), answer(second, second.call, 7)
    other = answer(first, first.call, 8)
    assert all(torch.equal(x, y) for x, y in zip(a.tensors(), b.tensors(), strict=True))
    assert not torch.equal(a.outputs[0], other.outputs[0])


@pytest.mark.parametrize("name", LANGUAGE)
def test_three_steps_after_reset_equal_a_fresh_run(name):
    case, fresh = tiny(name), tiny(name)
    for _ in range(2):  # leave traces in the counters and in the slots after the context
        case.call()
    again, once = answer(case, case.call, 3), answer(fresh, fresh.call, 3)
    assert len(once.outputs) == STEPS
    assert set(once.updated) == {
        f"{part}.{layer}" for part in ("keys", "values", "length") for layer in (0, 1)
    }
    for found, expected in zip(again.tensors(), once.tensors(), strict=True):
        assert torch.equal(found, expected)


def test_llama_writes_the_next_token_at_the_context():
    case = tiny("llama3")
    before = {name: tensor.clone() for name, tensor in case.updated().items()}
    case.call()
    changed = (case.updated()["keys.0"] != before["keys.0"]).any(dim=(0, 1, 3)).nonzero().flatten()
    assert changed.tolist() == [32]
    assert int(case.updated()["length.0"]) == 33
    case.reset()
    assert int(case.updated()["length.0"]) == 32


def test_gemma_slides_its_full_window_in_every_other_layer():
    case = tiny("gemma2")
    before = case.updated()["keys.0"].clone()
    case.call()
    keys = case.updated()
    assert keys["keys.0"].shape[2] == 32
    assert keys["keys.1"].shape[2] == 32 + models.decode.ROOM
    assert torch.equal(keys["keys.0"][:, :, :-1], before[:, :, 1:])


def test_decoding_attends_to_the_whole_context():
    case = tiny("llama3")
    full = case.call().clone()
    case.reset()
    case.updated()["values.0"][:, :, 0] += 10  # the oldest token
    assert not torch.allclose(case.call(), full)


@pytest.mark.parametrize("name", VISION)
def test_batch_norm_statistics_are_random_and_fixed_by_the_seed(name):
    def norms(case):
        return [
            m for m in case.model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)
        ]

    first, second, other = (norms(tiny(name, seed=seed)) for seed in (0, 0, 1))
    assert first
    for field in ("running_mean", "running_var", "weight", "bias"):
        for a, b, c in zip(first, second, other, strict=True):
            assert getattr(a, field).unique().numel() > 1
            assert torch.equal(getattr(a, field), getattr(b, field))
            assert not torch.equal(getattr(a, field), getattr(c, field))


@pytest.mark.parametrize("name", ["llama3", "gemma2"])
def test_a_twin_shares_weights_and_owns_its_caches(name):
    case = tiny(name)
    twin = case.twin()
    assert twin.model is case.model
    before = case.updated()["keys.1"].clone()
    twin.call()
    assert torch.equal(case.updated()["keys.1"], before)
    assert not torch.equal(twin.updated()["keys.1"], before)


@pytest.mark.parametrize("variant", ["grouped_heads", "flex_attention"])
def test_stock_variants_share_the_weights_and_leave_the_model_alone(variant):
    case = tiny("llama3")
    twin = case.twin(case.best[variant])
    shared = zip(case.model.parameters(), twin.model.parameters(), strict=True)
    assert all(a is b for a, b in shared)
    assert case.model.model.config._attn_implementation == "sdpa"
    assert twin.model.model.config._attn_implementation != "sdpa"


def test_grouped_heads_compute_what_the_model_computes():
    case = tiny("llama3", batch=2)
    twin = case.twin(case.best["grouped_heads"])
    a, b = answer(case, case.call, 5), answer(twin, twin.call, 5)
    for found, expected in zip(b.tensors(), a.tensors(), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", [*LANGUAGE, *VISION])
def test_the_float64_copy_agrees_and_is_float64(name):
    case = tiny(name)
    case.fresh_inputs(4)
    exact_case = case.widened()
    native = answer(case, case.call, 4)
    exact = answer(exact_case, exact_case.call, 4, fresh=False)
    assert exact.outputs[0].dtype == torch.float64
    result = compare(native, native, exact)
    assert result.correct
    assert 0 < result.max_rel_error < 1e-4


def test_a_wrong_cache_is_found_after_three_steps():
    case = tiny("llama3")
    case.fresh_inputs(4)
    exact_case = case.widened()
    native = answer(case, case.call, 4)
    exact = answer(exact_case, exact_case.call, 4, fresh=False)
    native.updated["keys.1"][0, 0, 33] += 0.5
    wrong = compare(native, answer(case, case.call, 4), exact)
    assert not wrong.correct
    assert wrong.max_rel_error > 1e-2


def test_relative_error_is_of_the_largest_magnitude():
    exact = torch.tensor([0.0, 4.0], dtype=torch.float64)
    assert relative_error(torch.tensor([1.0, 4.0]), exact) == 0.25
    assert relative_error(torch.tensor([1.0]), exact) == float("inf")
    assert relative_error(torch.tensor([float("nan"), 4.0]), exact) == float("inf")


def test_defaults_follow_the_device_and_options_change_them():
    case = models.build("shufflenet", size=32, dtype="float16")
    assert case.config["size"] == 32
    assert case.args[0].dtype == torch.float16
    widths = models._scaled(models.decode.LLAMA3_8B, layers=1, context=None)
    assert (widths.layers, widths.context) == (1, 4096)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"name": "llama"}, UnknownModelError, "did you mean 'llama3'"),
        ({"name": "shufflenet", "device": "cuda:99"}, DeviceUnavailableError, "cuda:99"),
        ({"name": "shufflenet", "device": "abacus"}, DeviceUnavailableError, "abacus"),
        ({"name": "shufflenet", "layers": 2}, InvalidOptionError, "layers"),
        ({"name": "llama3", "size": 224}, InvalidOptionError, "size"),
        ({"name": "shufflenet", "batch": 0}, InvalidOptionError, "batch"),
        ({"name": "no_such_module:make"}, UnknownModelError, "no module 'no_such_module'"),
        ({"name": "vtc.options:make"}, UnknownModelError, "no callable 'make'"),
        ({"name": "builtins:dict"}, UnknownModelError, "not (model, args)"),
    ],
)
def test_what_cannot_be_built_is_named(options, error, words):
    with pytest.raises(error, match=words.replace("(", r"\(").replace(")", r"\)")):
        models.build(**options)


USER_MODEL = """
import torch

class Counting(torch.nn.Module):
    def forward(self, x, state, scale=1.0):
        state["count"] += 1
        return (x * scale).t().contiguous()

def make(batch=1):
    return Counting(), (torch.ones(batch, 3), {"count": torch.zeros(1)}), {"scale": 2.0}
"""


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    (tmp_path / "their_model.py").write_text(USER_MODEL)
    monkeypatch.chdir(tmp_path)
    yield "their_model:make"
    import sys

    sys.modules.pop("their_model", None)
    sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path)]


def test_a_users_model_is_called_with_its_arguments_and_reset(user_module):
    case = models.build(user_module, batch=5)
    assert torch.equal(case.call(), torch.full((3, 5), 2.0))
    case.call()
    (count,) = case.updated().values()
    assert count.item() == 2
    case.reset()
    assert count.item() == 0
    assert not case.updated()


def test_a_users_model_is_judged_with_its_updated_inputs(user_module):
    case = models.build(user_module)
    case.fresh_inputs(1)
    double = case.widened()
    found, exact = answer(case, case.call, 1), answer(double, double.call, 1, fresh=False)
    assert len(found.updated) == 1
    assert compare(found, found, exact).correct
