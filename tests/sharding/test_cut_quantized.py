"""The dequantized shards of quantized weights are the shards of the dequantized weights."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple

import gguf
import numpy as np
import pytest

from cut_models import gguf_llama, held, with_bytes
from each import each
from lazy import load_file, save_file, torch
from packers import awq, gptq, levels_of, numbers, opened, plain, same, scales_of, stream
from sharded_files import shard_bytes, whole_bytes, write_shards
from weightctl import open_weights
from weightctl.errors import ShardingError
from weightctl.schemes.dequantize import dequantize_weights
from weightctl.sharding.plan_file import CutRule, CutRules
from weightctl.sharding.planning import shard_plan
from weightctl.split import Grid, Whole, axiswise

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from weightctl import Weights
    from weightctl.sharding.plan import ShardPlan
    from weightctl.weights import TensorInfo

OUT, IN, GROUP = 64, 192, 32
FP8 = torch.float8_e4m3fn


class Packed(NamedTuple):
    """Tensors of a layer `l`, which of its elements stay together, and the settings beside them."""

    tensors: dict[str, torch.Tensor]
    blocks: tuple[int, ...]
    settings: dict[str, Any] | None = None


def floats(shape: tuple[int, ...], dtype: torch.dtype = FP8) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(shape, generator=generator) * 40).to(dtype)


def halves(codes: torch.Tensor) -> torch.Tensor:
    return (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)


def of_gptq(
    bits: int, order: torch.Tensor | None = None, *, group: int = GROUP, has_zeros: bool = True
) -> dict[str, torch.Tensor]:
    groups = IN // group
    tensors = gptq(
        levels_of(1, (IN, OUT), bits), levels_of(2, (groups, OUT), bits),
        scales_of(3, (groups, OUT)), bits, order,
    )  # fmt: skip
    return tensors if has_zeros else {k: v for k, v in tensors.items() if "qzeros" not in k}


def of_awq() -> dict[str, torch.Tensor]:
    zeros = awq(levels_of(2, (IN // GROUP, OUT), 4))
    scales = scales_of(3, (IN // GROUP, OUT))
    return {"l.qweight": awq(levels_of(1, (IN, OUT), 4)), "l.qzeros": zeros, "l.scales": scales}


def of_compressed(
    bits: int, shape: tuple[int, int] = (21, 96), group: int = 32, *,
    order: torch.Tensor | None = None, has_zeros: bool = False,
) -> dict[str, torch.Tensor]:  # fmt: skip
    rows, columns = shape
    made = {
        "l.weight_packed": stream(levels_of(1, shape, bits), bits),
        "l.weight_scale": scales_of(3, (rows, columns // group), torch.bfloat16),
        "l.weight_shape": torch.tensor(shape),
    }
    if has_zeros:
        zeros = levels_of(2, (rows, columns // group), bits)
        made["l.weight_zero_point"] = stream(zeros.T, bits).T
    return made if order is None else made | {"l.weight_g_idx": order.to(torch.int32)}


def unsplit() -> dict[str, torch.Tensor]:
    """Return numbers of 3 bits of which no word has a part: ten in each."""
    levels = levels_of(1, (5, 128), 3)
    words = torch.zeros(5, 13, dtype=torch.int64)
    for column in range(128):
        words[:, column // 10] |= levels[:, column] << 3 * (column % 10)
    whole = {"l.weight_shape": torch.tensor([5, 128]), "l.weight_scale": scales_of(3, (5, 1))}
    return {"l.weight_packed": words.to(torch.int32)} | whole


def of_blocks(
    shape: tuple[int, int], rows: int = 128, columns: int = 128
) -> dict[str, torch.Tensor]:
    scales = scales_of(2, (-(-shape[0] // rows), -(-shape[1] // columns)), torch.float32)
    return {"l.weight": floats(shape), "l.weight_scale_inv": scales}


def of_mlx(bits: int) -> dict[str, torch.Tensor]:
    levels = stream(levels_of(1, (6, 128), bits), bits).view(torch.uint32)
    scales, biases = scales_of(3, (6, 2)), -scales_of(4, (6, 2))
    return {"l.weight": levels, "l.scales": scales, "l.biases": biases}


def of_nvfp4(kind: str) -> dict[str, torch.Tensor]:
    codes, above = halves(levels_of(1, (6, 64), 4)), torch.tensor([0.3])
    scales = floats((6, 4), torch.float32).abs().to(FP8)
    if kind == "modelopt":
        return {"l.weight": codes, "l.weight_scale": scales, "l.weight_scale_2": above}
    return {"l.weight_packed": codes, "l.weight_scale": scales, "l.weight_global_scale": above}


def of_experts() -> dict[str, torch.Tensor]:
    return {
        "l.gate_up_proj": halves(levels_of(1, (2, 64, 24), 4).mT).mT,
        "l.gate_up_proj_weight_scale": floats((2, 4, 24), torch.float32).abs().to(FP8),
        "l.gate_up_proj_weight_scale_2": torch.tensor([0.3, 0.7]),
    }


PERMUTED = torch.randperm(IN, generator=torch.Generator().manual_seed(5)) // GROUP
AWQ = {"quant_method": "awq", "group_size": GROUP}
SCHEMES: dict[str, Callable[[], Packed]] = {
    "GPTQ": lambda: Packed(of_gptq(4), (8, 32), {"group_size": GROUP}),
    "GPTQ, 8 bits": lambda: Packed(of_gptq(8), (4, 32), {"group_size": GROUP}),
    "GPTQ, 3 bits": lambda: Packed(of_gptq(3), (32, 32)),
    "GPTQ, one group": lambda: Packed(of_gptq(4, group=IN), (8, 8)),
    "GPTQ without zeros": lambda: Packed(
        of_gptq(4, has_zeros=False), (1, 32), {"bits": 4, "group_size": GROUP}
    ),
    "GPTQ in any order": lambda: Packed(of_gptq(4, PERMUTED), (8, 8)),
    "GPTQ in the usual order": lambda: Packed(of_gptq(4, torch.arange(IN) // GROUP), (8, 8)),
    "GPTQ with an order never set": lambda: Packed(of_gptq(4, torch.full((IN,), -1)), (8, 32)),
    "GPTQ in groups of 48": lambda: Packed(of_gptq(4, group=48), (8, 48), {"group_size": 48}),
    "GPTQ in groups that nothing names": lambda: Packed(of_gptq(4, group=48), (8, IN)),
    "AWQ": lambda: Packed(of_awq(), (8, 32), AWQ),
    "compressed": lambda: Packed(of_compressed(4), (1, 32)),
    "compressed, 8 bits with zeros": lambda: Packed(of_compressed(8, has_zeros=True), (4, 32)),
    "compressed, 4 bits with zeros": lambda: Packed(of_compressed(4, has_zeros=True), (8, 32)),
    "compressed, 3 bits": lambda: Packed(of_compressed(3), (1, 32)),
    "compressed, 3 bits with zeros": lambda: Packed(
        of_compressed(3, (70, 96), has_zeros=True), (32, 32)
    ),
    "compressed, in an order": lambda: Packed(
        of_compressed(4, order=PERMUTED[PERMUTED < 3]), (1, 8)
    ),
    "compressed, an order never set": lambda: Packed(
        of_compressed(4, order=torch.full((96,), -1)), (1, 32)
    ),
    "compressed, rows that end within a word": lambda: Packed(
        of_compressed(4, (3, 21), 21), (1, 21)
    ),
    "compressed, no number split": lambda: Packed(unsplit(), (1, 128)),
    "FP8 in blocks": lambda: Packed(
        of_blocks((300, 260)), (128, 128), {"weight_block_size": [128, 128]}
    ),
    "FP8 in blocks that nothing names": lambda: Packed(of_blocks((300, 260)), (128, 128)),
    "FP8 in strange blocks": lambda: Packed(
        of_blocks((100, 192), 48, 80), (48, 80), {"weight_block_size": [48, 80]}
    ),
    "FP8 in strange blocks that nothing names": lambda: Packed(
        of_blocks((96, 128), 24, 128), (96, 1)
    ),
    "FP8, a scale for each row": lambda: Packed(
        {"l.weight": floats((10, 64)), "l.weight_scale": scales_of(2, (10, 1))}, (1, 1)
    ),
    "FP8, a scale for each column": lambda: Packed(
        {"l.weight": floats((10, 64)), "l.weight_scale": scales_of(2, (1, 64))}, (1, 1)
    ),
    "FP8, a scale for all": lambda: Packed(
        {"l.weight": floats((10, 64)), "l.weight_scale": scales_of(2, ()),
         "l.input_scale": torch.ones(())}, (1, 1)
    ),
    "FP8, a scale for each expert": lambda: Packed(
        {"l.weight": floats((4, 10, 64)), "l.weight_scale": scales_of(2, (4,))}, (1, 1, 1)
    ),
    "FP8, a scale for each column of experts": lambda: Packed(
        {"l.weight": floats((4, 10, 64)), "l.weight_scale": scales_of(2, (4, 1, 64))}, (1, 1, 1)
    ),
    "INT8 with zero points": lambda: Packed(
        {"l.weight": floats((10, 64), torch.int8), "l.weight_scale": scales_of(2, (10, 1)),
         "l.weight_zero_point": floats((10, 1), torch.int8)}, (1, 1)
    ),
    "LLM.int8()": lambda: Packed(
        {"l.weight": floats((10, 64), torch.int8), "l.SCB": scales_of(2, (10,), torch.float32),
         "l.weight_format": torch.zeros(1).byte()}, (1, 1)
    ),
    "two rows in one": lambda: Packed(
        {"l.weight": levels_of(1, (5, 64), 8).byte(), "l.weight_scale": scales_of(3, (10, 2)),
         "l.pre_quant_scale": scales_of(4, (64,))}, (2, 32)
    ),
    "MLX, 4 bits": lambda: Packed(of_mlx(4), (1, 64), {"group_size": 64, "bits": 4}),
    "MLX, 3 bits": lambda: Packed(of_mlx(3), (1, 64), {"group_size": 64, "bits": 3}),
    "MXFP4": lambda: Packed(
        {"l.weight_packed": halves(levels_of(1, (6, 96), 4)),
         "l.weight_scale": levels_of(2, (6, 3), 7).byte()}, (1, 32)
    ),
    "MXFP4 of one block": lambda: Packed(
        {"l.weight_packed": halves(levels_of(1, (6, 32), 4)),
         "l.weight_scale": levels_of(2, (6, 1), 7).byte()}, (1, 32)
    ),
    "MXFP8": lambda: Packed(
        {"l.weight": floats((4, 64)), "l.weight_scale": levels_of(2, (4, 2), 7).byte()}, (1, 32)
    ),
    "gpt-oss, the original": lambda: Packed(
        {"l.mlp1_weight.blocks": levels_of(1, (3, 20, 4, 16), 8).byte(),
         "l.mlp1_weight.scales": levels_of(2, (3, 20, 4), 7).byte()}, (1, 1, 32)
    ),
    "NVFP4 of ModelOpt": lambda: Packed(of_nvfp4("modelopt"), (1, 16)),
    "NVFP4 of compressed-tensors": lambda: Packed(of_nvfp4("compressed"), (1, 16)),
    "NVFP4, experts packed along the rows": lambda: Packed(of_experts(), (1, 16, 1)),
}  # fmt: skip


def planned(weights: Weights, axis: int, ranks: int) -> ShardPlan:
    rule = CutRule(re.compile("l"), "axiswise", {"axis": axis})
    return shard_plan(weights, Grid(ranks), rules=CutRules("plan.toml", (rule,)))


def rank_weights(plan: ShardPlan, directory: Path, shapes: Sequence[list[int]]) -> list[Any]:
    """Return the one weight of each rank as its own file has it, dequantized."""
    made: list[torch.Tensor] = []
    out = write_shards(plan, directory / "out")
    for rank, shape in enumerate(shapes):
        path = out / f"rank-{rank}" / "model.safetensors"
        if (directory / "config.json").exists():
            shutil.copy(directory / "config.json", path.parent)
        tensors = load_file(path)
        if "l.weight_shape" in tensors:
            # It is that of the whole on every rank, as engines want it.
            save_file(tensors | {"l.weight_shape": torch.tensor(shape)}, path)
        tree = dequantize_weights(open_weights(path), in_blocks=False)
        (name,) = tree.header.tensors
        made.append(numbers(tree, name))
    return made


@each("kind", SCHEMES)
def test_ranks_have_the_numbers_of_the_whole(tmp_path: Path, kind: str) -> None:
    packed = SCHEMES[kind]()
    weights = opened(tmp_path, packed.tensors, packed.settings)
    whole = plain(tmp_path, packed.tensors, packed.settings)
    (name,) = whole.header.tensors
    wanted = numbers(whole, name)
    for axis, block in enumerate(packed.blocks):
        most = -(-wanted.shape[axis] // block)
        for ranks in sorted({min(3, most), min(7, most)}):
            sharding = axiswise(Whole(name, tuple(wanted.shape), packed.blocks), ranks, axis)
            runs = [part[0].ranges[0] if part else (0, wanted.shape[axis])
                    for part in sharding.parts]  # fmt: skip
            cut = [wanted.narrow(axis, start, stop - start) for start, stop in runs]
            plan = planned(weights, axis, ranks)
            found = rank_weights(plan, tmp_path, [list(part.shape) for part in cut])
            assert all(map(same, found, cut))
        with pytest.raises(ShardingError, match=rf"{name}.*axis {axis} across {most + 1} ranks"):
            planned(weights, axis, most + 1)


def four_bit() -> dict[str, torch.Tensor]:
    state = b'{"quant_type": "nf4", "blocksize": 64, "shape": [16, 64]}'
    return {
        "l.weight": levels_of(1, (512, 1), 8).byte(),
        "l.weight.absmax": scales_of(2, (16,), torch.float32),
        "l.weight.quant_map": scales_of(3, (16,), torch.float32),
        "l.weight.quant_state.bitsandbytes__nf4": torch.frombuffer(
            bytearray(state), dtype=torch.uint8
        ),
    }


def for_vectors() -> dict[str, torch.Tensor]:
    """Return a square weight as AutoAWQ's GEMV has it, whose scales are padded."""
    scales = scales_of(3, (128, 8))
    levels, zeros = stream(levels_of(1, (128, 128), 4), 4), stream(levels_of(2, (128, 8), 4), 4)
    return {"l.qweight": levels, "l.qzeros": zeros, "l.scales": scales}


