"""Small models of every family with sizes, flags and forms of files that are drawn by a seed.

Whether a flag, a size or a spelling is possible is what transformers says; a model that it does not
build is drawn again.
"""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import family_tokenizers
from family_cases import CASES, model_class, run_transformers, untie_output
from family_stand_ins import STAND_INS
from lazy import torch, transformers
from weightctl.families import FAMILIES
from weightctl.families.config_values import FLAG
from weightctl.families.layers import FlagMeaning

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from family_cases import FamilyCase

__all__ = ["FLAGS", "Variant", "VariantCheckpoint", "draw_variant", "make_variant"]

_HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_INNER = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "hidden_dim")
_WIDTHS = ("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_USED = ("num_experts_per_tok", "moe_topk", "moe_k")
_SHARED = ("n_shared_experts", "num_shared_experts")
_GROUPS = "n_group"
_ROPE, _FACTORS = "rope_parameters", ("short_factor", "long_factor")
_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
_MIXED, _TOKENS, _MOST_LAYERS, _CONTEXT_SIZE = "mixed", 24, 8, 96
_SCALINGS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 32},
)  # fmt: skip


class Variant(NamedTuple):
    """A model that was drawn: what its config states, and how its files are."""

    case: FamilyCase
    config: dict[str, Any]
    dtype: str
    parts: int
    is_old: bool
    seed: int


class VariantCheckpoint(NamedTuple):
    """A checkpoint of a variant, its tensors in float32, and what transformers computes."""

    path: Path
    tensors: dict[str, NDArray[np.float32]]
    tokens: list[int]
    expected: NDArray[np.float32]


def _flags(family: str) -> tuple[str, ...]:
    keys = FAMILIES[family].load().keys
    return tuple(sorted({
        key.hugging_face for key in keys
        if key.hugging_face and (key.kind is FLAG or isinstance(key.kind, FlagMeaning))
    }))  # fmt: skip


def _name_type(case: FamilyCase) -> str:
    """Return a case's type, or the one that stands in for it where transformers lacks it."""
    stand_in = STAND_INS.get(case.kind)
    return case.model_type if stand_in is None else stand_in.model_type


# The keys of config.json that are true or false, by families.
FLAGS = {family: _flags(family) for family in FAMILIES}


def draw_variant(family: str, seed: int, **stated: Any) -> Variant:
    """Return what is drawn for a family by a seed; its config has what is `stated`."""
    random = Random(f"{family} {seed}")
    cases = [
        case for case in CASES.values()
        if case.family == family and _name_type(case) in transformers.CONFIG_MAPPING
    ]  # fmt: skip
    small = [case for case in cases if case.config.get("num_hidden_layers", 0) <= _MOST_LAYERS]
    case = random.choice(small or cases)
    known = transformers.CONFIG_MAPPING[_name_type(case)]().to_dict()
    config = dict(case.config)
    _draw_sizes(random, family, known, config)
    _draw_rope(random, known, config)
    config |= {
        flag: random.random() < 0.5 for flag in FLAGS[family] if flag in known or flag in config
    }
    if case.model_type == "gpt_bigcode":
        is_shared = config.get("multi_query", True)
        config["num_key_value_heads"] = 1 if is_shared else config["n_head"]
    if case.model_type == "phimoe":
        config["num_experts_per_tok"] = 2  # SparseMixer chooses as many, whatever this says.
    _draw_dependent_sizes(known, config)
    if FAMILIES[family].load().is_of is not None:
        config |= {"vocab_size": config["vocab_size"] + 700, "tokenizer": case.tokenizer}
    dtype, parts = random.choice((*_DTYPES, _MIXED)), random.choice((1, 1, 3))
    is_old = random.random() < 0.4
    if case.kind in STAND_INS:
        # These are rewritten as one file, in a dtype of NumPy.
        dtype, parts, is_old = ("f16" if dtype == "f16" else "f32"), 1, False
    return Variant(case, config | stated, dtype, parts, is_old, seed)


