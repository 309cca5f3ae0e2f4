"""The order of reads and updates that TorchInductor forgets on a CPU, in releases before 2.14.

A node of its scheduler that updates a buffer waits for those that read the old value. Before the
C++ loops of two nodes are fused, one may be given other ranges, and what it reads and writes is
worked out anew from its code; that says nothing of what it waits for, which was lost then, as was
the new name of what an earlier node has updated:

    s = x + y; a = s * 2; b.copy_(s[:, :1]); y.copy_(y + 1)      a was made of the new y

(pytorch/pytorch#177631, #175530 and #185509.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch._inductor.dependencies import StarDep, WeakDep
from torch._inductor.scheduler import SchedulerNode
from torch.utils._ordered_set import OrderedSet

_FORGETS = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14)
_TAG = "access order kept"

_recomputed = SchedulerNode.recompute_size_and_body


def _recompute_in_order(node: SchedulerNode, *args: Any, **kwargs: Any) -> None:
    """`SchedulerNode.recompute_size_and_body`, with all that the node waited for before."""
    waits = OrderedSet(d for d in node.read_writes.reads if isinstance(d, WeakDep | StarDep))
    _recomputed(node, *args, **kwargs)
    found = node.read_writes.with_read(waits).rename(node.mutation_renames)
    node.set_read_writes(found)


@contextlib.contextmanager
def access_order_kept() -> Iterator[None]:
    """What TorchInductor compiles meanwhile reads and updates in the order of its graph.

    Its caches are asked for what was compiled so.
    """
    if not _FORGETS:
        yield
        return
    config = torch.compiler.config
    tag = f"{config.cache_key_tag} {_TAG}".strip()
    with (
        patch.object(SchedulerNode, "recompute_size_and_body", _recompute_in_order),
        config.patch(cache_key_tag=tag),
    ):
        yield
