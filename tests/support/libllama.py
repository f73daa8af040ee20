"""libllama's C functions, called through the shared object of the `xllamacpp` wheel.

Run in a process of its own, by `llama_cpp.ask`: llama.cpp writes to the terminal, and aborts on
files that it does not like. Keys and values are kept in float32, and attention is not fused, so
that what differs from another runtime is the model and not the rounding.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import struct
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

# Records that are passed by value as the last argument may be longer than they are in C.
_Params = ctypes.c_int32 * 256
_CONTEXT, _BATCH, _MICRO_BATCH, _THREADS = 0, 1, 2, (7, 8)
_POOLING, _FLASH, _YARN_BETAS, _KEY_TYPE, _VALUE_TYPE = 11, 13, (18, 19), 26, 27
# What the version that these places are of has there before it is told otherwise.
_DEFAULTS = {0: 512, 1: 2048, 2: 512, 7: 4, 8: 4, 11: -1, 13: -1, 26: 1, 27: 1}
_F32 = 0
_ONLY_VOCABULARY = 18
# What the library's C++ has of draft models, which its C does not.
_KEEP_STATES = "_Z26llama_set_embeddings_nextnP13llama_contextbb"
_KEPT_STATES = "_Z26llama_get_embeddings_nextnP13llama_context"
_RANK = 4


class _Record(ctypes.Structure):
    _fields_ = (("words", _Params),)


class _Batch(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embedding", ctypes.c_void_p),
        ("position", ctypes.POINTER(ctypes.c_int32)),
        ("sequences", ctypes.POINTER(ctypes.c_int32)),
        ("sequence", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("wanted", ctypes.POINTER(ctypes.c_int8)),
        ("_rest", ctypes.c_uint64 * 8),
    )


def load_library() -> Any:
    """Return the library, with the types of the functions that are used here."""
    spec = find_spec("xllamacpp")
    assert spec is not None
    assert spec.origin is not None
    library = ctypes.CDLL(str(Path(spec.origin).with_name("xllamacpp.abi3.so")))
    pointer, floats = ctypes.c_void_p, ctypes.POINTER(ctypes.c_float)
    for name, result, *arguments in (
        ("model_default_params", _Record),
        ("context_default_params", _Record),
        ("model_load_from_file", pointer, ctypes.c_char_p, _Record),
        ("init_from_model", pointer, pointer, _Record),
        ("model_get_vocab", pointer, pointer),
        ("model_n_embd", ctypes.c_int32, pointer),
        ("model_has_encoder", ctypes.c_bool, pointer),
        ("vocab_n_tokens", ctypes.c_int32, pointer),
        ("vocab_bos", ctypes.c_int32, pointer),
        ("vocab_is_eog", ctypes.c_bool, pointer, ctypes.c_int32),
        ("get_memory", pointer, pointer),
        ("pooling_type", ctypes.c_int32, pointer),
        ("memory_clear", None, pointer, ctypes.c_bool),
        ("batch_init", _Batch, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32),
        ("decode", ctypes.c_int32, pointer, _Batch),
        ("encode", ctypes.c_int32, pointer, _Batch),
        ("adapter_lora_init", pointer, pointer, ctypes.c_char_p),
        (
            *("set_adapters_lora", ctypes.c_int32, pointer, ctypes.POINTER(pointer)),
            *(ctypes.c_size_t, floats),
        ),
        ("set_embeddings", None, pointer, ctypes.c_bool),
        ("get_logits_ith", floats, pointer, ctypes.c_int32),
        ("get_embeddings_ith", floats, pointer, ctypes.c_int32),
        ("get_embeddings_seq", floats, pointer, ctypes.c_int32),
        (
            *("tokenize", ctypes.c_int32, pointer, ctypes.c_char_p, ctypes.c_int32),
            *(ctypes.POINTER(ctypes.c_int32), ctypes.c_int32, ctypes.c_bool, ctypes.c_bool),
        ),
        (
            *("detokenize", ctypes.c_int32, pointer, ctypes.POINTER(ctypes.c_int32)),
            *(ctypes.c_int32, ctypes.c_char_p, ctypes.c_int32, ctypes.c_bool, ctypes.c_bool),
        ),
    ):
        function = getattr(library, f"llama_{name}")
        function.restype, function.argtypes = result, arguments
    library.llama_backend_init()
    return library


class Model:
    """A GGUF file as llama.cpp has it; `pooling` is llama.cpp's number of a way to pool.

    `yarn_betas` are what `--yarn-beta-fast` and `--yarn-beta-slow` set. With `only_vocabulary` it
    needs no tensors, and only speaks of tokens. There is one of the `threads`, unless times are
    measured: threads of ggml wait busily for each other. `adapter` is the path of a LoRA adapter.
    `flash` states whether flash attention is used, without which llama.cpp selects no blocks of
    keys.
    """

    def __init__(
        self,
        path: str,
        context: int = 512,
        pooling: int = -1,
        only_vocabulary: bool = False,
        yarn_betas: tuple[float, float] = (-1.0, -1.0),
        threads: int = 1,
        adapter: str = "",
        flash: bool = False,
    ) -> None:
        self._lib = load_library()
        params = self._lib.llama_model_default_params()
        params.words[_ONLY_VOCABULARY] |= only_vocabulary  # the lowest byte is the flag
        self._model = self._lib.llama_model_load_from_file(path.encode(), params)
        assert self._model, f"llama.cpp does not load {path}"
        self._vocabulary = self._lib.llama_model_get_vocab(self._model)
        self._size = context
        self._pooling = pooling
        self._yarn_betas = yarn_betas
        self._threads = threads
        self._adapter, self._flash = adapter, flash
        self._made: Any = None

    @property
    def _context(self) -> Any:
        if self._made is None:
            params = self._lib.llama_context_default_params()
            found = {place: params.words[place] for place in _DEFAULTS}
            assert found == _DEFAULTS, "the record of a context has another layout"
            for place in (_CONTEXT, _BATCH, _MICRO_BATCH):
                params.words[place] = self._size
            for place in _THREADS:
                params.words[place] = self._threads
            params.words[_POOLING], params.words[_FLASH] = self._pooling, int(self._flash)
            for place, beta in zip(_YARN_BETAS, self._yarn_betas, strict=True):
                params.words[place] = struct.unpack("<i", struct.pack("<f", beta))[0]
            params.words[_KEY_TYPE] = params.words[_VALUE_TYPE] = _F32
            self._made = self._lib.llama_init_from_model(self._model, params)
            assert self._made, "llama.cpp makes no context"
            if self._adapter:
                lora = self._lib.llama_adapter_lora_init(self._model, self._adapter.encode())
                assert lora, f"llama.cpp does not load {self._adapter}"
                scale = (ctypes.c_float * 1)(1.0)
                loras = (ctypes.c_void_p * 1)(lora)
                assert self._lib.llama_set_adapters_lora(self._made, loras, 1, scale) == 0
        return self._made

    def loads(self, path: str) -> bool:
        """Whether llama.cpp loads another file."""
        child = os.fork()  # it may abort
        if not child:
            params = self._lib.llama_model_default_params()
            os._exit(not self._lib.llama_model_load_from_file(path.encode(), params))
        return os.waitpid(child, 0)[1] == 0

    def tokenize(self, text: str, special: bool = True, parse: bool = True) -> list[int]:
        """Return the tokens of a text, with those that the model wants around it."""
        raw = text.encode()
        room = (ctypes.c_int32 * (2 * len(raw) + 16))()
        count = self._lib.llama_tokenize(
            self._vocabulary, raw, len(raw), room, len(room), special, parse
        )
        assert count >= 0
        return list(room[:count])

    def ends(self) -> list[int]:
        count = self._lib.llama_vocab_n_tokens(self._vocabulary)
        return [
            token for token in range(count) if self._lib.llama_vocab_is_eog(self._vocabulary, token)
        ]

    def detokenize(self, tokens: list[int], remove: bool = False, show: bool = True) -> str:
        """Return the text of tokens; `show` with those that are special."""
        raw = ctypes.create_string_buffer(64 * len(tokens) + 64)
        given = (ctypes.c_int32 * len(tokens))(*tokens)
        count = self._lib.llama_detokenize(
            self._vocabulary, given, len(tokens), raw, len(raw), remove, show
        )
        assert count >= 0
        return raw.raw[:count].decode("utf-8", "replace")

    def logits(self, tokens: list[int]) -> np.ndarray[Any, Any]:
        """Return what the model says after each token, [tokens, vocabulary].

        If there is an encoder, it reads the same tokens.
        """
        self._forget()
        if self._lib.llama_model_has_encoder(self._model):
            assert self._lib.llama_encode(self._context, self._batch(tokens, 0, every=True)) == 0
        return self._fed(tokens, 0, every=True)

    def generate(self, tokens: list[int], count: int) -> list[int]:
        """Return the tokens that follow, each the likeliest."""
        self._forget()
        made: list[int] = []
        fed = tokens
        while len(made) < count:
            place = len(tokens) + len(made) - len(fed)
            made.append(int(self._fed(fed, place, every=False)[-1].argmax()))
            fed = made[-1:]
        return made

    def take_times(self, tokens: list[int], count: int) -> tuple[float, float]:
        """Return the seconds for reading tokens, and for `count` tokens after them."""
        self._forget()
        start = time.perf_counter()
        logits = self._fed(tokens, 0, every=False)
        middle = time.perf_counter()
        for place in range(len(tokens), len(tokens) + count):
            logits = self._fed([int(logits[-1].argmax())], place, every=False)
        return middle - start, time.perf_counter() - middle

    def embeddings(self, tokens: list[int]) -> np.ndarray[Any, Any]:
        """Return the embedding of each token, [tokens, hidden]; of them all where it pools."""
        self._lib.llama_set_embeddings(self._context, True)
        hidden = self._lib.llama_model_n_embd(self._model)
        # Decoders that also attend to later tokens have a memory, too.
        has_memory = bool(self._lib.llama_get_memory(self._context))
        read = self._lib.llama_decode if has_memory else self._lib.llama_encode
        assert read(self._context, self._batch(tokens, 0, every=True)) == 0
        if self._lib.llama_pooling_type(self._context) > 0:
            found = self._lib.llama_get_embeddings_seq(self._context, 0)
            return np.ctypeslib.as_array(found, (hidden,)).copy()
        return np.stack(
            [
                np.ctypeslib.as_array(
                    self._lib.llama_get_embeddings_ith(self._context, place), (hidden,)
                ).copy()
                for place in range(len(tokens))
            ]
        )

    def scores(self, tokens: list[int], labels: int) -> np.ndarray[Any, Any]:
        """Return what a classifier says of a text, [labels], by the way to pool of the file."""
        self._lib.llama_set_embeddings(self._context, True)
        assert self._lib.llama_encode(self._context, self._batch(tokens, 0, every=True)) == 0
        assert self._lib.llama_pooling_type(self._context) == _RANK
        found = self._lib.llama_get_embeddings_seq(self._context, 0)
        return np.ctypeslib.as_array(found, (labels,)).copy()

    def draft(
        self, tokens: list[int], states: np.ndarray[Any, Any]
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return what a draft model makes of a target's states for each token, and its logits."""
        keep, kept = (getattr(self._lib, name) for name in (_KEEP_STATES, _KEPT_STATES))
        keep.argtypes = (ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool)
        kept.argtypes, kept.restype = (ctypes.c_void_p,), ctypes.POINTER(ctypes.c_float)
        keep(self._context, True, False)
        count, hidden = len(tokens), self._lib.llama_model_n_embd(self._model)
        states_only, both = (self._batch(tokens, 0, every=True) for _ in range(2))
        states_only.token, states_only.embedding = None, states.ctypes.data
        assert self._lib.llama_encode(self._context, states_only) == 0
        made = np.ctypeslib.as_array(kept(self._context), (count, hidden)).copy()
        both.embedding = made.ctypes.data
        assert self._lib.llama_decode(self._context, both) == 0
        return made, self._logits(range(count))

    def _forget(self) -> None:
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)

    def _fed(self, tokens: list[int], start: int, *, every: bool) -> np.ndarray[Any, Any]:
        assert self._lib.llama_decode(self._context, self._batch(tokens, start, every=every)) == 0
        return self._logits(range(len(tokens)) if every else [len(tokens) - 1])

    def _logits(self, places: Sequence[int]) -> np.ndarray[Any, Any]:
        width = self._lib.llama_vocab_n_tokens(self._vocabulary)
        return np.stack(
            [
                np.ctypeslib.as_array(
                    self._lib.llama_get_logits_ith(self._context, place), (width,)
                ).copy()
                for place in places
            ]
        )

    def _batch(self, tokens: list[int], start: int, *, every: bool) -> _Batch:
        batch = self._lib.llama_batch_init(len(tokens), 0, 1)
        batch.count = len(tokens)
        for place, token in enumerate(tokens):
            batch.token[place] = token
            batch.position[place] = start + place
            batch.sequences[place] = 1
            batch.sequence[place][0] = 0
            batch.wanted[place] = every or place == len(tokens) - 1
        return batch


def main() -> None:
    """Answer the questions in the file that is named, in a file beside it."""
    # Where it aborts, it would let gdb print its stack, which takes a second.
    os.environ["GGML_NO_BACKTRACE"] = "1"
    with Path(sys.argv[1]).open("rb") as file:
        path, options, questions = pickle.load(file)
    model = Model(path, **options)
    answers = [getattr(model, name)(*arguments) for name, *arguments in questions]
    Path(sys.argv[2]).write_bytes(pickle.dumps(answers))
