"""Nodes of a checkpoint's tree as mappings of their children and, where there is one, as arrays."""

from __future__ import annotations

import errno
import inspect
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import weightctl
from build import safetensors_of
from each import each
from lazy import torch
from weightctl import (
    Checkpoint,
    DType,
    QuantizationEncoding,
    WeightData,
    Weights,
    open_weights,
    save,
)
from weightctl.errors import FormatError, WeightctlError
from weightctl.graph import Graph
from weightctl.weights import as_checkpoint
from weightctl.weights.conversion import convert_bytes

if TYPE_CHECKING:
    from pathlib import Path

ADDITIONS = [
    name for name in vars(Checkpoint) if not name.startswith("_") and name not in dir(Weights)
]


def tree_of(*names: str) -> Checkpoint:
    return as_checkpoint({name: np.arange(3, dtype=np.float32) for name in names})


def quantized_or_not(numbers: np.ndarray[Any, Any], kind: str, folder: Path) -> Checkpoint:
    path = folder / "model.gguf"
    weightctl.convert({"w": numbers}, path, tensor_types={"w": kind})
    return open_weights(path)


def test_what_open_weights_returns_satisfies_the_protocol(tiny_llama: Path) -> None:
    weights = open_weights(tiny_llama)
    assert isinstance(weights, Weights)
    assert isinstance(weights, weightctl.Checkpoint)
    assert not isinstance({}, Weights)


def test_the_additions_are_the_ones_that_are_tried_here() -> None:
    expected = {
        "info", "header", "metadata", "source", "shape", "dtype", "ndim", "size", "keys", "values",
        "get", "close", "tensors", "config", "architecture", "to_torch", "rows",
    }  # fmt: skip
    assert expected == set(ADDITIONS)


def test_tensors_are_those_of_items(tiny_llama: Path) -> None:
    weights = open_weights(tiny_llama)
    for node in (weights, weights.model.layers[0], weights.model.norm.weight):
        assert [*node.tensors.items()] == [*node.items()]
    assert len(weights) == len(weights.keys()) == 2
    assert len(weights.tensors) == len(weights.header.tensors)


def test_the_config_and_the_architecture_are_those_beside_the_file_or_in_it(
    tiny_llama: Path, tmp_path: Path
) -> None:
    weights = open_weights(tiny_llama)
    assert weights.config["hidden_size"] == weights.model.norm.weight.size
    assert weights.architecture == weights.model.architecture == "llama"
    weightctl.convert(tiny_llama, tmp_path / "model.gguf")
    with open_weights(tmp_path / "model.gguf") as converted:
        assert (converted.architecture, converted.config) == ("llama", {})
    assert (tree_of("a").architecture, tree_of("a").config) == ("", {})


@pytest.mark.parametrize("name", [*ADDITIONS, "tree", "taken", "gave", "declared", "from_data"])
def test_a_child_wins_over_what_the_documents_do_not_name(name: str) -> None:
    weights = tree_of(f"m.{name}.weight", f"{name}.w", "other")
    node: Any = getattr(weights.m, name)
    assert node.weight.data().to_numpy().tolist() == [0, 1, 2]
    assert getattr(weights, name).w.exists()


@pytest.mark.parametrize("name", ["items", "data", "exists", "allocate", "name"])
def test_a_method_wins_over_a_child_which_an_index_reaches(name: str) -> None:
    weights = tree_of(f"a.{name}.w")
    assert not isinstance(getattr(weights.a, name), Checkpoint)
    assert weights[f"a.{name}"].w.exists()
    assert weights.a[name].w.exists()


@pytest.mark.parametrize("name", ["header", "metadata", "source", "info", "shape"])
def test_a_checkpoint_with_tensors_of_such_names_is_listed_converted_and_loaded(
    name: str, tmp_path: Path
) -> None:
    weights = tree_of(f"{name}.weight", name)
    weightctl.save(weights, tmp_path / "out.safetensors")
    opened = open_weights(tmp_path / "out.safetensors")
    assert [found for found, _ in opened.items()] == [name, f"{name}.weight"]
    weightctl.save(opened, tmp_path / "out.gguf")
    assert len(dict(open_weights(tmp_path / "out.gguf").items())) == 2


def test_a_node_is_a_mapping_of_its_children() -> None:
    weights = tree_of("layers.0.w", "layers.2.w", "layers.10.w", "norm")
    layers = weights.layers
    assert layers.keys() == list(layers) == ["0", "2", "10"]
    assert [node.name for node in layers.values()] == ["layers.0", "layers.2", "layers.10"]
    assert (len(layers), len(weights), len(weights.norm), len(weights.nowhere)) == (3, 2, 0, 0)
    assert layers.get(2) == layers["2"]
    assert layers.get("3") is None
    assert layers.get(3, "none") == "none"
    assert dict(layers)["10"].w.exists()
    assert 10 in layers
    assert "0.w" in layers


def test_a_node_is_true_where_something_exists() -> None:
    weights = tree_of("a.b")
    assert weights
    assert weights.a
    assert weights.a.b
    assert not weights.a.b.c
    assert not weights.b


def test_an_index_below_0_counts_from_the_last_layer() -> None:
    layers = tree_of("layers.0.w", "layers.2.w", "layers.10.w", "layers.norm").layers
    assert layers[-1].name == "layers.10"
    assert layers[-3].name == "layers.0"
    with pytest.raises(
        IndexError, match="`layers` has 3 numbered children, so index -4 is before the first"
    ) as caught:
        layers[-4]
    assert isinstance(caught.value, KeyError)
    assert layers.get(-4, "none") == "none"
    assert -4 not in layers


def test_no_weight_is_declared_under_an_index_below_0() -> None:
    with pytest.raises(
        IndexError,
        match="use an index of at least 0: a tree that only declares weights has no end",
    ):
        Graph("g").weights().layers[-1]


