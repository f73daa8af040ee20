"""Names of a PyTorch checkpoint are nested as they were, and stay flat if this is not known."""

from __future__ import annotations

import json
import pickle
import time
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each import each
from lazy import torch
from weightctl.formats.pickles.writing import emit
from weightctl.formats.pytorch.nesting import (
    LEVELS_KEY,
    is_value,
    levels_value,
    nest_leaves,
    parse_levels,
)
from weightctl.weights.metadata import TEXT, MetadataValue, text


def made(levels: Any, names: list[str], metadata: dict[str, MetadataValue] | None = None) -> Any:
    """Return the structure of leaves; each leaf is its own name in brackets."""
    return made_and_used(levels, names, metadata)[0]


def made_and_used(
    levels: Any, names: list[str], metadata: dict[str, MetadataValue] | None = None
) -> tuple[Any, set[str]]:
    stated = text(levels) if isinstance(levels, str) else levels_value(levels)
    # Kinds without a value also have an entry in the metadata.
    kinds = levels.items() if isinstance(levels, dict) else ()
    there = {name: text(kind) for name, kind in kinds if kind in {"None", "{}", "[]", "()"}}
    root, used = nest_leaves(
        {name: f"<{name}>" for name in names}, {LEVELS_KEY: stated, **there, **(metadata or {})}
    )
    return pickle.loads(emit(root)), set(used) - (there.keys() - (metadata or {}).keys())


def test_without_levels_it_is_one_flat_dict() -> None:
    root, used = nest_leaves({"a.b": "<a.b>", "a.c": "<a.c>"}, {"a": text("a text")})
    assert root == {"a.b": "<a.b>", "a.c": "<a.c>"}
    assert not used


def test_a_place_belongs_to_the_longest_container_of_whole_segments() -> None:
    names = ["model.layer.0.weight", "model.head.weight", "modelling.bias", "model"]
    assert made({"model.head": "dict", "model.layer": "dict", "opt": "list"}, names) == {
        "model.layer": {"0.weight": "<model.layer.0.weight>"},
        "model.head": {"weight": "<model.head.weight>"},
        "modelling.bias": "<modelling.bias>",
        "model": "<model>",
    }
    assert made({"model": "dict", "model.layer": "dict[int]"}, names[:2]) == {
        "model": {
            "layer": {"0.weight": "<model.layer.0.weight>"},
            "head.weight": "<model.head.weight>",
        }
    }


def test_integer_keys_are_those_that_are_canonical() -> None:
    names = ["s.0", "s.12", "s.-3", "s.01", "s.x", "s.-0", "s.٣", f"s.{'9' * 5000}"]
    keys = [*made({"s": "dict[int]"}, names)["s"]]
    assert keys == [0, 12, -3, "01", "x", "-0", "٣", "9" * 5000]


def test_lists_and_tuples_are_in_numeric_order_without_holes() -> None:
    names = ["l.10", "l.2", "t.1", "t.7"]
    assert made({"l": "list", "t": "tuple"}, names) == {
        "l": ["<l.2>", "<l.10>"],
        "t": ("<t.1>", "<t.7>"),
    }


@pytest.mark.parametrize("odd", ["l.x", "l.01", "l.-1", "l.0.weight"])
def test_a_list_with_a_key_that_is_not_a_place_is_a_dict(odd: str) -> None:
    assert made({"l": "list"}, ["l.0", odd]) == {"l": {"0": "<l.0>", odd[2:]: f"<{odd}>"}}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("list", ["<0>", "<1>"]),
        ("tuple", ("<0>", "<1>")),
        ("dict[int]", {0: "<0>", 1: "<1>"}),
        ("dict", {"0": "<0>", "1": "<1>"}),
        ("[]", ["<0>", "<1>"]),
        ("tensor", {"0": "<0>", "1": "<1>"}),
        ("nonsense", {"0": "<0>", "1": "<1>"}),
    ],
)
def test_the_outermost_may_be_any_container(kind: str, expected: Any) -> None:
    assert made({"": kind}, ["0", "1"]) == expected


def test_a_tensor_may_stand_by_itself() -> None:
    assert made({"": "tensor"}, [""]) == "<>"
    assert made({"": "tensor"}, ["", "a"]) == {"": "<>", "a": "<a>"}
    assert made({"a": "dict"}, [""]) == {"": "<>"}


