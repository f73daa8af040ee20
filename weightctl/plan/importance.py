"""Application of an importance matrix: how much an error in each column of a matrix matters.

The importance of all columns of a matrix can be 0, or so small that it vanishes in float32: older
files have such entries for experts that the text never reached. For these matrices, llama.cpp's
quantize writes blocks of zeros in most encodings, without a message. weightctl quantizes such a
matrix as if it had no entry or, if the encoding needs importance, with equal importance of all
columns. It adds a note: the bytes deliberately differ from llama.cpp's.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from weightctl.errors import ConversionError
from weightctl.formats.open.index import few
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightctl.formats.imatrix import Importance
    from weightctl.plan.plan import Item, Plan

# Embeddings are looked up and not multiplied, so their importance can have another size. llama.cpp
# then quantizes them without it.
LOOKED_UP = {"token_embd.weight", "per_layer_token_embd.weight"}

# The metadata keys that llama.cpp's quantize writes, in its order.
_FILE = "quantize.imatrix.file"
_DATASET = "quantize.imatrix.dataset"
_ENTRIES = "quantize.imatrix.entries_count"
_CHUNKS = "quantize.imatrix.chunks_count"
# How the values of a file were rounded, if not each to the nearest code.
ROUNDING, _FEEDBACK = "weightctl.rounding", "error feedback"
_ALL = {_FILE, _DATASET, _ENTRIES, _CHUNKS, ROUNDING}


def apply_importance(plan: Plan, importance: Importance, *, feedback: bool = True) -> Plan:
    """Use an importance matrix in the search for blocks, as llama.cpp's quantize does.

    If the file has products of columns, matrices are rounded with error feedback, unless `feedback`
    is False.

    Entries apply by name, to tensors that become a block encoding whose search uses weights. Notes
    of the plan name the tensors without an entry or with an entry of 0, and count the entries
    without a tensor. All values that will be used are read once, one matrix at a time, and are not
    kept in memory. Raises `ConversionError` if no tensor becomes a block encoding, if no entry has
    the name of a tensor, or if an entry does not have the size of its tensor; raises `FormatError`
    if a value is negative or not finite.
    """
    if not any(item.info.encoding.quantization and not item.is_copy for item in plan.items):
        raise ConversionError(
            "an importance matrix only applies to block types, but no tensor is quantized to one",
            hint="choose a block type, for example --quant Q4_K (quant in Python)",
        )
    values, path = importance.values, importance.path
    names = {item.info.name for item in plan.items}
    if not names & values.keys():
        raise ConversionError(
            f"{path} has no entry for any tensor: its first entry is `{next(iter(values), '')}`, "
            f"but the first tensor is `{plan.items[0].info.name}`",
            hint="use the importance matrix of this model, and convert to GGUF's names",
        )
    items = tuple(_add_importance(item, importance) for item in plan.items)
    idle = {item.info.name: count for item in items if (count := _idle_matrices(item))}
    items = tuple(
        item
        if item.importance is None
        or idle.get(item.info.name) != item.importance.shape[0]
        or item.info.encoding.needs_importance
        else replace(item, importance=None)
        for item in items
    )
    items = tuple(_add_hessian(item, importance if feedback else None) for item in items)
    notes = _notes(plan, items, importance, idle, feedback=feedback)
    metadata = {key: value for key, value in plan.metadata.items() if key not in _ALL}
    if any(item.hessian is not None for item in items):
        metadata[ROUNDING] = MetadataValue("string", _FEEDBACK)
    return replace(
        plan,
        items=items,
        metadata=metadata | _record_importance(importance),
        consulted={**plan.consulted, path: "the importance matrix"},
        notes=(*plan.notes, *notes),
    )


def describe_feedback(count: int, alone: Sequence[str]) -> str:
    """Return a note for `count` tensors; `alone` are those without error feedback."""
    note = f"{count - len(alone)} of {count} tensors are rounded with error feedback"
    return note + (f", but not {few(alone)}" if alone else "")


def states_feedback(metadata: Mapping[str, MetadataValue]) -> bool:
    """Whether a checkpoint says that values were rounded with error feedback."""
    stated = metadata.get(ROUNDING)
    return stated is not None and stated.content == _FEEDBACK


def _uses_importance(item: Item) -> bool:
    return not item.is_copy and item.info.encoding.takes_importance


def _add_importance(item: Item, importance: Importance) -> Item:
    name, shape = item.info.name, item.info.shape
    values = importance.values.get(name)
    if values is None or not _uses_importance(item):
        return item
    matrices = prod(shape[:-2])
    if values.size == matrices * item.info.row:
        return replace(item, importance=values.reshape(matrices, item.info.row))
    if name in LOOKED_UP:
        return item
    raise ConversionError(
        f"`{name}` has {matrices} x {item.info.row} columns, but {importance.path} has "
        f"{values.size} values for it" if matrices > 1
        else f"`{name}` has {item.info.row} columns, but {importance.path} has {values.size} "
        "values for it",
        hint="the importance matrix belongs to another model; use one that was made with this "
            "model",
    )  # fmt: skip


def _add_hessian(item: Item, importance: Importance | None) -> Item:
    """Return an item with its products of columns; without `importance`, it gets none."""
    if item.hessian is not None:  # of an earlier plan
        item = replace(item, hessian=None)
    from weightctl.codecs.feedback.parts import has_parts  # plans for copies need no NumPy

    hessian = None if importance is None else importance.hessians.get(item.info.name)
    if (
        importance is None
        or hessian is None
        or item.importance is None
        or not has_parts(item.info.encoding)
    ):
        return item
    if item.importance.shape != (1, hessian.columns):
        raise ConversionError(
            f"`{item.info.name}` has {item.info.row} columns, but {importance.path} has the "
            f"products of {hessian.columns} columns for it",
            hint="create the importance matrix again with this model",
        )
    return item if item.is_idle(0) else replace(item, hessian=hessian)


def _idle_matrices(item: Item) -> int:
    """Return the number of a tensor's matrices whose importance is 0; this reads all of it."""
    if item.importance is None:
        return 0
    return sum(item.is_idle(matrix) for matrix in range(item.importance.shape[0]))


