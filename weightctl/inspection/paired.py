"""Compares two checkpoints whose tensors are paired in the same way as by `verify`."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from math import inf, isnan
from typing import TYPE_CHECKING

from weightctl.families.matching import OUTPUT_WEIGHT
from weightctl.inspection.comparison import (
    Comparison,
    Difference,
    LayerChange,
    Side,
    ValueChange,
    list_differences,
)
from weightctl.inspection.contents import kind
from weightctl.translate.copies import is_same
from weightctl.verify.compare.distance import Measured, measure_pair, measure_pairs
from weightctl.verify.compare.pairing import pair_named, pair_tensors
from weightctl.verify.subject import Subject
from weightctl.weights.readable import refuse_expanded, refuse_unknown
from weightctl.weights.tree import source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from weightctl.inspection.contents import Contents
    from weightctl.schemes.matching import Entry
    from weightctl.verify.compare.pairing import Pair
    from weightctl.weights.derived import ReadableTensor

    Progress = Callable[[str, float], object] | None

# The significand bits of float32. Values with more bits are also compared by their bytes.
_BITS = 24


class PairedTensors:
    """The paired tensors of two checkpoints.

    `pairs` maps the name under which a difference is listed to the pair. `alone` has, for each
    checkpoint, the names of the tensors that only this one has. `how` describes the pairing if
    names differ; it is empty for equal names. `is_by_family` says whether tensors are paired by the
    names of a family. Raises `ConversionError` if the tensors of a quantized weight do not fit
    together.
    """

    def __init__(self, first: Contents, second: Contents, paths: tuple[str, str]) -> None:
        self.contents = first, second
        subjects = [Subject(path) for path in paths]
        for subject, contents in zip(subjects, self.contents, strict=True):
            subject.stored = contents.weights
        pairing, reverse = pair_tensors(*subjects), pair_tensors(*reversed(subjects))
        self._pairing = pairing
        has_other_names = any(each.name != each.reference_name for each in pairing.pairs)
        self.how = pairing.how if has_other_names else ""
        self.is_by_family = pairing.checkpoint is not None
        trees = [subject.weights for subject in subjects]
        used = (
            {self.find_name(0, each.tensor) for each in pairing.pairs},
            {self.find_name(1, each.reference) for each in pairing.pairs},
        )
        for pair in pairing.pairs:
            # A tensor can contain several of the other checkpoint.
            for taken, tensor in zip(used, (pair.tensor, pair.reference), strict=True):
                taken.update(source.name for source in tensor.origin.sources)
        # The names of buffers, and of tensors that are not part of the model.
        rest = [
            [name for name, _ in tree.items() if name not in taken]
            for tree, taken in zip(trees, used, strict=True)
        ]
        both = {*rest[0]} & {*rest[1]}
        pairs = [
            *pairing.pairs,
            *(pair_named(each, each, *trees) for each in rest[0] if each in both),
        ]
        self.pairs = {name: each for name, each in _name_pairs(pairs).items() if self._has(each)}
        alone = [[name for name in names if name not in both] for names in rest]
        if pairing.checkpoint is not None and pairing.reference is not None:
            # Buffers are left out, since a model in the other naming convention may not have them.
            beside = ({*pairing.checkpoint.beside}, {*pairing.reference.beside})
            unexpected = (pairing.unexpected, reverse.unexpected)
            alone = [
                [*names, *(name for name in alone[side] if name in beside[side])]
                for side, names in enumerate(unexpected)
            ]
        self.alone = tuple(self._list_alone(side, names) for side, names in enumerate(alone))

    def find_name(self, side: int, tensor: ReadableTensor) -> str:
        """Return the name of the checkpoint's entry that a tensor comes from."""
        entry = self.find_entry(side, tensor)
        return tensor.info.name if entry is None else entry.name

    def find_entry(self, side: int, tensor: ReadableTensor) -> Entry | None:
        """Return the checkpoint's entry that a tensor comes from; None for a computed tensor."""
        sources = tensor.origin.sources
        names = [source.name for source in sources] or [tensor.info.name]
        found = (self.contents[side].find_entry(name) for name in names)
        return next((entry for entry in found if entry is not None), None)

    def side(self, side: int, tensor: ReadableTensor) -> Side:
        """Return how a checkpoint stores a tensor, with the shape in which it is compared."""
        entry = self.find_entry(side, tensor)
        if entry is None:
            return Side(tensor.info.shape, tensor.info.encoding.name, None)
        return Side(tensor.info.shape, *kind(entry))

    def alone_side(self, side: int, name: str) -> Side:
        """Return how a checkpoint stores a tensor that the other checkpoint does not have."""
        entry = self.contents[side].find_entry(name)
        return Side((), "unknown", None) if entry is None else Side(entry.shape, *kind(entry))

    def list_views(self, pair: Pair) -> list[Pair]:
        """Return a pair in both naming conventions, if these have different values.

        If one convention, or MLX, adds 1 to values, rounding may make two tensors equal in only one
        of the conventions. The list is empty if the conventions have the same values.
        """
        change = None if pair.names is None else pair.names.change
        models = self._pairing.checkpoint, self._pairing.reference
        conventions = {(each.convention, each.is_mlx) for each in models if each is not None}
        if change is None or change.is_of_rows or len(conventions) < 2:
            return []
        views = (self._pairing.seen_in("gguf", pair), self._pairing.seen_in("hugging_face", pair))
        return [view for view in views if view is not None and view.is_comparable]

    def _has(self, pair: Pair) -> bool:
        """Whether --include and --exclude select a pair, by one of its names."""
        names = (pair.name, pair.reference_name)
        found = (self.find_name(0, pair.tensor), self.find_name(1, pair.reference))
        return any(
            each in contents.entries or name in contents.aliases
            for contents, name, each in zip(self.contents, names, found, strict=True)
        )

    def _list_alone(self, side: int, names: Sequence[str]) -> list[str]:
        """Return the names that --include and --exclude select, without duplicates."""
        contents = self.contents[side]
        found: dict[str, None] = {}
        for joined in names:
            # A tensor that comes from several stored tensors has all their names, with commas.
            name = joined if contents.find_entry(joined) else joined.partition(", ")[0]
            entry = contents.find_entry(name)
            if name in contents.aliases or (entry is not None and entry.name in contents.entries):
                found[name] = None
        return list(found)


