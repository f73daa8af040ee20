"""The tensors and values of a checkpoint are in the tree, by their keys."""

from __future__ import annotations

import json
import pickle
import random
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from torch import nn

from each import each
from lazy import torch
from torch_checkpoints import FORMS, assert_same, saved
from weightctl import convert, open_weights
from weightctl.formats.pickles.records import Global
from weightctl.formats.pytorch.constructors import CONSTRUCTORS
from weightctl.formats.scanning import scan_file
from weightctl.storage.files import open_reader

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl import Weights

pytestmark = [
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
    pytest.mark.filterwarnings("ignore:Sparse"),
    pytest.mark.filterwarnings("ignore:.*nested tensors"),
]


def flattened(name: str, value: Any) -> dict[str, torch.Tensor]:
    """Return the tensors in dicts, lists and tuples by dotted names."""
    if isinstance(value, torch.Tensor):
        return {name: value}
    if isinstance(value, np.ndarray):
        return {name: torch.from_numpy(value)}
    if not isinstance(value, dict | list | tuple):
        return {}
    below = value.items() if isinstance(value, dict) else enumerate(value)
    return {
        inner: tensor
        for key, each in below
        for inner, tensor in flattened(f"{name}.{key}" if name else str(key), each).items()
    }


def look(weights: Weights, name: str) -> tuple[str, str]:
    return tuple(weights.header.leaves[name])


def test_dicts_lists_and_tuples_are_levels_of_the_tree(tmp_path: Path) -> None:
    content = {
        "model": {"layers": [torch.ones(1), (torch.ones(2), {"w": torch.ones(3)})]},
        "state": {
            0: {"step": torch.tensor(1.0)},
            17: {"step": torch.tensor(2.0)},
            -3: torch.ones(4),
        },
        ("a", 1): torch.ones(5),
        None: torch.ones(6),
        2.5: torch.ones(7),
        True: torch.ones(8),
    }
    weights = saved(tmp_path / "tree.pt", content)
    expected = flattened("", content)
    expected["(a, 1)"] = expected.pop("('a', 1)")
    assert_same(weights, expected)
    assert list(weights.state) == ["0", "17", "-3"]
    assert torch.equal(
        torch.from_numpy(weights.model.layers[1][1].w.data().to_numpy()), torch.ones(3)
    )


@pytest.mark.parametrize("form", FORMS)
def test_the_state_of_an_optimizer_is_below_the_number_of_each_parameter(
    tmp_path: Path, form: str
) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95))
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    weights = saved(tmp_path / "optimizer.pt", state, form)
    assert_same(weights, flattened("", state))
    assert weights.exists() is False
    assert weights["state.3.exp_avg_sq"].info.shape == (2,)
    assert weights.metadata["param_groups.0.lr"] == ("f64", 3e-4)
    assert weights.metadata["param_groups.0.betas"] == ("array[f64]", [0.9, 0.95])
    assert weights.metadata["param_groups.0.params"] == ("array[i64]", [0, 1, 2, 3])
    assert look(weights, "param_groups.0.maximize") == ("bool", "False")
    assert weights.header.notes == ()


