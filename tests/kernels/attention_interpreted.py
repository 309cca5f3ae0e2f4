"""Run as a script: the attention kernels in Triton's interpreter, form by form, as JSON.

The interpreter is chosen when Triton is imported, hence the process of its own.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from kernels.attention_cases import Form, error, operands

DECODE, SPLIT, PREFILL = (16, 16, 1, 4, 2), (16, 16, 3, 4, 2), (16, 16, 0, 4, 2)


@dataclass(frozen=True)
class Case:
    form: Form
    tiling: tuple[int, int, int, int, int]


PLAIN = Form()
MANY = Form(queries=5, keys=70)
CASES = {
    "decode": Case(PLAIN, DECODE),
    "one key": Case(PLAIN.but(keys=1), SPLIT),
    "more splits than blocks": Case(PLAIN.but(keys=20), (16, 16, 5, 4, 2)),
    "splits": Case(PLAIN, SPLIT),
    "one key/value head": Case(PLAIN.but(kv_heads=1), SPLIT),
    "no grouped heads": Case(PLAIN.but(kv_heads=4, dim=24), SPLIT),
    "dimensions that are no powers of two": Case(PLAIN.but(dim=24, value_dim=40), SPLIT),
    "a slice of a cache": Case(PLAIN.but(layout="slice"), SPLIT),
    "heads inside of keys": Case(PLAIN.but(layout="bshd"), SPLIT),
    "keys innermost": Case(PLAIN.but(layout="transposed"), SPLIT),
    "pages": Case(PLAIN.but(layout="pages", batch=3), SPLIT),
    "pages, several queries": Case(MANY.but(layout="pages", causal=True), SPLIT),
    "bool mask": Case(PLAIN.but(mask="bool"), SPLIT),
    "one mask row for all": Case(PLAIN.but(mask="line"), SPLIT),
    "a mask for each head": Case(PLAIN.but(mask="bool-none"), SPLIT),
    "a mask for each query": Case(MANY.but(mask="bool", heads=2), SPLIT),
    "bias for each head": Case(PLAIN.but(mask="bias-none"), SPLIT),
    "dead tail": Case(PLAIN.but(keys=1100, mask="tail", kv_heads=1), (16, 128, 5, 4, 2)),
    "dead tail, finite": Case(PLAIN.but(keys=1100, mask="finite", kv_heads=1), (16, 128, 5, 4, 2)),
    "dead tail, infinite": Case(PLAIN.but(keys=1100, mask="infinite"), (16, 128, 4, 4, 2)),
    "a sequence that sees no key": Case(PLAIN.but(mask="empty"), SPLIT),
    "a sequence that sees no key, as NaN": Case(PLAIN.but(mask="empty", safe=False), SPLIT),
    "a row that is hidden by finite numbers": Case(PLAIN.but(mask="nothing"), SPLIT),
    "a long row that is hidden by finite numbers": Case(
        PLAIN.but(mask="nothing", keys=1100), (16, 128, 4, 4, 2)
    ),
    "soft-cap": Case(PLAIN.but(softcap=2.0, scale=3.0), SPLIT),
    "soft-cap and mask": Case(PLAIN.but(softcap=2.0, scale=3.0, mask="finite"), SPLIT),
    "lengths": Case(PLAIN.but(lengths=True), SPLIT),
    "lengths, causal, window": Case(MANY.but(lengths=True, causal=True, window=18), SPLIT),
    "causal": Case(MANY.but(causal=True), SPLIT),
    "prefill": Case(Form(queries=37, keys=51), PREFILL),
    "prefill, fewer keys than a block": Case(Form(queries=5, keys=3), PREFILL),
    "prefill, values wider than keys": Case(
        Form(queries=37, keys=51, value_dim=32, layout="bshd", kv_heads=4), PREFILL
    ),
    "prefill, causal": Case(Form(queries=51, keys=51, causal=True), PREFILL),
    "prefill, causal, more keys": Case(Form(queries=20, keys=51, causal=True), PREFILL),
    "prefill, causal, fewer keys": Case(Form(queries=51, keys=20, causal=True), PREFILL),
    "prefill, window": Case(Form(queries=70, keys=70, causal=True, window=19), PREFILL),
    "prefill, lengths": Case(
        Form(queries=20, keys=60, causal=True, lengths=True, window=21), PREFILL
    ),
    "prefill, slice, soft-cap, bias": Case(
        Form(queries=20, keys=51, layout="slice", softcap=2.0, mask="bias-none", dim=24), PREFILL
    ),
    "prefill, bool mask, a sequence that sees no key": Case(
        Form(queries=20, keys=51, mask="empty", heads=2), PREFILL
    ),
    "prefill, pages": Case(Form(queries=20, keys=51, layout="pages"), PREFILL),
}


def main() -> None:
    from vtc.kernels.attention_launch import launch
    from vtc.kernels.attention_prefill import prefill_kernel
    from vtc.kernels.attention_splits import combine_kernel
    from vtc.kernels.attention_triton import decode_kernel

    run = (decode_kernel, combine_kernel, prefill_kernel)
    errors = {}
    for name, case in CASES.items():
        given = operands(case.form)
        query, key, value, mask, lengths, table = given.args
        options = dict(given.options)
        options["scale"] = options["scale"] or case.form.dim**-0.5
        options |= {"lengths": lengths, "block_table": table, "tiling": case.tiling}
        try:
            errors[name] = error(case.form, launch(run, query, key, value, mask, **options), given)
        except Exception as failure:
            errors[name] = f"{type(failure).__name__}: {failure}"
    json.dump(errors, sys.stdout)


def interpreted() -> dict[str, str]:
    """The environment of a process that interprets kernels."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}


if __name__ == "__main__":
    main()
