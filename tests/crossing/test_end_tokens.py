"""Lists of end tokens stop generation in llama.cpp, and are the same after conversion back."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from llama_cpp import ask, generate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import families
    from conftest import Completed

COUNT = 12


def edited(source: Path, into: Path, drop: tuple[str, ...] = (), **files: dict[str, Any]) -> Path:
    """Copy a model directory, and change entries of JSON files.

    Files whose names begin with a text in `drop` are not copied.
    """
    into.mkdir()
    for path in source.iterdir():
        if not path.name.startswith(drop or "\0"):
            os.link(path, into / path.name)
    for name, changes in files.items():
        path = into / f"{name}.json"
        content = json.loads(path.read_text()) | changes
        path.unlink()
        path.write_text(json.dumps(content))
    return into


def read(directory: Path, name: str) -> dict[str, Any]:
    content = json.loads((directory / f"{name}.json").read_text())
    return {key: value for key, value in content.items() if key.endswith("_token_id")}


@pytest.fixture
def crossed_both_ways(
    weightctl: Callable[..., Completed], tmp_path: Path
) -> Callable[[Path], tuple[Path, Path]]:
    def convert(source: Path) -> tuple[Path, Path]:
        gguf, back = tmp_path / "model.gguf", tmp_path / "back"
        for arguments in ((source, gguf), (gguf, back)):
            done = weightctl("convert", *arguments)
            assert done.returncode == 0, done.stderr
        return gguf, back

    return convert


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "phi3"])
def test_generation_ends_where_a_list_says(
    name: str,
    family: Callable[[str], families.Made],
    crossed_both_ways: Callable[[Path], tuple[Path, Path]],
    tmp_path: Path,
) -> None:
    made = family(name)
    # Three tokens that are not end tokens for another reason; the model generates the second first.
    ends = [made.follows[20], made.follows[1], made.follows[7]]
    source = edited(
        made.path, tmp_path / "source",
        config={"eos_token_id": ends[0]}, generation_config={"eos_token_id": ends},
    )  # fmt: skip
    gguf, back = crossed_both_ways(source)
    (stops,) = ask(gguf, ("ends",), only_vocabulary=True)
    assert {*ends} <= {*stops}
    first = next(place for place, token in enumerate(made.follows) if token in ends)
    found = generate(gguf, made.prompt, COUNT, tmp_path)
    assert (found.count, found.reason) == (first + 1, "stop")
    for directory in (source, back):
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        every = model.generate(
            torch.tensor([made.prompt]), do_sample=False, max_new_tokens=COUNT, pad_token_id=0
        )
        assert every[0, len(made.prompt) :].tolist() == made.follows[: first + 1]
    for document in ("config", "generation_config"):
        assert read(back, document) == read(source, document)


def test_more_ends_than_gguf_has_keys_for_are_refused_before_anything_is_written(
    family: Callable[[str], families.Made],
    weightctl: Callable[..., Completed],
    tmp_path: Path,
) -> None:
    source = edited(
        family("llama").path, tmp_path / "source",
        generation_config={"eos_token_id": list(range(300, 308))},
    )  # fmt: skip
    done = weightctl("convert", source, tmp_path / "model.gguf")
    assert done.returncode == 2
    assert "llama.cpp would not stop at these tokens" in done.stderr
    assert not (tmp_path / "model.gguf").exists()


@pytest.mark.parametrize("value", ["</s>", 1.5, True, {"id": 1}, [1, "a"], [[1]]])
def test_an_end_that_is_not_an_id_is_refused(
    value: object,
    family: Callable[[str], families.Made],
    weightctl: Callable[..., Completed],
    tmp_path: Path,
) -> None:
    source = edited(
        family("llama").path, tmp_path / "source", generation_config={"eos_token_id": value}
    )
    done = weightctl("convert", source, tmp_path / "model.gguf", "--dry-run")
    assert done.returncode == 2
    assert "generation_config.json: `eos_token_id` is" in done.stderr


def test_a_directory_without_a_tokenizer_keeps_its_ids(
    family: Callable[[str], families.Made],
    crossed_both_ways: Callable[[Path], tuple[Path, Path]],
    tmp_path: Path,
) -> None:
    ids = {"bos_token_id": 7, "eos_token_id": [611, 305, 306], "pad_token_id": None}
    source = edited(
        family("llama").path, tmp_path / "source", ("tokenizer", "special", "chat"),
        config=ids, generation_config=ids | {"eos_token_id": [305, 611]},
    )  # fmt: skip
    gguf, back = crossed_both_ways(source)
    assert ask(gguf, ("logits", [3, 4, 5]))[0].shape[0] == 3
    for load in (AutoConfig, GenerationConfig):
        before, after = (load.from_pretrained(path) for path in (source, back))
        assert {key: getattr(after, key) for key in ids} == {
            key: getattr(before, key) for key in ids
        }


def test_a_gguf_without_a_tokenizer_has_no_ids_of_another_model(
    family: Callable[[str], families.Made],
    crossed_both_ways: Callable[[Path], tuple[Path, Path]],
    tmp_path: Path,
) -> None:
    none = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    source = edited(
        family("llama").path, tmp_path / "source",
        ("tokenizer", "special", "chat", "generation"), config=none,
    )  # fmt: skip
    _, back = crossed_both_ways(source)
    after = AutoConfig.from_pretrained(back)
    assert {key: getattr(after, key) for key in none} == none
    assert not (back / "generation_config.json").exists()
