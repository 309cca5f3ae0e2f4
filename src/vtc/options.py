"""Settings of the compiler, typed, with the environment variables that give their defaults.

A setting is a field of `Options`; the variable `VTC_` + the field's name in capitals gives its
default. What is set in Python wins over the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

import platformdirs

from vtc.errors import InvalidOptionError, UnknownChoiceError, UnknownOptionError

Engine = Literal["auto", "inductor", "dvm"]
Objective = Literal["latency", "memory", "bytes"]
Search = Literal["greedy", "exhaustive"]
Cost = Literal["profile", "static"]
LogLevel = Literal["debug", "info", "warning", "error"]

ENGINES: tuple[str, ...] = get_args(Engine)
OBJECTIVES: tuple[str, ...] = get_args(Objective)

PREFIX = "VTC_"


def _default_cache_dir() -> Path:
    return Path(platformdirs.user_cache_dir("vtc"))


@dataclass(frozen=True)
class Options:
    """How vtc compiles. The defaults suit inference on weights that may still change.

    freeze: pack and fold weights at compile time. Faster, and costs a second copy of the packed
        weights. A weight that is changed or replaced afterwards is packed again before the next
        call; a write through `weight.data`, which PyTorch does not count, is not seen.
    search: "greedy" is the search for every size of graph; "exhaustive" also enumerates all
        strategies of the parts with at most `max_exhaustive` free choices, and tells the gap.
    cost: "profile" measures each region once on the device and keeps the result on disk;
        "static" uses the cost model alone: nothing is run at compile time.
    verify: time the best plans whole against stock `torch.compile` and keep the fastest, stock
        included.
    profile_budget_s: seconds that the search may take on one graph, measuring regions included;
        then it stops with the best plan so far.
    max_exhaustive: the largest number of free choices that is enumerated (2**n strategies).
    min_gain_us: a choice that saves less than this many microseconds a call is not made; below it
        timings do not tell plans apart.
    cache_dir: folder of the profile cache.
    materialize: names of regions or virtual tensors to make real, or "all": for debuggers, and to
        find which one makes a difference. In the environment, separated by commas.
    prepack_mib: MiB that the DVM's packed copies of weights may take, beside the weights; 0 for
        none.
    cuda_graphs: on CUDA, replay the whole graph as one CUDA graph; with engine="dvm" calls of sizes
        that recur, whose graphs take up to an eighth of the memory of the device.
    log_level: what the logger "vtc" shows on stderr.
    """

    freeze: bool = False
    search: Search = "greedy"
    cost: Cost = "profile"
    verify: bool = True
    profile_budget_s: float = 30.0
    max_exhaustive: int = 16
    min_gain_us: float = 2.0
    cache_dir: Path = field(default_factory=_default_cache_dir)
    materialize: frozenset[str] = frozenset()
    prepack_mib: float = 1024.0
    cuda_graphs: bool = True
    log_level: LogLevel = "warning"

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise UnknownChoiceError(name, getattr(self, name), choices)
        for name in ("freeze", "verify", "cuda_graphs"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidOptionError(name, getattr(self, name), "True or False")
        for name in ("profile_budget_s", "min_gain_us", "prepack_mib"):
            value = getattr(self, name)
            if not _is_number(value) or not value >= 0:
                raise InvalidOptionError(name, value, "a number that is not negative")
        if not _is_number(self.max_exhaustive, int) or not 0 <= self.max_exhaustive <= 24:
            raise InvalidOptionError("max_exhaustive", self.max_exhaustive, "an int from 0 to 24")
        object.__setattr__(self, "cache_dir", Path(self.cache_dir).expanduser())
        names: object = self.materialize  # a caller may well write "all" or a list
        if isinstance(names, str):
            names = [part.strip() for part in names.split(",") if part.strip()]
        if not isinstance(names, Iterable):
            raise InvalidOptionError("materialize", names, "'all' or a set of names")
        object.__setattr__(self, "materialize", frozenset(names))

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Options:
        """The defaults, as the VTC_ variables of `env` (os.environ) change them.

        Raises `InvalidOptionError` or `UnknownChoiceError` naming the variable's field. Variables
        with the prefix that are no option are left to others.
        """
        env = os.environ if env is None else env
        given: dict[str, Any] = {}
        for name in option_names():
            text = env.get(PREFIX + name.upper(), "").strip()
            if text:
                parse = _PARSERS.get(name, _parse_text)
                given[name] = parse(PREFIX + name.upper(), text)
        return cls(**given)

    @classmethod
    def of(cls, options: Options | Mapping[str, Any] | None) -> Options:
        """What `options=` of the public functions may be, as Options.

        None is the environment's; a mapping changes single fields of it; Options stay as they are.
        """
        if isinstance(options, Options):
            return options
        return cls.from_env().replace(**dict(options or {}))

    def replace(self, **changes: Any) -> Options:
        """A copy with these fields changed. Raises `UnknownOptionError` for a name it has not."""
        for name in changes:
            if name not in option_names():
                raise UnknownOptionError(name, option_names())
        return replace(self, **changes)

    def materializes(self, name: str) -> bool:
        """Whether the region or virtual tensor `name` is to be made real."""
        return "all" in self.materialize or name in self.materialize


_CHOICES: dict[str, tuple[str, ...]] = {
    "search": get_args(Search),
    "cost": get_args(Cost),
    "log_level": get_args(LogLevel),
}


def option_names() -> tuple[str, ...]:
    """The names of all options, in the order of `Options`."""
    return tuple(f.name for f in fields(Options))


def check_engine(engine: str) -> None:
    """Raises `UnknownChoiceError` unless `engine` is a name that `engine=` takes."""
    if engine not in ENGINES:
        raise UnknownChoiceError("engine", engine, ENGINES)


def check_objective(objective: str) -> None:
    """Raises `UnknownChoiceError` unless `objective` is a name that `objective=` takes."""
    if objective not in OBJECTIVES:
        raise UnknownChoiceError("objective", objective, OBJECTIVES)


def _is_number(value: object, kind: type | tuple[type, ...] = (int, float)) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _parse_text(variable: str, text: str) -> str:
    return text


def _parse_bool(variable: str, text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise InvalidOptionError(variable, text, "1 or 0")


def _parse_float(variable: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidOptionError(variable, text, "a number") from None


def _parse_int(variable: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidOptionError(variable, text, "a whole number") from None


_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "freeze": _parse_bool,
    "verify": _parse_bool,
    "cuda_graphs": _parse_bool,
    "profile_budget_s": _parse_float,
    "min_gain_us": _parse_float,
    "prepack_mib": _parse_float,
    "max_exhaustive": _parse_int,
}
