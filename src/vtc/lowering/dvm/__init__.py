"""Lowering for the DVM: a captured program becomes tile programs by symbolic deduction.

`translate` writes the graph as tensor expressions (`nodes`), by the rules of `rules_*`; `fuse` cuts
them into kernels, whose spaces `domain` chooses and whose instructions `body` writes; `modules`
numbers the buffers; `prepack` finds what depends on weights alone. `lower` is the whole.
"""

from vtc.lowering.dvm.lower import lower
from vtc.lowering.dvm.plan import Plan
from vtc.lowering.dvm.prepack import Packing

__all__ = ["Packing", "Plan", "lower"]
