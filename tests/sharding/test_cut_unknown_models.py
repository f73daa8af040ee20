"""Checkpoints other than whole models of supported families, and users' rules for them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cut_models import gguf_llama, held, saved, stated, with_names
from each import each
from weightctl import shard
from weightctl.errors import ArchitectureError, ConversionError, ShardingError
from weightctl.sharding.plan_file import STRATEGIES, CutRules, make_rules, read_rules
from weightctl.sharding.planning import shard_plan
from weightctl.sharding.rank_counts import possible
from weightctl.split import Cut, Grid, Sharding, Whole

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl import Weights


CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96,
}  # fmt: skip
_LAYER: dict[str, tuple[int, ...]] = {
    "self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64),
    "self_attn.o_proj": (64, 64), "mlp.gate_proj": (96, 64), "mlp.up_proj": (96, 64),
    "mlp.down_proj": (64, 96), "input_layernorm": (64,), "post_attention_layernorm": (64,),
}  # fmt: skip
SHAPES: dict[str, tuple[int, ...]] = {
    "model.embed_tokens.weight": (96, 64),
    **{f"model.layers.{layer}.{part}.weight": shape
       for layer in range(2) for part, shape in _LAYER.items()},
    "model.norm.weight": (64,),
    "lm_head.weight": (96, 64),
}  # fmt: skip
DOWN = "model.layers.1.mlp.down_proj.weight"


def llama(
    directory: Path, more: dict[str, tuple[int, ...]] | None = None, *, without: str = "",
    **changes: Any,
) -> Weights:  # fmt: skip
    """Return a llama of transformers' without bytes, with more tensors, or without one."""
    shapes = {name: shape for name, shape in (SHAPES | (more or {})).items() if name != without}
    tensors = {name: (shape, "BF16") for name, shape in shapes.items()}
    return stated(tensors, directory=directory, config=CONFIG | changes)


def unknown_model(directory: Path, **shapes: tuple[int, ...]) -> Weights:
    """Return a checkpoint of no family, with dots for the double underscores of its names."""
    tensors = {name.replace("__", "."): (shape, "F32") for name, shape in shapes.items()}
    return stated(tensors, directory=directory, config={"model_type": "zamba2"})


def rules(directory: Path, *lines: str) -> CutRules:
    path = directory / "plan.toml"
    path.write_text("[tensors]\n" + "\n".join(lines))
    return read_rules(str(path))


def parts_of(weights: Weights, grid: Grid, own: CutRules | None = None) -> dict[str, list[Any]]:
    """Return which entries of the first axis each rank has of each tensor."""
    plan = shard_plan(weights, grid, rules=own)
    return {name: [held(plan, name, rank) for rank in range(grid.ranks)] for name in plan.shardings}


def test_a_family_that_nobody_knows_is_cut_by_people_alone(tmp_path: Path) -> None:
    with pytest.raises(ArchitectureError, match="zamba2") as caught:
        shard_plan(unknown_model(tmp_path, a=(4, 4)), Grid(2))
    assert "to split by your own rules, use --plan FILE (rules=FILE in Python)" in caught.value.hint


def test_what_people_do_not_name_of_an_unknown_model_is_whole(tmp_path: Path) -> None:
    weights = unknown_model(tmp_path, in_proj=(6, 4), out_proj=(4, 6), scale=(), none=(0, 4))
    own = rules(tmp_path, "in_proj = 'rowwise'", "out_proj = 'columnwise'")
    plan = shard_plan(weights, Grid(2), rules=own)
    assert {name: each.strategy for name, each in plan.shardings.items()} == {
        "in_proj": "rowwise", "out_proj": "columnwise", "scale": "replicate", "none": "replicate",
    }  # fmt: skip
    assert [shard.info.shape for shard in plan.ranks[1]] == [(3, 4), (4, 3), (), (0, 4)]
    assert plan.notes[0].startswith(
        "the model family is not recognized, so only the plan file defines how tensors are split: "
    )
    assert plan.notes[1:] == ("2 weights match no pattern of the plan file: they are not split",)


