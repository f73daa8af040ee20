from __future__ import annotations

import copy
import json
import pickle
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from build import safetensors_of
from weightctl import DType, WeightData, Weights, open_weights
from weightctl.errors import MissingTensorError, WeightctlError
from weightctl.weights.from_arrays import as_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

LAYERED = [
    "model.embed.weight",
    *(f"model.layers.{i}.{part}" for i in (10, 2, 1, 0, 11) for part in ("w.bias", "w.weight")),
    "model.norm",
]


def tree_of(names: Iterable[str]) -> Weights:
    return as_checkpoint(
        {name: WeightData.from_numpy(np.zeros(2, np.float32), name) for name in names}
    )


@pytest.fixture
def weights() -> Weights:
    return tree_of(LAYERED)


@pytest.fixture
def opened(tmp_path: Path) -> Weights:
    path = tmp_path / "model.safetensors"
    path.write_bytes(
        safetensors_of(
            {
                "embed.weight": ("F32", (2, 2), np.arange(4, dtype="<f4").tobytes()),
                "layers.0.w": ("BF16", (3,), bytes(6)),
            },
            {"head.weight": "embed.weight", "format": "pt"},
        )
    )
    return open_weights(path)


def test_attributes_and_indices_lead_to_the_same_node(weights: Weights) -> None:
    node = weights.model.layers[10].w.bias
    assert node.name == "model.layers.10.w.bias"
    assert weights["model"]["layers"]["10"]["w"]["bias"] == node
    assert weights["model.layers.10.w.bias"] == node
    assert weights.model["layers.10"].w.bias == node
    assert hash(weights["model.layers"][10].w.bias) == hash(node)


def test_nodes_of_different_names_or_trees_are_not_equal(weights: Weights) -> None:
    assert weights.model != weights.model.norm
    assert weights.model.norm != tree_of(["model.norm"]).model.norm


def test_the_root_has_no_name(weights: Weights) -> None:
    assert weights.name == ""
    assert not weights.exists()


def test_a_name_exists_only_where_it_is_whole(weights: Weights) -> None:
    assert weights.model.layers[1].w.bias.exists()
    assert not weights.model.layers[1].w.exists()
    assert not weights.model.layers[1].w.bia.exists()
    assert not weights.model.layers[3].w.bias.exists()


def test_going_somewhere_by_name_never_fails(weights: Weights) -> None:
    nowhere = weights.not_there[7]["x.y"]["-1"].z
    assert nowhere.name == "not_there.7.x.y.-1.z"
    assert not nowhere.exists()
    assert list(nowhere) == []
    assert dict(nowhere.items()) == {}


@pytest.mark.parametrize("index", [slice(0, 2), None, 1.0, ["a", "b"], True], ids=repr)
def test_what_is_not_a_name_or_a_whole_number_is_not_an_index(index: Any, weights: Weights) -> None:
    with pytest.raises(
        TypeError, match="is not an index of a tree; use a name or an integer"
    ) as caught:
        weights.model.layers[index]
    assert isinstance(caught.value, WeightctlError)
    assert index not in weights.model.layers


def test_items_of_a_layer_are_those_of_whole_segments(weights: Weights) -> None:
    names = [name for name, _ in weights.model.layers[1].items()]
    assert names == ["model.layers.1.w.bias", "model.layers.1.w.weight"]


def test_items_come_with_full_names_layer_2_before_10(weights: Weights) -> None:
    layers = [name.split(".")[2] for name, _ in weights.model.layers.items()]
    assert layers == ["0", "0", "1", "1", "2", "2", "10", "10", "11", "11"]


def test_items_keep_the_order_of_the_file_where_there_are_no_numbers(weights: Weights) -> None:
    tops = dict.fromkeys(name.split(".")[1] for name, _ in weights.items())
    assert list(tops) == ["embed", "layers", "norm"]
    assert list(tree_of(["c", "a", "b"])) == ["c", "a", "b"]


def test_items_of_a_tensor_are_the_tensor(weights: Weights) -> None:
    assert list(weights.model.norm.items()) == [("model.norm", weights.model.norm)]


def test_items_yield_nodes_that_have_data(weights: Weights) -> None:
    for name, node in weights.items():
        assert node.name == name
        assert node.data().name == name
        assert node.exists()


