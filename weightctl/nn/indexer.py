"""The indexer of sparse attention (DSA), which selects the keys that a query sees."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.graph import ops
from weightctl.nn.linear import Linear
from weightctl.nn.module import Module
from weightctl.nn.norm import LayerNorm, RMSNorm
from weightctl.nn.positions import list_positions, mask_positions, with_past

if TYPE_CHECKING:
    from weightctl.device import DeviceRef
    from weightctl.dtype import DTypeLike
    from weightctl.graph.graph import Value, Weight


class IndexerSizes(NamedTuple):
    """The sizes of an indexer.

    - `heads`, `size`: the number of heads, and the number of elements of a query or key.
    - `rotated`: how many of these elements are rotated; they come first, or with `rotates_last`
      last.
    - `used`: how many keys a query sees.
    - `interleaved`: whether the elements of a rotated pair are neighbors.
    - `eps`: the epsilon of the norm of keys.
    """

    heads: int
    size: int
    rotated: int
    used: int
    interleaved: bool
    rotates_last: bool = False
    eps: float = 1e-6


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
        self.k_norm = LayerNorm(sizes.size, sizes.eps, dtype=dtype, device=device)
        self.factors = projection(features, sizes.heads)

    def __call__(self, x: Value, latent: Value, cos: Value, sin: Value) -> Value:
        """Return bool[batch, 1, positions, keys]: which keys each query sees.

        `x` is the input of the attention, and `latent` the latent vector of its queries.
        """
        heads, size, _, used, *_ = self.sizes
        q = self.q_b(latent).reshape((*x.shape[:-1], heads, size)).transpose(1, 2)
        k = ops.unsqueeze(self.k_norm(self.k(x)), 1)
        q, k = self._rotate(q, cos, sin), self._rotate(k, cos, sin)
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

    def _rotate(self, x: Value, cos: Value, sin: Value) -> Value:
        """Return queries or keys in which the first or the last elements are rotated."""
        sizes = self.sizes
        if sizes.rotates_last:
            first = sizes.size - sizes.rotated
            turned = ops.rope(x[..., first:], cos, sin, interleaved=sizes.interleaved)
            return ops.concat([x[..., :first], turned], -1)
        turned = ops.rope(x[..., : sizes.rotated], cos, sin, interleaved=sizes.interleaved)
        return ops.concat([turned, x[..., sizes.rotated :]], -1)


class BlockIndexerSizes(NamedTuple):
    """The sizes of an indexer of blocks.

    - `heads`, `size`: the number of heads, and the number of elements of a query or key.
    - `block`: how many keys a block has.
    - `used`, `local`: how many blocks a query sees, and how many of these are the last ones.
    """

    heads: int
    size: int
    block: int
    used: int
    local: int


class BlockIndexer(Module):
    """For each position, selects the blocks of earlier positions with the highest scores.

    The score of a block is the largest product of the query and a key of the block. Each head
    selects for as many heads of the attention, and all heads share the keys.

    Source: transformers' `MiniMaxM3VLIndexer`.
    """

    def __init__(
        self,
        features: int,
        sizes: BlockIndexerSizes,
        eps: float,
        *,
        offset: float = 0.0,
        dtype: DTypeLike = DType.float32,
        device: DeviceRef = CPU,
    ) -> None:
        self.sizes = sizes
        projection = partial(Linear, dtype=dtype, device=device)
        norm = partial(RMSNorm, sizes.size, eps, offset=offset, dtype=dtype, device=device)
        self.q, self.q_norm = projection(features, sizes.heads * sizes.size), norm()
        self.k, self.k_norm = projection(features, sizes.size), norm()

    def __call__(self, x: Value, cos: Value, sin: Value, queries: int) -> Value:
        """Return bool[batch, queries, positions, keys]: which keys each query head sees."""
        heads, size, block, used, local = self.sizes
        q = self.q_norm(self.q(x).reshape((*x.shape[:-1], heads, size))).transpose(1, 2)
        k = ops.unsqueeze(self.k_norm(self.k(x)), 1)
        q, k = ops.rope(q, cos, sin), with_past(ops.rope(k, cos, sin))
        seen = mask_positions(x.shape[1], x.device)
        products = (q @ k.transpose(2, 3)).cast(DType.float32) + ops.where(seen, 0.0, -inf)
        batch, _, positions, keys = products.shape
        rest = ops.constant(-inf, DType.float32, x.device)
        rest = rest.broadcast_to((batch, heads, positions, block - 1))
        count = (keys + block - 1) // block
        whole = ops.concat([products, rest], -1)[..., : count * block]
        scores = ops.max(whole.reshape((batch, heads, positions, count, block)), -1)
        own = ops.unsqueeze(ops.floordiv(list_positions(x.shape[1], x.device), block), 1)
        back = own - ops.range(count, device=x.device)
        is_local = ops.logical_and(back >= 0, back < local)
        best = ops.mask_top_k(ops.where(is_local, inf, scores), used)
        spread = ops.broadcast_to(ops.unsqueeze(best, -1), (*best.shape, block))
        chosen = spread.reshape((batch, heads, positions, count * block))[..., :keys]
        visible = ops.unsqueeze(ops.logical_and(chosen, seen), 2)
        shape = (batch, heads, queries // heads, positions, keys)
        return ops.broadcast_to(visible, shape).reshape((batch, queries, positions, keys))

    @property
    def weights(self) -> tuple[Weight | None, ...]:
        """All weights."""
        return (self.q.weight, self.k.weight, self.q_norm.weight, self.k_norm.weight)
