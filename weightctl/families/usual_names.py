"""The usual `Name` lines of parts: their names in both conventions, and their axes.

A family states only what differs. Names: llama.cpp's `llama-arch.cpp`, and those that most models
of transformers have.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from weightctl.families.modules import Name, WeightAxes
from weightctl.families.steps import (
    AS_COLUMN,
    MINUS_EXP,
    extra_axes,
    group_rows,
    in_turn,
    rows_as_vector,
    squeeze,
    squeeze_all,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.rank_ranges import Extent

_LAYER = "layers.{}."
_HIDDEN: tuple[Extent, ...] = ("hidden",)


def _vector(module: str, gguf: str, name: str | None, *outputs: Extent, **more: Any) -> Name:
    axes = WeightAxes(outputs or _HIDDEN, all_layers=more.pop("all_layers", False))
    return Name(module=module, gguf=gguf, hugging_face=name, axes=axes, is_float32=True, **more)


def _matrix(
    module: str,
    gguf: str | None,
    name: str | None,
    outputs: tuple[Extent, ...],
    inputs: tuple[Extent, ...] = _HIDDEN,
    **more: Any,
) -> Name:
    axes = WeightAxes(outputs, inputs)
    return Name(module=module, gguf=gguf, hugging_face=name, axes=axes, **more)


def _of_layer(each: Name) -> Name:
    name = each.hugging_face
    return replace(
        each,
        module=_LAYER + each.module,
        gguf=None if each.gguf is None else f"blk.{{}}.{each.gguf}",
        hugging_face=None if name is None else f"model.layers.{{}}.{name}",
    )


# The numbers by which several streams of vectors are mixed, of layers and for the output.
_STREAM_PARTS = (
    ("projection", "fn", "stream_weights"), ("offsets", "base", "stream_weights"),
    ("scales", "scale", "stream_scales"),
)  # fmt: skip
# The checkpoint has a tensor by which the frequencies of RoPE are divided.
_IF_FACTORS = ("has_rope_factors",)
# Queries are computed from a latent vector.
_IF_QUERY_RANK = ("query_rank",)
_IF_INDEXER = ("indexer_heads", "indexer_layers")
_IF_CONVOLUTION = ("convolution_layers",)
_IF_SSM = ("ssm_layers",)
# Tensors whose names have no last word, such as `weight`.
_BARE = {"gguf": "", "hugging_face": ""}
_IF_DELTA = ("delta_layers",)
_IF_LRU = ("lru_layers",)
# What RWKV-7 computes in two steps, by its letter, and the layers that do.
_TWO_STEPS = (
    ("decay", "w", ()), ("rate", "a", ()), ("value", "v", ("value_layers",)), ("gate", "g", ()),
)  # fmt: skip
# The gates of a linear recurrent unit in Hugging Face's convention.
_LRU_GATES = {
    "input": "temporal_block.rg_lru.input_gate",
    "fade": "temporal_block.rg_lru.recurrent_gate",
}
# The layers have a shared MLP beside the experts.
_IF_SHARED = ("shared_intermediate",)


def _all_experts(part: str, name: str, outputs: Extent, inputs: Extent) -> Name:
    return _matrix(
        f"mlp.experts.{{expert}}.{part}", f"ffn_{part}_exps", f"mlp.experts.{{expert}}.{name}",
        (outputs,), (inputs,),
    )  # fmt: skip


_OF_MODEL = (
    _matrix("embedding", "token_embd", "model.embed_tokens", ("vocabulary",)),
    _matrix("position_embedding", "position_embd", "model.embed_positions", ("position_rows",),
            is_float32=True),
    _matrix("token_type_embedding", "token_types", "model.token_type_embeddings", ("token_types",),
            is_float32=True),
    Name(module="relative_bias", gguf="attn_rel_b", hugging_face="model.relative_attention_bias",
         axes=WeightAxes(("buckets",), ("heads",), all_layers=True), is_float32=True),
    _vector("embedding_norm", "token_embd_norm", "model.embed_norm"),
    _vector("rope_factors", "rope_freqs", None, "pairs", when=_IF_FACTORS, all_layers=True),
    _vector("long_rope_factors", "rope_factors_long", None, "pairs", when=_IF_FACTORS,
            all_layers=True),
    _vector("short_rope_factors", "rope_factors_short", None, "pairs", when=_IF_FACTORS,
            all_layers=True),
    _vector("norm", "output_norm", "model.norm"),
    *(Name(module=f"stream_output.{number}", gguf=f"output_hc_{name}",
           hugging_face=f"model.hc_head.hc_head_{name}", is_float32=True,
           axes=WeightAxes((size,), ("all_streams",) if name == "fn" else ()),
           ends={"hugging_face": ""})
      for (number, name, _), size in zip(_STREAM_PARTS, ("streams", "streams", "single"),
                                         strict=True)),
    _matrix("output", "output", "lm_head", ("vocabulary",), unless="tied"),
)  # fmt: skip

_OF_LAYERS = (
    _vector("attention_norm", "attn_norm", "input_layernorm"),
    _matrix("attention.q", "attn_q", "self_attn.q_proj", ("queries",), bias="attention_bias"),
    _matrix("attention.k", "attn_k", "self_attn.k_proj", ("keys",), bias="attention_bias"),
    _matrix("attention.v", "attn_v", "self_attn.v_proj", ("keys",), bias="attention_bias"),
    _matrix("attention.qkv", "attn_qkv", "self_attn.qkv_proj", ("queries", "keys", "keys"),
            bias="attention_bias"),
    # Latent attention (MLA): `a` projects to the latent vectors, and `b` projects these to queries,
    # keys and values.
    _matrix("attention.q_a", "attn_q_a", "self_attn.q_a_proj", ("query_rank",),
            when=_IF_QUERY_RANK),
    _vector("attention.q_a_norm", "attn_q_a_norm", "self_attn.q_a_layernorm", "query_rank",
            when=_IF_QUERY_RANK),
    _matrix("attention.q_b", "attn_q_b", "self_attn.q_b_proj", ("queries",), ("query_rank",),
            when=_IF_QUERY_RANK),
    _matrix("attention.kv_a", "attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa",
            ("latent_rank", "rope_dimensions")),
    _vector("attention.kv_a_norm", "attn_kv_a_norm", "self_attn.kv_a_layernorm", "latent_rank"),
    _matrix("attention.k_b", "attn_k_b", None, ("plain_keys",), ("latent_rank",)),
    _matrix("attention.v_b", "attn_v_b", None, ("values",), ("latent_rank",)),
    # The indexer of sparse attention: every rank selects the same keys.
    _matrix("attention.indexer.q_b", "indexer.attn_q_b", "self_attn.indexer.wq_b",
            ("indexer_queries",), ("query_rank",), when=_IF_INDEXER),
    _matrix("attention.indexer.k", "indexer.attn_k", "self_attn.indexer.wk", ("indexer_size",),
            when=_IF_INDEXER),
    _vector("attention.indexer.k_norm", "indexer.k_norm", "self_attn.indexer.k_norm",
            "indexer_size", when=_IF_INDEXER, bias=True),
    # In one that selects blocks of keys, queries are computed from the input and normed.
    _matrix("attention.indexer.q", "indexer.q_proj", "self_attn.indexer.q_proj",
            ("indexer_queries",), when=_IF_INDEXER),
    _vector("attention.indexer.q_norm", "indexer.q_norm", "self_attn.indexer.q_norm",
            "indexer_size", when=_IF_INDEXER),
    _matrix("attention.indexer.factors", "indexer.proj", "self_attn.indexer.weights_proj",
            ("indexer_heads",), when=_IF_INDEXER, is_float32=True),
    # Each head is normed separately, all heads with the same weights.
    _vector("attention.q_norm", "attn_q_norm", "self_attn.q_norm", "head"),
    _vector("attention.k_norm", "attn_k_norm", "self_attn.k_norm", "head"),
    # The output of each head is multiplied by the sigmoid of this projection.
    _matrix("attention.gate", "attn_gate", "self_attn.gate_proj", ("queries",)),
    # The same with a number for each head.
    _matrix("attention.head_gate", "attn_gate", "self_attn.g_proj", ("each_head",)),
    # An additional score of each query head, which belongs to no key; every rank has all of them.
    _vector("attention.sinks", "attn_sinks", "self_attn.sinks", "heads",
            ends={"hugging_face": ""}),
    # Every rank norms the outputs of all heads, and all elements of the MLP.
    _vector("attention.inner_norm", "attn_sub_norm", "self_attn.attn_sub_norm", "all_queries"),
    _vector("mlp.inner_norm", "ffn_sub_norm", "mlp.ffn_sub_norm", "intermediate"),
    _matrix("attention.o", "attn_output", "self_attn.o_proj", _HIDDEN, ("queries",),
            bias="attention_output_bias"),
    # A short convolution: the projection to two gates and the values, the weights of each channel,
    # and the projection to the outputs.
    _matrix("convolution.inputs", "shortconv.in_proj", "conv.in_proj",
            ("convolved", "convolved", "convolved"), when=_IF_CONVOLUTION, bias="convolution_bias"),
    _matrix("convolution.kernel", "shortconv.conv", "conv.conv", ("convolved",),
            ("convolution_length",), when=_IF_CONVOLUTION, bias="convolution_bias",
            is_float32=True, change=squeeze_all(1)),
    _matrix("convolution.outputs", "shortconv.out_proj", "conv.out_proj", _HIDDEN, ("convolved",),
            when=_IF_CONVOLUTION, bias="convolution_bias"),
    # State space models: as in Mamba-2; those of Mamba have the variant `channels`. `selection`
    # projects to the matrices B and C and the vector that steps are computed from.
    _matrix("ssm.inputs", "ssm_in", "mamba.in_proj",
            ("ssm_channels", "ssm_channels", "ssm_group_states", "ssm_group_states", "ssm_heads"),
            when=_IF_SSM, bias="ssm_bias"),
    _matrix("ssm.kernel", "ssm_conv1d", "mamba.conv1d",
            ("ssm_channels", "ssm_group_states", "ssm_group_states"), ("ssm_length",),
            when=_IF_SSM, bias="ssm_kernel_bias", is_float32=True,
            change=squeeze_all(1)),
    _matrix("ssm.selection", "ssm_x", "mamba.x_proj", ("ssm_rank", "ssm_state", "ssm_state"),
            ("ssm_inner",), when=_IF_SSM),
    _vector("ssm.step_norm", "ssm_dt_norm", "mamba.dt_layernorm", "ssm_rank", when=_IF_SSM),
    _vector("ssm.b_norm", "ssm_b_norm", "mamba.b_layernorm", "ssm_state", when=_IF_SSM),
    _vector("ssm.c_norm", "ssm_c_norm", "mamba.c_layernorm", "ssm_state", when=_IF_SSM),
    _matrix("ssm.step", "ssm_dt", "mamba.dt_proj", ("ssm_inner",), ("ssm_rank",), when=_IF_SSM,
            bias=True),
    _vector("ssm.step_bias", "ssm_dt", "mamba.dt_bias", "ssm_heads", when=_IF_SSM,
            ends={"gguf": ".bias", "hugging_face": ""}),
    _vector("ssm.rates", "ssm_a", "mamba.A_log", "ssm_heads", when=_IF_SSM, ends=_BARE,
            change=in_turn(MINUS_EXP, AS_COLUMN)),
    _vector("ssm.skip", "ssm_d", "mamba.D", "ssm_heads", when=_IF_SSM, ends=_BARE,
            change=AS_COLUMN),
    _vector("ssm.norm", "ssm_norm", "mamba.norm", "ssm_channels", when=(*_IF_SSM, "ssm_norm"),
            change=group_rows("ssm_groups")),
    _matrix("ssm.outputs", "ssm_out", "mamba.out_proj", _HIDDEN, ("ssm_channels",), when=_IF_SSM,
            bias="ssm_bias"),
    # A gated delta net: its projections, the convolution of queries, keys and values, and the rate
    # and the offset of each head.
    _matrix("delta.qkv", "attn_qkv", "linear_attn.in_proj_qkv", ("keys", "keys", "values"),
            when=_IF_DELTA),
    _matrix("delta.gate", "attn_gate", "linear_attn.in_proj_z", ("values",), when=_IF_DELTA),
    _matrix("delta.beta", "ssm_beta", "linear_attn.in_proj_b", ("each_head",), when=_IF_DELTA),
    _matrix("delta.alpha", "ssm_alpha", "linear_attn.in_proj_a", ("each_head",), when=_IF_DELTA),
    _matrix("delta.kernel", "ssm_conv1d", "linear_attn.conv1d", ("keys", "keys", "values"),
            ("convolution_length",), when=_IF_DELTA, is_float32=True,
            change=squeeze_all(1)),
    _vector("delta.rates", "ssm_a", "linear_attn.A_log", "each_head", when=_IF_DELTA,
            change=MINUS_EXP, ends={"gguf": "", "hugging_face": ""}),
    _vector("delta.offsets", "ssm_dt", "linear_attn.dt_bias", "each_head", when=_IF_DELTA,
            ends={"gguf": ".bias", "hugging_face": ""}),
    _vector("delta.norm", "ssm_norm", "linear_attn.norm", "delta_value_size", when=_IF_DELTA),
    _matrix("delta.outputs", "ssm_out", "linear_attn.out_proj", _HIDDEN, ("values",),
            when=_IF_DELTA),
    # In Kimi's form of it, a state fades by each element of a key. The decays and the gates are
    # computed by two projections (`a`, then `b`), and queries, keys and values by one each.
    *(line for part, extent in (("q", "keys"), ("k", "keys"), ("v", "values")) for line in (
        _matrix(f"delta.{part}", f"attn_{part}", f"self_attn.{part}_proj", (extent,),
                when=_IF_DELTA),
        _matrix(f"delta.{part}_kernel", f"ssm_conv1d_{part}", f"self_attn.{part}_conv1d",
                (extent,), ("convolution_length",), when=_IF_DELTA, is_float32=True,
                change=extra_axes(gguf=(1,), hugging_face=(1,))),
    )),
    _matrix("delta.decay_a", "ssm_f_a", "self_attn.f_a_proj", ("delta_key_size",),
            when=_IF_DELTA),
    _matrix("delta.decay_b", "ssm_f_b", "self_attn.f_b_proj", ("keys",), ("delta_key_size",),
            when=_IF_DELTA),
    _matrix("delta.gate_a", "ssm_g_a", "self_attn.g_a_proj", ("delta_key_size",), when=_IF_DELTA),
    _matrix("delta.gate_b", "ssm_g_b", "self_attn.g_b_proj", ("values",), ("delta_key_size",),
            when=_IF_DELTA),
    # Or by one.
    _matrix("delta.decay", "ssm_f_a", "self_attn.f_proj", ("keys",), when=_IF_DELTA),
    _matrix("delta.output_gate", "ssm_g_a", "self_attn.g_proj", ("values",), when=_IF_DELTA),
    # A linear recurrent unit (RG-LRU), whose gates are computed in blocks of channels.
    _matrix("lru.gate", "lru_gate", "temporal_block.linear_y", ("lru_channels",), when=_IF_LRU,
            bias=True),
    _matrix("lru.inputs", "lru_in", "temporal_block.linear_x", ("lru_channels",), when=_IF_LRU,
            bias=True),
    _matrix("lru.kernel", "lru_conv1d", "temporal_block.conv_1d", ("lru_channels",),
            ("convolution_length",), when=_IF_LRU, bias=True, is_float32=True,
            change=squeeze_all(1)),
    *(line for part in ("input", "fade") for name in (_LRU_GATES[part],) for line in (
        Name(module=f"lru.{part}_gate", gguf=f"lru_{part}_gate", hugging_face=f"{name}_weight",
             axes=WeightAxes(("lru_blocks",), ("lru_size",), kernel=("lru_size",)),
             when=_IF_LRU, is_float32=True, ends={"hugging_face": ""}),
        _matrix(f"lru.{part}_gate_bias", f"lru_{part}_gate", f"{name}_bias", ("lru_blocks",),
                ("lru_size",), when=_IF_LRU, is_float32=True,
                ends={"gguf": ".bias", "hugging_face": ""}),
    )),
    _vector("lru.rates", "lru_a", "temporal_block.rg_lru.recurrent_param", "lru_channels",
            when=_IF_LRU, ends=_BARE),
    _matrix("lru.outputs", "lru_out", "temporal_block.linear_out", _HIDDEN, ("lru_channels",),
            when=_IF_LRU, bias=True),
    # The time mixing of RWKV-7: shares of the position before, projections in one and two steps,
    # their offsets, and vectors of channels. The first layer does not mix values.
    *(_matrix(f"rwkv.mix_{part}", None, f"attn.x_{part}", ("single",), is_float32=True,
              change=extra_axes(gguf=(1, 1), hugging_face=(0,)), ends=_BARE) for part in "rwkvag"),
    _matrix("rwkv.r", "time_mix_receptance", "attn.r_proj", ("queries",)),
    _matrix("rwkv.k", "time_mix_key", "attn.k_proj", ("queries",)),
    _matrix("rwkv.v", "time_mix_value", "attn.v_proj", ("queries",)),
    *(line for part, gguf, when in _TWO_STEPS for line in (
        _matrix(f"rwkv.{part}_a", f"time_mix_{gguf}1", f"attn.{gguf}_lora.lora.0",
                (f"{part}_rank",), when=when, is_float32=part == "decay"),
        _matrix(f"rwkv.{part}_b", f"time_mix_{gguf}2", f"attn.{gguf}_lora.lora.2", ("queries",),
                (f"{part}_rank",), when=when, is_float32=part == "decay"),
        _vector(f"rwkv.{part}_offset", f"time_mix_{gguf}0", f"attn.{gguf}_lora.lora.2", "queries",
                when=when, ends={"hugging_face": ".bias"}),
    ) if not (part == "gate" and "offset" in line.module)),
    _vector("rwkv.key_scale", "time_mix_k_k", "attn.k_k", "queries", ends={"hugging_face": ""}),
    _vector("rwkv.key_rate", "time_mix_k_a", "attn.k_a", "queries", ends={"hugging_face": ""}),
    _matrix("rwkv.bonus", "time_mix_r_k", "attn.r_k", ("each_head",), ("head",), is_float32=True,
            change=rows_as_vector("heads"), ends={"hugging_face": ""}),
    _vector("rwkv.norm", "time_mix_ln", "attn.g_norm", "queries", bias=True),
    _matrix("rwkv.outputs", "time_mix_output", "attn.o_proj", _HIDDEN, ("queries",)),
    _vector("mlp_mix", "channel_mix_lerp_k", "ffn.x_k", ends={"hugging_face": ""}),
    # Connections of attention and the MLP to several streams of vectors.
    *(Name(module=f"{part}_streams.{number}", gguf=f"hc_{short}_{name}",
           hugging_face=f"hc_{theirs}_layer.hc_pre.hc_{name}",
           axes=WeightAxes((size,), ("all_streams",) if name == "fn" else ()), is_float32=True,
           ends={"hugging_face": ""})
      for part, short, theirs in (("attention", "attn", "attn"), ("mlp", "ffn", "mlp"))
      for number, name, size in _STREAM_PARTS),
    _vector("post_attention_norm", "post_attention_norm", "post_attention_layernorm"),
    _vector("mlp_norm", "ffn_norm", "post_attention_layernorm"),
    _matrix("mlp.gate", "ffn_gate", "mlp.gate_proj", ("inner",), bias="mlp_bias"),
    _matrix("mlp.up", "ffn_up", "mlp.up_proj", ("inner",), bias="mlp_bias"),
    _matrix("mlp.gate_up", "ffn_up", "mlp.gate_up_proj", ("inner", "inner"), bias="mlp_bias"),
    _matrix("mlp.down", "ffn_down", "mlp.down_proj", _HIDDEN, ("inner",), bias="mlp_bias"),
    _vector("post_mlp_norm", "post_ffw_norm", "post_feedforward_layernorm"),
    # Every rank has the whole router, because each selects among all experts.
    _matrix("mlp.router", "ffn_gate_inp", "mlp.gate", ("experts",), is_float32=True),
    _vector("mlp.correction", "exp_probs_b", "mlp.gate.e_score_correction_bias", "experts",
            ends={"gguf": ".bias", "hugging_face": ""}),
    _all_experts("gate", "gate_proj", "expert_inner", "hidden"),
    _all_experts("up", "up_proj", "expert_inner", "hidden"),
    _all_experts("down", "down_proj", "hidden", "expert_inner"),
    # What experts read, and their sum, if that has another size than the other vectors.
    _matrix("mlp.latent_in", "ffn_latent_down", "mlp.fc1_latent_proj", ("expert_latent",),
            when=("expert_latent",)),
    _matrix("mlp.latent_out", "ffn_latent_up", "mlp.fc2_latent_proj", _HIDDEN, ("expert_latent",),
            when=("expert_latent",)),
    _matrix("mlp.shared.gate", "ffn_gate_shexp", "mlp.shared_experts.gate_proj",
            ("shared_inner",), when=_IF_SHARED),
    _matrix("mlp.shared.up", "ffn_up_shexp", "mlp.shared_experts.up_proj", ("shared_inner",),
            when=_IF_SHARED),
    _matrix("mlp.shared.down", "ffn_down_shexp", "mlp.shared_experts.down_proj", _HIDDEN,
            ("shared_inner",), when=_IF_SHARED),
    _matrix("mlp.shared_gate", "ffn_gate_inp_shexp", "mlp.shared_expert_gate", ("single",),
            is_float32=True, change=squeeze(0)),
)  # fmt: skip

# The parts that follow the layers.
_BEHIND = ("norm", "output", *(f"stream_output.{number}" for number, _, _ in _STREAM_PARTS))

# Variants of roles, by `role.variant`: the axes of the part where they differ from the usual ones.
# `whole`: queries and keys are normed over all heads together, so every rank computes all of them.
# `apart`: each head has its own norm weights. `sized` and `latent`: values have a size of their
# own. `channels`: each channel of a state space model has its own rates. `paired`: the gates of
# each head of a state space model precede its values, and all heads share B and C.
_VARIANTS = {
    "delta.offsets.apart": WeightAxes(("keys",)),
    "attention.q.whole": WeightAxes(("all_queries",), _HIDDEN),
    "attention.k.whole": WeightAxes(("all_keys",), _HIDDEN),
    "attention.q_norm.whole": WeightAxes(("all_queries",)),
    "attention.k_norm.whole": WeightAxes(("all_keys",)),
    "attention.q_norm.apart": WeightAxes(("heads",), ("head",)),
    "attention.k_norm.apart": WeightAxes(("kv_heads",), ("head",)),
    "attention.v.sized": WeightAxes(("key_values",), _HIDDEN),
    "attention.o.latent": WeightAxes(_HIDDEN, ("values",)),
    "attention.gate.latent": WeightAxes(("values",), _HIDDEN),
    "ssm.inputs.channels": WeightAxes(("ssm_inner", "ssm_inner"), _HIDDEN),
    "ssm.kernel.channels": WeightAxes(("ssm_inner",), ("ssm_length",)),
    "ssm.rates.channels": WeightAxes(("ssm_inner",), ("ssm_state",)),
    "ssm.skip.channels": WeightAxes(("ssm_inner",)),
    "ssm.outputs.channels": WeightAxes(_HIDDEN, ("ssm_inner",)),
    "ssm.inputs.paired": WeightAxes(("ssm_gated_channels",), _HIDDEN),
    "ssm.kernel.paired": WeightAxes(("ssm_channels",), ("ssm_length",)),
    "ssm.selection.paired": WeightAxes(("ssm_state", "ssm_state", "ssm_rank"), ("ssm_channels",)),
    "ssm.step.paired": WeightAxes(("ssm_heads",), ("ssm_rank",)),
}


def _list_all() -> dict[str, Name]:
    found = {each.module: each for each in _OF_MODEL}
    found |= {each.module: _of_layer(each) for each in _OF_LAYERS}
    return found | {name: replace(found[name.rpartition(".")[0]], axes=axes)
                    for name, axes in _VARIANTS.items()}  # fmt: skip


# The usual line of each role. A role is the module of a part without the prefix of its layer, or a
# variant of one.
LINES: Mapping[str, Name] = MappingProxyType(_list_all())


def line(role: str, **changes: Any) -> Name:
    """Return the usual line of a role with some fields replaced."""
    return replace(LINES[role], **changes) if changes else LINES[role]


def lines(*roles: str) -> tuple[Name, ...]:
    """Return the usual lines of some roles."""
    return tuple(LINES[role] for role in roles)


def layer_lines(
    prefix: str, roles: Mapping[str, str | Mapping[str, Any]], **common: Any
) -> tuple[Name, ...]:
    """Return lines of a layer whose names in Hugging Face's convention begin with `prefix`.

    `roles` maps each role to the rest of that name, or to the fields that differ from the usual
    line. `common` are fields of all these lines.
    """
    made: list[Name] = []
    for role, changes in roles.items():
        given = {"hugging_face": changes} if isinstance(changes, str) else dict(changes)
        if given.get("hugging_face") is not None:
            given["hugging_face"] = prefix + given["hugging_face"]
        made.append(line(role, **(common | given)))
    return tuple(made)


def adapt(
    names: tuple[Name, ...], changes: Mapping[str, str | Mapping[str, Any] | None]
) -> tuple[Name, ...]:
    """Return the lines of a model with some lines changed, added, or left out (None).

    `changes` are by role: a text is the name in Hugging Face's convention after that of the layer,
    and a mapping has the fields that change. An added line follows the other lines of layers, or
    precedes them if it is outside of the layers. Raises `KeyError` with the role of a line that
    would be left out and is not there.
    """
    of_role = {_role(each): each for each in names}
    for role, given in changes.items():
        module = LINES[role].module if role in LINES else _LAYER + role
        plain = module.removeprefix(_LAYER)
        if given is None:
            if plain not in of_role:
                raise KeyError(role)
            del of_role[plain]
            continue
        usual = LINES[role] if role in _VARIANTS or plain not in of_role else of_role[plain]
        fields = {"hugging_face": f"model.layers.{{}}.{given}"} if isinstance(given, str) else given
        of_role[plain] = replace(usual, **fields)
    found = list(of_role.values())
    inside = [each for each in found if each.is_of_layers]
    behind = [each for each in found if each.module in _BEHIND]
    before = [each for each in found if not each.is_of_layers and each not in behind]
    return (*before, *inside, *behind)


def _role(each: Name) -> str:
    return each.module.removeprefix(_LAYER)


# The lines of most decoders.
DECODER = lines(
    "embedding", "attention_norm", "attention.q", "attention.k", "attention.v", "attention.o",
    "mlp_norm", "mlp.gate", "mlp.up", "mlp.down", "norm", "output",
)  # fmt: skip
# For files that name all their tensors.
NOTHING: tuple[Name, ...] = ()