def _notes(
    plan: Plan,
    items: Sequence[Item],
    importance: Importance,
    idle: Mapping[str, int],
    *,
    feedback: bool,
) -> Iterator[str]:
    path, entries = importance.path, importance.values
    weighted = [item for item in items if _uses_importance(item)]
    if feedback and importance.hessians:
        alone = [item.info.name for item in weighted if item.hessian is None]
        yield describe_feedback(len(weighted), alone)
    if not weighted:
        yield f"{path} changes nothing: no tensor becomes a type that can use it"
    without = [
        item.info.name
        for item in weighted
        if item.importance is None and item.info.name not in idle
    ]
    if without:
        yield (
            f"{len(without)} of {len(weighted)} tensors have no entry in {path}, and are "
            f"quantized without it: {few(without)}"
        )
    if idle:
        total = sum(prod(item.info.shape[:-2]) for item in weighted if item.info.name in idle)
        yield (
            f"{sum(idle.values())} of {total} matrices in {len(idle)} tensor"
            f"{'s' * (len(idle) > 1)} have importance 0 in {path}, and are quantized without "
            f"it: {few(idle)}"
        )
    # Entries for tensors that are not part of the plan are not reported.
    known = {*plan.source.header.tensors, *(item.info.name for item in items)}
    unmatched = [name for name in entries if name not in known]
    if unmatched:
        yield f"{len(unmatched)} of {len(entries)} entries of {path} belong to no tensor: " + few(
            unmatched
        )


def _record_importance(importance: Importance) -> dict[str, MetadataValue]:
    made = {_FILE: MetadataValue("string", importance.path)}
    if importance.dataset:
        made[_DATASET] = MetadataValue("string", importance.dataset)
    made[_ENTRIES] = MetadataValue("u32", len(importance.values))
    if importance.chunks:
        made[_CHUNKS] = MetadataValue("u32", importance.chunks)
    return made
