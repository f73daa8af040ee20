"""Types that another type of transformers computes, with other names for keys and tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightctl.families.steps import group_heads, interleaved_order, invert

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Document = Mapping[str, Any]
    Tensors = Mapping[str, NDArray[Any]]

QKV = tuple(f".self_attn.{part}_proj." for part in "qkv")
GATE_UP = (".mlp.gate_proj.", ".mlp.up_proj.")


class Joined(NamedTuple):
    """A tensor with several parts of the other type: queries, keys and values, or equal parts.

    `name` is the part of its name that differs from theirs, `parts`. With `by_group`, the rows of
    each KV head follow those of its query heads.
    """

    name: str
    parts: tuple[str, ...]
    by_group: bool = False

    def count_rows(self, name: str, rows: int, document: Document) -> list[int]:
        """Return the rows of each part of a tensor with a name and `rows` rows."""
        if len(self.parts) == 2:
            return [rows // 2] * 2
        heads = document["num_attention_heads"]
        shared = document.get("num_key_value_heads") or heads
        if "queries" in document:
            layer = int(next(filter(str.isdecimal, name.split("."))))
            heads, shared = document["queries"][layer], document["shared"][layer]
        head = rows // (heads + 2 * shared)
        return [heads * head, shared * head, shared * head]

    def find_order(self, counts: list[int], document: Document) -> tuple[int, ...]:
        if not self.by_group:
            return tuple(range(sum(counts)))
        groups = document["num_key_value_heads"]
        return group_heads(groups, tuple(count // groups for count in counts))


@dataclass(frozen=True)
class Dialect:
    """The names of a type: keys of config.json and parts of tensors, by those of the other type.

    `names` are replaced in their order. `given` are keys of the other type that the type lacks, and
    `own` those that only the type has; `more` computes further keys of the other type from its
    config.json. `times` are the factors of sizes that the type states as multiples. `interleaved`
    are tensors of which the rows that RoPE rotates together are neighbors, in the type only.
    `ungated` states that the shared MLP has a gate in the other type only: of a gate of zeros the
    sigmoid is a half. `unit_rows` is the vocabulary with which the type normalizes the rows of the
    output. `transposed` are weights whose rows are the inputs, in the type only.
    """

    keys: Document = field(default_factory=dict[str, Any])
    names: tuple[tuple[str, str], ...] = ()
    joined: tuple[Joined, ...] = ()
    given: Document = field(default_factory=dict[str, Any])
    own: tuple[str, ...] = ()
    more: Callable[[Document], Document] = lambda _: {}
    times: Mapping[str, int] = field(default_factory=dict[str, int])
    interleaved: tuple[str, ...] = ()
    ungated: bool = False
    unit_rows: int = 0
    transposed: tuple[str, ...] = ()

    def rename(self, document: Document) -> dict[str, Any]:
        """Return a config.json with the names of the type for those of the other type."""
        kept = {key: value for key, value in document.items() if key not in self.given}
        if "rope_parameters" in kept:
            rope = kept["rope_parameters"].items()
            kept["rope_parameters"] = {k: value for k, value in rope if k not in self.given}
        kept |= {key: kept[key] * factor for key, factor in self.times.items() if key in kept}
        return {self.keys.get(key, key): value for key, value in kept.items()}

    def config(self, model_type: str, document: Document) -> dict[str, Any]:
        """Return the config.json of the other type, of type `model_type`."""
        theirs = {own: key for key, own in self.keys.items()}
        kept = {
            theirs.get(key, key): value for key, value in document.items() if key not in self.own
        }
        kept |= {key: kept[key] // factor for key, factor in self.times.items() if key in kept}
        kept.setdefault("num_key_value_heads", kept.get("num_attention_heads"))
        return {**kept, **self.given, **self.more({**document, **kept}), "model_type": model_type}

    def tensors(self, given: Tensors, document: Document) -> Tensors:
        """Return the tensors of the type for those of the other type."""
        theirs = self.config("", document)
        made: dict[str, NDArray[Any]] = {}
        for name, array in given.items():
            if self.ungated and ".shared_expert_gate." in name:
                continue
            joined = next((each for each in self.joined if _find(name, each.parts)), None)
            if joined is None:
                own = self._replace(name)
                made[own] = self._turn(own, array, theirs) * self._share(name, 0.5, array)
                continue
            if joined.parts[0] not in name:
                continue
            parts = [given[name.replace(joined.parts[0], part)] for part in joined.parts]
            order = joined.find_order([len(part) for part in parts], theirs)
            own = self._replace(name.replace(joined.parts[0], joined.name))
            made[own] = np.concatenate(parts)[list(order)]
        return self._transpose(made)

    def back(self, given: Tensors, document: Document) -> Tensors:
        """Return the tensors of the other type for those of the type."""
        theirs = self.config("", document)
        made: dict[str, NDArray[Any]] = {}
        for name, array in self._transpose(given).items():
            joined = next((each for each in self.joined if each.name in name), None)
            if joined is None:
                other = self._replace(name, is_back=True)
                turned = self._turn(name, array, theirs, is_back=True)
                if other == "lm_head.weight" and len(array) == self.unit_rows:
                    turned = turned / np.linalg.norm(turned, axis=-1, keepdims=True)
                made[other] = turned * self._share(other, 2, array)
                if self.ungated and other.endswith(".mlp.gate.weight"):
                    gate = other.replace(".gate.", ".shared_expert_gate.")
                    made[gate] = np.zeros((1, array.shape[1]), array.dtype)
                continue
            counts = joined.count_rows(name, len(array), theirs)
            order = invert(joined.find_order(counts, theirs))
            parts = np.split(array[list(order)], np.cumsum(counts)[:-1])
            for part, values in zip(joined.parts, parts, strict=True):
                own = name.replace(joined.name, part)
                made[self._replace(own, is_back=True)] = np.ascontiguousarray(values)
        return made

    def _transpose(self, given: Tensors) -> Tensors:
        return {
            name: np.ascontiguousarray(array.T) if _find(name, self.transposed) else array
            for name, array in given.items()
        }

    def _share(self, name: str, factor: float, array: NDArray[Any]) -> Any:
        is_shared = self.ungated and ".shared_expert.down_proj." in name
        return array.dtype.type(factor if is_shared else 1)

    def _turn(
        self, own: str, array: NDArray[Any], theirs: Document, *, is_back: bool = False
    ) -> NDArray[Any]:
        if not _find(own, self.interleaved):
            return array
        size = theirs.get("head_dim") or theirs["hidden_size"] // theirs["num_attention_heads"]
        order = interleaved_order(len(array) // size, size)
        return array[list(invert(order) if is_back else order)]

    def _replace(self, name: str, *, is_back: bool = False) -> str:
        for theirs, own in reversed(self.names) if is_back else self.names:
            name = name.replace(own, theirs) if is_back else name.replace(theirs, own)
        return name


def _find(name: str, parts: tuple[str, ...]) -> bool:
    return any(part in name for part in parts)


def _divide(document: Document) -> int:
    """Return the size of a head if all of them together are as wide as the hidden size."""
    return int(document["hidden_size"] // document["num_attention_heads"])


def _list_parts(document: Document) -> Document:
    """Return the sizes of the parts of each layer of a Nemotron Super or a DeciLM."""
    heads, hidden = document["num_attention_heads"], document["hidden_size"]
    given = {"head_dim": _divide(document), "num_key_value_heads": heads}
    if "block_configs" not in document:
        width = document["intermediate_size"]
        shared = document["num_key_value_heads_per_layer"]
        return {**given, "shared": shared, "widths": [width] * len(shared)}
    blocks = document["block_configs"]
    groups = [block["attention"]["n_heads_in_group"] for block in blocks]
    factors = [block["ffn"]["ffn_mult"] or 0 for block in blocks]
    widths = [-(-int(2 * factor * hidden / 3) // 256) * 256 for factor in factors]
    shared = [heads // group if group else 0 for group in groups]
    return {**given, "intermediate_size": max(widths), "shared": shared, "widths": widths}


def _list_widths(document: Document) -> Document:
    """Return the sizes of the layers of an OpenELM."""
    hidden, divisor = document["hidden_size"], document["ffn_dim_divisor"]
    widths = [
        max(1, round(factor * hidden / divisor)) * divisor for factor in document["ffn_multipliers"]
    ]
    queries, shared = document["num_query_heads"], document["num_kv_heads"]
    return {
        "intermediate_size": widths[0],
        "num_attention_heads": queries[0],
        "num_key_value_heads": shared[0],
        "queries": queries,
        "shared": shared,
        "widths": widths,
    }


def _list_windows(document: Document) -> Document:
    """Return the windows and the RoPE of the layers of a Spark."""
    rope = [document["rope_parameters"][f"{kind}_attention"] for kind in ("full", "sliding")]
    return {
        "hidden_act": document.get("hidden_act", "gelu"),
        "rope": [[each["rope_theta"], each["partial_rotary_factor"]] for each in rope],
        "window": document["sliding_window"],
        "windowed": [kind == "sliding_attention" for kind in document["layer_types"]],
    }


_DECI = Dialect(
    given={"head_dim": None, "num_key_value_heads": None},
    own=("block_configs", "num_key_value_heads_per_layer"),
    more=_list_parts,
)
_SEES_AHEAD = {"is_causal": False}
_GPT_NAMES = (
    ("model.embed_tokens.", "transformer.wte."),
    ("model.norm.", "transformer.ln_f."),
    ("model.layers.", "transformer.h."),
    (".input_layernorm.", ".ln_1."),
    (".post_attention_layernorm.", ".ln_2."),
)
_GPT_KEYS = {
    "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}  # fmt: skip


def _of_deepseek(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Qwen 2 MoE states of the layers and the shared experts of a DeepSeek."""
    return {
        "mlp_only_layers": list(range(document.get("first_k_dense_replace", 0))),
        "shared_expert_intermediate_size": document["n_shared_experts"]
        * document["moe_intermediate_size"],
    }


