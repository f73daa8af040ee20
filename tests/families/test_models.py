"""Whole models beside their logits: what they share, what else they take, and where they run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import small_models
from arrays import weights_of
from each import each
from rows import in_blocks
from runs import executed, graph_of
from small_models import checkpoint, logits, tokens_below
from weightctl import DeviceRef, DType, QuantizationEncoding, WeightData
from weightctl.errors import EngineError, GraphError
from weightctl.families import recognize
from weightctl.graph import ops
from weightctl.nn import Linear
from weightctl.nn.models import build_network
from weightctl.nn.models.decoder import Decoder
from weightctl.weights.from_arrays import as_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from weightctl.families import RecognizedModel
    from weightctl.graph import Value
    from weightctl.nn.models.network import Network

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
