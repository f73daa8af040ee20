"""Importance matrices in GGUF: `NAME.in_sum2` and `NAME.counts` for each matrix of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import FormatError
from weightctl.formats.imatrix.entry import ImportanceEntry, Recorded
from weightctl.formats.open.parts import open_files
from weightctl.weights.source import FileSource

if TYPE_CHECKING:
    from weightctl.codecs.base import F32
    from weightctl.storage.base import Reader
    from weightctl.weights.info import Header

_MAGIC = b"GGUF"
_SUMS = ".in_sum2"
_COUNTS = ".counts"
_FAULTY = "the file is damaged or a faulty tool wrote it"


def sniff(file: Reader) -> bool:
    """Whether a file begins with the magic bytes of GGUF."""
    return file.read(0, len(_MAGIC)) == _MAGIC


def read(path: str) -> Recorded:
    """Read the names and sizes of all entries; the values are read on demand.

    Raises `FormatError` if the file is not an importance matrix, or is invalid.
    """
    header, files = open_files(path, "gguf")
    source = FileSource(header, files)
    names = {name.removesuffix(_SUMS): None for name in header.tensors if name.endswith(_SUMS)}
    if not names:
        raise FormatError(path, None, _nothing(header), hint="create one with `weightctl imatrix`")
    for name in header.tensors:
        if name.endswith(_COUNTS) and name.removesuffix(_COUNTS) not in names:
            raise _error(
                header, name, f"the matching `{name.removesuffix(_COUNTS)}{_SUMS}` is missing"
            )
    entries = [entry for name in names if (entry := _entry(source, name)) is not None]
    if not entries:
        raise FormatError(path, None, _nothing(header), hint="create one with `weightctl imatrix`")
    datasets = header.metadata.get("imatrix.datasets")
    chunks = header.metadata.get("imatrix.chunk_count")
    has_dataset = datasets is not None and datasets.type == "array[string]" and datasets.content
    names_of_texts = tuple(datasets.content) if datasets is not None and has_dataset else ()
    return Recorded(
        entries,
        names_of_texts[0] if names_of_texts else "",
        chunks.content if chunks is not None and chunks.type == "u32" else 0,
        names_of_texts,
    )


def _nothing(header: Header) -> str:
    file_kind = header.metadata.get("general.type")
    if file_kind is not None and file_kind.content == "imatrix":
        return "this importance matrix has no tensors"
    model = header.metadata.get("general.architecture")
    kind = f" ({model.content})" if model is not None and model.type == "string" else ""
    return f"not an importance matrix: it is a GGUF with other content, such as a model{kind}"


def _entry(source: FileSource, name: str) -> ImportanceEntry | None:
    """Return an entry; None if it is empty, because llama.cpp skips empty entries."""
    header = source.header
    if name + _COUNTS not in header.tensors:
        raise _error(header, name + _SUMS, f"the matching `{name}{_COUNTS}` is missing")
    sums, counts = _open_values(source, name + _SUMS), _open_values(source, name + _COUNTS)
    if not sums.size or not counts.size:
        return None
    if sums.size % counts.size:
        raise _error(
            header,
            name + _SUMS,
            f"{sums.size} values cannot be divided into {counts.size} equal matrices",
        )
    extent = header.extents[name + _SUMS]
    return ImportanceEntry(name, sums, counts, header.files[extent.file], extent.offset)


class _Numbers(NamedTuple):
    """The values of a tensor in a file."""

    source: FileSource
    name: str

    @property
    def size(self) -> int:
        return self.source.header.tensors[self.name].size

    def read(self, start: int, stop: int) -> F32:
        import numpy as np  # only quantization needs this

        numbers = np.empty(stop - start, np.float32)
        self.source.read_into(self.name, 4 * start, numbers.view(np.uint8).data)
        return numbers


def _open_values(source: FileSource, name: str) -> _Numbers:
    encoding = source.header.tensors[name].encoding
    if encoding.name != "F32":
        raise _error(
            source.header, name, f"its values are stored as {encoding.name} instead of F32"
        )
    return _Numbers(source, name)


def _error(header: Header, name: str, problem: str) -> FormatError:
    extent = header.extents[name]
    return FormatError(
        header.files[extent.file], extent.offset, f"`{name}`: {problem}", hint=_FAULTY
    )