def test_layers_of_an_unknown_model_are_those_that_names_say(tmp_path: Path) -> None:
    weights = unknown_model(tmp_path, emb=(4, 4), layers__0__a=(4, 4), layers__1__a=(4, 4))
    found = parts_of(weights, Grid(2, 1, 2), rules(tmp_path, "a = 'rowwise'"))
    assert found == {
        "emb": [[*range(4)]] * 4,
        "layers.0.a": [[0, 1], [2, 3], None, None],
        "layers.1.a": [None, None, [0, 1], [2, 3]],
    }
    with pytest.raises(
        ShardingError, match="the model has 2 layers, which cannot be divided among 3 stages"
    ):
        shard_plan(weights, Grid(1, 1, 3), rules=rules(tmp_path, "a = 'rowwise'"))


def test_experts_of_an_unknown_model_are_shared_out_over_all_groups(tmp_path: Path) -> None:
    weights = unknown_model(tmp_path, layers__0__experts=(4, 3, 2), layers__0__a=(4, 4))
    own = rules(tmp_path, "experts = 'expert_parallel'", "a = 'rowwise'")
    assert parts_of(weights, Grid(2, 2), own) == {
        "layers.0.experts": [[0], [1], [2], [3]],
        "layers.0.a": [[0, 1], [2, 3], [0, 1], [2, 3]],
    }


def test_people_are_asked_before_the_family(tmp_path: Path) -> None:
    own = rules(tmp_path, "'layers.1.mlp' = 'replicate'")
    plan = shard_plan(llama(tmp_path), Grid(2), rules=own)
    assert plan.shardings[DOWN] == ("replicate", ((), ()))
    assert plan.shardings[DOWN.replace("1", "0")].strategy == "columnwise"
    assert plan.notes == (
        ("18 weights match no pattern of the plan file: they are split as usual for llama"),
    )


def test_rules_that_decide_on_nothing_are_reported(tmp_path: Path) -> None:
    own = rules(tmp_path, "down_proj = 'columnwise'", "mlp = 'replicate'", "'1.mlp' = 'replicate'",
                "experts = 'expert_parallel'")  # fmt: skip
    notes = shard_plan(llama(tmp_path), Grid(2), rules=own).notes
    assert [note.split(": ")[1] for note in notes[:2]] == [
        "all tensors that match `1.mlp` also match an earlier rule",
        "no tensor matches `experts`",
    ]


def test_people_may_cut_what_does_not_fit_the_config(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    weights = llama(tmp_path, {name: (48, 64)})
    for ranks in (1, 2):
        with pytest.raises(ShardingError, match=rf"`{name}`.*\[48, 64\].*32 elements") as caught:
            shard_plan(weights, Grid(ranks))
        assert "config" in caught.value.hint
    with pytest.raises(ShardingError, match=rf"`{name}`"):
        possible(weights, [2])
    assert parts_of(weights, Grid(2), rules(tmp_path, "k_proj = 'rowwise'"))[name] == [
        [*range(24)], [*range(24, 48)],
    ]  # fmt: skip


def test_a_rule_that_cannot_be_followed_names_itself_and_the_tensor(tmp_path: Path) -> None:
    own = rules(tmp_path, "norm = 'columnwise'")
    with pytest.raises(ShardingError, match=r"plan\.toml: `norm`: `model.*norm.weight`.*no axis 1"):
        shard_plan(llama(tmp_path), Grid(2), rules=own)


def test_tensors_that_are_missing_are_reported(tmp_path: Path) -> None:
    plan = shard_plan(llama(tmp_path, without=DOWN), Grid(2))
    assert plan.notes == (f"1 tensor of llama is missing, for example `{DOWN}`",)
    assert DOWN not in plan.shardings


def test_a_config_of_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArchitectureError, match=r"of bert are missing") as caught:
        shard_plan(llama(tmp_path, model_type="bert"), Grid(2))
    assert "--plan FILE" in caught.value.hint


