"""Copies of outputs: of those in memory that the next call writes again, and of those in other
places than eager PyTorch's.

A copy of the first kind has the strides of its original, and two outputs that share elements share
them as copies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vtc.graph.strides import is_dense, seen
from vtc.lowering.schedule import Form, View
from vtc.lowering.storage import extent_of

ALIGNMENT = 16
"""Bytes that a run of several outputs is aligned to, so that every dtype can view it."""


@dataclass(frozen=True)
class Run:
    """Bytes `first` to `last` of one storage, and which outputs lie there."""

    first: int
    last: int
    outputs: tuple[int, ...]

    def copied(self, originals: Sequence[Tensor]) -> list[Tensor]:
        """Copies of the outputs, in the order of `outputs`, on one storage."""
        storage = originals[self.outputs[0]].untyped_storage()
        device = storage.device
        source = torch.empty(0, dtype=torch.uint8, device=device)
        held = source.set_(storage, self.first, (self.last - self.first,), (1,)).clone()
        made = []
        for k in self.outputs:
            own = originals[k]
            offset = own.storage_offset() - self.first // own.itemsize
            empty = torch.empty(0, dtype=own.dtype, device=device)
            made.append(empty.set_(held.untyped_storage(), offset, own.shape, own.stride()))
        return made


class Copies:
    """How to copy `outputs`, a call's results that stay at their addresses.

    Outputs that no other overlaps and that fill their memory are cloned, the others copied with
    the run of bytes that they lie in.
    """

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        self.outputs = list(outputs)
        self.runs = [run for run in _runs(self.outputs) if not self._cloned(run)]

    def _cloned(self, run: Run) -> bool:
        own = self.outputs[run.outputs[0]]
        return len(run.outputs) == 1 and is_dense(own.shape, own.stride())

    def __call__(self) -> list[Tensor]:
        """The copies, one an output."""
        if not self.runs:
            return [own.clone() for own in self.outputs]
        copies: dict[int, Tensor] = {}
        for run in self.runs:
            copies.update(zip(run.outputs, run.copied(self.outputs), strict=True))
        return [copies[k] if k in copies else own.clone() for k, own in enumerate(self.outputs)]


class Placed:
    """Puts outputs into the strides of eager PyTorch, where a compiled region returns others:
    Inductor pads matmuls, and some operators keep the strides of an operand, which has others here.

    Outputs that are views of one tensor become views of one copy.
    """

    def __init__(self, forms: Mapping[int, Form]) -> None:
        storages: dict[int, dict[int, View]] = {}
        for k, form in forms.items():
            storages.setdefault(form.storage, {})[k] = form.view
        self.together = list(storages.values())
        # Those with a place for each element, from the first byte on.
        self.plain = {
            view
            for views in self.together
            for view in views.values()
            if not view.offset and 0 not in view.stride and not _overlaps(view.shape, view.stride)
        }

    def moves(self, outputs: Sequence[Any]) -> bool:
        """Has one of the outputs other strides, as an element shows?"""
        return any(not _shows(outputs[k], v) for views in self.together for k, v in views.items())

    def __call__(self, outputs: Sequence[Any]) -> tuple[Any, ...]:
        """The outputs, those copied of which an element shows that the strides differ."""
        made = list(outputs)
        for views in self.together:
            if all(_shows(outputs[k], v) for k, v in views.items()):
                continue
            ((k, view), *others) = views.items()
            if others or view not in self.plain:
                self._together(made, views)
            else:
                own = outputs[k]
                made[k] = torch.empty_strided(
                    view.shape, view.stride, dtype=own.dtype, device=own.device
                ).copy_(own)
        return tuple(made)

    @staticmethod
    def _together(made: list[Any], views: Mapping[int, View]) -> None:
        """Outputs in one storage, as views of a copy."""
        ends = (
            made[k].itemsize * (v.offset + extent_of(v.shape, v.stride)) for k, v in views.items()
        )
        device = made[min(views)].device
        held = torch.empty(max(ends), dtype=torch.uint8, device=device).untyped_storage()
        for k, v in views.items():
            empty = torch.empty(0, dtype=made[k].dtype, device=device)
            own, made[k] = made[k], empty.set_(held, v.offset, v.shape, v.stride)
            _store(made[k], own, v)


class AsEager:
    """What TorchInductor compiled, `call`, whose outputs come to lie as those of eager PyTorch.

    It returns some views as dense tensors, and others as views of what another output is a view of,
    or of an argument: what is written into one shows in the other then. Which ones, the first call
    tells, or the first in which they have elements and strides that show: it is looked into again
    where outputs come with other strides. `storages` as `Program.storages`, `forms` as
    `Schedule.forms`.
    """

    def __init__(
        self, call: Callable[..., Any], forms: Mapping[int, Form], storages: Mapping[int, int]
    ) -> None:
        self.call, self.storages = call, storages
        self.placed, self.formed = Placed(forms), sorted(forms)
        self.views = {k: form.view for k, form in forms.items() if 0 not in form.view.shape}
        self.hidden, self.strides = True, list[tuple[int, ...]]()
        self.moved, self.apart = False, frozenset[int]()

    def __call__(self, *args: Any) -> Any:
        outputs = self.call(*args)
        if self.hidden or [outputs[k].stride() for k in self.formed] != self.strides:
            self._look(outputs, args)
        if self.apart:
            outputs = _parted(outputs, self.apart)
        return self.placed(outputs) if self.moved else outputs

    def _look(self, outputs: Sequence[Any], args: Sequence[Any]) -> None:
        """Find out what is to be mended, and whether a call with other sizes may show more."""
        self.apart = self._shared(outputs, args)
        self.moved = self.placed.moves(_parted(outputs, self.apart))
        self.strides = [outputs[k].stride() for k in self.formed]
        empty = any(
            isinstance(own := outputs[k], Tensor) and not own.numel()
            for k in self.storages
            if k in self.views or k not in self.formed
        )
        self.hidden = empty or any(outputs[k].shape != v.shape for k, v in self.views.items())

    def _shared(self, outputs: Sequence[Any], args: Sequence[Any]) -> frozenset[int]:
        """The outputs in storage of an argument, or of an output before, that is another's."""
        owners: dict[int, set[int]] = {}
        for k, value in enumerate(args):
            if isinstance(value, Tensor):
                owners.setdefault(value.untyped_storage()._cdata, set()).add(k)
        found = set()
        for k, storage in sorted(self.storages.items()):
            own = outputs[k]
            if not isinstance(own, Tensor) or not own.numel():
                continue
            if storage not in owners.setdefault(own.untyped_storage()._cdata, {storage}):
                found.add(k)
        return frozenset(found)


