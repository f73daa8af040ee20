"""The time mixing of RWKV-6, and its MLP, which is gated by the position and the one before it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.graph import ops
from weightctl.nn.layer_sharding import cut_parts, replicate_weights
from weightctl.nn.linear import Linear
from weightctl.nn.module import Divisible
from weightctl.nn.positions import with_states
from weightctl.nn.recurrent.state_space import HeadNumbers
from weightctl.nn.recurrent.time_mix import GroupNorm, mix, shift
from weightctl.split import Heads

if TYPE_CHECKING:
    from weightctl.device import DeviceRef
    from weightctl.dtype import DTypeLike
    from weightctl.graph.graph import Value, Weight
    from weightctl.graph.sharding import ShardingStrategy
    from weightctl.nn.layer_sharding import MatrixLayer

_MIXES = 5


class DynamicTimeMix(Divisible):
    """Attention whose heads keep a state in place of the keys and values of all positions.

    The decays, keys, values, queries and gates each read a mix of a position and the one before it.
    The shares are the sums of weights and of what `mixer_a` and `mixer_b` compute from a first mix,
    through vectors of `mix_rank` elements. A query reads the state before its own key is added, and
    its own value by the product of query and key with `bonus`. What the heads return gets a
    LayerNorm of each head, is multiplied by the SiLU of the gate, and is projected to the outputs.

    Source: Peng et al., "Eagle and Finch" (2024); llama.cpp's `models/rwkv6-base.cpp`.
    """

    def __init__(
        self,
        features: int,
        heads: int,
        size: int,
        *,
        mix_rank: int,
        decay_rank: int,
        norm_epsilon: float,
        dtype: DTypeLike = DType.float32,
        device: DeviceRef = CPU,
    ) -> None:
        self.heads, self.size, self.mix_rank = heads, size, mix_rank
        width = heads * size
        projection = partial(Linear, dtype=dtype, device=device)
        vector = partial(HeadNumbers, device=device)
        self.mix_x = vector(features)
        self.mix_w, self.mix_k, self.mix_v, self.mix_r, self.mix_g = (
            vector(1, features) for _ in range(_MIXES)
        )
        self.mixer_a = projection(features, _MIXES * mix_rank)
        self.mixer_b = vector(_MIXES, features, mix_rank)
        self.r, self.k, self.v, self.gate = (projection(features, width) for _ in range(4))
        self.decay_a, self.decay_b = projection(features, decay_rank), projection(decay_rank, width)
        self.decay_offset = vector(width)
        self.bonus = vector(heads, size)
        self.norm = GroupNorm(width, norm_epsilon, device=device)
        self.outputs = projection(width, features)

    def __call__(self, x: Value) -> Value:
        """Return outputs in the shape of the inputs, `(batch, positions, features)`."""
        before = shift(x)
        weights = (self.mix_w, self.mix_k, self.mix_v, self.mix_r, self.mix_g)
        w, k, v, r, g = (
            x + (before - x) * (weight().cast(x.dtype) + share)
            for weight, share in zip(weights, self._compute_shares(x, before), strict=True)
        )
        faded = self.decay_b(ops.tanh(self.decay_a(w))).cast(DType.float32) + self.decay_offset()
        key, value = (part.cast(DType.float32) for part in (self.k(k), self.v(v)))
        query = self._split(self.r(r).cast(DType.float32))
        # A query reads the state that the position before it left.
        zero = query * 0.0
        scan = partial(
            ops.general_delta_rule,
            query,
            self._split(shift(key)),
            self._split(shift(value)),
            self._split(shift(ops.exp(faded) * -1.0)),
            read=zero,
            write=zero,
        )
        y = with_states(lambda states: scan(states=states))
        own = ops.unsqueeze(ops.sum(query * self._split(key) * self.bonus(), -1), -1)
        y = self.norm(y + own * self._split(value)).cast(x.dtype)
        return self.outputs(y * ops.silu(self.gate(g)))

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return strategies with which each shard has some of the heads.

        Raises `ShardingError` if not every rank can get a head in whole blocks.
        """
        parts: dict[str, MatrixLayer] = {
            "rwkv.r": self.r, "rwkv.k": self.k, "rwkv.v": self.v,
            # As the second step of the gates of RWKV-7 is cut.
            "rwkv.gate_b": self.gate,
            "rwkv.decay_b": self.decay_b, "rwkv.decay_offset": self.decay_offset,
            "rwkv.bonus": self.bonus, "rwkv.norm": self.norm, "rwkv.outputs": self.outputs,
        }  # fmt: skip
        mixes = (self.mix_x, self.mix_w, self.mix_k, self.mix_v, self.mix_r, self.mix_g)
        whole = (*mixes, self.mixer_a, self.mixer_b, self.decay_a)
        heads = Heads(self.heads, self.heads, self.size)
        return cut_parts(parts, devices, heads) | replicate_weights(
            devices, *(each.weight for each in whole)
        )

    def take_shards(self) -> None:
        """Adopt the number of heads of a shard."""
        self.heads = self.r.outputs.size // self.size

    def _compute_shares(self, x: Value, before: Value) -> list[Value]:
        """Return what is added to the shares, `(batch, positions, features)` each."""
        read = ops.tanh(self.mixer_a(mix(x, before, self.mix_x)))
        vectors = ops.split(read, [self.mix_rank] * _MIXES, axis=-1)
        matrices = ops.split(self.mixer_b().cast(x.dtype), [1] * _MIXES, axis=0)
        return [
            vector @ ops.transpose(matrix.reshape(tuple(matrix.shape)[1:]), 0, 1)
            for vector, matrix in zip(vectors, matrices, strict=True)
        ]

    def _split(self, x: Value) -> Value:
        """Return (batch, positions, heads * size) as (batch, positions, heads, size)."""
        return x.reshape((*x.shape[:-1], self.heads, self.size))


class ChannelMix(Divisible):
    """`down(relu(up(x)) ** 2)`, multiplied by the sigmoid of a projection of `gate_input`."""

    def __init__(
        self,
        features: int,
        intermediate: int,
        *,
        dtype: DTypeLike = DType.float32,
        device: DeviceRef = CPU,
    ) -> None:
        self.up = Linear(features, intermediate, dtype=dtype, device=device)
        self.down = Linear(intermediate, features, dtype=dtype, device=device)
        self.gate = Linear(features, features, dtype=dtype, device=device)

    def __call__(self, x: Value, gate_input: Value) -> Value:
        """Return outputs in the shape of the inputs, `(..., features)`."""
        up = ops.relu(self.up(x))
        return self.down(up * up) * ops.sigmoid(self.gate(gate_input))

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return strategies with which each shard computes a part of the intermediate features.

        Each shard has the whole gate. Raises `ShardingError` if there are fewer blocks of these
        features than devices.
        """
        cuts = cut_parts({"mlp.down": self.down, "mlp.up": self.up}, devices)
        return cuts | replicate_weights(devices, self.gate.weight)
