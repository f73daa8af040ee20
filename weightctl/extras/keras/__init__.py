"""Weights of Keras: HDF5 files (`.h5`), and archives with such a file (`.keras`); only read.

h5py parses the structure of the file. The bytes of tensors are read by weightctl, at the offsets
that h5py reports. Source: `keras/src/saving/saving_lib.py` and `keras/src/legacy/saving/
legacy_h5_format.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.errors import FormatError
from weightctl.formats.read_only import ReadOnly

if TYPE_CHECKING:
    from weightctl.storage.base import Reader
    from weightctl.weights.info import Header

__all__ = ["layout", "read", "sniff", "unfit"]

_HDF5 = b"\x89HDF\r\n\x1a\n"
_ZIP = b"PK\3\4"
_WEIGHTS = "model.weights.h5"
_READ_ONLY = ReadOnly("files of Keras", "write safetensors or GGUF")
unfit, layout = _READ_ONLY.unfit, _READ_ONLY.layout


def sniff(file: Reader) -> bool:
    """Whether a file is HDF5, or a zip file with weights of Keras."""
    head = file.read(0, len(_HDF5))
    if head.startswith(_HDF5):
        return True
    if not head.startswith(_ZIP):
        return False
    from weightctl.formats.pytorch.archive import Archive

    try:
        return _WEIGHTS in Archive(file).members
    except FormatError:
        return False


def read(file: Reader) -> Header:
    """Parse the structure of a file; raises `FormatError` if it is invalid."""
    from weightctl.extras.keras.reading import read_archive, read_hdf5

    if file.read(0, len(_HDF5)).startswith(_HDF5):
        return read_hdf5(file)
    return read_archive(file, _WEIGHTS)
