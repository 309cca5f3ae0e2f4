"""Integer index algebra: what data movement does, as maps from output to source elements."""

from vtc.index.access import Access, Layout, accesses
from vtc.index.affine import Affine
from vtc.index.expr import FloorDiv, Lookup, Mod, axes, coords, ravel, simplify, unravel
from vtc.index.map import IndexMap
from vtc.index.piece import Fill, Piece
from vtc.index.sizes import Expr, NotRepresentable, Size
from vtc.index.strided import Contiguity, Strided

__all__ = [
    "Access",
    "Affine",
    "Contiguity",
    "Expr",
    "Fill",
    "FloorDiv",
    "IndexMap",
    "Layout",
    "Lookup",
    "Mod",
    "NotRepresentable",
    "Piece",
    "Size",
    "Strided",
    "accesses",
    "axes",
    "coords",
    "ravel",
    "simplify",
    "unravel",
]
