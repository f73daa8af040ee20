"""The weights of a planned model directory, and the types of serving engines that they can get."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.budget.limits import KEEP
from weightctl.budget.space import SearchedTensor
from weightctl.codecs import transcode
from weightctl.dtype import ENCODINGS
from weightctl.families.names import joined_name, split_layer_number
from weightctl.families.recognition import recognize
from weightctl.schemes.dequantize import dequantize_weights
from weightctl.weights.derived import Derived, StoredTensor
from weightctl.weights.tree import Checkpoint, source_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.codecs.base import F32
    from weightctl.families import RecognizedModel
    from weightctl.plan.plan import Plan
    from weightctl.weights.derived import ReadableTensor

# The number of values of a weight that are sampled, in so many groups of rows.
_SAMPLE, _GROUPS = 1 << 18, 8
_EXPERTS = ".experts."


class SchemeSpace:
    """The weights that the types of a model directory can store.

    `plan` is the plan without quantization, and `plans` has that of each type for all weights. With
    `can_keep`, weights can also keep their type.
    """

    alignment = 1

    def __init__(self, plan: Plan, plans: Mapping[str, Plan], *, can_keep: bool) -> None:
        self._plan = plan
        self._decoded = {
            kind: source_of(dequantize_weights(Checkpoint(each.source), in_blocks=False))
            for kind, each in plans.items()
        }
        nbytes: dict[str, dict[str, int]] = {}
        for kind, each in plans.items():
            for item in each.items:
                if item.weight:
                    made = nbytes.setdefault(item.weight, {})
                    made[kind] = made.get(kind, 0) + item.info.nbytes
        items = {item.info.name: item for item in plan.items}
        if can_keep:
            for name, made in nbytes.items():
                made[KEEP] = items[name].info.nbytes
        self.tensors = [
            SearchedTensor(name, items[name].info.size, made, KEEP) for name, made in nbytes.items()
        ]
        self.others = [item.info.nbytes for name, item in items.items() if name not in nbytes]
        self.size = sum(item.info.size for item in plan.items)
        self._sources = {name: StoredTensor(plan.source, items[name].source.name) for name in items}

    def view(self, types: Mapping[str, str] | None = None) -> RecognizedModel:
        """Return the model with weights in these types."""
        plan = self._plan
        tensors: dict[str, ReadableTensor] = {}
        for name, source in self._sources.items():
            kind = (types or {}).get(name, KEEP)
            tensors[name] = source if kind == KEEP else StoredTensor(self._decoded[kind], name)
        return recognize(Checkpoint(Derived(plan.source, tensors, plan.metadata, plan.tied)))

    def measure_errors(self, tensor: SearchedTensor) -> dict[str, float]:
        """Return the mean squared error of each type, on groups of rows."""
        found = dict.fromkeys(tensor.nbytes, 0.0)
        source = self._sources[tensor.name]
        rows, columns = source.info.shape
        size = max(1, min(rows, _SAMPLE // columns) // _GROUPS)
        starts = sorted({round(float(at)) for at in np.linspace(0, rows - size, _GROUPS)})
        for start in starts:
            values = _read_rows(source, start, size)
            for kind in tensor.nbytes:
                if kind != KEEP:
                    made = _read_rows(StoredTensor(self._decoded[kind], tensor.name), start, size)
                    found[kind] += float(np.square(values - made, dtype=np.float64).sum())
        return {kind: total / (len(starts) * size * columns) for kind, total in found.items()}

    def join(self, name: str) -> tuple[int | None, str]:
        """Return the layer of a weight, and the name of what engines join it to.

        Engines join queries, keys and values, gate and up, and all experts of a layer.
        """
        above, is_expert, _ = name.partition(_EXPERTS)
        return split_layer_number(name)[0], above if is_expert else joined_name(name)


def _read_rows(tensor: ReadableTensor, start: int, count: int) -> F32:
    """Return rows of a matrix as float32[count, columns]."""
    encoding, columns = tensor.info.encoding, tensor.info.row
    width = encoding.nbytes((columns,))
    raw = np.empty((count, width), np.uint8)
    tensor.read_into(start * width, raw.reshape(-1).data)
    made = transcode(raw, encoding, ENCODINGS["F32"]).raw
    return np.ascontiguousarray(made).view(np.float32).reshape(count, columns)
