"""Finds the numbers of ranks for which a checkpoint can be split, and why others do not work."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ShardingError
from weightctl.sharding.cutting import groups, refuse, signature
from weightctl.sharding.dividing import share_among_ranks
from weightctl.sharding.planning import shardings
from weightctl.sharding.properties import gather_knowledge
from weightctl.split import Grid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from weightctl.sharding.placing import PlacedWeight
    from weightctl.sharding.planning import CutRulesLike
    from weightctl.sharding.properties import CheckpointKnowledge
    from weightctl.weights.tree import Checkpoint


class Possible(NamedTuple):
    """A number of ranks, and the error if a checkpoint cannot be split for it; otherwise None."""

    ranks: int
    refusal: ShardingError | None


def possible(
    weights: Checkpoint, counts: Iterable[int], *, rules: CutRulesLike | None = None
) -> list[Possible]:
    """Return for each number of ranks whether a checkpoint can be split for it.

    Only small tensors that define shapes are read. Raises `ArchitectureError` if there are no rules
    and the model family is not supported, and `ShardingError` if the config belongs to another
    model.
    """
    found = gather_knowledge(weights, is_ruled=rules is not None)
    refuse_unfit = _by_rules(found, rules) if rules is not None else _by_family(found)
    made: list[Possible] = []
    for ranks in counts:
        refusal: ShardingError | None = None
        try:
            refuse(found.model, Grid(ranks))
            refuse_unfit(ranks)
        except ShardingError as error:
            refusal = error
        made.append(Possible(ranks, refusal))
    return made


def _by_rules(found: CheckpointKnowledge, rules: CutRulesLike) -> Callable[[int], object]:
    return lambda ranks: shardings(found, Grid(ranks), rules)


def _by_family(found: CheckpointKnowledge) -> Callable[[int], object]:
    model = found.model
    # Most layers have the same signature, and are tried once.
    unlike: dict[object, list[PlacedWeight]] = {}
    for group in groups(model.places.values()):
        unlike.setdefault(signature(group), group)
    return lambda ranks: [share_among_ranks(group, ranks) for group in unlike.values()]
