"""Extraction of a LoRA adapter from two models: low-rank approximations of the differences."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.errors import ConversionError
from weightctl.formats.huggingface import CONFIG, config, json_document
from weightctl.text.patterns import select_names
from weightctl.text.wording import join_names, pluralize
from weightctl.weights.derived import tensor_of
from weightctl.weights.steps.numbers import read_floats
from weightctl.weights.tree import header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from weightctl.weights.info import TensorInfo
    from weightctl.weights.tree import Checkpoint

    Floats = NDArray[np.float32]

_PREFIX = "base_model.model."
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|word_embeddings|tok_embeddings|embeddings)$")
# The columns that a random projection has beyond the rank, and how often it is refined.
_SPARE, _ROUNDS = 16, 2
# Matrices whose smaller side is at most this multiple of the rank are decomposed exactly.
_SHARE = 4
_MOST_NAMED = 3


class ExtractedWeight(NamedTuple):
    """A weight in the adapter: its rank, and how much of the difference the pair contains.

    `energy` is the sum of the squares of the difference, and `captured` the part of it, from 0 to
    1, that the product of the pair has.
    """

    name: str
    shape: tuple[int, ...]
    rank: int
    energy: float
    captured: float


class ExtractedAdapter(NamedTuple):
    """A LoRA adapter that was computed: PEFT's tensors and settings, and what it captures.

    `left_out` are the names of tensors that differ, but are not matrices, so that the adapter does
    not have them.
    """

    tensors: dict[str, Floats]
    settings: bytes
    weights: list[ExtractedWeight]
    unchanged: int
    left_out: list[str]


def extract_pairs(
    base: Checkpoint,
    tuned: Checkpoint,
    rank: int,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    where: str = "",
    progress: Callable[[int], object] | None = None,
) -> ExtractedAdapter:
    """Return the adapter of a rank that turns `base` into `tuned`, one matrix after the other.

    Each difference is approximated by a randomized singular value decomposition (Halko, Martinsson
    and Tropp 2011); the random numbers are always the same. `where` is the name of the base in
    PEFT's settings. Raises `ConversionError` if the models have different names or shapes, or if no
    matrix differs.
    """
    names = _list_common(base, tuned, include, exclude)
    tensors: dict[str, Floats] = {}
    weights: list[ExtractedWeight] = []
    left_out: list[str] = []
    unchanged = 0
    for name in names:
        one, other = (tensor_of(source_of(each), name) for each in (base, tuned))
        size = one.info.size
        difference = read_floats(other, 0, size)
        difference = difference - read_floats(one, 0, size)
        if progress is not None:
            progress(one.info.nbytes)
        if not difference.any():
            unchanged += 1
        elif not _is_matrix(one.info):
            left_out.append(name)
        elif not np.isfinite(difference).all():
            raise ConversionError(
                f"the difference of `{name}` has values that are not finite",
                hint="leave the tensor out with --exclude (exclude in Python)",
            )
        else:
            module = name.removesuffix(".weight")
            matrix = difference.reshape(one.info.shape)
            found, pair = _approximate(name, module, matrix, rank)
            tensors |= pair
            weights.append(found)
    if not weights:
        raise ConversionError(
            "no matrix differs between the two models",
            hint="check that the paths are those of the base model and the tuned model",
        )
    settings = _make_settings(base, weights, names, rank, where)
    return ExtractedAdapter(tensors, settings, weights, unchanged, left_out)


def _is_matrix(info: TensorInfo) -> bool:
    return len(info.shape) == 2 and info.name.endswith(".weight")


def _list_common(
    base: Checkpoint, tuned: Checkpoint, include: Sequence[str], exclude: Sequence[str]
) -> list[str]:
    """Return the names of the tensors to compare, which both models have in the same shape."""
    one, other = header_of(base).tensors, header_of(tuned).tensors
    wanted = select_names([name for name, info in one.items() if info.encoding.is_real],
                          include, exclude)  # fmt: skip
    if header_of(base).format == "gguf" or header_of(tuned).format == "gguf":
        raise ConversionError(
            "an adapter has the names of a Hugging Face model, but a GGUF file has other names",
            hint="convert the GGUF file to a model directory first",
        )
    lacking = [name for name in wanted if name not in other]
    if lacking:
        raise ConversionError(
            f"the tuned model lacks {pluralize(len(lacking), 'tensor')} of the base: "
            f"{join_names(lacking, _MOST_NAMED)}",
            hint="both models need the same names; leave tensors out with --exclude (exclude in "
            "Python)",
        )
    for name in wanted:
        if one[name].shape != other[name].shape:
            raise ConversionError(
                f"`{name}` has shape {list(one[name].shape)} in the base, but "
                f"{list(other[name].shape)} in the tuned model",
                hint="leave the tensor out with --exclude (exclude in Python)",
            )
    return wanted


def _approximate(
    name: str, module: str, difference: Floats, rank: int
) -> tuple[ExtractedWeight, dict[str, Floats]]:
    """Return what the pair of a matrix captures, and the pair by PEFT's names."""
    is_embedding = _EMBEDDING.search(module) is not None
    matrix = difference.T if is_embedding else difference
    rank = min(rank, *matrix.shape)
    left, values, right = _decompose(matrix, rank)
    root = np.sqrt(values)
    first, second = root[:, None] * right, left * root
    energy = float(np.square(matrix, dtype=np.float64).sum())
    # The squares of the rest, without the values of the decomposition, which are approximate.
    rest = float(np.square(matrix - second @ first, dtype=np.float64).sum())
    stem = f"{_PREFIX}{module}"
    names = ("lora_A.weight", "lora_B.weight")
    if is_embedding:
        names = ("lora_embedding_A", "lora_embedding_B")
    pair = dict(zip((f"{stem}.{each}" for each in names), (first, second), strict=True))
    made = {key: np.ascontiguousarray(each, np.float32) for key, each in pair.items()}
    captured = max(energy - rest, 0.0) / energy if energy else 1.0
    return ExtractedWeight(name, difference.shape, rank, energy, captured), made


