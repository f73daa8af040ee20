"""Keys of config.json that all models have in transformers: `PreTrainedConfig` (5.23 and older)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from weightctl.families.config_values import CAUSAL, show_value
from weightctl.text.untyped import is_object, is_sequence
from weightctl.text.wording import join_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.family import Family

# Keys that families, schemes or functions of this module read, if they apply to the model.
USED = frozenset({
    "architectures", "auto_map", "dtype", "head_dim", "id2label", "is_causal", "is_decoder",
    "layer_types", "max_position_embeddings", "model_type", "num_labels",
    "original_max_position_embeddings", "partial_rotary_factor", "quantization_config",
    "rope_parameters", "rope_scaling", "rope_theta", "tie_word_embeddings", "torch_dtype",
})  # fmt: skip
# Keys that do not change the logits of a text: those of training, generation, outputs and programs.
HARMLESS = frozenset({
    "_attn_implementation", "_attn_implementation_internal", "_commit_hash",
    "_experts_implementation", "_experts_implementation_internal", "_name_or_path",
    "allow_global_per_layer_attribute_access", "attn_implementation", "bos_token_id",
    "chunk_size_feed_forward", "cross_attention_hidden_size", "eos_token_id",
    "experts_implementation", "finetuning_task", "is_encoder_decoder", "label2id", "name_or_path",
    "output_attentions", "output_hidden_states", "pad_token_id", "problem_type", "return_dict",
    "serialize_explicit_per_layer_config", "task_specific_params", "tie_encoder_decoder",
    "tie_last_hidden_states", "tokenizer_class", "torchscript", "transformers_version", "use_cache",
})  # fmt: skip
# Keys whose other values than none, false, 0 and empty change what a model computes. A family that
# supports others reads the key itself.
REFUSED: Mapping[str, str] = {
    "add_cross_attention": "cross attention is not supported",
    "per_layer_config": "settings of single layers are not supported",
    "pruned_heads": "heads that are removed after loading are not supported",
    "use_bidirectional_attention": CAUSAL.reason,
}

_KINDS = r"(text)?(pretrained|withlmhead|lmhead|doubleheads)?(model|for[a-z]+)?"
_ENDING = re.compile(r"(LMHead)?Model$|For[A-Za-z]+$")
# The names of published classes that make a decoder see later tokens: LLM2Vec, NV-Embed,
# nvidia/llama-nemoretriever and others.
_SEES_AHEAD = re.compile(r"bidirec|bi(model|for)|encoder(model)?$|mntp|formaskedlm$|nvembed")


def refuse_keys(family: Family, document: Mapping[str, Any], standard: Mapping[str, Any]) -> None:
    """Raise `ValueError` if a key that all models have makes a model compute something else.

    `standard` is config.json in the form that the family's keys describe.
    """
    own = {key.hugging_face for key in family.keys}
    for key, reason in REFUSED.items():
        if key not in own and standard.get(key):
            raise ValueError(f"`{key}` is {show_value(standard[key])}: {reason}")
    if not any(key.kind == CAUSAL for key in family.keys):
        return
    for key, name in _list_classes(document):
        if _SEES_AHEAD.search(name.lower()):
            raise ValueError(f"`{key}` names {show_value(name)}: {CAUSAL.reason}")


def describe_foreign_classes(family: Family, document: Mapping[str, Any]) -> str:
    """Return a text about classes in config.json that are not of the family, empty if all are."""
    stems = {name.removesuffix("_text") for name in family.model_types}
    stems |= {_ENDING.sub("", kind.class_name) for kind in family.model_types.values()} - {""}
    known = re.compile(f"({'|'.join(map(_fold, stems))}){_KINDS}")
    foreign = [
        f"`{name}` (`{key}`)"
        for key, name in dict.fromkeys(_list_classes(document))
        if not known.fullmatch(_fold(name.rpartition(".")[2]))
    ]
    if not foreign:
        return ""
    isnt = "is not a class" if len(foreign) == 1 else "are not classes"
    return f"{join_names(foreign, 3)} {isnt} of {family.name}, and may compute something else"


def _fold(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def _list_classes(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the classes of models that a config.json names, with their keys."""
    stated, code = document.get("architectures"), document.get("auto_map")
    names = [stated] if isinstance(stated, str) else stated if is_sequence(stated) else []
    found = [("architectures", name) for name in names]
    for key, value in code.items() if is_object(code) else ():
        if key.startswith("AutoModel"):
            found.append(("auto_map", value))
    return [(key, name) for key, name in found if isinstance(name, str)]
