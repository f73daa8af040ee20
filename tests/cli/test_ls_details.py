"""The facts in the summary of a listing: file size, quantization, context length, license."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import small_checkpoints
from build import F32, Gguf, Tensor, safetensors_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


def summary(weightctl: Run, path: Path) -> list[str]:
    done = weightctl("ls", path)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("\n\n")[0].splitlines()


def listed(weightctl: Run, path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(weightctl("ls", path, "--json").stdout)
    return document


def write_gguf(path: Path, **values: tuple[str, object]) -> Path:
    stated = {key.replace("__", "."): value for key, value in values.items()}
    path.write_bytes(Gguf().file([Tensor("token_embd.weight", (4, 16), F32, bytes(256))], stated))
    return path


@pytest.mark.parametrize(
    ("number", "name"),
    [(15, "Q4_K_M"), (7, "Q8_0"), (27, "IQ3_M"), (28, "IQ2_S"), (1024, "F32"), (999, "F32")],
)
def test_a_gguf_shows_its_file_type_context_length_and_license(
    weightctl: Run, tmp_path: Path, number: int, name: str
) -> None:
    path = write_gguf(
        tmp_path / "a.gguf",
        general__architecture=("string", "llama"),
        general__file_type=("u32", number),
        general__license=("string", "apache-2.0"),
        llama__context_length=("u32", 8192),
    )
    size = path.stat().st_size
    line = f"file {size} B, {name}, context length 8,192, license apache-2.0"
    assert summary(weightctl, path)[2] == line
    found = listed(weightctl, path)
    assert (found["file_bytes"], found["quantization"]) == (size, name)
    assert (found["context_length"], found["license"]) == (8192, "apache-2.0")


def test_a_directory_shows_its_scheme_and_the_license_of_its_readme(
    weightctl: Run, tmp_path: Path
) -> None:
    path = small_checkpoints.awq(tmp_path)
    (path / "README.md").write_text("---\nlicense: other\nlicense_name: example-terms\n---\nText\n")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    line = summary(weightctl, path)[-1]
    assert line.endswith(", AWQ 4-bit, context length 4,096, license example-terms")


def test_what_a_checkpoint_does_not_state_is_left_out(weightctl: Run, tmp_path: Path) -> None:
    path = small_checkpoints.split(tmp_path)
    assert summary(weightctl, path)[-1] == "262 kB in 2 files, BF16"
    found = listed(weightctl, path)
    assert (found["context_length"], found["license"]) == (None, None)


@pytest.mark.parametrize("stated", ["a lot", True, -1, [2048], None])
def test_a_context_length_that_is_not_one_is_left_out(
    weightctl: Run, tmp_path: Path, stated: object
) -> None:
    tensors = {"a": small_checkpoints.numbers("F32", 2)}
    path = small_checkpoints.write(tmp_path, "m", tensors, max_position_embeddings=stated)
    assert listed(weightctl, path)["context_length"] is None


def test_a_license_cannot_move_the_cursor(weightctl: Run, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", general__license=("string", "\x1b[2J" + "x" * 1000))
    done = weightctl("ls", path)
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines()[1:])) <= 80


def test_patterns_do_not_change_the_quantization(weightctl: Run, tmp_path: Path) -> None:
    path = small_checkpoints.awq(tmp_path)
    found = json.loads(weightctl("ls", path, "--include", "*embed*", "--json").stdout)
    assert found["quantization"] == "AWQ 4-bit"


def write_config(folder: Path) -> None:
    config = {
        "model_type": "llama", "_name_or_path": "org/Big", "hidden_size": 16, "vocab_size": 32,
        "max_position_embeddings": 4096,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")


def test_a_foreign_file_beside_a_config_is_not_called_by_that_name(
    weightctl: Run, tmp_path: Path
) -> None:
    write_config(tmp_path)
    vae = tmp_path / "vae.safetensors"
    vae.write_bytes(safetensors_of({"conv.weight": small_checkpoints.numbers("F32", 8, 3, 3, 3)}))
    other = write_gguf(tmp_path / "other.gguf", general__architecture=("string", "qwen2"))
    assert summary(weightctl, vae)[0] == f"{vae}: safetensors"
    assert summary(weightctl, other)[0] == f"{other}: qwen2, gguf"
    for path in (vae, other):
        found = listed(weightctl, path)
        assert (found["name"], found["context_length"], found["license"]) == (None, None, None)


@pytest.mark.parametrize("name", ["model.safetensors", "mine.safetensors"])
def test_a_file_that_a_config_describes_has_its_name(
    weightctl: Run, tmp_path: Path, name: str
) -> None:
    write_config(tmp_path)
    path = tmp_path / name
    tensors = {"model.embed_tokens.weight": small_checkpoints.numbers("F32", 32, 16)}
    path.write_bytes(safetensors_of(tensors))
    assert summary(weightctl, path)[0] == f"{path}: org/Big, llama, safetensors"
    assert summary(weightctl, path)[-1].endswith("F32, context length 4,096, license mit")


@pytest.mark.parametrize("make", [small_checkpoints.small, small_checkpoints.awq])
def test_ls_and_verify_count_the_same_parameters(
    weightctl: Run, tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    path = make(tmp_path)
    parameters = listed(weightctl, path)["totals"]["parameters"]
    verified = weightctl("verify", path, "--check", "finite").stdout
    assert f" {parameters:,} parameters, " in verified


def test_scales_of_activations_are_not_parameters(weightctl: Run, tmp_path: Path) -> None:
    path = small_checkpoints.awq(tmp_path)
    before = listed(weightctl, path)["totals"]["parameters"]
    scale = {"model.layers.0.self_attn.k_scale": small_checkpoints.numbers("F32", 1)}
    (path / "more.safetensors").write_bytes(safetensors_of(scale))
    weight_map = dict.fromkeys(scale, "more.safetensors")
    weight_map |= {each["name"]: "model.safetensors" for each in listed(weightctl, path)["tensors"]}
    index = {"metadata": {}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = listed(weightctl, path)
    assert found["totals"]["tensors"] == 16
    assert found["totals"]["parameters"] == before