def test_iterating_a_node_gives_the_names_of_its_children(weights: Weights) -> None:
    assert list(weights) == ["model"]
    assert list(weights.model) == ["embed", "layers", "norm"]
    assert list(weights.model.layers) == ["0", "1", "2", "10", "11"]
    assert list(weights.model.norm) == []


def test_a_child_hides_what_is_not_specified() -> None:
    names = ("m.keys.weight", "m.values", "m.get", "m.close", "m.info", "m.shape")
    tree = as_checkpoint({name: np.ones(2, np.float32) for name in names})
    assert tree.m.keys.weight.name == "m.keys.weight"
    assert [getattr(tree.m, name.split(".")[1]).exists() for name in names[1:]] == [True] * 5
    # A node without such children has the methods.
    assert tree.keys() == ["m"]
    assert tree.get("nope") is None


def test_a_tree_can_be_closed(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(safetensors_of({"w": ("U8", (4,), b"abcd")}))
    weights = open_weights(tmp_path / "a.safetensors")
    weights.close()
    with pytest.raises((OSError, ValueError, WeightctlError)):
        weights.source.read_into("w", 0, memoryview(bytearray(4)))


def test_a_node_contains_its_children(weights: Weights) -> None:
    assert "layers" in weights.model
    assert 10 in weights.model.layers
    assert "3" not in weights.model.layers
    assert "x" not in weights.nowhere


def test_missing_data_is_a_key_error_that_names_what_is_near(weights: Weights) -> None:
    node = weights.model.layers[2].w.wieght
    with pytest.raises(KeyError) as caught:
        node.data()
    assert isinstance(caught.value, MissingTensorError)
    assert str(caught.value).startswith("no tensor is named `model.layers.2.w.wieght`")
    assert "did you mean `model.layers.2.w.weight`" in str(caught.value)


def test_missing_data_near_to_nothing_says_how_to_list_what_there_is(weights: Weights) -> None:
    with pytest.raises(MissingTensorError, match="has 12 tensors; `items"):
        weights.zzz.data()
    with pytest.raises(MissingTensorError):
        _ = weights.info


def test_info_says_shape_and_encoding_without_data(opened: Weights) -> None:
    info = opened.embed.weight.info
    assert (info.name, info.shape, info.encoding.name) == ("embed.weight", (2, 2), "F32")


def test_a_name_may_be_a_tensor_and_a_prefix() -> None:
    weights = tree_of(["a.b", "a", "a.b.c"])
    assert weights.a.exists()
    assert weights.a.b.exists()
    assert [name for name, _ in weights.a.items()] == ["a", "a.b", "a.b.c"]


@pytest.mark.parametrize("name", ["data", "items", "name", "exists", "info", "__len__", "_tree"])
def test_a_name_equal_to_a_method_is_reached_by_index(name: str) -> None:
    weights = tree_of([name, f"x.{name}"])
    assert weights[name].data().name == name
    assert weights.x[name].data().name == f"x.{name}"


@pytest.mark.parametrize(
    "name", ["__array_interface__", "__deepcopy__", "_repr_png_", "_ipython_display_"]
)
def test_names_that_tools_probe_for_are_not_attributes(weights: Weights, name: str) -> None:
    assert not hasattr(weights, name)
    assert not hasattr(weights.model, name)


def test_a_node_says_what_it_stands_for(weights: Weights) -> None:
    assert repr(weights) == "<Checkpoint root: 12 tensors>"
    assert repr(weights.mdoel) == "<Checkpoint mdoel: 0 tensors>"
    assert repr(weights.model.norm) == "<Checkpoint model.norm: F32 [2]>"


def test_completion_offers_the_children(weights: Weights) -> None:
    assert {"embed", "layers", "norm", "items"} <= set(dir(weights.model))


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda w: pickle.loads(pickle.dumps(w))]
)
def test_trees_in_memory_and_of_files_can_be_copied_and_pickled(
    duplicate: Callable[[Any], Any], weights: Weights, opened: Weights
) -> None:
    twin = duplicate(weights.model)
    assert twin.name == "model"
    assert [name for name, _ in twin.items()] == [name for name, _ in weights.model.items()]
    assert twin.norm.data().to_numpy().tolist() == [0, 0]
    assert duplicate(opened).embed.weight.data().to_numpy().tolist() == [[0, 1], [2, 3]]


