"""Quantization to a budget: finds the types of the tensors of an output, and plans it."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from weightctl.budget.found import make_metadata, make_recipe, match_name
from weightctl.budget.limits import IN_PLACE, KEEP, QuantizationBudget
from weightctl.budget.space import SearchedTensor
from weightctl.budget.type_search import TypeSearch
from weightctl.codecs import transcode
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.families.model import ARCHITECTURE
from weightctl.families.names import joined_name, layer, split_layer_number
from weightctl.families.recognition import recognize
from weightctl.formats.imatrix.curvatures import Curvatures
from weightctl.plan.cast import fit_encoding
from weightctl.plan.metadata import Setting
from weightctl.plan.recipe_lines import OTHERWISE, Recipe
from weightctl.plan.scheme_names import SchemeRecipe
from weightctl.plan.type_rules import BY_RULE
from weightctl.schemes.dequantize import dequantize_weights
from weightctl.verify.subject import Subject
from weightctl.weights.derived import Derived, DerivedTensor, StoredTensor
from weightctl.weights.tree import Checkpoint, source_of
from weightctl.write.convert import convert
from weightctl.write.targets import target

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from weightctl.budget.found import FoundTypes
    from weightctl.codecs.base import F32
    from weightctl.dtype import Encoding
    from weightctl.families import RecognizedModel
    from weightctl.plan.plan import Item, Plan
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo
    from weightctl.weights.metadata import MetadataValue
    from weightctl.write.conversion import Conversion


# The number of values that are encoded at a time, in whole rows.
_RUN = 1 << 20


def view_plan(plan: Plan, types: Mapping[str, Encoding] | None = None) -> RecognizedModel:
    """Return the model that a plan for GGUF would write, with some tensors in other types.

    `types` maps names of tensors to encodings. If it is None, every tensor keeps the encoding of
    the source, so that the result is the unquantized model. Nothing is written: tensors are encoded
    when they are read. Raises `ArchitectureError` if the family is not supported.
    """
    tensors: dict[str, ReadableTensor] = {}
    curvatures = Curvatures()
    for item in plan.items:
        name = item.info.name
        stored = StoredTensor(plan.source, item.source.name)
        encoding = item.source.encoding
        if types is not None:
            encoding = types.get(name, item.info.encoding)
        if encoding == item.source.encoding:
            tensors[name] = stored
            continue
        wanted = replace(item, info=item.info._replace(encoding=encoding))
        step = EncodedItem(wanted, curvatures, zero_nonfinite=plan.zero_nonfinite)
        tensors[name] = DerivedTensor(name, step, [stored])
    return recognize(Checkpoint(Derived(plan.source, tensors, plan.metadata, plan.tied)))


def encode_rows(
    item: Item,
    raw: NDArray[np.uint8],
    matrix: int,
    curvatures: Curvatures | None = None,
    *,
    zero_nonfinite: bool = False,
) -> NDArray[np.uint8]:
    """Return rows of one matrix of an item's source, uint8 [rows, bytes], in its new encoding.

    With `curvatures`, values are rounded with error feedback where the writer does that.
    """
    wanted = item.info.encoding
    importance = item.importance_of(matrix) if wanted.takes_importance else None
    curvature = None if curvatures is None else curvatures.find_for(item.hessian, wanted)
    return transcode(
        raw, item.source.encoding, wanted, importance,
        curvature=curvature, zero_nonfinite=zero_nonfinite,
    ).raw  # fmt: skip


@dataclass(frozen=True, slots=True)
class EncodedItem:
    """A step that encodes the tensor of an item as the writer does, with the same bytes.

    A tensor outside the layers is read for each batch of positions, so it is encoded once and kept.
    """

    item: Item
    curvatures: Curvatures
    zero_nonfinite: bool = False
    _kept: list[NDArray[np.uint8]] = field(default_factory=list["NDArray[np.uint8]"])

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the same shape, and the encoding of the item."""
        (info,) = inputs
        return info.shape, self.item.info.encoding

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Encode the rows that the requested range is in."""
        info = self.item.info
        width = info.encoding.nbytes((info.row,))
        out = np.frombuffer(buffer, np.uint8)
        is_whole = len(out) == info.nbytes
        if is_whole and self._kept:
            out[:] = self._kept[0]
            return
        stop = start + len(out)
        for first, made in self._encode(inputs[0], start // width, -(-stop // width), width):
            begin, end = max(first, start), min(first + len(made), stop)
            out[begin - start : end - start] = made[begin - first : end - first]
        if is_whole and not info.name.startswith("blk."):
            self._kept.append(out.copy())

    def _encode(
        self, source: ReadableTensor, first: int, last: int, width: int
    ) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Yield the offset and the bytes of groups of rows; a group is in one matrix."""
        info, encoding = self.item.info, self.item.source.encoding
        size = encoding.nbytes((info.row,))
        rows_of_matrix = prod(info.shape[-2:-1])
        at_once = max(1, _RUN // info.row)
        while first < last:
            matrix = first // rows_of_matrix
            end = min(last, first + at_once, (matrix + 1) * rows_of_matrix)
            raw = np.empty((end - first, size), np.uint8)
            source.read_into(first * size, raw.reshape(-1).data)
            made = encode_rows(
                self.item, raw, matrix, self.curvatures, zero_nonfinite=self.zero_nonfinite
            )
            yield first * width, made.reshape(-1)
            first = end

    def __str__(self) -> str:
        return ""


__all__ = ["QuantizationBudget", "quantize"]

# The number of values of a tensor that are sampled, in whole rows, and in so many groups of rows.
_SAMPLE, _GROUPS = 1 << 18, 8
_EXPERTS = ".experts."
# The type that tensors have before the search; like most types, it uses an importance matrix.
_FIRST_TYPE = "Q4_K"
# Numbers in the metadata of safetensors are text, which is longer for some numbers.
_LONGEST = 0.12345678901234567


def quantize(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str] | None,
    budget: QuantizationBudget,
    *,
    force: bool = False,
    **options: Any,
) -> tuple[Conversion, FoundTypes]:
    """Plan an output within a budget whose predictions differ least from those of the source.

    The output is a GGUF file or a model directory. `source`, `out` and `options` are those of
    `convert`; `quant` and `dtype` do not apply, and `metadata` is a list of settings. The
    conversion that is returned writes the output. Its metadata have the certificate, which is
    measured before. Raises `ConversionError` if the budget cannot be met, and the errors of
    `convert`, of recognizing the model, and of running it; before the model runs, those of
    `Outcome.refuse`.
    """
    budget.check()
    where = None if out is None else target(os.fspath(out), options.get("to"))
    if where is not None and where.file_name is not None and where.format == "safetensors":
        if budget.memory is not None:
            raise ConversionError(
                "--fit is for GGUF files: it is the memory that llama.cpp needs",
                hint="use an output name that ends in .gguf, or --size",
            )
        return _quantize_directory(source, out, budget, options, force=force)
    encodings = budget.encodings
    if where is not None and where.format != "gguf":
        raise _explain_output()
    settings: Sequence[Setting] = options.pop("metadata", ())
    plan = partial(convert, source, out, **{**options, "dry_run": True})
    first = plan(quant=Recipe("budget", _FIRST_TYPE, ()), metadata=settings)
    if ARCHITECTURE not in first.plan.metadata:
        raise _explain_output()
    first.outcome.refuse(force=force, is_sized=False)
    in_place = [ENCODINGS[each] for each in IN_PLACE] if budget.types is None else []
    space = GgufSpace(first.plan, encodings, in_place)
    search = TypeSearch(space, budget, Subject(source))
    # The certificate has the same size whatever its numbers are.
    draft = make_metadata(budget.option, search.make_draft(), 0.0)
    found = search.find(_count_beside(first, draft, space.alignment))
    recipe = make_recipe(found.limit, found.types)
    return plan(quant=recipe, metadata=_list_settings(found, settings)), found


