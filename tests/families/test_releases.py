"""Configs with the exact scalars of releases cross to GGUF and back as the same models.

`releases.json` has a row for each: the name of a repository, and of its config.json the keys that
decide what the model computes. `source` states where they are from: `release` is config.json as
published, `part` a public copy of some of its keys, and `defaults` what transformers' class has for
the model that it names (the row is called as the class if it names none, or another's). `refused`
is why llama.cpp cannot have the model. A long list has runs of equal values, which repeat `times`.
"""

from __future__ import annotations

import json
from dataclasses import fields as fields_of
from dataclasses import replace
from functools import cache
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import each
from lazy import torch, transformers
from weightctl.dtype import ENCODINGS
from weightctl.errors import ArchitectureError
from weightctl.families import FAMILIES
from weightctl.families.config_keys import RowCount
from weightctl.families.config_writing import model_type_of, to_gguf, to_hugging_face
from weightctl.families.configs import from_gguf, from_hugging_face
from weightctl.families.model import ARCHITECTURE
from weightctl.families.modules import shape_of
from weightctl.families.recognition import find_typed_family
from weightctl.families.rope_factors import RopeScaling
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.info import TensorInfo
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from weightctl.families.family import Family
    from weightctl.families.modules import Name, TensorNames

ROWS = json.loads((Path(__file__).parent / "releases.json").read_text())
RELEASES = {row["name"]: row for row in ROWS}
# What the weights in GGUF contain, so that another value comes back.
IN_WEIGHTS: dict[str, tuple[str, ...]] = {
    "falcon_h1": (
        "attention_scales", "embedding_scale", "logit_scale", "mlp_scales", "ssm_scales",
    ),
    "gemma2": ("query_scalar",),
    "gemma3n": ("layer_vocabulary",),
    "jais": ("embedding_scale", "logit_scale"),
}  # fmt: skip
# Keys of transformers' configs, and tensors, that may differ although the models are the same.
UNREAD = {"_name_or_path", "architectures", "max_window_layers"}
EQUIVALENT: dict[str, set[str]] = {
    # 64 of 192 values in both, and a limit that no step reaches
    "XiaomiMiMo/MiMo-V2-Flash": {"rope_parameters", "partial_rotary_factor"},
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": {"intermediate_size"},
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": {"intermediate_size", "time_step_limit"},
    "mistralai/Mistral-7B-Instruct-v0.3": {"model_type"},
    "google/gemma-2-2b-jpn-it": {"query_pre_attn_scalar"},
    "LGAI-EXAONE/EXAONE-4.0-32B": {"sliding_window_pattern"},
    "microsoft/phi-4": {"original_max_position_embeddings"},
    # 12,288 is the size before it is adjusted
    "LiquidAI/LFM2-1.2B": {"intermediate_size", "block_auto_adjust_ff_dim"},
    "tiiuae/Falcon-H1-0.5B-Instruct": {
        "attention_out_multiplier", "embedding_multiplier", "key_multiplier", "lm_head_multiplier",
        "mamba_norm_before_gate", "mlp_multipliers", "ssm_in_multiplier", "ssm_multipliers",
        "ssm_out_multiplier",
    },
    "google/gemma-3n-E4B": {"embed_tokens_per_layer.weight", "vocab_size_per_layer_input"},
    "tiiuae/falcon-mamba-7b": {"expand"},
}  # fmt: skip
# transformers computes with keys that are null in its own defaults, or does not load a text model
# alone.
UNBUILT = {
    "PaddlePaddle/PaddleOCR-VL",
    "Qwen/Qwen3-Omni-30B-A3B-Instruct",
    "stepfun-ai/Step-3.7-Flash",
    "tencent/Hunyuan-A13B-Instruct",
    "thhaus/nemotron3-8b",
}


def expand(value: Any) -> Any:
    """Return a value of a row with its lists in full."""
    if isinstance(value, dict) and value.keys() == {"runs", "times"}:
        return [each for each, count in value["runs"] for _ in range(count)] * value["times"]
    return {k: expand(v) for k, v in value.items()} if isinstance(value, dict) else value


@cache
def document_of(name: str) -> dict[str, Any]:
    return expand(RELEASES[name]["config"])


def family_of(document: dict[str, Any]) -> Family:
    return find_typed_family(as_checkpoint({}), document, "config.json")


def list_tensors(family: Family, config: Any) -> list[TensorNames]:
    """Return the tensors of a model, of experts only the first."""
    counts = {line.count for line in family.names if line.is_of_experts}
    many = {field.name: 1 for field in fields_of(config) if field.name in counts}
    return list(family.tensors(replace(config, **many)))


def with_values(family: Family, config: Any, fields: Any, original: Any = None) -> Any:
    """Return the fields with those that a checkpoint's small tensors define.

    The values are those that the `original` config makes, else 1.
    """
    if not any(line.add_fields for line in family.names):
        return fields
    for names in list_tensors(family, config):
        line: Name = names.line
        if line.add_fields is not None:
            made = line.made(original) if line.made is not None and original is not None else None
            fields = line.add_fields(fields, np.ones(1, np.float32) if made is None else made)
    return fields


