"""Streaming fusion: eager code whose operators are recorded and run together.

Inside of `with vtc.stream():` an operator that the DVM has kernels for gives a tensor whose value
is still to come. What was recorded runs as one program when a value is read, when an operator comes
that is not recorded and reads one, when something is updated that the program reads, or at the end
of the block. A value that nobody holds by then is not stored. The program is found by its
structure, so that the same code on other sizes is encoded, not lowered again; nothing compiles
machine code.

The rules that make it safe:

- Memory that the caller owns is never written late: an update of a plain tensor runs at once, after
  what was recorded if that reads it. Updates of tensors that are themselves pending are recorded.
- A view of a pending tensor is recorded; a view of a plain tensor is made at once.
- What records gradients runs at once.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from vtc.program.dtypes import DType
from vtc.runtime.dvm import native_machine
from vtc.streaming.programs import Programs, Ready, Replay
from vtc.streaming.table import Kind, kind_of
from vtc.streaming.tensor import Pending, eager, pending, real, settle, tensors_in
from vtc.streaming.trace import (
    ASIDE,
    OUTSIDE,
    ROOT,
    SAME,
    Meta,
    Operator,
    Ref,
    State,
    Tree,
    meta_of,
)

# Operators in a program, at most: a longer block runs in several. No more than 2 * LIMIT tensors of
# one operator.
LIMIT = 128

_tree = Tree()
_programs = Programs()
_lock = threading.RLock()
_inputs = [Ref(n, True) for n in range(8 * LIMIT)]
_nodes = [Ref(n, False) for n in range(8 * LIMIT)]
_BOOL = {False: ("bool", False), True: ("bool", True)}
_INNER = "inner"
_CONSTANTS = (str, torch.device, torch.memory_format, torch.layout)


class _Active(threading.local):
    """The streams that are open on this thread, the inner ones last."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []


_active = _Active()


class _Outside(Exception):  # noqa: N818 - a finding about a call, not an error
    """The call has an argument that no program takes."""


def stream() -> Stream:
    """A context in which eager code on the CPU is fused as it runs.

        with vtc.stream() as s:
            y = torch.nn.functional.silu(a) * b      # one kernel, one result
        print(s.flushes, s.stores)

    Values are right whenever they are read, on any thread. NumPy arrays enter by
    `torch.from_numpy` or `torch.from_dlpack` and leave by `numpy` and DLPack. An array or tensor
    that recorded operators read must not be written behind PyTorch's back (through NumPy, or from
    another thread) before they ran. Raises EngineUnavailableError where the DVM is not built.
    """
    native_machine()
    return Stream()


