"""An input that cannot be read or changes during a run leaves the old output."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from copying import contents
from outcomes import EACH_KIND, Kind, old_output, random_model, untouched
from weightctl import Plan, open_weights
from weightctl.errors import FormatError
from weightctl.write.save import save

if TYPE_CHECKING:
    from pathlib import Path

# So little that a conversion of a few megabytes is read and written in several pieces.
LITTLE = 4_000_000


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return random_model(tmp_path / "source", 3, 1024)


@pytest.fixture
def place(kind: Kind, tmp_path: Path) -> Path:
    """A directory with an old output."""
    place = tmp_path / "place"
    place.mkdir()
    old_output(kind, place, tensors=3)
    return place


@EACH_KIND
@pytest.mark.parametrize("at", [1, 2, 9])
def test_a_read_that_fails_names_the_file_and_the_byte_and_leaves_the_old_output(
    kind: Kind, at: int, source: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, where = kind.plan(open_weights(source), place)
    offsets: list[int] = []

    def read(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        offsets.append(offset)
        if len(offsets) == at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, buffers, offset)

    real = os.preadv
    monkeypatch.setattr(os, "preadv", read)
    refused = pytest.raises(FormatError, match="cannot be read: Input/output error")
    with untouched(place), refused as caught:
        save(plan, where, force=True, memory=LITTLE, threads=1)
    assert caught.value.path == str(source / "model.safetensors")
    assert caught.value.offset == offsets[at - 1]


@EACH_KIND
def test_an_input_that_is_cut_off_meanwhile_leaves_the_old_output(
    kind: Kind, source: Path, place: Path
) -> None:
    plan, where = kind.plan(open_weights(source), place)
    file = source / "model.safetensors"
    middle = file.stat().st_size // 2
    with untouched(place), pytest.raises(FormatError, match="the file ends here") as caught:
        save(
            plan, where, force=True, memory=LITTLE,
            progress=lambda _: os.truncate(file, middle),
        )  # fmt: skip
    assert (caught.value.path, caught.value.offset) == (str(file), middle)
    assert "try again" in caught.value.hint


@pytest.mark.parametrize("name", ["out.gguf", "out.safetensors", "out.pt"])
def test_an_input_that_is_cut_off_while_it_is_copied_leaves_the_old_output(
    name: str, source: Path, tmp_path: Path
) -> None:
    kind = Kind(name, "F32")
    (place := tmp_path / "place").mkdir()
    old_output(kind, place, tensors=3)
    plan, where = kind.plan(open_weights(source), place)
    file = source / "model.safetensors"
    middle = file.stat().st_size // 2
    with untouched(place), pytest.raises(FormatError, match="the file ends here") as caught:
        save(
            plan, where, force=True, memory=LITTLE, threads=1,
            progress=lambda _: os.truncate(file, middle),
        )  # fmt: skip
    assert (caught.value.path, caught.value.offset) == (str(file), middle)


def test_an_input_that_is_replaced_meanwhile_is_read_to_its_end(
    source: Path, tmp_path: Path
) -> None:
    file = source / "model.safetensors"
    weights = open_weights(file)
    expected = contents(weights)
    other = random_model(tmp_path / "other", 3, 8, seed=8) / "model.safetensors"
    save(
        Plan.copy(weights, "gguf"), tmp_path / "out.gguf", memory=LITTLE,
        progress=lambda _: other.replace(file) if other.exists() else None,
    )  # fmt: skip
    assert contents(open_weights(tmp_path / "out.gguf")) == expected


def test_an_input_that_is_written_to_meanwhile_is_an_error(
    tiny_llama: Path, tmp_path: Path
) -> None:
    source = tmp_path / "model.safetensors"
    save(Plan.copy(open_weights(tiny_llama), "safetensors"), source)
    pipe = tmp_path / "out.gguf"
    os.mkfifo(pipe)
    plan = Plan.copy(open_weights(source), "gguf")
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(pipe.read_bytes)
        with pytest.raises(FormatError, match="changed while it was read"):
            save(plan, pipe, progress=lambda _: os.utime(source))
        reader.result()
