"""Variants of every family: drawn models go to GGUF and back without a change.

Drawn are sizes, groups of heads, flags, layers with windows, RoPE scaling, dtypes, numbers of files
and older spellings of config.json. Most draws run with `-m long`.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from test_every_family import OLDER, read_config, run_ours

from family_variants import DRAWN, FLAGS, Variant, VariantCheckpoint, draw_variant, make_variant
from weightctl import convert, open_weights
from weightctl.errors import WeightctlError
from weightctl.families import FAMILIES, recognize

if TYPE_CHECKING:
    from pathlib import Path

# One of each kind of block.
USUAL = (
    "llama", "bert", "gemma3", "mixtral", "deepseek_v2", "falcon", "gpt_oss", "granitemoe", "mpt",
    "stablelm",
)  # fmt: skip
SEEDS = 1
MOST_DRAWS = 20
MOST_DIFFERENCE = 2e-3
# Why a variant is not converted: llama.cpp does not run it, or it is no model of the family.
REFUSALS = (
    "llama.cpp does not load this", "but llama.cpp would read", "its RoPE uses `llama3` scaling",
    "it must be one of `default`, `linear`, `yarn`", "but llama.cpp assumes that they are equal",
    "`lm_head.bias` is not a part of", "experts are not supported",
    "scaling in a model with sliding window layers",
)  # fmt: skip
# What differs of models that are the same: a type without a window, and keys of a model in which
# all queries share one head of keys.
SAME_ROPE = {"rope_parameters.rope_type", "rope_parameters.rope_theta"}
SAME = {"model_type", "num_ln_in_parallel_attn", "num_kv_heads", "new_decoder_architecture"}


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
    """Return tensors by what their names have in common; no GGUF has BERT's pooler."""
    prefix = FAMILIES[family].load().prefix
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if "pooler." not in name
    }


def check(family: str, seed: int, directory: Path) -> None:
    variant, made, gguf = make(family, seed, directory)
    # Of tensors in several dtypes all come back in one that holds each of them.
    back = directory / "back"
    convert(gguf, back, dtype="f32" if variant.dtype == "mixed" else None)
    configs: list[Any] = [recognize(open_weights(path)).config for path in (made.path, back)]
    for field in fields(configs[0]):
        one, other = (getattr(config, field.name) for config in configs)
        is_real = isinstance(one, float) and isinstance(other, float)
        # GGUF has reals in float32.
        assert (np.float32(one) == np.float32(other)) if is_real else one == other, field.name
    own, found = (read_config(path) for path in (made.path, back))
    unlike = {key for key in own if own[key] != found.get(key) and found.get(key)}
    # A larger base stands for the factor of hunyuan's RoPE.
    assert unlike <= (SAME | SAME_ROPE if family.startswith("hunyuan") else SAME)
    assert found.keys() <= own.keys() | OLDER
    tensors = plain(family, {name: node.data() for name, node in open_weights(back).items()})
    expected = plain(family, made.tensors)
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        values = tensor.astype("float32").to_numpy()
        assert values.tobytes() == expected[name].tobytes(), name
    if FAMILIES[family].load().module:
        for path in (made.path, gguf):
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
@pytest.mark.parametrize("family", USUAL)
def test_many_variants_come_back_from_gguf_and_compute_the_same_in_both_forms(
    family: str, seed: int, tmp_path: Path
) -> None:
    check(family, seed, tmp_path)


@pytest.mark.parametrize("family", [family for family in DRAWN if FLAGS[family]])
def test_draws_have_both_values_of_each_flag(family: str) -> None:
    drawn = [draw_variant(family, seed).config for seed in range(40)]
    known = set(drawn[0]) & set(FLAGS[family])
    for flag in known:
        assert {config[flag] for config in drawn} == {True, False}
