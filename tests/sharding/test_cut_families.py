"""Models of every family in both conventions: what ranks have, and that it fits together."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cut_models import gguf_llama, held, of_family, saved, stack_experts, times_held
from each import each, usual
from family_cases import make_checkpoint
from runs import executed
from tiny import SMALL, arrays_of, make_small
from weightctl import open_weights, shard
from weightctl.dtype import ENCODINGS
from weightctl.errors import ShardingError
from weightctl.families import recognize
from weightctl.families.matching import match
from weightctl.graph.graph import Graph
from weightctl.nn import Divisible, recursive_named_layers
from weightctl.nn.models import build_network
from weightctl.sharding.planning import shard_plan
from weightctl.sharding.rank_counts import possible
from weightctl.split import Grid, shares
from weightctl.weights.derived import StoredTensor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from weightctl import Weights
    from weightctl.families import RecognizedModel
    from weightctl.sharding.plan import ShardPlan


KINDS = [*product(SMALL, ("gguf", "hugging_face"))]
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "rope_theta": 10000.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def weights(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Weights:
    return of_family(tmp_path_factory.mktemp("model"), *request.param)


def grids(model: RecognizedModel) -> Iterator[Grid]:
    """Yield grids for which a model can be cut, most that there are."""
    experts = model.fields.get("experts") or 1
    for tp, ep, pp in product((1, 2, 4), {1, 3, experts}, {1, 2, model.config.layers}):
        if ep <= experts:
            yield Grid(tp, ep, pp)


def rows(model: RecognizedModel, plan: ShardPlan, part: str, rank: int, axis: int = 0) -> list[int]:
    """Return which of a part's own outputs, or inputs, a rank has, whatever it is stored in."""
    module = f"{part}.weight"
    stored = model.stored[module]
    shape = model.tree.header.tensors[stored].shape
    is_turned = model.family.name == "gpt2" and model.convention == "hugging_face"
    is_stacked = len(shape) == 3
    found = held(plan, stored, rank, (axis ^ is_turned) + is_stacked)
    assert found is not None
    before = _before(model, part)
    size = model.tensors[module].info.shape[axis ^ is_turned]
    return [entry - before for entry in found if before <= entry < before + size]


def _before(model: RecognizedModel, part: str) -> int:
    """Return how many rows of other parts stand before those of a part in one tensor."""
    alike = model.stored[f"{part}.weight"]
    if part.endswith(".up") and model.stored.get(f"{part[:-2]}gate.weight") == alike:
        return int(model.tensors[f"{part}.weight"].info.shape[0])
    return 0