def test_values_stand_in_the_tree_and_in_the_metadata(tmp_path: Path) -> None:
    content = {
        "epoch": 12,
        "huge": 1 << 100,
        "hugest": -(1 << 20_000),
        "loss": 0.25,
        "odd": float("nan"),
        "text": "größe",
        "lone": "\ud800",
        "done": True,
        "nothing": None,
        "wave": 1 + 2j,
        "size": torch.Size([2, 3]),
        "no size": torch.Size([]),
        "dtype": torch.bfloat16,
        "device": torch.device("cuda", 3),
        "layout": torch.sparse_csr,
        "scheme": torch.per_tensor_affine,
        "raw": b"\0\1\2",
        "more": bytearray(b"12345"),
        "names": ["a", "b"],
        "mixed": [1, "a", None],
        "empty": {"d": {}, "l": [], "t": ()},
        "class": OrderedDict,
        "np": np.float32(1.5),
        "np64": np.int64(-7),
        "npc": np.complex64(1 - 1j),
        "npb": np.bool_(True),
        "npt": np.dtype("f4"),
        "nps": np.str_("x"),
        "when": np.datetime64("2020-01-01"),
    }
    for form in FORMS:
        weights = saved(tmp_path / "values.pt", content, form)
        metadata = weights.metadata
        assert metadata["epoch"] == ("i64", 12)
        assert metadata["huge"] == ("string", str(1 << 100))
        assert look(weights, "hugest") == ("int", "of 20001 bits")
        assert metadata["loss"] == ("f64", 0.25)
        assert look(weights, "odd") == ("float", "nan")
        assert metadata["text"] == ("string", "größe")
        assert "lone" not in metadata
        assert metadata["done"] == ("bool", True)
        assert look(weights, "nothing") == ("None", "")
        assert metadata["wave"] == ("array[f64]", [1.0, 2.0])
        assert metadata["size"] == ("array[i64]", [2, 3])
        assert metadata["no size"] == ("array[i64]", [])
        assert look(weights, "dtype") == ("torch.dtype", "torch.bfloat16")
        assert look(weights, "device") == ("torch.device", "cuda:3")
        assert look(weights, "layout") == ("class", "torch.sparse_csr")
        assert look(weights, "scheme") == ("class", "torch.per_tensor_affine")
        assert look(weights, "raw") == ("bytes", "3 bytes")
        assert look(weights, "more") == ("bytes", "5 bytes")
        assert metadata["names"] == ("array[string]", ["a", "b"])
        assert [look(weights, f"mixed.{n}")[0] for n in range(3)] == ["int", "str", "None"]
        assert look(weights, "empty.d") == ("dict", "{}")
        assert look(weights, "empty.l") == ("list", "[]")
        assert look(weights, "empty.t") == ("tuple", "()")
        assert look(weights, "class") == ("class", "collections.OrderedDict")
        assert metadata["np"] == ("f64", 1.5)
        assert metadata["np64"] == ("i64", -7)
        assert metadata["npc"] == ("array[f64]", [1.0, -1.0])
        assert metadata["npb"] == ("bool", True)
        assert look(weights, "npt") == ("numpy.dtype", "f4")
        assert look(weights, "nps")[0] == "numpy.generic"
        assert look(weights, "when") == ("numpy.generic", "M8")
        assert weights.header.notes == ()
        assert set(weights.header.tensors) == set()


def test_mappings_of_every_kind_are_levels(tmp_path: Path) -> None:
    nested: defaultdict[str, list[Any]] = defaultdict(list)
    nested["w"].append(torch.ones(2))
    content = {
        "ordered": OrderedDict([("b", torch.ones(1)), ("a", torch.ones(2))]),
        "default": nested,
        "counter": Counter({"x": 2}),
        "namespace": Namespace(lr=0.1, w=torch.ones(3)),
        "set": {"a"},
        "frozen": frozenset([1]),
    }
    weights = saved(tmp_path / "mappings.pt", content)
    assert_same(
        weights,
        {
            "ordered.b": torch.ones(1),
            "ordered.a": torch.ones(2),
            "default.w.0": torch.ones(2),
            "namespace.w": torch.ones(3),
        },
    )
    assert weights.metadata["counter.x"] == ("i64", 2)
    assert weights.metadata["namespace.lr"] == ("f64", 0.1)
    assert weights.metadata["set.0"] == ("string", "a")
    assert weights.metadata["frozen.0"] == ("i64", 1)
    assert weights.header.notes == ()


def test_the_versions_of_modules_in_a_state_dict_are_metadata(tmp_path: Path) -> None:
    state = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).state_dict()
    weights = saved(tmp_path / "state.pt", {"model": state, "bare": torch.ones(1)})
    assert_same(weights, {**flattened("", {"model": dict(state)}), "bare": torch.ones(1)})
    versions = json.loads(weights.metadata["model._metadata"].content)
    assert versions == {"": {"version": 1}, "0": {"version": 1}, "1": {"version": 2}}


