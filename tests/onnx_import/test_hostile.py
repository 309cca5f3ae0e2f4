"""Damaged and hostile files end in an error of ours: no crash, no large allocation, no read outside
of the model's folder, and no code of theirs."""

from __future__ import annotations

import os
import pickle
import re

import numpy as np
import onnx
import pytest
import torch
from onnx import AttributeProto, TensorProto, helper

import vtc
from onnx_import.onnx_models import graph, model, node, simple
from vtc.errors import OnnxFileError, UnsupportedOnnxError
from vtc.graph.onnx.importer import load

RELU = node("Relu", "x", "y")


def refused(made, *words):
    """The import of a model, or of a file, is refused with a message that has the words."""
    with pytest.raises(OnnxFileError) as caught:
        load(made)
    for word in words:
        assert word in str(caught.value)
    return caught.value


def saved(folder, made, name="model.onnx"):
    path = folder / name
    path.write_bytes(made.SerializeToString())
    return path


def weight(dims, kind=TensorProto.FLOAT, **fields):
    made = TensorProto(name="w", data_type=kind, dims=dims)
    for key, value in fields.items():
        if isinstance(value, list):
            getattr(made, key).extend(value)
        else:
            setattr(made, key, value)
    return made


def with_weight(tensor):
    return simple([node("Add", "x w", "y")], {"x": [2]}, ["y"], {"w": tensor})


