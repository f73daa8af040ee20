"""The time mixing of RWKV-7, which replaces attention by a state for each head."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.graph import ops
from weightctl.graph.graph import Weight
from weightctl.nn.layer_sharding import CutAxis, cut_along, cut_parts, replicate_weights
from weightctl.nn.linear import Linear
from weightctl.nn.module import Divisible, Module
from weightctl.nn.positions import with_states, with_tail
from weightctl.nn.precision import weight_as
from weightctl.nn.recurrent.state_space import HeadNumbers
from weightctl.split import Heads

if TYPE_CHECKING:
    from weightctl.device import DeviceRef
    from weightctl.dtype import DTypeLike
    from weightctl.graph.graph import Value
    from weightctl.graph.sharding import ShardingStrategy
    from weightctl.nn.layer_sharding import MatrixLayer, Ranges

# exp(-0.5): no element of a state fades faster than by the factor exp(-exp(-0.5)).
_FASTEST = 0.6065306597126334
_LEAST_LENGTH = 1e-12
# The role of a projection to the heads that is none of the layer itself.
_FIRST = "attention.q"


class LowRanks(NamedTuple):
    """The sizes of the vectors that decays, rates, shares of values and gates are computed from."""

    decay: int
    rate: int
    value: int
    gate: int


class GroupNorm(Module):
    """A LayerNorm of each head, whose `width` channels have weights and biases of their own."""

    def __init__(self, width: int, eps: float, *, device: DeviceRef = CPU) -> None:
        self.eps = eps
        self.weight = Weight("weight", DType.float32, (width,), device)
        self.bias = Weight("bias", DType.float32, (width,), device)

    def __call__(self, x: Value) -> Value:
        """Return normalized `(batch, positions, heads, size)` as `(batch, positions, width)`."""
        heads, size = map(int, x.shape[-2:])
        y = ops.layer_norm(x, None, None, self.eps).reshape((*x.shape[:-2], heads * size))
        return y * weight_as(self.weight, y.dtype) + weight_as(self.bias, y.dtype)

    @property
    def axes(self) -> tuple[CutAxis, CutAxis]:
        """The axis of the channels, as that of outputs and of inputs."""
        return CutAxis(self.weight, 0), CutAxis(self.weight, 0)

    def cut(self, axis: int, ranges: Ranges) -> dict[Weight, ShardingStrategy]:
        """Return the strategies of weight and bias if shards get these channels."""
        del axis
        return {
            self.weight: cut_along(self.axes[0], ranges),
            self.bias: cut_along(CutAxis(self.bias, 0), ranges),
        }


class TimeMix(Divisible):
    """Attention whose heads keep a state in place of the keys and values of all positions.

    Each projection reads a mix of a position and the one before it. Decays, rates, shares and gates
    are computed in two steps each, through vectors of the sizes `ranks`. Except in the first layer,
    values are mixed with those of the first layer, whose weights the module then shares as
    `first_value` and `first_mix`. Keys are written at the rate of each element, after what the
    normed key reads is removed at this rate. What the heads return gets a LayerNorm of each head,
    the values are added by the product of queries and keys with `bonus`, and the sum is multiplied
    by the gate and projected to the outputs.

    Source: Peng et al., "RWKV-7 Goose with Expressive Dynamic State Evolution" (2025); llama.cpp's
    `models/rwkv7-base.cpp`.
    """

    def __init__(
        self,
        features: int,
        heads: int,
        size: int,
        *,
        ranks: LowRanks,
        norm_epsilon: float,
        is_first: bool,
        dtype: DTypeLike = DType.float32,
        device: DeviceRef = CPU,
    ) -> None:
        self.heads, self.size, self.is_first = heads, size, is_first
        width = heads * size
        projection = partial(Linear, dtype=dtype, device=device)
        vector = partial(HeadNumbers, device=device)
        self.mix_r, self.mix_w, self.mix_k, self.mix_v, self.mix_a, self.mix_g = (
            vector(1, features) for _ in range(6)
        )
        self.r, self.k, self.v = (projection(features, width) for _ in range(3))
        self.decay_a, self.decay_b = (
            projection(features, ranks.decay),
            projection(ranks.decay, width),
        )
        self.rate_a, self.rate_b = projection(features, ranks.rate), projection(ranks.rate, width)
        self.gate_a, self.gate_b = projection(features, ranks.gate), projection(ranks.gate, width)
        self.decay_offset, self.rate_offset = vector(width), vector(width)
        if not is_first:
            self.value_a = projection(features, ranks.value)
            self.value_b = projection(ranks.value, width)
            self.value_offset = vector(width)
            self.first_value, self.first_mix = projection(features, width), vector(1, features)
        self.key_scale, self.key_rate = vector(width), vector(width)
        self.bonus = vector(heads, self.size)
        self.norm = GroupNorm(width, norm_epsilon, device=device)
        self.outputs = projection(width, features)

    def share_first(self, first: TimeMix) -> None:
        """Use the weights of the first layer's values."""
        self.first_value.set_shared_weight("weight", first.v.weight)
        self.first_mix.set_shared_weight("weight", first.mix_v.weight)

    def __call__(self, x: Value, source: Value) -> Value:
        """Return outputs in the shape of the inputs, `(batch, positions, features)`.

        `source` is what the first layer reads.
        """
        before = shift(x)
        r = self._split(self.r(mix(x, before, self.mix_r)))
        k = self.k(mix(x, before, self.mix_k)).cast(DType.float32)
        faded = self.decay_b(ops.tanh(self.decay_a(mix(x, before, self.mix_w))))
        decay = ops.sigmoid(faded.cast(DType.float32) + self.decay_offset()) * -_FASTEST
        rated = self.rate_b(self.rate_a(mix(x, before, self.mix_a)))
        rate = ops.sigmoid(rated.cast(DType.float32) + self.rate_offset())
        gate = self.gate_b(ops.sigmoid(self.gate_a(mix(x, before, self.mix_g))))
        v = self._split(self._find_values(x, before, source))
        normed = self._norm_keys(self._split(k * self.key_scale()))
        k = self._split(k * ((rate - 1.0) * self.key_rate() + 1.0))
        scan = partial(
            ops.general_delta_rule,
            r, k, v, self._split(decay), read=-normed, write=normed * self._split(rate),
        )  # fmt: skip
        y = with_states(lambda states: scan(states=states))
        y = self.norm(y)
        bonus = ops.unsqueeze(ops.sum(r * k * self.bonus(), -1), -1) * v
        y = (y + bonus.reshape(y.shape)).cast(x.dtype)
        return self.outputs(y * gate)

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return strategies with which each shard has some of the heads.

        Raises `ShardingError` if not every rank can get a head in whole blocks.
        """
        heads = Heads(self.heads, self.heads, self.size)
        parts: dict[str, MatrixLayer] = {
            "rwkv.r": self.r, "rwkv.k": self.k, "rwkv.v": self.v,
            "rwkv.decay_b": self.decay_b, "rwkv.decay_offset": self.decay_offset,
            "rwkv.rate_b": self.rate_b, "rwkv.rate_offset": self.rate_offset,
            "rwkv.gate_b": self.gate_b,
            "rwkv.key_scale": self.key_scale, "rwkv.key_rate": self.key_rate,
            "rwkv.bonus": self.bonus, "rwkv.norm": self.norm, "rwkv.outputs": self.outputs,
        }  # fmt: skip
        mixes = (self.mix_r, self.mix_w, self.mix_k, self.mix_v, self.mix_a, self.mix_g)
        whole = [each.weight for each in (*mixes, self.decay_a, self.rate_a, self.gate_a)]
        if not self.is_first:
            parts |= {
                _FIRST: self.first_value,
                "rwkv.value_b": self.value_b,
                "rwkv.value_offset": self.value_offset,
            }
            whole += [self.value_a.weight, self.first_mix.weight]
        return cut_parts(parts, devices, heads) | replicate_weights(devices, *whole)

    def take_shards(self) -> None:
        """Adopt the number of heads of a shard."""
        self.heads = self.r.outputs.size // self.size

    def _find_values(self, x: Value, before: Value, source: Value) -> Value:
        """Return the values, mixed with those of the first layer."""
        mixed = mix(x, before, self.mix_v)
        v = self.v(mixed).cast(DType.float32)
        if self.is_first:
            return v
        first = self.first_value(mix(source, shift(source), self.first_mix)).cast(DType.float32)
        shared = self.value_b(self.value_a(mixed)).cast(DType.float32) + self.value_offset()
        return v + (first - v) * ops.sigmoid(shared)

    def _norm_keys(self, k: Value) -> Value:
        length = ops.sqrt(ops.unsqueeze(ops.sum(k * k, -1), -1))
        return k / ops.maximum(length, _LEAST_LENGTH)

    def _split(self, x: Value) -> Value:
        """Return (batch, positions, heads * size) as (batch, positions, heads, size), float32."""
        return x.reshape((*x.shape[:-1], self.heads, self.size)).cast(DType.float32)


def shift(x: Value) -> Value:
    """Return for each position the vector of the one before it, zeros for the first."""
    kernel = ops.constant([[1.0, 0.0]], x.dtype, x.device)
    weight = ops.broadcast_to(kernel, (int(x.shape[-1]), 2))
    return with_tail(x, 1, lambda given: ops.causal_convolution(given, weight))


def mix(x: Value, before: Value, share: HeadNumbers) -> Value:
    """Return the vectors of positions, moved by a share of each element to those before them."""
    return x + (before - x) * share().cast(x.dtype)