REFUSED: dict[str, tuple[Callable[[], dict[str, torch.Tensor]], dict[str, Any]]] = {
    "NF4": (four_bit, {}),
    "AWQ": (for_vectors, {"quant_method": "awq", "group_size": 32}),
    "BitNet": (
        lambda: {"l.weight": levels_of(1, (4, 64), 8).byte(), "l.weight_scale": torch.ones(1)},
        {"quant_method": "bitnet"},
    ),
    "F8_E4M3 scaled": (
        lambda: {
            "l.weight": levels_of(1, (8, 64), 7).to(torch.float8_e4m3fn),
            "l.weight_scale": torch.ones(8, 1),
            "l.weight_zero_point": torch.zeros(1, 1, dtype=torch.int32),
        },
        {},
    ),
    "INT4 scaled": (lambda: of_compressed(4) | {"l.weight_zero_point": torch.zeros(2, 2, 2)}, {}),
}


@each("kind", REFUSED)
def test_tensors_that_cannot_be_cut_alike_are_refused_and_may_be_whole(
    tmp_path: Path, kind: str
) -> None:
    tensors, settings = REFUSED[kind]
    weights = opened(tmp_path, tensors(), settings)
    with pytest.raises(
        ShardingError, match=rf"`l\.weight`.*stored as {kind}.*cannot split its stored tensors"
    ) as caught:
        planned(weights, 0, 2)
    assert "--plan" in caught.value.hint
    plan = shard_plan(weights, Grid(2), rules=CutRules("plan.toml", ()))
    assert all(parts == ((), ()) for _, parts in plan.shardings.values())


