"""The snippets of the documents on `Weight`, `Weights` and `WeightData`, with their outcomes.

Imports are ours; what a snippet leaves out (`...`, the checkpoint it opens) is filled in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from build import safetensors_of
from llama_cpp import ggml_quantize
from weightctl import Buffer, DType, QuantizationEncoding, Shape, WeightData, Weights, open_weights
from weightctl.device import DeviceRef
from weightctl.engine import InferenceSession
from weightctl.graph import Graph, TensorType, TensorValue, Weight, ops
from weightctl.weights.from_arrays import as_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from weightctl.graph import Value

LAYER = "transformer.layers.0"


@pytest.fixture
def weights(tmp_path: Path) -> Weights:
    ones = np.ones((768, 768), "<f4").tobytes()
    tensors = {
        "model.layers.0.weight": ("F32", (768, 768), ones),
        "model.layer.weight": ("F32", (2, 2), np.arange(4, dtype="<f4").tobytes()),
        "model.embeddings.weight": ("F32", (2, 3), np.arange(6, dtype="<f4").tobytes()),
        f"{LAYER}.mlp.weight": ("F16", (2, 4), bytes(16)),
        f"{LAYER}.attention.weight": ("F32", (2, 2), bytes(16)),
        "transformer.layers.10.mlp.weight": ("F16", (2, 4), bytes(16)),
    }
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_of(tensors))
    return open_weights(path)


# Weight


def test_the_dtype_of_a_constant_prints_as_documented(capsys: pytest.CaptureFixture[str]) -> None:
    matrix = np.array([[1, 2], [3, 4]], dtype=np.float32)

    # Create a Graph context to work with tensors
    with Graph("dtype_demo"):
        # Create a constant tensor from the matrix
        tensor = ops.constant(matrix, dtype=DType.float32, device=DeviceRef.CPU())

        # Access tensor data type
        print(f"Data type: {tensor.dtype}")  # Output: DType.float32
    assert capsys.readouterr().out == "Data type: DType.float32\n"


def test_the_shape_of_a_constant_prints_as_documented(capsys: pytest.CaptureFixture[str]) -> None:
    matrix = np.array([[1, 2], [3, 4]], dtype=np.float32)

    # Create a Graph context to work with tensors
    with Graph("shape_demo"):
        # Create a constant tensor from the matrix
        tensor = ops.constant(matrix, dtype=DType.float32, device=DeviceRef.CPU())

        # Access tensor shape
        print(f"Shape: {tensor.shape}")  # Shape: [Dim(2), Dim(2)]
    assert capsys.readouterr().out == "Shape: [Dim(2), Dim(2)]\n"


def test_a_weight_is_a_tensor_value_with_all_that_is_documented_of_it() -> None:
    weight = Weight("w", DType.float32, (5, 10), DeviceRef.GPU(1), align=64)
    assert isinstance(weight, TensorValue)
    assert (weight.name, weight.dtype, weight.shape) == ("w", DType.float32, [5, 10])
    assert isinstance(weight.shape, Shape)
    assert (weight.device, weight.align) == (DeviceRef.GPU(1), 64)
    assert weight.quantization_encoding is None
    assert weight.shard_idx is None
    assert weight.sharding_strategy is None
    assert weight.original_dtype_and_shape == (DType.float32, [5, 10])


def test_the_original_dtype_and_shape_of_a_quantized_weight_are_kept_beside_its_bytes() -> None:
    weight = Weight("w", DType.float32, (2, 512), quantization_encoding=QuantizationEncoding.Q4_K)
    assert weight.original_dtype_and_shape == (DType.float32, [2, 512])
    assert (weight.dtype, weight.shape) == (DType.uint8, [2, 288])


def test_weights_made_outside_of_a_graph_are_added_to_it_when_they_are_used() -> None:
    weight = Weight("w", DType.float32, (3, 2))
    with Graph("lazy", [TensorType(DType.float32, ("batch", 2))]) as graph:
        assert graph.weights_by_name == {}
        result = graph.inputs[0] @ weight.T
    assert graph.weights_by_name == {"w": weight}
    assert result.shape == ["batch", 3]


def test_the_same_weight_may_be_used_twice_and_two_of_one_name_may_not() -> None:
    weight = Weight("w", DType.float32, (2,))
    with Graph("twice") as graph:
        assert (weight + weight).shape == [2]
        assert [node.op for node in graph.nodes].count("weight") == 1
        with pytest.raises(ValueError, match="two weights of graph `twice` are named `w`"):
            graph.add_weight(Weight("w", DType.float32, (2,)))


def test_a_weight_that_is_used_without_a_graph_is_an_error() -> None:
    weight = Weight("w", DType.float32, (2, 2))
    with pytest.raises(ValueError, match="no graph is open"):
        weight + 1
    with pytest.raises(ValueError, match="no graph is open"):
        _ = weight.T
    with Graph("left"):
        pass
    with pytest.raises(ValueError, match="no graph is open"):
        ops.matmul(weight, weight)


DEVICES = [DeviceRef.GPU(0), DeviceRef.GPU(1)]


@dataclass
class Halves:
    """A strategy that gives each device its part of the first axis."""

    devices: int = 2

    def shard(self, weight: Weight, number: int, device: DeviceRef) -> Weight:
        rows, *rest = weight.shape.sizes
        made = Weight(weight.name, weight.dtype, (rows // self.devices, *rest), device)
        made.shard_idx = number
        return made


def test_a_weight_without_a_sharding_strategy_cannot_be_sharded() -> None:
    with pytest.raises(ValueError, match="`w` has no sharding_strategy"):
        Weight("w", DType.float32, (4, 2)).shard(DEVICES)


def test_shards_are_weights_one_for_each_device_and_cannot_be_sharded_further() -> None:
    weight = Weight("w", DType.float32, (4, 2), sharding_strategy=Halves())
    shards = weight.shard(DEVICES)
    assert all(isinstance(shard, Weight) for shard in shards)
    assert [shard.device for shard in shards] == DEVICES
    assert [shard.shard_idx for shard in shards] == [0, 1]
    shards[0].sharding_strategy = Halves()
    with pytest.raises(ValueError, match="is already a shard and cannot be sharded again"):
        shards[0].shard(DEVICES)


# Weights


def test_the_weights_of_a_graph_are_named_by_their_place() -> None:
    graph = Graph("my_model")
    weights = graph.weights()
    # Allocate weights with hierarchical naming
    attn_weight = weights.transformer.layers[0].attention.weight.allocate(
        dtype=DType.float32, shape=(768, 768)
    )
    # Creates weight named "transformer.layers.0.attention.weight"
    assert attn_weight.name == "transformer.layers.0.attention.weight"
    assert (attn_weight.dtype, attn_weight.shape) == (DType.float32, [768, 768])

    # Check if a weight exists before allocating
    mlp_weight: Weight | None = None
    if weights.transformer.layers[0].mlp.weight.exists():
        mlp_weight = weights.transformer.layers[0].mlp.weight.allocate(
            dtype=DType.float16, shape=(768, 3072)
        )
    assert mlp_weight is None
    assert weights.allocated_weights == {}


def test_a_weight_that_exists_is_allocated(weights: Weights) -> None:
    mlp_weight: Weight | None = None
    if weights.transformer.layers[0].mlp.weight.exists():
        mlp_weight = weights.transformer.layers[0].mlp.weight.allocate(
            dtype=DType.float16, shape=(2, 4)
        )
    assert mlp_weight is not None
    assert mlp_weight.dtype is DType.float16
    # Only those that were allocated, not all there are.
    assert list(weights.allocated_weights) == [f"{LAYER}.mlp.weight"]


def test_a_weight_is_allocated_for_a_device_and_added_to_a_graph(weights: Weights) -> None:
    graph = Graph("my_model")
    # Allocate a weight with specific configuration
    weight = weights.model.layers[0].weight.allocate(
        dtype=DType.float16,  # Convert to half precision
        shape=(768, 768),
        device=DeviceRef.GPU(0),  # Place on first GPU
    )
    # Add to graph
    with graph:
        weight_tensor: Value = graph.add_weight(weight)
    assert weight_tensor.type == TensorType(DType.float16, (768, 768), DeviceRef.GPU(0))
    assert isinstance(weight, Weight)
    data = weights.allocated_weights["model.layers.0.weight"]
    assert np.from_dlpack(data).dtype == np.float16


def test_what_is_not_given_to_allocate_is_as_it_was(weights: Weights) -> None:
    weight = weights.model.embeddings.weight.allocate()
    assert (weight.dtype, weight.shape, weight.device) == ((DType.float32, [2, 3], DeviceRef.CPU()))


def test_weights_may_be_allocated_in_another_encoding(weights: Weights) -> None:
    weight = weights.model.layers[0].weight.allocate(
        quantization_encoding=QuantizationEncoding.Q4_K
    )
    assert weight.quantization_encoding is QuantizationEncoding.Q4_K
    assert weight.original_dtype_and_shape == (DType.float32, [768, 768])


def test_data_comes_with_what_it_is(weights: Weights, capsys: pytest.CaptureFixture[str]) -> None:
    weight_data = weights.model.embeddings.weight.data()
    print(f"Shape: {weight_data.shape}")
    print(f"Dtype: {weight_data.dtype}")
    # Convert to different dtype
    fp16_data = weight_data.astype(DType.float16)
    assert capsys.readouterr().out == "Shape: [2, 3]\nDtype: DType.float32\n"
    assert (fp16_data.dtype, fp16_data.shape) == (DType.float16, [2, 3])


def test_data_of_what_does_not_exist_is_a_key_error(weights: Weights) -> None:
    with pytest.raises(KeyError):
        weights.model.classifier.weight.data()


def test_a_weight_that_does_not_exist_is_found_out_before_it_is_allocated(
    weights: Weights, capsys: pytest.CaptureFixture[str]
) -> None:
    if weights.model.classifier.weight.exists():
        weights.model.classifier.weight.allocate()
    else:
        print("Classifier weight not found")
    assert capsys.readouterr().out == "Classifier weight not found\n"


def test_items_are_those_of_one_layer(weights: Weights, capsys: pytest.CaptureFixture[str]) -> None:
    # Iterate through all weights in a specific layer
    for name, weight in weights.transformer.layers[0].items():
        print(f"Found weight: {name}")
        assert weight.exists()
    assert capsys.readouterr().out == (
        f"Found weight: {LAYER}.mlp.weight\nFound weight: {LAYER}.attention.weight\n"
    )


def test_the_name_of_a_place_is_how_one_came_there(weights: Weights) -> None:
    assert weights.model.layers[0].name == "model.layers.0"


# WeightData


def test_weight_data_is_a_dlpack_array_with_a_name_dtype_and_shape() -> None:
    array = np.ones((2, 3), np.float32)
    data = WeightData(array, "layer.weight", DType.float32, (2, 3))
    assert data.data is array
    assert (data.name, data.dtype, data.shape) == ("layer.weight", DType.float32, [2, 3])
    assert data.quantization_encoding is None
    assert isinstance(data.shape, Shape)
    assert np.array_equal(np.from_dlpack(data), array)


def test_astype_gives_a_new_instance_with_converted_numbers(weights: Weights) -> None:
    weight_data = weights.model.layer.weight.data()
    fp16_data = weight_data.astype(DType.float16)
    assert weight_data.dtype is DType.float32
    assert isinstance(fp16_data, WeightData)
    assert fp16_data.to_numpy().dtype == np.float16
    assert fp16_data.to_numpy().tolist() == [[0, 1], [2, 3]]


def test_astype_without_data_still_gives_the_target_dtype() -> None:
    # Documented of compiling where no GPU is: only the metadata matters then.
    made = WeightData.declared("w", DType.float32, (2, 2)).astype(DType.bfloat16)
    assert (made.dtype, made.shape) == (DType.bfloat16, [2, 2])


def test_from_numpy_takes_dtype_and_shape_of_the_array() -> None:
    data = WeightData.from_numpy(np.zeros((5, 10), np.float64), "w")
    assert (data.name, data.dtype, data.shape) == ("w", DType.float64, [5, 10])


def test_to_buffer_changes_the_data_into_a_buffer() -> None:
    data = WeightData(np.zeros((5, 10), np.float32), "w", DType.float32, (5, 10))
    buffer = data.to_buffer()
    assert isinstance(buffer, Buffer)
    assert data.data is buffer
    assert str(buffer) == "Buffer([5, 10])"


# What was allocated, when a graph runs


NUMBERS = np.random.default_rng(0).standard_normal((4, 256), np.float32)


def allocated_and_run(
    dtype: DType | None, encoding: QuantizationEncoding | None
) -> NDArray[np.float32]:
    tree = as_checkpoint({"a.w": WeightData.from_numpy(NUMBERS, "a.w")})
    weight = tree.a.w.allocate(dtype, quantization_encoding=encoding)
    with Graph("allocated") as graph:
        graph.output(weight + 0)
    (found,) = InferenceSession().load(graph, weights_registry=tree).execute()
    assert DType(found.to_numpy().dtype.name) is (dtype or DType.float32)
    return found.to_numpy().astype(np.float32)


@pytest.mark.parametrize("dtype", [None, DType.float16, DType.bfloat16, DType.float64], ids=str)
def test_an_engine_loads_numbers_of_the_dtype_they_were_allocated_in(dtype: DType | None) -> None:
    expected = WeightData.from_numpy(NUMBERS, "w").astype(dtype or DType.float32)
    assert np.array_equal(allocated_and_run(dtype, None), expected.to_numpy().astype(np.float32))


@pytest.mark.parametrize("dtype", [None, DType.bfloat16], ids=str)
def test_an_engine_loads_the_blocks_that_were_allocated(dtype: DType | None) -> None:
    blocks = ggml_quantize("Q8_0", NUMBERS, None)
    numbers = dequantize(blocks, GGMLQuantizationType.Q8_0).reshape(NUMBERS.shape)
    expected = WeightData.from_numpy(numbers, "w").astype(dtype or DType.float32)
    found = allocated_and_run(dtype, QuantizationEncoding.Q8_0)
    assert np.array_equal(found, expected.to_numpy().astype(np.float32))


def test_another_graph_on_the_same_tree_gets_the_numbers_as_they_are_stored() -> None:
    tree = as_checkpoint({"a.w": WeightData.from_numpy(NUMBERS, "a.w")})
    tree.a.w.allocate(DType.float16)
    with Graph("other") as graph:
        graph.output(Weight("a.w", DType.float32, NUMBERS.shape) + 0)
    (found,) = InferenceSession().load(graph, weights_registry=tree).execute()
    assert np.array_equal(found.to_numpy(), NUMBERS)


def test_allocated_weights_are_a_registry_themselves() -> None:
    tree = as_checkpoint({"a.w": WeightData.from_numpy(NUMBERS, "a.w")})
    with Graph("allocated") as graph:
        graph.output(tree.a.w.allocate(DType.float16) + 0)
    (found,) = InferenceSession().load(graph, tree.allocated_weights).execute()
    assert np.array_equal(found.to_numpy(), NUMBERS.astype(np.float16))
