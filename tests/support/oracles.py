"""ggml itself, called through the shared object of the `xllamacpp` wheel."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from weightctl.dtype import ENCODINGS

if TYPE_CHECKING:
    from numpy.typing import NDArray


@cache
def _ggml() -> ctypes.CDLL:
    spec = find_spec("xllamacpp")
    assert spec is not None
    assert spec.origin is not None
    library = ctypes.CDLL(str(Path(spec.origin).with_name("xllamacpp.abi3.so")))
    library.ggml_quantize_init.argtypes = [ctypes.c_int]
    library.ggml_quantize_init.restype = None
    library.ggml_quantize_chunk.argtypes = [
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p,
        ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p,
    ]  # fmt: skip
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_requires_imatrix.argtypes = [ctypes.c_int]
    library.ggml_quantize_requires_imatrix.restype = ctypes.c_bool
    return library


def ggml_needs_importance(encoding: str) -> bool:
    """Whether ggml ends the process if a type is quantized without an importance matrix."""
    return bool(_ggml().ggml_quantize_requires_imatrix(int(ENCODINGS[encoding].ids["gguf"])))


def ggml_quantize(
    encoding: str,
    rows: NDArray[np.float32],
    importance: NDArray[np.float32] | None,
    out: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    """Return the bytes `ggml_quantize_chunk` makes of `rows`, shape (r, n // block * size).

    They are in `out` where that is given.
    """
    kind = ENCODINGS[encoding]
    number, block, size = int(kind.ids["gguf"]), kind.block, kind.size
    rows = np.ascontiguousarray(rows, np.float32)
    if importance is not None:
        importance = np.ascontiguousarray(importance, np.float32)
        assert importance.shape == rows.shape[1:]
    assert rows.shape[1] % block == 0
    if out is None:
        out = np.empty((len(rows), rows.shape[1] // block * size), np.uint8)
    assert number is not None
    assert importance is not None or not ggml_needs_importance(encoding)
    _ggml().ggml_quantize_init(number)
    written = _ggml().ggml_quantize_chunk(
        number,
        rows.ctypes.data,
        out.ctypes.data,
        0,
        *rows.shape,
        None if importance is None else importance.ctypes.data,
    )
    assert written == out.nbytes
    return out