@pytest.mark.parametrize(("part", "size"), [("gate_proj", (80, 64)), ("down_proj", (64, 80))])
def test_weights_that_are_divided_alike_have_one_size(
    tmp_path: Path, part: str, size: tuple[int, int]
) -> None:
    model = llama(tmp_path, {f"model.layers.1.mlp.{part}.weight": size})
    with pytest.raises(ShardingError, match="with weights of other sizes: 80, 96") as caught:
        shard_plan(model, Grid(2))
    assert caught.value.hint == "check that the config belongs to this checkpoint"


def test_tensors_of_no_part_are_whole_and_on_the_stage_of_the_layer_that_they_are_in(
    tmp_path: Path,
) -> None:
    more = {
        "vision.layers.1.weight": (8, 8),
        "model.layers.1.self_attn.k_scale": (1,),
        "model.layers.2.eh_proj.weight": (8, 8),
        "model.layers.7.eh_proj.weight": (8, 8),
        "layers.None.weight": (8,),
    }
    plan = shard_plan(llama(tmp_path, more), Grid(1, 1, 2))
    assert {name: plan.shardings[name].parts for name in more} == {
        "vision.layers.1.weight": ((), ()),
        "model.layers.1.self_attn.k_scale": (None, ()),
        "model.layers.2.eh_proj.weight": ((), ()),
        "model.layers.7.eh_proj.weight": ((), ()),
        "layers.None.weight": ((), ()),
    }
    assert plan.notes[0].startswith("5 tensors (for example `")
    assert plan.notes[0].endswith("`) are not split, because they are not a part of llama")


def test_a_name_for_the_embedding_and_the_output_is_one_tensor_on_both_stages(
    tmp_path: Path,
) -> None:
    weights = llama(tmp_path, without="lm_head.weight")
    weights = with_names(weights, {"lm_head.weight": "model.embed_tokens.weight"})
    plan = shard_plan(weights, Grid(2, 1, 2))
    assert plan.tied == {"lm_head.weight": "model.embed_tokens.weight"}
    embedding = [held(plan, "model.embed_tokens.weight", rank) for rank in range(4)]
    assert embedding == [[*range(48)], [*range(48, 96)]] * 2


def test_a_tensor_that_is_two_parts_which_are_cut_otherwise_needs_a_rule(tmp_path: Path) -> None:
    up, down = (f"model.layers.0.mlp.{part}_proj.weight" for part in ("up", "down"))
    shapes = SHAPES | {
        name: tuple(64 if size == 96 else size for size in shape)
        for name, shape in SHAPES.items() if ".mlp." in name
    }  # fmt: skip
    del shapes[down]
    tree = stated(
        {name: (shape, "BF16") for name, shape in shapes.items()},
        directory=tmp_path, config=CONFIG | {"intermediate_size": 64},
    )  # fmt: skip
    weights = with_names(tree, {down: up})
    with pytest.raises(ShardingError, match=rf"`{up}` is used in two places") as caught:
        shard_plan(weights, Grid(2))
    assert "--plan" in caught.value.hint
    own = rules(tmp_path, "'layers.0.mlp' = 'replicate'")
    assert shard_plan(weights, Grid(2), rules=own).shardings[up].parts == ((), ())


def test_a_checkpoint_without_tensors_is_not_a_model_but_people_may_cut_it(tmp_path: Path) -> None:
    weights = stated({}, directory=tmp_path, config=CONFIG)
    with pytest.raises(
        ArchitectureError, match="states 2 layers, but the checkpoint has only 0 tensors"
    ):
        shard_plan(weights, Grid(2))
    plan = shard_plan(weights, Grid(2), rules=rules(tmp_path, "a = 'rowwise'"))
    assert plan.ranks == ((), ())


