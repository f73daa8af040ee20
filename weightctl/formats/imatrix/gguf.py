"""Importance matrices in GGUF: `NAME.in_sum2` and `NAME.counts` for each tensor of a model.

weightctl adds `NAME.in_products`, F32 with n (n + 1) / 2 values for n columns: the sums of the
products of two columns of the inputs, the upper triangle row by row (row i has the columns i to
n - 1). Tensors with the same inputs share them: two metadata arrays of equal length have the names
of all tensors with products, and for each the name under which they are stored. Other programs
ignore all of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import FormatError
from weightctl.formats.imatrix.entry import Hessian, ImportanceEntry, Recorded
from weightctl.formats.open.parts import open_files
from weightctl.weights.source import FileSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.codecs.base import F32
    from weightctl.storage.base import Reader
    from weightctl.weights.info import Header

_MAGIC = b"GGUF"
_SUMS = ".in_sum2"
_COUNTS = ".counts"
PRODUCTS = ".in_products"
# The metadata keys of the names of the tensors with products, and of where these are stored.
PRODUCTS_OF = "weightctl.in_products.tensors"
PRODUCTS_IN = "weightctl.in_products.stored"
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
        hessians=_open_hessians(source, {entry.name: entry for entry in entries}),
    )


def _open_hessians(
    source: FileSource, entries: Mapping[str, ImportanceEntry]
) -> dict[str, Hessian]:
    header = source.header
    stored = {name.removesuffix(PRODUCTS) for name in header.tensors if name.endswith(PRODUCTS)}
    places = _places(header)
    for name in stored:
        if places.get(name) != name:
            raise _error(header, name + PRODUCTS, f"the metadata `{PRODUCTS_OF}` does not list it")
    opened = {name: _open_hessian(source, name, entries) for name in stored}
    for name, place in places.items():
        if place not in opened:
            raise FormatError(
                header.files[0],
                None,
                f"the products of `{name}` are missing: the file has no `{place}{PRODUCTS}`",
                hint=_FAULTY,
            )
        entry = entries.get(name)
        if entry is None or entry.size != opened[place].columns or entry.counts.size != 1:
            raise _error(
                header,
                place + PRODUCTS,
                f"`{name}` shares it, but is not one matrix with as many columns",
            )
    return {name: opened[place] for name, place in places.items()}


def _open_hessian(source: FileSource, name: str, entries: Mapping[str, ImportanceEntry]) -> Hessian:
    header, key = source.header, name + PRODUCTS
    entry, numbers = entries.get(name), _open_values(source, key)
    if entry is None:
        raise _error(header, key, f"the matching `{name}{_SUMS}` is missing or empty")
    if entry.counts.size != 1:
        raise _error(header, key, f"`{name}` has {entry.counts.size} matrices instead of one")
    columns = entry.size
    if numbers.size != columns * (columns + 1) // 2:
        raise _error(
            header, key, f"{numbers.size} values are not the products of {columns} columns"
        )
    extent = header.extents[key]
    path = header.files[extent.file]
    return Hessian(path, name, columns, numbers, entry.counts, extent.offset)


def _places(header: Header) -> dict[str, str]:
    """Return where the products of each tensor are stored, by name, from the metadata."""
    found = [header.metadata.get(key) for key in (PRODUCTS_OF, PRODUCTS_IN)]
    if found == [None, None]:
        return {}
    names, places = (
        () if each is None or each.type != "array[string]" else each.content for each in found
    )
    if not names or len(set(names)) != len(names) or len(places) != len(names):
        raise FormatError(
            header.files[0],
            None,
            f"the metadata `{PRODUCTS_OF}` and `{PRODUCTS_IN}` are not lists of equally many names",
            hint=_FAULTY,
        )
    return dict(zip(names, places, strict=True))


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
