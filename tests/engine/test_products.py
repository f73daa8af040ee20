"""Products with weights: blocks are decoded in tiles, and resident weights are cast once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

from arrays import stored, weights_of
from each import each
from engine_graphs import CPU, F32, loaded, numbers, ran
from graphics import on_a_gpu
from lazy import torch
from ready_children import run_ready
from rows import in_blocks
from weightctl import DeviceRef, DType, Plan, QuantizationEncoding, open_weights, save
from weightctl.codecs import transcode
from weightctl.dtype import ENCODINGS
from weightctl.engine import InferenceSession, products, schedule, weight_forms
from weightctl.engine.bound_weights import BoundWeights
from weightctl.engine.devices import exact_products
from weightctl.engine.stored_weights import InMemory, to_stored_weight
from weightctl.engine.weight_forms import WeightForm
from weightctl.errors import EngineError
from weightctl.graph import Graph, TensorType, Weight, ops
from weightctl.graph.ops import device_blocks, lowering
from weightctl.graph.ops.device_blocks import decode_there, decodes_on
from weightctl.graph.ops.lowering import torch_dtype
from weightctl.nn import Linear
from weightctl.plan.cast import cast

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl import Weights


Q8_0, Q4_0 = QuantizationEncoding.Q8_0, QuantizationEncoding.Q4_0


def multiplying(outputs: int, inputs: int, kind: QuantizationEncoding) -> Graph:
    with Graph("product", [TensorType(F32, ("n", inputs))]) as graph:
        weight = Weight("w", F32, (outputs, inputs), quantization_encoding=kind)
        graph.output(graph.inputs[0] @ weight.T)
    return graph


@each("kind", [Q8_0, Q4_0])
@each("tile", [1, 3 * 64 * 4, 2**21])
@each("resident", [False, True])
def test_a_product_with_tiles_is_that_with_the_values_of_blocks(
    kind: QuantizationEncoding, tile: int, resident: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_TILE", tile)
    monkeypatch.setattr(products, "row_multiplier", lambda _: None)
    data, held = in_blocks(numbers(11, 64), kind)
    x = numbers(9, 64, seed=1)
    found = ran(multiplying(11, 64, kind), x, registry={"w": data}, resident=resident)
    np.testing.assert_allclose(found, x @ held.T, rtol=1e-5, atol=1e-5)


@each("kind", [Q8_0, Q4_0])
@each("rows", [3, 9])
def test_a_product_with_blocks_is_that_with_their_values(
    kind: QuantizationEncoding, rows: int
) -> None:
    data, held = in_blocks(numbers(11, 64), kind)
    x = numbers(rows, 64, seed=1)
    found = ran(multiplying(11, 64, kind), x, registry={"w": data})
    np.testing.assert_allclose(found, x @ held.T, rtol=1e-5, atol=1e-5)


@each("has_kernel", [True, False])
def test_blocks_are_decoded_in_several_threads(
    has_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_TILE", 64 * 4)
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    if not has_kernel:
        monkeypatch.setattr(products, "row_multiplier", lambda _: None)
    data, held = in_blocks(numbers(32, 64), Q8_0)
    for rows in (2, 9):
        x = numbers(rows, 64, seed=1)
        found = ran(multiplying(32, 64, Q8_0), x, registry={"w": data})
        np.testing.assert_allclose(found, x @ held.T, rtol=1e-5, atol=1e-5)


def test_a_product_without_rows_reads_no_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InMemory, "raw", lambda _: pytest.fail("the blocks were read"))
    data, _ = in_blocks(numbers(4, 64), Q8_0)
    empty = np.zeros((0, 64), np.float32)
    assert ran(multiplying(4, 64, Q8_0), empty, registry={"w": data}).shape == (0, 4)


def test_an_error_of_a_product_names_the_shape_of_the_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(products, "row_multiplier", lambda _: None)
    monkeypatch.setattr(products, "decode_blocks", fail)
    data, _ = in_blocks(numbers(4, 64), Q8_0)
    with pytest.raises(EngineError, match=r"float32\[7, 64\] and float32\[64, 4\].*no memory"):
        ran(multiplying(4, 64, Q8_0), numbers(7, 64), registry={"w": data})


def test_a_resident_weight_is_cast_once() -> None:
    layer = Linear(64, 4, dtype=DType.bfloat16)
    layer.name_weights()
    with Graph("cast", [TensorType(F32, ("n", 64))]) as graph:
        graph.output(layer(graph.inputs[0]))
    held = torch.randn(4, 64).to(torch.bfloat16)
    model = loaded(graph, {"weight": held}, resident=True)
    made = model._schedule.forms  # what is kept is not seen otherwise
    assert [(form.dtype, form.read_as, form.is_transposed) for form in made] == [
        (DType.bfloat16, DType.float32, True)
    ]
    assert [each.op.name for each in model._schedule.operations] == ["matmul"]
    x = numbers(2, 64)
    (found,) = model.execute(x)
    np.testing.assert_allclose(found.to_numpy(), x @ held.float().numpy().T, rtol=1e-5, atol=1e-5)


@each("rows", [2, 9])
@each("kind", ["bfloat16", "float16"])
@each("resident", [False, True])
def test_a_product_reads_short_floats_as_they_are_stored(
    rows: int, kind: str, resident: bool
) -> None:
    with Graph("short", [TensorType(F32, ("n", 64))]) as graph:
        graph.output(graph.inputs[0] @ Weight("w", F32, (5, 64)).T)
    held, x = torch.randn(5, 64).to(getattr(torch, kind)), numbers(rows, 64)
    found = ran(graph, x, registry={"w": held}, resident=resident)
    np.testing.assert_allclose(found, x @ held.float().numpy().T, rtol=1e-5, atol=1e-5)


def test_one_cast_weight_serves_all_names_of_a_tensor() -> None:
    place = to_stored_weight(torch.randn(4, 64).to(torch.bfloat16), "w")
    kind = WeightForm("w", DType.bfloat16, (4, 64), CPU, read_as=F32)
    forms = [kind._replace(name="a"), kind._replace(name="b")]
    weights = BoundWeights({form.base: place for form in forms}, forms)
    first, second = (weights.ready(form) for form in forms)
    assert first is not None
    assert second is not None
    assert first.data_ptr() == second.data_ptr()


@each("kind", ["bfloat16", "float16"])
@each("kernels", [False, True])
@each("rows", [3, 9])
def test_vectors_are_rounded_on_request_where_the_weights_are_in_bfloat16(
    kind: str, rows: int, kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernels:
        monkeypatch.setattr(products, "multiplies_bf16", lambda: False)
    layer = Linear(64, 11, dtype=DType(kind))
    layer.name_weights()
    with Graph("product", [TensorType(F32, ("n", 64))]) as graph:
        graph.output(graph.inputs[0] @ layer.weight.cast(F32).T)
    x, weight = torch.from_numpy(numbers(rows, 64, seed=1)), torch.from_numpy(numbers(11, 64))
    weight, registry = weight.to(getattr(torch, kind)), {"weight": weight.to(getattr(torch, kind))}
    for rounds in (False, True):
        given = x.bfloat16().float() if rounds and kind == "bfloat16" else x
        (found,) = InferenceSession().load(graph, registry, rounds_bf16=rounds).execute(x)
        expected = (given @ weight.float().T).numpy()
        np.testing.assert_allclose(found.to_numpy(), expected, rtol=1e-5, atol=1e-5)


def test_products_of_many_rows_are_those_of_torch() -> None:
    data, held = in_blocks(numbers(11, 64), Q8_0)
    x = numbers(300, 64, seed=1)
    found = ran(multiplying(11, 64, Q8_0), x, registry={"w": data})
    np.testing.assert_allclose(found, x @ held.T, rtol=1e-5, atol=1e-5)


# Products on a GPU are as exact as the dtypes of the graph, whatever the process has set.


MATMUL: Any = torch.backends.cuda.matmul
CONVOLUTIONS: Any = torch.backends.cudnn
SHORT = ["allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction"]


def settings() -> list[Any]:
    return [*(getattr(MATMUL, name) for name in SHORT), torch.get_float32_matmul_precision()]


def test_sums_are_in_float32_within_and_as_before_after() -> None:
    before = settings()
    with exact_products():
        assert [getattr(MATMUL, name) for name in SHORT] == [False, False]
        if hasattr(MATMUL, "fp32_precision"):
            assert MATMUL.fp32_precision == CONVOLUTIONS.conv.fp32_precision == "ieee"
    assert settings() == before


def test_the_settings_are_restored_after_an_error() -> None:
    before = settings()
    with pytest.raises(ValueError, match="by itself"), exact_products():
        raise ValueError("by itself")
    assert settings() == before


def test_the_settings_are_restored_after_the_last_of_several_threads() -> None:
    before = settings()
    inner, outer = exact_products(), exact_products()
    outer.__enter__()
    inner.__enter__()
    # The first ends before the second, as in two threads.
    outer.__exit__(None, None, None)
    assert [getattr(MATMUL, name) for name in SHORT] == [False, False]
    inner.__exit__(None, None, None)
    assert settings() == before


def test_a_process_may_have_used_the_older_settings() -> None:
    program = (
        "import torch\n"
        "from weightctl.engine.devices import exact_products\n"
        "torch.backends.cuda.matmul.allow_tf32 = True\n"
        "with exact_products():\n"
        "    pass\n"
        "assert torch.backends.cuda.matmul.allow_tf32\n"
    )
    done = run_ready(
        f"import warnings; warnings.simplefilter('ignore')\n{program}", imports=["torch"]
    )
    assert (done.returncode, done.stderr) == (0, "")


@on_a_gpu
def test_products_on_a_gpu_are_exact_also_if_the_process_allows_tf32() -> None:
    gpu = DeviceRef.GPU(0)
    with Graph("product", [TensorType(F32, (64, 4096), gpu)]) as graph:
        (x,) = graph.inputs
        graph.output(x @ x.T)
    x = numbers(64, 4096)
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        (found,) = InferenceSession([gpu]).load(graph).execute(x)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    wide = x.astype(np.float64)
    np.testing.assert_allclose(found.to_numpy(), wide @ wide.T, rtol=1e-5, atol=1e-2)


@on_a_gpu
def test_sums_of_bfloat16_on_a_gpu_are_in_float32() -> None:
    gpu = DeviceRef.GPU(0)
    count = 1 << 16
    kind = TensorType(DType.bfloat16, (1, count), gpu)
    with Graph("product", [kind, kind]) as graph:
        left, right = graph.inputs
        graph.output(left @ right.T)
    ones = torch.ones(1, count, dtype=torch.bfloat16)
    (found,) = InferenceSession([gpu]).load(graph).execute(ones, ones)
    assert float(torch.from_dlpack(found).float().cpu()) == count


# Blocks that a GPU decodes have the values of the codecs; the CPU stands in for the GPU here.


Array = np.ndarray[Any, Any]
GPU = DeviceRef.GPU(0)
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

    for module in (weight_forms, schedule, lowering):
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
