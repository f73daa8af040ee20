"""Whole models give what transformers gives, from every format and either naming convention."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
from gguf import quants

import small_models
from arrays import weights_of
from each import each
from lazy import torch, transformers
from real_files import fetch
from rows import in_blocks
from runs import executed, graph_of
from small_models import checkpoint, logits, tokens_below
from weightctl import DeviceRef, DType, QuantizationEncoding, WeightData, open_weights
from weightctl.errors import EngineError, GraphError
from weightctl.families import recognize
from weightctl.graph import ops
from weightctl.nn import Linear
from weightctl.nn.models import build_network
from weightctl.nn.models.decoder import Decoder
from weightctl.weights.from_arrays import as_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from weightctl import Weights
    from weightctl.families import RecognizedModel
    from weightctl.graph import Value
    from weightctl.nn.models.network import Network

    Floats = NDArray[np.float32]


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

    config = transformers.LlamaConfig(
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
        model = transformers.LlamaForCausalLM(config).eval()
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


@pytest.mark.long
@pytest.mark.real
def test_smollm2_from_its_blocks(smollm2: Path) -> None:
    tokens = tokens_below(49152)
    assert_same(run(open_weights(smollm2), tokens), logits(read_llama(smollm2), tokens))


SENTENCES = ["A cat sat on the mat.", "Weights are numbers, and models are made of them.", "Yes!"]


@pytest.fixture(scope="module")
def encoded(minilm: Path) -> tuple[Any, Floats]:
    inputs = transformers.AutoTokenizer.from_pretrained(minilm)(
        SENTENCES, padding=True, return_tensors="np"
    )
    del inputs["token_type_ids"]
    given = {name: torch.from_numpy(array) for name, array in inputs.items()}
    with torch.inference_mode():
        states = transformers.BertModel.from_pretrained(minilm)(**given).last_hidden_state.numpy()
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
    model = transformers.LlamaForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
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
    with torch.no_grad():
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
    expected = model(*given).last_hidden_state.detach().numpy()
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
    config = transformers.MistralConfig(**{name: sizes[name] for name in kept}, sliding_window=8)
    torch.manual_seed(6)
    model, tokens = transformers.MistralForCausalLM(config).eval(), tokens_below(96)
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


# Whole models beside their logits: what they share, what else they take, and where they run.


MAKERS = {"llama": small_models.llama, "bert": small_models.bert, "gpt2": small_models.gpt2}


def compute(found: RecognizedModel, *inputs: Any, dtype: DType = DType.float32) -> NDArray[Any]:
    """Return what the whole model of a checkpoint gives."""
    (output,) = executed(build_network(found, dtype).graph(), *inputs, weights=found.weights)
    return output


def test_a_tied_llama_uses_one_weight_twice() -> None:
    graph = build_network(checkpoint(small_models.llama(tie_word_embeddings=True))).graph()
    assert "embedding.weight" in graph.weights_by_name
    assert "output.weight" not in graph.weights_by_name


def test_a_bert_tells_token_types_apart_where_they_are_given() -> None:
    model, tokens = small_models.bert(), tokens_below(96, 2, 6)
    types = np.array([[0, 0, 0, 1, 1, 1]] * 2)
    with torch.inference_mode():
        states = model(torch.from_numpy(tokens), token_type_ids=torch.from_numpy(types))
    found = checkpoint(model)
    module = build_network(found)
    graph = graph_of(module, [module.input_types()[0]] * 3)
    (ours,) = executed(graph, tokens, np.ones_like(tokens), types, weights=found.weights)
    assert np.abs(ours - states.last_hidden_state.numpy()).max() < 1e-4
    assert np.abs(ours - compute(found, tokens, np.ones_like(tokens))).max() > 1e-3


def test_more_tokens_than_a_gpt2_has_positions_for_are_refused() -> None:
    found = checkpoint(small_models.gpt2())
    with pytest.raises(EngineError):
        compute(found, tokens_below(96, 1, 65))


def rounded(model: Any, dtype: torch.dtype) -> Any:
    """The model with other weights; `Module.to` would round its rotary frequencies too."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


@each("name", ["bfloat16", "float16"])
def test_a_narrow_llama_is_as_near_to_float32_as_that_of_transformers(name: str) -> None:
    model, tokens = rounded(small_models.llama(), getattr(torch, name)), tokens_below(96, 2, 20)
    ours = compute(checkpoint(model), tokens, dtype=DType[name])
    assert ours.dtype.name == name
    narrow = logits(model, tokens)
    exact = logits(rounded(model, torch.float32), tokens)
    theirs = np.abs(narrow - exact).max()
    assert 0 < np.abs(ours.astype(np.float32) - exact).max() < 1.5 * theirs


