"""Importance matrices in GGUF and in the older format: their content, and errors in them."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest

from build import F16, F32, Gguf, Tensor
from each import each
from importances import dat_entry, imatrix_dat, imatrix_gguf
from weightctl.errors import FormatError
from weightctl.formats.imatrix import Importance, read_entries, read_importance

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

SUMS = np.arange(8, dtype=np.float32).reshape(2, 4)
IMATRIX = {"general.type": ("string", "imatrix")}


def numbers_of(found: Importance, name: str) -> list[float]:
    values = found.values[name]
    numbers: list[float] = values.reshape(1, values.size)[0].tolist()
    return numbers


def means(path: Path, name: str) -> list[float]:
    return numbers_of(read_importance(str(path)), name)


def counts(*numbers: float) -> NDArray[np.float32]:
    return np.array(numbers, np.float32)


@pytest.mark.parametrize("order", gguf.GGUFEndian)
def test_gguf_has_sums_for_each_matrix_and_how_many(tmp_path: Path, order: gguf.GGUFEndian) -> None:
    one, two = (SUMS[:1], counts(2)), (SUMS, counts(2, 4))
    path = imatrix_gguf(tmp_path / "i.gguf", {"a": one, "b": two}, order=order)
    found = read_importance(str(path))
    assert numbers_of(found, "a") == [0, 0.5, 1, 1.5]
    assert numbers_of(found, "b") == [0, 0.5, 1, 1.5, 1, 1.25, 1.5, 1.75]
    assert (found.path, found.dataset, found.chunks) == (str(path), "text.txt", 7)


def test_columns_of_a_matrix_that_was_never_used_are_all_worth_the_same(tmp_path: Path) -> None:
    path = imatrix_gguf(tmp_path / "i.gguf", {"a": (SUMS, counts(0, 2))})
    assert means(path, "a") == [1, 1, 1, 1, 2, 2.5, 3, 3.5]


def test_the_older_form_has_sums_over_evaluations(tmp_path: Path) -> None:
    path = imatrix_dat(tmp_path / "i.dat", {"a": (SUMS, 4), "b": (SUMS, 0), "c": (SUMS, -3)})
    found = read_importance(str(path))
    assert numbers_of(found, "a") == (SUMS.ravel() / 4).tolist()
    assert numbers_of(found, "b") == numbers_of(found, "c") == SUMS.ravel().tolist()
    assert (found.dataset, found.chunks) == ("text.txt", 7)


@pytest.mark.parametrize("tail", [b"", struct.pack("<i", 9), struct.pack("<ii", -1, 0)])
def test_the_older_form_may_end_behind_its_entries(tmp_path: Path, tail: bytes) -> None:
    path = str(imatrix_dat(tmp_path / "i.dat", {"a": (SUMS, 1)}, tail))
    found = read_importance(path)
    assert (found.dataset, found.chunks) == ("", 9 if len(tail) == 4 else 0)
    assert read_entries(path).counts_chunks


def test_quotients_are_those_of_float32(tmp_path: Path) -> None:
    sums = np.random.default_rng(1).uniform(0, 1e6, (1, 64)).astype(np.float32)
    path = imatrix_gguf(tmp_path / "i.gguf", {"a": (sums, counts(3))})
    assert means(path, "a") == (sums[0] / np.float32(3)).tolist()
    path = imatrix_dat(tmp_path / "i.dat", {"a": (sums, 3)})
    assert means(path, "a") == (sums[0] / np.float32(3)).tolist()


def read_all(path: Path) -> None:
    found = read_importance(str(path))
    for name in found.values:
        numbers_of(found, name)


def refused(path: Path, raw: bytes) -> FormatError:
    path.write_bytes(raw)
    with pytest.raises(FormatError) as caught:
        read_all(path)
    assert caught.value.path == str(path)
    assert caught.value.hint
    return caught.value


SOUND = struct.pack("<i", 2) + dat_entry(b"a", 1, SUMS) + dat_entry(b"b", 1, SUMS)
SECOND = 4 + len(dat_entry(b"a", 1, SUMS))  # the offset of the second entry


@each("end", range(SECOND - 3, len(SOUND)))
def test_the_older_form_cut_off_anywhere_says_where_it_ends(tmp_path: Path, end: int) -> None:
    error = refused(tmp_path / "i.dat", SOUND[:end])
    assert error.offset is not None
    assert error.offset <= end


def test_the_first_letter_of_a_name_tells_the_older_form(tmp_path: Path) -> None:
    error = refused(tmp_path / "i.dat", struct.pack("<ii", 1, 1) + b"a")
    assert "states 1 entries, which do not fit into its 9 bytes" in error.message


@pytest.mark.parametrize("end", range(1, 12))
def test_a_tail_that_is_cut_off_is_not_an_end(tmp_path: Path, end: int) -> None:
    tail = struct.pack("<ii", 7, 8) + b"text.txt"
    if end != 4:
        assert "ends after" in refused(tmp_path / "i.dat", SOUND + tail[:end]).message


@pytest.mark.parametrize(
    ("second", "offset", "problem"),
    [
        (struct.pack("<i", -1), SECOND, "the length of a name is -1"),
        (struct.pack("<i", 0), SECOND, "the length of a name is 0"),
        (struct.pack("<i", 1 << 30), SECOND + 4, "a name needs 1073741824 bytes"),
        (dat_entry(b"\xff\xfe", 1, SUMS), SECOND, "is not UTF-8"),
        (dat_entry(b"a", 1, SUMS), SECOND, "the entry `a` appears twice"),
        (dat_entry(b"b", 1, SUMS[:0]), SECOND + 9, "the length of the values of `b` is 0"),
        (
            struct.pack("<i1sii", 1, b"b", 1, 1 << 30),
            SECOND + 13,
            ("the values of `b` needs 4294967296 bytes"),
        ),
        (struct.pack("<i1sii", 1, b"b", 1, -5), SECOND + 9, "the values of `b` is -5"),
        (dat_entry(b"b", 1, counts(1, np.nan)), SECOND + 17, "has nan at element 1"),
        (dat_entry(b"b", 1, counts(np.inf)), SECOND + 13, "has inf at element 0"),
        (dat_entry(b"b", 1, counts(3, 2, -1)), SECOND + 21, "has -1 at element 2"),
    ],
)
def test_a_damaged_entry_of_the_older_form_is_named_with_its_place(
    tmp_path: Path, second: bytes, offset: int, problem: str
) -> None:
    room = bytes(17)  # so that the file is large enough for two entries
    raw = struct.pack("<i", 2) + dat_entry(b"a", 1, SUMS) + second
    error = refused(tmp_path / "i.dat", raw if len(second) > 17 else raw + room)
    assert problem in error.message
    assert error.offset == offset


@pytest.mark.parametrize("length", [1025, 4000])
def test_a_name_longer_than_any_is_refused(tmp_path: Path, length: int) -> None:
    raw = SOUND[:SECOND] + dat_entry(b"b" * length, 1, SUMS)
    assert "bytes, which is too long" in refused(tmp_path / "i.dat", raw).message


def test_more_entries_than_the_limit_are_refused(tmp_path: Path) -> None:
    raw = struct.pack("<i", 70_000) + SOUND[4:] + bytes(17 * 70_000)
    assert "70000 entries, more than the limit of 65536" in refused(tmp_path / "i.dat", raw).message


def test_matrices_are_read_one_by_one(tmp_path: Path) -> None:
    for path in (
        imatrix_gguf(tmp_path / "i.gguf", {"a": (SUMS, counts(2, 4))}),
        imatrix_dat(tmp_path / "i.dat", {"a": (SUMS / counts(2, 4)[:, None], 1)}),
    ):
        found = read_importance(str(path)).values["a"].reshape(2, 4)
        assert found.shape == (2, 4)
        assert found[1].tolist() == [1, 1.25, 1.5, 1.75]
        assert found[0].tolist() == [0, 0.5, 1, 1.5]
        with pytest.raises(IndexError):
            found[2]


def test_counts_may_be_of_other_parts_than_the_rows_of_the_tensor(tmp_path: Path) -> None:
    path = imatrix_gguf(tmp_path / "i.gguf", {"a": (SUMS, counts(1, 0, 2, 4))})
    found = read_importance(str(path)).values["a"].reshape(2, 4)
    assert found[0].tolist() == [0, 1, 1, 1]
    assert found[1].tolist() == [2, 2.5, 1.5, 1.75]


@pytest.mark.parametrize("suffix", ["gguf", "dat"])
def test_a_file_that_shrinks_after_it_was_opened_is_an_error(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "i"
    sums = np.ones((1, 4096), np.float32)
    if suffix == "gguf":
        imatrix_gguf(path, {"a": (sums, counts(1))})
    else:
        imatrix_dat(path, {"a": (sums, 1)})
    found = read_importance(str(path))
    os.truncate(path, 4096)
    with pytest.raises(FormatError, match="the file ends here"):
        numbers_of(found, "a")


def test_numbers_stay_in_the_file_until_they_are_asked_for(tmp_path: Path) -> None:
    path, most = tmp_path / "i.dat", 2**31 - 1
    with path.open("wb") as file:
        file.write(struct.pack("<ii1sii", 1, 1, b"a", 1, most))
        file.truncate(17 + 4 * most)  # a sparse file: nearly none of its 8 GB are on the disk
    program = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "from weightctl.formats.imatrix import read_importance\n"
        "values = read_importance(sys.argv[1]).values['a']\n"
        "assert values.size == 2**31 - 1\n"
        "try: values.reshape(1, values.size)[0]\n"
        "except ValueError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True,
                          env=os.environ | {"OPENBLAS_NUM_THREADS": "1"}, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "there is not enough memory for 2147483647 values of `a`" in done.stdout


def test_what_is_not_a_file_is_not_an_importance_matrix(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, problem in ((tmp_path, "not a directory"), (tmp_path / "pipe", "not a regular")):
        with pytest.raises(FormatError, match=problem) as caught:
            read_importance(str(path))
        assert ("directory" in caught.value.hint) is (path == tmp_path)
        assert "file" in caught.value.hint


def test_more_entries_than_bytes_are_refused_before_any_is_read(tmp_path: Path) -> None:
    error = refused(tmp_path / "i.dat", struct.pack("<i", 2_000_000_000) + SOUND[4:])
    assert "2000000000 entries, which do not fit" in error.message


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"", "it is empty"),
        (b"<!DOCTYPE html><html></html>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS"),
        (struct.pack("<ii", 0, 1) + b"a" * 40, "of an unsupported kind; it begins with"),
        (struct.pack("<ii", 1, -1) + b"a" * 40, "of an unsupported kind; it begins with"),
        (struct.pack("<Q", 2) + b"{}", "a safetensors checkpoint"),
    ],
)
def test_what_is_not_an_importance_matrix_is_called_what_it_is(
    tmp_path: Path, raw: bytes, what: str
) -> None:
    message = refused(tmp_path / "i.dat", raw).message
    assert "not an importance matrix: it is " in message
    assert what in message


def test_a_model_is_not_an_importance_matrix(tmp_path: Path) -> None:
    model = Gguf().file([Tensor("blk.0.attn_q.weight", (1, 4), F32, bytes(16))],
                        {"general.architecture": ("string", "qwen3")})  # fmt: skip
    message = refused(tmp_path / "model.gguf", model).message
    assert (
        "not an importance matrix: it is a GGUF with other content, such as a model (qwen3)"
        in message
    )
    assert "has no tensors" in refused(tmp_path / "i.gguf", Gguf().file([], IMATRIX)).message


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ([Tensor("a.in_sum2", (1, 4), F32, bytes(16))], "the matching `a.counts` is missing"),
        (
            [
                Tensor("a.in_sum2", (1, 4), F32, bytes(16)),
                Tensor("a.counts", (1, 1), F32, bytes(4)),
                Tensor("b.counts", (1, 1), F32, bytes(4)),
            ],
            "the matching `b.in_sum2` is missing",
        ),
        (
            [
                Tensor("a.in_sum2", (1, 4), F16, bytes(8)),
                Tensor("a.counts", (1, 1), F32, bytes(4)),
            ],
            "its values are stored as F16 instead of F32",
        ),
        (
            [
                Tensor("a.in_sum2", (1, 4), F32, bytes(16)),
                Tensor("a.counts", (3, 1), F32, bytes(12)),
            ],
            "4 values cannot be divided into 3 equal matrices",
        ),
        (
            [
                Tensor("a.in_sum2", (1, 4), F32, struct.pack("<4f", 1, 2, float("nan"), 4)),
                Tensor("a.counts", (1, 1), F32, bytes(4)),
            ],
            "`a` has nan at element 2",
        ),
        (
            [
                Tensor("a.in_sum2", (1, 4), F32, bytes(16)),
                Tensor("a.counts", (1, 1), F32, struct.pack("<f", float("inf"))),
            ],
            "a count of `a` is not finite",
        ),
    ],
)
def test_a_damaged_entry_of_gguf_is_named_with_its_place(
    tmp_path: Path, tensors: list[Tensor], problem: str
) -> None:
    error = refused(tmp_path / "i.gguf", Gguf().file(tensors, IMATRIX))
    assert problem in error.message
    assert error.offset is not None


def test_a_cut_off_gguf_says_what_is_missing(tmp_path: Path) -> None:
    path = imatrix_gguf(tmp_path / "i.gguf", {"a": (SUMS, counts(1, 1))})
    assert "check that the download is complete" in refused(path, path.read_bytes()[:-64]).hint
