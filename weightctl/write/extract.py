"""Extracts a LoRA adapter from two models, and writes it as PEFT does."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from weightctl.errors import ConversionError
from weightctl.formats import format_by_suffix
from weightctl.formats.huggingface import ADAPTER_CONFIG
from weightctl.formats.open.opening import open_weights
from weightctl.plan.plan import Plan
from weightctl.schemes.dequantize import dequantize_weights
from weightctl.system.files import SEPARATORS
from weightctl.text.documents import NOT_DOCUMENTED
from weightctl.text.wording import join_names, pluralize
from weightctl.write.convert import convert
from weightctl.write.outcome import describe
from weightctl.write.targets import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightctl.adapters.extraction import ExtractedWeight
    from weightctl.dtype import DTypeLike, Encoding
    from weightctl.write.conversion import Conversion

_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Extracted:
    """An adapter that was extracted and written.

    `captured` is the part, from 0 to 1, of the squares of all differences that the adapter has.
    `unchanged` is the number of equal tensors, and `left_out` are the names of tensors that differ,
    but are not matrices.
    """

    base: str
    tuned: str
    output: str
    captured: float
    unchanged: int
    left_out: list[str]
    tensors: list[ExtractedWeight]
    conversion: Conversion = field(repr=False, metadata=NOT_DOCUMENTED)

    @property
    def notes(self) -> list[str]:
        if not self.left_out:
            return []
        shown = join_names(self.left_out, _MOST_NAMED)
        count = pluralize(len(self.left_out), "tensor")
        return [f"not in the adapter: {count} that differ, but are not matrices ({shown})"]


def extract(
    base: str | os.PathLike[str],
    tuned: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    rank: int = 32,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    dtype: DTypeLike | Encoding | None = None,
    force: bool = False,
    progress: Callable[[int], object] | None = None,
) -> Extracted:
    """Write the LoRA adapter of a rank that turns the model `base` into the model `tuned`.

    `out` is the directory for PEFT. `include` and `exclude` are patterns of the names of weights.
    `dtype` stores the matrices in another type than float32. `progress` gets the number of bytes of
    the base that were compared. Raises `ConversionError`, `FormatError` and `OutputError`, which
    are `WeightctlError`s with a hint.
    """
    from weightctl.adapters.extraction import extract_pairs

    if rank < 1:
        raise ConversionError(f"the rank must be at least 1, not {rank}")
    if format_by_suffix(os.fspath(out)):
        raise ConversionError(
            f"{out} has the suffix of a file, and the adapter is a directory",
            hint="use a path without a suffix; `weightctl convert ADAPTER adapter.gguf --base "
            "MODEL` then writes a file for llama.cpp",
        )
    where = Target(os.fspath(out).rstrip(SEPARATORS), "safetensors", "adapter_model.safetensors")
    models = [
        dequantize_weights(open_weights(path), in_blocks=False, keeps_shapes=True)
        for path in (base, tuned)
    ]
    # An output that cannot be written is reported before the work.
    empty = replace(Plan.copy({}, "safetensors"), documents={ADAPTER_CONFIG: b""})
    describe(empty, where).refuse(force=force)
    adapter = extract_pairs(
        models[0],
        models[1],
        rank,
        include=[include] if isinstance(include, str) else include,
        exclude=[exclude] if isinstance(exclude, str) else exclude,
        where=os.fspath(base),
        progress=progress,
    )
    plan = Plan.copy(adapter.tensors, "safetensors")
    plan = replace(plan, documents={ADAPTER_CONFIG: adapter.settings})
    energy = sum(each.energy for each in adapter.weights)
    captured = sum(each.captured * each.energy for each in adapter.weights)
    return Extracted(
        os.fspath(base),
        os.fspath(tuned),
        os.fspath(out),
        captured / energy if energy else 1.0,
        adapter.unchanged,
        adapter.left_out,
        adapter.weights,
        convert(plan, where, dtype=dtype, force=force),
    )