@each("grid", [Grid(0), Grid(1, 0), Grid(1, 1, -1)])
def test_numbers_of_ranks_begin_with_one(tmp_path: Path, grid: Grid) -> None:
    with pytest.raises(ShardingError, match="are not valid numbers of ranks"):
        shard_plan(llama(tmp_path), grid)


@each(
    "grid, message, hint",
    [
        (
            Grid(1, 2),
            "the model has no experts, which cannot be divided among 2 groups",
            "leave out --ep (ep in Python)",
        ),
        (
            Grid(1, 1, 3),
            "the model has 2 layers, which cannot be divided among 3 stages",
            "use --pp (pp in Python) up to 2",
        ),
        (Grid(3), r"4 query heads and 2 KV heads \(head size 16\)", "1, 2 or 4 ranks"),
        (Grid(1 << 40), r"`model\.embed_tokens.*96 elements are too few", "1 to 96 ranks work"),
    ],
)
def test_what_cannot_be_shared_is_refused_with_what_can(
    tmp_path: Path, grid: Grid, message: str, hint: str
) -> None:
    with pytest.raises(ShardingError, match=message) as caught:
        shard_plan(llama(tmp_path), grid)
    assert hint in caught.value.hint


def test_layouts_and_formats_that_there_are_not_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ShardingError, match="`tensorrt` is not a supported layout"):
        shard_plan(llama(tmp_path), Grid(2), layout="tensorrt")
    with pytest.raises(ConversionError, match="onnx"):
        shard_plan(llama(tmp_path), Grid(2), format_name="onnx")
    with pytest.raises(ConversionError, match="shards cannot be written as npz"):
        shard_plan(llama(tmp_path), Grid(2), format_name="npz")


def test_ranks_have_the_format_of_the_checkpoint_unless_another_is_named(tmp_path: Path) -> None:
    assert shard_plan(llama(tmp_path), Grid(2)).format == "safetensors"
    assert shard_plan(gguf_llama(), Grid(2)).format == "gguf"
    assert shard_plan(gguf_llama(), Grid(2), format_name="safetensors").format == "safetensors"


def test_each_number_of_ranks_works_or_has_a_tensor_in_its_way(tmp_path: Path) -> None:
    found = {each.ranks: each.refusal for each in possible(llama(tmp_path), [4, 3, 0, 1, 5])}
    assert list(found) == [4, 3, 0, 1, 5]
    assert found[4] is found[1] is None
    assert "q_proj.weight` of shape [64, 64] cannot be split" in str(found[3])
    assert "are not valid numbers of ranks" in str(found[0])
    with pytest.raises(ArchitectureError, match="zamba2"):
        possible(unknown_model(tmp_path, a=(4, 4)), [2])


def test_blocks_are_in_the_way_before_heads_are() -> None:
    # Of 8 heads four are a block.
    weights = gguf_llama(heads=8, kv_heads=8, head_dim=64, inner=1024, encoding="Q4_K")
    two, four = possible(weights, [2, 4])
    assert two.refusal is None
    assert four.refusal is not None
    assert "`blk.0.attn_output.weight`" in four.refusal.message
    assert (
        "8 query heads (head size 64), and the weight has blocks of 256 elements"
        in four.refusal.message
    )
    assert four.refusal.hint == "1 or 2 ranks work"


