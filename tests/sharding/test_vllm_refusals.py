"""What vLLM's layout cannot express is refused, with a remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cut_models import ATTENTION, gguf_llama, model, planned, saved, stated, with_names
from each import each
from tiny import arrays_of, make_small
from weightctl.errors import ArchitectureError, ShardingError
from weightctl.sharding.plan_file import CutRules
from weightctl.sharding.planning import shard_plan
from weightctl.split import Grid

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from weightctl import Weights

UNEVEN: Mapping[str, tuple[str, dict[str, Any], int, str, str, str]] = {
    "heads": (
        "llama",
        {"vocab_size": 192},
        3,
        f"{ATTENTION}.q_proj.weight",
        "4 query heads cannot be divided evenly",
        "1, 2 or 4 ranks work",
    ),
    "keys": (
        "llama",
        {"num_attention_heads": 12, "num_key_value_heads": 4, "hidden_size": 96, "vocab_size": 192},
        6,
        f"{ATTENTION}.k_proj.weight",
        "the number of KV heads, 4, is neither a multiple nor a divisor of the number of ranks",
        "1, 2, 4 or 12 ranks work",
    ),
    "vocabulary": (
        "llama",
        {},
        3,
        "model.embed_tokens.weight",
        "96 rows, padded to 128 (a multiple of 64), cannot be divided evenly",
        "1, 2 or 4 ranks work",
    ),
    "inner": (
        "llama",
        {"intermediate_size": 90},
        4,
        "model.layers.0.mlp.gate_proj.weight",
        "90 elements cannot be divided evenly",
        "1 or 2 ranks work",
    ),
    "experts": (
        "qwen3moe",
        {"num_attention_heads": 8, "num_experts": 4},
        8,
        "model.layers.0.mlp.experts.0.gate_proj.weight",
        "the model has only 4 experts",
        "1, 2 or 4 ranks work",
    ),
}


@each("case", UNEVEN)
def test_what_does_not_divide_is_refused_with_the_counts_that_work(
    case: str, tmp_path: Path
) -> None:
    family, changes, ranks, name, problem, works = UNEVEN[case]
    with pytest.raises(ShardingError) as caught:
        planned(tmp_path, family, ranks, **changes)
    assert f"`{name}`" in caught.value.message
    assert caught.value.message.endswith(f"among {ranks} ranks: {problem}")
    assert caught.value.hint == (
        f'{works}; other numbers of ranks need --layout ranks (layout="ranks" in Python)'
    )


def refused(weights: Weights, grid: Grid | None = None, **changes: Any) -> str:
    with pytest.raises(ShardingError) as caught:
        shard_plan(weights, grid or Grid(2), layout="vllm", **changes)
    assert caught.value.hint
    return caught.value.message


def test_a_gguf_is_refused() -> None:
    assert "is a GGUF file, whose tensor names and row order differ" in refused(gguf_llama())


def test_gpt2_whose_matrices_would_have_to_be_turned_is_refused(tmp_path: Path) -> None:
    made = make_small("gpt2")
    weights = saved(tmp_path, arrays_of(made), made.document)
    assert "vLLM expects its matrices transposed" in refused(weights)


def llama(folder: Path, **changes: Any) -> Weights:
    arrays, config = model("llama")
    return saved(folder, arrays, config | changes)


@each(
    "grid, changes, problem",
    [
        (
            Grid(2, pp=1),
            {"format_name": "gguf"},
            ("vLLM reads sharded checkpoints only from safetensors, not from gguf"),
        ),
        (Grid(1, pp=2), {}, "the vLLM layout does not support pipeline stages"),
        (
            Grid(2),
            {"rules": CutRules("", ())},
            ("the vLLM layout is fixed and does not use a plan file"),
        ),
    ],
)
def test_what_the_layout_is_not_built_for_is_refused(
    grid: Grid, changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    arrays, config = model("llama", num_hidden_layers=2)
    assert problem in refused(saved(tmp_path, arrays, config), grid, **changes)


def test_experts_are_not_shared_out_among_ranks(tmp_path: Path) -> None:
    arrays, config = model("mixtral")
    problem = refused(saved(tmp_path, arrays, config), Grid(1, ep=2))
    assert problem == "the vLLM layout does not support expert parallelism"


@each(
    "changes, problem",
    [
        ({"architectures": ["LlamaForSequenceClassification"]}, "states the `architectures`"),
        ({"architectures": None}, "states the `architectures` None, but vLLM's layout of"),
        ({"architectures": "LlamaForCausalLM"}, "states the `architectures`"),
        ({"quantization_config": {"quant_method": "fp8"}}, "has a `quantization_config`"),
        ({"vocab_size": 90}, "`lm_head.weight` has 96 rows, but vLLM expects"),
    ],
)
def test_a_config_of_another_model_is_refused(
    changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    message = refused(llama(tmp_path, **changes))
    assert problem.replace("lm_head", "model.embed_tokens") in message


def encoded(folder: Path, encoding: str, **others: str) -> Weights:
    """Return a llama of which there is a header alone, in an encoding but for some tensors."""
    arrays, config = model("llama")
    tensors = {name: (each.shape, others.get(name.split(".")[-2], encoding))
               for name, each in arrays.items()}  # fmt: skip
    return stated(tensors, directory=folder, config=config)


def test_numbers_that_vllm_does_not_compute_in_are_refused(tmp_path: Path) -> None:
    problem = refused(encoded(tmp_path, "F64"))
    assert problem == (
        "`model.embed_tokens.weight` is stored as F64, but vLLM computes in F32, F16, BF16"
    )


def test_a_quantized_weight_is_refused(tmp_path: Path) -> None:
    arrays, config = model("llama")
    tensors = {name: (each.shape, "F8_E4M3" if "_proj" in name else "BF16")
               for name, each in arrays.items()}  # fmt: skip
    scales = {f"{name}_scale": ((1,), "F32") for name in arrays if "_proj" in name}
    problem = refused(stated(tensors | scales, directory=tmp_path, config=config))
    assert (
        "is a part of a quantized weight: the vLLM layout does not support quantized weights"
    ) in problem


def test_parts_of_one_tensor_are_of_one_encoding(tmp_path: Path) -> None:
    assert refused(encoded(tmp_path, "BF16", k_proj="F32")) == (
        f"`{ATTENTION}.q_proj.weight` is stored as BF16 and `{ATTENTION}.k_proj.weight` "
        f"as F32, but vLLM joins them into one tensor, `{ATTENTION}.qkv_proj.weight`"
    )


def test_norms_may_be_of_another_encoding(tmp_path: Path) -> None:
    plan = shard_plan(encoded(tmp_path, "BF16", norm="F32"), Grid(2), layout="vllm")
    kinds = {shard.info.name: shard.info.encoding.name for shard in plan.ranks[0]}
    assert kinds["model.norm.weight"] == "F32"


def test_a_bias_that_vllm_would_not_add_is_refused(tmp_path: Path) -> None:
    arrays, config = model("qwen3", attention_bias=True)
    problem = refused(saved(tmp_path, arrays, config))
    assert problem == (
        f"vLLM 0.33.0 does not have `{ATTENTION}.o_proj.bias` and would compute without it"
    )


def test_one_tensor_that_the_config_says_are_two_is_refused(tmp_path: Path) -> None:
    arrays, config = model("llama")
    tensors = {name: (each.shape, "F32") for name, each in arrays.items()}
    del tensors["lm_head.weight"]
    weights = stated(tensors, directory=tmp_path, config=config)
    aliases = {"lm_head.weight": "model.embed_tokens.weight"}
    problem = refused(with_names(weights, aliases))
    assert problem == (
        "`model.embed_tokens.weight` is used in two places of the model, but the config "
        "does not state that they are tied"
    )


def test_a_checkpoint_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    arrays, config = model("llama")
    del arrays[f"{ATTENTION}.k_proj.weight"]
    with pytest.raises(ArchitectureError, match=r"k_proj\.weight` is missing"):
        shard_plan(saved(tmp_path, arrays, config), Grid(2), layout="vllm")


def test_a_bias_that_the_config_does_not_know_is_refused(tmp_path: Path) -> None:
    arrays, config = model("llama")
    arrays[f"{ATTENTION}.q_proj.bias"] = np.zeros(64, np.float32)
    with pytest.raises(
        ArchitectureError,
        match=r"`model\.layers\.0\.self_attn\.q_proj\.bias` is not a part of llama",
    ):
        shard_plan(saved(tmp_path, arrays, config), Grid(2), layout="vllm")
