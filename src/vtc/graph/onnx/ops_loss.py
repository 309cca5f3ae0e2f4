"""Losses, which exported training graphs end in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vtc.graph.onnx.host import Value
from vtc.graph.onnx.registry import rule


def _nll(
    log_probabilities: Tensor,
    target: Tensor,
    weight: Value,
    ignore_index: int | None,
    reduction: str,
) -> Any:
    target = target.to(torch.int64)
    ignored = torch.zeros_like(target, dtype=torch.bool)
    if ignore_index is not None:
        ignored = target == ignore_index
    safe = torch.where(ignored, torch.zeros_like(target), target)
    picked = -torch.gather(log_probabilities, 1, safe.unsqueeze(1)).squeeze(1)
    if weight is None:
        share = torch.ones_like(picked)
    else:
        share = torch.ops.aten.index.Tensor(weight, [safe])
    share = torch.where(ignored, torch.zeros_like(share), share)
    loss = picked * share
    if reduction == "none":
        return loss
    total = torch.sum(loss)
    return total if reduction == "sum" else total / torch.sum(share)


@rule("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(
    x: Value,
    target: Value,
    weight: Value = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Any:
    return _nll(x, target, weight, ignore_index, reduction)


@rule("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(
    scores: Value,
    labels: Value,
    weights: Value = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    outputs: int,
) -> Any:
    log_probabilities = torch.log_softmax(scores, 1)
    loss = _nll(log_probabilities, labels, weights, ignore_index, reduction)
    return (loss, log_probabilities) if outputs > 1 else loss
