"""Which tensors of a model share the scales of activations, if a scheme scales them as AWQ does.

Weights that multiply the same inputs share factors, and what computes these inputs is divided by
them: the norm before queries, keys and values, the norm before gate and up, the values before the
output of attention, and up before down. Roles are those of llama.cpp's names. A layer that has
other parts than a decoder with norms before its blocks may use the inputs elsewhere, and is left
as it is.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ConversionError
from weightctl.formats.imatrix.entry import Hessian
from weightctl.weights.derived import DerivedTensor, StoredTensor
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightctl.plan.plan import Described, Plan
    from weightctl.plan.scheme_decisions import Decision
    from weightctl.plan.scheme_names import SchemeRecipe
    from weightctl.schemes.arrays.activation import ActivationScale, Consumer
    from weightctl.schemes.arrays.search import ScaleSearch
    from weightctl.schemes.layout import WeightEncoding
    from weightctl.weights.derived import ReadableTensor

_IN_LAYER = re.compile(r"^blk\.(\d+)\.(.+)$")
_ATTENTION = frozenset({
    "attn_norm", "attn_q", "attn_k", "attn_v", "attn_qkv", "attn_q_norm", "attn_k_norm",
    "attn_output", "post_attention_norm", "post_ffw_norm",
})  # fmt: skip
_FEED_FORWARD = frozenset({"ffn_norm", "ffn_gate", "ffn_up", "ffn_down"})
_QUERIES = ("attn_q", "attn_k", "attn_v")


class ScaledTensors(NamedTuple):
    """The tensors that are scaled, the searches for scaled weights, both by name, and notes."""

    tensors: Mapping[str, ReadableTensor]
    searches: Mapping[str, ScaleSearch]
    notes: tuple[str, ...] = ()


class _Layer:
    """The decisions of a layer by role, such as `attn_q.weight`, and the scales of its parts."""

    def __init__(self, parts: Mapping[str, Decision]) -> None:
        self.parts = parts
        self.columns: dict[str, ActivationScale] = {}
        self.rows: dict[str, ActivationScale] = {}
        self.norms: dict[str, ActivationScale] = {}
        names = {role.rpartition(".")[0] for role in parts}
        forward = {name for name in names if name.startswith("ffn_")}
        self.is_known = names - forward <= _ATTENTION
        self.has_forward = self.is_known and forward <= _FEED_FORWARD
        self.is_sequential = "ffn_norm" in names

    def find_rounded(self, *names: str) -> list[Decision] | None:
        """Return the decisions on weights if all are there and rounded."""
        found = [self.parts.get(f"{name}.weight") for name in names]
        made = [each for each in found if each and each.is_quantized and not each.is_exact]
        return made if made and len(made) == len(found) else None


def scale_activations(
    plan: Plan,
    recipe: SchemeRecipe,
    decisions: Sequence[Decision],
    encodings: Mapping[str, WeightEncoding],
    searches: Mapping[str, ScaleSearch],
) -> ScaledTensors:
    """Return the tensors that are scaled; nothing if the scheme does not scale activations.

    `encodings` and `searches` are those of the rounded weights, by name. Nothing is read. Raises
    `ConversionError` if the user asks for scaling without an importance matrix.
    """
    if not recipe.choice.options.scaled:
        return ScaledTensors({}, {})
    if not any(each.importance is not None for each in searches.values()):
        if recipe.choice.scheme.defaults.scaled:
            return ScaledTensors({}, {})
        raise ConversionError(
            f"{recipe.choice} scales weights by their inputs, for which an importance matrix is "
            "needed",
            hint="use --imatrix FILE (imatrix in Python) with a file that llama-imatrix made for "
            "this model, or leave out scaled=yes",
        )
    described = plan.describe() if plan.describe is not None else None
    finder = _Finder(plan, described, encodings, searches)
    tensors: dict[str, ReadableTensor] = {}
    scaled: dict[str, ScaleSearch] = {}
    for layer in _find_layers(decisions, described):
        finder.scale(layer)
        tensors.update(finder.list_tensors(layer))
        scaled.update(finder.list_searches(layer))
    note = f"{recipe.choice} scales {len(scaled)} of {len(searches)} weights by their inputs"
    more = "; the others have no usual place in a layer, or no importance"
    return ScaledTensors(tensors, scaled, (note + more * (len(scaled) < len(searches)),))


def _find_layers(decisions: Sequence[Decision], described: Described | None) -> Iterator[_Layer]:
    names = dict[str, str]() if described is None else described.names
    found: dict[str, dict[str, Decision]] = {}
    for each in decisions:
        match = _IN_LAYER.match(names.get(each.item.info.name, ""))
        if match is not None and len(each.item.sources) == 1:
            found.setdefault(match[1], {})[match[2]] = each
    yield from (_Layer(parts) for parts in found.values())


class _Finder:
    """What finds the scales of layers, and makes the tensors of these."""

    def __init__(
        self,
        plan: Plan,
        described: Described | None,
        encodings: Mapping[str, WeightEncoding],
        searches: Mapping[str, ScaleSearch],
    ) -> None:
        self._plan, self._encodings, self._searches = plan, encodings, searches
        self._offsets = dict[str, float]() if described is None else described.norm_offsets
        self._metadata = dict[str, MetadataValue]() if described is None else described.metadata

    def scale(self, layer: _Layer) -> None:
        """Find which parts of a layer share scales."""
        if not layer.is_known:
            return
        if layer.is_sequential:
            self._scale_after_norm(layer, "attn_norm", _QUERIES)
        if layer.has_forward:
            gated = "ffn_gate.weight" in layer.parts
            after = ("ffn_gate", "ffn_up") if gated else ("ffn_up",)
            self._scale_after_norm(layer, "ffn_norm", after)
            if gated:
                self._scale_after_rows(layer, "ffn_up", "ffn_down", 1, 1)
        is_clamped = any(key.endswith("attention.clamp_kqv") for key in self._metadata)
        values = layer.find_rounded("attn_v")
        output = layer.find_rounded("attn_output")
        if not is_clamped and values and output and layer.find_rounded(*_QUERIES):
            rows, columns = values[0].item.info.shape[0], output[0].item.info.row
            heads = self._count_kv_heads(rows)
            if columns % rows == 0 and (heads or columns == rows):
                shared = (columns // rows, rows // heads) if heads else (1, 1)
                self._scale_after_rows(layer, "attn_v", "attn_output", *shared)

    def _count_kv_heads(self, rows: int) -> int:
        """Return the number of KV heads; 0 if it is unknown, or if layers differ."""
        for ending in ("attention.head_count_kv", "attention.head_count"):
            for key, value in self._metadata.items():
                if key.endswith(ending):
                    count = value.content
                    usable = isinstance(count, int) and count > 0 and rows % count == 0
                    return int(count) if usable else 0
        return 0

    def _consumers(self, layer: _Layer, names: tuple[str, ...]) -> list[Consumer]:
        """Return weights that share inputs; nothing unless all are rounded with importance."""
        from weightctl.schemes.arrays.activation import Consumer

        found: list[Consumer] = []
        for each in layer.find_rounded(*names) or ():
            name = each.item.info.name
            search = self._searches.get(name)
            if search is None or search.importance is None or len(each.item.info.shape) != 2:
                return []
            tensor = StoredTensor(self._plan.source, each.item.source.name)
            found.append(Consumer(tensor, self._encodings[name].rounding, search))
        return found

    def _scale_after_norm(self, layer: _Layer, norm: str, names: tuple[str, ...]) -> None:
        from weightctl.schemes.arrays.activation import ActivationScale

        weight = layer.parts.get(f"{norm}.weight")
        consumers = self._consumers(layer, names)
        if weight is None or f"{norm}.bias" in layer.parts or not consumers:
            return
        info = weight.item.info
        offset = self._offsets.get(info.name)
        if offset is None or weight.is_quantized or not weight.encoding.is_real:
            return
        if any(each.tensor.info.row != info.row for each in consumers) or len(info.shape) != 1:
            return
        stored = StoredTensor(self._plan.source, weight.item.source.name)
        scale = ActivationScale(consumers, stored, weight.encoding, offset)
        layer.norms[f"{norm}.weight"] = scale
        layer.columns.update({f"{name}.weight": scale for name in names})

    def _scale_after_rows(
        self, layer: _Layer, rows: str, columns: str, heads: int, size: int
    ) -> None:
        from weightctl.schemes.arrays.activation import ActivationScale, SharedInputs

        consumers = self._consumers(layer, (columns,))
        producer = layer.find_rounded(rows)
        if not consumers or producer is None:
            return
        if producer[0].item.info.shape[0] * heads != consumers[0].tensor.info.row:
            return
        scale = ActivationScale(consumers, shared=SharedInputs(heads, size))
        layer.columns[f"{columns}.weight"] = scale
        for kind in ("weight", "bias"):
            if f"{rows}.{kind}" in layer.parts:
                layer.rows[f"{rows}.{kind}"] = scale

    def list_tensors(self, layer: _Layer) -> Iterator[tuple[str, ReadableTensor]]:
        """Yield the scaled tensors of a layer by their names."""
        from weightctl.schemes.arrays.activation import DividedNorm, ScaledTensor

        for role, each in layer.parts.items():
            stored = StoredTensor(self._plan.source, each.item.source.name)
            name = each.item.source.name
            if role in layer.norms:
                step = DividedNorm(layer.norms[role], each.encoding)
                yield each.item.info.name, DerivedTensor(name, step, [stored])
            elif role in layer.columns or role in layer.rows:
                made = ScaledTensor(layer.columns.get(role), layer.rows.get(role))
                yield each.item.info.name, DerivedTensor(name, made, [stored])

    def list_searches(self, layer: _Layer) -> Iterator[tuple[str, ScaleSearch]]:
        """Yield the searches for the weights of a layer whose columns are scaled."""
        from weightctl.schemes.arrays.activation import ScaledImportance, ScaledProducts

        for role, scale in layer.columns.items():
            name = layer.parts[role].item.info.name
            search = self._searches[name]
            if search.importance is not None:
                scaled = ScaledImportance(search.importance, scale)
                products = search.products
                if isinstance(products, Hessian):
                    products = ScaledProducts(products, scale)
                yield name, replace(search, importance=scaled, products=products)