def describe_tensors(family: Family, config: Any) -> dict[str, TensorInfo]:
    """Return the tensors of a GGUF file; the shapes are those of the tensors that keys count."""
    counted = {key.seen.tensor for key in family.keys if isinstance(key.seen, RowCount)}
    shapes: dict[str, tuple[int, ...]] = {
        each.gguf: shape_of(each, config) if each.gguf in counted else (1,)
        for each in list_tensors(family, config)
        if each.gguf
    }
    made = [line for line in family.names if line.made is not None and line.gguf]
    shapes |= {f"{line.gguf}.weight": (1,) for line in made if line.made(config) is not None}
    return {name: TensorInfo(name, shape, ENCODINGS["F32"]) for name, shape in shapes.items()}


@cache
def back_of(name: str) -> dict[str, Any]:
    """Return the config.json that a release's becomes after GGUF."""
    document = document_of(name)
    family = family_of(document)
    read = from_hugging_face(family, document, "config.json")
    given = with_values(family, read.config, read.fields)
    metadata = {ARCHITECTURE: MetadataValue("string", family.gguf_name)} | to_gguf(family, given)
    tensors = describe_tensors(family, read.config)
    found = from_gguf(family, metadata, tensors, "model.gguf")
    fields = with_values(family, found.config, found.fields, read.config)
    return to_hugging_face(family, fields, model_type_of(family, fields))


def is_same(value: Any, found: Any) -> bool:
    """Whether two values of configs mean the same to a model that computes in float32."""
    if isinstance(value, RopeScaling) and isinstance(found, RopeScaling):
        # How the amplitude is stated does not matter.
        derived = {"attention_factor": None, "mscale": None, "mscale_all_dim": None}
        value, found = (
            (*vars_of(replace(each, **derived)).values(), each.amplitude) for each in (value, found)
        )
    if isinstance(value, tuple) and isinstance(found, tuple):
        return len(value) == len(found) and all(map(is_same, value, found))
    if isinstance(value, float) and isinstance(found, int | float):
        return isclose(value, found, rel_tol=2**-23)
    return type(value) is type(found) and value == found


def vars_of(config: Any) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in fields_of(config)}


def test_every_family_has_a_release() -> None:
    found = {family_of(document_of(name)).name for name in RELEASES}
    assert found == {line.load().name for line in FAMILIES.values()}


@each("name", [name for name in RELEASES if "refused" not in RELEASES[name]])
def test_the_exact_scalars_of_a_release_come_back_from_gguf(name: str) -> None:
    family = family_of(document_of(name))
    config, found = (
        vars_of(from_hugging_face(family, each, "config.json").config)
        for each in (document_of(name), back_of(name))
    )
    in_weights = IN_WEIGHTS.get(family.name, ())
    assert {
        key: (value, found[key])
        for key, value in config.items()
        if key not in in_weights and not is_same(value, found[key])
    } == {}


@each("name", [name for name in RELEASES if "refused" in RELEASES[name]])
def test_a_release_that_llama_cpp_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(ArchitectureError) as caught:
        back_of(name)
    assert RELEASES[name]["refused"] in str(caught.value)


def test_the_size_of_the_heads_of_glm_4_5_is_stated() -> None:
    # The heads do not divide the hidden size, and transformers would compute 53.
    assert back_of("zai-org/GLM-4.5")["head_dim"] == 128


def of_transformers(document: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what transformers has for the text model: keys of its config, and shapes."""
    config = transformers.AutoConfig.for_model(
        **{key: value for key, value in document.items() if key != "auto_map"}
    ).get_text_config()
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(config)
    return config.to_dict(), {key: value.shape for key, value in model.state_dict().items()}


@pytest.mark.long
@each("name", [name for name in RELEASES if "refused" not in RELEASES[name]])
def test_transformers_has_the_same_model_after_gguf(name: str) -> None:
    # Other tests add types of their own to `CONFIG_MAPPING`.
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES
    if RELEASES[name]["config"]["model_type"] not in known or name in UNBUILT:
        pytest.skip("transformers does not have the type, or not with these defaults")
    (own, shapes), (back, others) = map(of_transformers, (document_of(name), back_of(name)))
    equivalent = EQUIVALENT.get(name, set()) | UNREAD
    assert {
        key: (value, back[key])
        for key, value in own.items()
        if key in back and key not in equivalent and not is_same_json(value, back[key])
    } == {}
    assert shapes == others | {key: shapes[key] for key in equivalent if key in shapes}


def is_same_json(value: Any, found: Any) -> bool:
    """Whether two values of transformers' configs are the same; one that is not stated is."""
    if isinstance(value, dict) and isinstance(found, dict):
        return all(is_same_json(value[key], found[key]) for key in value.keys() & found.keys())
    if isinstance(value, list | tuple) and isinstance(found, list | tuple):
        return len(value) == len(found) and all(map(is_same_json, value, found))
    if isinstance(value, int | float) and isinstance(found, int | float):
        return value == found or isclose(value, found, rel_tol=2**-23)
    return value is None or found is None or value == found
