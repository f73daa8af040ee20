"""Pickles that are nearly those that somebody wrote, and some that nobody would."""

from __future__ import annotations

import pickletools
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from assembly import (
    BUILD,
    MARK,
    NONE,
    REDUCE,
    TUPLE,
    blob,
    call,
    get,
    integer,
    mapping,
    named,
    put,
    storage,
    stream,
    tensor,
    text,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import SearchStrategy

Changes = list[tuple[str, int, int, bytes]]

_FUNCTIONS = [
    "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_parameter", "torch._utils._rebuild_qtensor",
    "torch._utils._rebuild_sparse_tensor", "torch._utils._rebuild_nested_tensor",
    "torch._tensor._rebuild_from_type_v2", "torch._utils._rebuild_meta_tensor_no_storage",
    "torch.storage._load_from_bytes", "torch.fx.graph_module.reduce_graph_module",
    "torch.serialization._get_layout", "torch.Size", "torch.device", "torch.float16",
    "torch.per_tensor_affine", "torch.FloatStorage", "collections.OrderedDict",
    "collections.defaultdict", "builtins.set", "builtins.complex", "builtins.bytearray",
    "_codecs.encode", "copyreg._reconstructor", "argparse.Namespace", "pathlib.PosixPath",
    "numpy.dtype", "numpy.core.multiarray._reconstruct", "numpy.core.multiarray.scalar",
    "numpy._core.numeric._frombuffer", "a.Module", "__torch__.Module",
]  # fmt: skip
_TEXTS = [
    "", "a", "0", "<f4", ">f8", "O", "cpu", "strided", "_metadata", "_parameters", "_buffers",
    "_modules", "storage", "module", "a.b", "\ud800", "\n\x1b[2J", "#2", "g_idx", "weight",
]  # fmt: skip
_NUMBERS = [0, 1, 2, 4, -1, 255, 1 << 31, 1 << 62, 1 << 63, -(1 << 63), 1 << 70, 1 << 5000]
# What a pickle can be put together from, with all that has a meaning here.
PIECES = [
    *map(named, _FUNCTIONS), *map(text, _TEXTS), *map(integer, _NUMBERS), NONE, b"\x88", b"\x89",
    b"G\x7f\xf8" + bytes(6), blob(b""), blob(bytes(16)), blob(stream(whole(storage()))), MARK, MARK,
    MARK, TUPLE, TUPLE, TUPLE, b")", b"\x85", b"\x86", b"\x87", b"]", b"l", b"a", b"e", b"}", b"d",
    b"s", b"u", b"u", REDUCE, REDUCE, REDUCE, BUILD, BUILD, b"\x81", b"\x92", b"o",
    b"ios\nsystem\n",
    b"Q", b"Pa\n", b"2", b"0", b"1", b"\x8f", b"\x90", b"\x91", b"\x93", b"\x94", b"\x82\1",
    *map(put, range(3)), *map(get, range(3)), storage(), storage("1", 4, "torch.QInt8Storage"),
    tensor(storage()), tensor(storage(), b")", b")"), mapping(text("a") + NONE), call("a.b"),
    call("numpy.dtype", "f4"), b"\x95" + b"\xff" * 8, b"I01\n", b"L5L\n", b"S'\\x41'\n",
    b"F1e999\n",
]  # fmt: skip

changes: SearchStrategy[Changes] = st.lists(
    st.tuples(
        st.sampled_from(["insert", "insert", "copy", "cut", "swap", "replace", "bytes", "end"]),
        st.integers(0, 400),
        st.integers(0, 400),
        st.one_of(st.sampled_from(PIECES), st.binary(min_size=1, max_size=4)),
    ),
    min_size=1,
    max_size=4,
)
sequences: SearchStrategy[bytes] = st.lists(st.sampled_from(PIECES), max_size=24).map(b"".join)


def opcodes(raw: bytes) -> list[bytes]:
    """Return a pickle opcode by opcode."""
    places = [place or 0 for _, _, place in pickletools.genops(raw)]
    # The last of them, behind which a file may go on, has no argument.
    return [raw[a:b] for a, b in zip(places, [*places[1:], places[-1] + 1], strict=True)]


def changed(pieces: Sequence[bytes], drawn: Changes) -> bytes:
    """Put in, leave out, copy, exchange or change opcodes, at places modulo their number."""
    made = list(pieces)
    for change, first, second, content in drawn:
        at, other = first % (len(made) or 1), second % (len(made) or 1)
        if change == "insert" or not made:
            made.insert(at, content)
        elif change == "copy":
            made[at:at] = made[other : other + 1 + first % 7]
        elif change == "cut":
            del made[at : at + 1 + second % 3]
        elif change == "swap":
            made[at], made[other] = made[other], made[at]
        elif change == "replace":
            made[at] = content
        elif change == "bytes":
            inside = second % (len(made[at]) + 1)
            made[at] = made[at][:inside] + content + made[at][inside + len(content) :]
        else:
            del made[at:]
    return b"".join(made)


def bytewise(raw: bytes, drawn: Changes) -> bytes:
    """Change the bytes of a file in the same ways."""
    made = bytearray(raw)
    for change, first, second, content in drawn:
        at = (first * 401 + second) % (len(made) + 1)
        if change in {"insert", "copy"}:
            made[at:at] = content
        elif change == "end":
            del made[at:]
        else:
            made[at : at + len(content)] = b"" if change == "cut" else content
    return bytes(made)
