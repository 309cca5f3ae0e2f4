"""The checker accepts what is right and refuses whatever is broken in a schedule."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from torch import fx

from lowering.harness import NAMES, Captured, capture_function, captured
from vtc import errors
from vtc.graph.capture import capture
from vtc.graph.program import InputView
from vtc.lowering import check as checker
from vtc.lowering.check import check
from vtc.lowering.identities import Identities
from vtc.lowering.schedule import Operand, Schedule, Step, View

aten = torch.ops.aten


@pytest.mark.parametrize("name", NAMES)
def test_schedules_of_legal_strategies_are_accepted(name: str) -> None:
    case = captured(name)
    for strategy, schedule in case.schedules(10):
        try:
            check(schedule, case.program)
        except errors.PlanCheckError as error:
            error.add_note(f"strategy {sorted(strategy)}\n{schedule}")
            raise


# Broken schedules. Each change is made to a schedule that is right.


def most_stored(name: str) -> tuple[Captured, Schedule]:
    """A case with the schedule that has the most stores, of a few strategies."""
    case = captured(name)
    schedules = [s for _, s in case.schedules(8)]
    best = max(schedules, key=lambda s: (sum(len(t.stores) for t in s.steps), len(s.steps)))
    check(best, case.program)
    return case, best


def with_step(schedule: Schedule, number: int, step: Step) -> Schedule:
    return replace(schedule, steps=(*schedule.steps[:number], step, *schedule.steps[number + 1 :]))


def with_operand(schedule: Schedule, number: int, k: int, operand: Operand) -> Schedule:
    step = schedule.steps[number]
    operands = (*step.operands[:k], operand, *step.operands[k + 1 :])
    return with_step(schedule, number, replace(step, operands=operands))


def edited(step: Step, edit: Callable[[fx.Graph], None]) -> Step:
    graph = copy.deepcopy(step.graph.graph)
    edit(graph)
    return replace(step, graph=fx.GraphModule({}, graph))


def refused(schedule: Schedule, case: Captured) -> str:
    """The rule that the checker names."""
    with pytest.raises(errors.PlanCheckError) as raised:
        check(schedule, case.program)
    return raised.value.rule


def stores(schedule: Schedule) -> list[tuple[int, int]]:
    """(step number, operand number) of every store."""
    return [(n, k) for n, step in enumerate(schedule.steps) for k in step.stores]


STORING = ["cat_of_matmuls_pytorch_102804", "matmuls_of_chunks_into_cat", "bmm_into_stack"]


@pytest.mark.parametrize("name", ["matmuls_of_chunks_into_cat", "bmm_into_stack", "cat_of_cats"])
def test_steps_in_another_order(name: str) -> None:
    case = captured(name)
    tried = 0
    for _, schedule in case.schedules(8):
        for a, b in combinations(range(len(schedule.steps)), 2):
            steps = list(schedule.steps)
            if depends(steps[b], steps[a]):
                steps[a], steps[b] = steps[b], steps[a]
                assert refused(replace(schedule, steps=tuple(steps)), case) in ("(ii)", "(iv)")
                tried += 1
    assert tried


def source(operand: Operand) -> tuple[str, int | str]:
    return operand.kind, operand.source


def depends(step: Step, on: Step) -> bool:
    """Does a step read a buffer that another stores into, or a result of it?"""
    made = {source(on.operands[k]) for k in on.stores} | {("result", r) for r in on.results}
    reads = {source(o) for k, o in enumerate(step.operands) if k not in step.stores}
    return bool(made & reads)


@pytest.mark.parametrize("name", STORING)
def test_a_store_that_starts_elsewhere(name: str) -> None:
    case, schedule = most_stored(name)
    for number, k in stores(schedule):
        operand = schedule.steps[number].operands[k]
        assert operand.view is not None
        for shift in (1, -1):
            view = replace(operand.view, offset=operand.view.offset + shift)
            moved = with_operand(schedule, number, k, replace(operand, view=view))
            assert refused(moved, case) in ("(i)", "(ii)", "(iii)", "contract")


@pytest.mark.parametrize("name", STORING)
def test_a_store_with_other_strides(name: str) -> None:
    case, schedule = most_stored(name)
    for number, k in stores(schedule):
        operand = schedule.steps[number].operands[k]
        assert operand.view is not None
        view = replace(operand.view, stride=operand.view.stride[::-1])
        assert refused(with_operand(schedule, number, k, replace(operand, view=view)), case)


@pytest.mark.parametrize("name", [*STORING, "pad_of_pointwise"])
def test_a_store_that_is_dropped(name: str) -> None:
    case, schedule = most_stored(name)
    for number, step in enumerate(schedule.steps):
        for store in [n for n in step.graph.graph.nodes if n.target is aten.copy_.default]:

            def drop(graph: fx.Graph, dropped: str = store.name) -> None:
                graph.erase_node(next(n for n in graph.nodes if n.name == dropped))

            assert refused(with_step(schedule, number, edited(step, drop)), case) == "(ii)"


@pytest.mark.parametrize("name", STORING)
def test_a_step_that_is_dropped(name: str) -> None:
    case, schedule = most_stored(name)
    for number in range(len(schedule.steps)):
        steps = (*schedule.steps[:number], *schedule.steps[number + 1 :])
        assert refused(replace(schedule, steps=steps), case) == "(ii)"


@pytest.mark.parametrize(
    "name", ["two_updates_of_one_input", "key_and_value_caches", "two_inputs_swapped"]
)
def test_an_update_that_is_missing(name: str) -> None:
    case = captured(name)
    for _, schedule in case.schedules(4):
        for number, step in enumerate(schedule.steps):
            updates = [k for k in step.stores if step.operands[k].kind == "input"]
            for k in updates:

                def drop(graph: fx.Graph, k: int = k) -> None:
                    target = [n for n in graph.nodes if n.op == "placeholder"][k]
                    for store in [n for n in target.users if n.target is aten.copy_.default]:
                        if store.args[0] is target:
                            graph.erase_node(store)

                assert refused(with_step(schedule, number, edited(step, drop)), case) in (
                    "(iv)",
                    "(v)",
                )


def test_a_store_into_an_input_that_is_not_updated() -> None:
    case = captured("cat_of_cats")
    step = case.plan.schedule(frozenset()).steps[0]
    k = next(k for k, o in enumerate(step.operands) if o.kind == "input")

    def store(graph: fx.Graph) -> None:
        (*_, output) = graph.nodes
        target = [n for n in graph.nodes if n.op == "placeholder"][k]
        with graph.inserting_before(output):
            graph.call_function(aten.copy_.default, (target, target))

    schedule = with_step(
        case.plan.schedule(frozenset()), 0, replace(edited(step, store), stores=(k,))
    )
    assert refused(schedule, case) == "(v)"


def one_step(name: str, edit: Callable[[fx.Graph], None]) -> str:
    case = captured(name)
    schedule = case.plan.schedule(frozenset())
    return refused(with_step(schedule, 0, edited(schedule.steps[0], edit)), case)


def test_operands_in_another_order() -> None:
    def swap(graph: fx.Graph) -> None:
        cat = next(n for n in graph.nodes if n.target is aten.cat.default)
        cat.args = (list(cat.args[0])[::-1], *cat.args[1:])

    assert one_step("cat_of_cats", swap) in ("(i)", "contract")


def test_another_constant() -> None:
    def change(graph: fx.Graph) -> None:
        mul = next(n for n in graph.nodes if n.target is aten.mul.Tensor)
        mul.args = (mul.args[0], 3)

    assert one_step("cat_of_cats", change) == "contract"


def test_another_operator() -> None:
    def change(graph: fx.Graph) -> None:
        next(n for n in graph.nodes if n.target is aten.sin.default).target = aten.cos.default

    assert one_step("cat_of_cats", change) == "contract"


def test_another_output() -> None:
    case = captured("outputs_that_are_inputs")
    schedule = case.plan.schedule(frozenset())
    outputs = list(schedule.outputs)
    outputs[0] = outputs[1]
    assert refused(replace(schedule, outputs=tuple(outputs)), case) == "contract"
    assert refused(replace(schedule, outputs=tuple(outputs[1:])), case) == "contract"


def test_an_input_returned_from_the_wrong_place() -> None:
    case = captured("cache_returned_with_a_view_of_it")
    schedule = case.plan.schedule(frozenset())
    outputs = list(schedule.outputs)
    k, view = next((k, o) for k, o in enumerate(outputs) if isinstance(o, InputView))
    for other, rule in ((view.offset - 1, "(iv)"), (view.offset + 100, "contract")):
        outputs[k] = replace(view, offset=other)
        assert refused(replace(schedule, outputs=tuple(outputs)), case) == rule


def test_two_stores_of_one_step_that_overlap() -> None:
    case, schedule = most_stored("cat_of_cats")
    number, first = stores(schedule)[0]
    step = schedule.steps[number]
    view = step.operands[first].view
    assert view is not None
    whole = next(b for b in schedule.buffers if b.name == step.operands[first].source)
    for k in step.stores[1:]:
        other = step.operands[k]
        if other.source == whole.name and other.view is not None:
            at = View(other.view.shape, other.view.stride, view.offset)
            moved = with_operand(schedule, number, k, replace(other, view=at))
            assert refused(moved, case) == "(iii)"


def test_a_read_of_what_the_step_stores() -> None:
    """x is updated by a store into a view of it, while the step reads all of it."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x[:2] = y.exp()
        return x * 2

    case = capture_function(f, (torch.randn(4, 3), torch.randn(2, 3)))
    schedule = case.plan.schedule(frozenset())
    (step,) = schedule.steps
    (k,) = step.stores
    number = step.operands[k].source

    def narrow(graph: fx.Graph) -> None:
        target = [n for n in graph.nodes if n.op == "placeholder"][k]
        store = next(n for n in target.users if n.target is aten.copy_.default)
        exp = next(n for n in graph.nodes if n.target is aten.exp.default)
        with graph.inserting_before(next(iter(graph.nodes))):
            part = graph.placeholder("part")
        with exp.meta["val"].fake_mode:
            part.meta["val"] = torch.empty(2, 3)
        store.args = (part, exp)

    part = Operand("input", number, View((2, 3), (3, 1), 0))
    step = replace(edited(step, narrow), operands=(part, *step.operands), stores=(0,))
    assert refused(replace(schedule, steps=(step,)), case) == "(iv)"