# The dialects, by type: the other type, the class of the type, and the names.
DIALECTS: Mapping[str, tuple[str, str, Dialect]] = {
    "internlm2": ("llama", "InternLM2ForCausalLM", Dialect(
        keys={"attention_bias": "bias"},
        names=(
            ("model.embed_tokens.", "model.tok_embeddings."),
            ("lm_head.", "output."),
            (".input_layernorm.", ".attention_norm."),
            (".post_attention_layernorm.", ".ffn_norm."),
            (".self_attn.o_proj.", ".attention.wo."),
            (".mlp.gate_proj.", ".feed_forward.w1."),
            (".mlp.down_proj.", ".feed_forward.w2."),
            (".mlp.up_proj.", ".feed_forward.w3."),
        ),
        joined=(Joined(".attention.wqkv.", QKV, by_group=True),),
    )),
    "baichuan": ("own_llama", "BaichuanForCausalLM", Dialect(
        keys={"max_position_embeddings": "model_max_length"},
        given={"head_dim": None, "num_key_value_heads": None},
        more=lambda document: {
            "alibi": document["num_hidden_layers"] == 40, "head_dim": _divide(document),
            "num_key_value_heads": document["num_attention_heads"],
        },
        joined=(Joined(".self_attn.W_pack.", QKV),),
        unit_rows=125696,
    )),
    "xverse": ("llama", "XverseForCausalLM", Dialect()),
    "orion": ("stablelm", "OrionForCausalLM", Dialect(
        keys={"layer_norm_eps": "rms_norm_eps"},
        given={"partial_rotary_factor": 1.0},
    )),
    "qwen": ("qwen2", "QWenLMHeadModel", Dialect(
        keys={"rms_norm_eps": "layer_norm_epsilon", "head_dim": "kv_channels",
              "rope_theta": "rotary_emb_base"},
        own=("no_bias", "rotary_pct"),
        times={"intermediate_size": 2},
        names=(
            *_GPT_NAMES,
            (".self_attn.o_proj.", ".attn.c_proj."),
            (".mlp.up_proj.", ".mlp.w1."),
            (".mlp.gate_proj.", ".mlp.w2."),
            (".mlp.down_proj.", ".mlp.c_proj."),
        ),
        joined=(Joined(".attn.c_attn.", QKV),),
    )),
    "exaone": ("llama", "ExaoneForCausalLM", Dialect(
        keys={
            "num_hidden_layers": "num_layers", "rms_norm_eps": "layer_norm_epsilon",
            "hidden_act": "activation_function",
        },
        names=(
            *_GPT_NAMES,
            (".self_attn.", ".attn.attention."),
            (".o_proj.", ".out_proj."),
            (".mlp.gate_proj.", ".mlp.c_fc_0."),
            (".mlp.up_proj.", ".mlp.c_fc_1."),
            (".mlp.down_proj.", ".mlp.c_proj."),
        ),
    )),
    "chatglm": ("glm", "ChatGLMForConditionalGeneration", Dialect(
        keys={
            "vocab_size": "padded_vocab_size", "max_position_embeddings": "seq_length",
            "num_hidden_layers": "num_layers", "num_key_value_heads": "multi_query_group_num",
            "head_dim": "kv_channels", "intermediate_size": "ffn_hidden_size",
            "rms_norm_eps": "layernorm_epsilon", "attention_bias": "add_qkv_bias",
        },
        own=("rope_ratio", "multi_query_attention"),
        given={"rope_parameters": None},
        more=lambda document: {"rope_parameters": {
            "rope_type": "default", "rope_theta": 10000.0 * document.get("rope_ratio", 1),
            "partial_rotary_factor": 0.5,
        }},
        names=(
            ("lm_head.", "transformer.output_layer."),
            ("model.embed_tokens.", "transformer.embedding.word_embeddings."),
            ("model.norm.", "transformer.encoder.final_layernorm."),
            ("model.layers.", "transformer.encoder.layers."),
            (".self_attn.o_proj.", ".self_attention.dense."),
            (".mlp.gate_up_proj.", ".mlp.dense_h_to_4h."),
            (".mlp.down_proj.", ".mlp.dense_4h_to_h."),
        ),
        joined=(Joined(".self_attention.query_key_value.", QKV),),
    )),
    "codeshell": ("starcoder2", "CodeShellForCausalLM", Dialect(
        keys={
            **_GPT_KEYS, "num_key_value_heads": "num_query_groups",
            "intermediate_size": "n_inner", "norm_epsilon": "layer_norm_epsilon",
            "hidden_act": "activation_function",
        },
        own=("position_embedding_type",),
        given={"sliding_window": None, "use_bias": True},
        more=lambda document: {
            "intermediate_size": document.get("intermediate_size") or 4 * document["hidden_size"]
        },
        names=(*_GPT_NAMES, (".self_attn.o_proj.", ".attn.c_proj.")),
        joined=(Joined(".attn.c_attn.", QKV),),
    )),
    "maincoder": ("hunyuan_v1_dense", "MaincoderForCausalLM", Dialect(
        own=("use_qk_norm",),
        interleaved=(".q_proj.", ".k_proj.", ".q_norm.", ".k_norm."),
        names=((".query_layernorm.", ".q_norm."), (".key_layernorm.", ".k_norm.")),
    )),
    "bailing_moe_v2": ("glm4_moe", "BailingMoeV2ForCausalLM", Dialect(
        keys={
            "n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts",
            "attention_bias": "use_qkv_bias",
        },
        own=("use_bias",),
        given={"use_qk_norm": True},
        more=lambda document: {"head_dim": document.get("head_dim") or _divide(document)},
        names=(
            ("model.embed_tokens.", "model.word_embeddings."),
            (".self_attn.q_norm.", ".attention.query_layernorm."),
            (".self_attn.k_norm.", ".attention.key_layernorm."),
            (".self_attn.o_proj.", ".attention.dense."),
            (".e_score_correction_bias", ".expert_bias"),
        ),
        joined=(Joined(".attention.query_key_value.", QKV),),
    )),
    "deepseek": ("qwen2_moe", "DeepseekForCausalLM", Dialect(
        keys={"num_experts": "n_routed_experts"},
        own=("n_shared_experts", "first_k_dense_replace", "moe_layer_freq", "scoring_func"),
        given={"qkv_bias": False},
        more=_of_deepseek,
        names=((".mlp.shared_expert.", ".mlp.shared_experts."),),
        ungated=True,
    )),
    "deepseek_vl_v2": ("qwen2_moe", "DeepseekOCRForCausalLM", Dialect(
        keys={"num_experts": "n_routed_experts"},
        own=("n_shared_experts", "first_k_dense_replace", "moe_layer_freq", "scoring_func",
             "routed_scaling_factor", "mlp_layer_types"),
        given={"qkv_bias": False},
        more=_of_deepseek,
        names=((".mlp.shared_expert.", ".mlp.shared_experts."),),
        ungated=True,
    )),
    "phi4mm": ("phi3", "Phi4MMForCausalLM", Dialect(names=tuple(
        (f".{part}_proj.", f".{part}_proj.base_layer.") for part in ("qkv", "o", "gate_up", "down")
    ))),
    "PanguEmbedded": ("llama", "PanguEmbeddedForCausalLM", Dialect(
        keys={"attention_bias": "bias"},
    )),
    "Dream": ("qwen2", "DreamModel", Dialect(given=_SEES_AHEAD)),
    "rnd1": ("qwen3_moe", "RND1LM", Dialect(
        keys={"num_local_experts": "num_experts"},
        given=_SEES_AHEAD,
    )),
    "llada": ("llama", "LLaDAModelLM", Dialect(
        keys={
            "max_position_embeddings": "max_sequence_length", "hidden_size": "d_model",
            "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
            "num_key_value_heads": "n_kv_heads", "intermediate_size": "mlp_hidden_size",
            "tie_word_embeddings": "weight_tying", "hidden_act": "activation_type",
        },
        own=("layer_norm_type", "block_type", "rope"),
        given=_SEES_AHEAD,
        names=(
            ("model.embed_tokens.", "model.transformer.wte."),
            ("model.norm.", "model.transformer.ln_f."),
            ("model.layers.", "model.transformer.blocks."),
            (".input_layernorm.", ".attn_norm."),
            (".post_attention_layernorm.", ".ff_norm."),
            (".self_attn.o_proj.", ".attn_out."),
            (".self_attn.q_proj.", ".q_proj."),
            (".self_attn.k_proj.", ".k_proj."),
            (".self_attn.v_proj.", ".v_proj."),
            (".mlp.gate_proj.", ".ff_proj."),
            (".mlp.up_proj.", ".up_proj."),
            (".mlp.down_proj.", ".ff_out."),
            ("lm_head.", "model.transformer.ff_out."),
        ),
    )),
    "llada_moe": ("qwen3_moe", "LLaDAMoEModelLM", Dialect(
        keys={
            "moe_intermediate_size": "expert_intermediate_size",
            "num_local_experts": "num_experts",
            "intermediate_size": "dense_intermediate_size",
        },
        own=("qk_layernorm",),
        given={**_SEES_AHEAD, "norm_topk_prob": False},
        more=lambda document: {"head_dim": _divide(document)},
    )),
    "llama_bidirec": ("llama", "LlamaBidirectionalModel", Dialect(given=_SEES_AHEAD)),
    "gpt_refact": ("own_llama", "GPTRefactForCausalLM", Dialect(
        keys={**_GPT_KEYS, "rms_norm_eps": "layer_norm_epsilon"},
        own=("multi_query",),
        given={
            "alibi": True, "head_dim": None, "intermediate_size": None, "num_key_value_heads": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        more=lambda document: {
            "head_dim": _divide(document),
            "intermediate_size": -(-(8 * document["hidden_size"] // 3) // 256) * 256,
        },
        names=(
            *_GPT_NAMES,
            (".self_attn.q_proj.", ".attn.q."),
            (".self_attn.o_proj.", ".attn.c_proj."),
            (".mlp.down_proj.", ".mlp.c_proj."),
        ),
        joined=(Joined(".attn.kv.", QKV[1:]), Joined(".mlp.gate_up_proj.", GATE_UP)),
    )),
    "nemotron-nas": ("own_llama", "DeciLMForCausalLM", _DECI),
    "deci": ("own_llama", "DeciLMForCausalLM", _DECI),
    "jina_bert_v2": ("own_bert", "JinaBertModel", Dialect(
        own=("position_embedding_type", "feed_forward_type"),
    )),
    "spark2_5": ("own_llama", "Spark2_5ForCausalLM", Dialect(
        given={"gated": True},
        own=(
            "gate_attn_act_mode", "headwise_attn_output_gate", "layer_types", "rope_parameters",
            "sliding_window",
        ),
        more=_list_windows,
        names=(("model.embed_tokens.", "model.embedding."), (".o_proj.", ".out_proj.")),
        joined=(Joined(".q_k_v_proj.", (".q_proj.", ".k_proj.", ".v_proj.")),),
    )),
    "openelm": ("own_llama", "OpenELMForCausalLM", Dialect(
        keys={
            "hidden_size": "model_dim", "num_hidden_layers": "num_transformer_layers",
            "max_position_embeddings": "max_context_length", "rope_theta": "rope_freq_constant",
            "tie_word_embeddings": "share_input_output_layers",
        },
        given={"normed": True, "rms_norm_eps": 1e-6},
        own=(
            "activation_fn_name", "ffn_dim_divisor", "ffn_multipliers", "ffn_with_glu",
            "normalize_qk_projections", "num_kv_heads", "num_query_heads",
        ),
        more=_list_widths,
        names=(
            ("model.embed_tokens.", "model.token_embeddings."), ("model.", "transformer."),
            (".input_layernorm.", ".attn_norm."), (".post_attention_layernorm.", ".ffn_norm."),
            (".self_attn.o_proj.", ".attn.out_proj."), (".self_attn.q_norm.", ".attn.q_norm."),
            (".self_attn.k_norm.", ".attn.k_norm."), (".mlp.down_proj.", ".ffn.proj_2."),
        ),
        joined=(Joined(".attn.qkv_proj.", QKV), Joined(".ffn.proj_1.", GATE_UP)),
    )),
    "jais": ("own_llama", "JAISLMHeadModel", Dialect(
        keys={
            **_GPT_KEYS, "intermediate_size": "n_inner", "rms_norm_eps": "layer_norm_epsilon",
            "embedding_factor": "mup_embeddings_scale",
        },
        own=(
            "activation_function", "mup_output_alpha", "mup_scale_qk_dot_by_d", "mup_width_scale",
            "position_embedding_type",
        ),
        given={
            "alibi": True, "attention_bias": True, "by_size": True, "head_dim": None,
            "layer_norm": True, "mlp_bias": True, "num_key_value_heads": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        more=lambda document: {
            "head_dim": _divide(document), "num_key_value_heads": document["num_attention_heads"],
            "logit_factor": document["mup_width_scale"] * document["mup_output_alpha"],
        },
        names=(
            *_GPT_NAMES,
            (".self_attn.o_proj.", ".attn.c_proj."),
            (".mlp.gate_proj.", ".mlp.c_fc2."),
            (".mlp.up_proj.", ".mlp.c_fc."),
            (".mlp.down_proj.", ".mlp.c_proj."),
        ),
        joined=(Joined(".attn.c_attn.", QKV),),
        transposed=(".attn.c_attn.", ".c_proj.", ".c_fc.", ".c_fc2."),
    )),
    "nanbeige": ("own_llama", "NanbeigeForCausalLM", Dialect(
        keys={"loops": "num_loops", "skips": "skip_loop_final_norm"},
    )),
}  # fmt: skip
