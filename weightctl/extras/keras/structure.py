"""The structure of an HDF5 file, as h5py reads it; called in a process of its own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from weightctl.errors import FormatError
from weightctl.extras.keras.datasets import DAMAGED, place_dataset
from weightctl.extras.keras.file_object import PagedFile
from weightctl.extras.keras.names import name_datasets
from weightctl.extras.keras.walking import text_of, walk
from weightctl.weights.info import Header
from weightctl.weights.metadata import MetadataValue, text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.extras.keras.file_object import PagedSource
    from weightctl.extras.keras.walking import Path
    from weightctl.weights.info import Extent, Leaf, TensorInfo

# Attributes of the root that become metadata; other attributes describe the groups.
_KEYS = ("keras_version", "backend", "model_config", "training_config")
_BFLOAT16 = "2-byte values without a type (V2) are read as BF16, as Keras and ml_dtypes write them"
# What h5py raises for files that HDF5 does not accept, and for names that are not texts.
_UNSOUND = (OSError, RuntimeError, LookupError, ValueError, TypeError, EOFError, OverflowError,
            MemoryError, AttributeError, NotImplementedError)  # fmt: skip


def read_structure(file: PagedSource, labels: Mapping[Path, str]) -> Header:
    """Parse an HDF5 file; raises `FormatError` if it is invalid.

    `labels` are the names of layers by the path of their group, for files that do not state them.
    """
    h5py = import_module("h5py")
    try:
        with h5py.File(PagedFile(file), "r") as root:
            return _read_root(file, root, labels)
    except _UNSOUND as error:
        if isinstance(error, FormatError):
            raise
        reason = " ".join(str(error).strip("'\"").split())[:200] or type(error).__name__
        text = f"the structure of the HDF5 file is invalid ({reason})"
        raise FormatError(file.path, None, text, hint=DAMAGED) from error


def _read_root(file: PagedSource, root: Any, labels: Mapping[Path, str]) -> Header:
    if root.userblock_size:
        text = "the HDF5 file begins with a user block"
        raise FormatError(file.path, 0, text, hint="remove it with h5repack, a tool of HDF5")
    found = walk(file, root)
    names = name_datasets(file, root, found, labels)
    placed = {names[path]: place_dataset(file, names[path], found.datasets[path])
              for path in found.datasets}  # fmt: skip
    leaves: dict[str, Leaf] = {}
    tensors: list[tuple[TensorInfo, Extent]] = []
    for name, one in placed.items():
        if one.leaf is not None:
            leaves[name] = one.leaf
        elif one.info is not None and one.extent is not None:
            tensors.append((one.info, one.extent))
    if len({one.is_big_endian for one in placed.values() if one.is_big_endian is not None}) > 1:
        text = "its datasets have different byte orders"
        raise FormatError(file.path, None, text, hint="save them in one byte order")
    tensors.sort(key=lambda pair: pair[1].offset)
    has_pairs = any(one.is_untyped for one in placed.values())
    return Header(
        format="keras",
        files=(file.path,),
        tensors={info.name: info for info, _ in tensors},
        extents={info.name: extent for info, extent in tensors},
        metadata=_read_metadata(root),
        aliases={names[path]: names[other] for path, other in found.aliases.items()
                 if names[other] not in leaves},
        leaves=leaves,
        big_endian=any(one.is_big_endian for one in placed.values()),
        notes=(_BFLOAT16,) if has_pairs else (),
    )  # fmt: skip


def _read_metadata(root: Any) -> dict[str, MetadataValue]:
    found: dict[str, MetadataValue] = {}
    for key in _KEYS:
        value = text_of(root.attrs[key]) if key in root.attrs else ""
        if value:
            found[key] = text(value)
    return found