def test_scales_of_blocks_are_cut_with_their_numbers_and_heads_stay_whole(tmp_path: Path) -> None:
    shapes = {
        name: tuple({64: 768, 32: 192, 96: 1000}[size] for size in shape)
        for name, shape in SHAPES.items()
    }
    tensors: dict[str, tuple[tuple[int, ...], str]] = {}
    for name, shape in shapes.items():
        is_matrix = "_proj" in name
        tensors[name] = (shape, "F8_E4M3" if is_matrix else "BF16")
        if is_matrix:
            tensors[f"{name}_scale_inv"] = tuple(-(-size // 128) for size in shape), "F32"
    config = CONFIG | {
        "hidden_size": 768, "intermediate_size": 1000, "num_attention_heads": 12,
        "num_key_value_heads": 3,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }  # fmt: skip
    weights = stated(tensors, directory=tmp_path, config=config)
    plan = shard_plan(weights, Grid(2))
    for name in shapes:
        if "_proj" not in name:
            continue
        for axis in (0, 1):
            for rank in (0, 1):
                own = held(plan, name, rank, axis)
                scales = held(plan, f"{name}_scale_inv", rank, axis)
                assert own is not None
                assert own[0] % 128 == 0
                assert scales == sorted({entry // 128 for entry in own})
    # Three heads of 64 are a block and a half: one rank has two of them, with their queries.
    stem = "model.layers.0.self_attn."
    sizes = [len(held(plan, f"{stem}{part}_proj.weight", 0) or []) for part in "qkv"]
    assert sizes == [512, 128, 128]
    refusal = possible(weights, [3])[0].refusal
    assert refusal is not None
    assert "12 query heads and 3 KV heads (head size 64), and the weight has blocks of 128" in str(
        refusal
    )


def test_nothing_of_numpy_is_loaded_where_nothing_is_quantized_in_parts(tmp_path: Path) -> None:
    arrays = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    saved(tmp_path, arrays, CONFIG)
    code = f"""
import sys
from weightctl import open_weights
from weightctl.split import Grid
from weightctl.sharding.planning import shard_plan
from weightctl.sharding.rank_counts import possible
weights = open_weights({str(tmp_path)!r})
assert len(shard_plan(weights, Grid(2)).ranks) == len(possible(weights, [1, 2]))
assert not {{"numpy", "torch"}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# Users' plans from TOML files: which tensors they split, and how.


def read(folder: Path, text: str) -> CutRules:
    path = folder / "mine.toml"
    path.write_text(text)
    return read_rules(str(path))


def cut(rules: CutRules, shape: tuple[int, ...], ranks: int = 2, name: str = "w") -> Sharding:
    found = rules.sharding(Whole(name, shape, (1,) * len(shape)), Grid(ranks))
    assert found is not None
    return found


def test_rules_in_python_mean_what_the_same_file_means(tmp_path: Path) -> None:
    given = {"qkv": {"strategy": "segmented", "sizes": [2, 2]}, "w": "columnwise"}
    file = read(tmp_path, "[tensors]\nqkv = { strategy = 'segmented', sizes = [2, 2] }\n"
                "w = 'columnwise'\n")  # fmt: skip
    assert make_rules(given).rules == file.rules


def test_shard_takes_rules_without_a_file(tiny_llama: Path, tmp_path: Path) -> None:
    made = shard(tiny_llama, tmp_path / "out", tp=2, rules={"lm_head": "replicate"}, dry_run=True)
    assert made.plan.shardings["lm_head.weight"].strategy == "replicate"


def test_an_error_in_rules_in_python_names_the_argument() -> None:
    with pytest.raises(ConversionError, match=r"^rules: `w`: 'sideways' is not a"):
        make_rules({"w": "sideways"})


def rows(*ranges: tuple[int, int]) -> tuple[Cut, ...]:
    return (Cut(0, ranges),)


def columns(*ranges: tuple[int, int]) -> tuple[Cut, ...]:
    return (Cut(1, ranges),)


@each(
    "rule, shape, expected",
    [
        ("'replicate'", (4, 6), [(), ()]),
        ("'rowwise'", (5, 6), [rows((0, 3)), rows((3, 5))]),
        ("'columnwise'", (4, 6), [columns((0, 3)), columns((3, 6))]),
        ("{ strategy = 'axiswise', axis = 2 }", (1, 1, 2), [(Cut(2, ((0, 1),)),),
                                                            (Cut(2, ((1, 2),)),)]),
        ("{ strategy = 'segmented', sizes = [2, 4] }", (6,), [rows((0, 1), (2, 4)),
                                                              rows((1, 2), (4, 6))]),
        ("{ strategy = 'segmented', sizes = [2, 4], axis = 1 }", (1, 6),
         [columns((0, 1), (2, 4)), columns((1, 2), (4, 6))]),
        ("'gate_up'", (8, 2), [rows((0, 2), (4, 6)), rows((2, 4), (6, 8))]),
        ("{ strategy = 'gate_up', axis = 1 }", (2, 4), [columns((0, 1), (2, 3)),
                                                        columns((1, 2), (3, 4))]),
        ("{ strategy = 'stacked_qkv', heads = 4, kv_heads = 1, head_dim = 2 }", (12, 3),
         [rows((0, 4), (8, 12)), rows((4, 12))]),
        ("{ strategy = 'stacked_qkv', heads = 2, kv_heads = 2, head_dim = 1, axis = 1 }", (3, 6),
         [columns((0, 1), (2, 3), (4, 5)), columns((1, 2), (3, 4), (5, 6))]),
        ("{ strategy = 'head_aware_columnwise', heads = 2, head_dim = 3 }", (2, 6),
         [columns((0, 3)), columns((3, 6))]),
        ("{ strategy = 'head_aware_columnwise', heads = 6, head_dim = 1, kv_heads = 3 }", (2, 6),
         [columns((0, 4)), columns((4, 6))]),
        ("'expert_parallel'", (3, 2, 2), [rows((0, 2)), rows((2, 3))]),
    ],
)  # fmt: skip
def test_a_strategy_cuts_by_its_settings(
    rule: str, shape: tuple[int, ...], expected: list[tuple[Cut, ...]], tmp_path: Path
) -> None:
    found = cut(read(tmp_path, f"[tensors]\nw = {rule}\n"), shape)
    assert list(found.parts) == expected


def test_the_strategies_are_those_that_weights_have() -> None:
    assert [*STRATEGIES] == [
        "replicate", "rowwise", "columnwise", "axiswise", "segmented", "gate_up", "stacked_qkv",
        "head_aware_columnwise", "expert_parallel",
    ]  # fmt: skip


def test_the_first_pattern_found_in_a_name_decides(tmp_path: Path) -> None:
    rules = read(tmp_path, "[tensors]\n'down' = 'columnwise'\n'\\.mlp\\.' = 'rowwise'\n")
    assert cut(rules, (4, 4), name="a.mlp.down").strategy == "columnwise"
    assert cut(rules, (4, 4), name="a.mlp.up").strategy == "rowwise"
    assert rules.sharding(Whole("amlpb", (4, 4), (1, 1)), Grid(2)) is None


def test_all_but_experts_are_alike_in_each_group_and_stage(tmp_path: Path) -> None:
    rules = read(tmp_path, "[tensors]\nexperts = 'expert_parallel'\nrest = 'rowwise'\n")
    grid = Grid(tp=2, ep=2, pp=2)
    rest = rules.sharding(Whole("rest", (4, 4), (1, 1)), grid)
    assert rest is not None
    assert [part[0].ranges[0] for part in rest.parts if part] == [(0, 2), (2, 4)] * 4


def test_experts_are_shared_out_over_all_ranks_of_a_stage(tmp_path: Path) -> None:
    rules = read(tmp_path, "[tensors]\nexperts = 'expert_parallel'\n")
    found = rules.sharding(Whole("experts", (4, 3), (1, 1)), Grid(tp=2, ep=2, pp=2))
    assert found is not None
    assert [part[0].ranges[0] for part in found.parts if part] == [
        (0, 1), (1, 2), (2, 3), (3, 4)
    ] * 2  # fmt: skip


def test_what_cannot_be_cut_so_names_the_file_and_the_pattern(tmp_path: Path) -> None:
    rules = read(tmp_path, "[tensors]\n'^w$' = 'rowwise'\n")
    with pytest.raises(ShardingError) as caught:
        cut(rules, (3, 4), ranks=4)
    assert caught.value.message.startswith(f"{tmp_path / 'mine.toml'}: `^w$`: `w` of shape [3, 4]")
    assert caught.value.hint == "1 to 3 ranks work"


def test_a_plan_says_how_a_checkpoint_is_cut_and_the_family_says_the_rest(tmp_path: Path) -> None:
    rules = read(tmp_path, "[tensors]\nffn_down = 'replicate'\n")
    plan = shard_plan(gguf_llama(), Grid(2), rules=rules)
    assert held(plan, "blk.0.ffn_down.weight", 1, axis=1) == [*range(512)]
    assert held(plan, "blk.0.ffn_up.weight", 1) == [*range(256, 512)]


def test_patterns_that_decide_on_nothing_are_reported(tmp_path: Path) -> None:
    rules = read(
        tmp_path, "[tensors]\nffn = 'replicate'\nffn_up = 'rowwise'\nfnn_down = 'columnwise'\n"
    )
    notes = shard_plan(stated({"ffn_up": ((4, 4), "F32")}), Grid(2), rules=rules).notes
    path = tmp_path / "mine.toml"
    assert f"{path}: all tensors that match `ffn_up` also match an earlier rule" in notes
    assert f"{path}: no tensor matches `fnn_down`" in notes
    assert not any("`ffn`" in note for note in notes)


@each(
    "text, says",
    [
        ("", "the plan file is empty"),
        ("[tensors", "is not valid TOML"),
        ("[tensor]\na = 'rowwise'", "`tensor` is not a table of a plan file"),
        ("tensors = 3", "`tensors` is not a table"),
        ("[tensors]", "`tensors` is empty"),
        ("[tensors]\n'a(' = 'rowwise'", "`a(` is not a valid regular expression"),
        ("[tensors]\na = 'colwise'", "`a`: 'colwise' is not a supported strategy"),
        ("[tensors]\na = 3", "`a` is 3, which is not a strategy"),
        ("[tensors]\na = { strategy = 3 }", "`a`: 3 is not a supported strategy"),
        ("[tensors]\nmlp.up = 'rowwise'", "`mlp` is a table without a `strategy`"),
        (
            "[tensors]\na = { strategy = 'rowwise', axis = 1 }",
            ("`a`: rowwise does not have the setting `axis`"),
        ),
        ("[tensors]\na = 'axiswise'", "`a`: axiswise needs the setting `axis`"),
        ("[tensors]\na = { strategy = 'axiswise', axis = -1 }", "`axis` is -1"),
        ("[tensors]\na = { strategy = 'axiswise', axis = true }", "`axis` is True"),
        (
            "[tensors]\na = { strategy = 'segmented', sizes = [] }",
            ("`sizes` is []; it must be a list of integers of at least 1"),
        ),
        ("[tensors]\na = { strategy = 'segmented', sizes = [0] }", "`sizes` is [0]"),
        (
            "[tensors]\na = { strategy = 'segmented', sizes = 4 }",
            ("`sizes` is 4; it must be a list of integers of at least 1"),
        ),
        (
            "[tensors]\na = { strategy = 'stacked_qkv', heads = 3, kv_heads = 2, head_dim = 4 }",
            "3 `heads` cannot be divided evenly among 2 `kv_heads`",
        ),
        (
            "[tensors]\na = { strategy = 'stacked_qkv', heads = 0, kv_heads = 2, head_dim = 4 }",
            "`heads` is 0",
        ),
    ],
)
def test_what_is_not_a_plan_is_refused_with_its_path(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConversionError) as caught:
        read(tmp_path, text)
    assert str(tmp_path / "mine.toml") in caught.value.message
    assert says in caught.value.message
    assert caught.value.hint


def test_a_plan_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"cannot read the plan .*none\.toml") as caught:
        read_rules(str(tmp_path / "none.toml"))
    assert caught.value.hint == "check the path"
