"""The tile program of one kernel: what is done at each point of an iteration space.

    kernel softmax over [s0, 1024*], * reduced
      %0 = load f32 x[1024*i0 + i1]
      %1 = reduce max %0
      %2 = sub %0, %1
      %3 = exp %2
      %4 = reduce sum %3
      %5 = div %3, %4
      store y[1024*i0 + i1] = %5

Values are in SSA form. A value is *full* (one element at each point) or *reduced* (one at each
point of the dimensions that are not reduced) and then broadcast where a full one is wanted.
Nothing is said of tiles, registers or order: the encoder decides these for the shape at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from vtc.index.sizes import Size
from vtc.program.dtypes import DType


def size_text(size: Size) -> str:
    """A size as a factor of a product."""
    text = str(size)
    return text if text.isidentifier() or text.lstrip("-").isdigit() else f"({text})"


@dataclass(frozen=True)
class Term:
    """A runtime part of an address: stride * value, in elements.

    `value` is the number of an earlier integer value. With `size` it is an index as users give it:
    negative ones count from the end, and one outside [-size, size) is an error of the user's.
    """

    value: int
    stride: Size
    size: Size | None = None


@dataclass(frozen=True)
class Bound:
    """A condition of a mask: low <= coordinate `dim` < high."""

    dim: int
    low: Size
    high: Size


@dataclass(frozen=True)
class Access:
    """An address in a buffer: offset + sum(stride[d] * i_d) + sum(terms), in elements.

    `stride` has one entry a domain dimension, and for the operands of an anchor (matmul, attention)
    one more, of the contracted dimension. Where a bound of `mask` does not hold a load gives its
    operand (or 0) and a store writes nothing; the address is then not touched.
    """

    buffer: int
    offset: Size
    stride: tuple[Size, ...]
    terms: tuple[Term, ...] = ()
    mask: tuple[Bound, ...] = ()

    def text(self, names: tuple[str, ...] | None = None) -> str:
        """The access with the name of its buffer, if names are given."""
        name = names[self.buffer] if names else f"b{self.buffer}"
        parts = [] if self.offset == 0 else [str(self.offset)]
        for dim, stride in enumerate(self.stride):
            if stride != 0:
                factor = "" if stride == 1 else f"{size_text(stride)}*"
                parts.append(f"{factor}i{dim}")
        for term in self.terms:
            factor = "" if term.stride == 1 else f"{size_text(term.stride)}*"
            wrap = "" if term.size is None else f"[{size_text(term.size)}]"
            parts.append(f"{factor}%{term.value}{wrap}")
        text = f"{name}[{' + '.join(parts) or '0'}]"
        for bound in self.mask:
            low, high = size_text(bound.low), size_text(bound.high)
            text += f" if {low} <= i{bound.dim} < {high}"
        return text


@dataclass(frozen=True)
class Instr:
    """One instruction; its number in the body is the number of its value.

    | op | args | constant | result |
    |---|---|---|---|
    | load | () or (other,) | | the element at `access`, as `dtype` |
    | store | (value,) | | nothing; converts to the buffer's type |
    | const | | number, or a Size over the module's symbols | `dtype` |
    | param | | number of a runtime scalar of the module | `dtype` |
    | iota | | dimension | the coordinate, i64 |
    | cast | (value,) | the DType cast to | its compute type, rounded or wrapped as PyTorch does |
    | a scalar operator | its operands | | `dtype` |
    | reduce | (value,) | name in REDUCTIONS | reduced; argmax/argmin: i64 row-major place |
    | scan | (value,) | "sum", "prod", "max", "min" | running fold along the one reduced dim, full |
    | matmul | | Contraction | sum over k of a * b, f32; full |
    | attention | | Attention | full |
    | convolution | | Convolution | sum over taps and channels of left * right; full |

    `dtype` is a compute type.
    """

    op: str
    args: tuple[int, ...] = ()
    dtype: DType = DType.F32
    access: Access | None = None
    constant: Any = None


@dataclass(frozen=True)
class Panel:
    """How a right operand [k, n] is packed: as [panel][k // depth][width][depth], 0 where padded.

    Of its access, the stride of the column dimension leads from one panel to the next, and the last
    one, width * depth, from one group of `depth` rows to the next.
    """

    width: int
    depth: int = 1

    def __str__(self) -> str:
        return f"{self.width}x{self.depth}"


@dataclass(frozen=True)
class Contraction:
    """The operands of a matmul: `left` and `right` address over the domain and k (last stride).

    The row dimension of the product is the last domain dimension in which `left` moves and `right`
    does not, its column dimension the last domain dimension. `dtype` is that of both in memory.
    packed: the same right operand once more, in panels as `panel` says, for an encoder that prefers
    it where there are many rows; it has neither terms nor a mask.
    """

    left: Access
    right: Access
    k: Size
    dtype: DType
    packed: Access | None = None
    panel: Panel | None = None


@dataclass(frozen=True)
class Attention:
    """softmax(softcap(scale * q @ k^T) + mask) @ v over a domain (..., s, d).

    Accesses have a stride for every domain dimension and a last one for the key position t: `query`
    moves in (..., s, d), `key` and `value` in (..., d, t), `mask` in (..., s, t). Grouped heads are
    two domain dimensions, key and value with stride 0 in the second. causal: key t is seen by
    query s if t <= s + shift; with a window, only if also t > s + shift - window. head_dim is the
    size of d in q and k; scale None is 1 / sqrt(head_dim), which may be symbolic.
    """

    query: Access
    key: Access
    value: Access
    mask: Access | None
    length: Size
    head_dim: Size
    scale: float | None
    softcap: float | None = None
    causal: bool = False
    shift: Size = 0
    window: Size | None = None


@dataclass(frozen=True)
class Window:
    """A sliding window along domain dimension `dim` (None: of one point): tap t of point i is input
    coordinate stride * i + dilation * t - pad, and counts for nothing outside [0, extent)."""

    dim: int | None
    taps: Size
    stride: Size
    dilation: Size
    pad: Size
    extent: Size


@dataclass(frozen=True)
class Part:
    """A run of `k` channels of a convolution, and where both operands have them.

    After its strides for the domain, `left` has one for the input coordinate of each window (it
    does not move in the windows' dimensions themselves), `right` one for each window's tap; the
    last of both is that of the channel. Of a right operand in panels the stride of the column
    dimension leads from one panel to the next.
    """

    left: Access
    right: Access
    k: Size


@dataclass(frozen=True)
class Convolution:
    """The sum over parts, taps and channels of left * right: a contraction whose left operand is
    read in windows, and whose channels may lie in several places.

    The column dimension is the last domain dimension; where `left` moves in it too the convolution
    is a depthwise one. `dtype` is that of all operands in memory. Accesses have no terms or masks.
    panel: how the right operand is packed, of depth 1; None reads it as it lies.
    """

    windows: tuple[Window, ...]
    parts: tuple[Part, ...]
    dtype: DType
    panel: Panel | None = None


ANCHORS = ("matmul", "attention", "convolution")


def operands(constant: Any) -> tuple[Access, ...]:
    """The accesses of an anchor's operands; none for another constant."""
    if isinstance(constant, Convolution):
        return tuple(a for part in constant.parts for a in (part.left, part.right))
    if isinstance(constant, Contraction | Attention):
        return tuple(a for a in vars(constant).values() if isinstance(a, Access))
    return ()


def with_operands(constant: Any, change: Callable[[Access], Access]) -> Any:
    """The constant with every access of an operand changed."""
    if isinstance(constant, Convolution):
        parts = tuple(
            replace(p, left=change(p.left), right=change(p.right)) for p in constant.parts
        )
        return replace(constant, parts=parts)
    if isinstance(constant, Contraction | Attention):
        own: dict[str, Any] = {
            n: change(a) for n, a in vars(constant).items() if isinstance(a, Access)
        }
        return replace(constant, **own)
    return constant


@dataclass(frozen=True)
class TileKernel:
    """One fused kernel: `body` at each point of the domain `sizes`, whose dimensions in `reduced`
    are the ones that its reductions fold."""

    name: str
    sizes: tuple[Size, ...]
    reduced: frozenset[int]
    body: tuple[Instr, ...]
    origins: tuple[str, ...] = field(default=(), compare=False)

    @property
    def anchor(self) -> Instr | None:
        """The product, attention or convolution that the kernel starts with, or None."""
        return next((i for i in self.body if i.op in ANCHORS), None)

    def is_reduced(self) -> tuple[bool, ...]:
        """For each value: does it live on the dimensions that are not reduced?

        A reduction's result does, and what is computed from such values alone. Loads and iotas do
        where they do not move along a reduced dimension.
        """
        found: list[bool] = []
        for instr in self.body:
            if instr.op == "reduce":
                found.append(True)
            elif instr.op == "scan" or instr.op in ANCHORS:
                found.append(False)
            elif instr.op == "iota":
                found.append(instr.constant not in self.reduced)
            else:
                alone = all(found[a] for a in instr.args)
                found.append(alone and not self._moves(instr, found))
        return tuple(found)

    def _moves(self, instr: Instr, found: list[bool]) -> bool:
        access = instr.access
        if access is None:
            return False
        return (
            any(access.stride[d] != 0 for d in self.reduced)
            or any(b.dim in self.reduced for b in access.mask)
            or any(not found[t.value] for t in access.terms)
        )
