"""Makes typical mistakes of tools in the reference's tensors, to compare the results."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Any

from weightctl.errors import ConversionError
from weightctl.families.matching import EMBEDDING_WEIGHT, OUTPUT_WEIGHT
from weightctl.families.steps import half_split_order, interleaved_order
from weightctl.verify.compare.causes.orders import find_output_order
from weightctl.verify.compare.explaining import is_likely, is_proven
from weightctl.verify.results import Explanation
from weightctl.weights.derived import DerivedTensor
from weightctl.weights.steps.numbers import AsFloat32, Plus
from weightctl.weights.steps.rows import RowOrder, RowRange
from weightctl.weights.steps.stacked import Joined
from weightctl.weights.steps.transposed import Transposed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairing import Pair, Pairing
    from weightctl.weights.derived import ReadableTensor, Step

    Guess = tuple[Pair, Explanation]

_ROPE = Explanation(
    "rope_rows",
    "its rows are in the order of the other naming convention: the permutation of q and k "
    "for RoPE was left out, or was done twice",
)
_GATE_AND_UP = Explanation("gate_and_up_swapped", "the gate and up projections are swapped")
_KEY_AND_VALUE = Explanation("key_and_value_swapped", "the key and value projections are swapped")
_PARTS = Explanation("parts_exchanged", "the parts of the fused projection are in another order")
TRANSPOSED = Explanation("transposed", "it is transposed: rows and columns are swapped")
_TIED = Explanation("tied", "it is a copy of the embedding, and the reference has its own output")
_QUERY_AND_KEY = Explanation("query_and_key_swapped", "the query and key projections are swapped")
_OTHERS = (
    (".attention.q.", ".attention.k.", _QUERY_AND_KEY),
    (".cross.q.", ".cross.k.", _QUERY_AND_KEY),
    (".attention.q.", ".attention.o.", Explanation(
        "query_and_output_swapped", "the query and output projections are swapped")),
    (".attention.k.", ".attention.v.", _KEY_AND_VALUE),
    (".cross.k.", ".cross.v.", _KEY_AND_VALUE),
    (".gate.", ".up.", _GATE_AND_UP),
)  # fmt: skip


def guess_rope_rows(pair: Pair, pairing: Pairing) -> Iterator[Guess]:
    """Yield the pair with the rows of a query or key projection in the other row orders."""
    for order in _list_orders(pair, pairing):
        yield from _apply(pair, RowOrder(order), _ROPE)


def _list_orders(pair: Pair, pairing: Pairing) -> Iterator[tuple[int, ...]]:
    """Yield the wrong orders that a query or key projection's rows may have.

    These are the changes from one naming convention's order to the other's, in both directions.
    """
    which = {"attention.q": "heads", "attention.k": "kv_heads"}.get(pair.part.rpartition(".")[0])
    model = pairing.reference
    config: Any = None if model is None else model.config
    if which is None or not (hasattr(config, "head_dim") and hasattr(config, which)):
        return
    rotated = getattr(config, "rope_dimensions", None)
    heads = getattr(config, which)
    shape = pair.reference.info.shape
    if type(heads) is not tuple and shape and shape[0] == heads * config.head_dim:
        yield interleaved_order(heads, config.head_dim, rotated)
        yield half_split_order(heads, config.head_dim, rotated)


def guess_other_projection(pair: Pair, pairing: Pairing) -> Iterator[Guess]:
    """Yield the pair with the reference's tensor of another projection of the same layer."""
    for one, other, cause in _OTHERS:
        for own, its in ((one, other), (other, one)):
            if own in pair.module:
                counterpart = pairing.by_module.get(pair.module.replace(own, its))
                yield from _replace_reference(pair, counterpart, pairing, cause)


def _replace_reference(
    pair: Pair, counterpart: Pair | None, pairing: Pairing, cause: Explanation
) -> Iterator[Guess]:
    """Yield the pair with the reference of `counterpart`, with its rows unchanged and reordered."""
    if counterpart is None or counterpart.reference.info.shape != pair.tensor.info.shape:
        return
    made = _with_reference_of(pair, counterpart)
    yield made, cause
    for order in (*_list_orders(counterpart, pairing), *_list_orders(pair, pairing)):
        yield from _apply(made, RowOrder(order), cause)


