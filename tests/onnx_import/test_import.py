"""What an imported model is and computes: against onnx's reference evaluator and numpy."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch.nn import functional as F  # noqa: N812

from onnx_import.onnx_models import graph, model, node, simple
from vtc.graph.onnx import host, ops
from vtc.graph.onnx.importer import load
from vtc.graph.onnx.signature import example_inputs
from vtc.graph.onnx.tensors import read_tensor

r = np.random.default_rng(0)


def floats(*shape):
    return r.standard_normal(shape).astype(np.float32)


def check(made, *inputs, exact=False):
    """The import of a model against the reference evaluator; returns the module."""
    names = [value.name for value in made.graph.input]
    want = ReferenceEvaluator(made).run(None, dict(zip(names, inputs, strict=True)))
    module = load(made)
    got = module(*[torch.from_numpy(x) for x in inputs])
    got = (got,) if len(want) == 1 else got
    for one, two in zip(got, want, strict=True):
        expected = torch.from_numpy(np.asarray(two).copy())
        assert (one.dtype, one.shape) == (expected.dtype, expected.shape)
        assert torch.allclose(one, expected, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6)
    return module


def calls(module):
    return [n for n in module.graph.nodes if n.op == "call_function"]


# The module.


def test_weights_are_parameters_and_buffers_under_their_names():
    made = simple(
        [node("MatMul", "x w", "a"), node("Gather", "t i", "b"), node("Add", "a b", "y")],
        {"x": [2, 3]},
        ["y"],
        {"w": floats(3, 4), "t": floats(100, 4), "i": r.integers(0, 100, (40, 2))[:1, :2]},
    )
    module = check(made, floats(2, 3))
    assert {name for name, _ in module.named_parameters()} == {"w", "t"}
    assert not any(p.requires_grad for p in module.parameters())
    assert not module.training
    big = simple([node("Gather", "t i", "y")], {"t": [10]}, ["y"], {"i": r.integers(0, 10, 200)})
    assert [name for name, _ in load(big).named_buffers()] == ["i"]


def test_nodes_keep_their_names_and_inputs_can_be_named():
    first = helper.make_node("Relu", ["x"], ["a"], name="/layer.0/Relu")
    made = simple([first, node("Sub", "a z", "y")], {"x": [2], "z": [2]}, ["y"])
    module = load(made)
    assert [n.name for n in calls(module)] == ["layer_0_Relu", "y"]
    x, z = torch.tensor([1.0, -1.0]), torch.tensor([2.0, 3.0])
    assert torch.equal(module(z=z, x=x), x.relu() - z)
    assert torch.equal(copy.deepcopy(module)(x, z), x.relu() - z)


def test_one_output_is_itself_and_several_are_a_tuple():
    made = simple([node("Split", "x", "a b", num_outputs=2)], {"x": [4]}, ["b", "a"])
    b, a = load(made)(torch.arange(4.0))
    assert (a.tolist(), b.tolist()) == ([0.0, 1.0], [2.0, 3.0])
    made = simple(
        [node("TopK", "x k", "- i")],
        {"x": [4]},
        ["i"],
        {"k": np.array([2])},
        kinds={"i": TensorProto.INT64},
    )
    assert load(made)(torch.tensor([1.0, 3.0, 2.0, 0.0])).tolist() == [1, 2]


def test_outputs_that_are_inputs_constants_or_shapes():
    made = simple(
        [node("Shape", "x", "s")],
        {"x": [2, 3]},
        ["x", "c", "s"],
        {"c": np.array([1, 2])},
        kinds={"c": TensorProto.INT64, "s": TensorProto.INT64},
    )
    x, c, s = load(made)(torch.ones(2, 3))
    assert (x.shape, c.tolist(), s.tolist()) == ((2, 3), [1, 2], [2, 3])


# Shapes.


def shape_arithmetic():
    """(b, s, 12) -> (b, s * 2, 6), with the shape computed as exporters do."""
    return simple(
        [
            node("Shape", "x", "shape"),
            node("Gather", "shape zero", "b", axis=0),
            node("Gather", "shape one", "s", axis=0),
            node("Mul", "s two", "s2"),
            node("Unsqueeze", "b first", "b1"),
            node("Unsqueeze", "s2 first", "s1"),
            node("Concat", "b1 s1 rest", "target", axis=0),
            node("Reshape", "x target", "y"),
        ],
        {"x": ["batch", "length", 12]},
        ["y"],
        {
            "zero": np.array(0),
            "one": np.array(1),
            "two": np.array(2),
            "first": np.array([0]),
            "rest": np.array([-1]),
        },
    )


def test_shape_arithmetic_leaves_one_reshape():
    module = check(shape_arithmetic(), floats(2, 5, 12), exact=True)
    seen = []

    def backend(graph_module, inputs):
        seen.append([str(n.target) for n in graph_module.graph.nodes if n.op.startswith("call")])
        return graph_module.forward

    compiled = torch.compile(module, backend=backend, fullgraph=True, dynamic=False)
    x = torch.randn(3, 4, 12)
    assert torch.equal(compiled(x), x.reshape(3, 8, 6))
    assert seen == [["reshape"]]


def test_dynamic_sizes_are_symbols_in_one_graph():
    count = 0

    def backend(graph_module, inputs):
        nonlocal count
        count += 1
        return graph_module.forward

    torch._dynamo.reset()
    compiled = torch.compile(
        load(shape_arithmetic()), backend=backend, fullgraph=True, dynamic=True
    )
    for b, s in ((2, 3), (5, 7), (4, 9)):
        x = torch.randn(b, s, 12)
        assert torch.equal(compiled(x), x.reshape(b, 2 * s, 6))
    assert count == 1


def test_constants_of_shape_arithmetic_are_folded():
    made = simple(
        [
            node("Constant", "", "a", value_ints=[2, 3]),
            node("Constant", "", "two", value_int=2),
            node("Mul", "a two", "b"),
            node("ReduceProd", "b", "n", keepdims=0),
            node("Unsqueeze", "n zero", "n1"),
            node("Reshape", "x n1", "y"),
        ],
        {"x": [4, 6]},
        ["y"],
        {"zero": np.array([0])},
    )
    module = check(made, floats(4, 6))
    assert [n.target.__name__ for n in calls(module)] == ["reshape"]


def test_a_shape_that_is_data_is_read_at_the_call():
    made = simple(
        [node("Reshape", "x s", "y")], {"x": [6], "s": ["n"]}, ["y"], kinds={"s": TensorProto.INT64}
    )
    module = load(made)
    assert module(torch.ones(6), torch.tensor([2, 3])).shape == (2, 3)
    assert module(torch.ones(6), torch.tensor([3, -1])).shape == (3, 2)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Equal", "Less"])
def test_numbers_are_computed_as_tensors_are(op):
    a = np.array([[7, -7, 5], [-5, 3, -3]])
    b = np.array([2, -2, 3])
    rule = ops.find("", op, 14)
    known = rule.run(*(host.of_tensor(torch.from_numpy(x)) for x in (a, b)))
    direct = rule.run(torch.from_numpy(a), torch.from_numpy(b))
    assert torch.equal(host.tensor(known), direct)
    assert known.dtype == direct.dtype


@pytest.mark.parametrize("op", ["Slice", "Transpose", "Concat", "Split", "Squeeze", "Expand"])
def test_numbers_are_moved_as_tensors_are(op):
    x = (
        torch.arange(6).reshape(6)
        if op in ("Slice", "Concat", "Split")
        else torch.arange(6).reshape(2, 1, 3)
    )
    made = {
        "Slice": lambda v: ops.ops_movement.slice_(v, [5], [-100], [0], [-2]),
        "Transpose": lambda v: ops.ops_movement.transpose(v, perm=(2, 0, 1)),
        "Concat": lambda v: ops.ops_movement.concat(v, v, axis=0),
        "Split": lambda v: ops.ops_movement.split(v, num_outputs=4, outputs=4)[2],
        "Squeeze": ops.ops_movement.squeeze,
        "Expand": lambda v: ops.ops_movement.expand(v, host.vector([2, 2, 3])),
    }[op]
    assert torch.equal(host.tensor(made(host.of_tensor(x))), made(x).contiguous())


# Dtypes.


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE])
def test_floating_point_types(kind):
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    weight = helper.make_tensor("w", kind, [3], [0.5, -1.25, 3.0])
    made = simple(
        [node("Mul", "x w", "a"), node("Add", "a half", "y")],
        {"x": [2, 3]},
        ["y"],
        {"w": weight, "half": numpy_helper.from_array(np.array(0.5).astype(dtype), "half")},
        kinds={"x": kind, "y": kind},
    )
    module = load(made)
    x = torch.randn(2, 3).to(module.w.dtype)
    assert torch.equal(module(x), x * torch.tensor([0.5, -1.25, 3.0]).to(x.dtype) + 0.5)


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, 3e38, 1e-45])
def test_numbers_that_have_no_literal(number):
    made = simple(
        [node("Mul", "x c", "a"), node("LeakyRelu", "a", "y", alpha=float(number))],
        {"x": [2]},
        ["y"],
        {"c": np.array(number, np.float32)},
    )
    x = torch.tensor([0.5, -2.0])
    want = F.leaky_relu(x * torch.tensor(number, dtype=torch.float32), float(number))
    assert torch.equal(load(made)(x).nan_to_num(7.0), want.nan_to_num(7.0))


def test_the_floating_point_type_can_be_another():
    made = simple(
        [node("Cast", "x", "a", to=TensorProto.FLOAT), node("Mul", "a w", "y")],
        {"x": [3]},
        ["y"],
        {"w": floats(3)},
    )
    module = load(made, floating=torch.float64)
    (x,) = example_inputs(module)
    assert (x.dtype, module.w.dtype, module(x).dtype) == (torch.float64,) * 3


def test_typed_fields_hold_the_same_as_raw_data():
    for kind in (
        TensorProto.FLOAT,
        TensorProto.INT32,
        TensorProto.UINT8,
        TensorProto.INT8,
        TensorProto.BOOL,
        TensorProto.FLOAT16,
        TensorProto.UINT64,
        TensorProto.DOUBLE,
        TensorProto.COMPLEX64,
        TensorProto.BFLOAT16,
        TensorProto.INT4,
        TensorProto.UINT4,
    ):
        values = [0, 1, 1, 0] if kind == TensorProto.BOOL else [1, 2, 7, 5]
        typed = helper.make_tensor("w", kind, [4], values)
        raw = numpy_helper.from_array(numpy_helper.to_array(typed), "w")
        parts = [read_tensor(t, Path()) for t in (typed, raw)]
        assert torch.equal(*parts)
        assert parts[0].to(torch.complex64).real.tolist() == [float(v) for v in values]


def test_four_bit_weights_are_dequantized_and_nothing_else():
    packed = helper.make_tensor("w", TensorProto.INT4, [4], [-8, 7, 1, -1])
    made = simple(
        [
            node("Reshape", "w s", "m"),
            node("DequantizeLinear", "m scale", "d"),
            node("Mul", "x d", "y"),
        ],
        {"x": [2, 2]},
        ["y"],
        {"w": packed, "s": np.array([2, 2]), "scale": np.array(0.5, np.float32)},
    )
    assert load(made)(torch.ones(2, 2)).tolist() == [[-4.0, 3.5], [0.5, -0.5]]
    made = simple([node("Add", "w w", "y")], {}, ["y"], {"w": packed})
    with pytest.raises(NotImplementedError, match="less than a byte"):
        load(made)


# Control flow and functions.


def test_subgraphs_read_the_graphs_around_them():
    then = graph([node("Mul", "x w", "t")], {}, ["t"])
    other = graph([node("Relu", "x", "r"), node("Sub", "r w", "e")], {}, ["e"])
    made = simple(
        [
            node("ReduceSum", "x", "total", keepdims=0),
            node("Greater", "total zero", "c"),
            node("If", "c", "y", then_branch=then, else_branch=other),
        ],
        {"x": [100]},
        ["y"],
        {"w": floats(100), "zero": np.array(0, np.float32)},
    )
    check(made, np.abs(floats(100)))
    check(made, -np.abs(floats(100)))


def test_a_branch_may_give_numbers_alone():
    wide = graph([node("Identity", "flat", "t")], {}, ["t"])
    other = graph([node("Shape", "w", "s"), node("Identity", "s", "e")], {}, ["e"])
    made = simple(
        [
            node("ReduceSum", "x", "total", keepdims=0),
            node("Greater", "total zero", "c"),
            node("If", "c", "shape", then_branch=wide, else_branch=other),
            node("Reshape", "x shape", "y"),
        ],
        {"x": [6]},
        ["y"],
        {"w": floats(2, 3), "zero": np.array(0, np.float32), "flat": np.array([6])},
    )
    check(made, np.abs(floats(6)))
    check(made, -np.abs(floats(6)))


def test_a_branch_that_is_known_leaves_no_other():
    then = graph([node("Neg", "x", "t")], {}, ["t"])
    other = graph([node("Exp", "x", "e")], {}, ["e"])
    made = simple(
        [
            node("Shape", "x", "s"),
            node("Size", "s", "n"),
            node("Equal", "n two", "c"),
            node("If", "c", "y", then_branch=then, else_branch=other),
        ],
        {"x": [2, 3]},
        ["y"],
        {"two": np.array(2)},
    )
    module = check(made, floats(2, 3))
    seen = []

    def backend(graph_module, inputs):
        seen.extend(str(n.target) for n in graph_module.graph.nodes if n.op.startswith("call"))
        return graph_module.forward

    torch._dynamo.reset()
    torch.compile(module, backend=backend, fullgraph=True, dynamic=False)(torch.ones(2, 3))
    assert len(seen) == 1
    assert "neg" in seen[0]


def test_loops_carry_values_and_stack_results():
    w = floats(3)
    body = graph(
        [node("Add", "h w", "h2"), node("Identity", "go", "go2"), node("Mul", "h2 h2", "row")],
        {"i": [], "go": [], "h": [3]},
        ["go2", "h2", "row"],
        kinds={"i": TensorProto.INT64, "go": TensorProto.BOOL, "go2": TensorProto.BOOL},
    )
    made = simple(
        [node("Loop", "n c x", "last rows", body=body)],
        {"x": [3]},
        ["last", "rows"],
        {"n": np.array(4), "c": np.array(True), "w": w},
    )
    module = load(made)
    x = torch.randn(3)
    steps = [x + k * torch.from_numpy(w) for k in range(1, 5)]
    last, rows = module(x)
    assert torch.allclose(last, steps[-1], atol=1e-6)
    assert torch.allclose(rows, torch.stack(steps) ** 2, atol=1e-5)


def test_local_functions_with_attributes():
    scale = helper.make_node("Constant", [], ["a"])
    scale.attribute.append(
        onnx.AttributeProto(
            name="value_float", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT
        )
    )
    body = helper.make_function(
        "f",
        "Scaled",
        ["x"],
        ["y"],
        [scale, node("Mul", "x a", "y")],
        [helper.make_opsetid("", 21)],
        attributes=[],
        attribute_protos=[helper.make_attribute("alpha", 2.0)],
    )
    made = model(
        graph(
            [
                helper.make_node("Scaled", ["x"], ["b"], domain="f"),
                helper.make_node("Scaled", ["b"], ["y"], domain="f", alpha=-0.5),
            ],
            {"x": [3]},
            ["y"],
        ),
        functions=[body],
    )
    x = torch.randn(3)
    assert torch.equal(load(made)(x), x * 2.0 * -0.5)


# Versions.


@pytest.mark.parametrize("opset", [13, 17, 18, 21, onnx.defs.onnx_opset_version()])
def test_attributes_that_became_inputs(opset):
    reduce = (
        [node("ReduceMean", "x", "y", axes=[1])] if opset < 18 else [node("ReduceMean", "x a", "y")]
    )
    constants = {} if opset < 18 else {"a": np.array([1])}
    made = simple(reduce, {"x": [2, 3]}, ["y"], constants, opset=opset)
    x = floats(2, 3)
    assert np.allclose(load(made)(torch.from_numpy(x)), x.mean(1, keepdims=True), atol=1e-6)


def test_examples_have_the_sizes_of_the_file():
    made = simple([node("Add", "x z", "y")], {"x": ["batch", 3, "h"], "z": [None, 1, 8]}, ["y"])
    module = load(made)
    assert [tuple(t.shape) for t in example_inputs(module, batch=4)] == [(4, 3, 8), (4, 1, 8)]
    (x, _) = example_inputs(module, sizes={"h": 5})
    assert x.shape == (1, 3, 5)
    assert torch.equal(example_inputs(module, seed=3)[0], example_inputs(module, seed=3)[0])
    with pytest.raises(ValueError, match="'w'"):
        example_inputs(module, sizes={"w": 5})
