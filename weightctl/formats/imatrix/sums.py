"""Sums of an importance matrix, in memory: read to be merged, and written in both formats."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.dtype import DType
from weightctl.errors import ConversionError, FormatError
from weightctl.formats import gguf
from weightctl.formats.imatrix import read_entries
from weightctl.formats.imatrix.gguf import PRODUCTS, PRODUCTS_IN, PRODUCTS_OF
from weightctl.weights.info import TensorInfo
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from numpy.typing import NDArray

_MOST_INTEGER = 2**31 - 1
# The bytes of products that are copied at a time.
_PART = 2**22


class ColumnSums(NamedTuple):
    """The sums of squares of the columns of a tensor's matrices, and how many rows were added.

    `squares` are float64[matrices, columns], and `counts` int64[matrices].
    """

    squares: NDArray[np.float64]
    counts: NDArray[np.int64]


@dataclass(slots=True)
class ImportanceSums:
    """The sums of an importance matrix, by the names of the tensors in GGUF.

    `datasets` are the names of the texts, and `chunk_size` is the number of tokens of a chunk.
    `products` has the paths of files with the products of columns, float32, the upper triangle row
    by row. Tensors with the same inputs have the same file.
    """

    chunk_size: int
    entries: dict[str, ColumnSums] = field(default_factory=dict[str, ColumnSums])
    datasets: tuple[str, ...] = ()
    products: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def chunks(self) -> int:
        """The number of whole chunks that were added, as llama-imatrix counts them."""
        most = max((int(each.counts.max()) for each in self.entries.values()), default=0)
        return most // self.chunk_size

    def add(self, other: ImportanceSums, where: str) -> None:
        """Add other sums; `where` names them in errors.

        Raises `ConversionError` if a tensor has another number of columns or of matrices there.
        """
        for name, (squares, counts) in other.entries.items():
            own = self.entries.get(name)
            if own is None:
                self.entries[name] = ColumnSums(squares.copy(), counts.copy())
                continue
            if own.squares.size != squares.size:
                raise _differs(name, where, own.squares.size, squares.size)
            first, second = _in_equal_matrices(own, ColumnSums(squares, counts))
            if first.squares.shape != second.squares.shape:
                raise _differs(name, where, len(own.counts), len(counts))
            self.entries[name] = ColumnSums(
                first.squares + second.squares, first.counts + second.counts
            )
        self.datasets = tuple(dict.fromkeys((*self.datasets, *other.datasets)))


def _differs(name: str, where: str, own: int, other: int) -> ConversionError:
    return ConversionError(
        f"`{name}` has {other} values in {where}, but {own} in the others",
        hint="merge only importance matrices of the same model",
    )


def _in_equal_matrices(*given: ColumnSums) -> Iterator[ColumnSums]:
    """Yield sums that have a count for each matrix, also those with one count for all matrices."""
    most = max(len(each.counts) for each in given)
    for squares, counts in given:
        if len(counts) == 1:
            yield ColumnSums(squares.reshape(most, -1), np.repeat(counts, most))
        else:
            yield ColumnSums(squares, counts)


def read_sums(path: str, chunk_size: int) -> ImportanceSums:
    """Read all values of an importance matrix.

    The counts of the older format (`.dat`) are numbers of chunks, which are multiplied with
    `chunk_size`. Raises `FormatError` if the file or a value is invalid.
    """
    about = read_entries(path)
    factor = chunk_size if about.counts_chunks else 1
    made = ImportanceSums(chunk_size, datasets=tuple(about.datasets))
    for entry in about.entries:
        squares = entry.sums.read(0, entry.sums.size).astype(np.float64)
        counts = entry.counts.read(0, entry.counts.size).astype(np.float64)
        is_sound = (
            np.isfinite(squares).all()
            and (squares >= 0).all()
            and np.isfinite(counts).all()
            and (counts >= 0).all()
        )
        if not is_sound:
            raise FormatError(
                entry.path,
                entry.offset,
                f"`{entry.name}` has values that are not sums of squares or counts",
                hint="the file is damaged, or the model computed invalid numbers; create it again",
            )
        made.entries[entry.name] = ColumnSums(
            squares.reshape(len(counts), -1) * factor,
            np.rint(counts).astype(np.int64) * factor,
        )
    return made


def write_gguf(sums: ImportanceSums) -> Iterator[bytes]:
    """Yield the content of a GGUF file as llama-imatrix writes it, with the products if any.

    Tensors are sorted by name, and products are stored under the first name. They are read from
    their files now. Raises `ConversionError` if a name is too long for GGUF, and `FormatError` if a
    file of products does not have its size.
    """
    metadata = {
        "general.type": MetadataValue("string", "imatrix"),
        "imatrix.datasets": MetadataValue("array[string]", list(sums.datasets)),
        "imatrix.chunk_count": MetadataValue("u32", sums.chunks),
        "imatrix.chunk_size": MetadataValue("u32", sums.chunk_size),
    }
    stored: dict[str, str] = {}
    for name in sorted(sums.products):
        stored.setdefault(sums.products[name], name)
    if stored:
        places = {name: stored[sums.products[name]] for name in sorted(sums.products)}
        metadata |= {
            PRODUCTS_OF: MetadataValue("array[string]", [*places]),
            PRODUCTS_IN: MetadataValue("array[string]", [*places.values()]),
        }
    contents: dict[str, NDArray[np.float64] | str] = {}
    infos: list[TensorInfo] = []
    encoding = DType.float32.encoding
    for each in sorted(sums.entries):
        for name, array in _list(sums, each):
            contents[name] = array
            infos.append(TensorInfo(name, array.shape, encoding))
        path = sums.products.get(each)
        if path is not None and stored[path] == each:
            columns = sums.entries[each].squares.size
            contents[each + PRODUCTS] = path
            infos.append(TensorInfo(each + PRODUCTS, (columns * (columns + 1) // 2,), encoding))
    if problems := gguf.unfit(infos):
        raise ConversionError(problems[0], hint="write the older format: use the suffix .dat")
    layout = gguf.layout(infos, metadata)
    yield layout.header
    position = len(layout.header)
    for info, offset in zip(infos, layout.offsets, strict=True):
        yield bytes(offset - position)
        content = contents[info.name]
        if isinstance(content, str):
            yield from _read_exactly(content, info.nbytes)
        else:
            yield content.astype("<f4").tobytes()
        position = offset + info.nbytes
    yield bytes(layout.nbytes - position)


def _read_exactly(path: str, nbytes: int) -> Iterator[bytes]:
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == nbytes:
            while part := file.read(min(nbytes, _PART)):
                nbytes -= len(part)
                yield part
    if nbytes:
        raise FormatError(
            path,
            None,
            "the file was changed during the run",
            hint="remove its directory, and run the same command again",
        )


def refuse_long_names(names: Collection[str]) -> None:
    """Raise `ConversionError` if products cannot be stored under a name, before any is measured."""
    infos = [TensorInfo(name + PRODUCTS, (1,), DType.float32.encoding) for name in names]
    if problems := gguf.unfit(infos):
        raise ConversionError(problems[0], hint="measure without --hessian (hessian)")


def _list(sums: ImportanceSums, name: str) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yield the two tensors of an entry; ggml leaves out a first dimension of 1."""
    squares, counts = sums.entries[name]
    yield f"{name}.in_sum2", squares if len(squares) > 1 else squares[0]
    as_float = counts.astype(np.float64)
    yield f"{name}.counts", as_float[:, None] if len(counts) > 1 else as_float


def write_dat(sums: ImportanceSums) -> bytes:
    """Return the content of the older format, as llama-imatrix writes it.

    Entries without any count are left out, and matrices without a count have the value 1. The file
    has means, multiplied with the number of chunks, and names the last text.
    """
    stored = {name: each for name, each in sorted(sums.entries.items()) if each.counts.any()}
    made = [struct.pack("<i", len(stored))]
    for name, (squares, counts) in stored.items():
        chunks = -(-int(counts.max()) // sums.chunk_size)
        mean = np.where(counts[:, None] > 0, squares / np.maximum(counts, 1)[:, None], 1.0)
        made += [
            _pack_text(name.encode()),
            struct.pack("<ii", chunks, squares.size),
            (mean * chunks).astype("<f4").tobytes(),
        ]
    dataset = sums.datasets[-1] if sums.datasets else ""
    made += [
        struct.pack("<i", min(sums.chunks, _MOST_INTEGER)),
        _pack_text(dataset.encode("utf-8", "surrogateescape")),
    ]
    return b"".join(made)


def _pack_text(text: bytes) -> bytes:
    return struct.pack("<i", len(text)) + text
