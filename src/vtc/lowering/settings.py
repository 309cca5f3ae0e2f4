"""What a compilation was asked for."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from vtc.options import Engine, Objective, Options
from vtc.virtual.record import GraphReport

Compiled = Callable[..., Any]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """The objective, the options and the engine.

    `records` receives a report of every captured graph; `progress` is called with a line of text
    as the compilation goes on.
    """

    objective: Objective = "latency"
    options: Options = field(default_factory=Options.from_env)
    records: list[GraphReport] | None = None
    progress: Progress = logging.getLogger("vtc.compiler").info
    engine: Engine = "auto"

    @property
    def measures(self) -> bool:
        """Are plans chosen by measured latency?"""
        return self.objective == "latency" and self.options.cost == "profile"

    def for_constants(self, constants: Sequence[torch.Tensor]) -> Settings:
        """Without `freeze` where a change of a weight could not be seen: inference tensors do not
        count their versions."""
        if not any(c.is_inference() for c in constants):
            return self
        return dataclasses.replace(self, options=self.options.replace(freeze=False))