def external(dims, **entries):
    made = weight(dims, data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        made.external_data.add(key=key, value=str(value))
    return made


# The file.


def test_no_file(tmp_path):
    refused(tmp_path / "none.onnx", "no such file")
    refused(tmp_path, "no such file")


@pytest.mark.parametrize("data", [b"", b"\0" * 64, b"not an onnx file", b"\x08\xff\xff"])
def test_no_model(tmp_path, data):
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    refused(path)


def test_every_truncation_and_flipped_byte_is_an_error_or_a_model(tmp_path):
    made = simple(
        [
            node("MatMul", "x w", "a"),
            node("Reshape", "a s", "b"),
            node("Softmax", "b", "y", axis=-1),
        ],
        {"x": [2, 3]},
        ["y"],
        {"w": np.ones((3, 4), np.float32), "s": np.array([4, 2])},
    )
    whole = made.SerializeToString()
    path = tmp_path / "model.onnx"
    generator = np.random.default_rng(0)
    damaged = [whole[:cut] for cut in range(len(whole))]
    for at in range(len(whole)):
        other = bytearray(whole)
        other[at] ^= int(generator.integers(1, 256))
        damaged.append(bytes(other))
    refusals = 0
    for data in damaged:
        path.write_bytes(data)
        try:
            load(path)
        except (OnnxFileError, UnsupportedOnnxError):
            refusals += 1
    assert refusals > len(whole)


def test_a_file_beyond_protobufs_limit(tmp_path):
    path = tmp_path / "model.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)
    refused(path, "2 GiB")


# The structure.


def test_cycles():
    refused(
        simple([node("Add", "x b", "a"), node("Relu", "a", "b")], {"x": [2]}, ["b"]), "'b'", "cycle"
    )


def test_missing_initializer():
    refused(simple([node("Add", "x w", "y")], {"x": [2]}, ["y"]), "'w'", "missing")


def test_missing_output():
    refused(simple([RELU], {"x": [2]}, ["z"]), "'z'")


def test_no_outputs_and_no_graph():
    refused(simple([RELU], {"x": [2]}, []), "no outputs")
    refused(onnx.ModelProto(), "no graph")


@pytest.mark.parametrize(
    "nodes",
    [[RELU, node("Neg", "x", "y")], [node("Split", "x", "y y", axis=0)], [node("Neg", "x", "x")]],
)
def test_names_that_are_made_twice(nodes):
    refused(simple(nodes, {"x": [2]}, ["y" if nodes[0].output[0] == "y" else "x"]))


def test_duplicate_initializers_and_inputs():
    made = with_weight(np.ones(2, np.float32))
    made.graph.initializer.append(made.graph.initializer[0])
    refused(made, "two", "'w'")
    made = simple([RELU], {"x": [2]}, ["y"])
    made.graph.input.append(made.graph.input[0])
    refused(made, "two", "'x'")


def test_duplicate_attributes():
    twice = node("Softmax", "x", "y", axis=0)
    twice.attribute.append(helper.make_attribute("axis", 1))
    refused(simple([twice], {"x": [2]}, ["y"]), "two", "axis")


def test_unknown_opset():
    refused(simple([RELU], {"x": [2]}, ["y"], opset=10**6), "opset 1000000")


def test_graphs_nested_without_end():
    inner = graph([RELU], {"x": [2]}, ["y"])
    for _ in range(28):
        attributes = {"then_branch": inner, "else_branch": inner}
        branch = helper.make_node("If", ["c"], ["y"])
        branch.attribute.extend(
            helper.make_attribute(k, v) for k, v in attributes.items() if k[0] == "t"
        )
        inner = graph([branch], {}, ["y"])
    inner.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    refused(model(inner), "nested")


def function(name, nodes):
    return helper.make_function(
        "f", name, ["x"], ["y"], nodes, [helper.make_opsetid("", 21), helper.make_opsetid("f", 1)]
    )


def called(name, result="y", given="x"):
    return helper.make_node(name, [given], [result], domain="f")


def test_functions_that_call_themselves():
    loop = [function("A", [called("B")]), function("B", [called("A")])]
    made = model(graph([called("A")], {"x": [2]}, ["y"]), functions=loop)
    refused(made, "calls itself")


def test_functions_that_double_at_each_level(monkeypatch):
    monkeypatch.setattr("vtc.graph.onnx.importer.MAX_NODES", 5000)
    last = function("F0", [RELU])
    levels = [last] + [
        function(f"F{k}", [called(f"F{k - 1}", "a"), called(f"F{k - 1}", "y", "a")])
        for k in range(1, 23)
    ]
    made = model(graph([called("F22")], {"x": [2]}, ["y"]), functions=levels)
    refused(made, "more than")


def test_numbers_that_grow_are_not_computed_at_import():
    growing = {
        "Mul": [node("Mul", f"v{k} v{k}", f"v{k + 1}") for k in range(64)],
        "Concat": [node("Concat", f"v{k} v{k}", f"v{k + 1}", axis=0) for k in range(64)],
        "Pow": [node("Pow", f"v{k} v{k}", f"v{k + 1}") for k in range(64)],
    }
    for nodes in growing.values():
        made = simple(
            [*nodes, node("Reshape", "x v64", "y")], {"x": [6]}, ["y"], {"v0": np.array([3])}
        )
        load(made)
    square = [node("Reshape", "v column", "c"), node("Add", "v c", "y")]
    made = simple(square, {}, ["y"], {"v": np.arange(64), "column": np.array([64, 1])})
    assert load(made)().shape == (64, 64)


# Tensors.


def test_huge_dimensions_without_data():
    refused(with_weight(weight([2**40, 2**40])), "needs")
    refused(with_weight(weight([10**6, 10**6], float_data=[1.0])), "needs")
    refused(with_weight(weight([2], raw_data=b"\0" * 7)), "needs 8 bytes and has 7")


def test_negative_dimensions():
    refused(with_weight(weight([-1], float_data=[1.0])), "negative")
    refused(simple([RELU], {"x": [-3]}, ["y"]), "negative")


def test_elements_that_torch_does_not_have():
    refused(with_weight(weight([1], TensorProto.STRING, string_data=[b"a"])), "STRING")
    refused(with_weight(weight([1], 999)), "999")
    with pytest.raises(UnsupportedOnnxError, match="STRING"):
        load(simple([RELU], {"x": [2]}, ["y"], kinds={"x": TensorProto.STRING}))


def test_sparse_initializers():
    made = simple([RELU], {"x": [2]}, ["y"])
    made.graph.sparse_initializer.add(dims=[2**40])
    refused(made, "sparse")


def test_a_huge_constant_of_shape_allocates_nothing_at_import():
    made = simple([node("ConstantOfShape", "s", "y")], {}, ["y"], {"s": np.array([2**40])})
    module = load(made)
    with pytest.raises(RuntimeError):
        module()


def test_an_example_of_a_huge_input_is_refused(tmp_path):
    path = saved(tmp_path, simple([RELU], {"x": [2**20, 2**20]}, ["y"]))
    with pytest.raises(OnnxFileError, match="too large"):
        vtc.explain(path)


# External data.


@pytest.mark.parametrize(
    "location",
    [
        "../secret",
        "/etc/passwd",
        "sub/../../secret",
        "link",
        "folder/secret",
        "",
        ".",
        "a\0b",
        "C:\\w",
        "none",
    ],
)
def test_external_data_stays_in_the_folder(tmp_path, location):
    (tmp_path / "secret").write_bytes(b"\0" * 64)
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "folder").symlink_to(tmp_path)
    path = saved(folder, with_weight(external([2], location=location)))
    refused(path, "'w'")


