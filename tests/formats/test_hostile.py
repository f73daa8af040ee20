"""Every file in `fixtures/hostile` is refused: cheaply, by a clear error, and by nothing else."""

from __future__ import annotations

import filecmp
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from weightctl import open_weights
from weightctl.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Completed

FIXTURES = Path(__file__).parents[2] / "fixtures"
HOSTILE = FIXTURES / "hostile"


class Case(NamedTuple):
    """What is said of a file: a phrase, and the byte of the file where the fault is."""

    phrase: str
    offset: int | None = None


GGUF = {
    "header-cut": Case("the file ends inside the GGUF header", 15),
    "metadata-cut": Case("the file ends where a u32 should stand", 35),
    "table-cut": Case("the file ends where a u64 should stand", 82),
    "version-4": Case("GGUF version 4 is not known", 4),
    "version-0": Case("GGUF version 0 is not known", 4),
    "tensor-count-lies": Case("claims 1152921504606846976 tensors", 24),
    "value-count-lies": Case("1152921504606846976 metadata values", 24),
    "key-length-lies": Case("a metadata key says it is 1152921504606846976 bytes long", 24),
    "string-length-lies": Case("the value of `key` says it is 1152921504606846976 bytes", 39),
    "array-count-lies": Case("`key` says it has 1152921504606846976 elements", 51),
    "string-array-lies": Case("the strings of `key` do not end inside the file", 51),
    "string-array-overflows": Case("the strings of `key` do not end inside the file", 51),
    "arrays-too-deep": Case("`key` nests arrays more than 16 deep", 231),
    "arrays-mixed": Case("`key` mixes arrays of string and u32", 75),
    "unknown-value-type": Case("`key` has metadata type 13", 35),
    "unknown-element-type": Case("`key` has metadata type 13", 39),
    "key-twice": Case("the metadata key `key` stands twice", 43),
    "key-empty": Case("a metadata key is empty", 24),
    "key-no-utf8": Case(r"the metadata key 'ke\udcff' is no UTF-8", 24),
    "name-length-lies": Case("a tensor name says it is 1152921504606846976 bytes long", 24),
    "name-twice": Case("two tensors are called `a`", 57),
    "name-no-utf8": Case(r"the tensor name 'na\udcffme' is no UTF-8", 24),
    "five-dimensions": Case("`a` has 5 dimensions; GGUF allows 4", 24),
    "rank-lies": Case("`a` has 200 dimensions", 24),
    "dimensions-overflow": Case("`a` has more elements than fit any file", 24),
    "empty-but-huge": Case("`a` has more elements than fit any file", 24),
    "alignment-0": Case("`general.alignment` is 0 (u32)", 57),
    "alignment-3": Case("`general.alignment` is 3 (u32)", 57),
    "alignment-u64": Case("`general.alignment` is 32 (u64)", 61),
    "alignment-string": Case("`general.alignment` is '32' (string)", 63),
    "offset-overlap": Case(
        "`b` starts at 32 of the tensor data, where 64 is next: it overlaps", 57
    ),
    "offset-gap": Case(
        "`b` starts at 64 of the tensor data, where 32 is next: it leaves a gap", 57
    ),
    "offset-unaligned": Case("`b` starts at 16 of the tensor data, where 32 is next", 57),
    "offset-huge": Case("`a` starts at 18446744073709551584 of the tensor data", 24),
    "tensor-past-end": Case("`a` ends 4064 bytes past the file", 24),
    "unknown-type-past-end": Case("`a` ends 512 bytes past the file", 24),
    "row-no-block": Case("`a` of shape (32, 33) is no whole number of Q8_0 blocks", 24),
    "scalar-block": Case("`a` of shape () is no whole number of Q8_0 blocks", 24),
}
UNSOUND = Case("the entry of tensor 'a' is not sound", 8)
NO_STRINGS = Case("`__metadata__` does not map strings to strings", 8)
SAFETENSORS = {
    "too-short": Case("the header says it is 8 bytes long; the file ends before that", 0),
    "length-past-end": Case("the header says it is 5000 bytes long; the file ends before", 0),
    "length-over-limit": Case("100000001 bytes long; the format allows 100 MB", 0),
    "no-utf8": Case("the header is no UTF-8", 11),
    "no-json": Case("the header is no JSON", 15),
    "no-object": Case("the header is no JSON: Extra data", 16),
    "not-closed": Case("the header is no JSON", 15),
    "deep": Case("is not sound", 8),
    "huge-integer": Case("the header is not sound: Exceeds the limit", 8),
    "name-twice": Case("`a` stands twice", 8),
    "key-twice": Case("`dtype` stands twice", 8),
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
    "overlap": Case("`b` starts at 8 of the tensor data, where 16 is next: it overlaps", 140),
    "gap": Case("`b` starts at 24 of the tensor data, where 16 is next: it leaves a gap", 157),
    "gap-at-start": Case("`a` starts at 8 of the tensor data, where 0 is next", 78),
    "trailing-bytes": Case("7 bytes behind the last tensor belong to none", 86),
    "past-end": Case("`a` ends 4080 bytes past the file", 75),
    "size-wrong": Case("`a` of shape [5] and dtype F32 does not fill 16 bytes", 8),
    "half-byte": Case("`a` of shape [3] and dtype F4 does not fill 1 bytes", 8),
    "metadata-list": NO_STRINGS,
    "metadata-number": NO_STRINGS,
    "metadata-nested": NO_STRINGS,
    "metadata-surrogate": NO_STRINGS,
    "name-surrogate": Case(r"the entry of tensor '\ud800' is not sound", 8),
}  # fmt: skip
NO_MAP = Case("the index has no `weight_map` from tensor names to file names")
DIRECTORIES = {
    "split-number-wrong": Case("model-00002-of-00002.gguf: `split.no` is 0, where 1 belongs"),
    "split-count-wrong": Case("model-00001-of-00002.gguf: `split.count` is 3, where 2 belongs"),
    "split-total-wrong": Case("`split.tensors.count` is 3, where 2 belongs"),
    "split-key-missing": Case("model-00002-of-00002.gguf: `split.no` is missing"),
    "split-same-tensor": Case("model-00002-of-00002.gguf: `a` is also in"),
    "split-part-missing": Case("1 of 2 parts are missing: `model-00002-of-00002.gguf`"),
    "split-byte-orders": Case("the parts are of different byte orders"),
    "index-part-missing": Case("1 of 2 parts are missing: `model-00002-of-00002.safetensors`"),
    "index-outside": Case("`../gguf-key-twice.gguf`, which is outside its directory"),
    "index-absolute": Case("the index names `/etc/passwd`, which is outside its directory"),
    "index-dots": Case("the index names `..`, which is outside its directory"),
    "index-no-strings": NO_MAP,
    "index-no-map": NO_MAP,
    "index-empty-map": NO_MAP,
    "index-no-object": Case("the index is no JSON object"),
    "index-no-json": Case("the index is no JSON: Expecting value"),
    "index-no-utf8": Case("the index is no JSON: 'utf-8'"),
    "index-deep": Case("the index is no JSON"),
    "index-tensor-missing": Case("1 tensors not in the part that the index names (`b`)"),
    "index-tensor-elsewhere": Case("2 tensors not in the part that the index names (`a`, `b`)"),
    "index-tensor-unlisted": Case("1 tensors in a part but not in the index (`c`)"),
    "index-same-tensor": Case("model-00002-of-00002.safetensors: `b` is also in"),
    "index-part-gguf": Case("model-00002-of-00002.safetensors: no safetensors file: it is gguf"),
    "no-checkpoint": Case("the directory holds no checkpoint that weightctl reads"),
    "several": Case("the directory holds several gguf checkpoints: one.gguf, two.gguf"),
}
OTHERS = {
    "empty.safetensors": Case("it is empty"),
    "empty.gguf": Case("it is empty"),
    "zeros.safetensors": Case("it begins with zeros"),
    "lfs-pointer.safetensors": Case("it is a Git LFS pointer, not the file itself"),
    "web-page.gguf": Case("it is a web page"),
    "zip.bin": Case("it looks like a PyTorch file"),
    "pickle.bin": Case("it looks like a PyTorch file"),
    "older-than-gguf.bin": Case("it is older than GGUF"),
    "text.txt": Case("its first bytes are those of no format known"),
    "none-00000-of-00000.gguf": Case("`split.count` is 0, where 1 belongs"),
    "beyond-00003-of-00002.gguf": Case("`split.no` is 2, where 0 belongs"),
    "many-00001-of-99999.gguf": Case("99998 of 99999 parts are missing"),
}
CASES: dict[str, Case] = {
    **{f"gguf-{name}.gguf": case for name, case in GGUF.items()},
    **{f"safetensors-{name}.safetensors": case for name, case in SAFETENSORS.items()},
    **DIRECTORIES,
    **OTHERS,
}


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    """What `ls` said of every file, all in one process, and what each cost."""
    paths = [str(HOSTILE / name) for name in CASES]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("measure.py")), *paths],
        capture_output=True,
        text=True,
        check=True,
    )
    return {Path(line["path"]).name: line for line in json.loads(done.stdout)}


