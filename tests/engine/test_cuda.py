"""Graphs on a graphics processor; needs one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from arrays import stored, weights_of
from each import each
from engine_graphs import CPU, F32, counted, numbers, ran, stack, stack_weights
from graphics import on_a_gpu
from lazy import torch
from weightctl import DeviceRef, DType, Plan, QuantizationEncoding, open_weights, save
from weightctl.dtype import ENCODINGS
from weightctl.engine import DeviceBuffer, InferenceSession
from weightctl.engine.arrays import tensor_of
from weightctl.errors import EngineError
from weightctl.graph import Graph, ShardingStrategy, TensorType, Weight, ops
from weightctl.plan.cast import cast

if TYPE_CHECKING:
    from pathlib import Path

GPU = DeviceRef.GPU(0)
# Sums of 64 products in another order.
NEAR = {"rtol": 1e-5, "atol": 1e-5}


def executed(graph: Graph, *inputs: Any, registry: Any = None, **options: Any) -> list[Any]:
    return InferenceSession([GPU]).load(graph, registry, **options).execute(*inputs)


@on_a_gpu
@each("resident", [False, True])
def test_results_are_those_of_the_cpu(resident: bool) -> None:
    x, weights = numbers(5, 64), stack_weights(width=64)
    expected = ran(stack(width=64), x, registry=weights)
    (found,) = executed(stack(width=64, device=GPU), x, registry=weights, resident=resident)
    np.testing.assert_allclose(found.to_numpy(), expected, **NEAR)


@on_a_gpu
@each("name, near", [("bfloat16", 2e-2), ("float16", 2e-3)])
def test_results_of_half_the_width_are_near_those_of_the_cpu(name: str, near: float) -> None:
    def product(device: DeviceRef) -> Graph:
        kind = TensorType(DType(name), (32, 64), device)
        with Graph("product", [kind]) as graph:
            (x,) = graph.inputs
            graph.output(ops.softmax(x @ x.T))
        return graph

    x = torch.from_numpy(numbers(32, 64) / 8).to(getattr(torch, name))
    expected = torch.from_dlpack(InferenceSession().load(product(CPU)).execute(x)[0]).float()
    found = torch.from_dlpack(executed(product(GPU), x)[0]).float().cpu()
    torch.testing.assert_close(found, expected, rtol=near, atol=near)


@on_a_gpu
def test_an_output_stays_on_its_device_until_it_is_asked_for() -> None:
    (found,) = executed(stack(device=GPU), numbers(5, 8), registry=stack_weights())
    assert isinstance(found, DeviceBuffer)
    assert found.device == GPU
    assert found.__dlpack_device__() == (2, 0)
    shared = torch.from_dlpack(found)
    assert shared.is_cuda
    assert shared.data_ptr() == found.tensor.data_ptr()
    np.testing.assert_array_equal(found.to_numpy(), shared.cpu().numpy())
    np.testing.assert_array_equal(np.asarray(found), shared.cpu().numpy())


@on_a_gpu
def test_an_output_that_was_brought_back_is_on_the_cpu() -> None:
    with Graph("there and back", [TensorType(F32, (4,))]) as graph:
        (x,) = graph.inputs
        graph.output((x.to(GPU) * 2.0).to(CPU) + ops.constant(1.0))
    (found,) = executed(graph, np.ones(4, np.float32))
    assert found.device == CPU
    assert found.to_numpy().tolist() == [3] * 4


@on_a_gpu
def test_inputs_come_from_either_side() -> None:
    weights, x = stack_weights(), numbers(5, 8)
    graph = stack(device=GPU)
    (first,) = executed(graph, x, registry=weights)
    for given in (torch.from_numpy(x).cuda(), torch.from_numpy(x), tensor_of(x).cuda()):
        (found,) = executed(graph, given, registry=weights)
        np.testing.assert_array_equal(found.to_numpy(), first.to_numpy())
    (again,) = executed(graph, first, registry=weights)
    assert again.shape == first.shape


@on_a_gpu
def test_an_output_is_not_a_view_of_an_input_on_the_device() -> None:
    given = torch.ones(3, device="cuda")
    with Graph("same", [TensorType(F32, (3,), GPU)]) as graph:
        graph.output(graph.inputs[0])
    (found,) = executed(graph, given)
    assert torch.from_dlpack(found).data_ptr() != given.data_ptr()


@on_a_gpu
def test_weights_move_only_when_the_graph_runs_and_do_not_add_up(tmp_path: Path) -> None:
    width, layers = 1024, 20
    arrays = {f"layers.{n}.w": np.full((width, width), 1e-3, np.float32) for n in range(layers)}
    arrays |= {f"layers.{n}.b": np.zeros(width, np.float32) for n in range(layers)}
    tree, reads = counted(open_weights(stored(tmp_path / "a.safetensors", **arrays)))
    x = np.ones((1, width), np.float32)
    executed(stack(1, width, GPU), x, registry=arrays)  # torch takes memory for cuBLAS once
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    graph = stack(layers, width, GPU)
    model = InferenceSession([GPU]).load(graph, tree)
    assert torch.cuda.memory_allocated() == before
    assert not reads
    torch.cuda.reset_peak_memory_stats()
    model.execute(x)
    # 20 matrices of 4.2 MB each: one or two at a time.
    assert torch.cuda.max_memory_allocated() - before < 20_000_000


@on_a_gpu
def test_resident_weights_move_once_when_the_graph_is_loaded(tmp_path: Path) -> None:
    width, layers = 1024, 20
    arrays = {f"layers.{n}.w": np.full((width, width), 1e-3, np.float32) for n in range(layers)}
    arrays |= {f"layers.{n}.b": np.zeros(width, np.float32) for n in range(layers)}
    tree, reads = counted(open_weights(stored(tmp_path / "a.safetensors", **arrays)))
    before = torch.cuda.memory_allocated()
    model = InferenceSession([GPU]).load(stack(layers, width, GPU), tree, resident=True)
    assert torch.cuda.memory_allocated() - before > layers * 4 * width * width
    for _ in range(2):
        model.execute(np.ones((1, width), np.float32))
    assert set(reads.values()) == {1}


@on_a_gpu
@each("resident", [False, True])
def test_blocks_become_numbers_on_the_device(resident: bool, tmp_path: Path) -> None:
    plan = Plan.copy(weights_of({"w.weight": numbers(8, 256)}), "gguf")
    save(cast(plan, ENCODINGS["Q4_K"]), tmp_path / "a.gguf")
    tree = open_weights(tmp_path / "a.gguf")
    q4_k = QuantizationEncoding.Q4_K

    def product(device: DeviceRef) -> Graph:
        with Graph("product", [TensorType(F32, (2, 256), device)]) as graph:
            weight = Weight("w.weight", F32, (8, 256), device, q4_k)
            graph.output(
                graph.inputs[0] @ weight.T, ops.embedding(weight, ops.constant([1], device=device))
            )
        return graph

    x = numbers(2, 256, seed=1)
    expected = InferenceSession().load(product(CPU), tree).execute(x)
    found = executed(product(GPU), x, registry=tree, resident=resident)
    for one, other in zip(found, expected, strict=True):
        assert one.device == GPU
        np.testing.assert_allclose(one.to_numpy(), other.to_numpy(), **NEAR)


@on_a_gpu
def test_a_weight_that_is_on_the_device_already_is_used_there() -> None:
    weight = torch.ones(4, device="cuda")
    with Graph("sum") as graph:
        graph.output(Weight("w", F32, (4,), GPU) + ops.constant(1.0, device=GPU))
    assert executed(graph, registry={"w": weight})[0].to_numpy().tolist() == [2] * 4


@on_a_gpu
def test_ranks_on_several_devices_each_have_what_is_theirs_there() -> None:
    devices, weights = (CPU, GPU), {"w": numbers(5, 4)}
    whole = Weight("w", F32, (5, 4), sharding_strategy=ShardingStrategy.rowwise(2))
    with Graph("ranks", [TensorType(F32, (3, 4), device) for device in devices]) as graph:
        shards = whole.shard(devices)
        parts = [x @ shard.T for x, shard in zip(graph.inputs, shards, strict=True)]
        joined = ops.allgather(parts)
        graph.output(*joined, *ops.allreduce(joined), *ops.reduce_scatter(joined))
    x = numbers(3, 4, seed=1)
    found = executed(graph, x, x, registry=weights)
    product = x @ weights["w"].T
    double = 2 * product
    expected = [product, product, double, double, double[:, :3], double[:, 3:]]
    assert [one.device for one in found] == [CPU, GPU] * 3
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.to_numpy(), other, **NEAR)


@on_a_gpu
def test_a_gpu_beyond_the_last_is_refused() -> None:
    last = torch.cuda.device_count()
    with pytest.raises(EngineError, match=f"gpu:{last} is not available: this machine"):
        InferenceSession([DeviceRef.GPU(last)])


@on_a_gpu
def test_too_little_memory_is_an_error_that_names_the_operation() -> None:
    side = 1 << 24
    with Graph("large", [TensorType(F32, ("n",), GPU)]) as graph:
        (x,) = graph.inputs
        graph.output(ops.sum(x.reshape(("n", 1)) * x.reshape((1, "n"))))
    with pytest.raises(EngineError, match=r"mul of float32\[16777216, 1\] on cuda:0 and"):
        executed(graph, np.ones(side, np.float32))
