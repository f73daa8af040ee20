"""Whole models give what transformers gives, from every format and either naming convention."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
import torch
from gguf import quants
from transformers import AutoTokenizer, BertModel, LlamaConfig, LlamaForCausalLM, MistralConfig
from transformers import MistralForCausalLM as Mistral

import small_models
from each import each
from real_files import fetch
from runs import executed
from small_models import logits, tokens_below
from weightctl import DType, open_weights
from weightctl.families.recognition import recognize
from weightctl.nn.models import build_network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from weightctl import Weights

    Floats = NDArray[np.float32]


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def run(weights: Weights, *inputs: NDArray[Any], config: dict[str, Any] | None = None) -> Floats:
    """Return what the whole model of a checkpoint says, in float32."""
    checkpoint = recognize(weights, config)
    (output,) = executed(build_network(checkpoint).graph(), *inputs, weights=checkpoint.weights)
    return output


def assert_same(found: Floats, expected: Floats, tolerance: float = 1e-3) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < tolerance
    assert (found.argmax(-1) == expected.argmax(-1)).all()


def read_llama(path: Path) -> Any:
    """Return transformers' llama of a GGUF file, dequantized and renamed by gguf's own code."""
    reader = gguf.GGUFReader(path)

    def read_key(key: str) -> Any:
        return reader.fields[f"llama.{key}"].contents()

    config = LlamaConfig(
        vocab_size=read_key("vocab_size"),
        hidden_size=read_key("embedding_length"),
        intermediate_size=read_key("feed_forward_length"),
        num_hidden_layers=read_key("block_count"),
        num_attention_heads=read_key("attention.head_count"),
        num_key_value_heads=read_key("attention.head_count_kv"),
        rms_norm_eps=read_key("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": read_key("rope.freq_base")},
        tie_word_embeddings=True,
    )
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    stored = {}
    for tensor in reader.tensors:
        array = quants.dequantize(tensor.data, tensor.tensor_type)
        part = tensor.name.split(".")[-2]
        if part in heads:
            # As transformers' own reader of GGUF does it.
            pairs = array.reshape(heads[part], -1, 2, array.shape[-1])
            array = pairs.swapaxes(2, 1).reshape(array.shape)
        stored[tensor.name] = torch.from_numpy(np.require(array, requirements=["C", "W"]))
    with torch.device("meta"):
        model = LlamaForCausalLM(config).eval()
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    state = {
        name: stored[table.get_name(name, (".weight",)) or ""]
        for name in model.state_dict()
        if name != "lm_head.weight"
    }
    missing, unexpected = model.load_state_dict(state, strict=False, assign=True)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model


@pytest.mark.real
def test_smollm2_from_its_blocks(smollm2: Path) -> None:
    tokens = tokens_below(49152)
    assert_same(run(open_weights(smollm2), tokens), logits(read_llama(smollm2), tokens))


SENTENCES = ["A cat sat on the mat.", "Weights are numbers, and models are made of them.", "Yes!"]


@pytest.fixture(scope="module")
def encoded(minilm: Path) -> tuple[Any, Floats]:
    inputs = AutoTokenizer.from_pretrained(minilm)(SENTENCES, padding=True, return_tensors="np")
    del inputs["token_type_ids"]
    given = {name: torch.from_numpy(array) for name, array in inputs.items()}
    with torch.inference_mode():
        states = BertModel.from_pretrained(minilm)(**given).last_hidden_state.numpy()
    return inputs, pooled(states, inputs["attention_mask"])


def pooled(states: Floats, mask: NDArray[np.int64]) -> Floats:
    """Return the mean of each sentence's states, of length 1."""
    means = (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return means / np.linalg.norm(means, axis=-1, keepdims=True)


@pytest.mark.real
@each("form", ["safetensors", "bin"])
def test_minilm_from_either_format(form: str, minilm: Path, encoded: tuple[Any, Floats]) -> None:
    inputs, expected = encoded
    path = minilm if form == "safetensors" else fetch("minilm-pytorch") / "pytorch_model.bin"
    config = None if form == "safetensors" else json.loads((minilm / "config.json").read_text())
    mask = inputs["attention_mask"]
    found = run(open_weights(path), inputs["input_ids"], mask, config=config)
    assert ((pooled(found, mask) * expected).sum(-1) > 0.99999).all()


def test_tiny_llama(tiny_llama: Path) -> None:
    tokens = tokens_below(512)
    model = LlamaForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    assert_same(run(open_weights(tiny_llama), tokens), logits(model, tokens))


def test_tiny_llama_in_bfloat16_says_nearly_the_same(tiny_llama: Path) -> None:
    checkpoint, tokens = recognize(open_weights(tiny_llama)), tokens_below(512)
    graph = build_network(checkpoint, DType.bfloat16).graph()
    (output,) = executed(graph, tokens, weights=checkpoint.weights)
    assert output.dtype.name == "bfloat16"
    expected = run(open_weights(tiny_llama), tokens)
    assert np.abs(output.astype(np.float32) - expected).mean() < 0.1


def save(model: Any, form: str, directory: Path) -> Path:
    """Write a model whose numbers are those of bfloat16, in one of the forms it may have."""
    model.config.save_pretrained(directory)
    kind = model.config.model_type
    if form == "gguf":
        path = directory / "model.gguf"
        small_models.write_gguf(path, kind, model.config, small_models.arrays(model))
        return path
    if form == "bin":
        torch.save(model.state_dict(), directory / "pytorch_model.bin")
    else:
        # Of a copy, since that casts the frequencies of its rotations too.
        deepcopy(model).to(getattr(torch, form)).save_pretrained(directory)
    return directory


FORMS = ["float32", "bfloat16", "bin", "gguf"]


def in_bfloat16(model: Any) -> Any:
    for parameter in model.parameters():
        parameter.copy_(parameter.bfloat16())
    return model


@each("form", FORMS)
@each("make", [small_models.llama, small_models.gpt2], ids=["llama", "gpt2"])
def test_a_small_model_from_every_form(make: Callable[..., Any], form: str, tmp_path: Path) -> None:
    model, tokens = in_bfloat16(make()), tokens_below(96)
    found = run(open_weights(save(model, form, tmp_path)), tokens)
    assert_same(found, logits(model, tokens), 1e-4)


@each("form", FORMS)
def test_a_small_bert_from_every_form(form: str, tmp_path: Path) -> None:
    model, tokens = in_bfloat16(small_models.bert()), tokens_below(96).reshape(4, 16)
    mask = np.arange(16) < np.array([[16], [9], [1], [12]])
    given = torch.from_numpy(tokens), torch.from_numpy(mask.astype(np.int64))
    expected = model(*given).last_hidden_state.numpy()
    found = run(open_weights(save(model, form, tmp_path)), tokens, mask.astype(np.int64))
    assert np.abs(found - expected)[mask].max() < 1e-4


SCALED = {"rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
VARIATIONS: dict[str, dict[str, Any]] = {
    "biases": {"attention_bias": True, "mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
    "all heads": {"num_key_value_heads": 4},
    "one head": {"num_key_value_heads": 1},
    "wide heads": {"head_dim": 32},
    "gelu": {"hidden_act": "gelu_new"},
    "fast": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
    "llama3": {"rope_parameters": SCALED | {
        "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}},
    "yarn": {"rope_parameters": SCALED | {"rope_type": "yarn"}},
}  # fmt: skip


@each("variation", VARIATIONS)
def test_the_variations_of_llama(variation: str, tmp_path: Path) -> None:
    model, tokens = small_models.llama(**VARIATIONS[variation]), tokens_below(96)
    found = run(open_weights(save(model, "float32", tmp_path)), tokens)
    assert_same(found, logits(model, tokens), 1e-4)


@each("variation", ["biases", "tied", "all heads", "llama3", "yarn", "linear"])
def test_the_variations_of_llama_in_gguf(variation: str, tmp_path: Path) -> None:
    model, tokens = small_models.llama(**VARIATIONS[variation]), tokens_below(96)
    found = run(open_weights(save(model, "gguf", tmp_path)), tokens)
    assert_same(found, logits(model, tokens), 1e-4)


def test_mistral_sees_no_further_than_its_window(tmp_path: Path) -> None:
    sizes = small_models.llama().config.to_dict()
    kept = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
            "num_attention_heads", "num_key_value_heads", "max_position_embeddings")  # fmt: skip
    config = MistralConfig(**{name: sizes[name] for name in kept}, sliding_window=8)
    torch.manual_seed(6)
    model, tokens = Mistral(config).eval(), tokens_below(96)
    found = run(open_weights(save(model, "float32", tmp_path)), tokens)
    assert_same(found, logits(model, tokens), 1e-4)
    model.config.sliding_window = None
    assert np.abs(found - logits(model, tokens)).max() > 1e-3


def test_a_gpt2_with_an_output_of_its_own(tmp_path: Path) -> None:
    model, tokens = small_models.gpt2(tie_word_embeddings=False), tokens_below(96)
    for form in ("float32", "gguf"):
        directory = tmp_path / form
        directory.mkdir()
        found = run(open_weights(save(model, form, directory)), tokens)
        assert_same(found, logits(model, tokens), 1e-4)


def test_a_gpt2_that_was_trained_with_its_scores_in_float32(tmp_path: Path) -> None:
    # In transformers it scales the keys, not the scores, which is the same but for rounding.
    model = small_models.gpt2(reorder_and_upcast_attn=True, attn_implementation="eager")
    tokens = tokens_below(96)
    found = run(open_weights(save(model, "float32", tmp_path)), tokens)
    assert_same(found, logits(model, tokens), 1e-4)
