"""Opening a pickle does nothing that the pickle asks for, in any form and at any place."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from audited import __file__ as audited

import payloads
from each import each
from once import once, shared
from payloads import (
    AMPLIFYING,
    ATTACKS,
    BUILD,
    LIVE,
    NONE,
    SEVERAL,
    Entry,
    call,
    data,
    integer,
    mapping,
    named,
    put,
    storage,
    stream,
    tensor,
    text,
    torch_zip,
    whole,
    zip_of,
)
from weightctl.formats.pickles.scan import names
from weightctl.storage.base import HeldRange

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_OPCODES = 5000
_TEN_TIMES = 10


def _zips() -> dict[str, bytes]:
    """Return zip files with attacks outside of the pickle."""
    good = whole(mapping(text("a") + tensor(storage())))
    outside = [
        "../../../../tmp/attacked", "/tmp/attacked", "m/../../attacked", "C:\\attacked", "m/\0a",
        "\x1b[2J", "m/code/__init__.py", "m/.data/extern_modules", b"\xff\xfe",
    ]  # fmt: skip
    return {
        "members of other places": torch_zip(
            good, data(), *(Entry(name, b"a") for name in outside)
        ),
        "a member for each key": torch_zip(
            whole(mapping(text("a") + tensor(storage("../../../etc/passwd")))), data()
        ),
        "code": torch_zip(good, data(), Entry("m/code/a.py", b"import os\nos.system('exit 0')\n")),
        "constants": torch_zip(good, data(), Entry("m/constants.pkl", LIVE["os.system"])),
        "a pickle that is not first": zip_of(
            Entry("m/version", b"3\n"), Entry("m/data.pkl", LIVE["os.system"])
        ),
        "a compressed bomb": torch_zip(good, data("0", bytes(64), method=8, size=0xFFFFFFF0)),
        "a member as long as it likes": torch_zip(good, data("0", bytes(64), size=0xFFFFFFF0)),
        "members that overlap": torch_zip(good, data(), Entry("m/data/1", b"", at=40)),
        "many members": torch_zip(good, data(), *(Entry(f"m/{i}", b"") for i in range(5000))),
    }


def _amplify(name: str, count: int) -> bytes:
    raw = AMPLIFYING[name](count)
    return torch_zip(raw, data()) if raw[:1] == b"\x80" and raw[2:3] != b"\x8a" else raw


FORMS: dict[str, dict[str, bytes]] = {
    "pickle": ATTACKS,
    "zip": {name: torch_zip(raw, data()) for name, raw in ATTACKS.items()},
    "stream": {name: stream(raw) for name, raw in ATTACKS.items()},
    "other zips": _zips(),
    "several pickles": SEVERAL,
    "amplifying": {name: _amplify(name, _OPCODES) for name in AMPLIFYING},
}
CASES = [(form, name) for form, table in FORMS.items() for name in table]


def _run_probe(mode: str, files: Mapping[Any, Path], *before: str) -> dict[Any, dict[str, Any]]:
    command = [sys.executable, audited, mode, *before, *map(str, files.values())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    outcome = json.loads(done.stdout)
    return {name: outcome[str(path)] for name, path in files.items()}


def _written(folder: Path, contents: Mapping[Any, bytes]) -> dict[Any, Path]:
    files = {name: folder / f"{number}.pt" for number, name in enumerate(contents)}
    for name, path in files.items():
        path.write_bytes(contents[name])
    return files


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Valid and invalid files of every form; opening them first imports the needed modules."""
    good = whole(mapping(text("a") + tensor(storage()), text("b") + call("pathlib.PosixPath", "a")))
    plain = whole(mapping(text("a") + integer(1)))
    versions = mapping(
        text("_metadata") + mapping(text("a") + mapping(text("version") + integer(1)))
    )
    versioned = whole(call("collections.OrderedDict") + versions + BUILD)
    contents = {
        "zip": torch_zip(good, data()), "cut zip": torch_zip(good, data())[:200],
        "stream": stream(plain), "pickle": plain, "versions": versioned, "cut pickle": plain[:-3],
        "text": b"(" + b"a" * 99, "short": b"\x80\2.", "class": whole(call("a.b")),
    }  # fmt: skip
    folder = tmp_path_factory.mktemp("warm")
    return [*map(str, _written(folder, contents).values())]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory, warm: list[str]) -> dict[Any, dict[str, Any]]:
    """The audit events while each attack was opened, all in one process for all workers."""
    contents = {(form, name): FORMS[form][name] for form, name in CASES}

    def probe(half: Path) -> None:
        files = _written(tmp_path_factory.mktemp("attacks"), contents)
        outcome = _run_probe("open", files, str(len(warm)), *warm)
        half.write_text(json.dumps([*outcome.values()]))

    made = once(shared(tmp_path_factory) / "attacks.json", probe)
    return dict(zip(contents, json.loads(made.read_text()), strict=True))


