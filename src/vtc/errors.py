"""Every error and warning that a user of vtc can meet, one class each.

A message is one sentence: the fact, the name of the thing, and the way out. The parts are also
attributes, so that a caller can act on them. Each error is also of the built-in kind that fits
(`ValueError`, `TypeError`, ...), and errors survive pickling, as worker processes need.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = [
    "ArtifactError",
    "CacheCorruptWarning",
    "CacheUnwritableWarning",
    "CacheWarning",
    "CaptureError",
    "DeviceUnavailableError",
    "DisagreementWarning",
    "EngineUnavailableError",
    "FallbackWarning",
    "InvalidOptionError",
    "KernelFailedError",
    "LostValueError",
    "MissingExtraError",
    "MovementRegistrationError",
    "OnnxFileError",
    "PlanCheckError",
    "ProfileMemoryError",
    "SaveError",
    "SignatureError",
    "UnexpectedResultError",
    "UnknownChoiceError",
    "UnknownModelError",
    "UnknownOptionError",
    "UnknownTensorError",
    "UnsupportedOnnxError",
    "UnsupportedTorchError",
    "VtcError",
    "VtcWarning",
    "WeightsChangedError",
]


def _nearest(name: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` when a known name is close, else the empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _rebuild(kind: type[VtcError], message: str, parts: Mapping[str, Any]) -> VtcError:
    error = kind.__new__(kind, message)
    error.__dict__.update(parts)
    return error


class VtcError(Exception):
    """Base of all errors that vtc raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), dict(self.__dict__))


# What was asked for.


class UnknownModelError(VtcError, ValueError):
    """A model name of the command line that is neither built in nor importable."""

    def __init__(self, name: str, known: Iterable[str], reason: str = "") -> None:
        self.name, self.known = name, tuple(known)
        because = f" ({reason})" if reason else ""
        super().__init__(
            f"unknown model {name!r}{because}: use one of {', '.join(self.known)}, or "
            f"module:factory with a callable that returns (model, args)"
            f"{_nearest(name, self.known)}"
        )


class UnknownChoiceError(VtcError, ValueError):
    """A value that is not one of a setting's choices: an engine, an objective, a search, ..."""

    def __init__(self, setting: str, value: object, choices: Iterable[str]) -> None:
        self.setting, self.value, self.choices = setting, value, tuple(choices)
        super().__init__(
            f"unknown {setting} {value!r}: use one of {', '.join(self.choices)}"
            f"{_nearest(str(value), self.choices)}"
        )


class UnknownOptionError(VtcError, TypeError):
    """A name in `options={...}` that is no field of `vtc.Options`."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name, self.known = name, tuple(known)
        super().__init__(
            f"unknown option {name!r}: vtc.Options has {', '.join(self.known)}"
            f"{_nearest(name, self.known)}"
        )


class InvalidOptionError(VtcError, ValueError):
    """A value that an option does not take. `name` may be a field or a VTC_ variable."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        self.name, self.value, self.expected = name, value, expected
        super().__init__(f"option {name} is {value!r}: give it {expected}")