def guess_fused_order(pair: Pair, pairing: Pairing) -> Iterator[Guess]:
    """Yield the pair with the parts of a fused projection's reference in other orders."""
    shape, model = pair.reference.info.shape, pairing.reference
    if not shape or model is None:
        return
    if pair.part.startswith("mlp.gate_up."):
        half = shape[0] // 2
        order = (*range(half, shape[0]), *range(half))
        yield from _apply(pair, RowOrder(order), _GATE_AND_UP)
    if pair.part.startswith("attention.qkv."):
        config: Any = model.config
        # In a family without these fields, query, key and value have the same size.
        shared = shape[0] // 3
        if hasattr(config, "kv_heads") and hasattr(config, "head_dim"):
            shared = config.kv_heads * config.head_dim
        sizes = (shape[0] - 2 * shared, shared, shared)
        starts = (0, sizes[0], sizes[0] + shared)
        for order in permutations(range(3)):
            rows = tuple(
                row for each in order for row in range(starts[each], starts[each] + sizes[each])
            )
            cause = _KEY_AND_VALUE if order == (0, 2, 1) else _PARTS
            if order != (0, 1, 2):
                yield from _apply(pair, RowOrder(rows), cause)


def guess_transposed(pair: Pair, _pairing: Pairing) -> Iterator[Guess]:
    if len(pair.reference.info.shape) != 2:
        return
    # If the reference is transposed already, transposing the tensor instead is equivalent: a tensor
    # that is transposed twice would be read value by value.
    if not _is_turned(pair.reference):
        yield from _apply(pair, Transposed(), TRANSPOSED)
    elif not _is_turned(pair.tensor):
        for turned, cause in _apply(pair.exchanged, Transposed(), TRANSPOSED):
            yield turned.exchanged, cause


def _is_turned(tensor: ReadableTensor) -> bool:
    return str(Transposed()) in tensor.origin.steps


def guess_norm_offset(pair: Pair, _pairing: Pairing) -> Iterator[Guess]:
    """Yield the pair of a norm with 1 subtracted from the reference, and with 1 added to it."""
    # Norms of each head are matrices.
    is_vector = len(pair.reference.info.shape) == 1 or "norm" in pair.part
    if not is_vector or not pair.module.endswith(".weight"):
        return
    for offset, text in (
        (-1.0, "it is 1 too small: the norm is stored as `w` instead of `1 + w`"),
        (1.0, "it is 1 too large: the norm is stored as `1 + w` instead of `w`"),
    ):
        yield from _apply(pair, Plus(offset), Explanation("norm_offset", text))


def guess_copied_embedding(pair: Pair, pairing: Pairing) -> Iterator[Guess]:
    """Yield the pair of the output matrix with the embedding as its reference."""
    if pair.module == OUTPUT_WEIGHT:
        yield from _replace_reference(pair, pairing.by_module.get(EMBEDDING_WEIGHT), pairing, _TIED)


def guess_other_layer(pair: Pair, pairing: Pairing) -> Iterator[Guess]:
    """Yield the pair with the reference's tensor of each other layer."""
    if pair.layer is None:
        return
    for other in pairing.by_part.get((pair.part, pair.expert), ()):
        if other.layer != pair.layer:
            cause = Explanation("layers_exchanged", f"its values are those of layer {other.layer}")
            yield from _replace_reference(pair, other, pairing, cause)


def guess_shifted(pair: Pair, _pairing: Pairing) -> Iterator[Guess]:
    """Yield the pair with the tensor shifted by one row, in either direction.

    The first or last row of each side, which has no counterpart, is left out.
    """
    shape = pair.tensor.info.shape
    if len(shape) != 2 or shape != pair.reference.info.shape or shape[0] < 3:
        return
    last = shape[0]
    for mine, theirs, what in ((1, 0, "after"), (0, 1, "before")):
        yield (
            pair._replace(
                tensor=DerivedTensor(pair.module, RowRange(mine, last - theirs), [pair.tensor]),
                reference=DerivedTensor(
                    pair.module, RowRange(theirs, last - mine), [pair.reference]
                ),
            ),
            Explanation("shifted", f"each row is one position {what} the right one"),
        )


def _apply(pair: Pair, step: Step, cause: Explanation) -> Iterator[Guess]:
    """Yield the pair with a step applied to the reference, if the step accepts it."""
    reference: ReadableTensor = pair.reference
    try:
        if isinstance(step, Transposed) and reference.info.encoding.block > 1:
            reference = DerivedTensor(pair.module, AsFloat32(), [reference])
        reference = DerivedTensor(pair.module, step, [reference])
    except ConversionError:
        return
    yield pair._replace(reference=reference), cause


_INTERLEAVED = Explanation(
    "gate_and_up_interleaved",
    "the gate and up projections are interleaved: their rows alternate, but each projection "
    "should be separate",
)
_TAKEN_APART = Explanation(
    "gate_and_up_interleaved",
    "the gate and up projections were separated as if they were interleaved: each has every "
    "second row of both",
)
_GATE, _UP = ".gate.", ".up."


