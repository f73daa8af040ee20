"""Every file in `fixtures/hostile` is refused quickly, with a clear error and nothing else."""

from __future__ import annotations

import filecmp
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from each import each
from payloads import assert_cheap, assert_one_error, measured
from weightctl import open_weights
from weightctl.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Completed

FIXTURES = Path(__file__).parents[2] / "fixtures"
HOSTILE = FIXTURES / "hostile"


class Case(NamedTuple):
    """The expected phrase in the message for a file, and the byte offset of the fault."""

    phrase: str
    offset: int | None = None


GGUF = {
    "header-cut": Case("the file ends inside the GGUF header", 15),
    "metadata-cut": Case("the file ends where a u32 is expected", 35),
    "table-cut": Case("the file ends where a u64 is expected", 82),
    "version-4": Case("GGUF version 4 is not supported", 4),
    "version-0": Case("GGUF version 0 is not supported", 4),
    "tensor-count-lies": Case(
        "the header states 1152921504606846976 tensors and 0 metadata values", 24
    ),
    "value-count-lies": Case("1152921504606846976 metadata values", 24),
    "key-length-lies": Case("a metadata key has a stated length of 1152921504606846976 bytes", 24),
    "string-length-lies": Case(
        "the value of `key` has a stated length of 1152921504606846976 bytes", 39
    ),
    "array-count-lies": Case("`key` has a stated length of 1152921504606846976 elements", 51),
    "string-array-lies": Case("the strings of `key` extend past the end of the file", 51),
    "string-array-overflows": Case("the strings of `key` extend past the end of the file", 51),
    "arrays-too-deep": Case("`key` has arrays nested more than 16 levels deep", 231),
    "arrays-mixed": Case("`key` mixes arrays of string and u32", 75),
    "unknown-value-type": Case("`key` has metadata type 13", 35),
    "unknown-element-type": Case("`key` has metadata type 13", 39),
    "key-twice": Case("the metadata key `key` appears twice", 43),
    "key-empty": Case("a metadata key is empty", 24),
    "key-no-utf8": Case(r"the metadata key 'ke\udcff' is not UTF-8", 24),
    "name-length-lies": Case("a tensor name has a stated length of 1152921504606846976 bytes", 24),
    "name-twice": Case("two tensors are named `a`", 57),
    "name-no-utf8": Case(r"the tensor name 'na\udcffme' is not UTF-8", 24),
    "five-dimensions": Case("`a` has 5 dimensions; GGUF allows at most 4", 24),
    "rank-lies": Case("`a` has 200 dimensions", 24),
    "dimensions-overflow": Case("`a` has more elements than a file can store", 24),
    "empty-but-huge": Case("`a` has more elements than a file can store", 24),
    "alignment-0": Case("`general.alignment` is 0 (u32)", 57),
    "alignment-3": Case("`general.alignment` is 3 (u32)", 57),
    "alignment-u64": Case("`general.alignment` is 32 (u64)", 61),
    "alignment-string": Case("`general.alignment` is '32' (string)", 63),
    "offset-overlap": Case(
        "`b` starts at byte 32 of the tensor data instead of byte 64: it overlaps", 57
    ),
    "offset-gap": Case(
        "`b` starts at byte 64 of the tensor data instead of byte 32: it leaves a gap", 57
    ),
    "offset-unaligned": Case("`b` starts at byte 16 of the tensor data instead of byte 32: it", 57),
    "offset-huge": Case(
        "`a` starts at byte 18446744073709551584 of the tensor data instead of byte", 24
    ),
    "tensor-past-end": Case(
        "`a` ends 4064 bytes after the end of the file: the file has 96 bytes instead of "
        "4160 (4.06 kB of 4.16 kB are missing)",
        24,
    ),
    "unknown-type-past-end": Case("`a` ends 512 bytes after the end of the file: the file has", 24),
    "row-no-block": Case("`a` has shape (32, 33): a row is not a whole number of Q8_0 blocks", 24),
    "scalar-block": Case("`a` has shape (): a row is not a whole number of Q8_0 blocks", 24),
}
UNSOUND = Case("the entry of tensor 'a' is invalid", 8)
NO_STRINGS = Case("`__metadata__` is not a mapping from strings to strings", 8)
SAFETENSORS = {
    "too-short": Case(
        "length of the header is 8 bytes; at least 7 bytes of the file are missing", 0
    ),
    "length-past-end": Case(
        "of the header is 5000 bytes; at least 4922 bytes of the file are missing", 0),
    "length-over-limit": Case(
        "the stated length of the header is 100000001 bytes; the format allows at most 100 MB", 0),
    "no-utf8": Case("the header is not UTF-8", 11),
    "no-json": Case("the header is not valid JSON", 15),
    "no-object": Case("the header is not valid JSON: Extra data", 16),
    "not-closed": Case("the header is not valid JSON", 15),
    "deep": Case("the header is invalid", 8),
    "huge-integer": Case("the header is invalid: Exceeds the limit", 8),
    "name-twice": Case("`a` appears twice", 8),
    "key-twice": Case("`dtype` appears twice", 8),
    **dict.fromkeys(
        [
            "entry-list", "entry-string", "entry-null", "entry-empty", "dtype-number",
            "dtype-escape", "shape-nan", "shape-infinite", "shape-negative", "shape-float",
            "shape-bool", "shape-huge", "shape-overflow", "shape-empty-but-huge", "shape-string",
            "shape-65-dimensions", "offset-nan", "offset-negative", "offset-float", "offset-bool",
            "offset-huge", "offset-of-4300-digits", "offsets-three", "offsets-reversed",
        ],
        UNSOUND,
    ),
    "overlap": Case("`b` starts at byte 8 of the tensor data instead of byte 16: it overlaps", 140),
    "gap": Case("at byte 24 of the tensor data instead of byte 16: it leaves a gap", 157),
    "gap-at-start": Case("`a` starts at byte 8 of the tensor data instead of byte 0: it", 78),
    "trailing-bytes": Case("7 bytes after the last tensor belong to no tensor", 86),
    "past-end": Case(
        "`a` ends 4080 bytes after the end of the file: the file has 91 bytes instead of "
            "4171 (4.08 kB of 4.17 kB are missing)",
        75,
    ),
    "size-wrong": Case("`a` of shape [5] and dtype F32 does not match its 16 bytes of data", 8),
    "half-byte": Case("`a` of shape [3] and dtype F4 does not match its 1 bytes of data", 8),
    "metadata-list": NO_STRINGS,
    "metadata-number": NO_STRINGS,
    "metadata-nested": NO_STRINGS,
    "metadata-surrogate": NO_STRINGS,
    "name-surrogate": Case(r"the entry of tensor '\ud800' is invalid", 8),
}  # fmt: skip
NO_MAP = Case("the index has no `weight_map` from tensor names to file names")
DIRECTORIES = {
    "split-number-wrong": Case("`split.no` is 0, but 1 is expected"),
    "split-count-wrong": Case("`split.count` is 3, but 2 is expected"),
    "split-total-wrong": Case("`split.tensors.count` is 3, but 2 is expected"),
    "split-key-missing": Case("model-00002-of-00002.gguf: `split.no` is missing"),
    "split-same-tensor": Case("model-00002-of-00002.gguf: `a` is also in"),
    "split-part-missing": Case("1 of 2 parts is missing: `model-00002-of-00002.gguf`"),
    "split-byte-orders": Case("the parts have different byte orders"),
    "index-part-missing": Case("1 of 2 parts is missing: `model-00002-of-00002.safetensors`"),
    "index-outside": Case("`../gguf-key-twice.gguf`, which is not a file in the directory"),
    "index-absolute": Case(
        "the index refers to `/etc/passwd`, which is not a file in the directory of the index"
    ),
    "index-dots": Case(
        "the index refers to `..`, which is not a file in the directory of the index"
    ),
    "index-no-strings": NO_MAP,
    "index-no-map": NO_MAP,
    "index-empty-map": NO_MAP,
    "index-no-object": Case("the index is not a JSON object"),
    "index-no-json": Case("the index is not valid JSON: it is a web page"),
    "index-no-utf8": Case("the index is not valid JSON: 'utf-8'"),
    "index-deep": Case("the index is not valid JSON"),
    "index-tensor-missing": Case("1 tensor not in the part that the index names (`b`)"),
    "index-tensor-elsewhere": Case("2 tensors not in the part that the index names (`a`, `b`)"),
    "index-tensor-unlisted": Case("1 tensor in a part but not in the index (`c`)"),
    "index-part-gguf": Case("not a safetensors file: it is gguf"),
    "index-all-wrong": Case(
        "the index and its parts do not match:\n"
        "  1 of 4 parts is missing: `gone.safetensors`\n"
        "  model-00002-of-00004.safetensors: it is a Git LFS pointer, and the actual file (4.92 "
        "GB) has not been downloaded\n"
        "  model-00003-of-00004.safetensors, byte 70: `c` ends 9 bytes after the end of the "
        "file: the file has 77 bytes instead of 86 (9 B of 86 B are missing)\n"
        "  1 file is named like parts, but not in the index (`model-00004-of-00004.safetensors`)\n"
        "  1 tensor not in the part that the index names (`d`)\n"
        "  1 tensor in a part but not in the index (`x`)"
    ),
    "index-extra-part": Case(
        "1 file is named like parts, but not in the index (`model-00002-of-00004.safetensors`)"
    ),
    "no-checkpoint": Case(
        "the directory has no checkpoint that weightctl can read: it contains `readme.txt`"
    ),
    "only-onnx": Case("`model.onnx` is an ONNX model, written by pytorch"),
    "only-tfjs": Case("`group1-shard1of1.bin` is a shard of a TensorFlow.js model"),
    "only-ctranslate2": Case("`model.bin` is a CTranslate2 model (WhisperSpec)"),
    "all-wrong": Case(
        "`pytorch_model.bin` is a Git LFS pointer, and the actual file (4.92 GB) has not been "
        "downloaded"
    ),
    "all-pointers": Case("...: each of these 4 files is a Git LFS pointer"),
    "deeper": Case("its directories `unet`, `vae` contain checkpoints"),
    "models--a--b": Case("its directories `snapshots/2222`, `snapshots/1111` contain checkpoints"),
    "several": Case("the directory contains several gguf checkpoints: one.gguf, two.gguf"),
}
OTHERS = {
    "empty.safetensors": Case("it is empty"),
    "empty.gguf": Case("it is empty"),
    "three-bytes.gguf": Case("it is only 3 bytes long, too short for a checkpoint"),
    "zeros.safetensors": Case("it is nothing but zeros, 4096 bytes"),
    "zeros-first.gguf": Case("it is damaged: its first 1000 bytes are zeros"),
    "lfs-pointer.safetensors": Case(
        "a Git LFS pointer, and the actual file (4.92 GB) has not been downloaded"
    ),
    "unfinished.safetensors.incomplete": Case("it is nothing but zeros, 512 bytes"),
    "piece.gguf-split-b": Case("it is a later piece of a split file, according to its name"),
    "web-page.gguf": Case("it is a web page: `Sign in`"),
    "web-page-escapes.gguf": Case("it is a web page: `<Sign [31m in>"),
    "error-json.safetensors": Case("it is an error message in JSON: `Repository not found`"),
    "error-xml.bin": Case("it is an error message in XML: `Access Denied`"),
    "error-text.safetensors": Case("it is text, not weights: `Invalid username or password.`"),
    "config.json": Case("it is a model's config, not its weights"),
    "tokenizer.json": Case("it is a tokenizer, not weights"),
    "tfjs-model.json": Case("it is a TensorFlow.js model"),
    "index-renamed.json": Case(
        "it is the index of a split checkpoint, but not named NAME.safetensors.index.json"
    ),
    "json-deep.json": Case("it is text, not weights: `[[[["),
    "json-cut.json": Case("it is only 8 bytes long, too short for a checkpoint"),
    "text.txt": Case("it is text, not weights: `Call me Ishmael. Some years ago, never mind"),
    "older-ggml.bin": Case("it is a ggml file, a format older than GGUF"),
    "older-ggmf.bin": Case("it is a ggml file (ggmf), a format older than GGUF"),
    "older-ggjt.bin": Case("it is a ggml file (ggjt), a format older than GGUF"),
    "older-ggla.bin": Case("it is a ggml LoRA adapter, a format older than GGUF"),
    "onnx.bin": Case("it is an ONNX model, written by pytorch"),
    "onnx-length-lies.onnx": Case("it is of an unsupported kind; it begins with 08 08 12 ff"),
    "ctranslate2.bin": Case("it is a CTranslate2 model (WhisperSpec)"),
    "keras.h5": Case("the structure of the HDF5 file is invalid"),
    "array.npy": Case("it is a NumPy array (.npy)"),
    "lite.tflite": Case("it is a TensorFlow Lite model"),
    "saved_model.pb": Case("it is a TensorFlow SavedModel"),
    "core.mlmodel": Case("it is a Core ML model"),
    "tensorrt.engine": Case("it is a TensorRT engine"),
    "group1-shard1of2.bin": Case("it is a shard of a TensorFlow.js model"),
    "program.bin": Case("it is a program or a library, not weights"),
    "unknown.bin": Case("it is of an unsupported kind; it begins with 80 81 82 83 84 85 86 87"),
    "zipped-model.zip": Case("it is a zip file, not a checkpoint"),
    "zip-cut.zip": Case("it is a truncated zip file: its end is missing (the file has 100 bytes)"),
    "zip-directory-lies.zip": Case("it is a zip file without a checkpoint"),
    "zip-names-lie.zip": Case("it is a zip file without a checkpoint"),
    "keras.keras": Case("the structure of the HDF5 file is invalid"),
    "office.bin": Case("it is an office document"),
    "arrays.npz": Case("`a.npy` is not an array of NumPy", 35),
    "notes.tar": Case("it is a tar archive; it contains readme.txt"),
    "nemo.nemo": Case("it is a NeMo model (.nemo)"),
    "tar-size-lies.tar": Case("it is a tar archive; it contains a.txt"),
    "packed.gz": Case("it is compressed with gzip"),
    "none-00000-of-00000.gguf": Case("`split.count` is 0, but 1 is expected"),
    "beyond-00003-of-00002.gguf": Case("`split.no` is 2, but 0 is expected"),
    "many-00001-of-99999.gguf": Case("99998 of 99999 parts are missing"),
}
CASES: dict[str, Case] = {
    **{f"gguf-{name}.gguf": case for name, case in GGUF.items()},
    **{f"safetensors-{name}.safetensors": case for name, case in SAFETENSORS.items()},
    **DIRECTORIES,
    **OTHERS,
}