def _parted(outputs: Sequence[Any], shared: Collection[int]) -> Sequence[Any]:
    """The outputs, some as clones."""
    return [o.clone() if k in shared else o for k, o in enumerate(outputs)]


def _shows(tensor: Tensor, view: View) -> bool:
    """Are the strides that an element of the tensor shows those of the view?"""
    shape, stride = view.shape, tensor.stride()
    if stride == view.stride or tensor.shape != shape:  # PyTorch's shape functions err at times
        return True
    return seen(shape, stride) == seen(shape, view.stride)


def _store(target: Tensor, values: Tensor, view: View) -> None:
    """Copy the values into `target`, of which several elements may lie in one place, and are equal
    then, as those of windows are."""
    if not _overlaps(view.shape, view.stride):
        _once(target, view.stride).copy_(_once(values, view.stride))
        return
    extent = extent_of(view.shape, view.stride)
    places = torch.arange(extent, device=target.device).as_strided(view.shape, view.stride)
    line = target.as_strided((extent,), (1,))
    line.scatter_(0, places.reshape(-1), values.reshape(-1))


def _once(tensor: Tensor, stride: Sequence[int]) -> Tensor:
    """The part without the dimensions that repeat elements in `stride`."""
    for dim in reversed(range(tensor.dim())):
        if stride[dim] == 0 and tensor.shape[dim] > 1:
            tensor = tensor.select(dim, 0)
    return tensor


def _overlaps(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """May two elements lie in one place, other than by a stride of 0?"""
    end = 0
    for step, n in sorted(zip(stride, shape, strict=True)):
        if n > 1 and step:
            if step <= end:
                return True
            end += (n - 1) * step
    return False


def viewed(view: Tensor, own: Tensor, given: Tensor) -> Tensor:
    """`view`, which views `own` by a slice, other strides or another dtype, as a view of `given`,
    which has the dtype, shape and strides of `own`."""
    if view.dtype == own.dtype:
        first = given.storage_offset() + view.storage_offset() - own.storage_offset()
        return given.as_strided(view.shape, view.stride(), first)
    moved = (given.storage_offset() - own.storage_offset()) * own.itemsize
    first = view.storage_offset() * view.itemsize + moved
    if first % view.itemsize:
        return view.clone()
    whole = max(view.itemsize, own.itemsize)
    begin = first // whole * whole
    count = -(-(first + _reach(view) - begin) // whole) * whole // own.itemsize
    flat = given.as_strided((count,), (1,), begin // own.itemsize).view(view.dtype)
    return flat.as_strided(view.shape, view.stride(), first // view.itemsize)


def _lazy(tensor: Tensor) -> bool:
    """Is it a conjugate or a negation that is not computed yet? No run of bytes holds that."""
    return tensor.is_conj() or tensor.is_neg()


def _runs(outputs: Sequence[Tensor]) -> list[Run]:
    """The outputs by what memory they span, those that overlap together."""
    spans = sorted(
        (own.untyped_storage()._cdata, *_span(own), k)
        for k, own in enumerate(outputs)
        if not _lazy(own)
    )
    runs: list[tuple[int, Run]] = []
    for storage, first, last, k in spans:
        if runs and runs[-1][0] == storage and first < runs[-1][1].last:
            before = runs.pop()[1]
            first, last = before.first, max(before.last, last)
            runs.append((storage, Run(first, last, (*before.outputs, k))))
        else:
            runs.append((storage, Run(first, last, (k,))))
    return [run for _, run in runs]


def _span(tensor: Tensor) -> tuple[int, int]:
    """The bytes of its storage that a tensor lies in, from one that every dtype can begin at."""
    first = tensor.storage_offset() * tensor.itemsize
    if tensor.numel() == 0:
        return first, first
    return first // ALIGNMENT * ALIGNMENT, first + _reach(tensor)


def _reach(tensor: Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    if tensor.numel() == 0:
        return 0
    steps = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (steps + 1) * tensor.itemsize
