"""The table of operators: a rule is a function over values with an operator's name and versions.

A rule's positional parameters are the operator's inputs (None for one that is absent) and its
keyword-only parameters are the operator's attributes under their ONNX names, with ONNX's defaults.
Three keyword-only names are no attributes: `outputs`, the number of outputs that the node has;
`anchor`, a tensor on whose device new tensors are made; `bits`, the width of a result whose type is
less than a byte wide, 0 for others.

Dynamo traces rules, so they are plain functions over torch operators.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

Run = TypeVar("Run", bound=Callable[..., Any])

ALL = -1
"""In `host`: every input."""

SEVERAL = ("TopK", "Unique", "DynamicQuantizeLinear")
"""Operators whose rules always give all of their outputs."""

SPECIAL = ("outputs", "anchor", "bits")


@dataclass(frozen=True)
class Rule:
    """One operator's rule, for its versions from `since` on (to the next rule of the same name).

    host: the inputs that are handed over as Python numbers where they are known at import. A
    position that is named gets constants of any size up to `HOST_LIMIT`; ALL gets integers of
    `host.LARGEST` elements and single floats.
    """

    name: str
    domain: str
    since: int
    run: Callable[..., Any]
    host: frozenset[int]
    inputs: tuple[str, ...]
    variadic: bool
    attributes: frozenset[str]
    required: frozenset[str]
    special: frozenset[str]
    least: int
    several: bool


HOST_LIMIT = 4096
RULES: dict[tuple[str, str], list[Rule]] = {}


def rule(
    *names: str, since: int = 1, domain: str = "", host: Iterable[int] = ()
) -> Callable[[Run], Run]:
    """Register a function as the rule of operators; it is returned as it is."""

    def register(run: Run) -> Run:
        for name in names:
            add(name, run, since=since, domain=domain, host=host)
        return run

    return register


def add(
    name: str,
    run: Callable[..., Any],
    *,
    since: int = 1,
    domain: str = "",
    host: Iterable[int] = (),
) -> None:
    parameters = inspect.signature(run).parameters.values()
    keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    own = [p for p in keywords if p.name not in SPECIAL]
    made = Rule(
        name,
        domain,
        since,
        run,
        frozenset(host),
        tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD),
        any(p.kind is p.VAR_POSITIONAL for p in parameters),
        frozenset(p.name for p in own),
        frozenset(p.name for p in own if p.default is p.empty),
        frozenset(p.name for p in keywords if p.name in SPECIAL),
        sum(p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty for p in parameters),
        name in SEVERAL,
    )
    found = RULES.setdefault((domain, name), [])
    found.append(made)
    found.sort(key=lambda r: r.since)


def find(domain: str, name: str, version: int) -> Rule | None:
    """The rule for an operator whose version (its schema's since_version) is `version`."""
    fitting = [r for r in RULES.get((domain, name), ()) if r.since <= version]
    return fitting[-1] if fitting else None


def first(value: Any) -> Any:
    """The first of several results; a rule gives one that stands alone as it is."""
    return value[0] if type(value) is tuple else value


def publish(scope: dict[str, Any], name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function that was made by another one a function of a module, under `name`."""
    run.__name__ = run.__qualname__ = name
    run.__module__ = scope["__name__"]
    scope[name] = run
    return run