# Sets in which only other parts are missing.
LISTED = ["split-part-missing", "index-part-missing"]


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    """The output of `ls` for every file, all in one process, with time and memory."""
    return measured(HOSTILE, CASES)


def test_every_file_has_a_line_in_the_table() -> None:
    assert sorted(path.name for path in HOSTILE.iterdir()) == sorted(CASES)


def test_the_script_makes_these_very_files(tmp_path: Path) -> None:
    script = FIXTURES / "make_hostile.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True)
    made = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert made == {path.relative_to(HOSTILE) for path in HOSTILE.rglob("*") if path.is_file()}
    assert all(filecmp.cmp(tmp_path / name, HOSTILE / name, shallow=False) for name in made)


@each("name", CASES)
def test_the_error_says_what_is_wrong_and_where(name: str) -> None:
    case = CASES[name]
    with pytest.raises(FormatError) as caught:
        open_weights(HOSTILE / name)
    error = caught.value
    assert error.path.startswith(str(HOSTILE / name))
    assert str(error).startswith(error.path)
    assert case.phrase in error.message
    assert error.offset == case.offset
    assert case.offset is None or f", byte {case.offset}: " in error.message
    assert max(map(len, error.message.split("\n"))) < 500
    assert len(error.message) < 1000
    assert error.hint


