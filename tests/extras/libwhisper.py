"""libwhisper's C functions, which run whisper.cpp's files, from the wheel of `pywhispercpp`.

Run in a process of its own, by `compute_logits`: whisper.cpp writes to the terminal, and aborts on
tensors that it cannot compute with.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

is_installed = find_spec("pywhispercpp") is not None


def compute_logits(
    model: Path, mel: NDArray[np.float32], tokens: Sequence[int], folder: Path
) -> NDArray[np.float32]:
    """Return whisper.cpp's logits of the token after `tokens`, for a log-mel spectrogram."""
    given, made = folder / "given.npz", folder / "logits.npy"
    np.savez(given, mel=mel, tokens=np.array(tokens, np.int32))
    done = subprocess.run(
        [sys.executable, __file__, model, given, made], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    logits: NDArray[np.float32] = np.load(made)
    return logits


def _library() -> Any:
    spec = find_spec("pywhispercpp")
    assert spec is not None
    assert spec.origin is not None
    (path,) = Path(spec.origin).parents[1].glob("pywhispercpp.libs/libwhisper-*")
    library = ctypes.CDLL(str(path))
    pointer, number = ctypes.c_void_p, ctypes.c_int
    for name, result, *arguments in (
        ("whisper_init_from_file", pointer, ctypes.c_char_p),
        ("whisper_n_vocab", number, pointer),
        ("whisper_set_mel", number, pointer, pointer, number, number),
        ("whisper_encode", number, pointer, number, number),
        ("whisper_decode", number, pointer, pointer, number, number, number),
        ("whisper_get_logits", ctypes.POINTER(ctypes.c_float), pointer),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _main(model: str, given: str, made: str) -> None:
    library, inputs = _library(), np.load(given)
    mel = np.ascontiguousarray(inputs["mel"], np.float32)
    tokens = np.ascontiguousarray(inputs["tokens"], np.int32)
    context = library.whisper_init_from_file(model.encode())
    assert context
    assert library.whisper_set_mel(context, mel.ctypes.data, mel.shape[1], mel.shape[0]) == 0
    assert library.whisper_encode(context, 0, 1) == 0
    assert library.whisper_decode(context, tokens.ctypes.data, len(tokens), 0, 1) == 0
    rows = len(tokens), library.whisper_n_vocab(context)
    logits = np.ctypeslib.as_array(library.whisper_get_logits(context), rows)
    np.save(made, logits[-1])


if __name__ == "__main__":
    _main(*sys.argv[1:])