def test_one_dict_in_two_places_is_one_set_of_tensors_with_two_names_each(tmp_path: Path) -> None:
    state = {"w": torch.randn(2, 2), "b": torch.randn(2), "none": torch.zeros(0)}
    arrays = {"array": np.arange(4.0)}
    weights = saved(tmp_path / "ema.pt", {"model": state, "ema": state, "x": arrays, "y": arrays})
    assert_same(weights, flattened("", {"model": state, "ema": state, "x": arrays, "y": arrays}))
    assert set(weights.header.tensors) == {"model.w", "model.b", "model.none", "x.array"}
    assert weights.header.aliases["ema.w"] == "model.w"


@each("data", [[1, 2], "ab", 3, (0,) * 9], ids=["list", "text", "number", "too many"])
def test_what_is_not_the_parts_of_a_sparse_tensor_stays_one_value(data: object) -> None:
    make = CONSTRUCTORS["torch._utils._rebuild_sparse_tensor"]
    assert make(Global("torch", "sparse_coo"), data).pairs == [("indices", data)]


def test_sparse_tensors_are_their_parts(tmp_path: Path) -> None:
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    coo, csr, csc = dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc()
    blocks = torch.eye(4).to_sparse_bsr((2, 2))
    weights = saved(tmp_path / "sparse.pt", {"coo": coo, "csr": csr, "csc": csc, "bsr": blocks})
    assert_same(
        weights,
        {
            "coo.indices": coo.indices(),
            "coo.values": coo.values(),
            "csr.compressed_indices": csr.crow_indices(),
            "csr.plain_indices": csr.col_indices(),
            "csr.values": csr.values(),
            "csc.compressed_indices": csc.ccol_indices(),
            "csc.plain_indices": csc.row_indices(),
            "csc.values": csc.values(),
            "bsr.compressed_indices": blocks.crow_indices(),
            "bsr.plain_indices": blocks.col_indices(),
            "bsr.values": blocks.values(),
        },
    )
    assert look(weights, "coo") == ("torch.sparse_coo", "")
    assert look(weights, "bsr") == ("torch.sparse_bsr", "")
    assert weights.metadata["csr.size"].content == [2, 2]
    (note,) = weights.header.notes
    assert note == (
        "tensors that are not dense are read as their parts: coo (sparse_coo), csr (sparse_csr), "
        "csc (sparse_csc), ..."
    )


def test_the_shape_of_a_sparse_tensor_of_a_module_is_kept(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(2, 2))
    module[0].register_buffer("mask", torch.eye(3).to_sparse())
    weights = saved(tmp_path / "module.pt", module)
    assert weights.metadata["0.mask.size"].content == [3, 3]
    convert(tmp_path / "module.pt", tmp_path / "module.safetensors", names="keep")
    convert(tmp_path / "module.safetensors", tmp_path / "again.pt", names="keep")
    made = torch.load(tmp_path / "again.pt", weights_only=True)
    assert made["0.mask"]["size"] == torch.Size([3, 3])
    assert set(made) == {"0.weight", "0.bias", "0.mask"}


def test_nested_tensors_are_their_parts(tmp_path: Path) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(1, 3)])
    weights = saved(tmp_path / "nested.pt", {"n": nested})
    parts = {
        "n.buffer": nested.values(),
        "n.sizes": nested._nested_tensor_size(),
        "n.strides": nested._nested_tensor_strides(),
        "n.storage_offsets": nested._nested_tensor_storage_offsets(),
    }
    assert_same(weights, parts)


