"""Faults that ruin a model and leave a file that is sound: each as a tool's mistake makes it.

What a fault changes is told, so that a test can say whether what names it names the right thing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import fault_files
from small_models import rope_rows
from weightctl.families.row_orders import half_split_order

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from fault_files import Files

LAYER, OTHER = 1, 0


class Injected(NamedTuple):
    """A checkpoint with a fault: what names it, and what caused it where that is to be told.

    `where` are tensors and keys as the checkpoint calls them; naming one of them is enough.
    `layer` is the block that is hurt first, None where it is of none or all are.
    """

    path: Path
    where: tuple[str, ...]
    cause: str | None = None
    layer: int | None = LAYER


class Fault(NamedTuple):
    """How a checkpoint is hurt: `hurt` returns what it changed."""

    hurt: Callable[[Files], tuple[str, ...]]
    cause: str | None = None
    layer: int | None = LAYER


def of(part: str, layer: int = LAYER) -> str:
    return f"layers.{layer}.{part}"


def _in_other_order(files: Files, part: str, layer: int) -> str:
    ours: Any = files.ours
    module = of(f"attention.{part}.weight", layer)
    heads = ours.heads if part == "q" else ours.kv_heads
    rows = files.numbers(module)
    if files.is_gguf:
        return files.put(module, rows[list(half_split_order(heads, ours.head_dim))])
    return files.put(module, rope_rows(rows, heads))


def _permuted(parts: str, layers: Callable[[Any], range]) -> Callable[[Files], tuple[str, ...]]:
    def hurt(files: Files) -> tuple[str, ...]:
        return tuple(
            _in_other_order(files, part, layer) for layer in layers(files.ours) for part in parts
        )

    return hurt


def _one(_: Any) -> range:
    return range(LAYER, LAYER + 1)


def _all(ours: Any) -> range:
    return range(ours.layers)


def _gate_and_up(files: Files) -> tuple[str, ...]:
    return files.exchange(of("mlp.gate.weight"), of("mlp.up.weight"))


def _key_and_value(files: Files) -> tuple[str, ...]:
    if not files.has(of("attention.qkv.weight")):
        kinds = [kind for kind in ("weight", "bias") if files.has(of(f"attention.k.{kind}"))]
        return tuple(
            name
            for kind in kinds
            for name in files.exchange(of(f"attention.k.{kind}"), of(f"attention.v.{kind}"))
        )
    return tuple(
        files.put(module, _last_thirds_exchanged(files.numbers(module), files.is_gguf))
        for module in (of("attention.qkv.weight"), of("attention.qkv.bias"))
    )


def _last_thirds_exchanged(array: NDArray[Any], is_gguf: bool) -> NDArray[Any]:
    along = 0 if is_gguf else -1
    query, key, value = np.split(array, 3, along)
    return np.concatenate((query, value, key), along)


def _square(files: Files) -> tuple[str, ...]:
    module = of("attention.o.weight")
    return (files.put(module, np.ascontiguousarray(files.numbers(module).T)),)


def _layers(files: Files) -> tuple[str, ...]:
    parts = [module.partition(".1.")[2] for module in files.modules(f"layers.{LAYER}.")]
    return tuple(
        name for part in parts for name in files.exchange(of(part, OTHER), of(part, LAYER))
    )


def _zeroed(files: Files) -> tuple[str, ...]:
    module = of("mlp.down.weight")
    return (files.put(module, np.zeros_like(files.numbers(module))),)


def _row_lost(files: Files) -> tuple[str, ...]:
    rows = files.numbers("embedding.weight")
    rows[len(rows) // 3] = 0
    return (files.put("embedding.weight", rows),)


def _less_one(files: Files) -> tuple[str, ...]:
    module = of("attention_norm.weight")
    return (files.put(module, files.numbers(module) - 1),)


def _times(factor: float, *names: str) -> Callable[[Files], tuple[str, ...]]:
    """Return the fault of a config in which a value is another; `names` are by convention."""

    def hurt(files: Files) -> tuple[str, ...]:
        stated = files.stated(*names)
        return tuple(files.say(key, value * factor) for key, value in stated.items())

    return hurt


def _heads(files: Files) -> tuple[str, ...]:
    """Make heads fewer and wider, so that every shape still fits."""
    ours: Any = files.ours
    by = next(by for by in (2, 3) if getattr(ours, "kv_heads", ours.heads) % by == 0)
    counts = files.stated(
        "attention.head_count", "attention.head_count_kv",
        "num_attention_heads", "n_head", "num_key_value_heads",
    )  # fmt: skip
    widths = files.stated(
        "attention.key_length", "attention.value_length", "rope.dimension_count", "head_dim"
    )
    for key, value in widths.items():
        files.say(key, value * by)
    return tuple(files.say(key, value // by) for key, value in counts.items())


def _more_kv_heads(files: Files) -> tuple[str, ...]:
    ours: Any = files.ours
    keys = files.stated("attention.head_count_kv", "num_key_value_heads")
    return tuple(files.say(key, ours.heads) for key in keys)


def _bias_dropped(files: Files) -> tuple[str, ...]:
    return (files.drop(of("mlp.up.bias")),)


def _output_forgotten(files: Files) -> tuple[str, ...]:
    return (files.drop("output.weight"),)


FAULTS = {
    "q permuted": Fault(_permuted("q", _one), "rope_rows"),
    "k permuted": Fault(_permuted("k", _one), "rope_rows"),
    "q and k permuted everywhere": Fault(_permuted("qk", _all), "rope_rows", 0),
    "gate and up swapped": Fault(_gate_and_up, "gate_and_up_swapped"),
    "k and v swapped": Fault(_key_and_value, "key_and_value_swapped"),
    "square transposed": Fault(_square, "transposed"),
    "layers exchanged": Fault(_layers, "layers_exchanged", OTHER),
    "zeroed": Fault(_zeroed, "zeroed"),
    "row lost": Fault(_row_lost, "rows_lost", None),
    "norm off by one": Fault(_less_one, "norm_offset"),
    "rope theta": Fault(_times(10, "rope.freq_base", "rope_theta"), "config", 0),
    "norm eps": Fault(
        _times(
            10,
            *("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"),
            *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"),
        ),
        "config",
        0,
    ),
    "head count": Fault(_heads, "config", 0),
    "kv heads contradict": Fault(_more_kv_heads, "config", None),
    "bias dropped": Fault(_bias_dropped, "bias_dropped"),
    "output forgotten": Fault(_output_forgotten, "output_forgotten", None),
}
# Those that a model can have.
LLAMA = [fault for fault in FAULTS if fault not in {"bias dropped", "output forgotten"}]
BIASED = [
    "k and v swapped", "square transposed", "layers exchanged", "zeroed", "row lost",
    "norm off by one", "norm eps", "head count", "bias dropped",
]  # fmt: skip
APPLY = {
    "tiny-llama": [*LLAMA, "output forgotten"],
    "smollm2": LLAMA,
    "gpt2": BIASED,
    "bert": BIASED,
}


def inject(source: Path, out: Path, fault: str) -> Injected:
    """Write a copy of a checkpoint that has a fault."""
    files = fault_files.read(source)
    hurt, cause, layer = FAULTS[fault]
    where = hurt(files)
    assert where, "the fault changed nothing"
    return Injected(files.write(out), where, cause, layer)
