"""`weightctl shard --tp auto`: which numbers of ranks are possible, and why others are not."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

from commands import TINY, asked, document, refusal
from terminal import on_a_terminal
from weightctl import open_weights, recognize, save
from weightctl.dtype.spellings import parse_encoding
from weightctl.plan.cast import cast
from weightctl.translate import translate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


def test_a_number_that_cannot_be_names_the_tensor_and_numbers_that_work() -> None:
    message = refusal(TINY, "out", "--tp", "3")
    assert "`model.layers.0.self_attn.k_proj.weight` of shape [64, 256] cannot be split" in message
    assert "the model has 8 query heads and 2 KV heads (head size 32)" in message
    assert message.endswith("hint: 1, 2, 4, 6 or 8 ranks work")


def test_auto_shows_the_numbers_that_work_and_what_is_in_the_way_of_others() -> None:
    lines = asked(TINY, "--tp", "auto").stdout.splitlines()
    assert lines[:2] == [f"{TINY} can be split with --tp", ""]
    assert lines[2] == "  1-2, 4, 6, 8           works"
    assert lines[3].startswith("  3, 5, 7, 9-16, 32, 64  `model.layers.0.self_attn.k_proj.weight`")
    shown = document(TINY, "--tp", "auto")["possible"]
    assert [each["tp"] for each in shown if each["works"]] == [1, 2, 4, 6, 8]
    assert "across 3 ranks" in shown[2]["reason"]


def test_auto_names_a_rule_that_fails_once_for_all_numbers_of_ranks(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(
        "[tensors]\nk_proj = { strategy = 'stacked_qkv', heads = 4, kv_heads = 2, head_dim = 8 }\n"
    )
    lines = asked(TINY, "--tp", "auto", "--plan", rules).stdout.splitlines()
    assert lines[2:] == [
        "  1-2, 4           works",
        (
            f"  3, 5-16, 32, 64  {rules}: `k_proj`: `model.layers.0.self_attn.k_proj.weight` of "
            "shape [64, 256] cannot be split along axis 0: the model has 4 query heads and 2 KV "
            "heads (head size 8)"
        ),
    ]


def test_blocks_of_quantized_weights_are_in_the_way_too(tmp_path: Path) -> None:
    plan = translate(recognize(open_weights(TINY)), "gguf").plan("gguf")
    save(cast(plan, parse_encoding("q4_k")), tmp_path / "q.gguf")
    lines = asked(tmp_path / "q.gguf", "--tp", "auto").stdout.splitlines()
    assert re.fullmatch(r"  1 +works", lines[2])
    assert re.fullmatch(r"  2, 4, 6, 8 +`blk\.0\.attn_output\.weight`.*", lines[3])


def test_lines_of_auto_fit_a_terminal_or_the_width_that_is_asked_for(
    weightctl: Run, tmp_path: Path
) -> None:
    shutil.copytree(TINY, tmp_path / "tiny")
    asked = ("shard", "tiny", "--tp", "auto")
    narrow = weightctl(*asked, cwd=tmp_path, COLUMNS="60").stdout
    assert max(map(len, narrow.splitlines())) <= 60
    assert on_a_terminal(60, *asked, cwd=tmp_path, NO_COLOR="1") == narrow


def test_auto_asks_a_plan_of_ones_own_too(weightctl: Run, tiny_llama: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text("[tensors]\n'' = 'replicate'\n")
    shown = weightctl("shard", tiny_llama, "--tp", "auto", "--plan", plan).stdout
    assert shown.splitlines()[-1] == "  1-16, 32, 64  works"
    plan.write_text("[tensors]\n'lm_head' = { strategy = 'axiswise', axis = 7 }\n")
    shown = weightctl("shard", tiny_llama, "--tp", "auto", "--plan", plan).stdout
    assert "has no axis 7" in shown
