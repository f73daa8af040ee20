"""Blocks of GGUF as schemes and back: the same codes and scales, or a plan that says `rounded`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest

import weightctl
from lazy import load_file, save_file, torch
from packers import NAME, gguf_with, plan_of
from weightctl.errors import ConversionError
from written_models import CASES, convert, small_llama, values_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from conftest import Completed

    Run = Callable[..., Completed]

ROWS, COLUMNS = 64, 256
# The schemes that hold the values of any block of a type.
EXACT = {
    "Q4_0": (
        "W4A16:group=32", "W4A16:group=32,symmetric=no", "GPTQ:group=32",
        "GPTQ:group=32,symmetric=no", "AWQ:group=32", "MLX-4bit:group=32",
    ),
    "Q4_1": ("MLX-4bit:group=32",),
    "Q8_0": (
        "W8A16:group=32", "W8A16:group=32,symmetric=no", "GPTQ-8bit:group=32",
        "MLX-8bit:group=32",
    ),
    "MXFP4": ("MXFP4", "MLX-mxfp4"),
    "NVFP4": ("NVFP4A16", "NVFP4"),
}  # fmt: skip
PAIRS = [(kind, case) for kind, cases in EXACT.items() for case in cases]
OTHERS = sorted({*CASES, *(case for _, case in PAIRS)})
ROUNDED = [
    (kind, case) for kind in (*EXACT, "Q5_0", "Q4_K") for case in OTHERS
    if (kind, case) not in PAIRS
]  # fmt: skip
# The scales of a block by type: their bytes, and how many of these come first.
WIDTHS = {"Q4_0": 2, "Q4_1": 4, "Q8_0": 2, "MXFP4": 1, "NVFP4": 4}


def random_blocks(kind: str, seed: int = 0) -> NDArray[np.uint8]:
    """Return rows of blocks with any codes, and scales of any sign and size that schemes hold."""
    generator = np.random.default_rng(seed)
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    count = ROWS * COLUMNS // block
    blocks = generator.integers(0, 256, (count, size), np.uint8)
    width = WIDTHS[kind]
    if kind in {"Q4_0", "Q4_1", "Q8_0"}:
        exponents = generator.integers(-20, 9, (count, width // 2))
        scales = np.ldexp(generator.uniform(-1, 1, exponents.shape), exponents)
        blocks[:, :width] = scales.astype(np.float16).view(np.uint8)
        blocks[0, :2] = 0
    else:
        blocks[:, :width] = generator.integers(0, 0x7F, (count, width))
    return blocks.reshape(ROWS, -1)


@pytest.mark.parametrize(("kind", "case"), PAIRS)
def test_any_block_is_repacked_both_ways_bit_for_bit(tmp_path: Path, kind: str, case: str) -> None:
    raw = random_blocks(kind)
    source = gguf_with(tmp_path / "in", {NAME: (kind, raw)})
    done = convert(source, tmp_path / "out", case, exact=True)
    assert all(item.is_exact for item in done.plan.items)
    assert all(loss.squared_error == 0 for loss in done.losses.values())
    with np.errstate(over="ignore"):
        wanted = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    np.testing.assert_array_equal(values_in(tmp_path / "out")[NAME].numpy(), wanted)

    weightctl.convert(tmp_path / "out", tmp_path / "back.gguf")
    (back,) = gguf.GGUFReader(tmp_path / "back.gguf").tensors
    assert back.tensor_type.name == kind
    assert np.array_equal(back.data.reshape(raw.shape), raw)

    (tmp_path / "config.json").write_text('{"torch_dtype": "float16"}')
    convert(tmp_path / "back.gguf", tmp_path / "again", case, exact=True)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("out", "again"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name].view(torch.uint8), second[name].view(torch.uint8))
               for name in first)  # fmt: skip


@pytest.mark.parametrize(("kind", "case"), ROUNDED)
def test_all_other_pairs_are_rounded(tmp_path: Path, kind: str, case: str) -> None:
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = np.zeros((128, COLUMNS // block * size), np.uint8)
    if kind in EXACT:
        raw[:] = np.concatenate([random_blocks(kind, seed) for seed in range(2)])
    source = gguf_with(tmp_path / "in", {NAME: (kind, raw)})
    items = plan_of(source, case, allow_requantize=True).items
    assert not any(item.is_exact for item in items)
    with pytest.raises(ConversionError, match=r"would be rounded:\n  `layers\.0\.q_proj\.weight`"):
        plan_of(source, case, exact=True)


@pytest.mark.parametrize(
    ("case", "other"),
    [
        ("W4A16:group=32", "GPTQ:group=32"), ("GPTQ:group=32", "AWQ:group=32"),
        ("AWQ:group=32", "MLX-4bit:group=32"), ("MLX-8bit:group=32", "W8A16:group=32"),
        ("MXFP4", "MLX-mxfp4"), ("NVFP4", "NVFP4A16"),
    ],
)  # fmt: skip
def test_one_scheme_is_repacked_as_another(tmp_path: Path, case: str, other: str) -> None:
    kind = next(kind for kind, cases in EXACT.items() if case in cases)
    source = gguf_with(tmp_path / "in", {NAME: (kind, random_blocks(kind))})
    convert(source, tmp_path / "a", case)
    convert(tmp_path / "a", tmp_path / "b", other, exact=True)
    before, after = values_in(tmp_path / "a"), values_in(tmp_path / "b")
    assert torch.equal(before[NAME], after[NAME])


def test_scales_that_float16_does_not_hold_are_rounded(tmp_path: Path) -> None:
    convert(small_llama(), tmp_path / "a", "W4A16:group=32")
    convert(tmp_path / "a", tmp_path / "b", "AWQ:group=32", exact=True)
    path = tmp_path / "a" / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.0.self_attn.k_proj.weight_scale"][1, 2] = 2.0**-30
    save_file(tensors, path)
    with pytest.raises(ConversionError, match="the values of 1 tensor would be rounded") as caught:
        convert(tmp_path / "a", tmp_path / "c", "AWQ:group=32", exact=True)
    assert "k_proj" in caught.value.message


def test_tensors_that_are_not_quantized_stay_exact(tmp_path: Path) -> None:
    weightctl.convert(small_llama(), tmp_path / "m.gguf", quant="Q8_0")
    done = convert(tmp_path / "m.gguf", tmp_path / "out", "W8A16:group=32", exact=True)
    before = weightctl.open_weights(tmp_path / "m.gguf")
    after = values_in(tmp_path / "out")
    for ours, theirs in (
        ("lm_head", "output"), ("model.norm", "output_norm"), ("model.embed_tokens", "token_embd"),
    ):  # fmt: skip
        wanted = np.from_dlpack(before[f"{theirs}.weight"].data().astype("float32"))
        assert np.array_equal(after[f"{ours}.weight"].numpy(), wanted)
    kept = {item.info.encoding.name for item in done.plan.items if not item.weight}
    assert kept == {"F32"}


def test_exact_applies_to_every_conversion(tmp_path: Path) -> None:
    for options in ({"dtype": "f16"}, {"quant": "Q8_0"}):
        with pytest.raises(ConversionError, match="the values of 16 tensors would be rounded"):
            weightctl.convert(small_llama(), tmp_path / "out.gguf", exact=True, **options)
    weightctl.convert(small_llama(), tmp_path / "out", dtype="f32", exact=True)
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_a_group_whose_minimum_exceeds_float16_is_refused(tmp_path: Path) -> None:
    raw = random_blocks("Q8_0")
    raw[3, :2] = np.array([600], np.float16).view(np.uint8)
    source = gguf_with(tmp_path / "in", {NAME: ("Q8_0", raw)})
    with pytest.raises(ConversionError, match="values that are too large for MLX-8bit:group=32"):
        convert(source, tmp_path / "out", "MLX-8bit:group=32")
    assert not (tmp_path / "out").exists()
    convert(source, tmp_path / "out", "W8A16:group=32", exact=True)


def test_blocks_that_are_not_finite_are_refused_or_become_zero(tmp_path: Path) -> None:
    raw = random_blocks("Q4_0")
    raw[5, :2] = np.array([np.inf], np.float16).view(np.uint8)
    source = gguf_with(tmp_path / "in", {NAME: ("Q4_0", raw)})
    with pytest.raises(ConversionError, match="quantized weights cannot hold"):
        convert(source, tmp_path / "out", "W4A16:group=32")
    convert(source, tmp_path / "out", "W4A16:group=32", nonfinite="zero")
    made = values_in(tmp_path / "out")[NAME]
    assert torch.isfinite(made).all()
    assert not made[5, :32].any()


def test_weights_that_share_a_scale_are_exact_together(tmp_path: Path) -> None:
    tensors = {
        f"layers.0.{name}_proj.weight": (kind, random_blocks(kind))
        for name, kind in (("q", "NVFP4"), ("k", "NVFP4"), ("v", "Q8_0"), ("o", "NVFP4"))
    }
    plan = plan_of(gguf_with(tmp_path / "in", tensors), "NVFP4A16", allow_requantize=True)
    exact = {item.weight for item in plan.items if item.is_exact}
    assert exact == {"layers.0.o_proj.weight"}


def test_scales_of_nvfp4_that_ggml_ignores_are_repacked_as_zero(tmp_path: Path) -> None:
    raw = random_blocks("NVFP4")
    raw[0, 0] = 0x7F
    convert(gguf_with(tmp_path / "in", {NAME: ("NVFP4", raw)}), tmp_path / "out", "NVFP4A16")
    made = values_in(tmp_path / "out")[NAME]
    assert not made[0, :16].any()
    assert made[0, 16:].any()


def test_nvfp4_with_a_negative_scale_does_not_become_gguf(tmp_path: Path) -> None:
    source = gguf_with(tmp_path / "in", {NAME: ("NVFP4", random_blocks("NVFP4"))})
    convert(source, tmp_path / "out", "NVFP4A16")
    path = tmp_path / "out" / "model.safetensors"
    tensors = load_file(path)
    tensors["layers.0.q_proj.weight_scale"].view(torch.uint8)[1, 2] |= 128
    save_file(tensors, path)
    with pytest.raises(ConversionError, match="negative, which NVFP4 cannot hold"):
        weightctl.convert(tmp_path / "out", tmp_path / "back.gguf")
    assert not (tmp_path / "back.gguf").exists()


def test_the_plan_says_what_is_exact_and_the_option_refuses_the_rest(
    weightctl: Run, tmp_path: Path
) -> None:
    directory = Path(small_llama())
    weightctl("convert", directory, tmp_path / "m.gguf", "--quant", "Q4_0")
    out = ("convert", tmp_path / "m.gguf", tmp_path / "out", "--quant", "W4A16:group=32")
    done = weightctl(*out, "-n")
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if "->" in line}
    assert "exact" in rows["weight_packed"]
    assert "rounded" in rows["lm_head.weight"]
    assert "values: 42 tensors exact, 7 rounded" in done.stdout
    report = json.loads(weightctl(*out, "--json").stdout)
    values = {tensor["name"]: tensor["values"] for tensor in report["tensors"]}
    assert values["model.layers.0.self_attn.q_proj.weight_scale"] == "exact"
    assert values["lm_head.weight"] == "rounded"
    done = weightctl("convert", directory, tmp_path / "b", "--quant", "W4A16", "--exact")
    assert done.returncode == 2
    assert "the values of 14 tensors would be rounded" in done.stderr
    assert "`model.layers.0.mlp.down_proj.weight`: BF16 -> W4A16" in done.stderr
    assert "--exact" in done.stderr.partition("hint:")[2]


def scaled_gguf(directory: Path, scale: Any, shape: tuple[int, ...] = (ROWS, COLUMNS)) -> Path:
    """Return a GGUF with a weight of NVFP4 and a scale of it, as llama.cpp's converter writes."""
    directory.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(directory / "m.gguf", "llama")
    writer.kv_data[0].clear()
    raw = random_blocks("NVFP4").reshape(*shape[:-1], -1)
    writer.add_tensor("a.weight", raw, raw_dtype=gguf.GGMLQuantizationType.NVFP4)
    writer.add_tensor("a.scale", np.asarray(scale, np.float32))
    writer.add_tensor("a.input_scale", np.ones_like(np.asarray(scale, np.float32)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return directory / "m.gguf"


@pytest.mark.parametrize(
    ("scale", "shape"), [([0.3], (ROWS, COLUMNS)), ([0.3, 2, 5, 0.1], (4, ROWS // 4, COLUMNS))]
)
def test_the_scale_that_llama_cpp_stores_beside_nvfp4_is_applied(
    tmp_path: Path, scale: list[float], shape: tuple[int, ...]
) -> None:
    source = scaled_gguf(tmp_path / "in", scale, shape)
    weightctl.convert(source, tmp_path / "out.safetensors", dtype="f32")
    made = load_file(tmp_path / "out.safetensors")
    plain = gguf.quants.dequantize(random_blocks("NVFP4"), gguf.GGMLQuantizationType.NVFP4)
    scales = np.asarray(scale, np.float32).reshape(-1, *(1,) * (len(shape) - 1))
    assert set(made) == {"a.weight"}
    np.testing.assert_array_equal(made["a.weight"].numpy(), plain.reshape(shape) * scales)


def test_nvfp4_with_a_scale_is_copied_to_gguf_as_it_is(tmp_path: Path) -> None:
    source = scaled_gguf(tmp_path / "in", [0.3])
    weightctl.convert(source, tmp_path / "out.gguf", exact=True)
    before, after = (weightctl.open_weights(path) for path in (source, tmp_path / "out.gguf"))
    assert [name for name, _ in after.items()] == [name for name, _ in before.items()]
    assert all(
        np.array_equal(np.from_dlpack(tensor.data()), np.from_dlpack(after[name].data()))
        for name, tensor in before.items()
    )