def test_more_values_than_the_bytes_can_hold_are_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "few.gguf"
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 3) + bytes(20))
    with pytest.raises(FormatError, match="3 metadata values, but only 20 bytes follow it"):
        open_weights(file)


@each("name", CASES)
def test_refusing_a_file_takes_little_time_and_memory(name: str, figures: dict[str, Any]) -> None:
    assert_cheap(figures[name])


@pytest.mark.parametrize("name", LISTED)
def test_what_exists_of_a_set_is_listed_with_a_note(name: str, figures: dict[str, Any]) -> None:
    assert (figures[name]["code"], figures[name]["stderr"].count("\n")) == (0, 1)
    assert figures[name]["stderr"].startswith("note: part 1 of ")


def test_a_directory_with_several_models_is_listed_and_otherwise_refused(
    figures: dict[str, Any], weightctl: Callable[..., Completed]
) -> None:
    assert (figures["several"]["code"], figures["several"]["stderr"]) == (0, "")
    done = weightctl("stat", HOSTILE / "several")
    assert_one_error({"code": done.returncode, "stdout": done.stdout, "stderr": done.stderr})


@each("name", [name for name in CASES if name not in (*LISTED, "several")])
def test_the_command_ends_with_2_and_one_error(name: str, figures: dict[str, Any]) -> None:
    assert_one_error(figures[name])


@pytest.mark.parametrize(
    "name", ["gguf-name-no-utf8.gguf", "safetensors-deep.safetensors", "index-dots"]
)
def test_the_installed_command_says_the_same(
    name: str, figures: dict[str, Any], weightctl: Callable[..., Completed]
) -> None:
    done = weightctl("ls", HOSTILE / name)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", figures[name]["stderr"])
