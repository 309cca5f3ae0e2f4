"""Every error names the thing and the way out, and survives pickling."""

import inspect
import pickle

import pytest

from vtc import errors
from vtc.errors import VtcError, VtcWarning

EXAMPLES: list[tuple[VtcError | VtcWarning, type[BaseException], tuple[str, ...]]] = [
    (
        errors.UnknownModelError("lama3", ["llama3", "yolo11"]),
        ValueError,
        ("'lama3'", "llama3, yolo11", "module:factory", "did you mean 'llama3'?"),
    ),
    (
        errors.UnknownChoiceError("engine", "inducter", ["auto", "inductor"]),
        ValueError,
        ("engine 'inducter'", "auto, inductor", "did you mean 'inductor'?"),
    ),
    (errors.UnknownOptionError("freze", ["freeze"]), TypeError, ("'freze'", "'freeze'?")),
    (
        errors.LostValueError("ValueError: no kernel"),
        RuntimeError,
        ("never computed", "ValueError: no kernel", "outside of vtc.stream"),
    ),
    (
        errors.InvalidOptionError("VTC_FREEZE", "maybe", "1 or 0"),
        ValueError,
        ("VTC_FREEZE", "'maybe'", "1 or 0"),
    ),
    (
        errors.UnknownTensorError("cat_9", [f"cat_{k}" for k in range(20)]),
        ValueError,
        ("'cat_9'", "cat_11, ...", "'all'"),
    ),
    (errors.DeviceUnavailableError("cuda:3", ["cpu"]), RuntimeError, ("'cuda:3'", "sees cpu")),
    (
        errors.EngineUnavailableError("dvm", "it is not part of this version"),
        RuntimeError,
        ("'dvm'", "it is not part of this version", "engine='auto'"),
    ),
    (
        errors.KernelFailedError(3),
        RuntimeError,
        ("kernel 3", "waited in vain", "run the model again"),
    ),
    (
        errors.MissingExtraError("timm", "model efficientvit"),
        ImportError,
        ("model efficientvit", "'timm'", "pip install 'vtc[bench]'"),
    ),
    (errors.UnsupportedTorchError("2.9.1"), RuntimeError, ("2.9.1", "torch >= 2.11")),
    (
        errors.ProfileMemoryError("region3", 3 * 2**30, "cuda:0"),
        RuntimeError,
        ("'region3'", "3,072 MiB", "cuda:0", "cost='static'"),
    ),
    (
        errors.SignatureError("tokens", "shape", (4, 1), (4, 2)),
        TypeError,
        ("'tokens'", "expected shape (4, 1), got (4, 2)", "compile it again"),
    ),
    (
        errors.SaveError("Net", "inv runs as eager PyTorch"),
        ValueError,
        ("Net", "inv runs", "docs/"),
    ),
    (
        errors.ArtifactError("net.vtc", "its data are damaged"),
        ValueError,
        ("net.vtc", "its data are damaged", "save the model again"),
    ),
    (errors.WeightsChangedError("conv.weight"), RuntimeError, ("'conv.weight'", "freeze=False")),
    (errors.CaptureError("Net", "it calls print"), RuntimeError, ("Net", "it calls print")),
    (
        errors.UnexpectedResultError("aten.foo.default", (3,), (4,)),
        RuntimeError,
        ("aten.foo.default", "(3,)", "(4,)", "engine='inductor'"),
    ),
    (
        errors.PlanCheckError("(v)", "input x is written"),
        AssertionError,
        ("(v)", "input x is written", "VTC_MATERIALIZE=all"),
    ),
    (
        errors.MovementRegistrationError("my::op", "it is registered already"),
        ValueError,
        ("my::op", "it is registered already"),
    ),
    (
        errors.OnnxFileError("m.onnx", "nothing makes 'y'"),
        ValueError,
        ("m.onnx", "nothing makes 'y'", "onnx.checker"),
    ),
    (
        errors.UnsupportedOnnxError("Foo", "/layer/Foo", "", 21, "vtc has no rule for it"),
        NotImplementedError,
        ("'Foo'", "'/layer/Foo'", "'ai.onnx'", "21", "no rule", "ONNX Runtime"),
    ),
    (
        errors.FallbackWarning("aten.foo", "it has no lowering", where="m.py:3"),
        UserWarning,
        ("aten.foo (m.py:3)", "eager PyTorch", "it has no lowering"),
    ),
    (
        errors.DisagreementWarning("result 0 of [2, 3] differs from stock TorchInductor's"),
        UserWarning,
        ("result 0", "stock TorchInductor runs instead", "report"),
    ),
    (
        errors.CacheCorruptWarning("/c/p.json", "bad JSON"),
        UserWarning,
        ("/c/p.json", "bad JSON", "measured again"),
    ),
    (
        errors.CacheUnwritableWarning("/c", "read-only file system"),
        UserWarning,
        ("/c", "read-only file system", "VTC_CACHE_DIR"),
    ),
]


@pytest.mark.parametrize(
    ("error", "kind", "parts"), EXAMPLES, ids=[type(error).__name__ for error, *_ in EXAMPLES]
)
def test_message_names_the_thing_and_the_way_out(
    error: VtcError | VtcWarning, kind: type[BaseException], parts: tuple[str, ...]
) -> None:
    assert isinstance(error, kind)
    message = str(error)
    assert "\n" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    "error", [e for e, *_ in EXAMPLES if isinstance(e, VtcError)], ids=lambda e: type(e).__name__
)
def test_errors_survive_pickling(error: VtcError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_every_public_class_has_an_example() -> None:
    bases = {"VtcError", "VtcWarning", "CacheWarning"}
    assert {type(error).__name__ for error, *_ in EXAMPLES} == set(errors.__all__) - bases
    classes = {n for n, c in inspect.getmembers(errors, inspect.isclass) if n in errors.__all__}
    assert classes == set(errors.__all__)
