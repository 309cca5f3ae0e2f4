"""What a result file of the DVM holds beside its cases: docs/results-schema.md describes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vtc.bench.checks import NUMBER, keys, typed

ENCODE: Mapping[str, tuple[type, ...]] = {
    "median": NUMBER,
    "p99": NUMBER,
    "shapes": (int,),
    "lower_ms": NUMBER,
    "load_ms": NUMBER,
    "first_call_ms": NUMBER,
    "first_call_max_ms": NUMBER,
}

OPERATORS: Mapping[str, tuple[type, ...]] = {
    "operator": (str,),
    "kind": (str,),
    "band": (str,),
    "shape": (list,),
    "dtype": (str,),
    "dvm_us": NUMBER,
    "eager_us": NUMBER,
    "inductor_us": NUMBER,
    "inductor_dynamic_us": NUMBER,
    "numexpr_us": NUMBER,
    "numexpr_re_evaluate_us": NUMBER,
    "compile_ms": NUMBER,
    "inductor_compile_ms": NUMBER,
    "inductor_dynamic_compile_ms": NUMBER,
    "max_rel_error": NUMBER,
}

SEQUENCES: Mapping[str, tuple[type, ...]] = {
    "model": (str,),
    "pairs": (list,),
    "total_s": (dict,),
    "steady_s": (dict,),
    "inductor_total_to_vtc": NUMBER,
    "inductor_steady_to_vtc": NUMBER,
    "captures": (int,),
    "encodes": (int,),
    "packs": (int,),
    "compilations": (int,),
    "eager": (int,),
    "fallbacks": (list,),
}

GENERATION: Mapping[str, tuple[type, ...]] = {
    "model": (str,),
    "cache": (str,),
    "layers": (int,),
    "prompts": (list,),
    "tokens": (int,),
    "cold_s": (dict,),
    "first_token_ms": (dict,),
    "tokens_per_s": (dict,),
    "equal": (bool,),
    "ties": (int,),
    "fallbacks": (list,),
    "captures": (int,),
    "encodes": (int,),
    "packs": (int,),
    "compilations": (int,),
    "eager": (int,),
}

SECTIONS = ("encode_us", "operators", "sequences", "generation", "machine")


def validate(document: Any) -> None:
    """Raises `ValueError` naming the place where a section departs from the schema."""
    if not isinstance(document, dict):
        return
    for name, entry in document.get("encode_us", {}).items():
        _entry(entry, ENCODE, f"encode_us.{name}")
    lists = (("operators", OPERATORS), ("sequences", SEQUENCES), ("generation", GENERATION))
    for name, fields in lists:
        for number, entry in enumerate(document.get(name, [])):
            _entry(entry, fields, f"{name}[{number}]")
    for name, value in document.get("machine", {}).items():
        typed(value, (str,), f"machine.{name}")


def _entry(entry: Any, fields: Mapping[str, tuple[type, ...]], place: str) -> None:
    keys(entry, fields, place)
    for name, value in entry.items():
        # numexpr cannot express every operator.
        typed(value, fields[name], f"{place}.{name}", null=name.startswith("numexpr"))
