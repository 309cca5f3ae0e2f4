"""Small functions that are hard to schedule: GRAPHS is name -> () -> (fn, args).

A few build arguments that are views of larger tensors; `fresh` copies arguments with their strides
and offsets, and a tensor that is passed twice stays one tensor.
"""

from lowering.graphs import joined, strided, updated
from lowering.graphs.table import GRAPHS, Graph

__all__ = ["GRAPHS", "Graph", "joined", "strided", "updated"]
