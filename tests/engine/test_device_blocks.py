"""Blocks that a GPU decodes have the values of the codecs; the CPU stands in for the GPU here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import torch
from engine_graphs import F32, loaded, numbers

from arrays import stored, weights_of
from each import each
from graphics import on_a_gpu
from weightctl import DeviceRef, DType, Plan, QuantizationEncoding, open_weights, save
from weightctl.codecs import transcode
from weightctl.dtype import ENCODINGS
from weightctl.engine import InferenceSession, forms, schedule
from weightctl.graph import Graph, TensorType, Weight, ops
from weightctl.graph.ops import device_blocks, lowering
from weightctl.graph.ops.device_blocks import decode_there, decodes_on
from weightctl.graph.ops.lowering import torch_dtype
from weightctl.plan.cast import cast

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from weightctl import Weights

Array = np.ndarray[Any, Any]
CPU, GPU = DeviceRef.CPU(), DeviceRef.GPU(0)
NAMES = list(device_blocks._DECODERS)
DTYPES = [DType.float32, DType.bfloat16, DType.float16]


def any_bytes(name: str, rows: int, blocks: int) -> Array:
    size = ENCODINGS[name].size * blocks
    return np.random.default_rng(blocks).integers(0, 256, (rows, size), np.uint8)


def same(found: torch.Tensor, raw: Array, name: str, dtype: DType) -> None:
    expected = transcode(raw, ENCODINGS[name], dtype.encoding).raw
    wanted = torch.from_numpy(expected).view(found.dtype)
    unknown = wanted.isnan()
    assert torch.equal(found.isnan(), unknown)
    assert torch.equal(
        found.view(torch.uint8).reshape(*wanted.shape, -1)[~unknown],
        wanted.view(torch.uint8).reshape(*wanted.shape, -1)[~unknown],
    )


@each("dtype", DTYPES, ids=str)
@each("name", NAMES)
def test_any_bytes_give_the_bytes_of_the_codec(name: str, dtype: DType) -> None:
    raw = any_bytes(name, 3, 700)
    same(decode_there(torch.from_numpy(raw), ENCODINGS[name], torch_dtype(dtype)), raw, name, dtype)


def test_long_tensors_are_decoded_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = any_bytes("Q4_K", 5, 7)
    sizes: list[int] = []
    decode: Any = device_blocks._DECODERS["Q4_K"]
    monkeypatch.setattr(device_blocks, "_AREA", 3 * 256)
    monkeypatch.setitem(
        device_blocks._DECODERS, "Q4_K", lambda part: sizes.append(len(part)) or decode(part)
    )
    found = decode_there(torch.from_numpy(raw), ENCODINGS["Q4_K"], torch.float32)
    same(found, raw, "Q4_K", DType.float32)
    assert max(sizes) == 3
    assert sum(sizes) == 35


def test_no_blocks_have_no_values() -> None:
    blocks = torch.zeros((0, 144), dtype=torch.uint8)
    assert decode_there(blocks, ENCODINGS["Q4_K"], torch.float32).shape == (0, 256)


def test_the_cpu_has_the_codecs_and_a_gpu_what_it_can_decode() -> None:
    assert not decodes_on("cpu", ENCODINGS["Q4_K"])
    assert decodes_on("gpu", ENCODINGS["Q4_K"])
    assert not decodes_on("gpu", ENCODINGS["IQ2_XXS"])
    assert not decodes_on("gpu", ENCODINGS["F32"])


def table(name: str, folder: Path) -> Weights:
    plan = Plan.copy(weights_of({"w.weight": numbers(8, 256)}), "gguf")
    save(cast(plan, ENCODINGS[name]), folder / "a.gguf")
    return open_weights(folder / "a.gguf")


def reading(name: str, device: DeviceRef) -> Graph:
    """Return a graph that reads a quantized weight as a whole, as a matrix, and by its rows."""
    with Graph("readers", [TensorType(F32, (2, 256), device)]) as graph:
        (x,) = graph.inputs
        weight = Weight("w.weight", F32, (8, 256), device, QuantizationEncoding(name))
        rows = ops.embedding(weight, ops.constant([1, 7, 1], device=device))
        graph.output(weight * 1.0, x @ weight.T, rows)
    return graph


@each("resident", [False, True])
@each("name", ["Q4_K", "MXFP4"])
def test_graphs_decode_on_their_device(
    name: str, resident: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, x = table(name, tmp_path), numbers(2, 256, seed=1)
    expected = loaded(reading(name, CPU), tree).execute(x)
    decoded: list[int] = []

    def decode(blocks: torch.Tensor, *given: Any) -> torch.Tensor:
        decoded.append(blocks.numel())
        return decode_there(blocks, *given)

    for module in (forms, schedule, lowering):
        monkeypatch.setattr(module, "decodes_on", lambda _, encoding: decodes_on("gpu", encoding))
    monkeypatch.setattr(lowering, "decode_there", decode)
    found = loaded(reading(name, CPU), tree, resident=resident).execute(x)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.to_numpy(), other.to_numpy())
    assert len(decoded) >= 2


@on_a_gpu
@each("dtype", DTYPES, ids=str)
@each("name", NAMES)
def test_any_bytes_on_a_gpu_give_the_bytes_of_the_codec(name: str, dtype: DType) -> None:
    raw = any_bytes(name, 3, 700)
    found = decode_there(torch.from_numpy(raw).cuda(), ENCODINGS[name], torch_dtype(dtype))
    same(found.cpu(), raw, name, dtype)


@on_a_gpu
@each("resident", [False, True])
@each("name", [*NAMES, "Q3_K", "IQ4_XS"])
def test_graphs_on_a_gpu_read_blocks(name: str, resident: bool, tmp_path: Path) -> None:
    tree, x = table(name, tmp_path), numbers(2, 256, seed=1)
    expected = loaded(reading(name, CPU), tree).execute(x)
    session = InferenceSession([CPU, GPU])
    found = session.load(reading(name, GPU), tree, resident=resident).execute(x)
    for one, other, near in zip(found, expected, (0, 1e-5, 0), strict=True):
        assert one.device == GPU
        np.testing.assert_allclose(one.to_numpy(), other.to_numpy(), rtol=near, atol=10 * near)


@on_a_gpu
@each("name", ["Q4_K", "F8_E4M3"])
def test_a_gpu_keeps_quantized_weights_as_they_are_stored(name: str, tmp_path: Path) -> None:
    rows, width = 2048, 4096
    encoding = ENCODINGS[name]
    if name == "Q4_K":
        plan = Plan.copy(weights_of({"w.weight": numbers(rows, width)}), "gguf")
        save(cast(plan, encoding), tmp_path / "a.gguf")
        tree = open_weights(tmp_path / "a.gguf")
    else:
        values = numbers(rows, width).astype(ml_dtypes.float8_e4m3fn)
        tree = open_weights(stored(tmp_path / "a.safetensors", **{"w.weight": values}))
    with Graph("product", [TensorType(F32, (2, width), GPU)]) as graph:
        blocks = QuantizationEncoding.Q4_K if name == "Q4_K" else None
        graph.output(graph.inputs[0] @ Weight("w.weight", F32, (rows, width), GPU, blocks).T)
    before = torch.cuda.memory_allocated()
    model = InferenceSession([GPU]).load(graph, tree, resident=True)
    held = torch.cuda.memory_allocated() - before
    assert held < 1.1 * encoding.nbytes((rows, width))
    model.execute(numbers(2, width))