class UnknownTensorError(VtcError, ValueError):
    """`materialize` (VTC_MATERIALIZE) names no region and no virtual tensor of any graph."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name, self.known = name, tuple(known)
        shown = ", ".join(self.known[:12]) + (", ..." if len(self.known) > 12 else "")
        super().__init__(
            f"cannot materialize {name!r}: this graph has {shown or 'no virtual tensors'}; use "
            f"one of these names, or 'all'{_nearest(name, self.known)}"
        )


# What the machine has.


class DeviceUnavailableError(VtcError, RuntimeError):
    """A device that this PyTorch does not see."""

    def __init__(self, device: str, available: Iterable[str]) -> None:
        self.device, self.available = device, tuple(available)
        super().__init__(
            f"device {device!r} is not available: this PyTorch sees {', '.join(self.available)}; "
            f"choose one of these, or install a PyTorch build and driver for {device!r}"
        )


class EngineUnavailableError(VtcError, RuntimeError):
    """An engine that exists by name but cannot run here."""

    def __init__(self, engine: str, reason: str, available: Iterable[str] = ("inductor",)) -> None:
        self.engine, self.reason, self.available = engine, reason, tuple(available)
        super().__init__(
            f"engine {engine!r} is not available: {reason}; use engine='auto' or one of "
            f"{', '.join(self.available)}"
        )


class KernelFailedError(VtcError, RuntimeError):
    """A kernel of a DVM program on a device gave up. Tensors hold what was stored until then."""

    def __init__(self, kernel: int) -> None:
        self.kernel = kernel
        super().__init__(
            f"kernel {kernel} of a program has waited in vain for those before it, and the results "
            "are not complete: run the model again, whose kernels are now launched one by one"
        )


class MissingExtraError(VtcError, ImportError):
    """A package of an optional extra is not installed."""

    def __init__(self, package: str, needed_for: str, extra: str = "bench") -> None:
        self.package, self.needed_for, self.extra = package, needed_for, extra
        super().__init__(
            f"{needed_for} needs the package {package!r}, which is not installed: "
            f"pip install 'vtc[{extra}]'"
        )


class UnsupportedTorchError(VtcError, RuntimeError):
    """A PyTorch version that vtc does not work with."""

    def __init__(self, version: str, minimum: str = "2.11", detail: str = "") -> None:
        self.version, self.minimum, self.detail = version, minimum, detail
        lacks = f" ({detail})" if detail else ""
        super().__init__(
            f"PyTorch {version} is not supported{lacks}: vtc needs torch >= {minimum}; "
            f"pip install -U 'torch>={minimum}' torchvision"
        )


class ProfileMemoryError(VtcError, RuntimeError):
    """Measuring a region ran out of memory. Compilation goes on with the region's modelled cost;
    the error is raised only where nothing can go on."""

    def __init__(self, region: str, needed_bytes: int | None, device: str) -> None:
        self.region, self.needed_bytes, self.device = region, needed_bytes, device
        amount = f" {needed_bytes / 2**20:,.0f} MiB" if needed_bytes is not None else ""
        super().__init__(
            f"out of memory on {device} while profiling region {region!r}, which needs{amount} "
            f"beside the model: free memory, use a smaller batch, or compile with "
            f"Options(cost='static'), which measures nothing"
        )


# What a compiled model is called with.


class SignatureError(VtcError, TypeError):
    """An argument that a compiled signature does not take."""

    def __init__(self, argument: str, quantity: str, expected: object, got: object) -> None:
        """`quantity` is what differs: "shape", "dtype", "device", "strides", "is_neg()" (PyTorch's
        lazy negation), "is_conj()", "type", "value", "length", "keys", "state", "a call with"."""
        self.argument, self.quantity, self.expected, self.got = argument, quantity, expected, got
        super().__init__(
            f"argument {argument!r}: expected {quantity} {_plain(expected)}, got {_plain(got)}; "
            f"call it with the signature it was compiled for, or compile it again for this one"
        )


def _plain(value: object) -> str:
    """A shape prints as `(2, 3)` whether it is a torch.Size or a tuple."""
    return str(tuple(value)) if isinstance(value, list | tuple) else str(value)


class SaveError(VtcError, ValueError):
    """A compiled model that cannot be written to a file."""

    def __init__(self, model: str, reason: str) -> None:
        self.model, self.reason = model, reason
        super().__init__(
            f"{model} cannot be saved: {reason}; see docs/artifacts.md for what a file can hold"
        )


class ArtifactError(VtcError, ValueError):
    """A file that holds no program which may run here."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        self.path, self.reason = os.fspath(path), reason
        super().__init__(
            f"{self.path} cannot be loaded: {reason}; save the model again on the machine and with "
            f"the version that is to run it"
        )


class WeightsChangedError(VtcError, RuntimeError):
    """A weight was changed after it had been packed or folded under `freeze`."""

    def __init__(self, weight: str) -> None:
        self.weight = weight
        super().__init__(
            f"weight {weight!r} was changed after freezing, and the compiled model holds a packed "
            f"copy: compile the model again, or compile it with Options(freeze=False)"
        )


# What the compiler does.


class CaptureError(VtcError, RuntimeError):
    """A model that cannot be captured as a graph where nothing else can run it.

    `stock` is False where TorchInductor, which captures as much, would go wrong."""

    def __init__(self, model: str, reason: str, *, stock: bool = True) -> None:
        self.model, self.reason, self.stock = model, reason, stock
        super().__init__(
            f"{model} cannot be captured as one graph: {reason}; use vtc.compile or "
            f"torch.compile(model, backend='vtc'), which compile the parts that can be"
        )

    @property
    def of_graph(self) -> str:
        """The reason, where a whole graph falls back and `model` is an operator of it."""
        return self.reason if self.model == "the graph" else f"{self.reason}; so does its graph"


