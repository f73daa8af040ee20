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


def inputs(columns: int, rows: int = 8) -> NDArray[np.float32]:
    return np.random.default_rng(columns).integers(-9, 9, (rows, columns)).astype(np.float32)


@pytest.mark.parametrize("order", gguf.GGUFEndian)
@pytest.mark.parametrize("columns", [1, 5, 64, 150])
def test_a_hessian_is_the_mean_of_products_and_is_shared(
    tmp_path: Path, columns: int, order: gguf.GGUFEndian
) -> None:
    x = inputs(columns)
    entry = (np.square(x).sum(0)[None], counts(8))
    entries = {"a": entry, "b": entry, "c": entry}
    path = imatrix_gguf(tmp_path / "i.gguf", entries, order=order,
                        products={"b": x.T @ x}, shared={"a": "b"})  # fmt: skip
    found = read_importance(str(path))
    assert found.values.keys() == {"a", "b", "c"}
    assert found.hessians.keys() == {"a", "b"}
    hessian = found.hessians["a"]
    assert hessian is found.hessians["b"]
    assert (hessian.path, hessian.name, hessian.columns) == (str(path), "b", columns)
    assert hessian.count == 8
    read = hessian.read()
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, x.T @ x / 8)
    np.testing.assert_array_equal(read.diagonal(), numbers_of(found, "a"))


@pytest.mark.parametrize(
    ("index", "value", "problem"),
    [
        ((0, 0), -1, "`a` has -1 at element 0 of its products"),
        ((2, 3), np.nan, "`a` has nan at element 140 of its products"),
        ((69, 69), -np.inf, "`a` has -inf at element 2484 of its products"),
    ],
)
def test_products_that_cannot_be_are_named_with_their_place(
    tmp_path: Path, index: tuple[int, int], value: float, problem: str
) -> None:
    x = inputs(70)
    square = x.T @ x
    square[index] = value
    path = imatrix_gguf(tmp_path / "i.gguf", {"a": (square.diagonal()[None], counts(8))},
                        products={"a": square})  # fmt: skip
    hessian = read_importance(str(path)).hessians["a"]
    with pytest.raises(FormatError, match=problem) as caught:
        hessian.read()
    assert caught.value.hint
    assert caught.value.offset is not None
    raw = path.read_bytes()[caught.value.offset :][:4]
    np.testing.assert_array_equal(np.frombuffer(raw, "<f4"), np.float32(value))


@pytest.mark.parametrize("count", [0, -3, np.nan, np.inf])
def test_products_without_a_count_are_refused(tmp_path: Path, count: float) -> None:
    x = inputs(4)
    path = imatrix_gguf(tmp_path / "i.gguf", {"a": (SUMS[:1], counts(count))},
                        products={"a": x.T @ x})  # fmt: skip
    with pytest.raises(FormatError, match="the products of `a` have a count of"):
        read_importance(str(path)).hessians["a"].read()


def test_products_that_are_cut_off_are_refused(tmp_path: Path) -> None:
    x = inputs(150)
    path = imatrix_gguf(tmp_path / "i.gguf", {"a": (np.square(x).sum(0)[None], counts(8))},
                        products={"a": x.T @ x})  # fmt: skip
    hessian = read_importance(str(path)).hessians["a"]
    os.truncate(path, path.stat().st_size - 4096)
    with pytest.raises(FormatError, match="the file ends here"):
        hessian.read()
    with pytest.raises(FormatError):
        read_importance(str(path))


def entry_of(name: str, columns: int = 4, matrices: int = 1) -> list[Tensor]:
    return [
        Tensor(f"{name}.in_sum2", (matrices, columns), F32, bytes(4 * matrices * columns)),
        Tensor(f"{name}.counts", (matrices, 1), F32, bytes(4 * matrices)),
    ]


def products_of(name: str, size: int = 10) -> Tensor:
    return Tensor(f"{name}.in_products", (size,), F32, bytes(4 * size))


NAMES, PLACES = "weightctl.in_products.tensors", "weightctl.in_products.stored"
BOTH = [*entry_of("a"), *entry_of("b")]


@pytest.mark.parametrize(
    ("tensors", "names", "places", "problem"),
    [
        ([*BOTH, products_of("a")], None, None, f"the metadata `{NAMES}` does not list it"),
        ([*BOTH, products_of("a")], ["b"], ["a"], f"the metadata `{NAMES}` does not list it"),
        ([*BOTH, products_of("a")], ["a"], None, "are not lists of equally many names"),
        ([*BOTH, products_of("a")], None, ["a"], "are not lists of equally many names"),
        ([*BOTH, products_of("a")], ["a", "b"], ["a"], "are not lists of equally many names"),
        ([*BOTH, products_of("a")], ["a", "a"], ["a", "a"], "are not lists of equally many"),
        ([*BOTH, products_of("a")], [], [], "are not lists of equally many names"),
        ([*BOTH, products_of("a")], ["a", "b"], ["a", "b"], "the products of `b` are missing"),
        ([*BOTH, products_of("a")], ["a", "c"], ["a", "a"], "`c` shares it, but is not one"),
        ([*entry_of("a"), *entry_of("b", 3), products_of("a")], ["a", "b"], ["a", "a"],
         "`b` shares it, but is not one matrix with as many columns"),
        ([*entry_of("a"), *entry_of("b", 2, 2), products_of("a")], ["a", "b"], ["a", "a"],
         "`b` shares it, but is not one matrix"),
        ([*BOTH, products_of("c")], ["c"], ["c"], "the matching `c.in_sum2` is missing or empty"),
        ([*BOTH, products_of("a", 16)], ["a"], ["a"], "16 values are not the products of 4"),
        ([*entry_of("a", 2, 2), products_of("a")], ["a"], ["a"], "`a` has 2 matrices instead of"),
        ([*BOTH, Tensor("a.in_products", (10,), F16, bytes(20))], ["a"], ["a"],
         "its values are stored as F16 instead of F32"),
        (BOTH, ["a"], ["a"], "the products of `a` are missing: the file has no `a.in_products`"),
    ],
)  # fmt: skip
def test_a_damaged_header_of_products_is_refused(
    tmp_path: Path, tensors: list[Tensor], names: list[str] | None, places: list[str] | None,
    problem: str,
) -> None:  # fmt: skip
    lists = {NAMES: names, PLACES: places}
    stated = {key: ("array[string]", each) for key, each in lists.items() if each is not None}
    error = refused(tmp_path / "i.gguf", Gguf().file(tensors, IMATRIX | stated))
    assert problem in error.message


def test_lists_of_products_of_another_type_are_refused(tmp_path: Path) -> None:
    stated = {NAMES: ("u32", 1), PLACES: ("array[u32]", [1])}
    raw = Gguf().file([*BOTH, products_of("a")], IMATRIX | stated)
    assert "are not lists of equally many" in refused(tmp_path / "i.gguf", raw).message
