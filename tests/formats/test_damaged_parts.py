"""Parts and indexes whose content does not match their names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from build import index_of, safetensors_of
from non_checkpoints import GGUF, LAYERS, POINTER, SAFETENSORS, error_of, fill
from weightctl import convert, open_weights

if TYPE_CHECKING:
    from pathlib import Path


def test_an_index_that_is_something_else_says_what(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(POINTER)
    assert "the index is not valid JSON: it is a Git LFS pointer" in error_of(path).message
    path.write_text(json.dumps({"weight_map": {"a": "b"}})[:-9])
    assert "the index is not valid JSON: Unterminated string" in error_of(path).message


def test_parts_that_are_wrong_alike_are_said_together(tmp_path: Path) -> None:
    names = [f"model-0000{number}-of-00004.safetensors" for number in (1, 2, 3, 4)]
    fill(tmp_path, dict.fromkeys(names, POINTER))
    fill(tmp_path, {"model.safetensors.index.json": index_of(dict.fromkeys("abcd", names[0]))})
    weight_map = dict(zip("abcd", names, strict=True))
    fill(tmp_path, {"model.safetensors.index.json": index_of(weight_map)})
    error = error_of(tmp_path)
    assert "the set of parts is not complete: " in error.message
    assert "... (4 parts): it is a Git LFS pointer" in error.message
    assert "git lfs pull" in error.hint


def test_one_part_that_is_wrong_is_the_error_of_its_file(tmp_path: Path) -> None:
    names = [f"a-0000{number}-of-00002.safetensors" for number in (1, 2)]
    fill(tmp_path, {names[0]: SAFETENSORS, names[1]: SAFETENSORS[:-9]})
    assert error_of(tmp_path).path == str(tmp_path / names[1])


def test_missing_and_damaged_parts_without_an_index_are_one_error(tmp_path: Path) -> None:
    names = [f"a-0000{number}-of-00004.gguf" for number in (1, 2, 3, 4)]
    fill(tmp_path, {names[0]: GGUF, names[2]: GGUF[:-900], names[3]: bytes(99)})
    message = error_of(tmp_path / names[0]).message
    assert (
        "the set of parts is not complete:\n  1 of 4 parts is missing: `a-00002-of-00004.gguf`"
    ) in message
    assert "\n  a-00003-of-00004.gguf, byte 164: `l.4` ends" in message
    assert "it is nothing but zeros, 99 bytes" in message


def test_a_part_that_the_index_does_not_name_is_refused_by_its_own_name_too(tmp_path: Path) -> None:
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    fill(tmp_path, {name: safetensors_of({name: ("I8", (1,), b"x")}) for name in names})
    fill(tmp_path, {"model.safetensors.index.json": index_of({names[0]: names[0]})})
    for path in (tmp_path, *(tmp_path / name for name in names)):
        assert (
            "1 file is named like parts, but not in the index (`model-00002-of-00002.safetensors`)"
        ) in error_of(path).message


def test_tensors_that_no_index_lists_have_a_hint_that_names_check(tmp_path: Path) -> None:
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    fill(tmp_path, {name: safetensors_of({name: ("I8", (1,), b"x")}) for name in names})
    for weight_map in ({names[0]: names[0]}, {names[0]: names[0], "absent": names[1]}):
        fill(tmp_path, {"model.safetensors.index.json": index_of(weight_map)})
        hint = error_of(tmp_path).hint
        assert (f"`weightctl check {tmp_path} --fix`" in hint) == ("absent" not in weight_map)


def test_the_index_decides_which_of_two_tensors_of_a_name_is_read(tmp_path: Path) -> None:
    base, overlay = "model-00001-of-00001.safetensors", "overlay.safetensors"
    fill(tmp_path, {
        base: safetensors_of(dict.fromkeys("abc", ("I8", (1,), b"x"))),
        overlay: safetensors_of({"b": ("I8", (2,), b"yz")}),
        "model.safetensors.index.json": index_of({"a": base, "b": overlay, "c": base}),
    })  # fmt: skip
    weights = open_weights(tmp_path)
    found = {name: bytes(node.data().to_numpy()) for name, node in weights.items()}
    assert found == {"a": b"x", "b": b"yz", "c": b"x"}
    (note,) = weights.header.notes
    assert note.startswith(f"`b` of {base} is not used, because the index assigns the name to")
    convert(tmp_path, tmp_path / "out.safetensors")
    assert {name: node.shape for name, node in open_weights(tmp_path / "out.safetensors").items()}[
        "b"
    ] == (2,)


def test_a_part_of_another_version_beside_a_set_is_nobodys_business(tmp_path: Path) -> None:
    fill(tmp_path, {"model-00001-of-00001.safetensors": SAFETENSORS})
    fill(tmp_path, {"model-00003-of-00003.safetensors": SAFETENSORS})
    weight_map = dict.fromkeys(LAYERS, "model-00001-of-00001.safetensors")
    fill(tmp_path, {"model.safetensors.index.json": index_of(weight_map)})
    assert list(open_weights(tmp_path).header.tensors) == list(LAYERS)
