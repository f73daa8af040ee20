"""Makes the mistakes of tools in the reference's tensors, to compare the results."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Any

from weightctl.errors import ConversionError
from weightctl.families.changes import half_split_order, interleaved_order
from weightctl.families.matching import EMBEDDING_WEIGHT, OUTPUT_WEIGHT
from weightctl.verify.compare.once_quantized import exchange_sides
from weightctl.verify.results import Explanation
from weightctl.weights.derived import DerivedTensor
from weightctl.weights.steps.numbers import AsFloat32, Plus
from weightctl.weights.steps.rows import RowOrder, RowRange
from weightctl.weights.steps.transposed import Transposed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.verify.compare.pairs import Pair, Pairing
    from weightctl.weights.derived import ReadableTensor, Step

    Guess = tuple[Pair, Explanation]

__all__ = [
    "TRANSPOSED",
    "guess_copied_embedding",
    "guess_fused_order",
    "guess_norm_offset",
    "guess_other_layer",
    "guess_other_projection",
    "guess_rope_rows",
    "guess_shifted",
    "guess_transposed",
]

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
_OTHERS = (
    (".attention.q.", ".attention.k.", Explanation(
        "query_and_key_swapped", "the query and key projections are swapped")),
    (".attention.q.", ".attention.o.", Explanation(
        "query_and_output_swapped", "the query and output projections are swapped")),
    (".attention.k.", ".attention.v.", _KEY_AND_VALUE),
    (".gate.", ".up.", _GATE_AND_UP),
)  # fmt: skip


def guess_rope_rows(pair: Pair, pairing: Pairing) -> Iterator[Guess]:
    """Yield the pair with queries or keys in the row orders of both naming conventions."""
    for order in _list_orders(pair, pairing):
        if (made := _apply(pair, RowOrder(order))) is not None:
            yield made, _ROPE


def _list_orders(pair: Pair, pairing: Pairing) -> Iterator[tuple[int, ...]]:
    """Yield the orders that the rows of queries or keys may have by mistake."""
    which = {"attention.q": "heads", "attention.k": "kv_heads"}.get(pair.part.rpartition(".")[0])
    model = pairing.reference
    config: Any = None if model is None else model.config
    if which is None or not (hasattr(config, "head_dim") and hasattr(config, which)):
        return
    rotated = getattr(config, "rope_dimensions", None)
    heads = getattr(config, which)
    shape = pair.reference.info.shape
    if shape and shape[0] == heads * config.head_dim:
        yield interleaved_order(heads, config.head_dim, rotated)
        yield half_split_order(heads, config.head_dim, rotated)


def guess_other_projection(pair: Pair, pairing: Pairing) -> Iterator[Guess]:
    """Yield the pair with the reference of another projection of its layer."""
    for one, other, cause in _OTHERS:
        for own, its in ((one, other), (other, one)):
            if own in pair.module:
                counterpart = pairing.by_module.get(pair.module.replace(own, its))
                yield from _replace_reference(pair, counterpart, pairing, cause)


def _replace_reference(
    pair: Pair, counterpart: Pair | None, pairing: Pairing, cause: Explanation
) -> Iterator[Guess]:
    """Yield the pair with another reference, its rows as they are or in another order."""
    if counterpart is None or counterpart.reference.info.shape != pair.tensor.info.shape:
        return
    made = pair._replace(reference=counterpart.reference, reference_bits=counterpart.reference_bits)
    yield made, cause
    for order in (*_list_orders(counterpart, pairing), *_list_orders(pair, pairing)):
        if (turned := _apply(made, RowOrder(order))) is not None:
            yield turned, cause


def guess_fused_order(pair: Pair, pairing: Pairing) -> Iterator[Guess]:
    """Yield the pair with the parts of a fused reference in another order."""
    shape, model = pair.reference.info.shape, pairing.reference
    if not shape or model is None:
        return
    if pair.part.startswith("mlp.gate_up."):
        half = shape[0] // 2
        order = (*range(half, shape[0]), *range(half))
        if (made := _apply(pair, RowOrder(order))) is not None:
            yield made, _GATE_AND_UP
    if pair.part.startswith("attention.qkv."):
        config: Any = model.config
        # In a family without the field, all parts have the same layout.
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
            if order != (0, 1, 2) and (made := _apply(pair, RowOrder(rows))) is not None:
                yield made, cause


def guess_transposed(pair: Pair, pairing: Pairing) -> Iterator[Guess]:
    """Yield the pair with the reference transposed."""
    del pairing
    if len(pair.reference.info.shape) != 2:
        return
    # A tensor that is transposed twice is read value by value; transposing the other side is
    # equivalent.
    if _is_turned(pair.reference):
        turned = None if _is_turned(pair.tensor) else _apply(exchange_sides(pair), Transposed())
        made = None if turned is None else exchange_sides(turned)
    else:
        made = _apply(pair, Transposed())
    if made is not None:
        yield made, TRANSPOSED


def _is_turned(tensor: ReadableTensor) -> bool:
    return str(Transposed()) in tensor.origin.steps


def guess_norm_offset(pair: Pair, pairing: Pairing) -> Iterator[Guess]:
    """Yield the pair with 1 added to the reference of a norm, and with 1 subtracted from it."""
    del pairing
    if len(pair.reference.info.shape) != 1 or not pair.module.endswith(".weight"):
        return
    for offset, text in (
        (-1.0, "it is 1 too small: the norm is stored as `w` instead of `1 + w`"),
        (1.0, "it is 1 too large: the norm is stored as `1 + w` instead of `w`"),
    ):
        if (made := _apply(pair, Plus(offset))) is not None:
            yield made, Explanation("norm_offset", text)


def guess_copied_embedding(pair: Pair, pairing: Pairing) -> Iterator[Guess]:
    """Yield the output with the embedding as its reference."""
    if pair.module == OUTPUT_WEIGHT:
        yield from _replace_reference(pair, pairing.by_module.get(EMBEDDING_WEIGHT), pairing, _TIED)


def guess_other_layer(pair: Pair, pairing: Pairing) -> Iterator[Guess]:
    """Yield the pair with the reference of each other layer."""
    if pair.layer is None:
        return
    for other in pairing.by_part.get((pair.part, pair.expert), ()):
        if other.layer != pair.layer:
            cause = Explanation("layers_exchanged", f"its values are those of layer {other.layer}")
            yield from _replace_reference(pair, other, pairing, cause)


def guess_shifted(pair: Pair, pairing: Pairing) -> Iterator[Guess]:
    """Yield the pair without its first and last rows, shifted by one row."""
    del pairing
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
            Explanation("shifted", f"the values of each row are one position {what} the right one"),
        )


def _apply(pair: Pair, step: Step) -> Pair | None:
    """Return the pair with a step applied to the reference; None if that is impossible."""
    reference: ReadableTensor = pair.reference
    try:
        if isinstance(step, Transposed) and reference.info.encoding.block > 1:
            reference = DerivedTensor(pair.module, AsFloat32(), [reference])
        return pair._replace(reference=DerivedTensor(pair.module, step, [reference]))
    except ConversionError:
        return None
