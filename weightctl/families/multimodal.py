"""Text models of families that are also a part of multimodal models, in an object of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families.config_values import show_value
from weightctl.families.rope import standard, with_older_names
from weightctl.text.untyped import object_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.family import Family

# Encoders and their projections, by plain names.
TOWER_TENSORS = r"(vision_model|connector|vision_tower|audio_tower|multi_modal_projector)\..+"
_TYPE, _TEXT, _TIED = "model_type", "text_config", "tie_word_embeddings"
# The part of a model that also speaks whose text model it is.
_THINKER = "thinker_config"
# The prefixes of the text model in multimodal checkpoints: on the Hub, and in memory.
_PREFIXES = ("language_model.model.", "model.language_model.", "language_model.")


def in_multimodal(family: Family, classes: Mapping[str, str]) -> Family:
    """Return a family whose text models are also in multimodal models.

    `classes` maps the values of `model_type` of these models to transformers' classes.
    """
    own = next(iter(family.model_types.values()))

    def standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the standard config.json of the text model."""
        if document[_TYPE] not in classes:
            return family.standard(document)
        return family.standard(text_of_type(document, *family.model_types))

    added = {kind: replace(own, class_name=name) for kind, name in classes.items()}
    return replace(
        family,
        model_types={**family.model_types, **added},
        other_prefixes=(*_PREFIXES, *family.other_prefixes),
        beside=(*family.beside, TOWER_TENSORS),
        standard=standard,
    )


def text_of_type(document: Mapping[str, Any], usual: str, *others: str) -> Mapping[str, Any]:
    """Return the config of a text model in that of a multimodal model.

    Its `model_type` is `usual` (the default), one of `others`, or that of the multimodal model with
    `_text`, as in the releases of EXAONE 4.5. Raises `ValueError` if it is another.
    """
    kind = object_of(document, _TEXT).get(_TYPE, usual)
    if kind not in {usual, *others, f"{document[_TYPE]}_text"}:
        raise ValueError(
            f"`text_config.model_type` is {show_value(kind)}, a text model that weightctl does not "
            f"support in models of the type {document[_TYPE]}; it supports {usual}"
        )
    return take_text(document)


def is_multimodal(document: Mapping[str, Any]) -> bool:
    """Whether a config.json has that of a text model in an object of its own, or of an encoder."""
    return not {_TEXT, "audio_config", "vision_config"}.isdisjoint(open_thinker(document))


def open_thinker(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of the thinker, which models that also speak contain.

    Raises `ValueError` if it is not a JSON object.
    """
    if _THINKER not in document:
        return document
    return {**object_of(document, _THINKER), _TYPE: document[_TYPE]}


def standard_text(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of the text model, which multimodal models contain.

    Raises `ValueError` if it is not a JSON object.
    """
    document = open_thinker(document)
    if document[_TYPE].endswith("_text") or _TEXT not in document:
        return document
    return take_text(document)


def take_text(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of the text model in that of a multimodal model."""
    # The output belongs to the whole model, and so does the key that states that it is tied.
    outer = {_TIED: document[_TIED]} if _TIED in document else {}
    return {**object_of(document, _TEXT), **outer}


# The type of the text model in multimodal models of these types.
_TEXTS = {
    "idefics3": "llama",
    "smolvlm": "llama",
    "llava": "mistral",
    "internvl": "llama",
    "voxtral": "llama",
}
# The names in InternLM's own code.
_OLDER = {"attention_bias": "qkv_bias", "mlp_bias": "bias"}


def standard_llama(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the standard config.json of the text model, which multimodal models contain."""
    usual = _TEXTS.get(document["model_type"])
    text = document if usual is None else text_of_type(document, usual)
    return standard(with_older_names(text, _OLDER))
