"""Non-checkpoint files are identified from a small part of their content."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from build import safetensors_of
from each import each
from non_checkpoints import GGUF, POINTER, SAFETENSORS, error_of, tarred, zipped
from weightctl import open_weights
from weightctl.formats.identify import identify_file
from weightctl.storage.files import open_reader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed


def numpy_of(save: Callable[..., object]) -> bytes:
    made = io.BytesIO()
    save(made, np.zeros(3))
    return made.getvalue()


# The start of a file, its name, and the message.
FILES: dict[str, tuple[bytes, str, str]] = {
    "a.npy": (numpy_of(np.save), "a NumPy array", "safetensors.numpy.save_file"),
    "packed.npz": (
        numpy_of(np.savez_compressed),
        "compressed arrays of NumPy or MLX",
        "safetensors.numpy",
    ),
    "model.gguf.gz": (gzip.compress(GGUF), "compressed with gzip", "gunzip"),
    "model.gguf.xz": (lzma.compress(GGUF), "compressed with xz", "unxz"),
    "model.gguf.bz2": (bz2.compress(GGUF), "compressed with bzip2", "bunzip2"),
    "model.zip": (zipped("m/config.json", "m/model.safetensors"), "a zip", "m/model.safetensors"),
    "behind.zip": (
        b"#!/bin/sh\n" + zipped("a"),
        "of an unsupported kind; it begins with",
        "formats:",
    ),
    "wheel.whl": (zipped("p/w.gguf", "p-1.dist-info/METADATA"), "a Python wheel", "p/w.gguf"),
    "plain.whl": (
        zipped("p-1.dist-info/METADATA"),
        "a Python wheel",
        "use a checkpoint, or the directory",
    ),
    "none.zip": (
        zipped(),
        "it is a zip file without a checkpoint; it contains nothing",
        "formats:",
    ),
    "pictures.zip": (zipped(*"abcd"), "it contains a, b, c, ...", "formats:"),
    "cut.zip": (
        zipped("a.npy")[:50],
        "a truncated file of NumPy arrays (.npz)",
        "check that the download is complete",
    ),
    "model.tar": (tarred("config.json", "model.gguf"), "a tar archive", "model.gguf"),
    "old.tar": (tarred("a" * 200), "a tar archive", "formats:"),
    "long.json": (b'{"added_tokens": [' + b"1, " * 50_000 + b"1]}", "a tokenizer", "directory"),
    "other.json": (b'{"a": 1}', "JSON, not weights", "formats:"),
    "list.json": (b'["error", "message"]', "JSON, not weights", "formats:"),
    "nested.bin": (
        b'{"errors": [{"code": 4, "message": "no\\u001b such blob"}]}',
        *(
            "an error message in JSON: `no such blob`",
            "check whether the download needs a login",
        ),
    ),
    "marked.gguf": (b"\xef\xbb\xbf<html><title>a\n b</title>", "a web page: `a b`", "login"),
    "wide.gguf": ("<html><title>b</title>".encode("utf-16"), "a web page: `b`", "login"),
    "graph.xml": (b'<?xml version="1.0"?><net name="a" version="11">', "OpenVINO model", "own"),
    "feed.xml": (b"<rss version='2'><a/></rss>", "XML", "formats:"),
    "loud.gguf": (
        b"Denied\x1b[2J!",
        "text, not weights: `Denied [2J!`",
        "check whether the download needs a login",
    ),
    "cut-letter.txt": ("ö".encode() * 40_000, "text, not weights", "formats:"),
    "a.onnx_data": (b"\xa5" * 99, "the weights of an ONNX model", "own library"),
    "v.data-00000-of-00002": (b"\xa5" * 99, "a part of a TensorFlow checkpoint", "own library"),
    "v.index": (b"\xa5" * 99 + bytes.fromhex("57fb808b247547db"), "the index of a TensorFlow", ""),
    "graph.pb": (b"\x0a\x02ab", "a TensorFlow graph", "own library"),
    "yolo.engine": (b"\x08\0\0\0" + b'{"a": 1}' + b"ftrt" + bytes(9), "a TensorRT engine", "built"),
    "tiny.gguf": (b"GGU", "3 bytes long", "download it again"),
    "m.gguf.part2of3": (b"\xa5" * 99, "a later piece", "cat m.gguf.part* > m.gguf"),
}


@each("name", FILES)
def test_a_file_is_called_what_it_is(name: str, tmp_path: Path) -> None:
    content, what, hint = FILES[name]
    (tmp_path / name).write_bytes(content)
    error = error_of(tmp_path / name)
    assert f"{name}: not a checkpoint that weightctl can read: it is " in error.message
    assert what in error.message
    assert hint in error.hint


def test_weights_of_openvino_are_told_by_the_graph_beside_them(tmp_path: Path) -> None:
    (tmp_path / "openvino_model.bin").write_bytes(b"\xa5" * 99)
    (tmp_path / "openvino_model.xml").write_text('<?xml version="1.0"?>\n<net name="a">')
    assert "the weights of an OpenVINO model" in error_of(tmp_path / "openvino_model.bin").message
    assert "the weights of an OpenVINO model" in error_of(tmp_path).message


@pytest.mark.parametrize("start", [0, 1 << 20, 3 << 20])
def test_zeros_are_counted_cheaply(start: int, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    with path.open("wb") as file:
        file.truncate(20 << 30)
    before = time.process_time()
    assert "nothing but zeros, according to 64 samples of its 21.5 GB" in error_of(path).message
    with path.open("r+b") as file:
        file.seek(start or 100)
        file.write(b"x")
        file.seek(0, os.SEEK_END)
        file.write(b"x")
    first = min(start or 100, 1 << 20)
    assert f"damaged: its first {first} bytes are zeros" in error_of(path).message
    assert time.process_time() - before < 1


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(
    st.sampled_from([
        b"", b"PK\3\4", b"PK\5\6", b"\x08\x08\x12", b"<html><title>", b'{"error":', b"\x06\0\0\0",
        zipped("a", "b"), tarred("a", "b"),
    ]),
    st.binary(max_size=600),
    st.integers(0, 3000),
)  # fmt: skip
def test_any_bytes_have_an_answer(tmp_path_factory: pytest.TempPathFactory, head: bytes,
                                  rest: bytes, place: int) -> None:  # fmt: skip
    content = bytearray(head)
    content[place:place] = rest
    path = tmp_path_factory.getbasetemp() / "any.bin"
    path.write_bytes(content)
    found = identify_file(open_reader(str(path)))
    assert found.message.isprintable()
    assert found.hint.isprintable()
    assert len(found.message) < 300


@pytest.mark.parametrize("name", ["a.gguf.incomplete", "a.gguf.crdownload", "a.gguf"])
def test_a_name_that_says_that_the_download_goes_on_is_believed(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(bytes(99))
    if name == "a.gguf":
        (tmp_path / "a.gguf.aria2").write_bytes(b"\0\1")
    says = "a.gguf.aria2 beside it shows that it is not" if name == "a.gguf" else "the suffix ."
    assert says in error_of(tmp_path / name).hint
    (tmp_path / name).write_bytes(GGUF[:-900])
    assert says in error_of(tmp_path / name).hint


def test_a_whole_file_that_aria2_still_fetches_has_a_note(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(GGUF)
    (tmp_path / "a.gguf.aria2").write_bytes(b"\0\1")
    notes = open_weights(tmp_path / "a.gguf").header.notes
    assert notes == ("a.gguf.aria2 shows that the download of a.gguf is not complete",)


@pytest.mark.parametrize(("name", "content"), [("a.safetensors", SAFETENSORS), ("a.gguf", GGUF)])
def test_what_is_missing_of_a_file_is_counted_to_its_end(
    name: str, content: bytes, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content[:-1300])
    missing = 1300 - (-400 % 32 if name == "a.gguf" else 0)
    whole = len(content) - 1300 + missing
    message = error_of(tmp_path / name).message
    assert f"`l.4` ends {missing} bytes after the end of the file: the file has" in message
    assert f"has {len(content) - 1300} bytes instead of {whole} (1." in message


def test_the_first_piece_of_a_file_says_how_it_is_joined(tmp_path: Path) -> None:
    (tmp_path / "a.gguf-split-a").write_bytes(GGUF[:-1300])
    assert "cat a.gguf-split-* > a.gguf" in error_of(tmp_path / "a.gguf-split-a").hint


@pytest.mark.parametrize(
    ("name", "content", "format_name"),
    [("model.bin", SAFETENSORS, "safetensors"), ("model.safetensors", GGUF, "gguf")],
)
def test_a_suffix_of_another_format_is_noted(
    name: str, content: bytes, format_name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    header = open_weights(tmp_path / name).header
    assert header.notes == (f"{name} is in {format_name} format despite its suffix",)
    assert header.format == format_name


def test_the_suffix_of_a_set_is_noted_once(tmp_path: Path) -> None:
    for number, name in enumerate("ab", 1):
        content = safetensors_of({name: ("I8", (1,), b"x")})
        (tmp_path / f"m-0000{number}-of-00002.bin").write_bytes(content)
    notes = open_weights(tmp_path).header.notes
    assert notes == (
        "m-00001-of-00002.bin and 1 more are in safetensors format despite their suffixes",
    )


@pytest.mark.parametrize("name", ["a.safetensors", "weights", "a.gguf.bak"])
def test_a_suffix_that_no_format_has_is_not_noted(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(SAFETENSORS)
    assert open_weights(tmp_path / name).header.notes == ()


def test_the_command_says_it_on_one_line_and_quickly(
    weightctl: Callable[..., Completed], tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").write_text(POINTER)
    done = weightctl("ls", tmp_path / "model.safetensors")
    assert done.returncode == 2
    error, hint = done.stderr.splitlines()
    assert error.startswith(
        f"error: {tmp_path}/model.safetensors: not a checkpoint that weightctl "
    )
    assert error.endswith(
        "it is a Git LFS pointer, and the actual file (4.92 GB) has not been downloaded"
    )
    assert hint.startswith("hint: install Git LFS if you do not have it, then run")
