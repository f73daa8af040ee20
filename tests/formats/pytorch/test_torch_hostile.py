"""Every file in `fixtures/hostile-pickles` is refused quickly, with an error that says why."""

from __future__ import annotations

import filecmp
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from each import each
from lazy import torch
from payloads import assert_cheap, assert_one_error, measured
from weightctl import open_weights
from weightctl.errors import FormatError

FIXTURES = Path(__file__).parents[3] / "fixtures"
HOSTILE = FIXTURES / "hostile-pickles"


class Case(NamedTuple):
    """The expected message for a file, and the byte offset of the fault."""

    message: str
    offset: int | None = None


def unsound(reason: str, offset: int | None = None) -> Case:
    return Case(f"the pickle is invalid: {reason}", offset)


ZIPS = {
    "64-elsewhere": Case("the zip64 end-of-central-directory record is missing", 492),
    "64-lies": Case(
        "the two end-of-central-directory records of the zip file contradict each other", 436
    ),
    "behind": Case("4 bytes after the end of the zip file are not part of it", 436),
    "comment-cut": Case("the comment at the end of the zip file is truncated", 436),
    "compressed": Case(
        "the zip member 'm/data/0' is compressed, but torch stores members uncompressed", 176
    ),
    "count-huge": Case(
        "the directory of the zip file has 165 bytes, too few for 65535 members", 271
    ),
    "count-lies": Case(
        "the zip central directory has more entries than its end record states (2)", 381
    ),
    "cut": Case("the zip file is truncated", 428),
    "directory-past-end": Case(
        "the zip central directory would end 4835 bytes after the start of its end record", 436
    ),
    "directory-short": Case("the zip central directory ends 46 bytes before its end record", 482),
    "disks": Case("the file is one part of a multi-part zip file", 436),
    "encrypted": Case("the zip member 'm/data/0' is encrypted", 176),
    "ends-twice": Case("the zip file has two end-of-central-directory records", 436),
    "huge-member": Case("the zip central directory has an invalid offset for 'm/data/0'", 327),
    "name-twice": Case("the zip file has two members named 'm/data/0'", 435),
    "names-differ": Case("the local header of 'm/data/0' has a different name", 176),
    "overlap": Case("the zip member 'm/data/0' overlaps the next one", 176),
    "same-place": Case("two members of the zip file overlap", 0),
    "storage-missing": unsound("the zip file has no member `m/data/../0`", 129),
    "storage-short": unsound("tensor `a` needs 16 bytes of its storage, but the storage has 15"),
}
_BELOW = "`torch._utils._rebuild_tensor_v2`"
PICKLES = {
    "cut": Case("the file is truncated: the pickle is incomplete", 27),
    "deep": unsound("it is nested more than 100 levels deep"),
    "digits": unsound("an integer has 5000 digits; the limit is 4300", 2),
    "id": unsound("a persistent id has the unexpected type str", 23),
    "long-name": unsound("the module or name of a global has more than 512 characters", 2),
    "many-arguments": unsound(f"{_BELOW} is called with 100 arguments", 137),
    "no-arguments": unsound("the arguments of a call are not a tuple", 24),
    "opcode": unsound("an opcode that is invalid, or whose operands are missing", 27),
    "protocol-9": unsound("pickle protocol 9 is not supported; the newest is 5", 2),
    "text-lies": Case("the file is truncated: the pickle is incomplete", 2),
    "wrong-arguments": unsound(f"{_BELOW} is called with invalid arguments", 48),
}
STREAMS = {
    "cut": Case("the file is truncated: it has 197 bytes instead of 198: 1 are missing", 197),
    "length-lies": unsound(
        "storage 0 has 1152921504606846976 elements, but the pickle states 4", 174
    ),
    "no-keys": unsound("its list of storages is missing", 166),
    "storage-twice": unsound(
        "storage 0 has two different descriptions: 4 elements of F32, and 5 elements of F32", 131
    ),
    "unknown-key": unsound("its list of storages has a storage that no tensor uses", 174),
}
TENSORS = {
    "laughs": unsound("its objects refer to the same objects too many times"),
    "huge": unsound("tensor `` has an invalid shape"),
    "offset": unsound("tensor `` has an invalid storage offset"),
    "past-end": unsound(
        "tensor `` needs 4398046511108 bytes of its storage, but the storage has 16"
    ),
    "stride": unsound("tensor `` has an invalid shape or strides"),
}
CASES: dict[str, Case] = {
    **{f"zip-{name}.pt": case for name, case in ZIPS.items()},
    **{f"pickle-{name}.pkl": case for name, case in PICKLES.items()},
    **{f"stream-{name}.pt": case for name, case in STREAMS.items()},
    **{f"tensor-{name}.pt": case for name, case in TENSORS.items()},
}


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    """The output of `ls` for every file, all in one process, with time and memory."""
    return measured(HOSTILE, CASES)


def test_every_file_has_a_line_in_the_table() -> None:
    assert sorted(path.name for path in HOSTILE.iterdir()) == sorted(CASES)


def test_the_script_makes_these_very_files(tmp_path: Path) -> None:
    script = FIXTURES / "make_hostile_pickles.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(CASES)
    assert all(filecmp.cmp(tmp_path / name, HOSTILE / name, shallow=False) for name in CASES)


def test_a_file_that_is_cut_states_about_how_many_bytes_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "cut.pt"
    torch.save({"a": torch.zeros(5000), "b": torch.zeros(300, dtype=torch.int64)}, path)
    raw = path.read_bytes()
    path.write_bytes(raw[:4000])
    with pytest.raises(FormatError) as caught:
        open_weights(path)
    (missing,) = re.findall(r"\((\d+) bytes\) are missing", caught.value.reason)
    assert int(missing) == pytest.approx(len(raw) - 4000, rel=0.1)


@each("name", CASES)
def test_the_error_says_what_is_wrong_and_where(name: str) -> None:
    case = CASES[name]
    with pytest.raises(FormatError) as caught:
        open_weights(HOSTILE / name)
    error = caught.value
    where = "" if case.offset is None else f", byte {case.offset}"
    assert error.message == f"{HOSTILE / name}{where}: {case.message}"
    assert error.offset == case.offset
    assert error.hint


@each("name", CASES)
def test_refusing_a_file_takes_little_time_and_memory(name: str, figures: dict[str, Any]) -> None:
    assert_cheap(figures[name])


@each("name", CASES)
def test_the_command_ends_with_2_and_one_error(name: str, figures: dict[str, Any]) -> None:
    assert_one_error(figures[name])