@pytest.mark.parametrize(
    "name", ["repeat_kv_with_mask_transformers_48633", "grouped_matmul_on_a_cache"]
)
def test_another_group_of_heads(name: str) -> None:
    case = captured(name)
    edges = case.plan.vtog.edges
    clones = {k for k, e in enumerate(edges) if e.direction == "load" and "clone" in e.tensor}
    clones -= {k for k in clones if "transpose" in edges[k].base}
    schedule = case.plan.schedule(frozenset(clones))
    check(schedule, case.program)
    calls = 0
    for number, step in enumerate(schedule.steps):

        def change(graph: fx.Graph) -> None:
            for node in graph.nodes:
                if "repeats" in node.meta:
                    node.meta["repeats"] = 1

        if any("repeats" in n.meta for n in step.graph.graph.nodes):
            assert refused(with_step(schedule, number, edited(step, change)), case) == "contract"
            calls += 1
    assert calls


def test_symbolic_programs_are_not_simulated() -> None:
    def backend(graph_module: fx.GraphModule, examples: list[object]) -> Callable[..., object]:
        program = capture(graph_module, examples)
        assert program.symbolic
        check(Schedule((), (), ()), program)
        return graph_module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(lambda x: x.exp() * x.shape[0], backend=backend, dynamic=True)(
            torch.randn(4, 3)
        )


def test_programs_beyond_the_limit_are_not_simulated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    case = captured("cat_of_cats")
    monkeypatch.setattr(checker, "LIMIT", 10)
    with caplog.at_level("DEBUG", logger="vtc"):
        check(Schedule((), (), ()), case.program)
    assert "not checked" in caplog.text


def test_tables_and_weights_count_by_what_is_read_of_them() -> None:
    def f(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.embedding(ids, table)
        return torch.cat([x, x.exp()], 0)

    case = capture_function(f, (torch.tensor([5, 70_000]), torch.zeros(80_000, 8)))
    schedule = case.plan.schedule(frozenset())
    tokens, tables = checker._read_whole(schedule, case.program)
    assert [n.name for n in tables] == ["arg1_1"]
    identities = Identities(case.program, tokens, tables)
    assert identities.values[case.program.inputs[1]].shape == (1024, 8)
    check(schedule, case.program)
