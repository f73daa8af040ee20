"""A GGUF that llama.cpp runs becomes a directory that transformers runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

import families
from family_tokenizers import TEXT
from likelihoods import cosines, log_softmax
from llama_cpp import ask
from weightctl import open_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize("name", families.CAUSAL)
def test_transformers_says_what_llama_cpp_says(
    name: str,
    family: Callable[[str], families.Made],
    llama_output: Callable[[str], families.Said],
    back: Callable[..., Path],
) -> None:
    made, expected = family(name), llama_output(name)
    model = AutoModelForCausalLM.from_pretrained(
        back(name), dtype=torch.float32, attn_implementation="eager"
    )
    assert families.greedy(model, made.prompt) == expected.follows
    found = families.log_probabilities(model, made.tokens)
    wanted = log_softmax(expected.numbers)
    chosen = np.arange(families.PROMPT, len(made.tokens)) - 1, made.follows
    assert np.abs(found - wanted)[chosen].max() < 2e-2
    assert np.abs(found - wanted)[wanted > np.log(1e-3)].max() < 5e-2


def test_transformers_makes_the_embeddings_that_llama_cpp_makes(
    family: Callable[[str], families.Made],
    llama_output: Callable[[str], families.Said],
    back: Callable[..., Path],
) -> None:
    model = AutoModel.from_pretrained(back("bert"), dtype=torch.float32)
    with torch.inference_mode():
        found = model(torch.tensor([family("bert").prompt])).last_hidden_state[0].numpy()
    assert cosines(found, llama_output("bert").numbers).min() > 0.9999


@pytest.mark.parametrize("name", families.FAMILIES)
def test_tokenizers_agree(
    name: str, llama_output: Callable[[str], families.Said], back: Callable[..., Path]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(back(name))
    expected = llama_output(name)
    text = families.FAMILIES[name].text
    assert tokenizer(text)["input_ids"] == expected.tokens
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == expected.plain_tokens


SPECIAL = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


# The first is for blocks, which the output does not have; the second for SentencePiece.
MEANINGLESS = {"general.quantization_version", "tokenizer.ggml.add_space_prefix"}


@pytest.fixture(scope="module")
def smollm2_directory(smollm2: Path, converted: Callable[..., Path]) -> Path:
    return converted(smollm2, "smollm2-hf", "--dtype", "f32")


@pytest.mark.real
def test_smollm2_says_in_transformers_what_it_says_in_llama_cpp(
    smollm2_directory: Path, converted: Callable[..., Path]
) -> None:
    again = converted(smollm2_directory, "smollm2-again.gguf")
    tokenizer = AutoTokenizer.from_pretrained(smollm2_directory)
    prompt = tokenizer("The capital of France is")["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(smollm2_directory, dtype=torch.float32)
    model.generation_config.eos_token_id = None  # continue after the end, as in llama.cpp here
    every = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=32)[0].tolist()
    follows, logits, tokens, text, special = ask(
        again,
        ("generate", prompt, 32),
        ("logits", every),
        ("tokenize", TEXT),
        ("detokenize", tokenizer(TEXT)["input_ids"]),
        ("tokenize", SPECIAL),
    )
    assert follows == every[len(prompt) :]
    chosen = np.arange(len(prompt), len(every))
    found = log_softmax(logits)[chosen - 1, follows]
    expected = families.log_probabilities(model, every)[chosen - 1, follows]
    assert np.abs(found - expected).max() < 2e-2
    assert "Paris" in tokenizer.decode(follows)
    assert tokenizer(TEXT)["input_ids"] == tokens
    assert tokenizer.decode(tokens) == text
    assert tokenizer(SPECIAL)["input_ids"] == special


@pytest.mark.real
def test_smollm2_goes_to_hugging_face_and_back_without_a_change(
    smollm2: Path, smollm2_directory: Path, converted: Callable[..., Path]
) -> None:
    direct = open_weights(converted(smollm2, "smollm2-f32.gguf", "--dtype", "f32"))
    again = open_weights(converted(smollm2_directory, "smollm2-again.gguf"))
    assert dict(again.items()).keys() == dict(direct.items()).keys()
    for name, node in direct.items():
        assert node.data().view() == again[name].data().view(), name
    expected, found = dict(direct.metadata), dict(again.metadata)
    assert expected.keys() - found.keys() == MEANINGLESS
    assert {key: found[key] for key in expected.keys() - MEANINGLESS} == {
        key: expected[key] for key in expected.keys() - MEANINGLESS
    }
