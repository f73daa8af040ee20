"""`convert --bpw`, `--size` and `--max-kld`: what the command writes, shows and refuses."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


def test_a_budget_gives_a_file_a_recipe_and_a_report(
    tiny_llama: Path, tmp_path: Path, weightctl: Run
) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "out.gguf"
    recipe, report = tmp_path / "found.toml", tmp_path / "report.json"
    text.write_text("The sea was calm, and the wind came from the north.")
    given = ("--calibration-file", text, "--text-file", text, "--recipe-out", recipe)
    options = (*given, "--report", report)
    done = weightctl("convert", tiny_llama, out, "--size", "1.2MB", *map(str, options))
    assert done.returncode == 0, done.stderr
    assert "--size 1.2MB: 4." in done.stdout
    assert "tokens of the text; perplexity" in done.stdout
    assert 1_194_000 <= out.stat().st_size <= 1_200_000
    found = json.loads(report.read_text())["budget"]
    types = tomllib.loads(recipe.read_text())["types"]
    assert list(types.values()) == [each["type"] for each in found["tensors"]]
    # The recipe is not replaced without a request, and nothing is searched for that.
    again = weightctl("convert", tiny_llama, out, "--bpw", "4", *map(str, given), "-f")
    assert again.returncode == 0, again.stderr
    refused = weightctl("convert", tiny_llama, out, "--bpw", "4", "--recipe-out", str(recipe))
    assert (refused.returncode, "found.toml exists" in refused.stderr) == (2, True)


def test_a_model_for_a_memory_fits_into_it(
    tiny_llama: Path, tmp_path: Path, weightctl: Run
) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "out.gguf"
    text.write_text("The sea was calm, and the wind came from the north.")
    texts = ("--calibration-file", text, "--text-file", text)
    memory = ("--fit", "11MB", "--context", "2048", "--kv-type", "q8_0")
    done = weightctl("convert", tiny_llama, out, *memory, *map(str, texts))
    assert done.returncode == 0, done.stderr
    assert "--fit 11MB --context 2048 --kv-type q8_0: " in done.stdout
    fit = json.loads(weightctl("ls", out, *memory, "--json").stdout)["fit"]
    assert fit["fits"]
    assert 10_950_000 <= fit["bytes"] + fit["embedding"] <= 11_000_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--bpw 4 --size 1MB", "--bpw and --size are both given"),
        ("--bpw 4 --quant Q4_K_M", "--bpw and --quant are both given"),
        ("--fit 1GB --bpw 4", "--bpw and --fit are both given"),
        ("--max-kld 0.1 --dtype f16", "--max-kld and --dtype are both given"),
        ("--types Q4_K", "--types applies only to a budget"),
        ("--recipe-out found.toml", "--recipe-out applies only to a budget"),
        ("--context 512", "--context applies only to a budget"),
        ("--bpw 4 --context 512", "--context and --kv-type apply only to --fit"),
        ("--fit 1GB --kv-type q9", "q9"),
        ("--fit 6MB", "the KV cache takes 393 kB and the compute buffers 6.29 MB"),
        ("--bpw 4 --types Q9_K", "Q9_K"),
        ("--bpw 0", "not a positive number"),
        ("--size huge", "huge"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    options: str, message: str, tiny_llama: Path, tmp_path: Path, weightctl: Run
) -> None:
    done = weightctl("convert", tiny_llama, tmp_path / "out.gguf", *options.split())
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_budget_for_a_file_that_is_not_a_whole_model_is_refused(
    tiny_llama: Path, tmp_path: Path, weightctl: Run
) -> None:
    done = weightctl("convert", tiny_llama, tmp_path / "out.safetensors", "--bpw", "4")
    assert done.returncode == 2
    assert "needs a GGUF file" in done.stderr