def attention(
    model: RecognizedModel, plan: ShardPlan, layer: int, rank: int
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return which rows of queries, keys and values, and columns of the output, a rank has."""
    stem = f"layers.{layer}.attention."
    output = rows(model, plan, f"{stem}o", rank, axis=1)
    fields = model.fields
    if f"{stem}qkv.weight" not in model.stored:
        q, k, v = (rows(model, plan, stem + part, rank) for part in "qkv")
        return q, k, v, output
    found = rows(model, plan, f"{stem}qkv", rank)
    first = fields["heads"] * fields["head_dim"]
    second = first + fields.get("kv_heads", fields["heads"]) * fields["head_dim"]
    return (
        [row for row in found if row < first],
        [row - first for row in found if first <= row < second],
        [row - second for row in found if row >= second],
        output,
    )


def whole_heads(entries: list[int], size: int) -> set[int]:
    """Return which heads some rows are, all of each."""
    found = {entry // size for entry in entries}
    assert entries == [head * size + each for head in sorted(found) for each in range(size)]
    return found


def test_every_element_is_on_a_rank_and_only_heads_of_keys_are_on_more(weights: Weights) -> None:
    model = recognize(weights)
    # Heads of keys and values are on several ranks where they are fewer.
    shared = {
        name
        for module, name in model.stored.items()
        if module.rpartition(".")[0].endswith((".k", ".v", ".qkv"))
    }
    for grid in grids(model):
        plan = shard_plan(weights, grid)
        for name, (strategy, parts) in plan.shardings.items():
            for stage in range(grid.pp):
                places = {rank: grid.place(rank) for rank in range(grid.ranks)}
                ranks = [rank for rank in places if places[rank][2] == stage]
                if all(parts[rank] is None for rank in ranks):
                    continue
                counts = times_held(plan, name, ranks)
                assert counts.min() >= 1
                if strategy == "replicate":
                    assert counts.min() == grid.ep * grid.tp
                elif name not in shared:
                    alike = 1 if "expert" in strategy else grid.ep
                    assert counts.min() == counts.max() == alike, name
            assert any(part is not None for part in parts)


def test_the_tensors_of_a_rank_are_as_large_as_what_it_has(weights: Weights) -> None:
    plan = shard_plan(weights, Grid(2, 1, 2))
    order = list(weights.header.tensors)
    for rank, shards in enumerate(plan.ranks):
        names = [one.info.name for one in shards]
        assert names == [name for name in order if plan.shardings[name].parts[rank] is not None]
        for one in shards:
            count = int(times_held(plan, one.info.name, [rank]).sum())
            assert one.info.size == count
            assert one.info.encoding == weights.header.tensors[one.info.name].encoding


def test_ranks_have_whole_heads_with_the_keys_and_values_that_they_look_at(
    weights: Weights,
) -> None:
    model = recognize(weights)
    heads, size = model.fields["heads"], model.fields["head_dim"]
    group = heads // model.fields.get("kv_heads", heads)
    for tp in (1, 2, 4):
        plan = shard_plan(weights, Grid(tp))
        for layer in range(model.config.layers):
            every: list[int] = []
            for rank in range(tp):
                q, k, v, o = attention(model, plan, layer, rank)
                queries = whole_heads(q, size)
                assert queries
                assert whole_heads(o, size) == queries
                assert whole_heads(k, size) == {head // group for head in queries}
                assert v == k
                every += sorted(queries)
            assert every == list(range(heads))


def test_ranks_narrow_what_they_have_widened(weights: Weights) -> None:
    model = recognize(weights)
    experts = model.fields.get("experts")
    stems = [f"experts.{expert}." for expert in range(experts)] if experts else [""]
    for tp, (layer, stem) in product((1, 2, 3, 4), product(range(model.config.layers), stems)):
        if tp == 3 and model.fields.get("kv_heads", 3) != 3:
            continue
        plan = shard_plan(weights, Grid(tp))
        mlp = f"layers.{layer}.mlp.{stem}"
        every: list[int] = []
        for rank in range(tp):
            read = rows(model, plan, f"{mlp}down", rank, axis=1)
            if f"{mlp}gate_up.weight" in model.stored:
                inner = model.fields["intermediate"]
                both = rows(model, plan, f"{mlp}gate_up", rank)
                assert [row for row in both if row < inner] == read
                assert [row - inner for row in both if row >= inner] == read
            else:
                assert rows(model, plan, f"{mlp}up", rank) == read
                if f"{mlp}gate.weight" in model.stored:
                    assert rows(model, plan, f"{mlp}gate", rank) == read
            every += read
        assert every == sorted({*every})
        assert len(every) == model.tensors[f"{mlp}down.weight"].info.size // model.fields["hidden"]


@each("ranks", [2, 4])
def test_files_and_modules_are_cut_alike(weights: Weights, ranks: int) -> None:
    model = recognize(weights)
    network = build_network(model)
    network.name_weights()
    plan = shard_plan(weights, Grid(ranks))
    in_modules: dict[str, Any] = {}
    for _, layer in recursive_named_layers(network):
        if isinstance(layer, Divisible):
            for weight, strategy in layer.tensor_parallel(ranks).items():
                # Of a layer within another, which comes before it, that says how it is cut.
                in_modules.setdefault(weight.name, strategy.sharding(weight).parts)
    in_files = {
        name: plan.shardings[model.stored[name]].parts
        for name, tensor in model.tensors.items()
        if isinstance(tensor, StoredTensor)
    }
    common = in_modules.keys() & in_files.keys()
    assert {name: in_modules[name] for name in common} == {name: in_files[name] for name in common}
    assert "layers.0.attention.o.weight" in common
    assert any(in_modules[name][0] for name in common)


def test_stages_have_runs_of_layers_and_the_ends_what_stands_there(weights: Weights) -> None:
    model = recognize(weights)
    layers = model.config.layers
    for stages in range(1, layers + 1):
        plan = shard_plan(weights, Grid(1, 1, stages))
        runs = shares(layers, stages)
        for module, name in model.stored.items():
            words = module.split(".")
            if words[0] == "layers":
                wanted = [first <= int(words[1]) < last for first, last in runs]
            elif words[0] in {"norm", "output"}:
                wanted = [stage == stages - 1 for stage in range(stages)]
            elif words[0].endswith("rope_factors"):
                wanted = [True] * stages
            else:
                also_last = words[0] == "embedding" and model.fields.get("tied", False)
                wanted = [
                    stage == 0 or (also_last and stage == stages - 1) for stage in range(stages)
                ]
            assert [part is not None for part in plan.shardings[name].parts] == wanted, module


@each("convention", ["gguf", "hugging_face"])
@each("family", ["gpt2", "qwen2", "llama"])
def test_a_tied_embedding_is_on_the_first_stage_and_on_the_last(
    tmp_path: Path, family: str, convention: str
) -> None:
    changes: dict[str, Any] = {"n_layer": 3} if family == "gpt2" else {"num_hidden_layers": 3}
    weights = of_family(tmp_path, family, convention, tie_word_embeddings=True, **changes)
    stored = recognize(weights).stored["embedding.weight"]
    plan = shard_plan(weights, Grid(2, 1, 3))
    # Of 96 tokens; the stage between has none of them.
    assert [held(plan, stored, rank) for rank in range(6)] == [
        [*range(48)], [*range(48, 96)], None, None, [*range(48)], [*range(48, 96)],
    ]  # fmt: skip


@each("convention", ["gguf", "hugging_face"])
def test_biases_of_what_is_narrowed_are_whole_and_others_are_cut(
    tmp_path: Path, convention: str
) -> None:
    weights = of_family(tmp_path, "llama", convention, attention_bias=True, mlp_bias=True)
    stored = recognize(weights).stored
    plan = shard_plan(weights, Grid(2))
    sizes = {
        part: len(held(plan, stored[f"layers.0.{part}.bias"], 1) or [])
        for part in ("attention.q", "attention.k", "attention.o", "mlp.gate", "mlp.down")
    }
    assert sizes == {
        "attention.q": 32, "attention.k": 16, "attention.o": 64, "mlp.gate": 48, "mlp.down": 64,
    }  # fmt: skip


@each(
    "family, changes",
    [
        ("llama", {"rope_parameters": LLAMA3}),
        (
            "phi3",
            {
                "max_position_embeddings": 128,
                "original_max_position_embeddings": 64,
                "rope_parameters": {
                    "rope_type": "longrope", "rope_theta": 10000.0,
                    "original_max_position_embeddings": 64,
                    "short_factor": [1.0] * 8, "long_factor": [2.0] * 8,
                },
            },
        ),
    ],
)  # fmt: skip
def test_factors_of_rotations_are_on_every_rank(
    tmp_path: Path, family: str, changes: dict[str, Any]
) -> None:
    weights = of_family(tmp_path, family, "gguf", **changes)
    factors = [name for name in weights.header.tensors if name.startswith("rope_")]
    assert factors
    plan = shard_plan(weights, Grid(2, 1, 2))
    assert all(plan.shardings[name].parts == ((),) * 4 for name in factors)


def test_the_axes_of_a_gpt2_of_transformers_are_swapped(tmp_path: Path) -> None:
    plan = shard_plan(of_family(tmp_path, "gpt2", "hugging_face"), Grid(2))
    strategies = {name.removeprefix("transformer.h.0."): each.strategy
            for name, each in plan.shardings.items()}  # fmt: skip
    assert strategies["mlp.c_fc.weight"] == "columnwise"
    assert strategies["mlp.c_proj.weight"] == strategies["attn.c_proj.weight"] == "rowwise"
    assert held(plan, "transformer.h.0.mlp.c_fc.weight", 1, 1) == [*range(128, 256)]
    assert held(plan, "transformer.h.0.mlp.c_fc.bias", 1) == [*range(128, 256)]
    assert held(plan, "transformer.h.0.mlp.c_proj.weight", 1, 0) == [*range(128, 256)]


@each("form", ["in memory", "apart", "gguf"])
@each("ep", [1, 2, 3, 4])
def test_groups_of_ranks_have_whole_experts_and_cut_each(
    tmp_path: Path, form: str, ep: int
) -> None:
    model = make_small("qwen3moe")
    arrays = arrays_of(model)
    if form == "gguf":
        weights = of_family(tmp_path, "qwen3moe", "gguf")
    else:
        arrays = arrays if form == "apart" else stack_experts(arrays)
        weights = saved(tmp_path, arrays, model.document)
    found = recognize(weights)
    plan = shard_plan(weights, Grid(2, ep))
    owners = [
        group for group, (first, last) in enumerate(shares(4, ep)) for _ in range(first, last)
    ]
    for expert, rank in product(range(4), range(2 * ep)):
        name = found.stored[f"layers.1.mlp.experts.{expert}.down.weight"]
        numbers = held(plan, name, rank, axis=len(weights.header.tensors[name].shape) - 1)
        own = held(plan, name, rank)
        is_owner = rank // 2 == owners[expert]
        if form == "apart":
            assert (numbers is not None) == is_owner
        else:
            assert own is not None
            assert (expert in own) == is_owner
        if is_owner:
            assert numbers == [*range(16 * (rank % 2), 16 * (rank % 2) + 16)]


def test_all_but_experts_is_alike_in_each_group_of_them(tmp_path: Path) -> None:
    plan = shard_plan(of_family(tmp_path, "mixtral", "gguf"), Grid(2, 2, 2))
    for name, (_, parts) in plan.shardings.items():
        if "_exps" not in name:
            assert all(parts[rank] == parts[rank ^ 2] for rank in range(8))


sizes = st.integers(1, 6)


@settings(max_examples=30)
@given(
    kv_heads=sizes, group=sizes, head_dim=st.sampled_from([32, 64, 96]), blocks=st.integers(1, 20),
    ranks=st.integers(2, 9), encoding=st.sampled_from(["F16", "Q8_0", "Q4_K"]),
)  # fmt: skip
def test_no_block_or_head_is_cut_whatever_the_sizes(
    kv_heads: int, group: int, head_dim: int, blocks: int, ranks: int, encoding: str
) -> None:
    block = ENCODINGS[encoding].block
    heads = kv_heads * group
    if heads * head_dim % block:
        return
    weights = gguf_llama(
        heads=heads, kv_heads=kv_heads, head_dim=head_dim, inner=block * blocks, encoding=encoding
    )
    refusal = possible(weights, [ranks])[0].refusal
    if refusal is not None:
        assert re.match(
            rf"`(blk\.0|token).*cannot be split along axis .* {ranks} ranks", str(refusal)
        )
        assert "work" in refusal.hint
        with pytest.raises(ShardingError, match=re.escape(refusal.message)):
            shard_plan(weights, Grid(ranks))
        return
    plan = shard_plan(weights, Grid(ranks))
    for name in ("blk.0.attn_output.weight", "blk.0.ffn_down.weight"):
        unit = head_dim if "attn" in name else 1
        for rank in range(ranks):
            columns = held(plan, name, rank, 1)
            assert columns
            for size in (block, unit):
                assert columns[0] % size == 0
                assert len(columns) % size == 0


@given(tp=st.integers(1, 8), kv_heads=st.sampled_from([1, 2, 4]))
def test_ranks_share_heads_of_keys_where_these_are_fewer(tp: int, kv_heads: int) -> None:
    weights = gguf_llama(heads=8, kv_heads=kv_heads, head_dim=32)
    if tp > kv_heads and tp % kv_heads:
        with pytest.raises(ShardingError, match=f"8 query heads and {kv_heads} KV heads"):
            shard_plan(weights, Grid(tp))
        return
    plan = shard_plan(weights, Grid(tp))
    for rank in range(tp):
        own = held(plan, "blk.0.attn_k.weight", rank)
        assert own is not None
        if tp > kv_heads:
            first = rank * kv_heads // tp * 32
            assert own == [*range(first, first + 32)]
        assert held(plan, "blk.0.attn_v.weight", rank) == own


# Pipeline stages whose layers use the keys and values of layers of earlier stages.


@pytest.mark.parametrize("name", usual(["gemma4"], ["gemma3n-shared", "gemma4"]))
def test_each_stage_computes_its_layers_with_the_weights_of_its_own_file(
    name: str, crossed: Path, tmp_path: Path
) -> None:
    made = make_checkpoint(name, crossed)
    stages = 3
    shard(made.path, tmp_path / "ranks", pp=stages)
    found = recognize(open_weights(made.path))
    network: Any = build_network(found)
    given: list[Any] = [np.array([made.tokens])]
    types = network.input_types()
    for stage, (first, last) in enumerate(shares(found.config.layers, stages)):
        with Graph(f"stage{stage}", input_types=types) as graph:
            inputs: Any = graph.inputs
            x, beside = (inputs[0], inputs[1:]) if stage else network.begin(*inputs)
            for layer in network.layers[first:last]:
                x = network.through(layer, x, tuple(beside))
            graph.output(*((network.end(x),) if stage == stages - 1 else (x, *beside)))
        types = [value.type for value in graph.outputs]
        tree = open_weights(tmp_path / "ranks" / f"rank-{stage}")
        own = match(tree, found.family, found.convention, found.config, found.where)
        weights = replace(found, tree=tree, tensors=own.tensors).weights
        given = executed(graph, *given, weights=weights)
    assert np.abs(given[0][0] - made.expected).max() < 1e-4
