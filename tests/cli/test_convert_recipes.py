"""The values of `--quant`: a recipe, a single type, or a file of the user."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from recipe_models import MODELS
from terminal import on_a_terminal, without_color
from weightctl import open_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    path.write_bytes(MODELS["untied"].file())
    return path


def test_a_dry_run_shows_the_recipe_and_what_it_chose(
    weightctl: Run, model: Path, tmp_path: Path
) -> None:
    done = weightctl("convert", model, tmp_path / "out.gguf", "--quant", "q4_k_m", "--dry-run")
    assert done.returncode == 0
    assert "recipe Q4_K_M: 49 Q4_K, 9 Q6_K" in done.stdout
    (output,) = (line.split() for line in done.stdout.splitlines() if line.startswith("output.w"))
    assert output[3:5] == ["->", "Q6_K"]
    assert output[-1] == "output"
    assert (
        "attn_v: first and last eighth of the layers and every third layer between" in done.stdout
    )


def test_a_script_learns_the_recipe_and_its_lines(
    weightctl: Run, model: Path, tmp_path: Path
) -> None:
    done = weightctl("convert", model, tmp_path / "o.gguf", "--quant", "Q4_0", "-n", "--json")
    message = json.loads(done.stdout)
    assert message["recipe"] == "Q4_0"
    lines = {each["name"]: each["chosen_by"] for each in message["tensors"]}
    assert lines["output.weight"] == "output"
    assert lines["blk.0.attn_q.weight"] == "otherwise"
    assert lines["output_norm.weight"] is None


@pytest.mark.parametrize(
    ("arguments", "made", "number"),
    [
        (["--quant", "Q4_0"], {"Q4_0": 57, "Q6_K": 1, "F32": 1}, 2),
        (["--tensor-type", ".*=Q4_0"], {"Q4_0": 58, "F32": 1}, 2),
        (["--quant", "Q4_K"], {"Q4_K": 58, "F32": 1}, 14),
        (["--quant", "Q4_K_M"], {"Q4_K": 49, "Q6_K": 9, "F32": 1}, 15),
        (["--quant", "Q4_K_M", "--tensor-type", "attn=Q8_0"],
         {"Q8_0": 32, "Q4_K": 21, "Q6_K": 5, "F32": 1}, 15),
    ],
    ids=lambda arguments: "=".join(arguments) if isinstance(arguments, list) else None,
)  # fmt: skip
def test_a_name_means_the_recipe_and_a_rule_the_type(
    weightctl: Run, model: Path, tmp_path: Path, arguments: list[str], made: dict[str, int],
    number: int,
) -> None:  # fmt: skip
    out = tmp_path / "out.gguf"
    done = weightctl("convert", model, out, *arguments)
    assert done.returncode == 0, done.stderr
    weights = open_weights(out)
    assert Counter(node.info.encoding.name for _, node in weights.items()) == made
    assert weights.header.metadata["general.file_type"].content == number


def test_a_file_is_a_recipe_of_ones_own(weightctl: Run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("base = 'Q4_K_M'\n[types]\n'attn_[kv]' = 'Q8_0'\n")
    done = weightctl("convert", model, "out.gguf", "--quant", "mine.toml", cwd=tmp_path)
    assert "recipe mine.toml: 37 Q4_K, 16 Q8_0, 5 Q6_K" in done.stdout


def test_a_recipe_file_is_never_the_output(weightctl: Run, model: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text("default = 'Q8_0'\n")
    for out, report in ((recipe, tmp_path / "r.json"), (tmp_path / "out.gguf", recipe)):
        done = weightctl(
            *("convert", model, out, "--to", "gguf", "--quant", recipe, "--force"),
            *("--report", report),
        )
        assert done.returncode == 2
        assert f"{recipe} is the recipe" in done.stderr
    assert recipe.read_text() == "default = 'Q8_0'\n"


def test_why_a_type_was_chosen_gives_way_on_a_narrow_terminal(tmp_path: Path) -> None:
    (tmp_path / "in.gguf").write_bytes(MODELS["tied, rows of 288"].file())
    asked = "convert", "in.gguf", "out.gguf", "--quant", "Q4_K_M", "--dry-run"
    narrow, wide = (
        without_color(on_a_terminal(columns, *asked, cwd=tmp_path)).partition("\n\n")[0]
        for columns in (80, 200)
    )
    assert max(map(len, narrow.splitlines())) <= 80
    assert "not Q6_K\n" in narrow
    assert (
        "instead of Q6_K (attn_v: first and last eighth of the layers and every third layer "
        "between)\n" in wide
    )
    assert "instead of Q4_K\n" in wide


def test_a_tensor_that_has_its_fallback_type_already_counts_as_chosen(
    weightctl: Run, tmp_path: Path
) -> None:
    (tmp_path / "in.gguf").write_bytes(MODELS["tied, rows of 288"].file())
    fallback = ("--tensor-type", "token_embd=Q8_0")
    weightctl("convert", "in.gguf", "half.gguf", *fallback, cwd=tmp_path)
    done = weightctl("convert", "half.gguf", "out.gguf", "--quant", "Q4_K_M", "--dry-run",
                     cwd=tmp_path)  # fmt: skip
    chosen = re.search(r"^recipe Q4_K_M: .*?(\d+) Q8_0", done.stdout, re.MULTILINE)
    replaced = re.search(r"(\d+) Q8_0 instead of Q6_K", done.stdout)
    assert chosen is not None
    assert replaced is not None
    assert chosen[1] == replaced[1]


def test_a_plan_shows_what_a_rule_decided_and_no_recipe_that_chose_nothing(
    weightctl: Run, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "keep.toml").write_text("[types]\n'.*' = 'keep'\n")
    done = weightctl("convert", model, "out.gguf", "--quant", "keep.toml", "--dry-run",
                     "--tensor-type", "output.w=Q8_0", cwd=tmp_path)  # fmt: skip
    (output,) = (line for line in done.stdout.splitlines() if line.startswith("output.w"))
    assert output.endswith("  --tensor-type output.w")
    assert "recipe keep.toml" not in done.stdout
