"""Every family against transformers and llama.cpp: converted, back, run, and on two ranks."""

from __future__ import annotations

import re
from dataclasses import asdict
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import each, usual
from family_cases import CASES, for_transformers, make_checkpoint, model_class, run_transformers
from family_runs import NO_POOLING, can_run, run_ours
from family_variants import FLAGS, Variant, VariantCheckpoint, draw_variant, make_variant
from lazy import torch, transformers
from llama_cpp import ask, cosines, log_softmax, mean_divergence
from once import once
from verdicts import assert_healthy, explain, report_on
from weightctl import convert, open_weights, shard
from weightctl.engine import Generation
from weightctl.errors import ArchitectureError, WeightctlError
from weightctl.families import FAMILIES, recognize
from weightctl.families.rope_factors import rope_factors
from weightctl.split import Grid
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from family_cases import FamilyCheckpoint


MOST_DIVERGENCE, MOST_DIFFERENCE, LEAST_ENTROPY = 2e-5, 2e-3, 0.5
# Keys of configs that no checkpoint in GGUF has, since nothing that runs a model reads them.
UNREAD = {
    "_name_or_path", "architectures", "attention_dropout", "attention_probs_dropout_prob",
    "attn_pdrop", "bos_token_id", "classifier_dropout", "dtype", "embd_pdrop", "embedding_dropout",
    "eos_token_id", "hidden_dropout", "hidden_dropout_prob", "initializer_range",
    "max_window_layers", "output_router_logits", "pad_token_id", "pretraining_tp",
    "reorder_and_upcast_attn", "resid_dropout", "resid_pdrop", "residual_dropout",
    "router_aux_loss_coef", "router_jitter_noise", "summary_activation", "summary_first_dropout",
    "summary_proj_to_labels", "summary_type", "summary_use_proj", "transformers_version",
    "use_cache",
}  # fmt: skip
# What older versions of transformers read, and newer ones keep beside what they read. The size of a
# head is stated where the default of the class is not that of the releases, as in GLM-4.5.
OLDER = {"rope_theta", "partial_rotary_factor", "rope_scaling", "head_dim"}
# So many tokens are read piece by piece: more than a window or a chunk of these models has.
PIECES = 24
# Those that differ most: attention as in Llama, experts, latent attention, state space models with
# and without attention, an encoder, an encoder and a decoder, sliding windows, joined projections.
KINDS = (
    "llama", "mixtral", "deepseek_v2", "granitehybrid", "mamba2", "bert", "t5", "gemma3", "gpt2",
)  # fmt: skip
# Of these, llama.cpp reads metadata or tensors that it reads of no other.
IN_LLAMA_CPP = (
    *KINDS, "bitnet", "falcon-new", "gemma3n", "gpt_oss", "lfm2", "llama4", "mimo2", "modernbert",
    "nemotron_h", "qwen2moe", "qwen35", "smollm3",
)  # fmt: skip
# These judges take most of the time.
each_kind = pytest.mark.parametrize("name", usual(KINDS, CASES))
each_usual_case = pytest.mark.parametrize(
    "name", usual(KINDS, [name for name, case in CASES.items() if case.usual])
)


@pytest.fixture(scope="session")
def made(crossed: Path) -> Callable[[str], FamilyCheckpoint]:
    return lambda name: make_checkpoint(name, crossed)


@pytest.fixture(scope="session")
def as_gguf(made: Callable[[str], FamilyCheckpoint]) -> Callable[[str], Path]:
    """Return a case's checkpoint as a GGUF file in float32."""

    def make(name: str) -> Path:
        source = made(name).path
        return once(
            source.with_name("model.gguf"),
            lambda half: convert(source, half, to="gguf", dtype="f32"),
        )

    return make


@pytest.fixture(scope="session")
def came_back(as_gguf: Callable[[str], Path]) -> Callable[[str], Path]:
    """Return the model's directory that such a file becomes."""

    def make(name: str) -> Path:
        source = as_gguf(name)
        return once(source.with_name("back"), lambda half: convert(source, half, dtype="f32"))

    return make


def read_config(path: Path) -> dict[str, Any]:
    """Return what transformers reads of a config, the keys of objects in it by dotted paths."""
    found: dict[str, Any] = {}

    def add(prefix: str, values: dict[str, Any]) -> None:
        for key, value in values.items():
            if isinstance(value, dict):
                add(f"{prefix}{key}.", value)
            elif key not in UNREAD:
                found[f"{prefix}{key}"] = value

    add("", transformers.AutoConfig.from_pretrained(path).to_dict())
    return found


def assert_same(found: NDArray[Any], made: FamilyCheckpoint) -> None:
    assert found.shape == made.expected.shape
    if made.is_encoder:
        assert cosines(found, made.expected).min() > 0.9999
    else:
        assert mean_divergence(made.expected, found) < MOST_DIVERGENCE


