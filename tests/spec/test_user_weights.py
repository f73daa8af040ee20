"""A class of the user's that satisfies `Weights` is taken wherever a checkpoint's tree is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lazy import load_file as torch_load
from lazy import save_file as torch_save
from lazy import torch
from weightctl import (
    DeviceRef,
    DType,
    Plan,
    QuantizationEncoding,
    WeightData,
    Weights,
    convert,
    nn,
    open_weights,
    save,
)
from weightctl.engine import InferenceSession
from weightctl.errors import ConversionError, StateDictError
from weightctl.graph import Dim, Graph, TensorType, Weight
from weightctl.weights import as_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from weightctl.driver import DLPackArray

CPU = DeviceRef.CPU()
RANDOM = np.random.default_rng(3)
VALUES = {
    "up.weight": RANDOM.standard_normal((4, 3), dtype=np.float32),
    "down.weight": RANDOM.standard_normal((3, 4), dtype=np.float32),
}
X = RANDOM.standard_normal((2, 3), dtype=np.float32)
EXPECTED = X @ VALUES["up.weight"].T @ VALUES["down.weight"].T


class Own:
    """A tree over a dictionary, written by the documents alone."""

    def __init__(self, values: Mapping[str, Any], name: str = "") -> None:
        self._values = values
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    @property
    def allocated_weights(self) -> dict[str, Any]:
        return {}

    def exists(self) -> bool:
        return self._name in self._values

    def data(self) -> WeightData:
        return WeightData.from_numpy(self._values[self._name], self._name)

    def items(self) -> Iterator[tuple[str, Own]]:
        for name in self._values:
            if name == self._name or name.startswith(self._name and f"{self._name}."):
                yield name, Own(self._values, name)

    def allocate(self, *_: Any, **__: Any) -> Weight:
        raise NotImplementedError

    def __getitem__(self, key: str | int) -> Own:
        return Own(self._values, f"{self._name}.{key}" if self._name else str(key))

    def __getattr__(self, segment: str) -> Own:
        if segment.startswith("_"):
            raise AttributeError(segment)
        return self[segment]


class Documented:
    """A tree with the annotations of the documents, which type checkers hold against `Weights`."""

    def __init__(self, values: Mapping[str, WeightData], name: str = "") -> None:
        self._values, self._name = values, name

    @property
    def name(self) -> str:
        return self._name

    @property
    def allocated_weights(self) -> Mapping[str, DLPackArray]:
        return {}

    def exists(self) -> bool:
        return self._name in self._values

    def data(self) -> WeightData:
        return self._values[self._name]

    def items(self) -> Iterator[tuple[str, Weights]]:
        return ((name, Documented(self._values, name)) for name in self._values)

    def allocate(
        self,
        dtype: DType | None = None,
        shape: Iterable[int | str | Dim | np.integer[Any]] | None = None,
        quantization_encoding: QuantizationEncoding | None = None,
        device: DeviceRef = CPU,
    ) -> Weight:
        raise NotImplementedError

    def __getattr__(self, segment: str) -> Weights:
        if segment.startswith("_"):
            raise AttributeError(segment)
        return self[segment]

    def __getitem__(self, key: str | int) -> Weights:
        return Documented(self._values, f"{self._name}.{key}" if self._name else str(key))


class Arrays(Own):
    """A tree whose `data()` gives arrays, as type checkers would not let it."""

    def data(self) -> Any:
        return self._values[self._name]


class Pairs(Arrays):
    """A tree whose `items()` gives arrays, or data, in place of nodes."""

    def __init__(
        self, values: Mapping[str, Any], name: str = "", *, has_data: bool = False
    ) -> None:
        super().__init__(values, name)
        self._has_data = has_data

    def items(self) -> Any:
        for name, value in self._values.items():
            yield name, WeightData.from_numpy(value, name) if self._has_data else value


class Unindexed:
    """What the documents name of `Weights`, but for the ways to nodes."""

    name = ""
    allocated_weights = exists = data = items = allocate = None


class Model(nn.Module):
    def __init__(self) -> None:
        self.up = nn.Linear(3, 4)
        self.down = nn.Linear(4, 3)

    def __call__(self, x: Any) -> Any:
        return self.down(self.up(x))


def graph_of(model: nn.Module) -> Graph:
    with Graph("model", [TensorType("float32", X.shape)]) as graph:
        graph.output(model(graph.inputs[0]))
    return graph


def test_it_satisfies_the_protocol() -> None:
    assert isinstance(Own(VALUES), Weights)


def test_a_class_with_the_documented_annotations_satisfies_it(tmp_path: Path) -> None:
    values = {name: WeightData.from_numpy(value, name) for name, value in VALUES.items()}
    # Each line is read by the type checkers too.
    given: Weights = Documented(values)
    save(Documented(values), tmp_path / "out.gguf")
    Model().load_state_dict(Documented(values))
    assert InferenceSession().load(graph_of(Model()), Documented(values))(X)
    assert isinstance(given, Weights)
    assert {name for name, _ in open_weights(tmp_path / "out.gguf").items()} == set(VALUES)


def test_every_spelling_of_a_dtype_is_taken_where_a_tree_is_only_known_as_weights() -> None:
    given: Weights = as_checkpoint(VALUES)
    # Each line is read by the type checkers too.
    assert given["up.weight"].allocate("float16").dtype is DType.float16
    assert given["down.weight"].allocate(np.float16, quantization_encoding=None).shape == (3, 4)
    assert as_checkpoint(VALUES)["up.weight"].allocate("f16").dtype is DType.float16


@pytest.mark.parametrize(
    "given",
    [Arrays(VALUES), Pairs(VALUES), Pairs(VALUES, has_data=True)],
    ids=["arrays", "pairs", "pairs of data"],
)
def test_arrays_in_place_of_data_or_nodes_are_taken_everywhere(given: Any, tmp_path: Path) -> None:
    save(given, tmp_path / "out.safetensors")
    convert(given, tmp_path / "out.gguf")
    for name in ("out.safetensors", "out.gguf"):
        found = {key: np.asarray(node) for key, node in open_weights(tmp_path / name).items()}
        assert all(np.array_equal(found[key], VALUES[key]) for key in VALUES)
    (made,) = InferenceSession().load(graph_of(Model()), given)(X)
    np.testing.assert_allclose(made, EXPECTED, rtol=1e-5)


def test_a_class_that_lacks_members_is_told_which(tmp_path: Path) -> None:
    given: Any = Unindexed()
    with pytest.raises(
        ConversionError, match="a weights class also needs `__getattr__` and `__getitem__`"
    ):
        save(given, tmp_path / "out.gguf")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"a": {"weight": X}},
            ("use dotted names instead of nested mappings: `{'a.weight': array}`"),
        ),
        ({"step": 3}, "`np.asarray`"),
        ({"steps": [1, 2]}, "`np.asarray`"),
    ],
)
def test_what_is_given_for_weights_by_habit_is_told_what_to_give(
    given: Any, says: str, tmp_path: Path
) -> None:
    for act in (save, convert):
        with pytest.raises(ConversionError) as caught:
            act(given, tmp_path / "out.gguf")
        assert re.search(says, caught.value.hint)


@pytest.mark.parametrize("make", [torch.nn.Linear, nn.Linear])
def test_a_module_is_converted_and_its_state_is_saved(make: Any, tmp_path: Path) -> None:
    module = make(2, 2)
    with pytest.raises(ConversionError) as caught:
        save(module, tmp_path / "out.safetensors")
    assert re.search(r"\.state_dict\(\)", caught.value.hint)
    save(module.state_dict(), tmp_path / "out.safetensors")
    convert(module, tmp_path / "same.safetensors")
    assert (tmp_path / "same.safetensors").read_bytes() == (
        (tmp_path / "out.safetensors").read_bytes()
    )


def test_weights_that_are_only_declared_are_not_saved_as_an_empty_model(tmp_path: Path) -> None:
    weights = Graph("declaring").weights()
    weights.w.allocate("float32", (2,))
    for given in (weights, weights.w):
        for act in (save, convert):
            with pytest.raises(ConversionError, match="declared without data"):
                act(given, tmp_path / "out.gguf")
    assert not list(tmp_path.iterdir())
    save({}, tmp_path / "empty.safetensors")


def test_it_loads_into_a_module_and_runs() -> None:
    model = Model()
    model.load_state_dict(Own(VALUES))
    found = InferenceSession().load(graph_of(model), model.state_dict())(X)
    np.testing.assert_allclose(found[0], EXPECTED, rtol=1e-5)


def test_a_part_of_it_loads_by_the_names_below() -> None:
    linear = nn.Linear(3, 4)
    linear.load_state_dict(Own(VALUES).up)
    assert np.array_equal(np.asarray(linear.state_dict()["weight"]), VALUES["up.weight"])


def test_it_is_a_registry_of_a_session() -> None:
    found = InferenceSession().load(graph_of(Model()), Own(VALUES))(X)
    np.testing.assert_allclose(found[0], EXPECTED, rtol=1e-5)


@pytest.mark.parametrize("suffix", ["safetensors", "gguf"])
@pytest.mark.parametrize(
    "given",
    [Own(VALUES), VALUES, {name: torch.from_numpy(value) for name, value in VALUES.items()}],
    ids=["tree", "arrays", "tensors"],
)
def test_it_and_arrays_by_name_are_saved(given: Any, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"out.{suffix}"
    save(given, path)
    found = {name: np.asarray(node) for name, node in open_weights(path).items()}
    assert found.keys() == VALUES.keys()
    assert all(np.array_equal(found[name], VALUES[name]) for name in VALUES)


def test_a_plan_is_made_of_it() -> None:
    plan = Plan.copy(Own(VALUES), "gguf")
    assert [item.info.name for item in plan.items] == list(VALUES)


def test_what_is_not_weights_is_refused(tmp_path: Path) -> None:
    given: Any
    for given in ([1, 2], 3, {"w": "text"}, {3: VALUES["up.weight"]}):
        with pytest.raises(ConversionError):
            save(given, tmp_path / "out.gguf")
    assert not list(tmp_path.iterdir())


class TiedTorch(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(5, 4)
        self.head = torch.nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight


class Tied(nn.Module):
    def __init__(self) -> None:
        self.embed = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5)
        self.head.set_shared_weight("weight", self.embed.weight)

    def __call__(self, ids: Any) -> Any:
        return self.head(self.embed(ids))


def test_a_state_of_torch_with_a_tied_head_loads_and_goes_back(tmp_path: Path) -> None:
    theirs, ours = TiedTorch(), Tied()
    ours.load_state_dict(theirs.state_dict())
    state = ours.state_dict()
    assert list(state) == ["embed.weight"]
    # Into torch: a line.
    back = {name: torch.from_dlpack(value) for name, value in state.items()}
    other = TiedTorch()
    other.load_state_dict(back, strict=False)
    assert torch.equal(other.head.weight, theirs.head.weight)
    # Into safetensors: a line, by weightctl or by the library.
    save(state, tmp_path / "ours.safetensors")
    torch_save(back, tmp_path / "theirs.safetensors")
    for name in ("ours", "theirs"):
        loaded = torch_load(tmp_path / f"{name}.safetensors")
        assert torch.equal(loaded["embed.weight"], theirs.embed.weight)
    # Numbers are equal.
    ids = np.array([0, 3, 4])
    with Graph("tied", [TensorType("int64", (3,))]) as graph:
        graph.output(ours(graph.inputs[0]))
    (found,) = InferenceSession().load(graph, state)(ids)
    expected = theirs.head(theirs.embed(torch.from_numpy(ids))).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_second_name_with_another_value_is_named() -> None:
    values = {"embed.weight": np.zeros((5, 4)), "head.weight": np.ones((5, 4))}
    state = {name: value.astype(np.float32) for name, value in values.items()}
    with pytest.raises(StateDictError, match=r"`head\.weight` is another name of `embed\.weight`"):
        Tied().load_state_dict(state)


def test_a_state_with_only_the_second_name_loads() -> None:
    ours = Tied()
    ours.load_state_dict({"head.weight": np.ones((5, 4), np.float32)})
    assert np.asarray(ours.state_dict()["embed.weight"]).sum() == 20
