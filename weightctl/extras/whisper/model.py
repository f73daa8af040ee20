"""Recognition of Whisper models: their sizes, their naming convention, and all their tensors."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from weightctl.errors import ArchitectureError
from weightctl.extras.whisper.names import OUTPUT, to_openai
from weightctl.extras.whisper_cpp import BIASES, DIMENSIONS
from weightctl.formats.huggingface import CONFIG, config, is_config_of
from weightctl.text.wording import join_names, pluralize
from weightctl.translate.copies import is_same
from weightctl.weights.derived import tensor_of
from weightctl.weights.tree import header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import Header
    from weightctl.weights.tree import Checkpoint

WhisperConvention: TypeAlias = Literal["openai", "hugging_face"]

# The entry of OpenAI's .pt files that contains the tensors.
NESTED = "model_state_dict."
# The keys of config.json for the sizes, in the order of `DIMENSIONS`.
_KEYS = (
    "vocab_size", "max_source_positions", "d_model", "encoder_attention_heads", "encoder_layers",
    "max_target_positions", "d_model", "decoder_attention_heads", "decoder_layers",
    "num_mel_bins",
)  # fmt: skip
_MOST_LAYERS = 1000
_MOST_NAMED = 4
_HINT = (
    "check that the checkpoint is complete, and that it is a Whisper model with the tensors of "
    "OpenAI's models"
)


@dataclass(frozen=True, slots=True)
class WhisperModel:
    """A Whisper model: its convention, its sizes by the keys of `DIMENSIONS`, and its tensors.

    `tensors` are by OpenAI's names. The biases of the convolutions are matrices with one column if
    the model is in a file of whisper.cpp. `document` is the config.json, and `directory` that of
    the files.
    """

    convention: WhisperConvention
    sizes: Mapping[str, int]
    tensors: Mapping[str, ReadableTensor]
    document: Mapping[str, Any]
    directory: str


def recognize_whisper(weights: Checkpoint) -> WhisperModel | None:
    """Return a checkpoint as a Whisper model; None if it is not one.

    Raises `ArchitectureError` if its sizes are invalid, or if tensors are missing, unknown, or of a
    wrong shape.
    """
    header = header_of(weights)
    first = header.files[0] if header.files else ""
    directory = os.path.dirname(first)
    stated = [header.metadata[key].content for key in DIMENSIONS if key in header.metadata]
    document: Mapping[str, Any] = {}
    convention: WhisperConvention = "openai"
    where = first or "the metadata"
    if len(stated) < len(DIMENSIONS):
        document = config(header)
        if document.get("model_type") != "whisper" or not is_config_of(document, header):
            return None
        convention, where = "hugging_face", os.path.join(directory, CONFIG)
        stated = [document.get(key) for key in _KEYS]
    sizes = _check_sizes(stated, where)
    tensors = _collect(weights, header, convention)
    _check_tensors(sizes, tensors, where)
    return WhisperModel(convention, sizes, tensors, document, directory)


def _check_sizes(stated: list[Any], where: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for key, size in zip(DIMENSIONS, stated, strict=True):
        most = _MOST_LAYERS if key.endswith("layer") else 1 << 24
        if type(size) is not int or not 0 < size <= most:
            raise ArchitectureError(f"{where}: the size `{key}` is {size!r:.80}", hint=_HINT)
        sizes[key] = size
    return sizes


def _collect(
    weights: Checkpoint, header: Header, convention: WhisperConvention
) -> dict[str, ReadableTensor]:
    """Return the tensors by OpenAI's names; unknown ones keep their names."""
    source = source_of(weights)
    found: dict[str, ReadableTensor] = {}
    for name in (*header.tensors, *header.aliases):
        plain = name.removeprefix(NESTED)
        known = plain if convention == "openai" else to_openai(name)
        found[known or name] = tensor_of(source, name)
    output = found.get(OUTPUT)
    embedding = found.get("decoder.token_embedding.weight")
    if output is not None and embedding is not None:
        if not is_same(output, embedding):
            raise ArchitectureError(
                f"`{OUTPUT}` differs from the token embedding, but Whisper models use the "
                "embedding as their output",
                hint=_HINT,
            )
        del found[OUTPUT]
    return found


def _check_tensors(
    sizes: Mapping[str, int], tensors: Mapping[str, ReadableTensor], where: str
) -> None:
    expected = _list_shapes(sizes)
    problems: list[str] = []
    missing = [name for name in expected if name not in tensors]
    unknown = [name for name in tensors if name not in expected]
    wrong = [
        name
        for name, shape in expected.items()
        if name in tensors and _shape(name, tensors[name].info.shape) != shape
    ]
    for what, names in (("missing", missing), ("unknown", unknown), ("of a wrong shape", wrong)):
        if names:
            are = "is" if len(names) == 1 else "are"
            listed = join_names(names, _MOST_NAMED)
            problems.append(f"{pluralize(len(names), 'tensor')} {are} {what}: {listed}")
    if problems:
        message = f"{where}: the tensors are not those of this Whisper model:"
        raise ArchitectureError("\n  ".join([message, *problems]), hint=_HINT)


def _shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    is_column = name in BIASES and len(shape) == 2 and shape[1] == 1
    return shape[:1] if is_column else shape


def _list_shapes(sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors of a model, by OpenAI's names."""
    tokens, frames, wide, _, encoders, positions, deep, _, decoders, mels = (
        sizes[key] for key in DIMENSIONS
    )
    shapes: dict[str, tuple[int, ...]] = {
        "encoder.conv1.weight": (wide, mels, 3),
        "encoder.conv1.bias": (wide,),
        "encoder.conv2.weight": (wide, wide, 3),
        "encoder.conv2.bias": (wide,),
        "encoder.positional_embedding": (frames, wide),
        "decoder.token_embedding.weight": (tokens, deep),
        "decoder.positional_embedding": (positions, deep),
        **_list_norm("encoder.ln_post", wide),
        **_list_norm("decoder.ln", deep),
    }
    for part, layers, width in (("encoder", encoders, wide), ("decoder", decoders, deep)):
        attentions = ("attn",) if part == "encoder" else ("attn", "cross_attn")
        for layer in range(layers):
            block = f"{part}.blocks.{layer}"
            shapes |= _list_norm(f"{block}.mlp_ln", width)
            shapes |= _list_linear(f"{block}.mlp.0", 4 * width, width)
            shapes |= _list_linear(f"{block}.mlp.2", width, 4 * width)
            for attention in attentions:
                shapes |= _list_norm(f"{block}.{attention}_ln", width)
                for name in ("query", "key", "value", "out"):
                    shapes |= _list_linear(f"{block}.{attention}.{name}", width, width)
                del shapes[f"{block}.{attention}.key.bias"]
    return shapes


def _list_norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _list_linear(name: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}
