"""Mixture of experts: a router selects a few of many MLPs for each position."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.errors import GraphError, ShardingError
from weightctl.graph import ops
from weightctl.graph.graph import Weight
from weightctl.nn.base_layer import LayerList
from weightctl.nn.layer_sharding import replicate_weights
from weightctl.nn.linear import Linear
from weightctl.nn.mlp import MLP, GatedMLP
from weightctl.nn.module import Divisible, Module
from weightctl.nn.precision import weight_as
from weightctl.split import join_counts, shares

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.device import DeviceRef
    from weightctl.dtype import DTypeLike, QuantizationEncoding
    from weightctl.graph.graph import Value
    from weightctl.graph.sharding import ShardingStrategy

Scores: TypeAlias = Literal["softmax", "sigmoid", "sparsemixer", "sqrtsoftplus"]

# How far below the best a score may be for SparseMixer, as a share of the larger of the two.
_NEAR = 0.02


class MixtureOfExperts(Divisible):
    """The weighted sum of a few of many MLPs; `intermediate` is the width of one.

    They are gated unless `gated` is False.
    `count`, `used` and the arguments after them define the selection, as in `Routing`. With
    `has_correction`, a weight is added to the scores, and with `has_scales` another one multiplies
    the shares. `bias` is for the experts and the router. If `shared` is not 0, a gated MLP of this
    width is added for all positions, multiplied by the sigmoid of its own gate if `shared_gate`,
    and by `shared_scale`. If
    `latent` is not 0, experts read a projection of this size, and their sum is projected back. With
    `scales_inputs` the shares multiply what experts read, not what they return. `limit` is that of
    gated experts, `shared_limit` that of the MLP beside them, and `limits_activated` that of both.
    With a `table`, its number of rows, the experts of a token are those in its row.
    Raises `GraphError` as `Routing` does, and if the activation is not in `ACTIVATIONS`.
    """

    def __init__(
        self,
        features: int,
        intermediate: int,
        activation: str,
        *,
        count: int,
        used: int,
        is_normalized: bool = True,
        scores: Scores = "softmax",
        scale: float = 1.0,
        groups: int = 1,
        groups_used: int = 1,
        has_correction: bool = False,
        has_scales: bool = False,
        bias: bool = False,
        shared: int = 0,
        shared_gate: bool = False,
        shared_scale: float = 1.0,
        latent: int = 0,
        scales_inputs: bool = False,
        gated: bool = True,
        limit: float | None = None,
        shared_limit: float | None = None,
        limits_activated: bool = False,
        table: int = 0,
        dtype: DTypeLike = DType.float32,
        device: DeviceRef = CPU,
        quantization_encoding: QuantizationEncoding | None = None,
    ) -> None:
        self.routing = Routing(
            count=count,
            used=used,
            scores=scores,
            is_normalized=is_normalized,
            scale=scale,
            groups=groups,
            groups_used=groups_used,
        )
        # The number of the first expert in `experts`, which may be only some of all experts.
        self.first = 0
        self.scales_inputs = scales_inputs
        self.router = Linear(features, count, bias=bias, dtype=dtype, device=device)
        limits: dict[str, Any] = {"limits_activated": limits_activated} if gated else {}
        own, beside = ({"limit": each} if gated else {} for each in (limit, shared_limit))
        make_expert: Callable[..., GatedMLP | MLP] = partial(
            GatedMLP if gated else MLP,
            activation=activation,
            **limits,
            dtype=dtype,
            device=device,
            quantization_encoding=quantization_encoding,
        )
        self.experts = LayerList(
            [make_expert(latent or features, intermediate, bias=bias, **own) for _ in range(count)]
        )
        self.has_latent = latent > 0
        if self.has_latent:
            self.latent_in = Linear(features, latent, dtype=dtype, device=device)
            self.latent_out = Linear(latent, features, dtype=dtype, device=device)
        if has_correction:
            self.correction = ScoreCorrection(count, device=device)
        self.has_correction = has_correction
        self.has_table = table > 0
        if self.has_table:
            self.table = ExpertTable(table, used, device=device)
        self.has_scales = has_scales
        if has_scales:
            self.scales = ScoreCorrection(count, device=device)
        self.has_shared = shared > 0
        self.has_shared_gate = shared_gate
        self.shared_scale = shared_scale
        if self.has_shared:
            self.shared = make_expert(features, shared, bias=False, **beside)
        if shared_gate:
            self.shared_gate = Linear(features, 1, dtype=dtype, device=device)

    def __call__(self, x: Value, routed: Value | None = None, tokens: Value | None = None) -> Value:
        """Return the weighted outputs of this module's experts, `(..., features)`.

        The router reads `routed` if it is given. A table needs the `tokens`, their ids. An expert
        computes the positions that chose it; the weights of an expert that no position chose are
        not read.
        """
        read = self.latent_in(x) if self.has_latent else x
        rows = read.reshape((-1, read.shape[-1]))
        shares = self._shares(x if routed is None else routed, tokens)
        chosen = ops.chosen_rows(shares)
        # Experts are added in groups that have about twice as many rows as there are positions:
        # their results are in memory together, and each sum is a pass over all positions.
        size = max(1, 2 * self.routing.count // self.routing.used)
        sums: list[Value] = []
        for first in range(0, len(self.experts), size):
            group = range(first, min(first + size, len(self.experts)))
            pairs = [
                each
                for n in group
                for each in (self._compute(n, rows, shares, chosen[n]), chosen[n])
            ]
            if self.scales_inputs:
                sums.append(ops.sum_rows(*pairs, count=rows.shape[0]))
            else:
                sums.append(ops.sum_weighted_rows(shares, *pairs, first=first))
        y = sums[0]
        for each in sums[1:]:
            y = y + each
        y = y.reshape(read.shape)
        if self.has_latent:
            y = self.latent_out(y)
        if not self.has_shared or self.first:
            # What all positions pass through is computed with the first of the experts.
            return y
        beside = self.shared(x)
        if self.has_shared_gate:
            beside = beside * ops.sigmoid(self.shared_gate(x))
        if self.shared_scale != 1:
            beside = beside * self.shared_scale
        return y + beside

    def _compute(self, number: int, rows: Value, shares: Value, chosen: Value) -> Value:
        """Return an expert's results for the rows that chose it.

        With `scales_inputs`, these rows are multiplied by their shares, which are those of all
        rows, [rows, experts].
        """
        x = ops.embedding(rows, chosen)
        if self.scales_inputs:
            x = x * ops.embedding(shares[:, number : number + 1], chosen)
        return self.experts[number](x)

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return strategies with which each shard has a part of every expert, and the whole router.

        Raises `ShardingError` if an expert cannot be split.
        """
        cuts = replicate_weights(devices, self.router.weight, self.router.bias)
        for expert in self.experts:
            cuts |= expert.tensor_parallel(devices)
        if self.has_correction:
            cuts |= replicate_weights(devices, self.correction.weight)
        if self.has_table:
            cuts |= replicate_weights(devices, self.table.weight)
        if self.has_scales:
            cuts |= replicate_weights(devices, self.scales.weight)
        if self.has_latent:
            cuts |= replicate_weights(devices, self.latent_in.weight, self.latent_out.weight)
        if self.has_shared:
            cuts |= self.shared.tensor_parallel(devices)
        if self.has_shared_gate:
            cuts |= replicate_weights(devices, self.shared_gate.weight)
        return cuts

    def groups(self, count: int) -> list[Self]:
        """Return `count` copies with some of the experts each; all of them route to all experts.

        Raises `ShardingError` if there are fewer experts than groups.
        """
        held = len(self.experts)
        if held < count:
            raise ShardingError(
                f"the {held} experts of `{self.router.weight.name}` cannot be divided "
                f"among {count} groups of ranks",
                hint=f"{join_counts(range(1, held + 1))} groups work",
            )
        return [self._with(first, last) for first, last in shares(held, count)]

    def _with(self, first: int, last: int) -> Self:
        made = copy(self)
        made.first, made.experts = self.first + first, self.experts[first:last]
        return made

    def _shares(self, x: Value, tokens: Value | None) -> Value:
        """Return the shares of this module's experts for all positions, [positions, experts]."""
        correction = self.correction() if self.has_correction else None
        chosen = None
        if self.has_table:
            if tokens is None:
                raise GraphError("experts that a table gives need the ids of the tokens")
            chosen = self.table(tokens)
        given = self.routing.shares(self.router(x).cast(DType.float32), correction, chosen)
        if self.has_scales:
            given = given * self.scales()
        given = given.cast(x.dtype).reshape((-1, self.routing.count))
        if len(self.experts) == self.routing.count:
            return given
        return given[:, self.first : self.first + len(self.experts)]


class ScoreCorrection(Module):
    """A number for each expert, which is added to its score or multiplies its share."""

    def __init__(self, count: int, *, device: DeviceRef = CPU) -> None:
        self.weight = Weight("weight", DType.float32, (count,), device)

    def __call__(self) -> Value:
        """Return the numbers, float32[count]."""
        return weight_as(self.weight, DType.float32)


class ExpertTable(Module):
    """The numbers of the experts that compute each token, whatever its vector is."""

    def __init__(self, rows: int, used: int, *, device: DeviceRef = CPU) -> None:
        self.weight = Weight("weight", DType.int64, (rows, used), device)

    def __call__(self, tokens: Value) -> Value:
        """Return the numbers for ids of tokens, int64[..., used]."""
        return ops.embedding(self.weight, tokens).cast(DType.int64)


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
