"""What families call their tensors, in both naming conventions."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import gguf
import pytest

import small_models
from arrays import weights_of
from each import each
from weightctl import open_weights
from weightctl.families import FAMILIES
from weightctl.families.configs import from_hugging_face
from weightctl.families.kinds import Flag
from weightctl.families.parts import shape_of
from weightctl.families.recognition import recognize
from weightctl.system.registry import load

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl import Weights
    from weightctl.families.family import Family
    from weightctl.families.keys import NamingConvention

KINDS = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
CONVENTIONS: tuple[NamingConvention, ...] = ("gguf", "hugging_face")
# Architectures that this release of gguf lacks, each with one that has the same names.
NEWER = {"deepseek32": "glm-dsa"}
MAPS = {
    name: gguf.get_tensor_name_map(KINDS[NEWER.get(kind, kind)], 3)
    for name in FAMILIES
    for kind in [FAMILIES[name].load().gguf_name]
    if NEWER.get(kind, kind) in KINDS
}
# What llama.cpp's script replaces before it looks at the table.
RWKV_NAMES = {
    "ffn": "feed_forward", "attn": "attention", "feed_forward_norm": "ln2", "g_norm": "ln_x",
    "_lora.lora.0.weight": "1.weight", "_lora.lora.2.weight": "2.weight",
    "_lora.lora.2.bias": "0.weight",
}  # fmt: skip
# Those that gguf has no architecture for: weightctl's own, and one that only newer releases have.
OWN = {"deepseek_v4", "recurrent_gemma"}


# Small sizes, and others of which any two differ that a shape could confuse.
SMALL = {"vocabulary": 10, "hidden": 32, "layers": 3, "heads": 4, "kv_heads": 4, "intermediate": 8,
         "experts": 4, "experts_used": 2, "rope_dimensions": 4, "global_kv_heads": 2,
         "ssm_inner": 64, "ssm_heads": 4, "ssm_size": 16, "ssm_groups": 2, "ssm_state": 6,
         "ssm_rank": 3}  # fmt: skip
# What a config must state.
STATED: dict[str, dict[str, Any]] = {
    "deepseek_v4": {"o_groups": 2, "qk_rope_head_dim": 4},
    "gemma3n": {"num_kv_shared_layers": 0, "vocab_size_per_layer_input": 10},
    "gemma4": {
        "vocab_size": 10, "vocab_size_per_layer_input": 10, "enable_moe_block": True,
        "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 12,
    },
    "granite4": {"num_local_experts": 0, "num_experts_per_tok": 0},
    "nemotron_h": {"hybrid_override_pattern": "M-*"},
    "nemotron_h_moe": {"hybrid_override_pattern": "ME*"},
    "rwkv6": {"head_size": 8},
    "rwkv7": {"head_dim": 8},
}  # fmt: skip
UNLIKE = {"head_dim": 6, "kv_heads": 2, "rope_dimensions": 4, "context": 7, "token_types": 3,
          "intermediate": 20, "experts": 9, "expert_intermediate": 10,
          "shared_intermediate": 14, "value_dimensions": 5}  # fmt: skip


def keys_of(name: str) -> dict[str, str]:
    """Return what config.json calls the fields of a family."""
    family: Family = FAMILIES[name].load()
    return {key.field: key.hugging_face for key in reversed(family.keys) if key.hugging_face}


def config(name: str, **changes: Any) -> Any:
    family: Family = FAMILIES[name].load()
    called = keys_of(name)
    document: dict[str, Any] = {"model_type": next(iter(family.model_types))}
    document |= {called[field]: size for field, size in SMALL.items() if field in called}
    document |= STATED.get(name, {})
    made = from_hugging_face(family, document, "here").config
    return dataclasses.replace(made, **changes)


def with_all(name: str) -> dict[str, Any]:
    """Return the fields with which a model has all parts that its family knows."""
    family: Family = FAMILIES[name].load()
    flags = {key.field for key in family.keys if isinstance(key.kind, Flag)}
    found: dict[str, Any] = {}
    for line in family.names:
        if isinstance(line.bias, str) and line.bias in keys_of(name):
            found[line.bias] = True
        found |= dict.fromkeys(flags.intersection(line.when), True)
        if line.unless in flags:
            found[line.unless] = False
    return found


def unlike(name: str) -> dict[str, Any]:
    """Return sizes that a model of a family may have, no two of which are alike."""
    own = keys_of(name) | {"rope_dimensions": "head_dim" if "head_dim" in keys_of(name) else ""}
    return {field: size for field, size in UNLIKE.items() if own.get(field)}


@each("name", FAMILIES)
def test_the_line_of_a_family_has_the_names_that_the_family_has(name: str) -> None:
    line = FAMILIES[name]
    family = line.load()
    assert line.module == f"weightctl.families.{name}"
    assert (family.name, family.gguf_name) == (name, line.gguf)
    assert family.model_types.keys() == set(line.model_types)


def test_only_known_families_have_names_of_their_own_in_gguf() -> None:
    assert FAMILIES.keys() - MAPS.keys() == OWN


@each("name", MAPS)
def test_both_conventions_say_what_ggufs_own_table_says(name: str) -> None:
    tensors = list(FAMILIES[name].load().tensors(config(name, **with_all(name))))
    # Where experts are stacked, several have one name.
    pairs = {(tensor.gguf, tensor.hugging_face) for tensor in tensors if tensor.hugging_face}
    assert len(pairs) >= 20
    known = 0
    for in_gguf, in_hugging_face in pairs:
        # As llama.cpp's script calls what it has stacked.
        stacked = re.sub(r"experts\.\d+", "experts", in_hugging_face)
        if name == "rwkv7":
            for old, new in RWKV_NAMES.items():
                stacked = stacked.replace(old, new)
        expected = MAPS[name].get_name(stacked, (".weight", ".bias"))
        if expected is not None and in_gguf is not None and "attn_kv_b" in expected:
            # llama.cpp's script takes it apart.
            expected = expected.replace("attn_kv_b", in_gguf.split(".")[2])
        if in_gguf is not None and expected is not None and "ssm_in" in expected:
            # It takes this one apart, too.
            expected = in_gguf
        if in_gguf is not None and expected is not None and "ffn_gate_up_exps" in expected:
            # llama.cpp reads them in one tensor or two.
            expected = expected.replace("gate_up", "gate" if "gate" in in_gguf else "up")
        if in_gguf is not None and expected is not None and "lerp_fused" in in_gguf:
            # It joins these.
            expected = re.sub("lerp_[wkvrg]$", "lerp_fused", expected)
        # Its table lacks names of newer versions of transformers.
        # It has names that end in neither as they are.
        bare = in_gguf and in_gguf.removesuffix(".weight").removesuffix(".bias")
        is_bare = not in_hugging_face.endswith((".weight", ".bias"))
        assert expected in {bare if is_bare else in_gguf, None}, in_hugging_face
        known += expected is not None
    assert known > len(pairs) / 2


@each("changed", [False, True])
@each("name", FAMILIES)
def test_the_module_has_just_the_tensors_that_the_lines_say(name: str, changed: bool) -> None:
    family: Family = FAMILIES[name].load()
    made = config(name, **(with_all(name) if changed else {}))
    module = load(family.module)(made)
    assert {tensor.module for tensor in family.tensors(made)} == set(module.raw_state_dict())


@each(
    "name, changes",
    [
        *((name, {}) for name in FAMILIES),
        *((name, with_all(name) | unlike(name)) for name in FAMILIES),
        ("gpt2", unlike("gpt2") | {"transposed": False}),
    ],
)
def test_the_shapes_of_the_table_are_those_of_the_module(
    name: str, changes: dict[str, Any]
) -> None:
    made = config(name, **changes)
    weights = load(FAMILIES[name].load().module)(made).raw_state_dict()
    shapes = {each.module: shape_of(each, made) for each in FAMILIES[name].load().tensors(made)}
    assert shapes == {
        module: weight.original_dtype_and_shape[1].sizes for module, weight in weights.items()
    }


@each("name", FAMILIES)
def test_no_two_tensors_have_one_name(name: str) -> None:
    tensors = list(FAMILIES[name].load().tensors(config(name, **with_all(name))))
    for names in (
        [one.module for one in tensors],
        *(
            # Of those that are stacked the first stands for all.
            [
                one.name(convention)
                for one in tensors
                if one.name(convention)
                and convention not in one.fusions
                and not (one.is_stacked(convention) and one.expert)
            ]
            for convention in CONVENTIONS
        ),
    ):
        assert len(set(names)) == len(names)


def test_tensors_come_layer_after_layer() -> None:
    names = [tensor.gguf or "" for tensor in FAMILIES["llama"].load().tensors(config("llama"))]
    numbers = [int(name.split(".")[1]) for name in names if name.startswith("blk")]
    assert numbers == sorted(numbers)
    assert (names[0], names[-1]) == ("token_embd.weight", "output.weight")


def test_only_matrices_are_transposed_and_biases_are_rotated_too() -> None:
    steps = {
        tensor.gguf: tensor.change
        for name in ("llama", "gpt2")
        for tensor in FAMILIES[name].load().tensors(config(name, **with_all(name)))
    }
    assert steps["blk.1.attn_qkv.weight"] is not None
    assert steps["blk.1.attn_qkv.bias"] is None
    assert steps["blk.1.attn_k.weight"] == steps["blk.1.attn_k.bias"] is not None
    assert steps["blk.1.attn_v.weight"] is None


@each("name", FAMILIES)
def test_vectors_and_positions_stay_in_float32_in_gguf(name: str) -> None:
    tensors = list(FAMILIES[name].load().tensors(config(name, **with_all(name))))
    kept = {tensor.module for tensor in tensors if tensor.is_float32}
    assert {one.module for one in tensors if "norm" in one.module or "bias" in one.module} <= kept
    assert "embedding.weight" not in kept
    assert "layers.0.mlp.up.weight" not in kept
    positions = {one.module for one in tensors if one.module == "position_embedding.weight"}
    assert positions <= kept


def test_tiny_llama_is_whole(tiny_llama: Path) -> None:
    found = recognize(open_weights(tiny_llama))
    assert (found.family.name, found.convention) == ("llama", "hugging_face")
    assert (found.missing, found.unexpected) == ([], [])
    assert found.weights["layers.2.attention.q.weight"].name == (
        "model.layers.2.self_attn.q_proj.weight"
    )


@pytest.mark.real
def test_smollm2_is_whole(smollm2: Path) -> None:
    found = recognize(open_weights(smollm2))
    assert (found.family.name, found.convention) == ("llama", "gguf")
    assert (found.missing, found.unexpected) == ([], [])
    assert "output.weight" not in found.weights
    assert len(found.weights) == 272


@pytest.mark.real
def test_minilm_is_whole_and_its_pooler_is_left_aside(minilm: Path) -> None:
    found = recognize(open_weights(minilm))
    assert (found.family.name, found.convention) == ("bert", "hugging_face")
    assert (found.missing, found.unexpected) == ([], [])
    assert len(found.weights) == 101


def held(model: Any, rename: Any = str, **more: Any) -> Weights:
    arrays = {rename(name): array for name, array in small_models.arrays(model).items()}
    return weights_of(arrays | more)


@each(
    "make, prefix",
    [(small_models.llama, "model."), (small_models.gpt2, "transformer.")],
    ids=["llama", "gpt2"],
)
def test_names_are_known_without_their_prefix(make: Any, prefix: str) -> None:
    model = make()
    found = recognize(held(model, lambda name: name.removeprefix(prefix)), model.config.to_dict())
    assert (found.missing, found.unexpected) == ([], [])


def test_names_are_known_with_a_prefix_that_the_bare_model_lacks() -> None:
    model = small_models.bert()
    found = recognize(held(model, lambda name: f"bert.{name}"), model.config.to_dict())
    assert (found.missing, found.unexpected) == ([], [])


def test_norms_are_known_by_the_names_that_tensorflow_gave_them() -> None:
    def old(name: str) -> str:
        stem, _, last = name.rpartition(".")
        was = {"weight": "gamma", "bias": "beta"}[last] if stem.endswith("LayerNorm") else last
        return f"{stem}.{was}"

    model = small_models.bert()
    found = recognize(held(model, old), model.config.to_dict())
    assert (found.missing, found.unexpected) == ([], [])


def test_masks_and_frequencies_are_left_aside() -> None:
    import numpy as np

    model = small_models.gpt2()
    mask = np.ones((1, 1, 64, 64), np.uint8)
    more = {"transformer.h.0.attn.bias": mask, "transformer.h.0.attn.masked_bias": np.ones(1)}
    found = recognize(held(model, **more), model.config.to_dict())
    assert (found.missing, found.unexpected) == ([], [])
    llama = small_models.llama()
    more = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8)}
    found = recognize(held(llama, **more), llama.config.to_dict())
    assert (found.missing, found.unexpected) == ([], [])


def test_the_copy_of_a_tied_output_is_left_aside() -> None:
    model = small_models.gpt2()
    copy = model.transformer.wte.weight.detach().numpy()
    found = recognize(held(model, **{"lm_head.weight": copy}), model.config.to_dict())
    assert found.unexpected == []
    assert "output.weight" not in found.weights


def test_an_output_that_is_not_tied_is_missed() -> None:
    model = small_models.gpt2()
    document = model.config.to_dict() | {"tie_word_embeddings": False}
    assert recognize(held(model), document).missing == ["lm_head.weight"]
