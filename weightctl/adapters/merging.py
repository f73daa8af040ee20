"""Merging of LoRA adapters into a model: a tree whose weights are computed when they are read."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from weightctl.adapters.places import Places, Targets, find_places
from weightctl.adapters.reading import load_adapter
from weightctl.adapters.steps import PlusLowRank, Sum
from weightctl.errors import ConversionError
from weightctl.families.model import ARCHITECTURE
from weightctl.families.steps import convert_form
from weightctl.text.wording import pluralize
from weightctl.weights.derived import Combined, Derived, DerivedTensor, tensor_of
from weightctl.weights.tree import Checkpoint, header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.adapters.reading import AdapterPath, LoraAdapter, LowRank
    from weightctl.families.parts import TensorNames
    from weightctl.weights.data import Source
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo

_NESTED = ".base_layer"
_EXPERTS = ".experts"
# The parameters of a module of experts, and the weights of one expert that each consists of.
_PARTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
_OTHER_NAMES = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def merge_adapters(
    base: Checkpoint, adapters: Sequence[AdapterPath]
) -> tuple[Checkpoint, frozenset[TensorInfo]]:
    """Return a model with adapters added to it, and the tensors of the adapters.

    No weight is read. The weights of `base` that are stored in several tensors have been decoded.
    Its names are those of Hugging Face, or GGUF's for a supported family. Raises `ConversionError`
    if the model lacks a weight of an adapter, or if the shape of one does not fit.
    """
    source = source_of(base)
    header = source.header
    tensors: dict[str, ReadableTensor] = {name: tensor_of(source, name) for name in header.tensors}
    files: Source = source
    of_adapters: set[TensorInfo] = set()
    notes: list[str] = []
    for path, weight in adapters:
        adapter = load_adapter(path)
        merge = _Merge(base, adapter, weight)
        tensors |= merge.apply(tensors)
        of_adapters.update(adapter.source.header.tensors.values())
        files = Combined(files, adapter.source)
        notes += [_describe(adapter, weight), *merge.notes]
    tree = Derived(
        files, tensors, header.metadata, header.aliases, tuple(notes), leaves=header.leaves
    )
    return Checkpoint(tree), frozenset(of_adapters)


def _describe(adapter: LoraAdapter, weight: float) -> str:
    ranks = sorted({pair.rank for pair in adapter.pairs.values()})
    counts = [f"{pluralize(len(adapter.pairs), 'weight')} of rank {', '.join(map(str, ranks))}"]
    if adapter.replaced:
        counts.append(f"{pluralize(len(adapter.replaced), 'tensor')} replaced")
    factor = "" if weight == 1 else f", times {weight:g}"
    return f"LoRA adapter {adapter.where}: {', '.join(counts)}{factor}"


class _Merge:
    """The merge of one adapter into the tensors of a model, which `apply` changes."""

    def __init__(self, base: Checkpoint, adapter: LoraAdapter, weight: float) -> None:
        self._header = header_of(base)
        self._adapter, self._weight = adapter, weight
        self.notes: list[str] = []
        is_gguf = ARCHITECTURE in self._header.metadata
        self._places: Places | None = None
        if adapter.is_gguf and not is_gguf:
            raise ConversionError(
                f"{adapter.where} has GGUF's names, but the model does not",
                hint="use the original adapter, or the GGUF file of the model",
            )
        if is_gguf and not adapter.is_gguf:
            self._places = find_places(base)
        names = self._header.tensors if self._places is None else self._places.names
        self._targets = Targets([*names, *self._header.aliases])

    def apply(self, tensors: Mapping[str, ReadableTensor]) -> dict[str, ReadableTensor]:
        """Return the tensors of a model that the adapter changes."""
        made: dict[str, ReadableTensor] = {}
        others = self._targets.list_other_parts(self._adapter.pairs)
        if others:
            self.notes.append(
                f"not merged: {pluralize(len(others), 'pair')} for another model of the pipeline, "
                f"such as `{min(others)}`"
            )
        for module, tensor in self._adapter.replaced.items():
            name, names = self._find(module, tensor.info.name)
            made[name] = self._replace(tensors[name], tensor, names)
        for module, pair in self._adapter.pairs.items():
            if module in others:
                continue
            if is_of_experts(module) and self._targets.find(module) is None:
                made |= self._add_to_experts(pair, {**tensors, **made})
                continue
            name, names = self._find(module, pair.first.info.name)
            made[name] = self._add(made.get(name, tensors[name]), pair, names)
            if pair.bias is not None:
                name, names = self._find(f"{module}.bias", pair.bias.info.name)
                step = Sum(self._weight * pair.scale())
                inputs = [made.get(name, tensors[name]), self._to_form(pair.bias, names)]
                made[name] = DerivedTensor(name, step, inputs)
        return made

    def _add_to_experts(
        self, pair: LowRank, tensors: Mapping[str, ReadableTensor]
    ) -> dict[str, ReadableTensor]:
        """Return the weights of the experts of a layer with the product of a pair added."""
        if self._places is not None or pair.magnitude is not None or pair.bias is not None:
            raise ConversionError(
                f"the adapter has `{pair.first.info.name}` for all experts of a layer, which is "
                "supported for models with Hugging Face's names, without DoRA and biases",
                hint="merge the adapter into the original model, and convert the result",
            )
        made: dict[str, ReadableTensor] = {}
        for each in find_expert_weights(pair, self._header.tensors):
            scale = self._weight * pair.scale(each.experts)
            step = PlusLowRank(scale, each.is_transposed, each.experts, each.expert, each.skipped)
            inputs = [tensors[each.name], pair.first, pair.second]
            made[each.name] = DerivedTensor(each.name, step, inputs)
        return made

    def _find(self, module: str, tensor: str) -> tuple[str, TensorNames | None]:
        """Return the name of the model's tensor for a module, and for GGUF its line."""
        name = self._targets.find(module)
        if name is None:
            raise ConversionError(
                f"the adapter has `{tensor}`, but the model has no tensor for `{module}`",
                hint=self._targets.describe_near(module),
            )
        if name in self._header.aliases:
            raise ConversionError(
                f"the adapter changes `{name}`, which is tied to `{self._header.aliases[name]}`",
                hint="a model with tied weights stores them once, so that the change would apply "
                "to both",
            )
        if self._places is None:
            return name, None
        names = self._places.find(name)
        stored = names.gguf or ""
        if names.is_stacked("gguf") or stored not in self._header.tensors:
            raise ConversionError(
                f"the adapter has `{tensor}` for one of several experts, which GGUF files store in "
                "one tensor",
                hint="merge the adapter into the original model, and convert the result",
            )
        return stored, names

    def _to_form(self, tensor: ReadableTensor, names: TensorNames | None) -> ReadableTensor:
        """Return a tensor of the adapter as the model stores it."""
        if names is None or self._places is None:
            return tensor
        return convert_form(names, tensor, self._places.config, "hugging_face", "gguf")

    def _replace(
        self, old: ReadableTensor, new: ReadableTensor, names: TensorNames | None
    ) -> ReadableTensor:
        new = self._to_form(new, names)
        if new.info.shape != old.info.shape:
            raise ConversionError(
                f"the adapter has `{new.info.name}` of shape {list(new.info.shape)}, but "
                f"`{old.info.name}` of the model has shape {list(old.info.shape)}",
                hint="check that the adapter belongs to this model; if tokens were added, resize "
                "the model first",
            )
        return new

    def _add(
        self, weight: ReadableTensor, pair: LowRank, names: TensorNames | None
    ) -> ReadableTensor:
        """Return a weight with the product of a pair added."""
        if names is None or self._places is None:
            return self._plus(weight, pair)
        if names.change is None or names.change.is_of_rows:
            magnitude = pair.magnitude
            second = self._to_form(pair.second, names)
            if magnitude is not None:
                magnitude = self._to_form(magnitude, names)
            return self._plus(weight, pair._replace(second=second, magnitude=magnitude))
        config = self._places.config
        own = convert_form(names, weight, config, "gguf", "hugging_face")
        return convert_form(names, self._plus(own, pair), config, "hugging_face", "gguf")

    def _plus(self, weight: ReadableTensor, pair: LowRank) -> ReadableTensor:
        first, second = pair.first.info.shape, pair.second.info.shape
        shape = weight.info.shape
        own = (shape[0], prod(shape[1:])) if shape else ()
        wanted = (second[0], prod(first[1:]))
        is_turned = own == wanted[::-1] and (own != wanted or self._adapter.fan_in_fan_out)
        step = PlusLowRank(self._weight * pair.scale(), pair.is_embedding or is_turned)
        inputs = [weight, pair.first, pair.second]
        if pair.magnitude is not None:
            inputs.append(pair.magnitude)
        return DerivedTensor(weight.info.name, step, inputs)


