"""Image models as published, without weights: EfficientViT, YOLO11 and ShuffleNet-v2."""

from __future__ import annotations

import torch
from torch import nn

from vtc.bench.case import Case, ImageInputs, generator_on
from vtc.bench.extras import need, need_ultralytics


def efficientvit(
    variant: str, size: int, *, batch: int, device: torch.device, dtype: torch.dtype, seed: int
) -> Case:
    """EfficientViT-B1 or -B2 (`variant` "b1", "b2") of timm; images (batch, 3, size, size)."""
    timm = need("timm", "model efficientvit")
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = timm.create_model(f"efficientvit_{variant}", pretrained=False)
    return _case(
        "efficientvit", f"EfficientViT-{variant.upper()}", model, size, batch, device, dtype, seed
    )


def yolo11(
    variant: str, size: int, *, batch: int, device: torch.device, dtype: torch.dtype, seed: int
) -> Case:
    """YOLO11n or YOLO11s (`variant` "n", "s") from the yaml file of ultralytics, 80 classes."""
    tasks = need_ultralytics("ultralytics.nn.tasks")
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = tasks.DetectionModel(f"yolo11{variant}.yaml", ch=3, nc=80, verbose=False)
    case = _case("yolo11", f"YOLO11{variant}", model, size, batch, device, dtype, seed)
    # The head makes its anchors in the first call at a size and keeps them: made here, no system
    # meets them while it captures.
    with torch.no_grad():
        case.call()
    return case


def shufflenet(
    variant: str, size: int, *, batch: int, device: torch.device, dtype: torch.dtype, seed: int
) -> Case:
    """ShuffleNet-v2 x1.0 (`variant` "x1_0") of torchvision."""
    models = need("torchvision.models", "model shufflenet")
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = getattr(models, f"shufflenet_v2_{variant}")(weights=None)
    title = f"ShuffleNet-v2 {variant.replace('_', '.')}"
    return _case("shufflenet", title, model, size, batch, device, dtype, seed)


def randomise_batch_norm(model: nn.Module, seed: int) -> None:
    """Random weight, bias, mean and variance for every batch norm.

    Freshly built they are 1, 0, 0 and 1, and a compiler that lost one of them would not be seen.
    """
    generator = generator_on(torch.device("cpu"), seed)
    for module in model.modules():
        if not isinstance(module, nn.modules.batchnorm._BatchNorm):
            continue
        for name, low, high in (
            ("weight", 0.5, 1.5),
            ("bias", -0.3, 0.3),
            ("running_mean", -0.3, 0.3),
            ("running_var", 0.5, 1.5),
        ):
            tensor = getattr(module, name)
            if tensor is not None:
                with torch.no_grad():
                    drawn = torch.rand(tensor.shape, generator=generator)
                    tensor.copy_(low + (high - low) * drawn)


def _case(
    name: str,
    title: str,
    model: nn.Module,
    size: int,
    batch: int,
    device: torch.device,
    dtype: torch.dtype,
    seed: int,
) -> Case:
    randomise_batch_norm(model, seed)
    model = model.eval().requires_grad_(False).to(device=device, dtype=dtype)
    generator = generator_on(torch.device("cpu"), seed)
    image = torch.randn(batch, 3, size, size, generator=generator).to(device=device, dtype=dtype)
    layout = "NCHW"
    if device.type == "cuda":
        # Tensor cores take NHWC; a CPU gets the layout that the published code has.
        model = model.to(memory_format=torch.channels_last)
        image = image.to(memory_format=torch.channels_last)
        layout = "NHWC"
    config = {
        "size": size,
        "layers": None,
        "context": None,
        "dtype": str(dtype).removeprefix("torch."),
        "description": f"{title}, {size}x{size}, {layout}",
    }
    return Case(name, model, ImageInputs((image,)), config, device, dtype)
