"""A model that transformers saved and weightctl converted to GGUF is the same in llama.cpp."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import families
from family_tokenizers import WHOLE
from likelihoods import cosines, log_softmax
from llama_cpp import ask

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NO_POOLING = 0


@pytest.mark.parametrize("name", families.CAUSAL)
def test_llama_cpp_says_what_transformers_says(
    name: str, family: Callable[[str], families.Made], llama_output: Callable[[str], families.Said]
) -> None:
    made, found = family(name), llama_output(name)
    assert found.follows == made.follows
    difference = np.abs(log_softmax(found.numbers) - made.expected)
    chosen = np.arange(families.PROMPT, len(made.tokens)) - 1, made.follows
    assert difference[chosen].max() < 2e-2
    # Also all likely tokens at other places; llama.cpp uses a float16 table for GELU.
    assert difference[made.expected > np.log(1e-3)].max() < 5e-2


def test_llama_cpp_makes_the_embeddings_that_transformers_makes(
    family: Callable[[str], families.Made], llama_output: Callable[[str], families.Said]
) -> None:
    assert cosines(llama_output("bert").numbers, family("bert").expected).min() > 0.9999


@pytest.mark.parametrize("name", families.FAMILIES)
def test_llama_cpp_cuts_text_into_the_tokens_of_the_checkpoints_own_tokenizer(
    name: str, family: Callable[[str], families.Made], llama_output: Callable[[str], families.Said]
) -> None:
    tokenizer, found = AutoTokenizer.from_pretrained(family(name).path), llama_output(name)
    text = families.FAMILIES[name].text
    assert found.tokens == tokenizer(text)["input_ids"]
    assert found.plain_tokens == tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.fixture(scope="module")
def minilm_directory(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MiniLM with its pooling config, which is in a subdirectory."""
    directory = tmp_path_factory.mktemp("minilm") / "all-MiniLM-L6-v2"
    shutil.copytree(minilm, directory)
    (directory / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 384, "pooling_mode_mean_tokens": True}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return directory


@pytest.mark.real
def test_minilm_makes_the_embeddings_in_llama_cpp_that_it_makes_in_transformers(
    minilm_directory: Path, converted: Callable[..., Path]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(minilm_directory)
    tokens = tokenizer(WHOLE)["input_ids"]
    model = AutoModel.from_pretrained(minilm_directory)
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).last_hidden_state[0].numpy()
    made = converted(minilm_directory, "minilm.gguf")
    found, of_llama = ask(made, ("embeddings", tokens), ("tokenize", WHOLE), pooling=NO_POOLING)
    assert of_llama == tokens
    assert cosines(found, expected).min() > 0.9999
    # The file defines the pooling of the embeddings.
    (pooled,) = ask(made, ("embeddings", tokens))
    assert pooled.shape == (384,)
    assert cosines(pooled, expected.mean(0)) > 0.9999