def _name_pairs(pairs: Sequence[Pair]) -> dict[str, Pair]:
    """Map a unique name to each pair: the first checkpoint's name, if only this pair has it.

    Otherwise it is the second checkpoint's name, or that of weightctl's module.
    """
    own = Counter(each.name for each in pairs if each.module != OUTPUT_WEIGHT)
    other = Counter(each.reference_name for each in pairs if each.module != OUTPUT_WEIGHT)
    found: dict[str, Pair] = {}
    for pair in pairs:
        # The output of a tied model has the name of the embedding.
        most = 0 if pair.module == OUTPUT_WEIGHT else 1
        name = pair.module
        if own[pair.name] <= most:
            name = pair.name
        elif other[pair.reference_name] <= most:
            name = pair.reference_name
        found[pair.module if name in found else name] = pair
    return found


def compare_bytes(paired: PairedTensors, progress: Progress, *, with_bytes: bool) -> Comparison:
    """Compare the shapes and encodings of pairs.

    If `with_bytes` is set, the bytes of pairs with equal shapes and encodings are compared too. If
    naming conventions have different orders of rows, bytes are compared in one order.
    """
    found: dict[str, Difference] = {}
    for done, (name, pair) in enumerate(paired.pairs.items()):
        difference = _compare_sides(paired, name, pair)
        if not difference.of and with_bytes:
            if progress is not None:
                progress("bytes", done / len(paired.pairs))
            of = () if is_same(pair.tensor, pair.reference) else ("bytes",)
            difference = difference._replace(of=of)
        if difference.of:
            found[name] = difference
    return _make_comparison(paired, found)


