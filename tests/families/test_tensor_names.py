"""What families call their tensors, in both naming conventions."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import small_models
from arrays import rope_rows, weights_of
from each import each
from weightctl import open_weights
from weightctl.errors import ArchitectureError, ConversionError
from weightctl.families import FAMILIES
from weightctl.families.config_values import Exactly, Flag, OrNone, WholeNumber
from weightctl.families.configs import from_gguf, from_hugging_face
from weightctl.families.decoder import DecoderConfig
from weightctl.families.latent import YARN_MULTIPLIER
from weightctl.families.layers import LayersAlike
from weightctl.families.modules import part_of_layer, role, shape_of
from weightctl.families.mtp_tensors import MOST_LAYERS, MtpTensors
from weightctl.families.recognition import recognize
from weightctl.families.rope import HEAD_MULTIPLIER, LONGROPE_KEYS
from weightctl.families.state_space import Unlimited
from weightctl.families.steps import (
    AS_COLUMN,
    MINUS_EXP,
    PLUS_ONE,
    TILED_COLUMNS,
    TRANSPOSED,
    alternate,
    group_heads,
    group_rows,
    half_split_order,
    in_turn,
    interleaved_order,
    invert,
    leading_rows,
    padded_table,
    reorder_rows,
    scaled_by,
    scaled_queries,
    scaled_runs,
    squeeze,
    turn_heads,
)
from weightctl.families.steps import rope_rows as rope_rows_change
from weightctl.families.usual_names import LINES as USUAL
from weightctl.nn.layer_sharding import ROLES
from weightctl.system.registry import load
from weightctl.weights.derived import DerivedTensor, tensor_of
from weightctl.weights.metadata import MetadataValue
from weightctl.weights.steps.numbers import Plus

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from weightctl import Weights
    from weightctl.families.config_keys import NamingConvention
    from weightctl.families.family import Family
    from weightctl.families.modules import Change, Name
    from weightctl.weights.derived import Step


KINDS = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
CONVENTIONS: tuple[NamingConvention, ...] = ("gguf", "hugging_face")
# Architectures that this release of gguf lacks, each with one that has the same names.
NEWER = {"deepseek32": "glm-dsa"}
LISTED = {
    name: KINDS[NEWER.get(kind, kind)]
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
OWN = {
    "bailing_hybrid",
    "cohere2_moe",
    "cwm",
    "deepseek_v4",
    "flex_olmo",
    "granite_swa",
    "granitemoe_swa",
    "helium",
    "hy_v3",
    "hy_v4",
    "hyperclovax",
    "laguna",
    "mellum",
    "minimax_m3",
    "mpnet",
    "nanbeige",
    "opt",
    "recurrent_gemma",
    "spark2_5",
    "vaultgemma",
}


# Small sizes, and others of which any two differ that a shape could confuse.
SMALL = {"vocabulary": 10, "hidden": 32, "layers": 3, "heads": 4, "kv_heads": 4, "intermediate": 8,
         "experts": 4, "experts_used": 2, "rope_dimensions": 4, "global_kv_heads": 2,
         "ssm_inner": 64, "ssm_heads": 4, "ssm_size": 16, "ssm_groups": 2, "ssm_state": 6,
         "ssm_rank": 3}  # fmt: skip
# What a config must state.
STATED: dict[str, dict[str, Any]] = {
    "baichuan": {"num_hidden_layers": 32},
    "bailing_hybrid": {"num_expert_group": 1, "topk_group": 1},
    "bailingmoe2": {"use_bias": False, "n_group": 1, "topk_group": 1},
    "chatglm": {"multi_query_attention": True},
    "codeshell": {"position_embedding_type": "rope"},
    "deepseek_v4": {"o_groups": 2, "qk_rope_head_dim": 4},
    "gemma3n": {"num_kv_shared_layers": 0, "vocab_size_per_layer_input": 10},
    "gemma4": {
        "vocab_size": 10, "vocab_size_per_layer_input": 10, "enable_moe_block": True,
        "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 12,
    },
    "gemma_embedding": {"use_bidirectional_attention": True},
    "qwen2_embed": {"is_causal": False},
    "granite4": {"num_local_experts": 0, "num_experts_per_tok": 0},
    "internlm2": {"bias": False},
    "nemotron_h": {"hybrid_override_pattern": "M-*"},
    "nemotron_h_moe": {"hybrid_override_pattern": "ME*"},
    "jais": {
        "activation_function": "swiglu", "mup_scale_qk_dot_by_d": True,
        "position_embedding_type": "alibi",
    },
    "jina_bert_v2": {"feed_forward_type": "geglu", "position_embedding_type": "alibi"},
    "llada": {"block_type": "llama", "layer_norm_type": "rms", "rope": True},
    "orion": {"attention_bias": False},
    "rwkv6": {"head_size": 8},
    "spark2_5": {"headwise_attn_output_gate": True, "sliding_window": 5},
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
    assert line.source in {f"weightctl.families.{name}", f"{name}.toml"}
    assert (family.name, family.gguf_name) == (name, line.gguf)
    assert family.model_types.keys() == set(line.model_types)


def test_all_families_but_one_of_an_architecture_or_a_type_state_which_models_are_theirs() -> None:
    architectures, types = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for name, line in FAMILIES.items():
        family = line.load()
        if family.is_of is None:
            architectures[line.gguf].append(name)
        if family.is_of_config is None:
            for kind in line.model_types:
                types[kind].append(name)
    assert [names for names in (*architectures.values(), *types.values()) if len(names) > 1] == []


def test_only_known_families_have_names_of_their_own_in_gguf() -> None:
    assert FAMILIES.keys() - LISTED.keys() == OWN


@each("name", LISTED)
def test_both_conventions_say_what_ggufs_own_table_says(name: str) -> None:
    made = config(name, **with_all(name))
    tensors = list(FAMILIES[name].load().tensors(made))
    # Where experts are stacked, several have one name.
    pairs = {(tensor.gguf, tensor.hugging_face) for tensor in tensors if tensor.hugging_face}
    assert len(pairs) >= 20
    known = 0
    names = gguf.get_tensor_name_map(LISTED[name], max(made.layers, 3))
    for in_gguf, in_hugging_face in pairs:
        # As llama.cpp's script calls what it has stacked.
        stacked = re.sub(r"experts\.\d+", "experts", in_hugging_face)
        if name == "rwkv7":
            for old, new in RWKV_NAMES.items():
                stacked = stacked.replace(old, new)
        if name == "chatglm":  # its script removes the prefix
            stacked = stacked.removeprefix("transformer.")
        expected = names.get_name(stacked, (".weight", ".bias"))
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
        # Refact's script takes these apart itself.
        is_own = name == "refact" and re.search("kv|gate_up", in_hugging_face) is not None
        known += expected is not None or is_own
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


# Their experts are read in one form only.
APART = {"deepseek_v4", "jamba", "nemotron_h_moe"}


@each("name", FAMILIES)
def test_all_experts_may_be_in_one_tensor_as_in_the_modules_of_transformers(name: str) -> None:
    family = FAMILIES[name].load()
    has_experts = any(".experts." in line.module for line in family.names)
    stacked = [
        fusion
        for fusion in family.fusions
        if fusion.of_experts and fusion.convention == "hugging_face"
    ]
    assert bool(stacked) == (has_experts and name not in APART)


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


# Their files have the names of the bare model.
BARE = {
    "bert", "camembert", "deepseek_v4", "distilbert", "jina_bert_v2", "jina_embeddings_v3",
    "modernbert", "mpnet", "nomic_bert", "roberta", "xlm_roberta",
}  # fmt: skip


@each("name", FAMILIES)
def test_the_names_of_layers_begin_with_what_the_bare_model_leaves_out(name: str) -> None:
    family = FAMILIES[name].load()
    names = [
        tensor.hugging_face
        for tensor in family.tensors(config(name))
        if tensor.module.startswith("layers.") and tensor.hugging_face
    ]
    assert {each.startswith(family.prefix) for each in names} == {name not in BARE}


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


# Every line of every family has a role on purpose, and what is widened is narrowed again.


LOADED = {name: line.load() for name, line in FAMILIES.items()}
LINES = [(family, line) for family in LOADED.values() for line in family.names]


@each("line", [pytest.param(line, id=f"{family.name}-{line.module}") for family, line in LINES])
def test_every_part_of_every_family_has_a_role(line: Name) -> None:
    found = role(line, "weight")
    assert bool(found.extents) == (found.strategy != "replicate")


def test_every_usual_line_is_of_the_module_that_it_is_called_by() -> None:
    for name, line in USUAL.items():
        assert part_of_layer(line) == re.sub(
            r"\.(whole|latent|sized|apart|channels|paired)$", "", name
        )


@each("family", LOADED.values(), ids=LOADED)
def test_what_makes_inner_numbers_is_cut_as_what_reads_them(family: Family) -> None:
    roles = {part_of_layer(line): role(line, "weight") for line in family.names}
    made = {extent for each in roles.values() if each.axis == 0 for extent in each.extents}
    read = {extent for each in roles.values() if each.axis == 1 for extent in each.extents}
    # Keys and values are read by the queries, tokens by people.
    own = {"queries", "keys", "plain_keys", "each_head"}
    # Numbers of SSM heads, and matrices of their groups, are read where they are made.
    own |= {"ssm_heads", "ssm_group_states"}
    # The gates and values of SSM heads in turn are read as their channels.
    own |= {"ssm_gated_channels"}
    # The gates of a linear recurrent unit are read as its channels.
    own |= {"lru_blocks"}
    # Embeddings for layers are cut by tokens, and read by every layer.
    own |= {"layer_vocabulary", "layer_inputs"}
    if "key_values" in made:  # of which each is that of several query heads
        own |= {"key_values", "values"}
    outputs = {extent for line in family.names for extent in line.axes.outputs}
    # Where numbers are normed together, every rank computes all of them.
    own |= {"inner"} if "intermediate" in outputs else set()
    assert made - own == (read | {"vocabulary"}) - own
    parts = {module.partition(".")[0] for module in roles}
    if "attention" in parts:
        # In DeepSeek-V4 all heads share one key, which every rank computes.
        shares = "attention.kv" in roles
        assert made & {"keys", "plain_keys"} or "all_keys" in outputs or shares
        assert "queries" in made or "all_queries" in outputs
    if "mlp" in parts:
        assert read & {"inner", "expert_inner"}
    assert parts & {"attention", "ssm", "rwkv"}


@each("line", [pytest.param(line, id=f"{family.name}-{line.module}") for family, line in LINES])
def test_a_bias_is_cut_as_the_outputs_that_it_is_added_to(line: Name) -> None:
    weight, bias = role(line, "weight"), role(line, "bias")
    assert bias == (weight if weight.axis == 0 else ROLES["norm"])


def test_what_is_for_all_layers_is_never_cut() -> None:
    assert {name for name, each in ROLES.items() if each.all_layers} == {
        "relative_bias", "rope_factors", "long_rope_factors", "short_rope_factors",
    }  # fmt: skip
    assert not any(each.extents for each in ROLES.values() if each.all_layers)


# Every change of a tensor between the conventions is undone by its inverse.


CONFIG: Any = SimpleNamespace(
    heads=6, kv_heads=2, head_dim=4, rope_dimensions=4,
    delta_heads=6, delta_key_heads=2, delta_key_size=1, delta_value_size=4,
    vocabulary=30, layer_vocabulary=24,
)  # fmt: skip
SIZES: Any = {
    "vocabulary": 8, "context": 8, "hidden": 8, "layers": 1, "heads": 2, "kv_heads": 2,
    "head_dim": 4, "intermediate": 8, "norm_epsilon": 1e-6,
}  # fmt: skip
CHANGES: dict[str, tuple[Change, tuple[int, ...], tuple[int, ...]]] = {
    "rows for rotation": (rope_rows_change("heads"), (24, 3), (24, 3)),
    "rows by head": (
        reorder_rows(lambda given: group_heads(given.heads, (4,))),
        (24, 3),
        (24, 3),
    ),
    "transposed": (TRANSPOSED, (24, 3), (3, 24)),
    "plus one": (PLUS_ONE, (24,), (24,)),
    "minus exp": (MINUS_EXP, (24,), (24,)),
    "as a column": (AS_COLUMN, (24,), (24, 1)),
    "a row for each group": (group_rows("heads"), (24,), (6, 4)),
    "minus exp as a column": (in_turn(MINUS_EXP, AS_COLUMN), (24,), (24, 1)),
    "squeezed": (squeeze(1), (24, 1, 3), (24, 3)),
    "squeezed row": (squeeze(0), (1, 24), (24,)),
    "heads apart": (turn_heads(), (24, 3), (6, 4, 3)),
    "heads turned": (turn_heads(is_transposed=True), (24, 3), (6, 3, 4)),
    "columns of heads": (TILED_COLUMNS, (3, 24), (3, 24)),
    "leading rows": (leading_rows(lambda _: 2), (24, 3), (22, 3)),
    "a row for every token": (padded_table("layer_vocabulary"), (24, 3), (30, 3)),
}


def done(step: Step, array: NDArray[Any]) -> NDArray[Any]:
    tree = weights_of({"x": array})
    made = DerivedTensor("y", step, [tensor_of(tree.source, "x")])
    raw = bytearray(made.info.nbytes)
    # In two parts, as a writer asks for them.
    half = len(raw) // 8 * 4
    made.read_into(0, memoryview(raw)[:half])
    made.read_into(half, memoryview(raw)[half:])
    return np.frombuffer(raw, array.dtype).reshape(made.info.shape)


@each("name", CHANGES)
def test_a_change_to_gguf_is_undone_on_the_way_back(name: str) -> None:
    change, shape, in_gguf = CHANGES[name]
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 64
    if name == "leading rows":
        array[:2] = 0
    to_gguf, to_hugging_face = change.to_gguf(CONFIG), change.to_hugging_face(CONFIG)
    assert to_gguf is not None
    assert to_hugging_face is not None
    there = done(to_gguf, array)
    assert there.shape == in_gguf
    back = done(to_hugging_face, there)
    assert back.shape == shape
    assert np.allclose(back, array, atol=1e-6)


@each("is_norm", [False, True])
def test_weights_of_queries_get_a_scale_that_llama_cpp_does_not_take(is_norm: bool) -> None:
    change = scaled_queries(lambda fields: fields["head_dim"], is_norm=is_norm)
    array = np.array([-0.5, 0, 2], np.float32)
    config: Any = DecoderConfig(**SIZES, query_scalar=16)
    step = change.to_gguf(config)
    assert step is not None
    assert done(step, array).tolist() == ((array + is_norm) * 0.5).tolist()
    assert str(step) == ("+1, times 0.5" if is_norm else "times 0.5")
    config = replace(config, query_scalar=4)
    assert change.to_gguf(config) == (Plus(1.0) if is_norm else None)
    assert change.to_hugging_face(config) == (Plus(-1.0) if is_norm else None)


def test_rates_of_state_spaces_are_negative_exponentials() -> None:
    found = done(MINUS_EXP.to_gguf(CONFIG), np.array([0, 1, 2], np.float32))
    assert np.allclose(found, [-1, -np.e, -(np.e**2)])


def test_weights_are_multiplied_by_factors_that_the_config_then_lacks() -> None:
    array = np.arange(12, dtype=np.float32).reshape(4, 3)
    by_row = np.array([2, 2, 0.5, 3], np.float32)[:, None]
    scaled = scaled_runs(lambda _: [(2, 2.0), (1, 0.5), (1, 3.0)])
    step = scaled.to_gguf(CONFIG)
    assert step is not None
    assert done(step, array).tolist() == (array * by_row).tolist()
    assert str(step) == "rows times 2, 0.5, 3"
    for change in (scaled, scaled_by(lambda _: 2.0)):
        assert change.to_hugging_face(CONFIG) is None
    assert scaled_by(lambda _: 1.0).to_gguf(CONFIG) is None
    with pytest.raises(ConversionError, match="4 rows are expected"):
        done(step, array[:3])


def test_the_matrix_of_each_head_is_turned() -> None:
    array = np.arange(72, dtype=np.float32).reshape(24, 3)
    found = done(turn_heads(is_transposed=True).to_gguf(CONFIG), array)
    assert (found == array.reshape(6, 4, 3).swapaxes(1, 2)).all()


def test_the_first_head_of_each_key_head_comes_first_in_gguf() -> None:
    array = np.arange(72, dtype=np.float32).reshape(3, 24)
    found = done(TILED_COLUMNS.to_gguf(CONFIG), array)
    heads = array.reshape(3, 6, 4)[:, [0, 3, 1, 4, 2, 5]]
    assert (found == heads.reshape(3, 24)).all()


def test_parts_that_take_turns() -> None:
    assert alternate(3) == (0, 3, 1, 4, 2, 5)
    assert invert(alternate(3)) == (0, 2, 4, 1, 3, 5)


def test_queries_keys_and_values_of_each_head_together() -> None:
    # Two heads of one row each, and two rows of queries for each of keys and values.
    assert group_heads(2, (1, 1, 1)) == (0, 2, 4, 1, 3, 5)
    assert group_heads(2, (2, 1, 1)) == (0, 1, 4, 6, 2, 3, 5, 7)


@each("change", [squeeze(1), turn_heads()], ids=["squeezed", "heads"])
def test_a_tensor_of_another_shape_is_refused_by_name(change: Change) -> None:
    with pytest.raises(ConversionError, match=r"`x` has shape \[5, 3\]"):
        done(change.to_gguf(CONFIG), np.zeros((5, 3), np.float32))


# The order of query and key rows in the two naming conventions.


HEAD_SIZES = [(1, 2), (4, 8), (9, 64), (3, 6)]


@each("heads, head_dim", HEAD_SIZES)
def test_rows_go_into_pairs_as_llama_cpps_own_script_has_them(heads: int, head_dim: int) -> None:
    rows = np.arange(heads * head_dim * 3).reshape(-1, 3)
    assert (rows[list(interleaved_order(heads, head_dim))] == rope_rows(rows, heads)).all()


def test_an_interleaved_head_has_its_pairs_side_by_side() -> None:
    assert interleaved_order(2, 4) == (0, 2, 1, 3, 4, 6, 5, 7)
    assert interleaved_order(1, 8) == (0, 4, 1, 5, 2, 6, 3, 7)
    assert half_split_order(1, 8) == (0, 2, 4, 6, 1, 3, 5, 7)


def test_rows_that_are_not_rotated_stay() -> None:
    assert interleaved_order(2, 6, 4) == (0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11)


@given(st.integers(1, 5), st.integers(1, 9), st.integers(0, 4))
def test_the_way_there_and_back_changes_nothing(heads: int, pairs: int, still: int) -> None:
    rotated, head_dim = 2 * pairs, 2 * pairs + still
    rows = np.arange(heads * head_dim)
    there = rows[list(interleaved_order(heads, head_dim, rotated))]
    assert (there[list(half_split_order(heads, head_dim, rotated))] == rows).all()
    assert sorted(there) == list(rows)


OF_HEADS: Any = SimpleNamespace(heads=6, kv_heads=2, head_dim=4, rope_dimensions=4)


def applied(step: Step, array: NDArray[Any]) -> NDArray[Any]:
    """Return what a step makes of an array."""
    tensor = DerivedTensor("made", step, [tensor_of(weights_of({"x": array}).source, "x")])
    buffer = bytearray(tensor.info.nbytes)
    tensor.read_into(0, memoryview(buffer))
    return np.frombuffer(buffer, array.dtype).reshape(tensor.info.shape)


@each("heads", ["heads", "kv_heads"])
def test_grouped_heads_and_biases_go_both_ways(heads: str) -> None:
    change, rows = rope_rows_change(heads), getattr(OF_HEADS, heads) * 4
    for array in (np.arange(rows * 5).reshape(rows, 5), np.arange(rows)):
        there = applied(change.to_gguf(OF_HEADS), array)
        assert (there == rope_rows(array, getattr(OF_HEADS, heads))).all()
        assert (applied(change.to_hugging_face(OF_HEADS), there) == array).all()


def test_a_transposed_matrix_goes_both_ways() -> None:
    array = np.arange(6).reshape(2, 3)
    there = applied(TRANSPOSED.to_gguf(OF_HEADS), array)
    assert (there == array.T).all()
    assert (applied(TRANSPOSED.to_hugging_face(OF_HEADS), there) == array).all()


def test_one_is_added_for_gguf_and_taken_away_on_the_way_back() -> None:
    array = np.array([0.25, -0.5, 3], np.float32)
    there = applied(PLUS_ONE.to_gguf(OF_HEADS), array)
    assert there.tolist() == [1.25, 0.5, 4]
    assert applied(PLUS_ONE.to_hugging_face(OF_HEADS), there).tolist() == array.tolist()


# Tensors for multi-token prediction are found by their names, whatever the family.


TRUNK = [f"model.layers.{number}.input_layernorm.weight" for number in range(2)]


@each(
    "names, stated, layers",
    [
        ([], 0, 0),
        (["model.layers.2.eh_proj.weight"], 0, 1),
        (["model.layers.2.eh_proj.weight", "model.layers.2.input_layernorm.weight"], 1, 1),
        # Without such a tensor, a layer may be one that the config should count.
        (["model.layers.2.input_layernorm.weight"], 1, 0),
        (["model.layers.2.input_layernorm.weight", "model.layers.3.eh_proj.weight"], 1, 0),
        (["blk.2.nextn.enorm.weight", "blk.3.nextn.hnorm.weight"], 0, 2),
        # A layer does not follow the others.
        (["model.layers.9.eh_proj.weight"], 0, 0),
        (["model.layers.999999999.eh_proj.weight"], 0, 0),
        (["mtp.fc.weight", "mtp.layers.0.input_layernorm.weight"], 0, 1),
        (["model.mtp.layers.0.enorm.weight", "model.mtp.layers.1.enorm.weight"], 0, 2),
        (["model.mtp_block.0.input_layernorm.weight"], 0, 1),
        # In Nemotron-H, two layers with one mixer each are one.
        (["mtp.layers.0.mixer.q_proj.weight", "mtp.layers.1.mixer.gate.weight"], 1, 1),
        (["language_model.model.layers.2.eh_proj.weight"], 1, 1),
        # A layer is lost, and another one is not.
        (["model.mtp.layers.0.enorm.weight"], 3, 3),
        # Layers of another part of the model have numbers of their own.
        (["vision_tower.layers.2.eh_proj.weight"], 1, 0),
        ([f"mtp.layers.{number}.enorm.weight" for number in range(99)], 0, MOST_LAYERS),
    ],
)
def test_layers_are_counted(names: list[str], stated: int, layers: int) -> None:
    found = MtpTensors.among([*TRUNK, *names], 2, stated)
    assert found.layers == layers
    assert found.names.keys() <= set(names)
    assert len(found.names) == (MOST_LAYERS if layers == MOST_LAYERS else len(names) * bool(layers))
    assert found.is_lost == (stated > 0 and not layers)


@each("further", [2, 3])
def test_a_gguf_with_no_other_layers_is_refused(further: int) -> None:
    family = FAMILIES["glm4_moe"].load()
    metadata = {
        "general.architecture": MetadataValue("string", "glm4moe"),
        "glm4moe.vocab_size": MetadataValue("u32", 8),
        "glm4moe.context_length": MetadataValue("u32", 8),
        "glm4moe.embedding_length": MetadataValue("u32", 8),
        "glm4moe.block_count": MetadataValue("u32", 2),
        "glm4moe.nextn_predict_layers": MetadataValue("u32", further),
    }
    with pytest.raises(ArchitectureError, match=r"`glm4moe\.block_count` is 2, but all of these"):
        from_gguf(family, metadata, {}, "a.gguf")


# No key of a family is read for nothing: a misspelled field would be lost unseen.


# What of these is read follows from the kind of scaling.
OF_ROPE = {key.field for key in (*LONGROPE_KEYS, YARN_MULTIPLIER, HEAD_MULTIPLIER)}
# Sections of RoPE matter for images only.
OF_ROPE |= {"ramp_between_pairs", "rope_sections"}
# llama.cpp needs the number, from which nothing follows in Nemotron-H. In Gemma 4, the key matters
# for images only. weightctl does not run the loops of Nanbeige.
CARRIED = {"shared_count", "sees_ahead", "skips_norms"}


class Watched(dict[str, Any]):
    """Fields that record which of them are asked for."""

    def __init__(self, fields: Any, asked: set[str]) -> None:
        super().__init__(fields)
        self.asked = asked

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)


def list_asked(family: Family) -> set[str]:
    """Return the fields that others follow from, or that are checked."""
    asked: set[str] = set()
    document = {"model_type": next(iter(family.model_types)), **STATED.get(family.name, {})}
    fields = from_hugging_face(family, document, "here").fields
    rules = [rule for key in family.keys for rule in (key.default, key.gguf_default)]
    for rule in (*rules, family.checked, family.unloaded):
        with suppress(KeyError, TypeError, ValueError):  # some are of the other convention
            if callable(rule):
                rule(Watched(fields, asked))
    return asked


@each("name", FAMILIES)
def test_every_key_is_a_field_of_the_config_or_says_something_of_one(name: str) -> None:
    family = FAMILIES[name].load()
    fields = {field.name for field in dataclasses.fields(load(family.config))}
    assert family.blocks.keys() <= fields
    asked = list_asked(family)
    for key in family.keys:
        kind = key.kind.kind if isinstance(key.kind, OrNone) else key.kind
        is_refused = isinstance(kind, Exactly | LayersAlike | Unlimited) or (
            isinstance(key.kind, WholeNumber) and (key.written is False or key.kind.most == 0)
        )
        follows = callable(key.default) or callable(key.gguf_default)
        is_used = key.field in fields | asked or is_refused or follows
        assert is_used or key.field in OF_ROPE | CARRIED, key