@each("count", [1, 3])
def test_one_graph_serves_every_batch_and_length(count: int) -> None:
    model, tokens = small_models.llama(), tokens_below(96, count, 7 * count)
    found = checkpoint(model)
    module = build_network(found)
    graph = module.graph("any")
    assert graph.name == "any"
    assert [str(kind) for kind in module.input_types()] == ["int64[batch, seq]"]
    assert str(graph.outputs[0].type) == "float32[batch, seq, 96]"
    (ours,) = executed(graph, tokens, weights=found.weights)
    assert np.abs(ours - logits(model, tokens)).max() < 1e-4


def test_the_weights_of_the_models_have_their_canonical_names() -> None:
    config: Any = checkpoint(small_models.llama()).config
    llama = Decoder(replace(config, layers=1, tied=True, has_rope_factors=True))
    assert sorted(llama.raw_state_dict()) == [
        "embedding.weight",
        *(f"layers.0.attention.{name}.weight" for name in "koqv"),
        "layers.0.attention_norm.weight",
        *(f"layers.0.mlp.{name}.weight" for name in ("down", "gate", "up")),
        "layers.0.mlp_norm.weight",
        "norm.weight",
        "rope_factors.weight",
    ]


def quantized() -> tuple[RecognizedModel, RecognizedModel]:
    """Return a tied llama whose matrices are blocks, and one of the numbers in them."""
    model = small_models.llama(tie_word_embeddings=True)
    blocks: dict[str, WeightData] = {}
    numbers = small_models.arrays(model)
    for name, array in numbers.items():
        blocks[name] = WeightData.from_numpy(array, name)
        if array.ndim == 2:
            blocks[name], numbers[name] = in_blocks(array, QuantizationEncoding.Q8_0, name)
    document = model.config.to_dict()
    return recognize(as_checkpoint(blocks), document), recognize(weights_of(numbers), document)


def test_a_quantized_llama_equals_the_dequantized_one_up_to_rounding() -> None:
    tokens, (blocks, numbers) = tokens_below(96, 1, 8), quantized()
    nodes = build_network(blocks).graph().nodes
    assert sum(node.op == "dequantize" for node in nodes) == 2 * 7 + 1
    # The kernels add products in another order than torch.
    made, wanted = compute(blocks, tokens), compute(numbers, tokens)
    assert np.allclose(made, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


class WithSubgraph(Decoder):
    """A llama whose graph holds its layers once."""

    def __call__(self, tokens: Value) -> Value:
        x = self.embedding(tokens, self.dtype)
        cos, sin = self.rope(ops.range(tokens.shape[1]))
        layer = self.layers[0].build_subgraph(
            "layer", [x.type, cos.type, sin.type], weight_prefix="layers.0."
        )
        for number in range(len(self.layers)):
            (x,) = ops.call(layer, x, cos, sin, prefix=f"layers.{number}.")
        return self.output(self.norm(x))


def test_layers_called_as_a_subgraph_give_the_same_logits() -> None:
    found, tokens = checkpoint(small_models.llama()), tokens_below(96, 2, 20)
    config: Any = found.config
    graph = WithSubgraph(config).graph()
    assert sum(node.op == "attention" for node in graph.nodes) == 0
    (called,) = executed(graph, tokens, weights=found.weights)
    assert np.array_equal(called, compute(found, tokens))


def with_rope_factors() -> Network:
    config: Any = checkpoint(small_models.llama()).config
    return Decoder(replace(config, has_rope_factors=True))


MODULES: dict[str, Callable[[], Network]] = {
    **{name: lambda make=make: build_network(checkpoint(make())) for name, make in MAKERS.items()},
    "rope factors": with_rope_factors,
}


def elsewhere(module: Network) -> list[str]:
    """Return what stays on the processor of a model that is put on a GPU."""
    module.to(DeviceRef.GPU(0))
    return [
        f"{node.op} {value.dtype.value}"
        for node in module.graph().nodes
        for value in node.outputs
        if value.device != DeviceRef.GPU(0)
    ]


@each("name", MODULES)
def test_a_model_put_on_a_gpu_is_computed_there_as_a_whole(name: str) -> None:
    assert elsewhere(MODULES[name]()) == []


def test_a_quantized_model_put_on_a_gpu_is_there_as_a_whole() -> None:
    # The engine decodes the blocks on the processor, and moves the numbers.
    assert elsewhere(build_network(quantized()[0])) == []


def test_what_does_not_fit_is_reported_with_the_path_of_its_layer() -> None:
    module: Any = build_network(checkpoint(small_models.llama()))
    module.layers[1].mlp.down = Linear(64, 64)
    with pytest.raises(GraphError, match=r"96.*in layers\.1\.mlp\.down"):
        module.graph()
