"""Variants of every family: drawn models go to GGUF and back without a change.

Drawn are sizes, groups of heads, flags, layers with windows, RoPE scaling, dtypes, numbers of files
and older spellings of config.json. Most draws run with `-m long`.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from test_every_family import OLDER, can_run, read_config, run_ours

from family_cases import for_transformers
from family_variants import FLAGS, Variant, VariantCheckpoint, draw_variant, make_variant
from weightctl import convert, open_weights
from weightctl.errors import WeightctlError
from weightctl.families import FAMILIES, recognize
from weightctl.families.rope_factors import rope_factors

if TYPE_CHECKING:
    from pathlib import Path

# One of each kind of block; with `-m long` all families.
USUAL = (
    "llama", "bert", "gemma3", "mixtral", "deepseek_v2", "falcon", "gpt_oss", "granitemoe", "mpt",
    "stablelm",
)  # fmt: skip
# Falcon-H1's factors are in the weights of a GGUF file, so that other tensors come back. The draws
# of Granite 4 without state space models are those of Granite 4 with them. transformers saves some
# tensors of DeepSeek-V4 under other names than those of the published checkpoints, which come back.
NOT_DRAWN = {"deepseek_v4", "falcon_h1", "granite4"}
SEEDS = 4
# In GGUF they are exponentials, or have something added that is not 1, which float32 rounds.
ROUNDED, MOST_ROUNDING = ("A_log", "post_mixer_norm.weight", "post_mlp_norm.weight"), 2e-7
MOST_DRAWS = 100
MOST_DIFFERENCE = 2e-3
# Why a variant is not converted: llama.cpp does not run it, or it is no model of the family.
REFUSALS = (
    "llama.cpp does not load this", "but llama.cpp would read", "its RoPE uses `llama3` scaling",
    "it must be one of `default`, `linear`, `yarn`", "but llama.cpp assumes that they are equal",
    "`lm_head.bias` is not a part of", "experts are not supported",
    "scaling in a model with sliding window layers",
    "it must be one of `default`, `longrope`, `su`",
    # llama.cpp has no biases of experts in Nemotron-H.
    "mixer.shared_experts.down_proj.bias` is not a part of",
    # transformers does not tie the output of Nemotron-H whatever the config states.
    "is stored separately and differs from the embedding",
)  # fmt: skip
# What differs of models that are the same: a type without a window, keys of a model in which all
# queries share one head of keys, and llama3's settings, which are compared by what they divide by.
SAME = {
    "model_type", "num_ln_in_parallel_attn", "num_kv_heads", "new_decoder_architecture",
    "rope_parameters.low_freq_factor", "rope_parameters.high_freq_factor",
    "rope_parameters.original_max_position_embeddings",
}  # fmt: skip


def make(family: str, seed: int, directory: Path) -> tuple[Variant, VariantCheckpoint, Path]:
    """Return the first drawn model that transformers builds and GGUF can hold, and its GGUF."""
    for number in range(MOST_DRAWS):
        variant = draw_variant(family, 100 * seed + number)
        at = directory / str(number)
        try:
            made = make_variant(variant, at / "model")
        except (ValueError, TypeError, KeyError, RuntimeError, AttributeError):
            continue
        except Exception as error:
            if not type(error).__name__.startswith("StrictDataclass"):
                raise
            continue
        try:
            convert(made.path, at / "model.gguf", to="gguf")
        except WeightctlError as error:
            if any(reason in str(error) for reason in REFUSALS):
                continue
            raise
        return variant, made, at / "model.gguf"
    raise AssertionError(f"none of {MOST_DRAWS} variants of {family} can be converted")


def plain(family: str, tensors: dict[str, Any]) -> dict[str, Any]:
    """Return tensors by what their names have in common; no GGUF has BERT's pooler.

    transformers gives the MLPs of Kimi Linear, in layers without experts, the name of the others.
    """
    prefix = FAMILIES[family].load().prefix
    return {
        re.sub(r"block_sparse_moe(?=\.\w+_proj)", "mlp", name.removeprefix(prefix)): tensor
        for name, tensor in tensors.items()
        if "pooler." not in name
    }


def round_reals(value: Any) -> Any:
    """Return a value in which reals are those that GGUF has, in float32."""
    if isinstance(value, dict):
        return {key: round_reals(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [round_reals(each) for each in value]
    return float(np.float32(value)) if isinstance(value, float) else value


def describe(config: Any) -> dict[str, Any]:
    """Return the fields of a config, with what its scaling divides the speed of pairs by.

    Several settings of llama3 divide all of few pairs by the same.
    """
    found = asdict(config)
    factors = rope_factors(config) if found.get("rope_scaling") else None
    return found if factors is None else found | {"rope_scaling": factors.tolist()}


def check(family: str, seed: int, directory: Path) -> None:
    variant, made, gguf = make(family, seed, directory)
    # Of tensors in several dtypes all come back in one that holds each of them.
    back = directory / "back"
    convert(gguf, back, dtype="f32" if variant.dtype == "mixed" else None)
    configs: list[Any] = [recognize(open_weights(path)).config for path in (made.path, back)]
    assert round_reals(describe(configs[0])) == round_reals(describe(configs[1]))
    own, found = (
        round_reals(read_config(for_transformers(variant.case, path, directory / name)))
        for path, name in ((made.path, "own-readable"), (back, "back-readable"))
    )
    unlike = {key for key in own if own[key] != found.get(key) and found.get(key)}
    windowed = configs[0].windowed_layers
    unread = set() if windowed is None or any(windowed) else {"sliding_window"}
    assert unlike - set(variant.case.lost) <= SAME | unread
    assert found.keys() <= own.keys() | OLDER
    tensors = plain(family, {name: node.data() for name, node in open_weights(back).items()})
    expected = plain(family, made.tensors)
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        values = tensor.astype("float32").to_numpy()
        if name.endswith(ROUNDED):
            assert np.abs(values - expected[name]).max() < MOST_ROUNDING, name
            continue
        assert values.tobytes() == expected[name].tobytes(), name
    if FAMILIES[family].load().module:
        for path in filter(can_run, (made.path, gguf)):
            computed = run_ours(path, made.tokens)
            spread = float(made.expected.std())
            assert np.abs(computed - made.expected).max() < MOST_DIFFERENCE * spread, path


@pytest.mark.parametrize("family", USUAL)
def test_a_variant_comes_back_from_gguf_and_computes_the_same_in_both_forms(
    family: str, tmp_path: Path
) -> None:
    check(family, 0, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
@pytest.mark.parametrize("family", [each for each in FAMILIES if each not in NOT_DRAWN])
def test_many_variants_come_back_from_gguf_and_compute_the_same_in_both_forms(
    family: str, seed: int, tmp_path: Path
) -> None:
    check(family, seed, tmp_path)


@pytest.mark.parametrize("family", [family for family in FAMILIES if FLAGS[family]])
def test_draws_have_both_values_of_each_flag(family: str) -> None:
    drawn = [draw_variant(family, seed).config for seed in range(40)]
    known = set(drawn[0]) & set(FLAGS[family])
    for flag in known:
        assert {config[flag] for config in drawn} == {True, False}
