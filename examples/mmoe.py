"""A multi-gate mixture of experts, compiled once for every batch and list length.

    python examples/mmoe.py

After Ma et al., "Modeling Task Relationships in Multi-task Learning with Multi-gate
Mixture-of-Experts", KDD 2018, sections 3.3 and 4: experts are shared by all tasks, every task mixes
them by a softmax gate of its own, and has a tower of its own behind the mixture.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

import vtc


class MMoE(nn.Module):
    """f_k(x) = sum over experts i of softmax(W_k x)_i * expert_i(x); y_k = tower_k(f_k(x)).

    The experts are one layer of `experts * width` units with ReLU: as many matrices side by side.
    """

    def __init__(
        self,
        features: int = 512,
        experts: int = 8,
        tasks: int = 2,
        width: int = 128,
        tower: int = 64,
    ) -> None:
        super().__init__()
        self.experts = experts
        self.expert = nn.Linear(features, experts * width)
        self.gates = nn.ModuleList(nn.Linear(features, experts, bias=False) for _ in range(tasks))
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, tower), nn.ReLU(), nn.Linear(tower, 1))
            for _ in range(tasks)
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        """x: [..., features]. One [...] of probabilities a task."""
        hidden = torch.relu(self.expert(x)).unflatten(-1, (self.experts, -1))
        results = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            weights = torch.softmax(gate(x), dim=-1)
            mixture = (weights.unsqueeze(-1) * hidden).sum(-2)
            results.append(torch.sigmoid(tower(mixture)).squeeze(-1))
        return results


def main() -> None:
    """Score lists of several lengths for several users, with one compiled program."""
    torch.manual_seed(0)
    model = MMoE(tasks=3).eval()
    compiled = vtc.compile(model, engine="dvm")
    warnings.simplefilter("error", vtc.errors.FallbackWarning)
    with torch.no_grad():
        for users, items in ((1, 20), (4, 33), (7, 1), (2, 128)):
            x = torch.randn(users, items, 512)
            for mine, theirs in zip(compiled(x), model(x), strict=True):
                torch.testing.assert_close(mine, theirs)
            print(f"{users} users, {items} items: right")


if __name__ == "__main__":
    main()