VALUES: dict[str, tuple[str, MetadataValue | None, Any]] = {
    "i": ("int", MetadataValue("i64", -5), -5),
    "large": ("int", MetadataValue("string", str(1 << 100)), 1 << 100),
    "f": ("float", MetadataValue("f64", 0.1), 0.1),
    "b": ("bool", MetadataValue("bool", True), True),
    "s": ("str", MetadataValue("string", "a\udcff"), "a\udcff"),
    "c": ("complex", MetadataValue("array[f64]", [1.0, -2.0]), 1 - 2j),
    "l": ("list", MetadataValue("array[i64]", [1, 2, 3]), [1, 2, 3]),
    "none": ("list", MetadataValue("array[i64]", []), []),
    "nested": ("list", MetadataValue("array[array[string]]", [["a"], []]), [["a"], []]),
    "t": ("tuple", MetadataValue("array[f64]", [0.9, 0.999]), (0.9, 0.999)),
    "size": ("torch.Size", MetadataValue("array[i64]", [2, 3]), torch.Size([2, 3])),
    "dtype": ("torch.dtype", MetadataValue("string", "torch.bfloat16"), torch.bfloat16),
    "nothing": ("None", MetadataValue("string", "None"), None),
    "{}": ("{}", MetadataValue("string", "{}"), {}),
    "[]": ("[]", MetadataValue("string", "[]"), []),
    "()": ("()", MetadataValue("string", "()"), ()),
}


def test_values_come_from_the_metadata_of_their_names() -> None:
    levels = {"o": "dict", **{f"o.{name}": kind for name, (kind, _, _) in VALUES.items()}}
    metadata = {f"o.{name}": value for name, (_, value, _) in VALUES.items() if value is not None}
    root, used = made_and_used(levels, ["w"], metadata)
    assert root == {"o": {name: value for name, (_, _, value) in VALUES.items()}, "w": "<w>"}
    assert {type(root["o"][name]) for name in ("b", "size", "i")} == {bool, torch.Size, int}
    assert used == {LEVELS_KEY, *metadata}


def test_only_what_the_levels_name_is_taken() -> None:
    metadata = {"epoch": MetadataValue("i64", 3), "note": text("a text")}
    assert made_and_used({"epoch": "int"}, ["w"], metadata) == (
        {"epoch": 3, "w": "<w>"},
        {LEVELS_KEY, "epoch"},
    )


def test_the_order_is_that_of_the_levels_then_of_the_tensors() -> None:
    levels = {"epoch": "int", "model": "dict", "best": "float", "model.bias": "None"}
    metadata = {"best": MetadataValue("f64", 0.5), "epoch": MetadataValue("i64", 1)}
    root = made(levels, ["z", "model.b", "model.a"], metadata)
    assert list(root) == ["epoch", "model", "best", "z"]
    assert list(root["model"]) == ["bias", "b", "a"]


def test_a_state_dict_keeps_its_metadata() -> None:
    versions = {"": {"version": 1}, "0": {"version": 2, "odd": [1.5, None, True]}}
    levels = {
        "model": "dict", "model._metadata": "_metadata", "_metadata": "_metadata",
        "ids": "dict[int]", "ids._metadata": "_metadata", "e": "{}", "e._metadata": "_metadata",
    }  # fmt: skip
    metadata = {name: text(json.dumps(versions)) for name in levels if name.endswith("_metadata")}
    root, used = made_and_used(levels, ["model.w", "ids.4"], metadata)
    assert root == {"model": {"w": "<model.w>"}, "ids": {4: "<ids.4>"}, "e": {}}
    for state in (root, *root.values()):
        assert type(state) is OrderedDict
        assert type(state._metadata) is OrderedDict  # type: ignore[attr-defined]
        assert state._metadata == versions  # type: ignore[attr-defined]
    assert used == {LEVELS_KEY, *metadata}


@pytest.mark.parametrize(
    ("levels", "content"),
    [
        ({"model._metadata": "_metadata"}, "{}"),
        ({"model": "list", "model._metadata": "_metadata"}, "{}"),
        ({"model": "dict", "model._metadata": "_metadata"}, "no JSON"),
        ({"model": "dict", "model._metadata": "_metadata"}, "[1]"),
        ({"model": "dict", "model._metadata": "_metadata"}, "[" * 100_000),
        ({"model": "dict", "model._metadata": "_metadata"}, '{"a":' * 40 + "1" + "}" * 40),
        ({"model": "dict", "model._metadata": "_metadata"}, f'{{"a": {"9" * 700}}}'),
        ({"model": "dict", "model._metadata": "_metadata"}, f'{{"a": {"9" * 5000}}}'),
        ({"model": "dict", "model._metadata": "str"}, "{}"),
    ],
)
def test_metadata_of_no_state_dict_stays_what_it_is(levels: dict[str, str], content: str) -> None:
    root, used = made_and_used(levels, ["model.0"], {"model._metadata": text(content)})
    assert not any(isinstance(each, OrderedDict) for each in (root, *root.values()))
    assert ("model._metadata" in used) == (levels["model._metadata"] == "str")


