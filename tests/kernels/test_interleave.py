"""Two results that alternate in memory are stored as one."""

from __future__ import annotations

import pytest
import torch

from kernels.offline import Request, compile_offline
from vtc.index import expr
from vtc.index.map import IndexMap
from vtc.kernels.convolution import Convolution, Window
from vtc.kernels.convolution_build import channel_map, image_tensor, plain_tensor
from vtc.kernels.convolution_dot import dot_kernel
from vtc.kernels.convolution_tiles import DotTile
from vtc.kernels.epilogue import Body
from vtc.kernels.text import pointer_text

FORMS = ["kept first", "kept last", "a constant", "one of four", "read again", "every second"]


def shuffled(
    channels: int, form: str, dtype: torch.dtype, device: torch.device
) -> tuple[Convolution, list[torch.Tensor], torch.Tensor]:
    """relu(conv(x) + bias) and a kept image, stored in turns into an output of twice the channels;
    the tensors of a call, and what the output must be."""
    torch.manual_seed(0)
    n, h, w, c = 2, 5, 7, channels
    kind = {"dtype": dtype, "device": device}
    steps = {"one of four": 4, "every second": 2}.get(form, 2)
    x, kept = (torch.randn(n, h, w, c, **kind).permute(0, 3, 1, 2) for _ in range(2))
    out = torch.full((n, h, w, steps * c), 7.0, **kind).permute(0, 3, 1, 2)
    weight, bias = torch.randn(c, c, 1, 1, **kind) / c**0.5, torch.randn(c, **kind)
    values = [x, weight, out, kept, bias]
    tensors = [image_tensor(v) if v.dim() == 4 else plain_tensor(v) for v in values]
    tensors[1] = plain_tensor(weight)
    domain = (n, h, w, c)
    a, b, d, e = expr.axes(4)
    first, second = (
        IndexMap.single(domain, (a, b, d, e * steps + k)).compose(
            {0: IndexMap.identity((n, h, w, steps * c), 2)}
        )
        for k in ((1, 0) if form == "kept last" else (0, 1))
    )
    body = Body()
    constant = form == "a constant"
    other = body.const(3.0) if constant else body.load(IndexMap.identity(domain, 3))
    if form != "every second":
        body.store(other, first)
    total = body.scalar("add", body.product(), body.load(channel_map(domain, 4)))
    if form == "read again":
        total = body.scalar("add", total, body.load(second))
    body.store(body.scalar("maximum", total, body.const(0.0)), second)
    convolution = Convolution(
        image=domain, source=IndexMap.identity(domain, 0), weight=1, channels=c,
        window=Window((1, 1)), groups=1, body=body.build(), tensors=tuple(tensors),
    )  # fmt: skip
    want = out.double().cpu().clone()
    computed = torch.nn.functional.conv2d(x.double(), weight.double(), bias.double()).cpu()
    computed = computed + 7.0 if form == "read again" else computed
    places = (1, 0) if form == "kept last" else (0, 1)
    if form != "every second":
        want[:, places[0] :: steps] = 3.0 if form == "a constant" else kept.double().cpu()
    want[:, places[1] :: steps] = computed.relu()
    return convolution, values, want


@pytest.mark.parametrize("channels", [8, 29, 32])
@pytest.mark.parametrize("form", FORMS)
def test_stores_that_alternate_are_one_and_right(
    form: str, channels: int, device: torch.device
) -> None:
    convolution, values, want = shuffled(channels, form, torch.float32, device)
    kernel = dot_kernel(convolution, DotTile(32, 16, 16, 2, 2))
    together = form in ("kept first", "kept last", "a constant")
    assert kernel.source.count("tl.interleave") == together
    assert kernel.source.count("tl.store") == (1 if together or form == "every second" else 2)
    kernel.launch()(values)
    torch.testing.assert_close(values[2].double().cpu(), want, rtol=1e-4, atol=1e-4)


def test_the_machine_code_stores_many_elements_at_once() -> None:
    """58 channels each: rows of 116 elements begin at multiples of 8 bytes; 232: of 16."""
    requests = []
    for channels in (58, 232):
        convolution, *_ = shuffled(channels, "kept first", torch.float16, torch.device("cpu"))
        kernel = dot_kernel(convolution, DotTile(64, 64, 32, 4, 3))
        types = {f"t{n}": pointer_text(t.dtype) for n, t in enumerate(convolution.tensors)}
        options = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
        requests.append(Request(kernel.source, "convolution", types, {}, options))
    for width, machine in zip((8, 16), compile_offline(requests), strict=True):
        assert set(machine.stores) == {width}
        assert machine.spills == 0
