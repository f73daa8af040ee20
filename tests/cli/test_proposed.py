"""`weightctl convert` without OUT names the output of a quantized model."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import weightctl as api
from commands import TINY
from commands import run_command as weightctl
from weightctl.cli.proposed import propose_output

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

NOTHING = dict.fromkeys(
    ("to", "dtype", "quant", "bpw", "size", "max_kld", "fit", "mmproj", "force")
)


def test_a_quantized_model_goes_into_the_current_directory(tmp_path: Path) -> None:
    done = weightctl("convert", TINY, "--quant", "Q8_0", cwd=tmp_path)
    assert done.returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["tiny-llama-Q8_0.gguf"]
    assert "tiny-llama-Q8_0.gguf" in done.stdout
    before = (tmp_path / "tiny-llama-Q8_0.gguf").read_bytes()
    again = weightctl("convert", TINY, "--quant", "Q8_0", cwd=tmp_path)
    assert again.returncode == 2
    assert "tiny-llama-Q8_0.gguf exists" in again.stderr
    assert (tmp_path / "tiny-llama-Q8_0.gguf").read_bytes() == before
    forced = weightctl("convert", TINY, "--quant", "Q8_0", "--force", cwd=tmp_path)
    assert forced.returncode == 0
    api.open_weights(tmp_path / "tiny-llama-Q8_0.gguf")


def test_names_of_outputs_follow_from_the_model_and_the_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(TINY, "model-v1.5")
    snapshot = "/home/x/.cache/huggingface/hub/models--org--Qwen3-4B/snapshots/" + "0" * 40
    expected = {
        ("model-v1.5", "Q4_K_M"): "model-v1.5-Q4_K_M.gguf",
        ("dir/model-BF16.gguf", "Q4_K_M"): "model-Q4_K_M.gguf",
        ("dir/model.Q8_0.gguf", "Q4_K_M"): "model.Q8_0-Q4_K_M.gguf",
        (snapshot, "Q4_K_M"): "Qwen3-4B-Q4_K_M.gguf",
        (f"{snapshot}/Qwen3-4B-F16.gguf", "q6_k"): "Qwen3-4B-q6_k.gguf",
        ("hf://org/Llama-3.2-1B", "W4A16:group=64"): "Llama-3.2-1B-W4A16-group-64",
        ("model-v1.5", "my/recipe.toml"): "model-v1.5-recipe.gguf",
        ("model-v1.5", None): None,
        (f"/store/blobs/sha256-{'0' * 64}", "Q4_K_M"): None,
    }
    (tmp_path / "my").mkdir()
    (tmp_path / "my/recipe.toml").write_text('default = "Q8_0"\n')
    made = {
        (model, quant): propose_output(model, NOTHING | {"quant": quant})
        for model, quant in expected
    }
    assert made == expected
    assert propose_output("model-v1.5", NOTHING | {"to": "gguf"}) == "model-v1.5.gguf"
    to_f16 = NOTHING | {"to": "gguf", "dtype": "f16"}
    assert propose_output("model-v1.5", to_f16) == "model-v1.5-f16.gguf"
    assert propose_output("model-v1.5", NOTHING | {"bpw": 4.5}) == "model-v1.5-4.5bpw.gguf"
    assert propose_output("model-v1.5", NOTHING | {"fit": "8GB"}) == "model-v1.5-fit-8GB.gguf"


def test_a_directory_is_never_replaced_by_a_proposed_output(tmp_path: Path) -> None:
    (tmp_path / "tiny-llama-W4A16").mkdir()
    done = weightctl("convert", TINY, "--quant", "W4A16", "--force", cwd=tmp_path)
    assert done.returncode == 2
    assert "tiny-llama-W4A16 exists" in done.stderr


def test_the_name_of_a_format_is_not_an_output(tmp_path: Path) -> None:
    done = weightctl("convert", TINY, "gguf", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean `tiny-llama.gguf`?" in done.stderr
    assert "did you mean" not in weightctl("convert", TINY, "keras", cwd=tmp_path).stderr
    assert weightctl("convert", TINY, "./gguf", cwd=tmp_path).returncode == 0
    assert (tmp_path / "gguf/model.safetensors").exists()
    done = weightctl("convert", TINY, "-q", "Q4_K_M", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean --quant Q4_K_M?" in done.stderr
    assert "did you mean --dtype f16?" in weightctl("convert", TINY, "f16", cwd=tmp_path).stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gguf"]
    done = weightctl("convert", TINY, "gguf", "--force", cwd=tmp_path)
    assert done.returncode == 0
