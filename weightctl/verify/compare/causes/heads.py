"""Detects attention heads, and hidden units of an MLP, that are in another order."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from weightctl.verify.compare.causes.orders import (
    COLUMNS,
    ROWS,
    describe_order,
    find_block_order,
    find_order,
    find_output_order,
    is_in_order,
)
from weightctl.verify.compare.explaining import is_proven
from weightctl.verify.results import Explanation

if TYPE_CHECKING:
    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairing import Pair, Pairing

    Places = tuple[int, ...]
    # The order of the heads of each kind (query, key, value and output heads).
    Heads = dict[str, Places]

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


def find_exchanged_heads(pair: Pair, pairing: Pairing, found: Measured) -> Explanation | None:
    """Detect that the attention heads of a projection are in another order."""
    del found
    orders = _find_orders(pair, pairing)
    if orders is None:
        return None
    texts = [describe_order(order, kind) for kind, order in orders.items() if _is_moved(order)]
    return Explanation("heads_exchanged", " and ".join(texts)) if texts else None


def find_equivalent_heads(
    pair: Pair, pairing: Pairing, found: Measured | None
) -> Explanation | None:
    """Detect that all projections of a layer's attention have its heads in the same new order."""
    del found
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
    pair: Pair, pairing: Pairing, found: Measured | None
) -> Explanation | None:
    """Detect that all projections of an MLP have its hidden units in the same new order."""
    del found
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
