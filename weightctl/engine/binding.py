"""The weights of a graph: looked up in a checkpoint's tree or in a mapping, and loaded from it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from weightctl.dtype import DType
from weightctl.engine.arrays import tensor_of
from weightctl.engine.forms import (
    NAMES,
    BindingProblem,
    WeightForm,
    interpret_info,
    is_kept_as_stored,
    make_tensor,
    mismatch,
)
from weightctl.engine.products import EncodedMatrix, is_encoded_matrix
from weightctl.engine.stored import InFiles, InMemory, slice_weight, to_stored_weight
from weightctl.errors import EngineError, MissingTensorError, WeightctlError
from weightctl.weights.buffer import Buffer
from weightctl.weights.data import WeightData
from weightctl.weights.equal import difference
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.protocol import Weights
from weightctl.weights.steps.sliced import unfit
from weightctl.weights.tree import (
    Checkpoint,
    allocations_of,
    find_stored_name,
    header_of,
    info_of,
    source_of,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from torch import Tensor

    from weightctl.engine.stored import StoredWeight
    from weightctl.weights.info import TensorInfo
    from weightctl.weights.source import Source

__all__ = ["BoundWeights", "bind"]

# The number of missing names for which similar names are suggested, and the number of names that
# are compared: the comparison is slow.
_MOST_HINTS, _MOST_NAMES = 8, 1000
_REGISTRY = (
    "pass them to `load` as weights_registry: a tree from open_weights, or a mapping by name"
)
_TIED = "give only one of the two, or untie the weights in the model"


class _Allocated:
    """A tensor of a tree, converted for each use and not kept."""

    def __init__(self, node: Checkpoint) -> None:
        self._node = node
        self.info: TensorInfo = _as_asked(node).info
        self.source: Source = source_of(node)

    is_borrowed = False

    @property
    def key(self) -> Hashable:
        """The source, the name of the tensor in it, and the encoding after the conversion."""
        name = header_of(self._node).aliases.get(self._node.name, self._node.name)
        return (id(self.source), name, self.info.encoding)

    def raw(self) -> Tensor:
        """Return the converted bytes in new memory."""
        memory = _as_asked(self._node).view()
        return tensor_of(Buffer(memory, DType.uint8, (memory.nbytes,)))

    def expect(self) -> None:
        """Do nothing: the conversion takes longer than reading."""


def _find_allocated(entry: object, form: WeightForm) -> _Allocated | None:
    """Return the converted tensor that a weight of the graph was allocated as; None if it was not.

    `Weights.allocate` can ask for another dtype or encoding. The conversion applies only if the
    form's weight came from the tree of this entry, and if the result is blocks or has the dtype of
    the form. Any other weight with the name gets the values as they are stored.
    """
    if not isinstance(entry, Checkpoint) or not allocations_of(entry).gave(form.weight):
        return None
    info = _as_asked(entry).info
    is_meant = info.encoding.dtype in {None, form.dtype} and not mismatch(info, form)
    return _Allocated(entry) if is_meant and info.encoding != info_of(entry).encoding else None


def _as_asked(node: Checkpoint) -> WeightData:
    """Return a node's data, converted as `allocate` requested; nothing is read yet."""
    return allocations_of(node).take(node.name, find_stored_name(node))