def test_data_of_a_pickled_tree_can_still_be_converted(opened: Weights) -> None:
    twin = pickle.loads(pickle.dumps(opened))
    assert twin["layers.0.w"].info.encoding.is_known
    assert twin["layers.0.w"].data().astype(DType.float32).dtype is DType.float32


def test_a_tied_name_is_seen_beside_the_tensor_that_is_stored_once(opened: Weights) -> None:
    tied, stored = opened.head.weight, opened.embed.weight
    assert tied.exists()
    assert tied.info == stored.info._replace(name="head.weight")
    assert list(opened.header.tensors) == ["embed.weight", "layers.0.w"]
    assert [name for name, _ in opened.items()] == ["embed.weight", "layers.0.w", "head.weight"]
    assert (tied.data().name, stored.data().name) == ("head.weight", "embed.weight")
    assert tied.data().to_numpy().tolist() == stored.data().to_numpy().tolist()


def test_data_held_under_two_names_has_the_name_it_is_asked_for_by() -> None:
    held = WeightData.from_numpy(np.zeros(2), "given")
    weights = as_checkpoint({"a": held, "b": held})
    first, second = weights.a.data(), weights.b.data()
    assert (held.name, first.name, second.name) == ("given", "a", "b")
    assert (first.info.name, second.info.name) == ("a", "b")
    assert np.shares_memory(first.to_numpy(), second.to_numpy())


@pytest.mark.parametrize("depth", [99, 100, 101, 102, 3000])
def test_names_of_many_segments_are_reached_from_any_of_them(depth: int) -> None:
    names = [".".join(["a"] * (depth - 1) + [last]) for last in ("x", "y")]
    weights = tree_of([*names, "a.b"])
    for above in (1, 2, depth // 2, depth - 1):
        prefix = weights[".".join(["a"] * above)]
        assert [name for name, _ in prefix.items() if name != "a.b"] == names
    node = weights
    while children := list(node):
        node = node[children[0]]
    assert node.name == names[0]
    assert node.exists()


def test_names_of_odd_segments_are_found_again() -> None:
    names = ["", "a.", ".a", "a..b", "ü.0.weight", "a b", "007", "7", "x٣", "²"]
    weights = tree_of(names)
    assert sorted(name for name, _ in weights.items()) == sorted(names)
    assert all(node.exists() for _, node in weights.items())
    assert weights.a[""].b.exists()


@given(st.lists(st.lists(st.sampled_from("ab1"), min_size=1, max_size=4), unique_by=tuple))
def test_items_are_the_names_that_start_with_the_prefix(paths: list[list[str]]) -> None:
    names = [".".join(path) for path in paths]
    weights = tree_of(names)
    for prefix in ("a", "a.b", "1.1", "b.1.a"):
        found = {name for name, _ in weights[prefix].items()}
        assert found == {n for n in names if n == prefix or n.startswith(prefix + ".")}


def calls_of(work: Callable[[], object]) -> int:
    count = 0

    def counted(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def layered_file(path: Path, layers: int) -> Weights:
    names = [f"model.layers.{i}.part{j}" for i in range(layers) for j in range(10)]
    header = {n: {"dtype": "I8", "shape": [0], "data_offsets": [0, 0]} for n in names}
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw)
    weights = open_weights(path)
    assert sum(1 for _ in weights.items()) == 10 * layers
    return weights


def walk_layers(weights: Weights, count: int) -> int:
    return sum(1 for i in range(count) for _ in weights.model.layers[i].items())


def test_walking_every_layer_costs_what_it_yields(tmp_path: Path) -> None:
    small = layered_file(tmp_path / "small.safetensors", 200)
    large = layered_file(tmp_path / "large.safetensors", 2000)

    # The same number of layers of each: the size of the tree has no effect.
    assert calls_of(lambda: walk_layers(small, 200)) == calls_of(lambda: walk_layers(large, 200))
    assert calls_of(lambda: walk_layers(large, 2000)) < 20 * 20_000

    # Loops in C are not counted as calls. A scan of all names would increase this tenfold.
    def seconds(weights: Weights) -> float:
        started = time.process_time()
        assert walk_layers(weights, 200) == 2000
        return time.process_time() - started

    assert min(seconds(large) for _ in range(5)) < 5 * min(seconds(small) for _ in range(5))
