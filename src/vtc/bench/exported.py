"""ONNX Runtime and OpenVINO on the model as PyTorch exports it to ONNX."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from vtc.bench.accuracy import output_tensors
from vtc.bench.case import Case
from vtc.bench.extras import need


class ExportError(Exception):
    """The model cannot be written as ONNX."""


def to_onnx(case: Case) -> bytes:
    """The case's model as a serialised ONNX model with static shapes; outputs flattened.

    Raises `ExportError`, and `MissingExtraError` without onnx and onnxscript.
    """
    need("onnx", "peers onnxruntime and openvino")
    need("onnxscript", "peers onnxruntime and openvino")
    wrapped = _Flat(case.model)
    wrapped.eval()
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                wrapped, case.args, kwargs=case.kwargs, dynamo=True, verbose=False, optimize=True
            )
    except Exception as error:  # the exporter raises many kinds
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ExportError(f"torch.onnx cannot export the model: {lines[0][:200]}") from error
    finally:
        logger.setLevel(level)
    if program is None:
        raise ExportError("torch.onnx gave no program")
    return bytes(program.model_proto.SerializeToString())


class _Flat(nn.Module):
    """A model whose output is the tuple of tensors in the output of another."""

    def __init__(self, model: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        return tuple(output_tensors(self.model(*args, **kwargs)))


def onnxruntime_session(model: bytes, case: Case) -> Callable[[], list[torch.Tensor]]:
    """A call of ONNX Runtime's CPU provider on the case's inputs, with torch's thread count."""
    runtime = need("onnxruntime", "peer onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    arrays = [t.contiguous().numpy() for t in output_tensors((case.args, case.kwargs))]
    if len(names) != len(arrays):
        raise ExportError(f"the ONNX model has {len(names)} inputs, the call {len(arrays)}")
    feed = dict(zip(names, arrays, strict=True))

    def run() -> list[torch.Tensor]:
        return [torch.from_numpy(array) for array in session.run(None, feed)]

    return run


def onnxruntime_cuda(model: bytes, case: Case) -> Callable[[], list[torch.Tensor]]:
    """A call of ONNX Runtime's CUDA provider: NHWC convolutions, and its own CUDA graph.

    Inputs and outputs stay in PyTorch's memory, and the graph is launched in order with
    PyTorch's stream.
    """
    runtime = need("onnxruntime", "peer onnxruntime")
    runtime.preload_dlls()
    stream = torch.cuda.Stream(case.device)
    number = stream.device.index
    provider = {
        "device_id": str(number),
        "user_compute_stream": str(stream.cuda_stream),
        "enable_cuda_graph": "1",
        "prefer_nhwc": "1",
    }
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(
        model, options, providers=[("CUDAExecutionProvider", provider)]
    )
    if "CUDAExecutionProvider" not in session.get_providers():
        raise ExportError("ONNX Runtime cannot load its CUDA provider")
    tensors = [t.contiguous() for t in output_tensors((case.args, case.kwargs))]
    with torch.no_grad():
        results = [torch.empty_like(t) for t in output_tensors(case.call())]
    binding = session.io_binding()
    for bind, entries, values in (
        (binding.bind_input, session.get_inputs(), tensors),
        (binding.bind_output, session.get_outputs(), results),
    ):
        if len(entries) != len(values):
            raise ExportError(f"the ONNX model has {len(entries)} tensors, the call {len(values)}")
        for k, (entry, value) in enumerate(zip(entries, values, strict=True)):
            values[k] = value = value.contiguous()
            element = torch.empty(0, dtype=value.dtype).numpy().dtype.type
            bind(entry.name, "cuda", number, element, tuple(value.shape), value.data_ptr())
    settings = runtime.RunOptions()
    settings.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def run() -> list[torch.Tensor]:
        current = torch.cuda.current_stream(case.device)
        stream.wait_stream(current)
        session.run_with_iobinding(binding, settings)
        current.wait_stream(stream)
        return results

    for _ in range(3):  # allocate, capture, replay
        run()
    return run


def openvino_request(model: bytes, case: Case) -> Callable[[], list[torch.Tensor]]:
    """A call of OpenVINO's CPU plugin in float32, tuned for latency, with torch's thread count."""
    openvino = need("openvino", "peer openvino")
    core = openvino.Core()
    compiled = core.compile_model(
        core.read_model(io.BytesIO(model)),
        "CPU",
        {
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": str(torch.get_num_threads()),
        },
    )
    request = compiled.create_infer_request()
    arrays = [t.contiguous().numpy() for t in output_tensors((case.args, case.kwargs))]
    # Shared memory: inputs and outputs are read and written where they are, as in ONNX Runtime.
    tensors = [openvino.Tensor(array, shared_memory=True) for array in arrays]
    for number, tensor in enumerate(tensors):
        request.set_input_tensor(number, tensor)

    def run() -> list[torch.Tensor]:
        request.infer()
        return [
            torch.from_numpy(request.get_output_tensor(i).data)
            for i in range(len(compiled.outputs))
        ]

    return run