def _quantize_directory(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str] | None,
    budget: QuantizationBudget,
    options: dict[str, Any],
    *,
    force: bool,
) -> tuple[Conversion, FoundTypes]:
    """Plan a model directory; its source has Hugging Face's names, too."""
    choices, can_keep = budget.schemes
    settings: Sequence[Setting] = options.pop("metadata", ())
    plan = partial(convert, source, out, **{**options, "dry_run": True})
    plain = plan(metadata=settings)
    if plain.plan.translation:
        raise ConversionError(
            f"{os.fspath(source)}: a budget for a model directory needs a source with Hugging "
            "Face's names",
            hint="convert the model to a directory first, without quantization",
        )
    plain.outcome.refuse(force=force, is_sized=False)
    made = {str(each): plan(quant=SchemeRecipe(each), metadata=settings) for each in choices}
    plans = {kind: each.plan for kind, each in made.items()}
    space = SchemeSpace(plain.plan, plans, can_keep=can_keep)
    search = TypeSearch(space, budget, Subject(source))
    draft = make_metadata(budget.option, search.make_draft(_LONGEST), _LONGEST)
    found = search.find(max(_count_beside(each, draft, 1) for each in (plain, *made.values())))
    used = Counter(kind for kind in found.types.values() if kind != KEEP)
    if not used:
        raise ConversionError(
            f"{budget.option} is met without quantization",
            hint="leave it out, or use a smaller one",
        )
    by_name = {str(each): each for each in choices}
    (usual, _), *_ = used.most_common(1)
    lines = [(match_name(name), by_name.get(kind)) for name, kind in found.types.items()]
    recipe = SchemeRecipe(by_name[usual], tuple(lines))
    found = replace(found, default=usual)
    return plan(quant=recipe, metadata=_list_settings(found, settings)), found


