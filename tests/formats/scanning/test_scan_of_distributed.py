"""A scan of a distributed checkpoint looks at each chunk, and reports bytes that are in none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from payloads import call, whole
from weightctl import convert
from weightctl.formats.scanning.scan import scan_file
from weightctl.formats.training.metadata import read_metadata
from weightctl.storage.files import open_reader

if TYPE_CHECKING:
    from pathlib import Path

ATTACK = whole(call("os.system", "exit 0"))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    tensors = {"a.weight": np.ones((4, 4), np.float32), "b.weight": np.ones(3, np.float32)}
    convert(tensors, f"{tmp_path}{os.sep}out{os.sep}", to="dcp")
    return tmp_path / "out"


def problems_of(folder: Path) -> list[str]:
    found = scan_file(open_reader(str(folder / "__0_0.distcp")))
    return [each.names.problem for each in found if each.names.problem]


def test_the_chunks_of_an_honest_checkpoint_are_clean(checkpoint: Path) -> None:
    found = scan_file(open_reader(str(checkpoint / "__0_0.distcp")))
    assert {each.member.partition(" > ")[0] for each in found} == {"a.weight", "b.weight"}
    assert not problems_of(checkpoint)


def test_a_pickle_in_the_place_of_a_chunk_is_found(checkpoint: Path) -> None:
    metadata = read_metadata(open_reader(str(checkpoint / ".metadata")))
    place = metadata.tensors["b.weight"].chunks[0][1]
    with (checkpoint / "__0_0.distcp").open("r+b") as file:
        file.seek(place.offset)
        file.write(ATTACK.ljust(place.length, b"\0"))
    found = scan_file(open_reader(str(checkpoint / "__0_0.distcp")))
    assert "os.system" in {named.path for each in found for named in each.names.named}


def test_bytes_that_belong_to_no_chunk_are_reported(checkpoint: Path) -> None:
    with (checkpoint / "__0_0.distcp").open("ab") as file:
        file.write(ATTACK)
    assert problems_of(checkpoint) == [f"{len(ATTACK)} bytes are not described by .metadata"]


def test_a_file_without_its_metadata_cannot_be_judged(checkpoint: Path) -> None:
    (checkpoint / ".metadata").write_bytes(b"\x80\x04N.")
    assert ".metadata, which describes the chunks in it, is invalid" in problems_of(checkpoint)[0]
    (checkpoint / ".metadata").unlink()
    assert problems_of(checkpoint) == [
        ".metadata, which describes the chunks in it, is not beside it"
    ]