def test_what_a_selection_has_emptied_is_left_out() -> None:
    levels = {
        "": "dict", "model": "dict", "opt": "dict", "opt.state": "dict[int]", "opt.state.0": "list",
        "opt._metadata": "_metadata", "ema": "{}",
    }  # fmt: skip
    assert made(levels, ["model.w"], {"opt._metadata": text("{}")}) == {
        "model": {"w": "<model.w>"},
        "ema": {},
    }
    assert made({"": "list", "0": "dict"}, []) == []
    assert made({"": "dict", "a": "dict"}, []) == {}


OTHERS: list[tuple[str, MetadataValue, Any]] = [
    ("int", MetadataValue("f64", 1.0), 1.0), ("int", MetadataValue("bool", True), True),
    ("int", text("0x5"), "0x5"), ("int", text("9" * 700), "9" * 700),
    ("int", text("9" * 5000), "9" * 5000), ("int", text("٣"), "٣"),
    ("int", MetadataValue("string", "abc"), "abc"), ("float", MetadataValue("i64", 1), 1),
    ("float", text("1.0"), "1.0"), ("bool", MetadataValue("u8", 1), 1),
    ("str", MetadataValue("i64", 1), 1),
    ("complex", MetadataValue("array[f64]", [1.0]), [1.0]),
    ("complex", MetadataValue("array[i64]", [1, 2]), [1, 2]), ("complex", text("1j"), "1j"),
    ("torch.Size", MetadataValue("array[f64]", [1.0]), [1.0]),
    ("torch.Size", text("2"), "2"), ("torch.dtype", text("torch.load"), "torch.load"),
    ("torch.dtype", text("os.system"), "os.system"),
    ("torch.dtype", text("torch.float32\nR"), "torch.float32\nR"),
    ("torch.dtype", MetadataValue("i64", 1), 1), ("list", text("a"), "a"),
    ("tuple", MetadataValue("bool", True), True), ("None", MetadataValue("f32", 0.5), 0.5),
    ("{}", text("full"), "full"), ("[]", MetadataValue("array[i64]", [1]), [1]),
    ("()", text("[]"), "[]"),
]  # fmt: skip


@each(("kind", "value", "expected"), OTHERS)
def test_a_value_that_is_not_of_its_kind_is_of_its_own(
    kind: str, value: MetadataValue, expected: Any
) -> None:
    root, used = made_and_used({"o": "dict", "o.a": kind}, ["w"], {"o.a": value})
    assert root == {"o": {"a": expected}, "w": "<w>"}
    assert type(root["o"]["a"]) is type(expected)
    assert used == {LEVELS_KEY, "o.a"}


UNSOUND: list[tuple[str, MetadataValue]] = [
    ("tensor", text("a")), ("os.system", text("a")), ("", text("a")), ("_metadata", text("{}")),
    ("int", MetadataValue("f64", "1.0")), ("int", MetadataValue("array[i64]", [None])),
    ("int", MetadataValue("nonsense", "a")),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), UNSOUND)
def test_a_value_of_no_kind_that_there_is_stays_metadata(kind: str, value: MetadataValue) -> None:
    assert made_and_used({"a": kind}, ["w"], {"a": value}) == ({"w": "<w>"}, {LEVELS_KEY})


@pytest.mark.parametrize(
    "content",
    ["", "no JSON", "[]", "3", '{"a": 1}', '{"a": {}}', "[" * 100_000, "null", "9" * 5000],
)
def test_levels_of_somebody_else_are_none(content: str) -> None:
    assert not parse_levels({LEVELS_KEY: text(content)})
    assert made_and_used(content, ["a.b"]) == ({"a.b": "<a.b>"}, set())


@pytest.mark.parametrize("value", [MetadataValue("i64", 1), MetadataValue("array[string]", ["{}"])])
def test_levels_that_are_not_text_are_none(value: MetadataValue) -> None:
    assert not parse_levels({LEVELS_KEY: value})


def test_a_tensor_stands_where_the_levels_have_something_else() -> None:
    levels = {"a": "dict", "b": "int", "c": "None", "d": "[]", "_metadata": "_metadata"}
    metadata = {"b": MetadataValue("i64", 1), "_metadata": text("{}")}
    root, used = made_and_used(levels, ["a", "a.x", *"bcd", "_metadata"], metadata)
    assert root == {name: f"<{name}>" for name in ["a", "a.x", *"bcd", "_metadata"]}
    assert used == {LEVELS_KEY}


