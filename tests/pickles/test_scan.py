"""The globals that a pickle names are found without creating its objects."""

from __future__ import annotations

import argparse
import datetime as dt
import decimal
import enum
import functools
import io
import operator
import pathlib
import pickle
from collections import Counter, OrderedDict, defaultdict
from typing import Any

import pytest

from each import each
from payloads import LIVE, REDUCE, STOP, call, many, named, stacked, text, whole
from weightctl.formats.pickles.scan import MADE_UP, names
from weightctl.formats.pytorch.constructors import is_allowed
from weightctl.storage.base import HeldRange


class Color(enum.Enum):
    RED = 1


OBJECTS: dict[str, Any] = {
    "plain": {"a": [1, 2.5, None, True, b"raw", "text" * 100, (1, 2, 3), {1, 2}]},
    "ordered": OrderedDict(a=Counter("aab"), b=defaultdict(list, c=[1])),
    "namespace": argparse.Namespace(lr=0.1, when=dt.date(2026, 1, 2)),
    "paths": [pathlib.PurePosixPath("a/b"), decimal.Decimal("1.5")],
    "functions": [functools.partial(operator.add, 1), len, Color.RED],
    "long": {f"key {n}": dt.timedelta(n) for n in range(400)},
    "shared": [frozenset({1}), *[dt.date] * 3],
}


class Recorder(pickle.Unpickler):
    """Python's unpickler, which also records the globals that it looks up."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(io.BytesIO(raw))
        self.found: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        self.found.add(f"{module}.{name}")
        return super().find_class(module, name)


def recorded(raw: bytes) -> set[str]:
    recorder = Recorder(raw)
    recorder.load()
    return recorder.found


def modern(path: str) -> str:
    """Return the Python 3 name of a global; protocols below 3 write Python 2's names."""
    return path.replace("copy_reg.", "copyreg.").replace("__builtin__.", "builtins.")


@each("protocol", range(6))
@each("name", OBJECTS)
def test_what_is_found_is_what_python_looks_up(name: str, protocol: int) -> None:
    raw = pickle.dumps(OBJECTS[name], protocol)
    found = names(HeldRange(memoryview(raw)))
    assert not found.problem
    assert found.end == len(raw)
    looked_up = {modern(path) for path in recorded(raw)}
    # A few of Python 2's globals are in other modules in Python 3.
    renamed = {"functools.reduce", "operator.add", "_operator.add"}
    assert {each.path for each in found.named} - renamed == looked_up - renamed


@each("name", LIVE)
def test_every_attack_names_what_is_outside_the_list(name: str) -> None:
    found = names(HeldRange(memoryview(LIVE[name])))
    assert found.problem or not all(is_allowed(each.path) for each in found.named)


HIDDEN = {
    "behind a copy": text("os") + text("system") + b"2" + b"0" + b"\x93",
    "behind a tuple": many(text("os")) + text("system") + b"\x93",
    "in the memo's wrong place": text("os") + b"q\0" + b"0" + text("system") + b"h\1\x93",
    "swapped by a mark": text("os") + b"(" + text("system") + b"1" + text("system") + b"\x93",
    "put together": call("builtins.str", "os") + text("system") + b"\x93",
}


@pytest.mark.parametrize("name", HIDDEN)
def test_a_name_that_is_put_together_is_never_taken_for_known(name: str) -> None:
    found = names(HeldRange(memoryview(HIDDEN[name] + STOP)))
    paths = [each.path for each in found.named]
    assert "os.system" in paths or MADE_UP in paths
    assert not all(map(is_allowed, paths))


def test_a_name_is_reported_with_the_byte_of_its_first_opcode() -> None:
    raw = b"\x80\x02" + named("os.system") + b"0" + named("os.system") + b"0" + stacked("a", "b")
    found = names(HeldRange(memoryview(raw + STOP))).named
    assert [(each.path, each.offset) for each in found] == [
        ("os.system", 2), ("a.b", raw.index(b"\x93")),
    ]  # fmt: skip


@pytest.mark.parametrize("opcode", [b"\x82\x07", b"\x83\x07\0", b"\x84\x07\0\0\0"])
def test_an_extension_is_named_by_its_number(opcode: bytes) -> None:
    found = names(HeldRange(memoryview(opcode + many() + REDUCE + STOP)))
    assert [each.path for each in found.named] == ["copyreg.extension 7"]


def test_what_was_named_before_the_damage_is_reported() -> None:
    found = names(HeldRange(memoryview(named("os.system") + b"\xff")))
    assert [each.path for each in found.named] == ["os.system"]
    assert found.problem == "it cannot be read from byte 11: opcode 0xff does not exist"


@each("end", range(1, 30))
def test_a_pickle_that_is_cut_off_is_told_to_be(end: int) -> None:
    raw = whole(call("os.system", "exit 0"))
    assert names(HeldRange(memoryview(raw[: len(raw) - end]))).problem
