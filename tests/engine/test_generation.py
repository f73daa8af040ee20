"""Generation of tokens with a cache of keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import each
from lazy import torch, transformers
from tiny import write
from weightctl import DeviceRef, DType, convert, open_weights
from weightctl.engine import Generation, generate
from weightctl.errors import ArchitectureError, EngineError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from families import Made

PROMPT = [[3, 17, 40, 9, 11], [5, 5, 60, 2, 30]]
CPU = DeviceRef.CPU()


@pytest.fixture
def llama(family: Callable[[str], Made]) -> Path:
    return family("llama").path


def in_transformers(path: Path, count: int) -> Any:
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    found = model.generate(
        torch.tensor(PROMPT), max_new_tokens=count, do_sample=False, eos_token_id=None
    )
    return found[:, len(PROMPT[0]) :].numpy()


def test_the_tokens_are_those_of_transformers(llama: Path) -> None:
    found = generate(open_weights(llama), PROMPT, 12)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, in_transformers(llama, 12))
    alone = generate(open_weights(llama), PROMPT[1], 12)
    np.testing.assert_array_equal(alone, found[1])


@each("options", [{"devices": [CPU, CPU]}, {"resident": False}], ids=["two ranks", "streamed"])
def test_ranks_and_streamed_weights_give_the_same_tokens(
    llama: Path, options: dict[str, Any]
) -> None:
    tree = open_weights(llama)
    np.testing.assert_array_equal(generate(tree, PROMPT, 6, **options), generate(tree, PROMPT, 6))


def test_blocks_and_bfloat16_read_a_text_piece_by_piece(llama: Path, tmp_path: Path) -> None:
    convert(llama, tmp_path / "small.gguf", quant="Q8_0")
    for dtype, close in ((DType.float32, 1e-4), (DType.bfloat16, 0.5)):
        reading = Generation(open_weights(tmp_path / "small.gguf"), dtype=dtype)
        ids = np.array(PROMPT)
        whole = reading.read(ids)
        reading.forget()
        for column in range(ids.shape[1]):
            logits = reading.read(ids[:, column : column + 1])
        assert reading.length == ids.shape[1]
        assert logits.dtype == np.float32
        assert abs(logits - whole).max() < close


def test_the_caller_can_choose_the_tokens(llama: Path) -> None:
    def least_likely(logits: Any) -> Any:
        assert logits.shape[0] == 2
        return logits.argmin(-1)

    tree = open_weights(llama)
    found = generate(tree, PROMPT, 3, choose=least_likely)
    assert (found != generate(tree, PROMPT, 3)).all(0)[0]
    assert generate(tree, PROMPT, 0).shape == (2, 0)
    with pytest.raises(EngineError, match=r"returned an array of shape \[1\]"):
        generate(tree, PROMPT, 1, choose=lambda _: [4])


@each(
    "tokens, says",
    [([], "float64 of shape"), ([[1.5]], "integers"), ([[[1]]], "one or two dimensions")],
)
def test_tokens_must_be_ids(llama: Path, tokens: Any, says: str) -> None:
    with pytest.raises(EngineError, match=says):
        generate(open_weights(llama), tokens, 1)


def test_unusable_counts_and_texts_are_refused(llama: Path) -> None:
    tree = open_weights(llama)
    with pytest.raises(EngineError, match="tokens to generate is -1"):
        generate(tree, PROMPT, -1)
    reading = Generation(tree)
    with pytest.raises(EngineError, match="no tokens to read"):
        reading.read(np.zeros((1, 0), np.int64))
    reading.read(np.array(PROMPT))
    with pytest.raises(EngineError, match="batch"):
        reading.read(np.array([[1]]))


def test_models_that_do_not_continue_a_text_are_refused(family: Callable[[str], Made]) -> None:
    with pytest.raises(ArchitectureError, match="do not continue a text"):
        Generation(open_weights(family("bert").path))


def test_a_model_for_diffusion_of_texts_does_not_continue_them(tmp_path: Path) -> None:
    path = write(tmp_path / "dream", "dream")
    with pytest.raises(ArchitectureError, match="do not continue a text"):
        Generation(open_weights(path))