def _list_settings(found: FoundTypes, settings: Sequence[Setting]) -> list[Setting]:
    measured = make_metadata(found.limit, found.certificate, found.bits_per_weight)
    return [*(Setting.of(key, each) for key, each in measured.items()), *settings]


def _explain_output() -> ConversionError:
    return ConversionError(
        "a budget needs a GGUF file of a model, or a model directory, as the output",
        hint="use an output name that ends in .gguf, or one without a suffix, and do not use "
        "--names keep; for other outputs, use --quant (quant in Python)",
    )


def _count_beside(conversion: Conversion, draft: dict[str, MetadataValue], alignment: int) -> int:
    """Return the bytes of the files that are not those of tensors, with a draft of the metadata."""
    plan = conversion.plan
    files = replace(conversion, plan=replace(plan, metadata={**plan.metadata, **draft}))
    padded = sum(-(-item.info.nbytes // alignment) * alignment for item in plan.items)
    return files.outcome.nbytes - padded


# The matrices of a planned GGUF file, and the types that their rows fit.


class GgufSpace:
    """The matrices of a plan for GGUF whose type no rule decides; raises as `list_candidates`."""

    alignment = 32

    def __init__(
        self, plan: Plan, types: Sequence[Encoding], in_place: Sequence[Encoding] = ()
    ) -> None:
        self._plan = plan
        found = list_candidates(plan, types, in_place)
        self._items = {item.info.name: item for item, _ in found}
        self.tensors = [
            SearchedTensor(
                item.info.name,
                item.info.size,
                {each.name: each.nbytes(item.info.shape) for each in fitting},
                item.source.encoding.name,
            )
            for item, fitting in found
        ]
        self.others = [i.info.nbytes for i in plan.items if i.info.name not in self._items]
        self.size = sum(item.info.size for item in plan.items)

    def view(self, types: Mapping[str, str] | None = None) -> RecognizedModel:
        """Return the model that the plan would write, with tensors in these types."""
        if types is None:
            return view_plan(self._plan)
        return view_plan(self._plan, {name: ENCODINGS[kind] for name, kind in types.items()})

    def measure_errors(self, tensor: SearchedTensor) -> dict[str, float]:
        """Return the mean squared error of each type, on a sample of rows."""
        kinds = [ENCODINGS[kind] for kind in tensor.nbytes]
        return measure_errors(self._plan, self._items[tensor.name], kinds)

    def join(self, name: str) -> tuple[int | None, str]:
        """Return the layer of a tensor, and its name: llama.cpp joins no tensors."""
        return layer(name), name


def list_candidates(
    plan: Plan, types: Sequence[Encoding], in_place: Sequence[Encoding] = ()
) -> list[tuple[Item, tuple[Encoding, ...]]]:
    """Return the matrices that the recipe of a plan chose no type for, with the types they can get.

    If the blocks of some types do not divide the rows, these types are replaced by those of
    `in_place` that do; without any, each one by llama.cpp's substitute for it. Raises
    `ConversionError` if there is not one such matrix, or if a type needs an importance matrix.
    """
    found = [
        (item, _fit_types(types, in_place, item.info.shape))
        for item in plan.items
        if item.line == OTHERWISE
    ]
    if not found:
        raise _explain_nothing(plan)
    for item, fitting in found:
        for each in fitting:
            if each.needs_importance and item.importance is None:
                raise ConversionError(
                    f"{each} needs an importance matrix with an entry for `{item.info.name}`",
                    hint="use --imatrix FILE (imatrix in Python), or leave the type out of --types",
                )
    return found


def _fit_types(
    types: Sequence[Encoding], in_place: Sequence[Encoding], shape: tuple[int, ...]
) -> tuple[Encoding, ...]:
    fitting = [each for each in types if each.fits(shape)]
    others = [each for each in in_place if each.fits(shape)]
    if len(fitting) == len(types) or not others:
        return tuple(dict.fromkeys(fit_encoding(each, shape) for each in types))
    return tuple(dict.fromkeys([*others, *fitting]))


def _explain_nothing(plan: Plan) -> ConversionError:
    """Return the error for a plan without a matrix to quantize."""
    files = plan.source.header.files
    where = f"{files[0]}: " if files else ""
    ruled = next((item for item in plan.items if item.line.startswith(BY_RULE)), None)
    if ruled is not None:
        return ConversionError(
            f"{where}no tensor can be quantized to meet the budget: --tensor-type chooses the type "
            f"of every matrix, for example of `{ruled.info.name}`",
            hint="leave out --tensor-type for some tensors, or use --quant (quant in Python) "
            "instead of a budget",
        )
    return ConversionError(
        f"{where}no tensor can be quantized to meet the budget",
        hint="a budget needs matrices whose names end in `.weight`, other than norms and routers; "
        "for a model without them, use --dtype (dtype in Python)",
    )


def measure_errors(plan: Plan, item: Item, types: Sequence[Encoding]) -> dict[str, float]:
    """Return the mean squared error of each type in an item's tensor, by the type's name.

    Errors are weighted with the importance of their columns if the item has importance. The rows
    are evenly spaced, so that the result does not depend on chance. Each value is rounded alone.
    The error of the type in which the source stores the tensor is 0.
    """
    rows = _choose_rows(item)
    in_matrix = prod(item.info.shape[-2:-1])
    found = dict.fromkeys((each.name for each in types), 0.0)
    for matrix in sorted({row // in_matrix for row in rows}):
        raw = _read_rows(plan, item, [row for row in rows if row // in_matrix == matrix])
        values = _decode(raw, item.source.encoding)
        weights = item.importance_of(matrix)
        scale = (
            np.ones(values.shape[1]) if weights is None else weights / max(weights.mean(), 1e-30)
        )
        for each in types:
            if each == item.source.encoding:
                continue
            changed = replace(item, info=item.info._replace(encoding=each))
            made = encode_rows(changed, raw, matrix, zero_nonfinite=plan.zero_nonfinite)
            error = np.square(values - _decode(made, each), dtype=np.float64)
            found[each.name] += float((error * scale).sum())
    return {name: total / max(1, len(rows) * item.info.row) for name, total in found.items()}


def _choose_rows(item: Item) -> list[int]:
    total = prod(item.info.shape[:-1])
    count = min(total, max(1, _SAMPLE // max(1, item.info.row)))
    return [round(float(row)) for row in np.linspace(0, total - 1, count)]


def _read_rows(plan: Plan, item: Item, rows: Sequence[int]) -> NDArray[np.uint8]:
    size = item.source.encoding.nbytes((item.info.row,))
    raw = np.empty((len(rows), size), np.uint8)
    for place, row in enumerate(rows):
        plan.source.read_into(item.source.name, row * size, raw[place].data)
    return raw


def _decode(raw: NDArray[np.uint8], encoding: Encoding) -> F32:
    made = transcode(raw, encoding, ENCODINGS["F32"]).raw
    return np.ascontiguousarray(made).view(np.float32).reshape(len(raw), -1)


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
            values = _read_rows_as_floats(source, start, size)
            for kind in tensor.nbytes:
                if kind != KEEP:
                    made = _read_rows_as_floats(
                        StoredTensor(self._decoded[kind], tensor.name), start, size
                    )
                    found[kind] += float(np.square(values - made, dtype=np.float64).sum())
        return {kind: total / (len(starts) * size * columns) for kind, total in found.items()}

    def join(self, name: str) -> tuple[int | None, str]:
        """Return the layer of a weight, and the name of what engines join it to.

        Engines join queries, keys and values, gate and up, and all experts of a layer.
        """
        above, is_expert, _ = name.partition(_EXPERTS)
        return split_layer_number(name)[0], above if is_expert else joined_name(name)


def _read_rows_as_floats(tensor: ReadableTensor, start: int, count: int) -> F32:
    """Return rows of a matrix as float32[count, columns]."""
    encoding, columns = tensor.info.encoding, tensor.info.row
    width = encoding.nbytes((columns,))
    raw = np.empty((count, width), np.uint8)
    tensor.read_into(start * width, raw.reshape(-1).data)
    made = transcode(raw, encoding, ENCODINGS["F32"]).raw
    return np.ascontiguousarray(made).view(np.float32).reshape(count, columns)