class Stream(TorchDispatchMode):
    """See `stream`. What was done, since it was made:

    flushes: programs run. stores: tensors that they stored. kernels: kernels that they ran.
    programs: programs lowered because no known one had their structure. operators: recorded.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.flushes = self.stores = self.kernels = self.programs = self.operators = 0
        self._mutex = threading.RLock()
        self._kept: list[weakref.ref[Pending]] = []
        self._clear()

    def _clear(self) -> None:
        """Forgets what is recorded."""
        self._state = ROOT
        # Inputs as they are given, and what they are now: `x.data = y` changes the former.
        self._given: list[Tensor] = []
        self._inputs: list[Tensor] = []
        self._places: dict[int, Ref] = {}
        self._layouts: list[Meta] = []
        # The tensor of each node, if somebody holds it.
        self._made: list[Callable[[], Pending | None]] = []
        # Views of plain tensors: the view, the operator and its arguments.
        self._views: dict[int, tuple[Tensor, Any, Any]] = {}
        self._metas: list[Meta] = []
        self._bases: list[int] = []
        self._count = 0

    def __enter__(self) -> Stream:
        for outer in _active.streams:
            outer.flush()
        super().__enter__()
        _active.streams.append(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        _active.streams.pop()
        super().__exit__(*exception)
        self.flush()
        self._clear()
        self._settle_kept()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.handle(func, args, kwargs or {})

    def handle(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Records an operator, or runs it."""
        streams = _active.streams
        if not streams or streams[-1] is not self:
            return eager(func, args, kwargs)
        if self._kept:
            self._settle_kept()
        kind = kind_of(func)
        if kind is None:
            return self._run(func, args, kwargs)
        if self._count >= LIMIT or len(self._made) > 4 * LIMIT:
            self.flush()
        if kind is not Kind.COMPUTE:
            late = bool(args) and _unsettled(args[0])
            if kind is Kind.MAKE and late:
                return self._make(func, args, kwargs)
            if not late and kind is Kind.VIEW:
                return self._viewed(func, args, kwargs)
            if not late:
                return self._run(func, args, kwargs)
        with self._mutex:
            return self._record(func, args, kwargs, kind)

    def flush(self) -> None:
        """Runs what is recorded, so that every value is there."""
        with self._mutex:
            if self._count:
                self._flush()

    def _settle_kept(self) -> None:
        """Makes plain tensors of those that C++ held when they got their values."""
        self._kept = [r for r in self._kept if (t := r()) is not None and not _settled(t)]

    # Recording.

    def _record(self, func: Any, args: Any, kwargs: Any, kind: Kind) -> Any:
        if self._views:
            for value in tensors_in((*args, *kwargs.values())):
                if id(value) in self._views and id(value) not in self._places:
                    self._record_view(value)
        before = len(self._inputs)
        try:
            if torch.is_grad_enabled() and _differentiated(args, kwargs):
                raise _Outside
            if torch._C._current_graph_task_id() >= 0:  # a backward pass, whose results C++ keeps
                raise _Outside
            code: Any = (func, *[self._code(a) for a in args])
            if kwargs:
                code = (code, *[(name, self._code(a)) for name, a in kwargs.items()])
            state = self._state.steps.get(code) or self._learn(
                code, func, args, kwargs, kind, before
            )
            if state is OUTSIDE:
                raise _Outside
        except _Outside:
            self._forget_inputs(before)
            return self._run(func, args, kwargs)
        if state is SAME or state is ASIDE:
            self._forget_inputs(before)
            return args[0] if state is SAME else eager(func, args, kwargs)
        self._state = state
        self._count += 1
        self.operators += 1
        if kind is Kind.UPDATE:
            return args[0]
        made = [self._new(meta, base) for meta, base in state.results]
        return made[0] if state.single else made

    def _viewed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A view of a plain tensor, made at once. How its sizes came about is kept."""
        result = eager(func, args, kwargs)
        if func is torch.ops.aten.view.default and not kwargs:
            self._views[id(result)] = (result, func, args)
        return result

    def _record_view(self, value: Tensor) -> None:
        """Has the program make a view of a plain tensor itself, so that it knows where its sizes
        are from."""
        if len(self._made) > 6 * LIMIT:
            return
        _, func, args = self._views[id(value)]
        before = len(self._inputs)
        try:
            code = (_INNER, func, *[self._code(a) for a in args])
            state = self._state.steps.get(code)
            if state is None:
                state = self._learn(code, func, args, {}, Kind.VIEW, before, inner=True)
            if state.parent is None:
                raise _Outside
        except _Outside:
            self._forget_inputs(before)
            return
        self._state = state
        ((meta, base),) = state.results
        self._places[id(value)] = _nodes[len(self._made)]
        self._made.append(_nobody)
        self._metas.append(meta)
        self._bases.append(base)

    def _make(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operator that needs a layout only."""
        example = self._metas[args[0]._node].example
        device = kwargs.get("device") or "cpu"
        return func(example, *args[1:], **{**kwargs, "device": device})

    def _new(self, meta: Meta, base: int) -> Pending:
        number = len(self._made)
        made = pending(self, number, meta.shape, meta.stride, meta.offset, meta.dtype)
        self._made.append(weakref.ref(made))
        self._metas.append(meta)
        self._bases.append(base)
        return made

    def _code(self, value: Any) -> Any:
        """An argument as part of a step's key: the first use of an input with its layout."""
        kind = type(value)
        if kind is Pending:
            if value._node >= 0 and value._owner is self:
                return _nodes[value._node]
            value = real(value)
            kind = Tensor
        if kind is Tensor or kind is Parameter:
            return self._places.get(id(value)) or self._input(value)
        if kind is int or value is None or kind is torch.dtype:
            return value
        if kind is bool:
            return _BOOL[value]
        if kind is float:
            return value.hex()
        if kind is list or kind is tuple:
            return tuple([self._code(v) for v in value])
        if isinstance(value, _CONSTANTS):
            return value
        if isinstance(value, Tensor):
            return self._places.get(id(value)) or self._input(value)
        raise _Outside

    def _input(self, value: Tensor) -> Any:
        """A plain tensor that the program reads."""
        plain = (
            type(value) is Tensor
            or type(value) is Parameter
            or (type(value).__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl)
        )
        if not plain or not value.is_cpu or value.layout is not torch.strided:
            raise _Outside
        if DType.of(value.dtype) is None or value.is_neg() or len(self._inputs) >= len(_inputs):
            raise _Outside
        ref = _inputs[len(self._inputs)]
        meta = meta_of(value.dtype, value.shape, value.stride())
        self._places[id(value)] = ref
        self._given.append(value)
        self._inputs.append(value.detach())
        self._layouts.append(meta)
        return ref, meta

    def _forget_inputs(self, before: int) -> None:
        for value in self._given[before:]:
            del self._places[id(value)]
        del self._given[before:]
        del self._inputs[before:]
        del self._layouts[before:]

    def _learn(
        self,
        code: Any,
        func: Any,
        args: Any,
        kwargs: Any,
        kind: Kind,
        before: int,
        inner: bool = False,
    ) -> State:
        """The state after an operator that was not met here before."""

        def ref(value: Any) -> Ref:
            if type(value) is Pending and value._node >= 0 and value._owner is self:
                return _nodes[value._node]
            return self._places[id(real(value) if type(value) is Pending else value)]

        with _lock:
            own_args, own_kwargs = pytree.tree_map_only(Tensor, ref, (args, kwargs))
            first = next(r for r in pytree.tree_leaves((own_args, own_kwargs)) if type(r) is Ref)
            operator = Operator(
                func, own_args, own_kwargs, self._meta(first), tuple(self._layouts[before:])
            )
            return _tree.learn(self._state, code, operator, kind, self._meta, self._bases, inner)

    def _meta(self, ref: Ref) -> Meta:
        return self._layouts[ref.number] if ref.is_input else self._metas[ref.number]

    # Running.

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operator that is not recorded, after what it must not overtake."""
        if self._count:
            given = list(tensors_in((*args, *kwargs.values())))
            schema = getattr(func, "_schema", None)
            reads = schema is None or any(map(_unsettled, given))
            if reads and schema is not None and _composite(func):
                # What it is made of may be recorded.
                return func.decompose(*args, **kwargs)
            with self._mutex:
                if reads or (schema and schema.is_mutable and self._reads_memory_of(given)):
                    self.flush()
        return eager(func, args, kwargs)

    def _reads_memory_of(self, values: list[Tensor]) -> bool:
        own = {t.untyped_storage()._cdata for t in self._inputs}
        plain = [real(v) if type(v) is Pending else v for v in values]
        return any(t.untyped_storage()._cdata in own for t in plain)

    def _flush(self) -> None:
        state, inputs, bases = self._state, self._inputs, self._bases
        live = [t for r in self._made if (t := r()) is not None]
        metas = self._metas
        self._clear()
        if not live:
            return
        try:
            wanted = tuple(sorted({bases[t._node] for t in live}))
            ready = state.programs.get(wanted)
            if ready is None:
                ready = self._prepare(state, wanted, metas)
            with torch._C._DisableTorchDispatch():
                stored = dict(zip(wanted, ready.run(inputs), strict=True))
                plain = [_placed(t, stored, bases, metas) for t in live]
        except BaseException as error:
            for tensor in live:
                tensor._error, tensor._node = error, -1
            raise
        finally:
            _tree.trim()
        self.flushes += 1
        self.stores += len(wanted)
        self.kernels += ready.kernels
        pairs = list(zip(live, plain, strict=True))
        del plain
        while pairs:  # a view first: until it is gone, C++ holds what it views
            tensor, value = pairs.pop()
            if not settle(tensor, value):
                self._kept.append(weakref.ref(tensor))
            del value

    def _prepare(self, state: State, wanted: tuple[int, ...], metas: list[Meta]) -> Ready | Replay:
        layouts = tuple(metas[n] for n in wanted)
        ready, new = _programs.ready(state.path(), wanted, layouts)
        self.programs += new
        state.programs[wanted] = ready
        return ready


def _nobody() -> None:
    """Who holds the value of a node that only the program sees."""


def _placed(
    tensor: Pending, stored: dict[int, Tensor], bases: list[int], metas: list[Meta]
) -> Tensor:
    """The plain tensor of a pending one: what was stored, or a view of it."""
    number = tensor._node
    base = stored[bases[number]]
    if bases[number] == number:
        # Its own object: two names of one pending tensor are one object already.
        return base
    meta = metas[number]
    return base.as_strided(meta.shape, meta.stride, meta.offset)


def _differentiated(args: Any, kwargs: Any) -> bool:
    return any(t.requires_grad for t in tensors_in((*args, *kwargs.values())))


def _unsettled(value: Any) -> bool:
    return type(value) is Pending and value._node >= 0


def _settled(value: Any) -> bool:
    """Is the object a plain tensor, now at the latest?"""
    return type(value) is not Pending or (value._real is not None and settle(value))


def _composite(func: Any) -> bool:
    """Is the operator written by others, and updates nothing?"""
    key = "CompositeImplicitAutograd"
    return not func._schema.is_mutable and torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), key
    )
