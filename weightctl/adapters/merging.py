"""Merging of LoRA adapters into a model: a tree whose weights are computed when they are read."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from weightctl.adapters.reading import load_adapter
from weightctl.adapters.target_modules import Places, Targets, find_places
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.families.model import ARCHITECTURE
from weightctl.families.steps import convert_form
from weightctl.text.wording import pluralize
from weightctl.weights.derived import Combined, Derived, DerivedTensor, tensor_of
from weightctl.weights.steps.numbers import AsFloat32, read_floats
from weightctl.weights.tree import Checkpoint, header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from weightctl.adapters.reading import AdapterPath, LoraAdapter, LowRank
    from weightctl.dtype import Encoding
    from weightctl.families.modules import TensorNames
    from weightctl.weights.data import Source
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo


# The most values of a weight that are computed at a time.
_TILE = 1 << 18


@dataclass(frozen=True, slots=True)
class PlusLowRank:
    """A weight plus `scale` times the product of an adapter's matrices, in float32.

    The inputs are the weight, the first matrix of shape (rank, inputs), the second of shape
    (outputs, rank), and for DoRA the magnitudes of the rows. `is_transposed` states that the weight
    has the shape (inputs, outputs). With `experts`, the matrices have the ranks of all experts, as
    PEFT stores them, and the weight has a first dimension of this size, or is that of one `expert`.
    `skipped` is the number of rows of the second matrix before those of the weight. Each value is
    computed in float64 and rounded once, so that the result does not depend on the order of the
    sums.
    """

    scale: float
    is_transposed: bool = False
    experts: int = 0
    expert: int | None = None
    skipped: int = 0

    @property
    def stacked(self) -> int:
        """The number of experts whose weights are in one tensor; 0 for a single weight."""
        return self.experts if self.expert is None else 0

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape of the weight, and F32."""
        for info in inputs:
            AsFloat32().infer([info])
        weight, first, second, *magnitude = inputs
        rank, columns = first.shape[0], prod(first.shape[1:])
        own = _two_dimensions(weight.shape, self.stacked)
        rows = second.shape[0]
        if self.expert is not None and self.skipped + own[0] <= rows:
            rows = own[0]
        wanted = (columns, rows) if self.is_transposed else (rows, columns)
        if (
            own != wanted
            or prod(second.shape[1:]) != rank
            or (self.experts and rank % self.experts)
        ):
            raise ConversionError(
                f"`{weight.name}` has shape {list(weight.shape)}, which does not fit the adapter's "
                f"matrices `{first.name}` of shape {list(first.shape)} and `{second.name}` of "
                f"shape {list(second.shape)}",
                hint="check that the adapter belongs to this model",
            )
        for info in magnitude:
            if info.size != rows or self.is_transposed or self.experts:
                raise ConversionError(
                    f"`{info.name}` of shape {list(info.shape)} does not have the magnitudes of "
                    f"the rows of `{weight.name}` of shape {list(weight.shape)}",
                    hint="DoRA is supported for matrices that are stored as (outputs, inputs)",
                )
        return weight.shape, ENCODINGS["F32"]

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Compute the rows that the range is in."""
        import numpy as np

        made = np.frombuffer(buffer, np.float32)
        weight, first, second, *magnitude = inputs
        rows, columns = _two_dimensions(weight.info.shape, self.stacked)
        height = max(1, _TILE // columns)
        at = start // 4
        factors = _Factors(self, first, second)
        for tile in _list_tiles(rows, columns, height, at, at + len(made)):
            top, count = tile
            begin = top * columns
            values = read_floats(weight, begin, count * columns).reshape(count, columns)
            wide = values.astype(np.float64)
            with np.errstate(all="ignore"):  # NaN and infinity of the weight stay
                left, right = factors.of_rows(top, count, rows)
                wide += self.scale * (left @ right)
                if magnitude:
                    norms = np.sqrt((wide * wide).sum(axis=1))
                    wide *= (_read_all(magnitude[0])[top : top + count] / norms)[:, None]
                flat = wide.reshape(-1).astype(np.float32)
            if (np.isfinite(values.reshape(-1)) & ~np.isfinite(flat)).any():
                raise ConversionError(
                    f"`{weight.info.name}` has values that are not finite after the product of "
                    f"`{first.info.name}` and `{second.info.name}`, times {self.scale:.6g}, is "
                    "added",
                    hint="check lora_alpha and r of the adapter, and its matrices: `weightctl "
                    "verify ADAPTER`",
                )
            low, high = max(begin, at), min(begin + len(flat), at + len(made))
            made[low - at : high - at] = flat[low - begin : high - begin]

    def __str__(self) -> str:
        return f"LoRA added, times {self.scale:.6g}"


class _Factors:
    """The matrices of a pair, decoded, in the order of the weight's axes."""

    def __init__(self, step: PlusLowRank, first: ReadableTensor, second: ReadableTensor) -> None:
        self._step = step
        self._first = _read_all(first).reshape(first.info.shape[0], -1)
        self._second = _read_all(second).reshape(second.info.shape[0], -1)

    def of_rows(
        self, top: int, count: int, rows: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the two factors of `count` rows from number `top` on, all of one expert."""
        first, second = self._first, self._second
        if self._step.experts:
            expert = top // rows if self._step.expert is None else self._step.expert
            first = first.reshape(self._step.experts, -1, first.shape[1])[expert]
            second = second.reshape(len(second), -1, self._step.experts)[:, :, expert]
        if self._step.is_transposed:
            first, second = second.T, first.T
        inner = top % rows + self._step.skipped
        return second[inner : inner + count], first


def _list_tiles(
    rows: int, columns: int, height: int, begin: int, end: int
) -> Iterator[tuple[int, int]]:
    """Yield the first row and the number of rows of each tile that has some of the values.

    Tiles begin at multiples of `height` in each expert, whatever range is asked for.
    """
    row = begin // columns
    while row * columns < end:
        expert, inner = divmod(row, rows)
        inner -= inner % height
        count = min(height, rows - inner)
        yield expert * rows + inner, count
        row = expert * rows + inner + count


def _two_dimensions(shape: tuple[int, ...], experts: int) -> tuple[int, int]:
    """Return the numbers of rows and columns of a weight, or of one expert's weight."""
    if experts:
        if len(shape) != 3 or shape[0] != experts:
            return 0, 0
        shape = shape[1:]
    return (shape[0], prod(shape[1:])) if len(shape) > 1 else (0, 0)


def _read_all(tensor: ReadableTensor) -> NDArray[np.float64]:
    import numpy as np

    return read_floats(tensor, 0, tensor.info.size).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum of two tensors of one shape; the second is multiplied by `scale`. In float32."""

    scale: float = 1.0

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the same shape, and F32."""
        first, second = inputs
        AsFloat32().infer([second])
        if first.shape != second.shape:
            raise ConversionError(
                f"`{second.name}` has shape {list(second.shape)}, but `{first.name}` has shape "
                f"{list(first.shape)}",
                hint="check that the adapter belongs to this model",
            )
        return AsFloat32().infer([first])

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Decode the requested range of both, and add."""
        import numpy as np

        AsFloat32().read_into(inputs[:1], start, buffer)
        values = np.frombuffer(buffer, np.float32)
        values += np.float32(self.scale) * read_floats(inputs[1], start // 4, len(values))

    def __str__(self) -> str:
        return "bias of the adapter added"


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
        adapter = load_adapter(path) if isinstance(path, str) else path
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
