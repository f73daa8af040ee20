"""GGUF files of blocks beside a config, and the plans of their conversion to schemes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf

import weightctl

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from weightctl.plan.plan import Plan

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
    """Return the plan of a conversion to a scheme."""
    return weightctl.convert(
        source, source.parent / "planned", quant=quant, dry_run=True, **options
    ).plan
