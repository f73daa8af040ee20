"""RAW: `RAW1`, the length of a JSON list of names and shapes, the list, then float32 values."""

import json

from weightctl.dtype import ENCODINGS
from weightctl.errors import FormatError
from weightctl.formats.base import NO_METADATA, Layout, is_possible
from weightctl.weights.info import Extent, Header, TensorInfo


def sniff(file):
    """Whether a file has this format."""
    return bytes(file.read(0, 4)) == b"RAW1"


def read(file):
    """Return the header: the tensors, and where the bytes of each are."""
    tensors, extents = {}, {}
    at = 8 + int.from_bytes(file.read(4, 4), "little")
    try:
        stated = [
            (str(name), tuple(map(int, shape))) for name, shape in json.loads(file.read(8, at - 8))
        ]
    except (ValueError, TypeError, RecursionError) as error:
        raise FormatError(file.path, 8, f"the list is invalid: {error}") from error
    for name, shape in stated:
        if not is_possible(shape):
            raise FormatError(file.path, 8, f"`{name}` has the shape {shape}")
        tensors[name] = info = TensorInfo(name, shape, ENCODINGS["F32"])
        extents[name] = Extent(0, at, info.nbytes)
        at += info.nbytes
    if at != file.size:
        raise FormatError(file.path, None, f"it has {file.size} bytes, not {at}")
    return Header(format="raw", files=(file.path,), tensors=tensors, extents=extents)


def unfit(tensors, metadata=NO_METADATA):
    """Return a sentence for each tensor that cannot be stored."""
    return [f"`{each.name}` is not F32" for each in tensors if each.encoding.name != "F32"]


def layout(tensors, metadata, part=None):
    """Return the header of a file with these tensors, and where each begins."""
    stated = json.dumps([[info.name, info.shape] for info in tensors]).encode()
    header = b"RAW1" + len(stated).to_bytes(4, "little") + stated
    offsets, at = [], len(header)
    for info in tensors:
        offsets.append(at)
        at += info.nbytes
    return Layout(header, tuple(tensors), tuple(offsets), at)