class BoundWeights:
    """The weights of a graph, each with the place where its bytes are stored.

    `found` has the places by base forms. A weight is read on each use and not kept. The weights of
    `resident` are read once, in the constructor: values are kept on their device in the form in
    which the graph reads them. Blocks, and matrices that products decode, are kept as stored. Of
    other weights, up to `memory` bytes are kept as stored after their first use.
    """

    def __init__(
        self,
        found: Mapping[WeightForm, StoredWeight],
        resident: Sequence[WeightForm] = (),
        memory: int = 0,
    ) -> None:
        self._found = dict(found)
        self._ready: dict[WeightForm, Tensor] = {}
        # What was found for forms before, by their identity: to compare them takes longer.
        self._seen: dict[int, tuple[WeightForm, Tensor | None]] = {}
        self._matrices: dict[int, tuple[WeightForm, EncodedMatrix]] = {}
        self._sources = list({
            id(place.source): place.source for place in found.values() if place.source is not None
        }.values())  # fmt: skip
        self._room = memory
        self._held: dict[Hashable, StoredWeight] = {}
        self._read_all(resident)

    def ready(self, form: WeightForm) -> Tensor | None:
        """Return a resident weight as the graph reads it; None if it is not kept as values."""
        seen = self._seen.get(id(form))
        if seen is None:
            seen = self._seen[id(form)] = form, self._ready.get(form)
        return seen[1]

    @property
    def is_resident(self) -> bool:
        """Whether weights are kept as values, so that none need to be read ahead."""
        return bool(self._ready)

    def tensor(self, form: WeightForm) -> Tensor:
        """Return a weight in the requested form, read now."""
        return make_tensor(self._keep(form.base), form)

    def matrix(self, form: WeightForm) -> EncodedMatrix | None:
        """Return a weight that is decoded within a product; None for other weights."""
        if (seen := self._matrices.get(id(form))) is not None:
            return seen[1]
        if not is_encoded_matrix(self._found[form.base].info, form):
            return None
        place = self._keep(form.base)
        matrix = EncodedMatrix(place, form)
        if isinstance(place, InMemory):
            self._matrices[id(form)] = form, matrix
        return matrix

    def pick_rows(self, form: WeightForm, numbers: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the rows of a weight that `numbers` selects, and the index of each number in them.

        Only these rows are read. Returns None if single rows cannot be read: if the weight is in
        memory or transposed, if it is stored with another number of rows (blocks stored as plain
        bytes may be), if a row does not start on a byte, or if a number is out of range.
        """
        place, (count, *row) = self._found[form.base], form.shape
        if not isinstance(place, InFiles) or place.is_borrowed or form in self._ready:
            return None
        if form.is_transposed:
            return None
        stored_count, *stored_row = place.info.shape
        if stored_count != count or not place.info.encoding.fits(stored_row):
            return None
        import torch

        # torch has no annotations for `unique`.
        wanted, among = cast("Any", torch).unique(numbers, return_inverse=True)
        chosen: list[int] = wanted.tolist()
        if not all(0 <= number < count for number in chosen):
            return None
        return make_tensor(place.rows(chosen), form._replace(shape=(len(chosen), *row))), among

    def is_borrowed(self, form: WeightForm) -> bool:
        """Whether the result of `tensor` shares memory that other code uses."""
        return form in self._ready or self._found[form.base].is_borrowed

    def expect(self, form: WeightForm) -> None:
        """Announce that a weight is needed soon."""
        self._found[form].expect()

    def _keep(self, base: WeightForm) -> StoredWeight:
        """Return where a weight is stored, after reading it into memory if there is room."""
        place = self._found[base]
        if not isinstance(place, InFiles) or place.is_borrowed:
            return place
        held = self._held.get(place.key)
        if held is None and place.info.nbytes <= self._room:
            self._room -= place.info.nbytes
            held = self._held[place.key] = InMemory(place.info, place.raw())
        if held is None:
            return place
        self._found[base] = held
        return held

    def refuse_change(self) -> None:
        """Raise `FormatError` if a file has been written to since it was opened."""
        for source in self._sources:
            source.refuse_change()

    def _read_all(self, reads: Sequence[WeightForm]) -> None:
        together: dict[object, list[WeightForm]] = {}
        for form in reads:
            together.setdefault(self._found[form.base].key, []).append(form)
        for forms in together.values():
            place = self._found[forms[0].base]
            held = InMemory(place.info, place.raw())
            same: dict[object, Tensor] = {}
            for form in forms:
                if is_kept_as_stored(place.info, form) or is_encoded_matrix(place.info, form):
                    self._found[form.base] = held
                    continue
                # Only the values are kept: the bytes that they were decoded from are freed.
                upright = form._replace(is_transposed=False)
                kind = upright._replace(name="", weight=0, whole=None, second_names=())
                if kind not in same:
                    same[kind] = make_tensor(held, upright)
                self._ready[form] = same[kind].T if form.is_transposed else same[kind]


def bind(
    graph_name: str, forms: Iterable[WeightForm], registry: Weights | Mapping[str, Any] | None
) -> dict[WeightForm, StoredWeight]:
    """Return where each weight of a graph is stored.

    Raises `EngineError` if `registry` is neither a tree nor a mapping, or if weights are missing,
    have another shape, or are stored in a type that does not convert to the graph's; that error
    names all of these weights.
    """
    _require_registry({} if registry is None else registry)
    given = _searchable(registry)
    forms = list(forms)
    bound = {form: _resolve_form(given, form) for form in forms}
    names = {wanted.name for wanted in bound.values()}
    found: dict[WeightForm, StoredWeight] = {}
    entries: dict[str, _RegistryEntry | None] = {}
    problems: dict[str, BindingProblem] = {}
    for form, wanted in bound.items():
        name = wanted.name
        if name not in entries:
            try:
                entries[name] = _entry(given, wanted, names)
            except KeyError:
                entries[name] = None
                problems[name] = BindingProblem("missing", NAMES)
            except WeightctlError as error:
                entries[name] = None
                problems[name] = BindingProblem(error.message, error.hint)
        entry = entries[name]
        if entry is None:
            continue
        place = _find_allocated(entry.given, wanted) or entry.place
        if problem := mismatch(place.info, wanted):
            problems[name] = problem
        elif wanted is not form and form.whole is not None:
            info = interpret_info(place.info, wanted)
            if reason := unfit(info, form.whole.part):
                statement = f"stored as {info.encoding} {list(info.shape)}; {reason}"
                problems[form.name] = BindingProblem(statement, "")
            else:
                place = slice_weight(place, info, form.whole.part)
        found[form] = place
    if problems:
        _add_near(problems, _spare(given, names))
        raise _refusal(graph_name, problems, is_empty=registry is None)
    return found


class _RegistryEntry(NamedTuple):
    """The entry of a registry for a weight, and where its bytes are stored."""

    given: Any
    place: StoredWeight


def _entry(
    registry: Checkpoint | Mapping[str, Any], wanted: WeightForm, names: set[str]
) -> _RegistryEntry:
    """Return a registry's entry for a weight, under its name or one of its second names.

    A second name that another weight of the graph has is ignored. Raises `KeyError` if there is no
    entry, and `EngineError` if two names have different values.
    """
    others = [each for each in wanted.second_names if each not in names and _has(registry, each)]
    try:
        entry = _RegistryEntry(registry[wanted.name], _place(registry[wanted.name], wanted.name))
    except KeyError:
        if not others:
            raise
        first = others.pop(0)
        entry = _RegistryEntry(registry[first], _place(registry[first], first))
    for second in others:
        place = _place(registry[second], second)
        if place.key == entry.place.key:
            continue
        if problem := difference(_data_of(entry.given), _data_of(registry[second])):
            raise EngineError(f"`{second}` is another name of it, but {problem}", hint=_TIED)
    return entry


def _place(entry: Any, name: str) -> StoredWeight:
    try:
        return to_stored_weight(entry, name)
    except MissingTensorError as error:
        if isinstance(entry, WeightData):
            # The entry exists but has no data, so `KeyError` would be misleading.
            raise EngineError(error.message, hint=error.hint) from None
        raise


def _data_of(entry: Any) -> WeightData:
    return entry.data() if isinstance(entry, Weights) else WeightData.from_dlpack(entry, "")


def _resolve_form(registry: Checkpoint | Mapping[str, Any], form: WeightForm) -> WeightForm:
    """Return the form to look up: for a shard without an entry of its own, the whole weight's."""
    whole = form.whole
    if whole is None or _has(registry, form.name):
        return form
    return form._replace(
        name=whole.name,
        shape=whole.shape,
        weight=whole.weight,
        whole=None,
        second_names=whole.second_names,
    )


def _has(registry: Checkpoint | Mapping[str, Any], name: str) -> bool:
    return registry[name].exists() if isinstance(registry, Checkpoint) else name in registry


def _require_registry(given: object) -> None:
    if not isinstance(given, Weights | Mapping):
        raise EngineError(
            f"weights_registry must be a mapping, not a {type(given).__name__}",
            hint="use a tree from open_weights, or a mapping from names to arrays",
        )


def _searchable(
    registry: Weights | Mapping[str, Any] | None,
) -> Checkpoint | Mapping[str, Any]:
    """Return a registry as an object that returns entries by the name of a weight."""
    if registry is None:
        return {}
    return as_checkpoint(registry) if isinstance(registry, Weights) else registry


def _spare(registry: Checkpoint | Mapping[str, Any], wanted: set[str]) -> list[str]:
    """Return names in a registry that the graph does not use: suggestions for missing names."""
    if isinstance(registry, Checkpoint):
        below = registry.name and f"{registry.name}."
        names = [name.removeprefix(below) for name, _ in registry.items()]
    else:
        # Keys of a mapping may be of any type; only text can be a misspelled name.
        names = [name for name in cast("Iterable[object]", registry) if isinstance(name, str)]
    return list(islice((name for name in names if name not in wanted), _MOST_NAMES))


def _add_near(problems: dict[str, BindingProblem], names: list[str]) -> None:
    missing = [name for name, problem in problems.items() if problem.reason == "missing"]
    for name in missing[:_MOST_HINTS]:
        if near := difflib.get_close_matches(name, names, n=1):
            problems[name] = BindingProblem(f"missing (did you mean `{near[0]}`?)", NAMES)


def _refusal(
    graph_name: str, problems: Mapping[str, BindingProblem], *, is_empty: bool
) -> EngineError:
    count = "1 weight" if len(problems) == 1 else f"{len(problems)} weights"
    lines = "".join(f"\n  `{name}`: {problem.reason}" for name, problem in problems.items())
    # A dictionary removes duplicates and keeps the order.
    hints = dict.fromkeys(problem.hint for problem in problems.values() if problem.hint)
    hint = _REGISTRY if is_empty else "; ".join(hints)
    return EngineError(f"{count} of graph `{graph_name}` cannot be loaded:{lines}", hint=hint)