# Adapters for the experts of a layer in one tensor, as PEFT's `target_parameters` makes them.


class ExpertWeight(NamedTuple):
    """A weight that a pair for `experts` experts changes.

    `expert` is the number of the expert if the weight is that of one, else None. `skipped` is the
    number of rows of the second matrix that belong to other weights and precede those of this one.
    """

    name: str
    experts: int
    expert: int | None = None
    skipped: int = 0
    is_transposed: bool = False


def is_of_experts(module: str) -> bool:
    """Whether a module is that of all experts of a layer."""
    return _strip(module).endswith(_EXPERTS)


def find_expert_weights(pair: LowRank, tensors: Mapping[str, TensorInfo]) -> list[ExpertWeight]:
    """Return the weights that a pair changes: one with all experts, or several of each expert.

    Raises `ConversionError` if no weights of the model fit.
    """
    prefix = _strip(pair.module)
    for parameter, parts in _PARTS.items():
        found = _find_stack(pair, f"{prefix}.{parameter}", prefix, tensors)
        found = found or _find_each(pair, prefix, parts, tensors)
        if found:
            return found
    raise ConversionError(
        f"the adapter has `{pair.first.info.name}` of shape {list(pair.first.info.shape)} and "
        f"`{pair.second.info.name}` of shape {list(pair.second.info.shape)}, but the model has no "
        f"weights of experts of these sizes in `{prefix}`",
        hint="check that the adapter belongs to this model; merge it with PEFT if it does",
    )


