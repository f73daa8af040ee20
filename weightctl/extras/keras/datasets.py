"""Where the bytes of a dataset of HDF5 are in its file, and which encoding they have."""

from __future__ import annotations

from importlib import import_module
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.dtype import ENCODINGS
from weightctl.errors import FormatError
from weightctl.extras.keras.blocks import GZIP, SHUFFLE, BlockOfFile, DatasetBlocks
from weightctl.extras.keras.walking import text_of
from weightctl.formats.base import is_possible
from weightctl.formats.pytorch.tensors import NUMPY_ENCODINGS
from weightctl.weights.info import Extent, Leaf, TensorInfo

if TYPE_CHECKING:
    from weightctl.dtype import Encoding
    from weightctl.extras.keras.file_object import PagedSource

DAMAGED = "the file is damaged or malicious: check that the download is complete"
_REPACK = "rewrite the file with `h5repack -f NONE -l CONTI`, a tool of HDF5"
# Sign, exponent and mantissa of bfloat16 as a type of HDF5.
_BFLOAT16 = (15, 7, 8, 0, 7)

# Chunks of h5py have 1 MiB. To decode a chunk takes four times its size.
_LARGEST_BLOCK = 1 << 26
_MOST_DIMENSIONS = 32


class PlacedDataset(NamedTuple):
    """A dataset as a tensor, or as a leaf; `is_big_endian` is None if its bytes have no order.

    `is_untyped` states that its bytes have no type in the file.
    """

    info: TensorInfo | None = None
    extent: Extent | None = None
    leaf: Leaf | None = None
    is_big_endian: bool | None = None
    is_untyped: bool = False


def place_dataset(file: PagedSource, name: str, dataset: Any) -> PlacedDataset:
    """Find the bytes of a dataset; raises `FormatError` if the file does not have them all.

    Datasets whose values are not numbers become leaves.
    """
    kind, shape = dataset.id.get_type(), dataset.shape
    encoding, is_big_endian = _encoding_of(dataset, kind)
    if encoding is None or shape is None:
        described = "no values" if shape is None else f"{dataset.dtype} {list(shape)}"
        return PlacedDataset(leaf=Leaf("h5py.Dataset", described))
    if len(shape) > _MOST_DIMENSIONS or not is_possible(shape):
        raise _refuse(file, f"the shape of `{name}` is too large: {list(shape)[:9]}", DAMAGED)
    info = TensorInfo(name, tuple(shape), encoding)
    is_untyped = kind.get_class() == import_module("h5py").h5t.OPAQUE
    is_stated = "dtype" in dataset.attrs and text_of(dataset.attrs["dtype"]) == "bfloat16"
    extent = _find_bytes(file, info, dataset)
    return PlacedDataset(info, extent, None, is_big_endian, is_untyped and not is_stated)


def _refuse(file: PagedSource, reason: str, hint: str) -> FormatError:
    return FormatError(file.path, None, reason, hint=hint)


def _encoding_of(dataset: Any, kind: Any) -> tuple[Encoding | None, bool | None]:
    """Return the encoding of a dataset, None if it has none, and whether it is big-endian."""
    types = import_module("h5py").h5t
    width, of_kind = kind.get_size(), kind.get_class()
    if of_kind == types.OPAQUE:
        is_pair = width == ENCODINGS["BF16"].size
        return (ENCODINGS["BF16"] if is_pair else None), False if is_pair else None
    is_big_endian = kind.get_order() == types.ORDER_BE if of_kind == types.FLOAT else None
    if of_kind == types.FLOAT and width == 2 and kind.get_fields() == _BFLOAT16:
        return ENCODINGS["BF16"], is_big_endian
    dtype = dataset.dtype
    encoding = ENCODINGS.get(NUMPY_ENCODINGS.get(dtype.str[1:], ""))
    if encoding is None or encoding.size != width:
        return None, None
    if of_kind in {types.INTEGER, types.FLOAT} and types.py_create(dtype) != kind:
        return None, None  # NumPy would convert the values
    return encoding, None if encoding.size == 1 else dtype.str.startswith(">")


