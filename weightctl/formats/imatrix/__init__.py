"""Importance matrices of llama.cpp: how much an error in each column of a matrix matters.

`llama-imatrix` measures, over a text, the squares of what meets each column of each matrix. Names
and sizes are read first; the numbers stay in the file until a matrix is quantized with them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import FormatError
from weightctl.formats.imatrix import dat, gguf
from weightctl.formats.recognition import sniff
from weightctl.storage.location import open_reader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.formats.imatrix.columns import ColumnValues
    from weightctl.storage.base import Reader

__all__ = ["Importance", "read_importance"]

_HINT = "create an importance matrix with llama-imatrix from a model and a text"


class Importance(NamedTuple):
    """What a file says of the columns of matrices, by the matrices' names.

    `values` are flat, shape (matrices * n,): a row of n for each matrix of a tensor of several.
    They may be arrays, of finite numbers that are not negative. `dataset` is what they were
    measured on, empty if the file does not say; `chunks` how much of it, 0 likewise.
    """

    path: str
    values: Mapping[str, ColumnValues]
    dataset: str = ""
    chunks: int = 0


def read_importance(path: str) -> Importance:
    """Read the header of an importance matrix, as GGUF or in the older form (`.dat`).

    Raises `FormatError` if it is invalid, or is invalid; of its numbers only when they are read.
    """
    if os.path.isdir(path):
        raise FormatError(
            path,
            None,
            "an importance matrix is a file, not a directory",
            hint="use the path of the file in this directory",
        )
    if os.path.exists(path) and not os.path.isfile(path):
        raise FormatError(
            path,
            None,
            "it is not a regular file",
            hint="the file is read several times: save it to a regular file and use that",
        )
    file = open_reader(path)
    if gguf.sniff(file):
        about = gguf.read(path)
    elif dat.sniff(file):
        about = dat.read(file)
    else:
        raise FormatError(path, None, f"not an importance matrix: {_otherwise(file)}", hint=_HINT)
    return Importance(path, {entry.name: entry for entry in about.entries},
                      about.dataset, about.chunks)  # fmt: skip


def _otherwise(file: Reader) -> str:
    found = sniff(file)
    if found is not None:
        return f"it is a {found} checkpoint"
    from weightctl.formats.identify import identify_file

    return identify_file(file).message
