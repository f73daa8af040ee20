"""Quantized layers, packed bit by bit as the tools do, and what their arithmetic makes of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

import weightctl
from lazy import save_file, torch
from weightctl import open_weights
from weightctl.schemes.dequantize import dequantize_weights

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from weightctl import Weights
    from weightctl.plan.plan import Plan


# Quantized layers, packed bit by bit as the tools do, and what their own arithmetic makes of them.
# Nothing here comes from weightctl but the door that opens what was written.

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def opened(directory: Path, tensors: dict[str, torch.Tensor], settings: object = None) -> Weights:
    directory.mkdir(exist_ok=True)
    save_file({name: t.contiguous() for name, t in tensors.items()}, directory / "m.safetensors")
    if settings is not None:
        config = {"quantization_config": settings}
        (directory / "config.json").write_text(json.dumps(config))
    return open_weights(str(directory / "m.safetensors"))


def plain(
    directory: Path, tensors: dict[str, torch.Tensor], settings: object = None,
    *, in_blocks: bool = False,
) -> Weights:  # fmt: skip
    return dequantize_weights(opened(directory, tensors, settings), in_blocks=in_blocks)


def read(weights: Weights, name: str, run: int = 1 << 30) -> NDArray[np.uint8]:
    """Return a tensor's bytes, read in runs of so many blocks of its encoding."""
    info = weights.header.tensors[name]
    made = bytearray(info.nbytes)
    step = run * info.encoding.size
    for start in range(0, info.nbytes, step):
        piece = memoryview(made)[start : start + step]
        weights.source.read_into(name, start, piece)
    return np.frombuffer(made, np.uint8)


def numbers(weights: Weights, name: str, run: int = 1 << 30) -> torch.Tensor:
    info = weights.header.tensors[name]
    assert info.encoding.name == "F32"
    values = read(weights, name, run).view(np.float32).reshape(info.shape)
    return torch.from_numpy(values.copy())


def same(made: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether two tensors are of the same bits."""
    wanted = wanted.contiguous()
    assert made.dtype == wanted.dtype == torch.float32
    return made.shape == wanted.shape and bool(
        (made.view(torch.int32) == wanted.view(torch.int32)).all()
    )


def stream(levels: torch.Tensor, bits: int) -> torch.Tensor:
    """Return rows of levels as int32: one stream of bits for each row, the lowest first."""
    rows = []
    for row in levels.tolist():
        value = sum(level << (bits * i) for i, level in enumerate(row))
        nbytes = -(-len(row) * bits // 32) * 4
        rows.append(np.frombuffer(value.to_bytes(nbytes, "little"), np.int32).copy())
    return torch.from_numpy(np.stack(rows))


def levels_of(seed: int, shape: tuple[int, ...], bits: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 1 << bits, shape, generator=generator)


def scales_of(seed: int, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return ((torch.rand(shape, generator=generator) + 0.1) / 64).to(dtype or torch.float16)


def gptq(
    levels: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor, bits: int,
    g_idx: torch.Tensor | None = None, *, less: int = 1,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """GPTQ tensors of levels (in, out), zeros and scales (groups, out)."""
    made = {
        "l.qweight": stream(levels.T, bits).T,
        "l.qzeros": stream((zeros - less) % (1 << bits), bits),
        "l.scales": scales,
    }
    return made if g_idx is None else made | {"l.g_idx": g_idx.to(torch.int32)}


def awq(levels: torch.Tensor) -> torch.Tensor:
    """Return levels (rows, columns) packed along the columns in AutoAWQ's order."""
    grouped = levels.reshape(len(levels), -1, 8)[..., AWQ_ORDER]
    return stream(grouped.reshape(len(levels), -1), 4)


def settings(kind: str, **others: Any) -> dict[str, Any]:
    return {"quant_method": kind, **others}


# GGUF files of blocks beside a config, and the plans of their conversion to schemes.

NAME = "layers.0.q_proj.weight"


def gguf_with(directory: Path, tensors: Mapping[str, tuple[str, NDArray[np.uint8]]]) -> Path:
    """Return a GGUF with blocks by name, beside a config."""
    directory.mkdir(exist_ok=True)
    path = directory / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.kv_data[0].clear()
    for name, (kind, raw) in tensors.items():
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (directory / "config.json").write_text('{"torch_dtype": "float16"}')
    return path


def plan_of(source: Path, quant: str, **options: Any) -> Plan:
    return weightctl.convert(
        source, source.parent / "planned", quant=quant, dry_run=True, **options
    ).plan
