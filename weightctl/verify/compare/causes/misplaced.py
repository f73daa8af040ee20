"""Detects experts and norms in the place of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.verify.compare.causes.orders import find_output_order
from weightctl.verify.compare.causes.proof import is_likely, is_proven
from weightctl.verify.results import Explanation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairs import Pair, Pairing

    Guess = tuple[Pair, Explanation]

__all__ = ["find_equivalent_experts", "guess_other_expert", "guess_other_norm"]

_ORDER = Explanation("expert_order", "the experts of the layer are in another order")
_ALIKE = Explanation(
    "experts_permuted",
    "the experts of the layer are in another order, also in its router: the model computes "
    "the same",
)


def guess_other_expert(pair: Pair, pairing: Pairing) -> Iterator[Guess]:
    """Yield the pair with the reference of each other expert of its layer."""
    if pair.expert is None:
        return
    for other in pairing.by_layer.get((pair.part, pair.layer), ()):
        if other.expert == pair.expert:
            continue
        made = _with_reference_of(pair, other)
        if not is_likely(made, pairing):
            continue
        # An expert that is also still in its own place was copied, not moved.
        cause = _ORDER
        if is_proven(other, pairing):
            text = f"expert {pair.expert} is a copy of expert {other.expert}"
            cause = Explanation("expert_copied", text)
        yield made, cause


def find_equivalent_experts(
    pair: Pair, pairing: Pairing, found: Measured | None
) -> Explanation | None:
    """Detect that a layer's experts and its router's rows are in the same other order."""
    del found
    if pair.layer is None or not (pair.expert is not None or pair.part == "mlp.router.weight"):
        return None
    key = f"layers.{pair.layer}.mlp.experts"
    if key not in pairing.alike:
        pairing.alike[key] = _ALIKE if _follow_router(pair.layer, pairing) else None
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
    """Yield the pair with the reference of each other norm of its layer, and of none."""
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
    """Return `weight` or `bias`."""
    return pair.part.rpartition(".")[2]