@pytest.mark.parametrize("lengths", [None, [1, 1]])
def test_jagged_nested_tensors_are_their_parts(tmp_path: Path, lengths: list[int] | None) -> None:
    values, offsets = torch.arange(9.0).reshape(3, 3), torch.tensor([0, 2, 3])
    nested = torch.nested.nested_tensor_from_jagged(
        values, offsets, None if lengths is None else torch.tensor(lengths)
    )
    module = nn.Module()
    module.register_buffer("ragged", nested)
    for name, value in (("n", {"n": nested}), ("ragged", module)):
        weights = saved(tmp_path / f"{name}.pt", value)
        parts = {f"{name}.values": values, f"{name}.offsets": offsets}
        if lengths is not None:
            parts[f"{name}.lengths"] = torch.tensor(lengths)
        assert_same(weights, parts)
        assert weights.metadata[f"{name}.ragged_idx"].content == 1
        (note,) = [note for note in weights.header.notes if "not dense" in note]
        assert note.endswith(f": {name} (nested_jagged)")
        scanned = scan_file(open_reader(str(tmp_path / f"{name}.pt")))
        named = {each.path: pickle for pickle in scanned for each in pickle.names.named}
        assert "torch.nested._internal.nested_tensor._rebuild_njt" in named
        # A module is stored as an object of its class.
        unknown = {path for path, pickle in named.items() if not pickle.is_known(path)}
        assert unknown <= {"torch.nn.modules.module.Module"}


def test_parameters_and_tensors_with_attributes_are_tensors(tmp_path: Path) -> None:
    marked = nn.Parameter(torch.randn(2))
    marked.partition_dim = 0
    plain = torch.randn(3)
    plain.note = {"origin": "here"}
    content = {
        "parameter": nn.Parameter(torch.randn(4), requires_grad=False),
        "buffer": nn.Buffer(torch.randn(5)),
        "marked": marked,
        "plain": plain,
        "grad": torch.randn(2, requires_grad=True) * 1,
    }
    content["grad"] = content["grad"].detach().requires_grad_()
    assert_same(saved(tmp_path / "marked.pt", content), content)


@pytest.mark.parametrize("form", FORMS)
def test_tensors_that_are_not_the_numbers_of_their_storage_are_leaves(
    tmp_path: Path, form: str
) -> None:
    wave = torch.randn(3, dtype=torch.complex64)
    other = torch.randn(2, dtype=torch.complex64)
    content = {"conj": wave.conj(), "neg": other.conj().imag, "wave": wave}
    weights = saved(tmp_path / "conj.pt", content, form)
    assert_same(weights, {"wave": wave})
    assert look(weights, "conj")[0] == look(weights, "neg")[0] == "torch.Tensor"
    assert weights.header.notes[0].endswith("not read: conj, neg")


def test_states_of_random_generators_are_read(tmp_path: Path) -> None:
    content = {
        "torch": torch.get_rng_state(),
        "cuda": [torch.get_rng_state()],
        "generator": torch.Generator().get_state(),
        "numpy": np.random.RandomState(1).get_state(),
        "python": random.getstate(),
        "object": np.random.RandomState(2),
        "new": np.random.default_rng(3),
    }
    weights = saved(tmp_path / "rng.pt", content)
    found = {name: weights[name].info.shape for name in weights.header.tensors}
    assert found["torch"] == found["generator"] == found["cuda.0"] == (5056,)
    assert found["numpy.1"] == (624,)
    assert weights.metadata["numpy.0"] == ("string", "MT19937")
    assert len(weights.metadata["python.1"].content) == 625
    assert any(name.startswith("object.") for name in found)


