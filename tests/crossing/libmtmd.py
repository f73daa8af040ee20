"""libmtmd's C functions, which run towers, through the shared object of the `xllamacpp` wheel.

Run in a process of its own, by `encode_image`: llama.cpp writes to the terminal, and aborts on
files that it does not like. Attention is not fused, as in `libllama`.
"""

from __future__ import annotations

import ctypes
import pickle
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ready_children import run_ready

# Places of 32-bit words in `mtmd_context_params`, which is longer here than in C.
_USE_GPU, _TIMINGS, _THREADS, _FLASH, _WARMUP = 0, 4, 5, 10, 11
_Params = ctypes.c_int32 * 64
_ModelParams = ctypes.c_int32 * 256
_MARKER = b"<__media__>"
_IMAGE, _AUDIO = 1, 2


class _Record(ctypes.Structure):
    _fields_ = (("words", _Params),)


class _ModelRecord(ctypes.Structure):
    _fields_ = (("words", _ModelParams),)


class _Text(ctypes.Structure):
    _fields_ = (
        ("text", ctypes.c_char_p),
        ("length", ctypes.c_size_t),
        ("add_special", ctypes.c_bool),
        ("parse_special", ctypes.c_bool),
    )


def _library() -> Any:
    spec = find_spec("xllamacpp")
    assert spec is not None
    assert spec.origin is not None
    library = ctypes.CDLL(str(Path(spec.origin).with_name("xllamacpp.abi3.so")))
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    for name, result, *arguments in (
        ("llama_model_default_params", _ModelRecord),
        ("llama_model_load_from_file", pointer, ctypes.c_char_p, _ModelRecord),
        ("mtmd_context_params_default", _Record),
        ("mtmd_init_from_file", pointer, ctypes.c_char_p, pointer, _Record),
        ("mtmd_bitmap_init", pointer, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_char_p),
        ("mtmd_bitmap_init_from_audio", pointer, size, pointer),
        ("mtmd_input_chunks_init", pointer),
        ("mtmd_tokenize", ctypes.c_int32, pointer, pointer, pointer, pointer, size),
        ("mtmd_input_chunks_size", size, pointer),
        ("mtmd_input_chunks_get", pointer, pointer, size),
        ("mtmd_input_chunk_get_type", ctypes.c_int, pointer),
        ("mtmd_input_chunk_get_n_tokens", size, pointer),
        ("mtmd_encode_chunk", ctypes.c_int32, pointer, pointer),
        ("mtmd_get_output_embd", ctypes.POINTER(ctypes.c_float), pointer),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.llama_backend_init()
    return library


def encode_image(
    text: Path, tower: Path, pixels: np.ndarray[Any, Any], hidden: int
) -> list[np.ndarray[Any, Any]]:
    """Return the vectors of an image's tokens, [tokens, hidden], for each of its pictures.

    `pixels` are bytes [height, width, 3], and `text` is the file of the text model.
    """
    return _ask(text, tower, pixels, hidden)


def encode_audio(
    text: Path, tower: Path, samples: np.ndarray[Any, Any], hidden: int
) -> list[np.ndarray[Any, Any]]:
    """Return the vectors of a recording's tokens, [tokens, hidden], for each 30 seconds of it.

    `samples` are float32 numbers from -1 to 1, 16,000 per second.
    """
    return _ask(text, tower, samples, hidden)


def _ask(
    text: Path, tower: Path, media: np.ndarray[Any, Any], hidden: int
) -> list[np.ndarray[Any, Any]]:
    with tempfile.TemporaryDirectory() as scratch:
        asked, answered = Path(scratch) / "asked", Path(scratch) / "answered"
        asked.write_bytes(pickle.dumps((str(text), str(tower), media, hidden)))
        done = run_ready("import libmtmd; libmtmd.main()", asked, answered)
        assert done.returncode == 0, done.stderr[-3000:]
        return pickle.loads(answered.read_bytes())


def _encode(
    text: str, tower: str, media: np.ndarray[Any, Any], hidden: int
) -> list[np.ndarray[Any, Any]]:
    library = _library()
    model = library.llama_model_load_from_file(text.encode(), library.llama_model_default_params())
    assert model, f"llama.cpp does not load {text}"
    params = library.mtmd_context_params_default()
    assert params.words[_THREADS] == 4, "the record has another layout"
    params.words[_USE_GPU] &= ~0xFF  # the lowest byte is the flag
    params.words[_TIMINGS] &= ~0xFF
    params.words[_THREADS], params.words[_FLASH] = 1, 0
    params.words[_WARMUP] &= ~0xFF
    context = library.mtmd_init_from_file(tower.encode(), model, params)
    assert context, f"llama.cpp does not load {tower}"
    if media.ndim == 1:
        bitmap = library.mtmd_bitmap_init_from_audio(len(media), media.ctypes.data)
    else:
        height, width, _ = media.shape
        bitmap = library.mtmd_bitmap_init(width, height, media.tobytes())
    chunks = library.mtmd_input_chunks_init()
    prompt = _Text(_MARKER, len(_MARKER), False, True)
    bitmaps = (ctypes.c_void_p * 1)(bitmap)
    assert library.mtmd_tokenize(context, chunks, ctypes.byref(prompt), bitmaps, 1) == 0
    found: list[np.ndarray[Any, Any]] = []
    for number in range(library.mtmd_input_chunks_size(chunks)):
        chunk = library.mtmd_input_chunks_get(chunks, number)
        if library.mtmd_input_chunk_get_type(chunk) in {_IMAGE, _AUDIO}:
            count = library.mtmd_input_chunk_get_n_tokens(chunk)
            assert library.mtmd_encode_chunk(context, chunk) == 0
            made = library.mtmd_get_output_embd(context)
            found.append(np.ctypeslib.as_array(made, (count, hidden)).copy())
    return found


def main() -> None:
    """Answer the question in the file that is named, in a file beside it."""
    with Path(sys.argv[1]).open("rb") as file:
        question = pickle.load(file)
    Path(sys.argv[2]).write_bytes(pickle.dumps(_encode(*question)))
