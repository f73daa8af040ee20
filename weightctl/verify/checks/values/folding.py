"""Many problems of one kind told as one that people can read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.verify.problem import first_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from weightctl.verify.compare.pairs import Pair
    from weightctl.verify.problem import Cause, Problem

__all__ = ["folded", "noted"]

# So many that are alike are told one by one.
_FEW = 3


def folded(problems: Iterable[tuple[Pair, Problem]]) -> Iterator[Problem]:
    """Yield problems, one for many with the same cause, and the first of many with none.

    The order is that of the first of each.
    """
    alike: dict[Cause | None, list[tuple[Pair, Problem]]] = {}
    for pair, problem in problems:
        alike.setdefault(problem.cause, []).append((pair, problem))
    for cause, group in alike.items():
        if cause is not None and len(group) > _FEW:
            yield _in_one(group)
        else:
            found = [problem for _, problem in group]
            yield from first_of(found, "and {} more tensors are as far off")


def noted(alike: Iterable[tuple[Pair, Cause]]) -> Iterator[str]:
    """Yield a note for each cause by which tensors differ that compute the same."""
    groups: dict[Cause, list[Pair]] = {}
    for pair, cause in alike:
        groups.setdefault(cause, []).append(pair)
    for cause, pairs in groups.items():
        yield f"{_named(pairs)} {'differ' if len(pairs) > 1 else 'differs'}: {cause.text}"


def _in_one(group: Sequence[tuple[Pair, Problem]]) -> Problem:
    _, first = group[0]
    named = _named([pair for pair, _ in group])
    text = f"{first.text}; and so with {len(group) - 1} more: {named}"
    return replace(first, text=text)


def _named(pairs: Sequence[Pair]) -> str:
    """Return what parts of the model some tensors are, and of which layers."""
    parts = dict.fromkeys(each.part.removesuffix(".weight") for each in pairs)
    named = ", ".join(list(parts)[:_FEW]) + (", ..." if len(parts) > _FEW else "")
    layers = sorted({each.layer for each in pairs if each.layer is not None})
    return f"{named}{_of(layers)}"


def _of(layers: Sequence[int]) -> str:
    if not layers:
        return ""
    if len(layers) == 1:
        return f" of layer {layers[0]}"
    if list(layers) == list(range(layers[0], layers[-1] + 1)):
        return f" of layers {layers[0]} to {layers[-1]}"
    return f" of {len(layers)} layers from {layers[0]} to {layers[-1]}"