def test_external_data_that_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for location in ("pipe", "loop"):
        refused(saved(tmp_path, with_weight(external([2], location=location))), "'w'")


@pytest.mark.parametrize(
    "entries",
    [
        {"offset": 60},
        {"offset": 10**18},
        {"offset": -4},
        {"offset": "x"},
        {"length": 4},
        {"length": 10**30},
        {"offset": "9" * 5000},
    ],
)
def test_external_data_beyond_the_file(tmp_path, entries):
    (tmp_path / "data").write_bytes(b"\0" * 64)
    refused(saved(tmp_path, with_weight(external([2], location="data", **entries))), "'w'")


def test_external_data_is_read_at_its_offset(tmp_path):
    values = np.array([1.5, -2.5], np.float32)
    for offset in (0, 1, 3, 4096):
        (tmp_path / "data").write_bytes(b"\xff" * offset + values.tobytes())
        made = with_weight(external([2], location="data", offset=offset, length=8))
        module = load(saved(tmp_path, made))
        assert torch.equal(module(torch.zeros(2)), torch.from_numpy(values))


def test_external_data_through_a_link_inside_of_the_folder(tmp_path):
    (tmp_path / "blob").write_bytes(np.ones(2, np.float32).tobytes())
    (tmp_path / "data").symlink_to("blob")
    module = load(saved(tmp_path, with_weight(external([2], location="data"))))
    assert torch.equal(module(torch.zeros(2)), torch.ones(2))


# Names become Python code.


@pytest.mark.parametrize(
    "name",
    [
        "x, y=__import__('os').abort()",
        "lambda",
        "self",
        "x\n    raise SystemExit",
        "1",
        "forward",
        "ä",
        "__class__",
    ],
)
def test_names_are_no_code(name):
    made = simple(
        [helper.make_node("Add", [name, "w" + name], ["y"], name=name)],
        {name: [2]},
        ["y"],
        {"w" + name: np.ones(2, np.float32)},
    )
    module = load(made)
    assert torch.equal(module(torch.ones(2)), torch.full((2,), 2.0))
    assert re.fullmatch(r"[A-Za-z_]\w*", module.meta["onnx"].inputs[0].name, re.ASCII)


def test_attribute_text_is_no_code():
    made = simple([node("Gelu", "x", "y", approximate="'); raise SystemExit('")], {"x": [2]}, ["y"])
    with pytest.raises(RuntimeError, match="approximate"):
        load(made)(torch.ones(2))


# Operators.


def test_an_unsupported_operator_is_named():
    made = simple(
        [
            helper.make_node(
                "TfIdfVectorizer",
                ["x"],
                ["y"],
                name="words",
                mode="TF",
                max_gram_length=1,
                min_gram_length=1,
                max_skip_count=0,
                ngram_counts=[0],
                ngram_indexes=[0],
            )
        ],
        {"x": [2]},
        ["y"],
    )
    with pytest.raises(UnsupportedOnnxError) as caught:
        load(made)
    error = caught.value
    assert (error.operator, error.node, error.opset) == ("TfIdfVectorizer", "words", 21)
    assert all(w in str(error) for w in ("TfIdfVectorizer", "'words'", "ai.onnx", "21"))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_operators_of_other_domains_and_unknown_ones():
    other = helper.make_node("Fused", ["x"], ["y"], domain="com.example")
    refused(simple([other], {"x": [2]}, ["y"]), "com.example")
    made = simple([other], {"x": [2]}, ["y"])
    made.opset_import.append(helper.make_opsetid("com.example", 1))
    with pytest.raises(UnsupportedOnnxError, match=r"com\.example"):
        load(made)
    with pytest.raises(UnsupportedOnnxError, match="no such operator"):
        load(simple([node("Nonsense", "x", "y")], {"x": [2]}, ["y"]))


def test_wrong_attributes():
    with pytest.raises(UnsupportedOnnxError, match="'taste'"):
        load(simple([node("Relu", "x", "y", taste=1)], {"x": [2]}, ["y"]))
    refused(simple([node("Concat", "x x", "y")], {"x": [2]}, ["y"]), "'axis'")
    text = node("Gelu", "x", "y")
    text.attribute.append(AttributeProto(name="approximate", type=AttributeProto.STRING, s=b"\xff"))
    refused(simple([text], {"x": [2]}, ["y"]), "no text")


def test_missing_inputs():
    refused(simple([node("Add", "x", "y")], {"x": [2]}, ["y"]), "lacks an input")
    refused(simple([node("Add", "x -", "y")], {"x": [2]}, ["y"]), "lacks an input")