def test_every_family_has_a_case() -> None:
    assert {case.family for case in CASES.values()} == FAMILIES.keys()


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_transformers_is_neither_certain_nor_without_a_clue(
    name: str, made: Callable[[str], FamilyCheckpoint]
) -> None:
    if made(name).is_encoder:
        pytest.skip("an encoder does not predict tokens")
    likely = log_softmax(made(name).expected.astype(np.float64))
    assert float(-(np.exp(likely) * likely).sum(-1).mean()) > LEAST_ENTROPY


@pytest.mark.parametrize("name", usual(IN_LLAMA_CPP, CASES))
def test_llama_cpp_computes_what_transformers_computes(
    name: str, made: Callable[[str], FamilyCheckpoint], as_gguf: Callable[[str], Path]
) -> None:
    if reason := CASES[name].no_llama_cpp:
        pytest.skip(reason)
    given = made(name)
    if given.is_encoder:
        (found,) = ask(as_gguf(name), ("embeddings", given.tokens), pooling=NO_POOLING)
    else:
        options = {"context": 512, "flash": CASES[name].flash}
        (found,) = ask(as_gguf(name), ("logits", given.tokens), **options)
    assert_same(found, given)


@each_kind
def test_transformers_loads_what_comes_back_as_the_same_model(
    name: str,
    made: Callable[[str], FamilyCheckpoint],
    came_back: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    given = made(name)
    paths = [
        for_transformers(given.case, path, tmp_path / str(number))
        for number, path in enumerate((given.path, came_back(name)))
    ]
    model, info = model_class(given.case).from_pretrained(
        paths[1], dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    missing = [each for each in info["missing_keys"] if not each.startswith("pooler.")]
    assert (missing, info["unexpected_keys"], info["mismatched_keys"]) == ([], set(), set())
    found = run_transformers(model.eval(), given.tokens)
    assert np.abs(found - given.expected).max() < MOST_DIFFERENCE
    own, back = (read_config(path) for path in paths)
    differing = {key for key in own if own[key] != back.get(key)} - set(given.case.lost)
    assert {key: (own[key], back.get(key)) for key in differing} == {}
    assert back.keys() <= own.keys() | OLDER


@pytest.mark.parametrize("name", usual(IN_LLAMA_CPP, CASES))
def test_our_module_computes_what_transformers_computes_from_gguf(
    name: str, made: Callable[[str], FamilyCheckpoint], as_gguf: Callable[[str], Path]
) -> None:
    given = made(name)
    if not can_run(given.path):
        pytest.skip("weightctl does not run the model")
    assert_same(run_ours(as_gguf(name), given.tokens), given)


# The file of each family is made of its directory, and would have the mistakes of that.
# All cases are usual: no other test reads what the files of most families state.
@pytest.mark.parametrize("name", CASES)
def test_our_module_computes_what_transformers_computes_from_its_own_directory(
    name: str, made: Callable[[str], FamilyCheckpoint]
) -> None:
    given = made(name)
    if not can_run(given.path):
        pytest.skip("weightctl does not run the model")
    assert_same(run_ours(given.path, given.tokens), given)


@each_usual_case
def test_a_text_that_is_read_piece_by_piece_has_the_same_predictions(
    name: str, made: Callable[[str], FamilyCheckpoint]
) -> None:
    given = made(name)
    if not can_run(given.path):
        pytest.skip("weightctl does not run the model")
    refused = ""
    try:
        reading = Generation(open_weights(given.path))
    except ArchitectureError as error:
        refused = error.message
    if refused:
        assert "do not continue a text" in refused
        pytest.skip("weightctl does not generate tokens with this model")
    tokens = given.tokens[:PIECES]
    ids, whole = np.array([tokens]), run_ours(given.path, tokens)
    pieces = [ids[:, :5], *np.split(ids[:, 5:], PIECES - 5, 1)]
    found = np.concatenate([reading.read(piece) for piece in pieces])
    assert np.abs(found - whole[4:]).max() < 1e-4 * max(1.0, np.abs(whole).max())


CUT = [
    ("mixtral", "gguf"), ("deepseek_v2", "directory"), ("granitehybrid", "gguf"),
    ("gemma3", "directory"), ("t5", "gguf"),
]  # fmt: skip
IN_TURN = zip(CASES, cycle(["directory", "gguf"]), strict=False)


@pytest.mark.parametrize(("name", "form"), usual(CUT, dict.fromkeys([*CUT, *IN_TURN])))
def test_two_ranks_have_all_bytes_and_compute_the_same(
    name: str,
    form: str,
    made: Callable[[str], FamilyCheckpoint],
    as_gguf: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    given = made(name)
    has_experts = recognize(open_weights(given.path)).fields.get("experts", 0) > 1
    source = given.path if form == "directory" else as_gguf(name)
    for number, grid in enumerate([Grid(2), Grid(1, 2)] if has_experts else [Grid(2)]):
        ranks = tmp_path / f"ranks{number}"
        shard(source, ranks, tp=grid.tp, ep=grid.ep)
        whole, gathered = open_weights(source), open_weights(ranks)
        assert header_of(gathered).tensors.keys() == header_of(whole).tensors.keys()
        for tensor in header_of(whole).tensors:
            one, other = (each[tensor].data().to_numpy() for each in (whole, gathered))
            assert np.array_equal(one, other), tensor
        if can_run(source):
            assert_same(run_ours(source, given.tokens, grid), given)


@each_usual_case
def test_verify_finds_nothing_wrong_between_the_conventions(
    name: str, made: Callable[[str], FamilyCheckpoint], as_gguf: Callable[[str], Path]
) -> None:
    report = report_on(as_gguf(name), made(name).path)
    if can_run(made(name).path):
        assert_healthy(report)
    else:
        assert not report.problems, explain(report)
        assert [name for name, each in report.results.items() if each.skipped] == ["forward"]


# llama.cpp rounds the activations that it multiplies blocks by, to 8 bits.
QUANTIZED = {"Q8_0": 2e-3, "Q4_K_M": 5e-3}


@pytest.mark.long
@pytest.mark.parametrize("quant", QUANTIZED)
@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case.usual and not case.no_llama_cpp]
)
def test_quantized_blocks_are_the_same_model_to_both(
    name: str, quant: str, made: Callable[[str], FamilyCheckpoint], tmp_path: Path
) -> None:
    given = made(name)
    if given.is_encoder:
        pytest.skip("an encoder does not predict tokens")
    quantized, back = tmp_path / "model.gguf", tmp_path / "back"
    convert(given.path, quantized, quant=quant)
    convert(quantized, back, dtype="f32")
    back = for_transformers(given.case, back, tmp_path / "readable")
    (found,) = ask(quantized, ("logits", given.tokens), context=512, flash=given.case.flash)
    model = model_class(given.case).from_pretrained(
        back, dtype=torch.float32, attn_implementation="eager"
    )
    expected = run_transformers(model.eval(), given.tokens)
    assert mean_divergence(expected, found) < max(QUANTIZED[quant], given.case.most_divergence)
    # Our engine does not round activations.
    if can_run(quantized):
        ours = run_ours(quantized, given.tokens)
        assert mean_divergence(expected, ours) < MOST_DIVERGENCE


# Variants of every family: drawn models go to GGUF and back without a change.


# One of each kind of block; with `-m long` all families.
DRAWN = (
    "llama", "bert", "gemma3", "mixtral", "deepseek_v2", "falcon", "gpt_oss", "granitemoe", "mpt",
    "stablelm",
)  # fmt: skip
# The factors of Falcon-H1 and Jais are in the weights of GGUF files: other tensors come back. The
# draws of Granite 4 without state space models are those of Granite 4 with them. transformers saves
# some tensors of DeepSeek-V4 under other names than those of the published checkpoints, which come
# back.
# The first Qwen states the size of a head, which must fit the other sizes.
NOT_DRAWN = {"deepseek_v4", "falcon_h1", "granite4", "jais", "qwen"}
SEEDS = 2
# In GGUF they are exponentials, or have something added that is not 1, which float32 rounds.
ROUNDED, MOST_ROUNDING = ("A_log", "post_mixer_norm.weight", "post_mlp_norm.weight"), 2e-7
MOST_DRAWS = 100
MOST_OF_SPREAD = 2e-3
# Why a variant is not converted: llama.cpp does not run it, or it is no model of the family.
REFUSALS = (
    "llama.cpp does not load this", "but llama.cpp would read", "its RoPE uses `llama3` scaling",
    "sliding windows are not supported in this family",
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
    "model_type", "multi_query", "num_ln_in_parallel_attn", "num_kv_heads",
    "new_decoder_architecture", "rope_parameters.low_freq_factor",
    "rope_parameters.high_freq_factor", "rope_parameters.original_max_position_embeddings",
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
    Phi-4-multimodal has a word more for matrices that have adapters.
    """
    prefix = FAMILIES[family].load().prefix
    return {
        re.sub(r"block_sparse_moe(?=\.\w+_proj)", "mlp", name.removeprefix(prefix)): tensor
        for name, tensor in ((name.replace(".base_layer", ""), tensors[name]) for name in tensors)
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
            assert np.abs(computed - made.expected).max() < MOST_OF_SPREAD * spread, path


@pytest.mark.parametrize("family", DRAWN)
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


@pytest.mark.long
@each("family", [family for family in FAMILIES if FLAGS[family]])
def test_draws_have_both_values_of_each_flag(family: str) -> None:
    drawn = [draw_variant(family, seed).config for seed in range(40)]
    known = set(drawn[0]) & set(FLAGS[family])
    for flag in known:
        assert {config[flag] for config in drawn} == {True, False}
