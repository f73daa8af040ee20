"""A damaged or malicious patch is refused, and nothing is left behind."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from each import each
from weightctl.deltas.applying import apply_patch
from weightctl.deltas.creating import write_patch
from weightctl.errors import FormatError, WeightctlError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HEADER = struct.Struct("<8sIIQQ32s")


def write_model(path: Path, values: np.ndarray) -> None:
    header = {"w": {"dtype": "BF16", "shape": [values.size], "data_offsets": [0, values.nbytes]}}
    raw = json.dumps(header).encode().ljust(104)
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + values.tobytes())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two models and a patch."""
    made_in = tmp_path_factory.mktemp("patches")
    old = np.arange(3000, dtype="<u2")
    new = old.copy()
    new[::17] += 1
    for name, values in (("old", old), ("new", new)):
        write_model(made_in / f"{name}.safetensors", values)
    write_patch(made_in / "old.safetensors", made_in / "new.safetensors", made_in / "good")
    return made_in


def refuse(folder: Path, raw: bytes) -> WeightctlError:
    """Return the error of a patch with these bytes."""
    before = {each.name for each in folder.iterdir()} | {"bad"}
    (folder / "bad").write_bytes(raw)
    with pytest.raises(WeightctlError) as error:
        apply_patch(folder / "old.safetensors", folder / "bad", folder / "out")
    assert {each.name for each in folder.iterdir()} == before
    return error.value


def rewrite(raw: bytes, change: Callable[[Any], object]) -> bytes:
    """Return a patch with a changed index, whose SHA-256 is right."""
    magic, version, zero, offset, nbytes, _ = HEADER.unpack(raw[: HEADER.size])
    document = json.loads(raw[offset : offset + nbytes])
    change(document)
    index = json.dumps(document).encode()
    header = HEADER.pack(magic, version, zero, offset, len(index), hashlib.sha256(index).digest())
    return header + raw[HEADER.size : offset] + index


def test_a_truncated_patch_is_refused(folder: Path) -> None:
    raw = (folder / "good").read_bytes()
    for size in (0, 7, 8, 40, 63, 64, 65, len(raw) // 2, len(raw) - 1):
        assert isinstance(refuse(folder, raw[:size]), FormatError)


def test_bytes_after_the_end_are_refused(folder: Path) -> None:
    assert "follow the end" in str(refuse(folder, (folder / "good").read_bytes() + b"x"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(data=st.data())
def test_a_changed_byte_is_detected(folder: Path, data: st.DataObject) -> None:
    raw = bytearray((folder / "good").read_bytes())
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    refuse(folder, bytes(raw))


def first_range(document: Any) -> Any:
    return document["files"][0]["ranges"][-1]


def set_item(find: Callable[[Any], Any], key: Any, value: Any) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        find(document)[key] = value

    return change


def first_file(document: Any) -> Any:
    return document["files"][0]


def first_chunk(document: Any) -> Any:
    return first_range(document)["chunks"][0]


def whole(document: Any) -> Any:
    return document


CHANGES = {
    "a huge file": set_item(first_file, "size", 1 << 50),
    "a negative size": set_item(first_file, "size", -1),
    "a size that is not a number": set_item(first_file, "size", "5"),
    "a size that is true": set_item(first_range, "length", True),
    "a range outside the old file": set_item(first_range, "source", [0, 1 << 40]),
    "a negative offset": set_item(first_range, "source", [0, -5]),
    "an unknown old file": set_item(first_range, "source", [7, 0]),
    "no old file": set_item(first_range, "source", None),
    "a word of 3 bytes": set_item(first_range, "word", 3),
    "no chunks": set_item(first_range, "chunks", []),
    "an unknown method": set_item(first_chunk, 0, "guess"),
    "a block that is too long": set_item(first_chunk, 1, 5000),
    "a digest that is too short": set_item(first_chunk, 2, "ab"),
    "too many changed words": set_item(first_chunk, 3, 1 << 30),
    "fewer changed words": set_item(first_chunk, 3, 1),
    "small chunks": set_item(whole, "chunk", 0),
    "large chunks": set_item(whole, "chunk", 1 << 40),
    "no files": set_item(whole, "files", []),
    "two files": lambda document: document["files"].append(document["files"][0]),
    "files that are a number": set_item(whole, "files", 3),
    "nothing": lambda document: document.clear(),
    "another result": set_item(first_file, "sha256", "0" * 64),
    "another old file": set_item(first_chunk, 2, "0" * 64),
}


@each("change", CHANGES.values(), ids=CHANGES)
def test_an_invalid_index_is_refused(folder: Path, change: Callable[[Any], object]) -> None:
    error = refuse(folder, rewrite((folder / "good").read_bytes(), change))
    assert isinstance(error, FormatError)
    assert error.path.endswith(("bad", "old.safetensors"))


NAMES = ("../evil", "/evil", "a/../../evil", "", ".", "a//b", "a\0b", "a\nb", "a\\b", "x/", 5, None,
         "pending.weightctl-edit.partial", "a/m.gguf.weightctl-switch.partial")  # fmt: skip


@each("name", NAMES)
@each("where", ["files", "sources"])
def test_a_name_that_leads_out_of_the_directory_is_refused(
    name: Any, where: str, folder: Path
) -> None:
    def change(document: Any) -> None:
        document["directory"] = True
        document[where][0]["name"] = name

    assert "name" in str(refuse(folder, rewrite((folder / "good").read_bytes(), change)))


def test_deeply_nested_json_is_refused(folder: Path) -> None:
    raw = (folder / "good").read_bytes()
    magic, version, zero, offset, _, _ = HEADER.unpack(raw[: HEADER.size])
    index = b"[" * 200_000
    header = HEADER.pack(magic, version, zero, offset, len(index), hashlib.sha256(index).digest())
    refuse(folder, header + raw[HEADER.size : offset] + index)


def test_a_newer_version_is_refused(folder: Path) -> None:
    raw = bytearray((folder / "good").read_bytes())
    raw[8] = 2
    assert "version 2" in str(refuse(folder, bytes(raw)))
