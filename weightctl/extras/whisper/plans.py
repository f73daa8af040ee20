"""The plan for a Whisper model in another naming convention, or for whisper.cpp."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.errors import ArchitectureError, TokenizerError
from weightctl.extras.whisper.model import NESTED, recognize_whisper
from weightctl.extras.whisper.names import PREFIX, to_hugging_face
from weightctl.extras.whisper_cpp import (
    BIASES,
    DIMENSIONS,
    FILTERS,
    TOKENS,
    WHISPER_CPP,
    matrix_encoding,
)
from weightctl.formats.base import LEVELS_KEY
from weightctl.formats.huggingface import CONFIG, json_document
from weightctl.plan.choices import Names
from weightctl.plan.plan import Plan
from weightctl.text.byte_level import from_byte_level
from weightctl.text.untyped import is_list, is_object
from weightctl.translate.tokenizer.files import open_files
from weightctl.translate.tokenizer.tiktoken import derive_merges, read_ranks
from weightctl.weights.derived import Derived, DerivedTensor
from weightctl.weights.metadata import TEXT, MetadataValue, text
from weightctl.weights.steps.reshaped import WithAxis, WithoutAxis
from weightctl.weights.tree import Checkpoint, header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from weightctl.extras.whisper.model import WhisperConvention, WhisperModel
    from weightctl.translate.tokenizer.files import TokenizerFiles
    from weightctl.weights.derived import ReadableTensor

_TIKTOKEN = ("multilingual.tiktoken", "gpt2.tiktoken")
# Multilingual models have at least so many tokens.
_HINT = (
    "put vocab.json or tokenizer.json of the model, or OpenAI's multilingual.tiktoken (for English "
    "models gpt2.tiktoken), beside the weights"
)
_SAMPLE_RATE, _WINDOW = 16_000, 400
# The seconds that a model hears at once, and the samples between two frames.
_SECONDS, _HOP = 30, 160
# Below this frequency, a mel has the same width everywhere.
_KNEE_HZ, _HZ_PER_MEL = 1000.0, 200.0 / 3
# Above it, 27 mels are a factor of 6.4.
_LOG_STEP = math.log(6.4) / 27
_KNEE_MEL = _KNEE_HZ / _HZ_PER_MEL
_TITLES: dict[WhisperConvention, str] = {"openai": "OpenAI", "hugging_face": "Hugging Face"}
# The number of tokens of English models is below this.
_MULTILINGUAL = 51865
_NO_SETTINGS = (
    "generation_config.json (the tokens of languages and tasks, and suppressed tokens) and the "
    "special tokens of the tokenizer are not written: copy the file and the tokenizer from the "
    "original model"
)


def plan_layout(
    weights: Checkpoint, format_name: str, names: Names, *, is_model: bool
) -> Plan | None:
    """Return the plan for a Whisper model whose names change; None for any other plan."""
    is_asked = format_name == WHISPER_CPP or names is Names.OPENAI
    is_openai = DIMENSIONS[0] in header_of(weights).metadata
    if names in {Names.KEEP, Names.GGUF} or not (is_asked or is_openai):
        return None
    wanted: dict[Names, WhisperConvention] = {Names.HF: "hugging_face", Names.OPENAI: "openai"}
    return plan_whisper(weights, format_name, wanted.get(names), is_model=is_model)


def plan_whisper(
    weights: Checkpoint,
    format_name: str,
    convention: WhisperConvention | None,
    *,
    is_model: bool = False,
) -> Plan | None:
    """Plan to store a Whisper model with other names, or as whisper.cpp reads it.

    `convention` is the requested naming convention, None for that of the output: OpenAI's for
    whisper.cpp, Hugging Face's for a model directory. Returns None if no change is needed, or if
    the checkpoint is not a Whisper model and nothing requires one. Raises `ArchitectureError` as
    `recognize_whisper` does, and `TokenizerError` if whisper.cpp needs a tokenizer that is missing.
    """
    model = recognize_whisper(weights)
    is_for_whisper_cpp = format_name == WHISPER_CPP
    if model is None:
        if not is_for_whisper_cpp and convention != "openai":
            return None
        raise ArchitectureError(
            "the checkpoint is not a Whisper model",
            hint="the format of whisper.cpp exists only for Whisper models, and OpenAI's names "
            "only for these and CLIP: the directory of one has a config.json with the model_type "
            "`whisper` or `clip`, and OpenAI's .pt file of Whisper has the entries `dims` and "
            "`model_state_dict`",
        )
    if is_for_whisper_cpp:
        return _plan_for_whisper_cpp(weights, model)
    wanted = convention or ("hugging_face" if is_model else None)
    if wanted is None or (wanted == model.convention and header_of(weights).format != WHISPER_CPP):
        return None
    if wanted == "openai":
        return _plan_openai(weights, model, format_name)
    return _plan_hugging_face(weights, model, format_name, is_model=is_model)


def _plan_for_whisper_cpp(weights: Checkpoint, model: WhisperModel) -> Plan:
    own = header_of(weights).metadata
    metadata = _dims(model)
    if FILTERS in own and TOKENS in own:
        metadata |= {key: own[key] for key in (FILTERS, TOKENS)}
    else:
        filters = compute_mel_filters(model.sizes["dims.n_mels"])
        words = read_vocabulary(model.directory, model.sizes["dims.n_vocab"])
        metadata[FILTERS] = MetadataValue("array[f32]", filters.reshape(-1).tolist())
        metadata[TOKENS] = MetadataValue("array[string]", words)
    tensors: dict[str, ReadableTensor] = {
        name: _with_columns(name, tensor) for name, tensor in model.tensors.items()
    }
    return _plan(weights, model, tensors, metadata, WHISPER_CPP)


def _plan_openai(weights: Checkpoint, model: WhisperModel, format_name: str) -> Plan:
    metadata = _dims(model)
    prefix = ""
    if format_name == "pytorch":
        prefix = NESTED
        levels = {"dims": "dict", **dict.fromkeys(DIMENSIONS, "int"), NESTED.rstrip("."): "dict"}
        metadata[LEVELS_KEY] = MetadataValue(TEXT, json.dumps(levels, separators=(",", ":")))
    tensors: dict[str, ReadableTensor] = {
        prefix + name: _without_columns(name, tensor) for name, tensor in model.tensors.items()
    }
    return _plan(weights, model, tensors, metadata, format_name)


def _plan_hugging_face(
    weights: Checkpoint, model: WhisperModel, format_name: str, *, is_model: bool
) -> Plan:
    tensors: dict[str, ReadableTensor] = {
        f"{PREFIX}{to_hugging_face(name)}": _without_columns(name, tensor)
        for name, tensor in model.tensors.items()
    }
    plan = _plan(weights, model, tensors, {"format": text("pt")}, format_name)
    if not is_model:
        return plan
    documents = {
        CONFIG: json_document(_make_config(model)),
        "preprocessor_config.json": json_document(
            make_preprocessor_config(model.sizes["dims.n_mels"])
        ),
        **_write_vocabulary(header_of(weights).metadata),
    }
    return replace(plan, documents=documents, notes=(*plan.notes, _NO_SETTINGS))


def _plan(
    weights: Checkpoint,
    model: WhisperModel,
    tensors: Mapping[str, ReadableTensor],
    metadata: Mapping[str, MetadataValue],
    format_name: str,
) -> Plan:
    tree = Checkpoint(Derived(source_of(weights), tensors, metadata, leaves={}))
    plan = Plan.copy(tree, format_name)
    own = _TITLES[model.convention]
    titles = [
        WHISPER_CPP if stored == WHISPER_CPP else title
        for stored, title in (
            (header_of(weights).format, own),
            (format_name, _TITLES["hugging_face" if "format" in metadata else "openai"]),
        )
    ]
    if titles[0] == titles[1]:
        return plan
    return replace(plan, translation=f"whisper, {' -> '.join(titles)}")


def _dims(model: WhisperModel) -> dict[str, MetadataValue]:
    return {key: MetadataValue("i64", size) for key, size in model.sizes.items()}


def _with_columns(name: str, tensor: ReadableTensor) -> ReadableTensor:
    if name not in BIASES or len(tensor.info.shape) != 1:
        return tensor
    return DerivedTensor(name, WithAxis(1), [tensor])


def _without_columns(name: str, tensor: ReadableTensor) -> ReadableTensor:
    if name not in BIASES or len(tensor.info.shape) == 1:
        return tensor
    return DerivedTensor(name, WithoutAxis(1), [tensor])


def _make_config(model: WhisperModel) -> dict[str, Any]:
    sizes = {key.removeprefix("dims."): size for key, size in model.sizes.items()}
    end = 50257 if sizes["n_vocab"] >= _MULTILINGUAL else 50256
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "activation_function": "gelu",
        "d_model": sizes["n_audio_state"],
        "encoder_layers": sizes["n_audio_layer"],
        "encoder_attention_heads": sizes["n_audio_head"],
        "encoder_ffn_dim": 4 * sizes["n_audio_state"],
        "decoder_layers": sizes["n_text_layer"],
        "decoder_attention_heads": sizes["n_text_head"],
        "decoder_ffn_dim": 4 * sizes["n_text_state"],
        "num_hidden_layers": sizes["n_audio_layer"],
        "num_mel_bins": sizes["n_mels"],
        "max_source_positions": sizes["n_audio_ctx"],
        "max_target_positions": sizes["n_text_ctx"],
        "vocab_size": sizes["n_vocab"],
        "scale_embedding": False,
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "decoder_start_token_id": end + 1,
        "torch_dtype": _matrix_dtype(each.info for each in model.tensors.values()),
    }


def _matrix_dtype(infos: Iterable[Any]) -> str:
    dtype = matrix_encoding(list(infos)).dtype
    return "float32" if dtype is None else dtype.value


def _write_vocabulary(metadata: Mapping[str, MetadataValue]) -> dict[str, bytes]:
    if TOKENS not in metadata:
        return {}
    words = list(metadata[TOKENS].content)
    vocabulary = {word: number for number, word in enumerate(words)}
    merges = "\n".join(["#version: 0.2", *derive_merges(words), ""])
    return {
        "vocab.json": json.dumps(vocabulary, ensure_ascii=False).encode(),
        "merges.txt": merges.encode(),
    }


# The input of Whisper models: the mel filter bank, which files of whisper.cpp contain.


def compute_mel_filters(count: int) -> NDArray[np.float32]:
    """Return the filters from 0 Hz to half the sample rate: shape `(count, 201)`."""
    import numpy as np

    highest = _SAMPLE_RATE / 2
    top = _KNEE_MEL + math.log(highest / _KNEE_HZ) / _LOG_STEP
    mels = np.linspace(0.0, top, count + 2)
    linear = mels * _HZ_PER_MEL
    logarithmic = _KNEE_HZ * np.exp(_LOG_STEP * (mels - _KNEE_MEL))
    corners = np.where(mels < _KNEE_MEL, linear, logarithmic)
    bins = np.linspace(0.0, highest, _WINDOW // 2 + 1)
    distances = corners[:, None] - bins
    widths = np.diff(corners)[:, None]
    rising = -distances[:-2] / widths[:-1]
    falling = distances[2:] / widths[1:]
    triangles = np.maximum(0.0, np.minimum(rising, falling)).astype(np.float32)
    areas = 2.0 / (corners[2:] - corners[:-2])
    # The first value is -0, as in OpenAI's file `mel_filters.npz`.
    return (triangles * areas[:, None]).astype(np.float32)


def make_preprocessor_config(count: int) -> dict[str, Any]:
    """Return the content of preprocessor_config.json for a model with `count` mel filters."""
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "feature_size": count,
        "sampling_rate": _SAMPLE_RATE,
        "n_fft": _WINDOW,
        "hop_length": _HOP,
        "chunk_length": _SECONDS,
        "n_samples": _SECONDS * _SAMPLE_RATE,
        "nb_max_frames": _SECONDS * _SAMPLE_RATE // _HOP,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
    }


# The tokens of a Whisper model, without its special tokens, which whisper.cpp adds itself.


def read_vocabulary(directory: str, count: int) -> list[str]:
    """Return the tokens by id, spelled as byte-level tokenizers do.

    `count` is the number of tokens of the model. Raises `TokenizerError` if there is no tokenizer,
    or if it is invalid.
    """
    files = open_files(directory)
    ids = _read_hugging_face(files)
    if ids is None:
        name = _TIKTOKEN[0] if count >= _MULTILINGUAL else _TIKTOKEN[1]
        data = files.data(name)
        ids = None if data is None else read_ranks(data, files.path(name))
        _check(ids or {}, files.path(name))
    if not ids:
        raise TokenizerError(
            f"{directory or '.'}: the tokenizer, whose tokens a file of whisper.cpp contains, is "
            "missing",
            hint=_HINT,
        )
    if max(ids.values()) >= count:
        raise TokenizerError(
            f"{directory or '.'}: the tokenizer has ids up to {max(ids.values())}, but the model "
            f"has only {count} tokens",
            hint=_HINT,
        )
    words = [""] * (max(ids.values()) + 1)
    for word, number in ids.items():
        words[number] = word
    return words


def _read_hugging_face(files: TokenizerFiles) -> dict[str, int] | None:
    """Return the ids of the tokens in Hugging Face's files; None if there are none."""
    document = files.document("tokenizer.json")
    model = document.get("model") if document is not None else None
    vocabulary: object = model.get("vocab") if is_object(model) else files.document("vocab.json")
    where = files.path("tokenizer.json" if is_object(model) else "vocab.json")
    if vocabulary is None:
        return None
    special: set[object] = set((files.document("added_tokens.json") or {}).keys())
    added = document.get("added_tokens") if document is not None else None
    special |= (
        {each.get("content") for each in added or () if is_object(each)}
        if is_list(added)
        else set()
    )
    if not is_object(vocabulary):
        raise TokenizerError(f"{where}: the vocabulary is not a JSON object", hint=_HINT)
    ids = {
        word: number
        for word, number in vocabulary.items()
        if word not in special and not (word.startswith("<|") and word.endswith("|>"))
    }
    _check(ids, where)
    return ids


def _check(ids: Mapping[str, object], where: str) -> None:
    for word, number in ids.items():
        try:
            from_byte_level(word)
        except KeyError as error:
            raise TokenizerError(
                f"{where}: the token {word!r:.80} is not spelled as a byte-level tokenizer does",
                hint=_HINT,
            ) from error
        if not isinstance(number, int) or not 0 <= number < 1 << 24:
            raise TokenizerError(
                f"{where}: the id of the token {word!r:.80} is {number!r:.40}", hint=_HINT
            )