def _find_bytes(file: PagedSource, info: TensorInfo, dataset: Any) -> Extent:
    storage = import_module("h5py").h5d
    creation = dataset.id.get_create_plist()
    layout = creation.get_layout()
    if creation.get_external_count() or layout not in {
        storage.COMPACT, storage.CONTIGUOUS, storage.CHUNKED,
    }:  # fmt: skip
        text = f"the values of `{info.name}` are in other files, which weightctl does not read"
        raise _refuse(file, text, "copy the file with h5py, so that it has the values")
    if not info.size:
        return Extent(0, 0, 0)
    if layout == storage.CHUNKED:
        return _find_blocks(file, info, dataset, creation)
    if layout == storage.COMPACT:
        return Extent(0, 0, info.nbytes, held=_read_compact(dataset))
    offset, stored = dataset.id.get_offset(), dataset.id.get_storage_size()
    if offset is None or stored != info.nbytes:
        text = f"`{info.name}` needs {info.nbytes} bytes, but the file has {stored or 'none'}"
        raise _refuse(file, text, DAMAGED)
    if offset + info.nbytes > file.size:
        text = f"`{info.name}` is at bytes {offset} to {offset + info.nbytes}, after the end"
        raise _refuse(file, text, DAMAGED)
    return Extent(0, offset, info.nbytes)


def _read_compact(dataset: Any) -> bytes:
    """Return the bytes of a small dataset, which the file has in its description."""
    import numpy as np

    width = dataset.id.get_type().get_size()
    out = np.empty(dataset.shape, dataset.dtype)
    whole = import_module("h5py").h5s.ALL
    dataset.id.read(whole, whole, out, dataset.id.get_type())
    if out.dtype.itemsize != width:
        raise ValueError("a dataset has another width than its type")
    return out.tobytes()


def _find_blocks(file: PagedSource, info: TensorInfo, dataset: Any, creation: Any) -> Extent:
    """Return where the blocks of a dataset are; those that the file leaves out are an error."""
    filters = _list_filters(file, info, creation)
    sizes = dataset.chunks
    if prod(sizes) * info.encoding.size > _LARGEST_BLOCK:
        text = f"the chunks of `{info.name}` are too large: {list(sizes)}"
        raise _refuse(file, text, _REPACK)
    blocks: dict[tuple[int, ...], BlockOfFile] = {}

    def add(chunk: Any) -> None:
        at = tuple(start // size for start, size in zip(chunk.chunk_offset, sizes, strict=True))
        blocks[at] = BlockOfFile(chunk.byte_offset, chunk.size, chunk.filter_mask)

    dataset.id.chunk_iter(add)
    counts = [-(-size // step) for size, step in zip(info.shape, sizes, strict=True)]
    if len(blocks) != prod(counts) or any(at not in blocks for at in product(*map(range, counts))):
        text = f"the file has {len(blocks)} of the {prod(counts)} chunks of `{info.name}`"
        raise _refuse(file, text, DAMAGED)
    if any(one.offset + one.nbytes > file.size for one in blocks.values()):
        text = f"chunks of `{info.name}` are after the end of the file"
        raise _refuse(file, text, DAMAGED)
    first = min(one.offset for one in blocks.values())
    own = {at: one._replace(offset=one.offset - first) for at, one in blocks.items()}
    return Extent(0, first, info.nbytes, blocks=DatasetBlocks(info, tuple(sizes), filters, own))


def _list_filters(file: PagedSource, info: TensorInfo, creation: Any) -> tuple[str, ...]:
    """Return the filters that changed the bytes of a chunk, in the order of their use."""
    constants = import_module("h5py").h5z
    known = {constants.FILTER_DEFLATE: GZIP, constants.FILTER_SHUFFLE: SHUFFLE}
    used = [creation.get_filter(number) for number in range(creation.get_nfilters())]
    names: list[str] = []
    for code, _, _, name in used:
        if code not in known:
            shown = name.decode("ascii", "replace").strip("\0") or f"number {code}"
            text = f"`{info.name}` is stored with the filter {shown!r}, which is not supported"
            raise _refuse(file, text, _REPACK)
        names.append(known[code])
    return tuple(names)
