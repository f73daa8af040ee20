"""The choice of experts: which few of many compute a position, and with what share each."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal, TypeAlias

from weightctl.dtype import DType
from weightctl.errors import GraphError
from weightctl.graph import ops

if TYPE_CHECKING:
    from weightctl.graph.value import Value

Scores: TypeAlias = Literal["softmax", "sigmoid", "sparsemixer", "sqrtsoftplus"]

# How far below the best a score may be for SparseMixer, as a share of the larger of the two.
_NEAR = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The rule by which the `used` of `count` experts with the largest scores are chosen.

    `scores` are the softmax of the router's values over all experts, or the sigmoid of each, or the
    root of its softplus. The
    shares are the scores of those that are used; `is_normalized` divides them by their sum, and
    `scale` multiplies them. Of `groups` of experts, those in the `groups_used` best can be chosen:
    those with the largest score, or the largest sum of two where the scores are sigmoids.

    With `sparsemixer` the experts are chosen one after the other: each has its share of a softmax
    over those that are left and have nearly as large a value. Source: Liu et al., "GRIN:
    GRadient-INformed MoE" (2024).

    Raises `GraphError` if more experts are used than there are, or none.
    """

    count: int
    used: int
    scores: Scores = "softmax"
    is_normalized: bool = True
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.used <= self.count:
            raise GraphError(
                f"{self.used} experts per token are not possible with {self.count} experts",
                hint="`used` must be at least 1 and at most `count`",
            )
        if self.count % self.groups or not 0 < self.groups_used <= self.groups:
            raise GraphError(
                f"{self.count} experts in {self.groups} groups are not possible, with "
                f"{self.groups_used} groups in use",
                hint="`count` must be a multiple of `groups`, and `groups_used` at least 1 and at "
                "most `groups`",
            )

    def shares(
        self, values: Value, correction: Value | None = None, given: Value | None = None
    ) -> Value:
        """Return the share of each expert, [..., count], 0 for those that are not used.

        `values` are the router's, in float32, and `correction` is added to scores to choose. With
        `given`, [..., used], the experts with these numbers are used.
        """
        if self.scores == "sparsemixer":
            return self._mix(values)
        scores = self._score(values)
        choice = scores if correction is None else scores + correction
        if self.groups > 1:
            choice = self._within_groups(choice)
        best, chosen = ops.top_k(choice, self.used)
        chosen = chosen if given is None else given
        numbers = ops.range(self.count, device=values.device)
        is_given = ops.equal(ops.unsqueeze(chosen, -1), numbers)
        if correction is None and given is None and self.groups == 1:
            shares = best
        else:
            own = ops.where(is_given, ops.unsqueeze(scores, -2), 0.0)
            shares = ops.sum(own, -1)
        if self.is_normalized:
            shares = shares / ops.sum(shares, -1, keepdims=True)
        if self.scale != 1:
            shares = shares * self.scale
        return ops.sum(ops.where(is_given, ops.unsqueeze(shares, -1), 0.0), -2)

    def _score(self, values: Value) -> Value:
        if self.scores == "softmax":
            return ops.softmax(values)
        if self.scores == "sqrtsoftplus":
            return ops.sqrt(ops.softplus(values))
        return ops.sigmoid(values)

    def _mix(self, values: Value) -> Value:
        """Return the shares of the experts that are the best one after the other."""
        numbers = ops.range(self.count, device=values.device)
        left, shares = values, None
        for _ in range(self.used):
            best, chosen = ops.top_k(left, 1)
            is_near = best - values <= ops.maximum(ops.abs(values), best) * _NEAR
            near = ops.softmax(ops.where(is_near, left, -inf))
            is_chosen = ops.equal(chosen, numbers)
            own = ops.where(is_chosen, near, 0.0)
            shares = own if shares is None else shares + own
            left = ops.where(is_chosen, -inf, left)
        return values if shares is None else shares

    def _within_groups(self, scores: Value) -> Value:
        """Return scores in which those of the groups that are not used are below all others."""
        rest = scores.shape[:-1]
        grouped = scores.reshape((*rest, self.groups, self.count // self.groups))
        best, _ = ops.top_k(grouped, 2 if self.scores == "sigmoid" else 1)
        _, chosen = ops.top_k(ops.sum(best, -1), self.groups_used)
        numbers = ops.range(self.groups, device=scores.device)
        is_chosen = ops.equal(ops.unsqueeze(chosen, -1), numbers).cast(DType.float32)
        is_used = ops.unsqueeze(ops.sum(is_chosen, -2) > 0, -1)
        return ops.where(is_used, grouped, -inf).reshape(scores.shape)