def _decompose(matrix: Floats, rank: int) -> tuple[Floats, Floats, Floats]:
    """Return the largest singular values with their vectors: left, values, right."""
    if min(matrix.shape) <= _SHARE * rank:
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        return left[:, :rank], values[:rank], right[:rank]
    random = np.random.default_rng(0)
    count = min(rank + _SPARE, *matrix.shape)
    basis = matrix @ random.standard_normal((matrix.shape[1], count), np.float32)
    for _ in range(_ROUNDS):
        basis, _ = np.linalg.qr(basis)
        turned, _ = np.linalg.qr(matrix.T @ basis)
        basis = matrix @ turned
    basis, _ = np.linalg.qr(basis)
    left, values, right = np.linalg.svd(basis.T @ matrix, full_matrices=False)
    return (basis @ left)[:, :rank], values[:rank], right[:rank]


def _make_settings(
    base: Checkpoint,
    weights: Sequence[ExtractedWeight],
    names: Sequence[str],
    rank: int,
    where: str,
) -> bytes:
    """Return PEFT's adapter_config.json; alpha is the rank, so that pairs are not scaled."""
    modules = [each.name.removesuffix(".weight") for each in weights]
    lower = {
        module: each.rank
        for module, each in zip(modules, weights, strict=True)
        if each.rank != rank
    }
    document = config(header_of(base), CONFIG)
    classes = [str(each) for each in document.get("architectures") or ()]
    is_language_model = any(each.endswith("ForCausalLM") for each in classes)
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM" if is_language_model else None,
        "base_model_name_or_path": where,
        "r": rank,
        "lora_alpha": rank,
        "rank_pattern": lower,
        "alpha_pattern": lower,
        "target_modules": _shorten(modules, names),
        "modules_to_save": None,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "lora_dropout": 0.0,
        "init_lora_weights": True,
        "inference_mode": True,
    }
    return json_document(settings)


def _shorten(modules: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the last words of modules if they name no other module, else the whole names."""
    own = set(modules)
    last = {module.rpartition(".")[2] for module in modules}
    others = (name.rpartition(".")[0] for name in names if name.rpartition(".")[0] not in own)
    if any(module.rpartition(".")[2] in last for module in others):
        return list(modules)
    return sorted(last)
