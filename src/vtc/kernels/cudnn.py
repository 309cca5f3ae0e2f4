"""Convolutions through cuDNN's graph API, which takes any strides: it reads and writes slices.

`nvidia-cudnn-frontend` is optional. A convolution and its epilogue become one graph of cuDNN's; its
heuristics give plans, each of which is a launch, and measurement chooses. Plans that need more
than `WORKSPACE` bytes are left out.

Of the frontend (1.18): `swish` has the types of its last two arguments exchanged, so SiLU is
written as a sigmoid and a product; plans are built one by one, since `build_plans` keeps only the
first unless all are built. What lies between nodes is f32 and is not rounded. A maximum with 0 is
cuDNN's ReLU, which gives 0 for NaN where PyTorch gives NaN.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from vtc.kernels.convolution import Convolution, Launch
from vtc.kernels.convolution_recipe import (
    BINARY,
    TYPES,
    UNARY,
    Node,
    NotAcceptedError,
    Placed,
    Recipe,
    recipe,
)
from vtc.program.dtypes import DType

logger = logging.getLogger(__name__)

WORKSPACE = 64 << 20
"""Most bytes of scratch memory that a plan may need."""

PLANS = 6
"""How many plans are built: a fused one takes 0.1 to 2 s. The heuristics put good ones first: of
up to 35 plans a convolution, the fastest was among the first five in eight of nine cases."""


def available() -> bool:
    """Is the frontend installed, with a cuDNN that it can load?"""
    return torch.cuda.is_available() and _frontend() is not None


@functools.cache
def _frontend() -> Any:
    try:
        return importlib.import_module("cudnn")
    except (ImportError, OSError, AttributeError) as error:
        logger.debug("cuDNN's frontend cannot be used: %s", error)
        return None


def cudnn_launches(
    convolution: Convolution, tensors: Sequence[torch.Tensor], plans: int = PLANS
) -> list[Launch]:
    """A launch for each of the first plans; none where cuDNN is not there or does not take the
    convolution.

    tensors: examples of a call's, whose addresses are aligned as those of later calls are.
    """
    if not available():
        return []
    try:
        wanted = recipe(convolution, [t.data_ptr() & -t.data_ptr() or 16 for t in tensors])
        built = _built(wanted, torch.cuda.current_device(), plans)
    except NotAcceptedError as reason:
        logger.debug("not a cuDNN graph: %s", reason)
        return []
    return [
        Launch(f"cudnn plan {plan}", functools.partial(built.run, plan)) for plan in built.sizes
    ]


@functools.cache
def _handle(device: int) -> Any:
    """One handle a device, as torch has one: calls set its stream."""
    with torch.cuda.device(device):
        return _frontend().create_handle()


@functools.lru_cache(maxsize=1024)
def _built(wanted: Recipe, device: int, plans: int) -> Graph:
    return Graph(wanted, device, plans)


class Graph:
    """A built graph: its plans, and the scratch memory that they share.

    Raises NotAcceptedError where cuDNN has no plan for it.
    """

    def __init__(self, wanted: Recipe, device: int, plans: int) -> None:
        self.recipe, self.device, self.plans = wanted, device, plans
        cudnn = _frontend()
        self.graph = cudnn.pygraph(
            handle=_handle(device),
            io_data_type=getattr(cudnn.data_type, TYPES[wanted.image.dtype]),
            intermediate_data_type=cudnn.data_type.FLOAT,
            compute_data_type=cudnn.data_type.FLOAT,
        )
        self.places: list[tuple[Any, Placed]] = []
        self.constants: dict[Any, torch.Tensor] = {}
        try:
            self._describe(cudnn)
            self.graph.validate()
            self.graph.build_operation_graph()
            self.graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
            if not (wanted.tf32 or wanted.image.dtype is not DType.F32):
                self.graph.deselect_numeric_notes([cudnn.numerical_note.TENSOR_CORE])
        except (RuntimeError, cudnn.cudnnGraphNotSupportedError) as error:
            raise NotAcceptedError(str(error).partition("\n")[0]) from error
        self.sizes = self._build()
        if not self.sizes:
            raise NotAcceptedError("no plan can be built")
        self.fixed = [(t.get_uid(), c.data_ptr()) for t, c in self.constants.items()]
        self.moving = [
            (t.get_uid(), p.argument, p.offset * p.dtype.itemsize, p.alignment)
            for t, p in self.places
        ]

    def _build(self) -> dict[int, int]:
        """Builds plans in the order of cuDNN's heuristics: scratch bytes by number of the plan."""
        sizes: dict[int, int] = {}
        for plan in range(self.graph.get_execution_plan_count()):
            if len(sizes) == self.plans:
                break
            try:
                self.graph.build_plan_at_index(plan)
            except (RuntimeError, _frontend().cudnnGraphNotSupportedError):
                continue
            size = int(self.graph.get_workspace_size_plan_at_index(plan))
            if size <= WORKSPACE:
                sizes[plan] = size
        return sizes

    def _describe(self, cudnn: Any) -> None:
        wanted = self.recipe
        values: list[Any] = [
            self.graph.conv_fprop(
                image=self._tensor(cudnn, wanted.image),
                weight=self._tensor(cudnn, wanted.weight),
                padding=list(wanted.padding),
                stride=list(wanted.stride),
                dilation=list(wanted.dilation),
                compute_data_type=cudnn.data_type.FLOAT,
            )
        ]
        used = {a for node in wanted.nodes for a in node.args} | {wanted.result}
        for number, node in enumerate(wanted.nodes[1:], start=1):
            values.append(self._value(cudnn, node, values) if number in used else None)
        result = values[wanted.result]
        result.set_output(True)
        result.set_data_type(getattr(cudnn.data_type, TYPES[wanted.output.dtype]))
        result.set_dim(list(wanted.output.size))
        result.set_stride(list(wanted.output.stride))
        result.set_alignment(wanted.output.alignment)
        self.places.append((result, wanted.output))

    def _value(self, cudnn: Any, node: Node, values: Sequence[Any]) -> Any:
        if isinstance(node.value, Placed):
            return self._tensor(cudnn, node.value)
        if node.op == "constant":
            held = torch.full((1, 1, 1, 1), node.value)
            made = self.graph.tensor(
                dim=[1, 1, 1, 1],
                stride=[1, 1, 1, 1],
                data_type=cudnn.data_type.FLOAT,
                is_pass_by_value=True,
            )
            self.constants[made] = held
            return made
        operands = [values[a] for a in node.args]
        if node.op == "relu":
            return self.graph.relu(operands[0])
        name = UNARY.get(node.op) or BINARY[node.op]
        call: Callable[..., Any] = getattr(self.graph, name)
        return call(*operands)

    def _tensor(self, cudnn: Any, placed: Placed) -> Any:
        made = self.graph.tensor(
            dim=list(placed.size),
            stride=list(placed.stride),
            data_type=getattr(cudnn.data_type, TYPES[placed.dtype]),
        )
        made.set_alignment(placed.alignment)
        self.places.append((made, placed))
        return made

    def run(self, plan: int, tensors: Sequence[torch.Tensor]) -> None:
        """Enqueue one plan on the current stream.

        Raises ValueError for a tensor that is less aligned than the plan was built for.
        """
        stream = torch.cuda.current_stream(self.device)
        handle = _handle(self.device)
        _frontend().set_stream(handle=handle, stream=stream.cuda_stream)
        pointers = dict(self.fixed)
        for uid, argument, offset, alignment in self.moving:
            pointers[uid] = tensors[argument].data_ptr() + offset
            if pointers[uid] % alignment:
                raise ValueError(f"tensor {argument} is not aligned to {alignment} bytes")
        # The allocator hands memory back in stream order, and a graph that is captured keeps it.
        scratch = torch.empty(max(self.sizes[plan], 16), dtype=torch.uint8, device=self.device)
        self.graph._execute_plan_at_index(pointers, scratch.data_ptr(), plan, handle)