@pytest.mark.parametrize("kind", ["None", "{}", "[]", "()", "int", "str"])
def test_a_value_that_the_metadata_has_lost_is_left_out(kind: str) -> None:
    root, _ = nest_leaves(
        {"a": "<a>"}, {LEVELS_KEY: levels_value({"b": kind, "c": "dict", "c.d": kind})}
    )
    assert root == {"a": "<a>"}


def test_the_levels_themselves_are_not_a_value() -> None:
    assert made({LEVELS_KEY: "str", "": "dict"}, ["w"]) == {"w": "<w>"}


def test_levels_beyond_what_readers_follow_are_flat() -> None:
    deep = [".".join("a" * depth) for depth in range(1, 401)]
    root = made(dict.fromkeys(deep, "dict"), [f"{deep[-1]}.w"])
    for _ in range(100):
        (root,) = root.values()
    assert root == {".".join("a" * (400 - 100)) + ".w": f"<{deep[-1]}.w>"}


def test_levels_are_read_as_they_were_written() -> None:
    levels = {"größe\udcff": "dict", "": "list", 'a"\n': "torch.Size"}
    assert parse_levels({LEVELS_KEY: levels_value(levels)}) == levels
    assert levels_value(levels).type == TEXT
    assert is_value("int")
    assert is_value("_metadata")
    assert not is_value("dict")
    assert not is_value(None)


DOTS = "." * 4000
CHAIN = ["a" + ".a" * depth for depth in range(4000)]


@pytest.mark.parametrize(
    ("levels", "names"),
    [
        ({"a": "dict"}, [f"{number}{DOTS}" for number in range(200)]),
        (dict.fromkeys(CHAIN, "dict"), [f"{CHAIN[-1]}.w"]),
        ({"a": "dict"}, ["." * 80_000]),
        (dict.fromkeys(CHAIN, "int"), [f"{CHAIN[-1]}.w"]),
    ],
    ids=["many long names", "a chain", "dots", "values in values"],
)
def test_places_are_found_in_time_linear_in_the_names(
    levels: dict[str, str], names: list[str]
) -> None:
    metadata = {LEVELS_KEY: levels_value(levels), **dict.fromkeys(levels, MetadataValue("i64", 1))}
    started = time.process_time()
    nest_leaves(dict.fromkeys(names), metadata)
    # An algorithm that visits every dot of every name takes several times as long on any machine.
    assert time.process_time() - started < 2


@pytest.mark.parametrize("odd", ["\0", "\1", "\1\0", "\0\1", "-", " ", "\x02", "\1\1"])
def test_no_letter_in_a_name_is_taken_for_a_dot(odd: str) -> None:
    names = [f"a{odd}b.c", "a.b.c", f"a{odd}.b", f"a.{odd}b.c", "a.z"]
    levels = {"a": "dict", "a.b": "dict", f"a{odd}b": "dict", f"a.{odd}b": "dict"}
    assert made(levels, names) == {
        "a": {"b": {"c": "<a.b.c>"}, f"{odd}b": {"c": f"<a.{odd}b.c>"}, "z": "<a.z>"},
        f"a{odd}b": {"c": f"<a{odd}b.c>"},
        f"a{odd}.b": f"<a{odd}.b>",
    }


SEGMENTS = st.sampled_from(["a", "0", "1", "", "_metadata", "-1", "x.y"])
PLACES = st.lists(SEGMENTS, max_size=4).map(".".join)
KINDS = st.sampled_from([
    "dict", "dict[int]", "list", "tuple", "int", "float", "bool", "str", "complex", "torch.Size",
    "torch.dtype", "None", "{}", "[]", "()", "_metadata", "tensor", "nonsense",
])  # fmt: skip
CONTENTS = st.sampled_from([
    MetadataValue("i64", 1), text("7"), text("{}"), text("torch.int8"),
    MetadataValue("array[f64]", [1.0, 2.0]),
    MetadataValue("bool", False), MetadataValue("array[i64]", []),
])  # fmt: skip


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    st.dictionaries(PLACES, KINDS, max_size=8),
    st.lists(PLACES, max_size=5, unique=True),
    st.dictionaries(PLACES.filter(bool), CONTENTS, max_size=5),
)
def test_whatever_the_levels_say_no_tensor_is_lost(
    levels: dict[str, str], names: list[str], metadata: dict[str, MetadataValue]
) -> None:
    root, used = made_and_used(levels, names, metadata)
    assert sorted(leaves(root)) == sorted(f"<{name}>" for name in names)
    assert used <= {LEVELS_KEY, *metadata} - set(names)


def leaves(value: Any) -> list[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [leaf for each in value for leaf in leaves(each)]
    return [value] if isinstance(value, str) and value.startswith("<") else []