@pytest.fixture(scope="module")
def unpickled(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, dict[str, Any]]:
    """The audit events, which are stopped, while Python unpickled each attack."""
    return _run_probe("unpickle", _written(tmp_path_factory.mktemp("live"), LIVE))


def test_there_are_more_than_a_hundred_attacks() -> None:
    assert len(ATTACKS) > 100
    assert len(set(ATTACKS.values())) == len(ATTACKS)


@each("name", LIVE)
def test_python_would_do_what_the_pickle_asks_for(name: str, unpickled: dict[Any, Any]) -> None:
    outcome = unpickled[name]
    assert outcome["outcome"] == "stopped", outcome
    assert set(outcome["seen"]) - {"pickle.find_class"}


def test_python_does_what_a_pickle_without_harm_asks_for() -> None:
    marker: list[object] = []
    payloads.marker = marker  # type: ignore[attr-defined]
    appended = named("builtins.getattr") + b"(" + named("payloads.marker") + text("append") + b"tR"
    raw = whole(appended + put(0) + b"(" + text("attacked") + b"tR0" + NONE)
    assert pickle.loads(raw) is None
    assert marker == ["attacked"]


@each("form, name", CASES)
def test_opening_does_nothing_and_costs_little(
    form: str, name: str, opened: dict[Any, dict[str, Any]]
) -> None:
    outcome = opened[form, name]
    assert outcome["seen"] == []
    assert outcome["outcome"].startswith(("listed: ", "refused: ")), outcome["outcome"]
    assert outcome["seconds"] < 1
    assert outcome["bytes"] < 100 << 20
    assert len(outcome["outcome"]) < 1000 or outcome["outcome"].startswith("listed: ")


@pytest.mark.parametrize("name", ["os.system", "eval", "a partial", "the result is dropped"])
@pytest.mark.parametrize("form", ["pickle", "zip", "stream"])
def test_what_is_named_is_listed_as_a_name(
    form: str, name: str, opened: dict[Any, dict[str, Any]]
) -> None:
    outcome = opened[form, name]["outcome"]
    assert outcome.startswith("listed: ")
    kinds = {"os.system": "os.system", "eval": "builtins.eval", "a partial": "object"}
    assert kinds.get(name, "{}") in outcome


@pytest.mark.long
@each("name", AMPLIFYING)
def test_the_scan_of_what_amplifies_takes_no_memory(name: str) -> None:
    raw = AMPLIFYING[name](_OPCODES // _TEN_TIMES)
    tracemalloc.start()
    try:
        names(HeldRange(memoryview(raw)))
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_what_amplifies_is_read_in_a_time_that_grows_as_the_file_does(
    tmp_path: Path, warm: list[str], opened: dict[Any, dict[str, Any]]
) -> None:
    small = {name: _amplify(name, _OPCODES // _TEN_TIMES) for name in AMPLIFYING}
    outcome = _run_probe("open", _written(tmp_path, small), str(len(warm)), *warm)
    # If it takes long, ten times the opcodes must take about ten times as long.
    slow = {
        name: (outcome[name]["seconds"], opened["amplifying", name]["seconds"])
        for name in AMPLIFYING
        if opened["amplifying", name]["seconds"] > 0.5
    }
    assert not {name: two for name, two in slow.items() if two[1] > 30 * two[0]}