def test_every_file_has_a_line_in_the_table() -> None:
    assert sorted(path.name for path in HOSTILE.iterdir()) == sorted(CASES)


def test_the_script_makes_these_very_files(tmp_path: Path) -> None:
    script = FIXTURES / "make_hostile.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True)
    made = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert made == {path.relative_to(HOSTILE) for path in HOSTILE.rglob("*") if path.is_file()}
    assert all(filecmp.cmp(tmp_path / name, HOSTILE / name, shallow=False) for name in made)


@pytest.mark.parametrize("name", CASES)
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
    assert len(error.message) < 500
    assert error.hint


@pytest.mark.parametrize("name", CASES)
def test_refusing_a_file_takes_little_time_and_memory(name: str, measured: dict[str, Any]) -> None:
    assert measured[name]["seconds"] < 1
    assert measured[name]["bytes"] < 100 << 20


@pytest.mark.parametrize("name", CASES)
def test_the_command_ends_with_2_and_one_error(name: str, measured: dict[str, Any]) -> None:
    said = measured[name]
    assert said["code"] == 2
    assert said["stdout"] == ""
    assert said["stderr"].startswith("error: ")
    assert "\nhint: " in said["stderr"]
    assert "Traceback" not in said["stderr"]
    assert said["stderr"].replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "name", ["gguf-name-no-utf8.gguf", "safetensors-deep.safetensors", "several"]
)
def test_the_installed_command_says_the_same(
    name: str, measured: dict[str, Any], weightctl: Callable[..., Completed]
) -> None:
    done = weightctl("ls", HOSTILE / name)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", measured[name]["stderr"])
