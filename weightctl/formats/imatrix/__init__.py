"""Importance matrices of llama.cpp: how much an error in each column of a matrix matters.

`llama-imatrix` runs a model on a text, and sums the squares of the inputs that each column of each
matrix is multiplied with. Names and sizes are read first; the values stay in the file until a
matrix is quantized with them.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import FormatError
from weightctl.formats.recognition import sniff
from weightctl.storage.files import exists, is_directory, is_file, open_reader
from weightctl.storage.location import parse_location

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.formats.imatrix.entry import ColumnValues, Hessian, Recorded
    from weightctl.storage.base import Reader

__all__ = ["Importance", "read_entries", "read_importance"]

_HINT = "create an importance matrix with `weightctl imatrix` or llama-imatrix"


class Importance(NamedTuple):
    """The importance of the columns of matrices, by the names of the tensors.

    `values` are flat, shape (matrices * n,): n values for each matrix of a tensor. They can also be
    arrays of finite values that are not negative. `dataset` is the text that was used, empty if
    unknown; `chunks` is the number of its chunks, 0 if unknown. `hessians` has the products of the
    columns for the tensors that have them; tensors with the same inputs have the same object.
    """

    path: str
    values: Mapping[str, ColumnValues]
    dataset: str = ""
    chunks: int = 0
    hessians: Mapping[str, Hessian] = MappingProxyType({})


def read_importance(path: str) -> Importance:
    """Read the header of an importance matrix, in GGUF or in the older format (`.dat`).

    Raises `FormatError` if it is invalid; values are checked only when they are read.
    """
    about = read_entries(path)
    path = parse_location(path).name
    return Importance(path, {entry.name: entry for entry in about.entries},
                      about.dataset, about.chunks, about.hessians)  # fmt: skip


def read_entries(path: str) -> Recorded:
    """Read the header of an importance matrix, and return its entries as they are stored.

    Raises `FormatError` as `read_importance` does.
    """
    from weightctl.formats.imatrix import dat, gguf  # few conversions have an importance matrix

    if is_directory(path):
        raise FormatError(
            path,
            None,
            "an importance matrix is a file, not a directory",
            hint="use the path of the file in this directory",
        )
    if exists(path) and not is_file(path):
        raise FormatError(
            path,
            None,
            "it is not a regular file",
            hint="the file is read several times: save it to a regular file and use that",
        )
    path = parse_location(path).name
    file = open_reader(path)
    if gguf.sniff(file):
        return gguf.read(path)
    if dat.sniff(file):
        return dat.read(file)
    raise FormatError(path, None, f"not an importance matrix: {_otherwise(file)}", hint=_HINT)


def _otherwise(file: Reader) -> str:
    found = sniff(file)
    if found is not None:
        return f"it is a {found} checkpoint"
    from weightctl.formats.identify import identify_file

    return identify_file(file).message