def compare_values(paired: PairedTensors, progress: Progress) -> Comparison:
    """Compare the values of pairs in any encodings, and sort the differences by their size.

    The relative RMSE is relative to the first checkpoint. Values are decoded and compared a few MB
    at a time. Raises `EncodingError` if a tensor cannot be decoded.
    """
    for contents in paired.contents:
        tensors = [*contents.tensors.values()]
        refuse_unknown(tensors)
        refuse_expanded(source_of(contents.weights), tensors)
    found: dict[str, Difference] = {}
    layers: dict[int | None, tuple[list[bool], Measured]] = {}
    measured_pairs = {name: each for name, each in paired.pairs.items() if each.is_comparable}
    # Here, the reference is the first checkpoint, so the sides are exchanged.
    turned = [pair.exchanged for pair in measured_pairs.values()]
    recoded = 0

    def tell(done: float) -> None:
        if progress is not None:
            progress("values", done)

    with closing(measure_pairs(turned, tell, in_runs=False)) as results:
        for name, pair in paired.pairs.items():
            difference = _compare_sides(paired, name, pair)
            changes, total = layers.setdefault(pair.layer, ([], Measured()))
            if name not in measured_pairs:
                # The shapes differ, or the values are integers.
                if not difference.of:
                    is_changed = not is_same(pair.tensor, pair.reference)
                    changes.append(is_changed)
                    difference = difference._replace(of=("values",) * is_changed)
                if difference.of:
                    found[name] = difference
                continue
            recoded += "encoding" in difference.of
            measured = next(results)
            is_changed = _is_changed(pair, measured)
            if is_changed and (views := paired.list_views(pair)):
                measured = min(map(_measure, views), key=lambda each: each.relative_rmse)
                is_changed = _is_changed(pair, measured)
            changes.append(is_changed)
            total.add(measured)
            if is_changed:
                change = ValueChange.of(measured)
                found[name] = difference._replace(of=("values",), change=change)
    ordered = dict(sorted(found.items(), key=lambda each: _rank(each[1])))
    summaries = [
        LayerChange(layer, len(changes), sum(changes), ValueChange.of(total))
        for layer, (changes, total) in layers.items()
        if changes
    ]
    summaries.sort(key=lambda each: (each.layer is None, each.layer or 0))
    comparison = _make_comparison(paired, ordered)
    return comparison._replace(layers=summaries, recoded=recoded)


def _measure(pair: Pair) -> Measured:
    return measure_pair(pair.exchanged, in_runs=False)


def _compare_sides(paired: PairedTensors, name: str, pair: Pair) -> Difference:
    first, second = paired.side(0, pair.tensor), paired.side(1, pair.reference)
    of = list_differences(first, second)
    return Difference(name, pair.reference_name, of, first, second)


def _is_changed(pair: Pair, measured: Measured) -> bool:
    if measured.error or measured.nonfinite:
        return True
    encoding = pair.tensor.info.encoding
    is_wide = encoding.block == 1 and (encoding.significand or _BITS + 1) > _BITS
    return is_wide and measured.runs_unequal > 0


def _rank(difference: Difference) -> tuple[float, float]:
    """Return the sort key of a difference: those without figures first, then the largest change."""
    change = difference.change
    if change is None:
        return (-inf, -inf)
    figures = (change.relative_rmse, change.max_difference)
    return (-inf if isnan(figures[0]) else -figures[0], -figures[1])


def _make_comparison(paired: PairedTensors, found: Mapping[str, Difference]) -> Comparison:
    alone: dict[str, Difference] = {}
    for side, names in enumerate(paired.alone):
        for name in names:
            stored = paired.alone_side(side, name)
            if side == 0:
                alone[name] = Difference(name, None, (), stored, None)
            else:
                key = f"{name} (B)" if name in paired.pairs or name in alone else name
                alone[key] = Difference(key, name, (), None, stored)
    count = len(paired.pairs) + len(alone)
    return Comparison(
        count, len(paired.pairs), {**alone, **found}, paired.how if paired.is_by_family else ""
    )