@pytest.mark.parametrize("name", ["shape", "dtype", "ndim", "size", "info"])
def test_a_node_without_a_tensor_lacks_what_only_tensors_have(name: str) -> None:
    weights = tree_of("layers.0.w")
    for node in (weights, weights.layers, weights.nowhere, Graph("g").weights().w):
        assert not hasattr(node, name)
        assert getattr(node, name, None) is None
        with pytest.raises(AttributeError) as caught:
            getattr(node, name)
        assert isinstance(caught.value, KeyError)
    for node in (weights, weights.layers):
        with pytest.raises(KeyError):
            np.array([node])
        with pytest.raises(KeyError):
            np.shape(node)


@each(
    "function",
    [np.sum, np.mean, np.max, np.min, np.std, np.any, np.all, np.prod, np.squeeze, np.ndim, np.size,
     np.shape, np.abs, np.transpose, np.linalg.norm, np.argmax],
)  # fmt: skip
@each("kind", ["F32", "Q8_0"])
def test_a_function_of_numpy_takes_the_node_of_a_tensor(
    function: Any, kind: str, tmp_path: Path
) -> None:
    numbers = np.random.default_rng(3).standard_normal((4, 64), np.float32)
    node = quantized_or_not(numbers, kind, tmp_path).w
    np.testing.assert_array_equal(function(node), function(np.asarray(node)))


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_the_node_of_a_tensor_calculates_with_arrays_and_tensors(kind: str, tmp_path: Path) -> None:
    numbers = np.random.default_rng(3).standard_normal((4, 64), np.float32)
    node = quantized_or_not(numbers, kind, tmp_path).w
    held, ones = np.asarray(node), np.ones((4, 64), np.float32)
    for made in (node + 1, 1 + node, node + ones, ones + node, node - -ones):
        assert np.array_equal(made, held + 1)
    for made in (node + torch.ones(4, 64), torch.ones(4, 64) + node, node + node - held + 1):
        np.testing.assert_allclose(made, held + 1, rtol=1e-6)
    assert np.array_equal(node > 0, held > 0)
    np.testing.assert_allclose(node @ ones.T, held @ ones.T, rtol=1e-5)


@pytest.mark.parametrize("name", ["sum", "to_numpy", "numpy"])
def test_a_method_that_a_node_lacks_is_named_with_what_does_it(name: str) -> None:
    node = tree_of("norm.weight").norm.weight
    with pytest.raises(TypeError, match=f"`{name}` is not a method of a node") as caught:
        getattr(node, name)()
    assert "np.asarray" in str(caught.value)
    with pytest.raises(TypeError, match=r"`norm\.weight` is a node of the tree, not a function"):
        node()


def test_the_child_of_a_tensor_wins_over_a_method_of_arrays() -> None:
    weights = tree_of("w", "w.sum", "w.ndim")
    assert weights.w.sum.exists()
    assert weights.w.ndim.name == "w.ndim"
    assert np.ndim(weights.w) == 1
    assert np.sum(weights.w) == 3


def test_the_node_of_a_tensor_is_an_array(tiny_llama: Path) -> None:
    node = open_weights(tiny_llama).model.norm.weight
    assert node.shape == node.data().shape
    assert node.dtype is node.data().dtype
    held = node.data().astype(DType.float32).to_numpy()
    assert np.array_equal(np.asarray(node).astype(np.float32), held)
    assert torch.equal(torch.from_dlpack(node).float(), torch.from_numpy(held))


def test_the_node_of_a_quantized_tensor_has_its_elements() -> None:
    numbers = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    blocks = WeightData.from_numpy(numbers, "w")
    made = convert_bytes(blocks.info, blocks.view(), QuantizationEncoding.Q8_0.encoding)
    raw = np.frombuffer(made, np.uint8).reshape(2, 34)
    data = WeightData(raw, "w", DType.uint8, (2, 34), QuantizationEncoding.Q8_0)
    node = as_checkpoint({"w": data}).w
    assert (node.shape, node.dtype) == ((2, 32), QuantizationEncoding.Q8_0)
    assert node.data().shape == [2, 34]
    np.testing.assert_allclose(np.asarray(node), numbers, atol=0.005)


def test_a_context_closes_the_files(tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    path.write_bytes(safetensors_of({"w": ("F32", (1,), np.float32(3).tobytes())}))
    with open_weights(path) as weights:
        assert np.asarray(weights.w).tolist() == [3]
    with pytest.raises(FormatError, match="the file is closed"):
        np.asarray(weights.w)
    with pytest.raises(FormatError, match="the file is closed"):
        save(weights, tmp_path / "out.gguf")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["one.safetensors"]


def test_a_path_without_a_file_is_a_file_not_found_error(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path / "missing.gguf", tmp_path / "no" / "such.gguf"):
        with pytest.raises(FileNotFoundError) as caught:
            open_weights(path)
        assert isinstance(caught.value, WeightctlError)
        assert "missing" in str(caught.value) or "such" in str(caught.value)
        assert caught.value.filename in str(caught.value)
        assert caught.value.errno == errno.ENOENT


@pytest.mark.parametrize("given", [None, 3, {}, Graph("g").weights()], ids=repr)
def test_what_is_not_a_path_is_not_opened(given: Any) -> None:
    with pytest.raises(TypeError, match="open_weights needs a path, not a"):
        open_weights(given)


def test_a_path_may_be_bytes(tiny_llama: Path) -> None:
    given: Any = os.fsencode(tiny_llama)
    assert open_weights(given)


def test_the_properties_are_documented() -> None:
    for name in ADDITIONS:
        assert inspect.getattr_static(Checkpoint, name).__doc__