def _strip(module: str) -> str:
    while module.endswith(_NESTED):
        module = module.removesuffix(_NESTED)
    return module


def _find_stack(
    pair: LowRank, name: str, prefix: str, tensors: Mapping[str, TensorInfo]
) -> list[ExpertWeight]:
    info = tensors.get(name)
    if info is None or len(info.shape) != 3 or pair.rank % info.shape[0]:
        return []
    sizes = (pair.second.info.shape[0], pair.first.info.shape[1])
    if sizes not in {info.shape[1:], info.shape[:0:-1]}:
        return []
    is_transposed = info.shape[1:] != sizes
    down, both = tensors.get(f"{prefix}.down_proj"), tensors.get(f"{prefix}.gate_up_proj")
    if down is not None and both is not None and info.shape[1] == info.shape[2]:
        # A square matrix is stored as the others of the layer.
        is_transposed = both.shape[2] == 2 * down.shape[1]
    return [ExpertWeight(name, info.shape[0], is_transposed=is_transposed)]


def _find_each(
    pair: LowRank, prefix: str, parts: tuple[str, ...], tensors: Mapping[str, TensorInfo]
) -> list[ExpertWeight]:
    if f"{prefix}.0.{parts[0]}.weight" not in tensors:
        parts = tuple(_OTHER_NAMES[part] for part in parts)
    experts = 0
    while f"{prefix}.{experts}.{parts[0]}.weight" in tensors:
        experts += 1
    if not experts or pair.rank % experts:
        return []
    found: list[ExpertWeight] = []
    for expert in range(experts):
        skipped = 0
        for part in parts:
            name = f"{prefix}.{expert}.{part}.weight"
            info = tensors.get(name)
            if info is None or info.shape[1:] != pair.first.info.shape[1:]:
                return []
            found.append(ExpertWeight(name, experts, expert, skipped))
            skipped += info.shape[0]
        if skipped != pair.second.info.shape[0]:
            return []
    return found
