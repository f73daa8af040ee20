"""llama.cpp and other programs that judge what weightctl makes."""

from __future__ import annotations

import ctypes
import json
import pickle
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ready_children import run_ready
from weightctl.dtype import ENCODINGS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

# llama.cpp as a judge, through the wheel `xllamacpp`.

# A process of its own: llama.cpp writes to the terminal, and aborts on files it does not like.
_PROGRAM = """
import json, sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx, params.n_parallel, params.warmup = 256, 1, False
params.cpuparams.n_threads = 2
server = xllamacpp.Server(params)
prompt, count = json.loads(sys.argv[2]), int(sys.argv[3])
answer = server.handle_completions(
    {"prompt": prompt, "n_predict": count, "temperature": 0, "n_probs": 1}
)
choice = answer["choices"][0]
steps = [step["logprob"] for step in choice["logprobs"]["content"]]
made = answer["usage"]["completion_tokens"]
json.dump([choice["text"], steps, made, choice["finish_reason"]], open(sys.argv[4], "w"))
"""

# Layers for multi-token prediction, or a model of another file, draft tokens, which the model then
# accepts or not.
_DRAFTING = """
import json, sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx, params.n_parallel, params.warmup = 256, 1, False
params.cpuparams.n_threads = 2
kinds = xllamacpp.common_speculative_type
params.speculative.types = [getattr(kinds, "COMMON_SPECULATIVE_TYPE_DRAFT_" + sys.argv[4])]
params.speculative.draft.mparams.path = sys.argv[5]
server = xllamacpp.Server(params)
answer = server.handle_completions(
    {"prompt": json.loads(sys.argv[2]), "n_predict": 8, "temperature": 0}
)
json.dump(answer["timings"]["draft_n"], open(sys.argv[3], "w"))
"""


_ASKING = "import libllama; libllama.main()"


class Generated(NamedTuple):
    """What llama.cpp made of a prompt, and the logarithm of each token's probability.

    `count` is the number of tokens, with the one that ended it, and `reason` is why it ended:
    "stop" or "length".
    """

    text: str
    log_probabilities: list[float]
    count: int
    reason: str


def generate(model: Path, prompt: str | list[int], count: int, scratch: Path) -> Generated:
    """Load a GGUF file in llama.cpp and let it go on, greedily, for at most `count` tokens."""
    answer = scratch / "answer.json"
    done = run_ready(_PROGRAM, model, json.dumps(prompt), count, answer)
    assert done.returncode == 0, done.stderr[-2000:]
    return Generated(*json.loads(answer.read_text()))


def count_drafts(
    model: Path, prompt: list[int], scratch: Path, draft: Path | None = None, kind: str = "MTP"
) -> int:
    """Return how many tokens the layers for multi-token prediction of a GGUF file have drafted.

    They can be those of the file `draft`, or it can have a draft model of another kind.
    """
    answer = scratch / "drafts.json"
    done = run_ready(_DRAFTING, model, json.dumps(prompt), answer, kind, draft or "")
    assert done.returncode == 0, done.stderr[-2000:]
    return int(json.loads(answer.read_text()))


def ask(model: Path, *questions: tuple[Any, ...], **options: Any) -> list[Any]:
    """Return the answers of llama.cpp to questions about a GGUF file.

    A question is the name of a method of `libllama.Model` and its arguments; the options are that
    class's. One process answers all of them.
    """
    with tempfile.TemporaryDirectory() as scratch:
        asked, answered = Path(scratch) / "asked", Path(scratch) / "answered"
        asked.write_bytes(pickle.dumps((str(model), options, questions)))
        done = run_ready(_ASKING, asked, answered, imports=["libllama"])
        assert done.returncode == 0, done.stderr[-3000:]
        return pickle.loads(answered.read_bytes())


# ggml itself, called through the shared object of the `xllamacpp` wheel.


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


class _GgufParams(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.POINTER(ctypes.c_void_p)))


def read_float_tensors(path: Path) -> dict[str, Floats]:
    """Return the flat tensors of a GGUF file that ggml reads as llama-quantize reads its matrix."""
    library, pointer = _ggml(), ctypes.c_void_p
    for name, result, *arguments in (
        ("gguf_init_from_file", pointer, ctypes.c_char_p, _GgufParams),
        ("ggml_get_first_tensor", pointer, pointer),
        ("ggml_get_next_tensor", pointer, pointer, pointer),
        ("ggml_get_name", ctypes.c_char_p, pointer),
        ("ggml_get_data_f32", ctypes.POINTER(ctypes.c_float), pointer),
        ("ggml_nelements", ctypes.c_int64, pointer),
        ("gguf_free", None, pointer),
        ("ggml_free", None, pointer),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    context = pointer()
    params = _GgufParams(False, ctypes.pointer(context))
    file = library.gguf_init_from_file(str(path).encode(), params)
    assert file, f"ggml does not read {path}"
    found: dict[str, Floats] = {}
    # The first one is the memory of all others.
    tensor = library.ggml_get_next_tensor(context, library.ggml_get_first_tensor(context))
    while tensor:
        values = library.ggml_get_data_f32(tensor)
        shape = (library.ggml_nelements(tensor),)
        found[library.ggml_get_name(tensor).decode()] = np.ctypeslib.as_array(values, shape).copy()
        tensor = library.ggml_get_next_tensor(context, tensor)
    library.gguf_free(file)
    library.ggml_free(context)
    return found


# How far apart what two runs of a model say is.


def log_softmax(logits: Floats) -> Floats:
    """Return the logarithms of probabilities, along the last axis."""
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def mean_divergence(expected: Floats, found: Floats) -> float:
    """Return the mean Kullback-Leibler divergence of logits [tokens, vocabulary], in nats."""
    right, other = log_softmax(expected.astype(np.float64)), log_softmax(found.astype(np.float64))
    return float((np.exp(right) * (right - other)).sum(-1).mean())


def cosines(one: Floats, other: Floats) -> Floats:
    """Return the cosines of the angles between vectors, along the last axis."""
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    return (one * other).sum(-1) / lengths
