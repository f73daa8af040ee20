"""The indexer of sparse attention (DSA), which selects the keys that a query sees."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.graph import ops
from weightctl.nn.attention import mask_positions
from weightctl.nn.linear import Linear
from weightctl.nn.module import Module
from weightctl.nn.norm import LayerNorm
from weightctl.nn.positions import with_past

if TYPE_CHECKING:
    from weightctl.device import DeviceRef
    from weightctl.dtype import DTypeLike
    from weightctl.graph.graph import Value, Weight

_EPSILON = 1e-6


class IndexerSizes(NamedTuple):
    """The sizes of an indexer.

    - `heads`, `size`: the number of heads, and the number of elements of a query or key.
    - `rotated`: how many of these elements are rotated; they come first.
    - `used`: how many keys a query sees.
    - `interleaved`: whether the elements of a rotated pair are neighbors.
    """

    heads: int
    size: int
    rotated: int
    used: int
    interleaved: bool


class Indexer(Module):
    """For each position, selects the earlier positions with the highest scores.

    The score of a position is the sum over heads of relu(query @ key) times a factor, which is a
    projection of the layer's input. Queries are computed from the latent vector of the attention's
    queries, and all heads share the keys.

    Source: DeepSeek-AI, "DeepSeek-V3.2" (2025), section 2.1. The Hadamard transform of queries and
    keys is left out, because it does not change their products.
    """

    def __init__(
        self,
        features: int,
        query_rank: int,
        sizes: IndexerSizes,
        *,
        dtype: DTypeLike = DType.float32,
        device: DeviceRef = CPU,
    ) -> None:
        self.sizes = sizes
        projection = partial(Linear, dtype=dtype, device=device)
        self.q_b = projection(query_rank, sizes.heads * sizes.size)
        self.k = projection(features, sizes.size)
        self.k_norm = LayerNorm(sizes.size, _EPSILON, dtype=dtype, device=device)
        self.factors = projection(features, sizes.heads)

    def __call__(self, x: Value, latent: Value, cos: Value, sin: Value) -> Value:
        """Return bool[batch, 1, positions, keys]: which keys each query sees.

        `x` is the input of the attention, and `latent` the latent vector of its queries.
        """
        heads, size, rotated, used, interleaved = self.sizes
        q = self.q_b(latent).reshape((*x.shape[:-1], heads, size)).transpose(1, 2)
        k = ops.unsqueeze(self.k_norm(self.k(x)), 1)
        q, k = (self._rotate(each, rotated, cos, sin, interleaved) for each in (q, k))
        k = with_past(k)
        products = ops.relu((q @ k.transpose(2, 3)).cast(DType.float32))
        factors = ops.unsqueeze(self.factors(x).transpose(1, 2), 3).cast(DType.float32)
        scores = ops.sum(products * factors, axis=1, keepdims=True)
        seen = mask_positions(x.shape[1], x.device)
        return ops.mask_top_k(scores + ops.where(seen, 0.0, -inf), used)

    def share_weights(self, other: Indexer) -> None:
        """Use the weights of another indexer."""
        for own, shared in (
            (self.q_b, other.q_b),
            (self.k, other.k),
            (self.factors, other.factors),
        ):
            own.set_shared_weight("weight", shared.weight)
        for name in ("weight", "bias"):
            self.k_norm.set_shared_weight(name, getattr(other.k_norm, name))

    @property
    def weights(self) -> tuple[Weight | None, ...]:
        """All weights."""
        norm = self.k_norm
        return (self.q_b.weight, self.k.weight, norm.weight, norm.bias, self.factors.weight)

    def _rotate(self, x: Value, rotated: int, cos: Value, sin: Value, interleaved: bool) -> Value:
        """Return queries or keys in which the first elements are rotated."""
        first, rest = x[..., :rotated], x[..., rotated:]
        return ops.concat([ops.rope(first, cos, sin, interleaved=interleaved), rest], -1)
