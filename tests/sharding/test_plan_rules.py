"""Users' plans from TOML files: which tensors they split, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cut_models import gguf_llama, held, stated
from each import each
from weightctl import shard
from weightctl.errors import ConversionError, ShardingError
from weightctl.sharding.plan_file import STRATEGIES, make_rules, read_rules
from weightctl.sharding.planning import shard_plan
from weightctl.split import Cut, Grid, Sharding, Whole

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.sharding.plan_file import CutRules


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
