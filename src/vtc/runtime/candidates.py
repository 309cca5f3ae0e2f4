"""The plan, stock TorchInductor and the DVM, timed whole: "never slower" as a measured fact."""

from __future__ import annotations

import dataclasses
import logging
import warnings
from typing import Any

import torch
from torch import fx

from vtc import errors
from vtc.graph.program import value_of
from vtc.lowering import timing
from vtc.lowering.cache import ProfileCache
from vtc.lowering.carried import carried, joined_steps
from vtc.lowering.checked import checked
from vtc.lowering.implement import implemented
from vtc.lowering.own import Tuner
from vtc.lowering.plan import NOTHING, Plan
from vtc.lowering.record import Choice
from vtc.lowering.remembered import Memory
from vtc.lowering.schedule import Schedule
from vtc.lowering.settings import Compiled, Settings
from vtc.runtime.agree import difference
from vtc.runtime.cuda_graph import CudaGraphs, capturable
from vtc.runtime.executable import Executable
from vtc.runtime.outputs import AsEager
from vtc.runtime.rival import Rival
from vtc.runtime.stock import compile_stock, compile_stock_again

logger = logging.getLogger(__name__)

EQUAL = 1.01
"""Of two that are as fast within this the plan is kept: it moves less and needs less memory."""


class Candidates:
    """Ways to run one captured graph: the plan, stock TorchInductor, on a CPU the DVM (`rival`).

    `inputs` are the arguments at hand, or copies of them that were `parted` because they share
    storage. `notes` says in sentences what was found out.
    """

    def __init__(
        self,
        rival: Rival | None,
        plan: Plan,
        choice: Choice,
        schedule: Schedule,
        graph_module: fx.GraphModule,
        inputs: list[Any],
        parted: bool,
        settings: Settings,
    ) -> None:
        self.rival, self.rival_kept = rival, False
        self.plan, self.choice, self.schedule = plan, choice, schedule
        self.graph_module, self.settings = graph_module, settings
        self.updated = [i for i, _ in plan.program.updates]
        self.inputs = inputs
        self.fakes = [value_of(n) for n in plan.program.inputs[: len(inputs)]]
        self.compile_inputs = self.fakes if parted else inputs
        self.notes: list[str] = []
        # Where nothing is virtual and every kernel is called as PyTorch calls it, the plan is
        # stock TorchInductor.
        self.stock_kept = not (choice.strategy or plan.transposed or plan.own or plan.attentions)

    def fastest(self) -> Compiled:
        """The plan, unless stock TorchInductor or the DVM is faster on the arguments at hand.

        A plan with kernels of ours whose answer differs from stock's is not kept, which is warned
        of. A plan for memory or bytes is kept whatever its latency. One of a program that updates
        its own constants (the caches of a frozen model) is compared with the DVM alone, which are
        put back then.
        """
        passed = len(self.inputs)
        constants = [self.plan.program.constants[i - passed] for i in self.updated if i >= passed]
        measured = self.settings.objective == "latency" and self.settings.options.verify
        kept = self._compiled(measured and not constants)
        if not self.rival or not measured or any(c.is_inference() for c in constants):
            return kept
        return self._against_rival(kept, timing.Held(constants))

    def _against_rival(self, kept: Compiled, held: timing.Held) -> Compiled:
        """The DVM's program, if it is faster than what is kept, and says the same."""
        assert self.rival is not None
        self.settings.progress("measuring the DVM's program")
        updated = [i for i in self.updated if i < len(self.inputs)]
        try:
            found = difference(self.rival.run, kept, self.inputs, updated, held)
            if found is not None:
                warnings.warn(errors.DisagreementWarning(found), stacklevel=2)
                self.notes.append(f"{found}: the DVM's program is not kept")
                return kept
            calls: list[Compiled] = [self.rival.run, kept]
            own_us, kept_us = timing.interleaved(calls, self.inputs, updated, held)
        finally:
            held.put_back()
        self.rival.note(own_us, kept_us)
        self.notes.append(f"whole graph: the DVM's program {own_us:.1f} us, else {kept_us:.1f} us")
        self.rival_kept = own_us < kept_us
        return self.rival.run if self.rival_kept else kept

    def _compiled(self, measured: bool) -> Compiled:
        """The faster one of the plan and stock TorchInductor."""
        if self.stock_kept:
            return self._stock()
        if not measured:
            return self._planned()
        memory = Memory.of(self.plan, self.settings)
        known = memory.recall() if memory else None
        if known and known.ours_us and known.theirs_us:
            self.notes.append("the plan and its comparison with stock TorchInductor are remembered")
            self._judge(known.ours_us, known.theirs_us)
            return self._stock() if self.stock_kept else self._planned()
        tuner = self._tuner()
        tuner.begin([*self.schedule.steps, *joined_steps(self.schedule)])
        self.settings.progress("compiling stock TorchInductor to compare")
        theirs = self._stock()
        ours = self._planned(tuner)
        arguments = [a.node.hint if isinstance(a, torch.SymInt) else a for a in self.inputs]
        if self.plan.own or self.plan.attentions:
            found = difference(ours, theirs, arguments, self.updated)
            if found is not None:
                warnings.warn(errors.DisagreementWarning(found), stacklevel=2)
                self.notes.append(f"{found}: stock TorchInductor is kept")
                self.stock_kept = True
                return theirs
        ours_us, theirs_us = timing.interleaved([ours, theirs], arguments, self.updated)
        if memory and (known := memory.recall()):
            memory.keep(dataclasses.replace(known, ours_us=ours_us, theirs_us=theirs_us))
        self._judge(ours_us, theirs_us)
        return theirs if self.stock_kept else ours

    def _judge(self, ours_us: float, theirs_us: float) -> None:
        """Keep the faster of the two."""
        self.notes.append(f"whole graph: {ours_us:.1f} us, stock TorchInductor {theirs_us:.1f} us")
        if ours_us > theirs_us * EQUAL:
            self.notes.append("stock TorchInductor is faster and is kept")
            self.stock_kept = True

    def again(self) -> Compiled:
        """What was kept, compiled again from the live tensors."""
        if not self.stock_kept:
            return self._planned()
        freeze = self.settings.options.freeze
        made = compile_stock_again(
            self.graph_module, self.fakes, freeze=freeze, updated=self._passed
        )
        return self._replayed(self._as_eager(made))

    def kept_plan(self) -> tuple[Choice, Schedule]:
        """The choice that describes what runs: the empty one where stock TorchInductor does."""
        if not self.stock_kept:
            return self.choice, self.schedule
        return self.choice.without_virtual_tensors(), self.plan.schedule(NOTHING)

    def _tuner(self) -> Tuner:
        cache = ProfileCache(self.settings.options.cache_dir, self.plan.device)
        return Tuner(cache, self.settings.progress)

    def _planned(self, tuner: Tuner | None = None) -> Compiled:
        program, freeze = self.plan.program, self.settings.options.freeze
        tuner = tuner or self._tuner()
        self.schedule = self._carried(tuner)
        tuner.prepare(self.schedule.steps)
        steps = implemented(self.schedule.steps, program, freeze=freeze, tuner=tuner)
        run = Executable(self.schedule, steps, len(self.inputs), program.constants)
        return self._replayed(AsEager(run, {}, program.storages))

    def _carried(self, tuner: Tuner) -> Schedule:
        """The schedule with residual copies carried by kernels of ours where that is faster."""
        found = carried(self.schedule, tuner)
        if len(found.steps) == len(self.schedule.steps):
            return self.schedule
        try:
            checked(found, self.plan, self.settings)
        except errors.PlanCheckError as error:  # a bug of ours must not stop the user's model
            logger.warning("residual copies stay as they are: %s", error)
            return self.schedule
        return found

    def _stock(self) -> Compiled:
        freeze = self.settings.options.freeze
        made = compile_stock(
            self.graph_module, self.compile_inputs, freeze=freeze, updated=self._passed
        )
        return self._replayed(self._as_eager(made))

    def _as_eager(self, stock: Compiled) -> Compiled:
        program = self.plan.program
        whole = self.plan.schedule(NOTHING) if self.choice.strategy else self.schedule
        return AsEager(stock, whole.forms, program.storages)

    @property
    def _passed(self) -> list[int]:
        """The numbers of the arguments that the graph updates."""
        return [i for i in self.updated if i < len(self.inputs)]

    def _replayed(self, run: Compiled) -> Compiled:
        """On CUDA, `run` as one CUDA graph."""
        symbolic = self.plan.program.symbolic
        if symbolic or not self.settings.options.cuda_graphs or not capturable(self.plan.program):
            return run
        passed = len(self.inputs)
        weights = [i for i in self.plan.weights if i < passed]
        return CudaGraphs(run, weights, self._passed)
