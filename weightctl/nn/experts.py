"""Mixture of experts: a router selects a few of many MLPs for each position."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Self

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.errors import GraphError, ShardingError
from weightctl.graph import ops
from weightctl.nn.base_layer import LayerList
from weightctl.nn.cuts import replicate_weights
from weightctl.nn.linear import Linear
from weightctl.nn.mlp import GatedMLP
from weightctl.nn.module import Divisible
from weightctl.split import join_counts, shares

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.device import DeviceRef
    from weightctl.dtype import DTypeLike, QuantizationEncoding
    from weightctl.graph.sharding import ShardingStrategy
    from weightctl.graph.value import Value
    from weightctl.graph.weight import Weight

__all__ = ["MixtureOfExperts"]


class MixtureOfExperts(Divisible):
    """The weighted sum of the `used` most probable of `count` gated MLPs.

    The weights are the softmax of the router's outputs over all experts; `is_normalized` divides
    those of the selected experts by their sum. `intermediate` is the width of one expert. Raises
    `GraphError` if `used` is less than 1 or more than `count`, or if the activation is not in
    `ACTIVATIONS`.
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
        dtype: DTypeLike = DType.float32,
        device: DeviceRef = CPU,
        quantization_encoding: QuantizationEncoding | None = None,
    ) -> None:
        if not 0 < used <= count:
            raise GraphError(
                f"{used} experts per token are not possible with {count} experts",
                hint="`used` must be at least 1 and at most `count`",
            )
        self.count = count
        self.used = used
        # The number of the first expert in `experts`, which may be only some of all experts.
        self.first = 0
        self.is_normalized = is_normalized
        self.router = Linear(features, count, dtype=dtype, device=device)
        self.experts = LayerList(
            [
                GatedMLP(
                    features,
                    intermediate,
                    activation,
                    dtype=dtype,
                    device=device,
                    quantization_encoding=quantization_encoding,
                )
                for _ in range(count)
            ]
        )

    def __call__(self, x: Value) -> Value:
        """Return the weighted outputs of this module's experts, `(..., features)`."""
        # Every expert computes every position, with a weight of 0 where it was not selected: the
        # selection is known only in the run. Only the weights of one expert are in memory at a
        # time.
        (first, share), *others = zip(self.experts, self._shares(x), strict=True)
        y = first(x) * share
        for expert, share in others:
            y = y + expert(x) * share
        return y

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return strategies with which each shard has a part of every expert, and the whole router.

        Raises `ShardingError` if an expert cannot be split.
        """
        cuts = replicate_weights(devices, self.router.weight)
        for expert in self.experts:
            cuts |= expert.tensor_parallel(devices)
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

    def _shares(self, x: Value) -> Sequence[Value]:
        """Return each expert's weights for the positions, `(..., 1)`, for this module's experts."""
        shares, chosen = ops.top_k(ops.softmax(self.router(x).cast(DType.float32)), self.used)
        if self.is_normalized:
            shares = shares / ops.sum(shares, -1, keepdims=True)
        numbers = ops.range(self.count, device=x.device)
        is_given = ops.equal(ops.unsqueeze(chosen, -1), numbers)
        given = ops.sum(ops.where(is_given, ops.unsqueeze(shares, -1), 0.0), -2)
        each = ops.split(given.cast(x.dtype), [1] * self.count, axis=-1)
        return each[self.first : self.first + len(self.experts)]