@each("kind", ["F16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"], in_turn=True)
@each("ranks", [2, 3, 4])
def test_ranks_have_the_numbers_of_the_blocks_of_a_gguf(kind: str, ranks: int) -> None:
    sizes = {"heads": 12, "kv_heads": 12, "head_dim": 64, "hidden": 256, "inner": 1280}
    weights = with_bytes(gguf_llama(**sizes, encoding=kind))
    try:
        plan = shard_plan(weights, Grid(ranks))
    except ShardingError:
        # Four of 12 heads are a block of 256.
        assert (kind, ranks) in {("Q4_K", 4), ("Q6_K", 4)}
        return
    for rank, shards in enumerate(plan.ranks):
        for shard in shards:
            info = weights.header.tensors[shard.info.name]
            whole = unpacked(whole_bytes(weights.source, info.name), info)
            entries = [held(plan, info.name, rank, axis) for axis in range(len(info.shape))]
            part = unpacked(shard_bytes(weights.source, shard), shard.info)
            np.testing.assert_array_equal(part, whole[np.ix_(*entries)], strict=True)


def unpacked(raw: bytes, info: TensorInfo) -> np.ndarray[Any, Any]:
    """Return numbers as gguf reads them."""
    kind = gguf.GGMLQuantizationType[info.encoding.name]
    rows = np.frombuffer(raw, np.uint8).reshape(*info.shape[:-1], -1)
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(rows.view(np.float16) if kind == 1 else rows, kind)


def test_it_is_reported_that_shapes_beside_packed_numbers_are_those_of_the_whole(
    tmp_path: Path,
) -> None:
    plan = planned(opened(tmp_path, of_compressed(4)), 0, 2)
    assert [note for note in plan.notes if "weight_shape" in note] == [
        "`.weight_shape` of packed weights has the shape of the whole weight on every rank"
    ]
    assert plan.shardings["l.weight_shape"] == ("replicate", ((), ()))