class LostValueError(VtcError, RuntimeError):
    """A value of `vtc.stream` is read whose program failed."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the value was never computed, because its stream failed before: {reason}; compute it "
            f"again outside of vtc.stream to see which operator is at fault"
        )


class PlanCheckError(VtcError, AssertionError):
    """The independent checker refused a plan before code was generated from it: a bug in vtc."""

    def __init__(self, rule: str, reason: str) -> None:
        """`rule` is the number of the violated legality rule, "(i)" to "(vi)", or "contract"."""
        self.rule, self.reason = rule, reason
        super().__init__(
            f"the plan breaks rule {rule}: {reason}; this is a bug in vtc: please report it, and "
            f"set VTC_MATERIALIZE=all to go on without virtual tensors"
        )


class UnexpectedResultError(VtcError, RuntimeError):
    """An operator's result has another shape than PyTorch's fake tensors said."""

    def __init__(self, operator: str, shape: tuple[int, ...], planned: tuple[int, ...]) -> None:
        self.operator, self.shape, self.planned = operator, shape, planned
        super().__init__(
            f"{operator} gave a tensor of shape {shape} where PyTorch's shape inference said "
            f"{planned}, for which the program was made; use engine='inductor' for this model"
        )


class MovementRegistrationError(VtcError, ValueError):
    """A movement rule that `vtc.register_movement` does not accept."""

    def __init__(self, operator: str, reason: str) -> None:
        self.operator, self.reason = operator, reason
        super().__init__(f"cannot register {operator} as a movement operator: {reason}")


# ONNX files.


class OnnxFileError(VtcError, ValueError):
    """An ONNX file that is damaged, contradicts itself or reaches out of its folder."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        self.path, self.reason = os.fspath(path), reason
        super().__init__(
            f"{self.path} cannot be imported: {reason}; export the model again, or see what "
            f"onnx.checker.check_model says of it"
        )


class UnsupportedOnnxError(VtcError, NotImplementedError):
    """An operator, or a use of one, that the ONNX front end does not import; a NotImplementedError,
    as PyTorch raises for operators that it lacks."""

    def __init__(self, operator: str, node: str, domain: str, opset: int, reason: str) -> None:
        """`node` is the node's name, or its first output where it has none."""
        self.operator, self.node, self.domain = operator, node, domain
        self.opset, self.reason = opset, reason
        super().__init__(
            f"ONNX operator {operator!r} (node {node!r}, domain {domain or 'ai.onnx'!r}, opset "
            f"{opset}) is not supported: {reason}; export the model without it, or run this file "
            f"with ONNX Runtime"
        )


# Warnings: the process goes on.


class VtcWarning(UserWarning):
    """Base of all warnings of vtc."""


class FallbackWarning(VtcWarning):
    """Something runs as plain PyTorch, correctly but without vtc. Given once for each cause."""

    def __init__(
        self, what: str, reason: str, instead: str = "eager PyTorch", where: str | None = None
    ) -> None:
        """`what` names the operator, region or graph; `where` is the line of the user's model."""
        self.what, self.reason, self.instead, self.where = what, reason, instead, where
        at = f" ({where})" if where else ""
        super().__init__(f"{what}{at} runs as {instead}: {reason}")


class DisagreementWarning(VtcWarning):
    """A plan with kernels of vtc's own gave another answer than stock TorchInductor; it is not
    used."""

    def __init__(self, difference: str) -> None:
        self.difference = difference
        super().__init__(
            f"{difference}: stock TorchInductor runs instead; this is a bug in vtc, please "
            "report it"
        )


class CacheWarning(VtcWarning):
    """Base of the warnings about the profile cache. Results are right, compiling may be slower."""


class CacheCorruptWarning(CacheWarning):
    """A cache file that cannot be read. It is ignored and written anew."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        self.path, self.reason = os.fspath(path), reason
        super().__init__(
            f"the cache file {self.path} cannot be read ({reason}): it is ignored and replaced, "
            f"and what it held is measured again"
        )


class CacheUnwritableWarning(CacheWarning):
    """A cache folder that cannot be written. Measurements are kept for this process only."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        self.path, self.reason = os.fspath(path), reason
        super().__init__(
            f"the cache {self.path} cannot be written ({reason}): measurements are kept for this "
            f"process only; set VTC_CACHE_DIR to a folder that can be written"
        )
