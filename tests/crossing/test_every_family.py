"""Every family against transformers and llama.cpp: converted, back, run, and on two ranks.

The contract of the table of families. Most cases run with `-m long`.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import transformers

from family_cases import (
    CASES,
    for_transformers,
    make_checkpoint,
    model_class,
    run_transformers,
)
from likelihoods import cosines, log_softmax, mean_divergence
from llama_cpp import ask
from once import once
from runs import executed
from verdicts import assert_healthy, explain, report_on
from weightctl import convert, open_weights, shard
from weightctl.device import CPU
from weightctl.engine import Generation
from weightctl.errors import ArchitectureError
from weightctl.families import FAMILIES, recognize
from weightctl.nn.across_ranks import parallel
from weightctl.nn.models import build_network
from weightctl.split import Grid
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from family_cases import FamilyCheckpoint

NO_POOLING = 0
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
# What older versions of transformers read, and newer ones keep beside what they read.
OLDER = {"rope_theta", "partial_rotary_factor", "rope_scaling"}
# So many tokens are read piece by piece: more than a window or a chunk of these models has.
PIECES = 24
each = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if case.usual else pytest.mark.long)
             for name, case in CASES.items()],
)  # fmt: skip


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


def run_ours(path: Path, tokens: list[int], grid: Grid | None = None) -> NDArray[np.float32]:
    """Return what the Module of a checkpoint's family computes, on a grid of ranks if given."""
    found = recognize(open_weights(path))
    found.check()
    network = build_network(found)
    if grid is not None:
        network = parallel(network, [CPU] * grid.ranks, grid=grid)
    given = [np.array([tokens])] + [np.ones((1, len(tokens)), np.int64)] * (len(network.INPUTS) - 1)
    (output,) = executed(network.graph(), *given, weights=found.weights)
    return output[0]


def can_run(path: Path) -> bool:
    found = recognize(open_weights(path))
    return found.family.find_obstacle(found.config) is None


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


@each
def test_transformers_is_neither_certain_nor_without_a_clue(
    name: str, made: Callable[[str], FamilyCheckpoint]
) -> None:
    if made(name).is_encoder:
        pytest.skip("an encoder does not predict tokens")
    likely = log_softmax(made(name).expected.astype(np.float64))
    assert float(-(np.exp(likely) * likely).sum(-1).mean()) > LEAST_ENTROPY


@each
def test_llama_cpp_computes_what_transformers_computes(
    name: str, made: Callable[[str], FamilyCheckpoint], as_gguf: Callable[[str], Path]
) -> None:
    if reason := CASES[name].no_llama_cpp:
        pytest.skip(reason)
    given = made(name)
    if given.is_encoder:
        (found,) = ask(as_gguf(name), ("embeddings", given.tokens), pooling=NO_POOLING)
    else:
        (found,) = ask(as_gguf(name), ("logits", given.tokens), context=512)
    assert_same(found, given)


@each
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


@each
def test_our_module_computes_what_transformers_computes_from_either_convention(
    name: str, made: Callable[[str], FamilyCheckpoint], as_gguf: Callable[[str], Path]
) -> None:
    given = made(name)
    if not can_run(given.path):
        pytest.skip("weightctl does not run the model")
    assert_same(run_ours(given.path, given.tokens), given)
    assert_same(run_ours(as_gguf(name), given.tokens), given)


@each
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


@each
def test_two_ranks_have_all_bytes_and_compute_the_same(
    name: str,
    made: Callable[[str], FamilyCheckpoint],
    as_gguf: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    given = made(name)
    has_experts = recognize(open_weights(given.path)).fields.get("experts", 0) > 1
    grids = [Grid(2), Grid(1, 2)] if has_experts else [Grid(2)]
    for number, (source, grid) in enumerate(product((given.path, as_gguf(name)), grids)):
        ranks = tmp_path / f"ranks{number}"
        shard(source, ranks, tp=grid.tp, ep=grid.ep)
        whole, gathered = open_weights(source), open_weights(ranks)
        assert header_of(gathered).tensors.keys() == header_of(whole).tensors.keys()
        for tensor in header_of(whole).tensors:
            one, other = (each[tensor].data().to_numpy() for each in (whole, gathered))
            assert np.array_equal(one, other), tensor
        if can_run(source):
            assert_same(run_ours(source, given.tokens, grid), given)


@each
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
    (found,) = ask(quantized, ("logits", given.tokens), context=512)
    model = model_class(given.case).from_pretrained(
        back, dtype=torch.float32, attn_implementation="eager"
    )
    expected = run_transformers(model.eval(), given.tokens)
    assert mean_divergence(expected, found) < max(QUANTIZED[quant], given.case.most_divergence)
    # Our engine does not round activations.
    if can_run(quantized):
        ours = run_ours(quantized, given.tokens)
        assert mean_divergence(expected, ours) < MOST_DIVERGENCE