def test_arrays_of_what_are_not_numbers_are_leaves(tmp_path: Path) -> None:
    arrays = {
        "structured": np.zeros(3, [("a", "f4"), ("b", "i2")]),
        "text": np.array(["a", "bcd"]),
        "bytes": np.array([b"a", b"bcd"]),
        "dates": np.array(["2020-01-01"], "M8[D]"),
        "long": np.zeros(2, np.longdouble),
        "void": np.zeros(2, "V5"),
        "objects": np.array([{"w": torch.ones(2)}, None, 3], object),
        "no objects": np.array([], object),
        "masked": np.ma.masked_array([1.0, 2.0], [True, False]),
    }
    for protocol in range(6):
        (tmp_path / "odd.pkl").write_bytes(pickle.dumps(arrays, protocol))
        weights = open_weights(tmp_path / "odd.pkl")
        assert_same(weights, {"objects.0.w": torch.ones(2)})
        assert look(weights, "structured") == ("numpy.ndarray", "structured [3]")
        assert look(weights, "text") == ("numpy.ndarray", "U3 [2]")
        assert look(weights, "bytes") == ("numpy.ndarray", "S3 [2]")
        assert look(weights, "dates") == ("numpy.ndarray", "M8 [1]")
        assert look(weights, "long") == ("numpy.ndarray", "f16 [2]")
        assert look(weights, "no objects") == ("numpy.ndarray", "O8 [0]")
        assert weights.metadata["objects.2"] == ("i64", 3)


def test_a_checkpoint_as_lightning_writes_it_is_read(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    content = {
        "epoch": 4,
        "global_step": 1200,
        "pytorch-lightning_version": "2.4.0",
        "state_dict": OrderedDict((f"net.{k}", v) for k, v in model.state_dict().items()),
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 5}}}},
        "callbacks": {
            "ModelCheckpoint{'monitor': 'val.loss', 'mode': 'min'}": {
                "best_model_score": torch.tensor(0.5),
                "best_k_models": {"/tmp/a.b/epoch=1.ckpt": torch.tensor(0.5)},
                "kth_value": torch.tensor(float("inf")),
            }
        },
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [],
        "hparams_name": "kwargs",
        "hyper_parameters": {"lr": 0.1, "sizes": [3, 2]},
    }
    weights = saved(tmp_path / "last.ckpt", content)
    assert_same(weights, flattened("", content))
    assert weights.metadata["hyper_parameters.lr"] == ("f64", 0.1)
    assert weights.header.notes == ()


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ({0: torch.ones(1), "0": torch.ones(2)}, {"0": 1, "0#2": 2}),
        ({"a": {"b": torch.ones(1)}, "a.b": torch.ones(2)}, {"a.b": 1, "a.b#2": 2}),
        (
            {"a": {"b": {"c": torch.ones(1)}}, "a.b": {"c": torch.ones(2), "d": torch.ones(3)}},
            {"a.b.c": 1, "a.b#2.c": 2, "a.b#2.d": 3},
        ),
        (
            {1: torch.ones(1), "1": torch.ones(2), "1#2": torch.ones(3)},
            {"1": 1, "1#2": 2, "1#2#2": 3},
        ),
        ({(1,): torch.ones(1), ("1",): torch.ones(2)}, {"(1)": 1, "(1)#2": 2}),
        ({"": torch.ones(1), "b": {"": torch.ones(2)}}, {"": 1, "b.": 2}),
    ],
    ids=str,
)
def test_of_two_things_with_one_name_the_second_has_a_number_behind_it(
    tmp_path: Path, content: Any, names: dict[str, int]
) -> None:
    weights = saved(tmp_path / "names.pt", content)
    assert_same(weights, {name: torch.ones(count) for name, count in names.items()})
    renamed = [name for name in names if "#" in name and name not in content]
    assert bool(weights.header.notes) == bool(renamed or "1#2#2" in names)


def test_objects_as_keys_keep_their_values_apart(tmp_path: Path) -> None:
    one, other = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(2))
    content = {one: {"step": torch.ones(3)}, other: {"step": torch.ones(4)}}
    weights = saved(tmp_path / "keys.pt", content)
    assert sorted(info.shape for info in weights.header.tensors.values()) == [(3,), (4,)]


def test_a_list_that_holds_itself_ends(tmp_path: Path) -> None:
    loop: list[Any] = [torch.ones(1)]
    loop.append(loop)
    weights = saved(tmp_path / "loop.pt", {"loop": loop})
    assert_same(weights, {"loop.0": torch.ones(1)})
    assert look(weights, "loop.1")[0] == "reference"
