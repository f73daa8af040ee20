"""Mistakes in single tensors, or in tensors that belong together: each as a tool makes it.

A mistake is made to a checkpoint in memory, and returns what the checkpoint calls what it changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from faults import of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fault_files import Files

    Array = np.ndarray[Any, Any]
    Hurt = Callable[[Files], tuple[str, ...]]

RANK, LIMIT, ROLL = 4, 1.5, 5


class Mistake(NamedTuple):
    """What is done to a checkpoint, the cause that is to be named, and words of its sentence."""

    hurt: Hurt
    cause: str
    text: str


def changed(module: str, change: Callable[[Array], Array]) -> Hurt:
    """Return the mistake that changes the numbers of one tensor."""
    return lambda files: (files.put(module, change(files.numbers(module))),)


def swapped_rows(array: Array, one: int, other: int, size: int) -> Array:
    """Exchange two blocks of so many rows."""
    blocks = array.reshape(-1, size, *array.shape[1:]).copy()
    blocks[[one, other]] = blocks[[other, one]]
    return blocks.reshape(array.shape)


def query_heads(files: Files) -> tuple[str, ...]:
    module, ours = of("attention.q.weight"), files.ours
    size = len(files.numbers(module)) // ours.heads
    return changed(module, lambda rows: swapped_rows(rows, 1, 3, size))(files)


def heads_of_outputs(files: Files) -> tuple[str, ...]:
    module, ours = of("attention.o.weight"), files.ours
    size = files.numbers(module).shape[1] // ours.heads
    return changed(module, lambda rows: swapped_rows(rows.T, 0, 2, size).T)(files)


def norms(files: Files) -> tuple[str, ...]:
    return files.exchange(of("attention_norm.weight"), of("mlp_norm.weight"))


def norm_copied(files: Files) -> tuple[str, ...]:
    return (files.put(of("mlp_norm.weight"), files.numbers(of("attention_norm.weight"))),)


def low_rank(array: Array) -> Array:
    """Add what an adapter makes: a product of two narrow matrices."""
    random = np.random.default_rng(4)
    rows, columns = array.shape
    numbers = array.astype(np.float32)
    change = random.normal(size=(rows, RANK)) @ random.normal(size=(RANK, columns))
    return numbers + change * numbers.std() / RANK


def clipped(array: Array) -> Array:
    numbers = array.astype(np.float32)
    limit = LIMIT * numbers.std()
    return np.clip(numbers, -limit, limit)


def interleaved(files: Files) -> tuple[str, ...]:
    gate, up = of("mlp.gate.weight"), of("mlp.up.weight")
    both = np.stack([files.numbers(gate), files.numbers(up)], 1)
    return _halves(files, both.reshape(-1, both.shape[-1]))


def taken_apart(files: Files) -> tuple[str, ...]:
    both = np.concatenate([files.numbers(of(f"mlp.{part}.weight")) for part in ("gate", "up")])
    return _halves(files, np.concatenate([both[::2], both[1::2]]))


def _halves(files: Files, both: Array) -> tuple[str, ...]:
    gate, up = np.split(both, 2)
    return files.put(of("mlp.gate.weight"), gate), files.put(of("mlp.up.weight"), up)


MISTAKES = {
    "query heads swapped": Mistake(query_heads, "heads_exchanged", "query heads 1 and 3"),
    "heads of outputs swapped": Mistake(heads_of_outputs, "heads_exchanged", "heads 0 and 2"),
    "norms swapped": Mistake(norms, "norms_exchanged", "are swapped"),
    "norm copied": Mistake(norm_copied, "norms_exchanged", "is a copy of"),
    "columns rolled": Mistake(
        changed(of("mlp.down.weight"), lambda rows: np.roll(rows, ROLL, 1)), "rolled",
        f"columns are rotated by {ROLL} of",
    ),
    "rows rolled": Mistake(
        changed(of("mlp.up.weight"), lambda rows: np.roll(rows, ROLL, 0)), "rolled",
        f"rows are rotated by {ROLL} of",
    ),
    "columns reversed": Mistake(
        changed(of("mlp.down.weight"), lambda rows: rows[:, ::-1]), "permuted",
        "columns are in another order",
    ),
    "two rows swapped": Mistake(
        changed("embedding.weight", lambda rows: swapped_rows(rows, 40, 45, 1)), "permuted",
        "rows 40 and 45 are swapped",
    ),
    "adapter": Mistake(changed(of("attention.v.weight"), low_rank), "low_rank", f"rank {RANK} "),
    "clipped": Mistake(changed(of("mlp.gate.weight"), clipped), "clipped", "clipped to ±"),
    "bytes swapped": Mistake(
        changed(of("mlp.up.weight"), lambda rows: rows.byteswap()), "byte_order", "byte order",
    ),
    "interleaved": Mistake(interleaved, "gate_and_up_interleaved", "are interleaved"),
    "separated": Mistake(taken_apart, "gate_and_up_interleaved", "separated"),
}  # fmt: skip


def units_permuted(files: Files, layer: int, *, with_down: bool = True) -> tuple[str, ...]:
    """Give an MLP's inner units another order, which its other side may or may not have too."""
    prefix = of("mlp.", layer)
    first = files.numbers(f"{prefix}gate.weight")
    order = np.random.default_rng(5).permutation(len(first))
    names = [
        files.put(f"{prefix}{part}.weight", files.numbers(f"{prefix}{part}.weight")[order])
        for part in ("gate", "up")
    ]
    if with_down:
        down = f"{prefix}down.weight"
        names.append(files.put(down, files.numbers(down)[:, order]))
    return tuple(names)


def heads_permuted(files: Files, layer: int, *, with_outputs: bool = True) -> tuple[str, ...]:
    """Swap two KV heads with their query heads, in what comes after them too or not."""
    ours = files.ours
    shared = ours.heads // ours.kv_heads
    names: list[str] = []
    for part, size in (("q", shared), ("k", 1), ("v", 1)):
        module = of(f"attention.{part}.weight", layer)
        rows = files.numbers(module)
        names.append(files.put(module, swapped_rows(rows, 0, 1, size * ours.head_dim)))
    if with_outputs:
        module = of("attention.o.weight", layer)
        rows = files.numbers(module)
        turned = swapped_rows(rows.T, 0, 1, shared * ours.head_dim).T
        names.append(files.put(module, turned))
    return tuple(names)
