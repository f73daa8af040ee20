"""Finds the order in which a tensor has the rows, columns or heads of its reference."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightctl.errors import ConversionError
from weightctl.verify.compare.explaining import is_proven
from weightctl.verify.results import Explanation
from weightctl.weights.derived import DerivedTensor
from weightctl.weights.steps.numbers import AsFloat32, read_floats
from weightctl.weights.steps.rows import RowOrder
from weightctl.weights.steps.transposed import ColumnOrder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32
    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairing import Pair, Pairing
    from weightctl.weights.derived import ReadableTensor

    Places = tuple[int, ...]
    Heads = dict[str, Places]


ROWS, COLUMNS = 0, 1

# The number of values by which a row or column is recognized.
_SIGNATURE = 64
# Columns are sampled in this number of bands of consecutive rows.
_BANDS = 4
_PIECE = 1 << 20
# More differing rows than this are not matched, since the time grows with the square of their
# number.
_MOST_MATCHED = 1 << 15
# The number of rows to match first; most of them must have a match.
_PROBES = 16
# A row may be a different row if its relative error exceeds this multiple of the typical error, and
# this minimum.
_OFF, _LEAST_OFF = 3.0, 1e-3
# A row was moved if its distance to the nearest row of the reference is less than this fraction of
# its distance to the reference's row in the same place.
_NEARER = 0.5
_AT_ONCE = 512
# The largest number of entries of an order that a message lists.
_MOST_LISTED = 8
_NOUNS = {ROWS: "rows", COLUMNS: "columns"}


class _Sides(NamedTuple):
    """Values by which the rows or columns of both tensors are recognized: [rows or columns, n]."""

    own: F32
    reference: F32


def find_order(pair: Pair, pairing: Pairing, axis: int) -> Places | None:
    """Return the index of the reference's row, or column, at each place of a tensor.

    The order is proven: the reference in this order matches the tensor. Return None if the tensor
    is in the reference's order, or if no order makes them match.
    """
    key = (pair.module, axis, pair.tensor.origin.steps)
    if key not in pairing.orders:
        pairing.orders[key] = _search_order(pair, pairing, axis)
    return pairing.orders[key]


def find_output_order(pair: Pair, pairing: Pairing) -> Places | None:
    """Return the index of the reference's output at each output of a linear layer.

    `pair` is a pair of weights, or of biases; a bias must be in the same order as its weight.
    Return None if the order is the reference's, or cannot be proven.
    """
    view = pairing.seen_in("gguf", pair)
    if view is None or len(view.tensor.info.shape) != 1:
        return None if view is None else find_order(view, pairing, ROWS)
    weight = pairing.by_module.get(f"{pair.module.removesuffix('.bias')}.weight")
    if weight is None or weight.module == pair.module:
        return None
    places = find_output_order(weight, pairing)
    return places if places is not None and is_in_order(view, pairing, ROWS, places) else None


def is_in_order(pair: Pair, pairing: Pairing, axis: int, places: Places) -> bool:
    """Whether a tensor matches its reference with the rows or columns in the order `places`."""
    made = _reorder(pair, axis, places)
    return made is not None and is_proven(made, pairing)


def find_block_order(places: Places, size: int) -> Places | None:
    """Return the order of blocks of `size` rows or columns.

    Return None if `places` does not keep the rows or columns of each block together, in order.
    """
    if size < 1 or len(places) % size:
        return None
    given = np.asarray(places).reshape(-1, size)
    starts = given[:, 0]
    if (starts % size).any() or (given != starts[:, None] + np.arange(size)).any():
        return None
    return tuple((starts // size).tolist())


def find_swap(places: Places) -> tuple[int, int] | None:
    """Return the two places that are swapped; None if the order is not a single swap."""
    wrong = [place for place, number in enumerate(places) if place != number]
    return (wrong[0], wrong[1]) if len(wrong) == 2 else None


def describe_order(places: Places, noun: str) -> str:
    """Describe the order of rows, columns or blocks: `heads 1 and 3 are swapped`."""
    pair = find_swap(places)
    if pair is not None:
        return f"{noun} {pair[0]} and {pair[1]} are swapped"
    more = ", ..." if len(places) > _MOST_LISTED else ""
    listed = ", ".join(map(str, places[:_MOST_LISTED]))
    return f"its {noun} are in another order; in the reference they are {listed}{more}"


def _reorder(pair: Pair, axis: int, places: Places) -> Pair | None:
    """Return the pair with the reference's rows or columns reordered; None if the counts differ."""
    reference = pair.reference
    try:
        if axis == ROWS:
            made = DerivedTensor(pair.module, RowOrder(places), [reference])
        else:
            numbers = DerivedTensor(pair.module, AsFloat32(), [reference])
            made = DerivedTensor(pair.module, ColumnOrder(places), [numbers])
    except ConversionError:
        return None
    return pair._replace(reference=made)