def _draw_dependent_sizes(known: dict[str, Any], config: dict[str, Any]) -> None:
    """Set sizes that must fit others: llama.cpp or the config's class refuses other ones."""
    if "vocab_size_per_layer_input" in known:
        config["vocab_size_per_layer_input"] = config["vocab_size"]
    if "time_step_rank" in known and "intermediate_size" in known:  # Mamba's channels
        config["intermediate_size"] = 2 * config["hidden_size"]
    if "decay_low_rank_dim" in known:  # RWKV-7's heads, which llama.cpp norms with one epsilon
        config |= {"head_dim": 4, "norm_eps": 64e-5 / 4}
    if "index_block_size" in known:  # a head of the indexer selects keys for each KV head
        config["index_n_heads"] = config["num_key_value_heads"]
        config["shared_intermediate_size"] = config["intermediate_size"]
    if "head_size_divisor" in known:  # RWKV-6's heads
        config["head_size"] = 4
    if "num_experts" in config and "num_local_experts" in config:  # two names of one size
        config["num_experts"] = config.pop("num_local_experts")


def _find(known: dict[str, Any], names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name in known]


def _draw_sizes(random: Random, family: str, known: dict[str, Any], config: dict[str, Any]) -> None:
    is_latent = "kv_lora_rank" in known
    heads = random.choice((1, 2, 4, 6))
    size = random.choice((8, 16, 24))
    counts = [count for count in (1, 2, 3, 6) if heads % count == 0]
    hidden = heads * size
    kv_heads = heads if is_latent else random.choice((1, heads, random.choice(counts)))
    fills = FAMILIES[family].load().heads_fill_hidden
    config.pop("rotary_dim", None)
    if "head_dim" in known and not is_latent:
        config["head_dim"] = size
        if not fills and random.random() < 0.6:
            hidden = heads * random.choice((12, 20))
    for names, value in (
        (_HIDDEN, hidden),
        (_HEADS, heads),
        (("num_key_value_heads",), kv_heads),
        (_INNER, random.choice((32, 56, 72))),
        (_WIDTHS, random.choice((16, 40))),
        (_CONTEXT, _CONTEXT_SIZE),
        (("vocab_size",), random.choice((64, 97, 131))),
    ):
        config |= dict.fromkeys(_find(known, names), value)
    if "num_kv_heads" in known and config.get("new_decoder_architecture"):
        config["num_kv_heads"] = kv_heads
    if "query_pre_attn_scalar" in known:
        config["query_pre_attn_scalar"] = size
    if "rotary_dim" in known:
        config["rotary_dim"] = size // 2
    if not is_latent and "short_factor" in (rope := config.get(_ROPE, {})):
        config[_ROPE] = rope | {name: rope[name][: size // 2] for name in _FACTORS}
    _draw_layers(random, known, config)
    shared = [name for name in _SHARED if name in known and known[name] is None]
    config |= dict.fromkeys(shared, 1)
    if used := _find(known, _USED):
        groups = random.choice((1, 2)) if _GROUPS in known else 1
        experts = groups * random.choice((2, 3))
        config |= dict.fromkeys(_find(known, _EXPERTS), experts)
        config |= dict.fromkeys(used, random.randint(1, experts // groups))
        if _GROUPS in known:
            config |= {_GROUPS: groups, "topk_group": random.randint(1, groups)}


def _draw_layers(random: Random, known: dict[str, Any], config: dict[str, Any]) -> None:
    layers = len(config.get("layer_types", ()))
    layers = layers or config.get("num_hidden_layers", random.choice((1, 2, 3)))
    config |= dict.fromkeys(_find(known, _LAYERS), layers)
    has_windows = bool(config.get("sliding_window", known.get("sliding_window", 0)))
    # Some families have in GGUF no layers but the usual ones.
    if known.get("layer_types") and has_windows and random.random() < 0.5:
        words = sorted({*known["layer_types"]})
        config["layer_types"] = [random.choice(words) for _ in range(layers)]


def _draw_rope(random: Random, known: dict[str, Any], config: dict[str, Any]) -> None:
    rope = known.get(_ROPE)
    if not isinstance(rope, dict) or "rope_theta" not in rope or _ROPE in config:
        return
    drawn = {**rope, "rope_theta": random.choice((10000.0, 500000.0, 1000000.0))}
    config[_ROPE] = drawn | random.choice(_SCALINGS)


def make_variant(variant: Variant, into: Path) -> VariantCheckpoint:
    """Write a checkpoint of a variant; raises what transformers does where it cannot be built."""
    transformers.utils.logging.disable_progress_bar()
    stated = dict(variant.config)
    tokenizer = getattr(family_tokenizers, stated.pop("tokenizer", ""), None)
    ids = dict.fromkeys(("bos_token_id", "eos_token_id"), 1) | {"pad_token_id": 0}
    if tokenizer is not None:
        ids["pad_token_id"] = tokenizer().pad_token_id
    stated = ids | stated
    stand_in = STAND_INS.get(variant.case.kind)
    if stand_in is not None:
        names = {"model_type": variant.case.model_type, "architectures": [stand_in.class_name]}
        stated = dict(stand_in.rename(stated)) | names
    given = stated if stand_in is None else dict(stand_in.config(stated))
    given.pop("model_type", None)
    config = transformers.CONFIG_MAPPING[_name_type(variant.case)](**given)
    made = model_class(variant.case)
    make = getattr(made, "from_config", None) or made._from_config
    torch.manual_seed(variant.seed)
    model = make(config, dtype=torch.float32, attn_implementation="eager").eval()
    random = Random(f"tensors {variant.seed}")
    chosen = _fill(model, variant.dtype, random)
    tokens = torch.randint(2, config.vocab_size, (_TOKENS,)).tolist()
    expected = run_transformers(model, tokens)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name in chosen:
            tensor.data = tensor.data.to(_DTYPES[chosen[name]])
    total = sum(each.numel() * each.element_size() for each in model.parameters())
    size = total + 10000 if variant.parts == 1 else total // variant.parts
    model.save_pretrained(into, max_shard_size=f"{size}B" if size < 1000 else size)
    if stand_in is not None:
        stand_in.write(into, stated)
        readable = stand_in.read(into, into.with_name("readable"))
        model = made.from_pretrained(readable, dtype=torch.float32, attn_implementation="eager")
        expected = run_transformers(model, tokens)
    if tokenizer is not None:
        tokenizer().save_pretrained(into)
    if variant.is_old:
        _write_as_older(into)
    return VariantCheckpoint(into, _read(into), tokens, expected)


def _fill(model: Any, dtype: str, random: Random) -> dict[str, str]:
    """Give a model values that are of some dtypes, and return the dtype of each tensor."""
    with torch.no_grad():
        # Rows of positions that no token has.
        skipped = {
            f"{name}.weight": each.padding_idx
            for name, each in model.named_modules()
            if "position" in name and getattr(each, "padding_idx", None) is not None
        }
        for name, tensor in _list_tensors(model):
            if tensor.ndim > 1:
                tensor.copy_(torch.randn_like(tensor) / tensor.shape[-1] ** 0.5)
                if name in skipped:
                    tensor[: skipped[name] + 1] = 0
            else:
                # Of norms that are stored less 1, that sum has no rounding.
                is_norm = "norm" in name or "ln_" in name
                tensor.copy_(torch.randint(-32, 32, tensor.shape) / 64 + is_norm)
        model.tie_weights()
        if hasattr(model, "get_output_embeddings"):
            untie_output(model)
        chosen: dict[str, str] = {}
        for name, tensor in _list_tensors(model):
            chosen[name] = random.choice([*_DTYPES]) if dtype == _MIXED else dtype
            tensor.copy_(tensor.to(_DTYPES[chosen[name]]).float())
    return chosen


def _list_tensors(model: Any) -> list[tuple[str, Any]]:
    """Return the names and tensors of a model that its checkpoint has, each once."""
    named = [*model.named_parameters(), *model.named_buffers()]
    stored = model.state_dict()
    return [each for each in named if each[0] in stored and each[1].is_floating_point()]


def _write_as_older(directory: Path) -> None:
    """Write what older versions of transformers call things, where newer ones read it alike."""
    path = directory / "config.json"
    written = path.read_text()
    document = json.loads(written)
    newer = transformers.AutoConfig.from_pretrained(directory).to_dict()
    document["torch_dtype"] = document.pop("dtype", None)
    rope = document.pop(_ROPE, None)
    if isinstance(rope, dict) and "rope_theta" in rope:
        kind = rope.pop("rope_type", "default")
        for name in ("rope_theta", "partial_rotary_factor"):
            if name in rope:
                document[name] = rope.pop(name)
        document["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
    elif rope is not None:
        document[_ROPE] = rope
    path.write_text(json.dumps(document))
    if transformers.AutoConfig.from_pretrained(directory).to_dict() != newer:
        path.write_text(written)


def _read(directory: Path) -> dict[str, NDArray[np.float32]]:
    from weightctl import open_weights

    return {
        name: node.data().astype("float32").to_numpy().copy()
        for name, node in open_weights(directory).items()
    }