def guess_interleaved(pair: Pair, pairing: Pairing) -> Iterator[Guess]:
    """Yield the pair with the rows of gate and up interleaved, and deinterleaved by mistake."""
    if pair.part.startswith("mlp.gate_up."):
        rows = pair.reference.info.shape[0]
        if rows % 2 == 0:
            for order, cause in _list_wrong_orders(rows // 2):
                yield from _apply(pair, RowOrder(order), cause)
        return
    both = [pair.module.replace(_UP, _GATE), pair.module.replace(_GATE, _UP)]
    found = [pairing.by_module.get(module) for module in both]
    if both[0] == both[1] or None in found:
        return
    references = [each.reference for each in found if each is not None]
    try:
        joined = DerivedTensor(pair.module, Joined(2), references)
    except ConversionError:
        return
    rows = joined.info.shape[0] // 2
    half = slice(rows) if pair.module == both[0] else slice(rows, 2 * rows)
    for order, cause in _list_wrong_orders(rows):
        picked = RowOrder(order[half], rows=2 * rows)
        yield from _apply(pair._replace(reference=joined), picked, cause)


def _list_wrong_orders(rows: int) -> Iterator[tuple[tuple[int, ...], Explanation]]:
    """Yield wrong orders of `rows` gate rows followed by `rows` up rows."""
    yield tuple(each for row in range(rows) for each in (row, rows + row)), _INTERLEAVED
    yield (*range(0, 2 * rows, 2), *range(1, 2 * rows, 2)), _TAKEN_APART


_ORDER = Explanation("expert_order", "the experts of the layer are in another order")
_EXPERTS_ALIKE = Explanation(
    "experts_permuted",
    "the experts of the layer are in another order, also in its router: the model computes "
    "the same",
)


def guess_other_expert(pair: Pair, pairing: Pairing) -> Iterator[Guess]:
    """Yield the pair with the reference's tensor of each other expert of the same layer."""
    if pair.expert is None:
        return
    for other in pairing.by_layer.get((pair.part, pair.layer), ()):
        if other.expert == pair.expert:
            continue
        made = _with_reference_of(pair, other)
        if not is_likely(made, pairing):
            continue
        # If the other expert is in its own place too, it was copied, not moved.
        cause = _ORDER
        if is_proven(other, pairing):
            text = f"expert {pair.expert} is a copy of expert {other.expert}"
            cause = Explanation("expert_copied", text)
        yield made, cause


def find_equivalent_experts(
    pair: Pair, pairing: Pairing, _found: Measured | None
) -> Explanation | None:
    """Detect that a layer's experts and its router's rows are in the same new order."""
    if pair.layer is None or not (pair.expert is not None or pair.part == "mlp.router.weight"):
        return None
    key = f"layers.{pair.layer}.mlp.experts"
    if key not in pairing.alike:
        pairing.alike[key] = _EXPERTS_ALIKE if _follow_router(pair.layer, pairing) else None
    return pairing.alike[key]


def _follow_router(layer: int, pairing: Pairing) -> bool:
    router = pairing.by_module.get(f"layers.{layer}.mlp.router.weight")
    places = None if router is None else find_output_order(router, pairing)
    if places is None:
        return False
    for pair in pairing.pairs:
        if pair.layer != layer or pair.expert is None or places[pair.expert] == pair.expert:
            continue
        others = pairing.by_layer[pair.part, layer]
        other = next((each for each in others if each.expert == places[pair.expert]), None)
        made = None if other is None else _with_reference_of(pair, other)
        if made is None or not is_proven(made, pairing):
            return False
    return True


def guess_other_norm(pair: Pair, pairing: Pairing) -> Iterator[Guess]:
    """Yield the pair of a norm with the reference's tensors of other norms.

    These are norms of the same layer, and norms outside the layers. For a norm outside the layers,
    they are the norms of all layers.
    """
    if not _is_norm(pair):
        return
    for other in pairing.pairs:
        is_near = other.layer in {pair.layer, None} or pair.layer is None
        if not is_near or other.part == pair.part or not _is_norm(other):
            continue
        if (
            _name_kind(other) != _name_kind(pair)
            or other.reference.info.shape != pair.tensor.info.shape
        ):
            continue
        made = _with_reference_of(pair, other)
        if is_likely(made, pairing):
            how = f"it is a copy of `{other.name}`"
            if is_proven(_with_reference_of(other, pair), pairing):
                how = f"it and `{other.name}` are swapped"
            yield made, Explanation("norms_exchanged", how)


def _with_reference_of(pair: Pair, other: Pair) -> Pair:
    return pair._replace(reference=other.reference, reference_bits=other.reference_bits)


def _is_norm(pair: Pair) -> bool:
    return len(pair.tensor.info.shape) == 1 and "norm" in pair.part


def _name_kind(pair: Pair) -> str:
    """Return the parameter's own name: `weight` or `bias`."""
    return pair.part.rpartition(".")[2]