def _search_order(pair: Pair, pairing: Pairing, axis: int) -> Places | None:
    shape = pair.tensor.info.shape
    if len(shape) != 2 or shape != pair.reference.info.shape or 0 in shape:
        return None
    read = _sample_rows if axis == ROWS else _sample_columns
    sides = _Sides(read(pair.tensor), read(pair.reference))
    if not all(np.isfinite(side).all() for side in sides):
        return None
    usual = max(side.typical for side in pair.sides)
    places = _match(sides, max(_OFF * usual, _LEAST_OFF))
    if places is None or not is_in_order(pair, pairing, axis, places):
        return None
    return places


def _sample_rows(tensor: ReadableTensor) -> F32:
    """Return evenly spaced values of each row, [rows, n]."""
    count, width = tensor.info.shape
    columns = np.unique(np.linspace(0, width - 1, _SIGNATURE).astype(np.int64))
    step = max(_PIECE // width, 1)
    made = np.empty((count, len(columns)), np.float32)
    for first in range(0, count, step):
        rows = min(step, count - first)
        numbers = read_floats(tensor, first * width, rows * width).reshape(rows, width)
        made[first : first + rows] = numbers[:, columns]
    return made


def _sample_columns(tensor: ReadableTensor) -> F32:
    """Return values of each column, from evenly spaced bands of rows, [columns, n]."""
    count, width = tensor.info.shape
    band = min(count, _SIGNATURE // _BANDS)
    starts = dict.fromkeys((count - band) * part // (_BANDS - 1) for part in range(_BANDS))
    bands = [read_floats(tensor, start * width, band * width) for start in starts]
    return np.ascontiguousarray(np.concatenate(bands).reshape(-1, width).T)


def _match(sides: _Sides, threshold: float) -> Places | None:
    """Return the index of the reference's row at each place; None if rows do not seem reordered.

    Rows whose relative error is at most the threshold stay in place; the others get the nearest row
    of the reference. Return None if fewer than two rows or too many rows are left to match, or if
    most of a sample of them do not have a nearer row in another place.
    """
    apart, lengths = _sum_squares(sides.own - sides.reference), _sum_squares(sides.reference)
    wrong = np.flatnonzero(apart > threshold**2 * lengths)
    if not 2 <= len(wrong) <= _MOST_MATCHED:
        return None
    own, reference = sides.own[wrong], sides.reference[wrong]
    probes = np.unique(np.linspace(0, len(wrong) - 1, _PROBES).astype(np.int64))
    nearest = _find_nearest(own[probes], reference)
    is_moved = _sum_squares(own[probes] - reference[nearest]) < _NEARER**2 * apart[wrong][probes]
    if 2 * np.count_nonzero(is_moved & (nearest != probes)) < len(probes):
        return None
    places = np.arange(len(apart))
    places[wrong] = wrong[_use_each_once(_find_nearest(own, reference))]
    return tuple(places.tolist())


def _find_nearest(own: F32, reference: F32) -> NDArray[np.int64]:
    """Return the index of the reference's nearest row for each row of `own`."""
    squares = np.vecdot(reference, reference)
    nearest = np.empty(len(own), np.int64)
    for first in range(0, len(own), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        nearest[part] = np.argmin(squares - 2 * (own[part] @ reference.T), axis=1)
    return nearest


def _use_each_once(nearest: NDArray[np.int64]) -> NDArray[np.int64]:
    """Replace repeated indices by unused ones, so that each index occurs once.

    Indices are repeated if several rows have the same nearest row, as equal rows do.
    """
    _, first = np.unique(nearest, return_index=True)
    is_second = np.ones(len(nearest), bool)
    is_second[first] = False
    made = nearest.copy()
    made[is_second] = np.setdiff1d(np.arange(len(nearest)), nearest)
    return made


def _sum_squares(rows: F32) -> NDArray[np.float64]:
    wide = rows.astype(np.float64)
    found: NDArray[np.float64] = np.vecdot(wide, wide)
    return found


def find_permuted(pair: Pair, pairing: Pairing, _found: Measured) -> Explanation | None:
    """Detect that the rows or columns are cyclically shifted, swapped or in another order."""
    own = pairing.checkpoint
    view = pair if own is None else pairing.seen_in(own.convention, pair)
    if view is None:
        return None
    for axis, noun in _NOUNS.items():
        places = find_order(view, pairing, axis)
        if places is not None:
            return _make_cause(places, noun)
    return None


def _make_cause(places: Places, noun: str) -> Explanation:
    size = len(places)
    by = places.index(0)
    if len(places) > 2 and all(
        number == (place - by) % size for place, number in enumerate(places)
    ):
        text = f"its {noun} are rotated by {by} of {size}: the first one is at {by} here"
        return Explanation("rolled", text)
    return Explanation("permuted", describe_order(places, noun))


# Attention heads, and hidden units of an MLP, that are in another order.


_QUERY, _KEY, _VALUE, _OUTPUT = "query heads", "key heads", "value heads", "heads"
_KINDS = {
    "attention.q": (_QUERY,),
    "attention.k": (_KEY,),
    "attention.v": (_VALUE,),
    "attention.o": (_OUTPUT,),
    "attention.qkv": (_QUERY, _KEY, _VALUE),
    # Projections from the latent vectors of multi-head latent attention to heads.
    "attention.q_b": (_QUERY,),
    "attention.k_b": (_KEY,),
    "attention.v_b": (_VALUE,),
}
_HEADS_ALIKE = Explanation(
    "heads_permuted",
    "its attention heads are in another order in all projections: the model computes the same",
)


def find_exchanged_heads(pair: Pair, pairing: Pairing, _found: Measured) -> Explanation | None:
    """Detect that the attention heads of a projection are in another order."""
    orders = _find_orders(pair, pairing)
    if orders is None:
        return None
    texts = [describe_order(order, kind) for kind, order in orders.items() if _is_moved(order)]
    return Explanation("heads_exchanged", " and ".join(texts)) if texts else None


def find_equivalent_heads(
    pair: Pair, pairing: Pairing, _found: Measured | None
) -> Explanation | None:
    """Detect that all projections of a layer's attention have its heads in the same new order."""
    before, name, _ = pair.module.partition("attention.")
    if not name or pair.part.rpartition(".")[0] not in _KINDS:
        return None
    if before not in pairing.alike:
        group = [
            each
            for each in pairing.pairs
            if each.module.startswith(before + name)
            and each.part.rpartition(".")[0] in _KINDS
            and each.part != "attention.o.bias"
        ]
        pairing.alike[before] = _HEADS_ALIKE if _are_alike(pair, group, pairing) else None
    # A bias of the attention's output does not consist of heads.
    return None if pair.part == "attention.o.bias" else pairing.alike[before]


def _are_alike(pair: Pair, group: list[Pair], pairing: Pairing) -> bool:
    first = _find_orders(pair, pairing)
    if first is None or not any(map(_is_moved, first.values())):
        return False
    heads: Heads = {}
    for each in group:
        orders = _find_orders(each, pairing) or _find_unmoved(each, pairing)
        if orders is None or any(heads.get(kind, order) != order for kind, order in orders.items()):
            return False
        heads |= orders
    if heads.keys() != {_QUERY, _KEY, _VALUE, _OUTPUT}:
        return False
    shared = len(heads[_QUERY]) // len(heads[_KEY])
    is_of_group = all(
        heads[_KEY][place // shared] == head // shared for place, head in enumerate(heads[_QUERY])
    )
    return heads[_QUERY] == heads[_OUTPUT] and heads[_KEY] == heads[_VALUE] and is_of_group


def _find_orders(pair: Pair, pairing: Pairing) -> Heads | None:
    """Return the order of each kind of heads in a projection.

    Return None if the projection does not have the reference's heads in another order.
    """
    kinds = _KINDS.get(pair.part.rpartition(".")[0])
    counts = _count_heads(pairing)
    if kinds is None or counts is None:
        return None
    if kinds == (_OUTPUT,):
        view = pairing.seen_in("gguf", pair)
        places = None if view is None else find_order(view, pairing, COLUMNS)
    else:
        places = find_output_order(pair, pairing)
    total = sum(counts[kind] for kind in kinds)
    order = None if places is None else find_block_order(places, len(places) // total)
    return None if order is None or len(order) != total else _split_kinds(order, kinds, counts)


def _split_kinds(order: Places, kinds: tuple[str, ...], counts: dict[str, int]) -> Heads | None:
    """Split an order of all heads into one for each kind; None if kinds are mixed."""
    found: Heads = {}
    start = 0
    for kind in kinds:
        stop = start + counts[kind]
        if not all(start <= head < stop for head in order[start:stop]):
            return None
        found[kind] = tuple(head - start for head in order[start:stop])
        start = stop
    return found


def _find_unmoved(pair: Pair, pairing: Pairing) -> Heads | None:
    """Return the identity order of each kind of heads; None if the pair does not match."""
    counts = _count_heads(pairing)
    if counts is None or not is_proven(pair, pairing):
        return None
    return {kind: tuple(range(counts[kind])) for kind in _KINDS[pair.part.rpartition(".")[0]]}


def _count_heads(pairing: Pairing) -> dict[str, int] | None:
    config: Any = None if pairing.reference is None else pairing.reference.config
    heads = getattr(config, "heads", 0)
    shared = getattr(config, "kv_heads", heads)
    if not heads or not shared or type(shared) is tuple:  # that of each layer is its own
        return None
    return {_QUERY: heads, _KEY: shared, _VALUE: shared, _OUTPUT: heads}


def _is_moved(order: Places) -> bool:
    return order != tuple(range(len(order)))


# The tensors of an MLP, or of an expert, that have the hidden units as rows or columns.
_PART = re.compile(
    r"(?P<mlp>.*\bmlp\.(?:experts\.\d+\.)?)(?P<part>(?:gate|up|gate_up)\.\w+|down\.weight)"
)
_FUSED, _DOWN = "gate_up.", "down."
_UNITS_ALIKE = Explanation(
    "units_permuted",
    "the inner units of its MLP are in another order in all projections: the model computes "
    "the same",
)


def find_equivalent_units(
    pair: Pair, pairing: Pairing, _found: Measured | None
) -> Explanation | None:
    """Detect that all projections of an MLP have its hidden units in the same new order."""
    named = _PART.fullmatch(pair.module)
    if named is None:
        return None
    mlp = named["mlp"]
    if mlp not in pairing.alike:
        places = _find_units(pair, named["part"], pairing)
        are_alike = places is not None and all(
            _has_units(each, part["part"], places, pairing)
            for each in pairing.pairs
            if (part := _PART.fullmatch(each.module)) is not None and part["mlp"] == mlp
        )
        pairing.alike[mlp] = _UNITS_ALIKE if are_alike else None
    return pairing.alike[mlp]


def _find_units(pair: Pair, part: str, pairing: Pairing) -> Places | None:
    """Return the index of the reference's hidden unit at each place of a tensor.

    Return None if the units are not in another order.
    """
    if part.startswith(_DOWN):
        view = pairing.seen_in("gguf", pair)
        return None if view is None else find_order(view, pairing, COLUMNS)
    places = find_output_order(pair, pairing)
    if places is None or not part.startswith(_FUSED):
        return places
    units = places[: len(places) // 2]
    return units if places == _fuse(units) else None


def _has_units(pair: Pair, part: str, units: Places, pairing: Pairing) -> bool:
    """Whether a tensor of an MLP has the hidden units in the order `units`."""
    view = pairing.seen_in("gguf", pair)
    if view is None:
        return False
    axis = COLUMNS if part.startswith(_DOWN) else ROWS
    places = _fuse(units) if part.startswith(_FUSED) else units
    known = pairing.orders.get((view.module, axis, view.tensor.origin.steps))
    return known == places or is_in_order(view, pairing, axis, places)


def _fuse(units: Places) -> Places:
    """Return the order of the rows of a fused gate and up projection, from that of the units."""
    return (*units, *(len(units) + unit for unit in units))
