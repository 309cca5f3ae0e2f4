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

BANDWIDTH: Mapping[str, tuple[type, ...]] = {
    "operator": (str,),
    "us": (dict,),
    "tb_per_s": (dict,),
    "failed": (dict,),
}

HOST: Mapping[str, tuple[type, ...]] = {
    "operator": (str,),
    "encode_us": NUMBER,
    "encode_and_launch_us": NUMBER,
    "encode_and_launch_p90_us": NUMBER,
}

DEVICE_OPERATORS: Mapping[str, tuple[type, ...]] = {
    "operator": (str,),
    "shape": (list,),
    "dtype": (str,),
    "call_us": (dict,),
    "device_us": (dict,),
    "compile_ms": (dict,),
    "compiling_processes": (int,),
    "max_rel_error": (dict,),
    "failed": (dict,),
}
# What an entry of a section may lack.
OPTIONAL: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "device_operators": {"wall_us": (dict,)},
    "sequences": {"replays": (int,)},
    "generation": {"replays": (int,)},
}

LISTS: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "operators": OPERATORS,
    "sequences": SEQUENCES,
    "generation": GENERATION,
    "bandwidth": BANDWIDTH,
    "host": HOST,
    "device_operators": DEVICE_OPERATORS,
}
SECTIONS = ("encode_us", *LISTS, "machine")


def validate(document: Any) -> None:
    """Raises `ValueError` naming the place where a section departs from the schema."""
    if not isinstance(document, dict):
        return
    for name, entry in document.get("encode_us", {}).items():
        _entry(entry, ENCODE, f"encode_us.{name}")
    for name, fields in LISTS.items():
        for number, entry in enumerate(document.get(name, [])):
            more = {k: t for k, t in OPTIONAL.get(name, {}).items() if k in entry}
            _entry(entry, {**fields, **more}, f"{name}[{number}]")
    for name, value in document.get("machine", {}).items():
        typed(value, (str,), f"machine.{name}")


def _entry(entry: Any, fields: Mapping[str, tuple[type, ...]], place: str) -> None:
    keys(entry, fields, place)
    for name, value in entry.items():
        # numexpr cannot express every operator.
        typed(value, fields[name], f"{place}.{name}", null=name.startswith("numexpr"))
