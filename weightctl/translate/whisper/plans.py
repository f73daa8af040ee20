"""The plan for a Whisper model in another naming convention, or for whisper.cpp."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.errors import ArchitectureError
from weightctl.formats import WHISPER_CPP
from weightctl.formats.base import LEVELS_KEY
from weightctl.formats.huggingface import CONFIG, json_document
from weightctl.formats.whisper_cpp import BIASES, DIMENSIONS, FILTERS, TOKENS, matrix_encoding
from weightctl.plan.plan import Plan
from weightctl.translate.whisper.features import compute_mel_filters, make_preprocessor_config
from weightctl.translate.whisper.model import NESTED, recognize_whisper
from weightctl.translate.whisper.names import PREFIX, to_hugging_face
from weightctl.translate.whisper.vocabulary import derive_merges, read_vocabulary
from weightctl.weights.derived import Derived, DerivedTensor
from weightctl.weights.metadata import TEXT, MetadataValue, text
from weightctl.weights.steps.reshaped import WithAxis, WithoutAxis
from weightctl.weights.tree import Checkpoint, header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from weightctl.translate.whisper.model import WhisperConvention, WhisperModel
    from weightctl.weights.derived import ReadableTensor

_TITLES: dict[WhisperConvention, str] = {"openai": "OpenAI", "hugging_face": "Hugging Face"}
# The number of tokens of English models is below this.
_MULTILINGUAL = 51865
_NO_SETTINGS = (
    "generation_config.json (the tokens of languages and tasks, and suppressed tokens) and the "
    "special tokens of the tokenizer are not written: copy the file and the tokenizer from the "
    "original model"
)


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
