"""Gated delta nets and Kimi delta attention, which replace attention by a state of fixed size."""

from __future__ import annotations

from functools import partial
from math import sqrt
from typing import TYPE_CHECKING

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.errors import GraphError
from weightctl.families.modules import DELTA_HEADS
from weightctl.graph import ops
from weightctl.graph.graph import Weight
from weightctl.nn.layer_sharding import (
    CutAxis,
    cut_along,
    cut_parts,
    replicate_weights,
    segment_sizes,
)
from weightctl.nn.linear import Linear
from weightctl.nn.module import Divisible, Module
from weightctl.nn.norm import RMSNorm
from weightctl.nn.positions import with_states
from weightctl.nn.precision import weight_as
from weightctl.nn.recurrent.convolution import CausalConvolution
from weightctl.split import Heads

if TYPE_CHECKING:
    from weightctl.device import DeviceRef
    from weightctl.dtype import DTypeLike, QuantizationEncoding
    from weightctl.graph.graph import Value
    from weightctl.graph.sharding import ShardingStrategy
    from weightctl.nn.layer_sharding import MatrixLayer, Ranges

# The epsilon of the lengths of queries and keys, whatever that of the norms of a model is.
_EPSILON = 1e-6


class GatedDeltaNet(Divisible):
    """Attention whose heads keep a state in place of the keys and values of all positions.

    `key_heads` heads have queries and keys of `key_size` elements, and each is shared by
    consecutive of the `heads` heads, whose values have `value_size` elements. One projection
    computes queries, keys and values; a causal convolution over `kernel` positions, with SiLU,
    follows. The state of a head fades by a rate that the projection `alpha` sets for each position,
    and is corrected by the share that `beta` sets. What the heads return gets an RMSNorm of each
    head, is multiplied by the SiLU of the projection `gate`, and is projected to the outputs. RoPE
    is not used. Raises `GraphError` if the numbers of heads do not match.

    Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks" (2024); transformers'
    `Qwen3NextGatedDeltaNet`.
    """

    def __init__(
        self,
        features: int,
        heads: int,
        *,
        key_heads: int,
        key_size: int,
        value_size: int,
        kernel: int,
        norm_epsilon: float = 1e-6,
        dtype: DTypeLike = DType.float32,
        device: DeviceRef = CPU,
        quantization_encoding: QuantizationEncoding | None = None,
    ) -> None:
        if key_heads < 1 or heads % key_heads:
            raise GraphError(
                f"{heads} heads cannot be divided evenly among {key_heads} key heads",
                hint="the number of heads must be a multiple of key_heads",
            )
        self.heads, self.key_heads = heads, key_heads
        self.key_size, self.value_size = key_size, value_size
        keys, values = key_heads * key_size, heads * value_size
        self.sizes: tuple[int, ...] = (keys, keys, values)
        projection = partial(
            Linear, dtype=dtype, device=device, quantization_encoding=quantization_encoding
        )
        self.qkv = projection(features, sum(self.sizes))
        self.gate = projection(features, values)
        self.beta = projection(features, heads)
        self.alpha = projection(features, heads)
        self.kernel = CausalConvolution(sum(self.sizes), kernel, dtype=dtype, device=device)
        self.rates = HeadValues(heads, device=device)
        self.offsets = HeadValues(heads, device=device)
        self.norm = RMSNorm(value_size, norm_epsilon, dtype=dtype, device=device)
        self.outputs = projection(values, features)

    def __call__(self, x: Value) -> Value:
        """Return outputs in the shape of the inputs, `(batch, positions, features)`."""
        q, k, v = ops.split(ops.silu(self.kernel(self.qkv(x))), self.sizes, axis=-1)
        q, k = (self._split(each, self.key_size).cast(DType.float32) for each in (q, k))
        beta = ops.sigmoid(self.beta(x).cast(DType.float32))
        alpha = ops.softplus(self.alpha(x).cast(DType.float32) + self.offsets())
        scan = partial(
            ops.gated_delta_rule,
            unit_vectors(q) / sqrt(self.key_size),
            unit_vectors(k),
            self._split(v, self.value_size).cast(DType.float32),
            -ops.exp(self.rates()) * alpha,
            beta,
        )
        y = with_states(lambda states: scan(states=states))
        y = self.norm(y.cast(x.dtype))
        gate = ops.silu(self._split(self.gate(x), self.value_size).cast(DType.float32))
        y = (y.cast(DType.float32) * gate).cast(x.dtype)
        return self.outputs(y.reshape((*x.shape[:-1], self.heads * self.value_size)))

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return strategies with which each shard has some of the heads, with their key heads.

        If there are fewer key heads than ranks, several ranks share one. Raises `ShardingError` if
        not every rank can get a head in whole blocks.
        """
        heads = Heads(
            self.heads, self.key_heads, self.key_size, value=self.value_size, called=DELTA_HEADS
        )
        parts: dict[str, MatrixLayer] = {
            "delta.qkv": self.qkv,
            "delta.gate": self.gate,
            "delta.beta": self.beta,
            "delta.alpha": self.alpha,
            "delta.kernel": self.kernel,
            "delta.rates": self.rates,
            "delta.offsets": self.offsets,
            "delta.outputs": self.outputs,
        }
        return cut_parts(parts, devices, heads) | replicate_weights(devices, self.norm.weight)

    def take_shards(self) -> None:
        """Adopt the number of heads of a shard."""
        self.sizes = segment_sizes(self.qkv.outputs, self.sizes)
        self.key_heads = self.sizes[0] // self.key_size
        self.heads = self.sizes[2] // self.value_size

    def _split(self, x: Value, size: int) -> Value:
        """Return (batch, positions, heads * size) as (batch, positions, heads, size)."""
        return x.reshape((*x.shape[:-1], int(x.shape[-1]) // size, size))


class KimiDeltaAttention(Divisible):
    """Attention whose heads keep a state in place of the keys and values of all positions.

    Each of the `heads` heads has queries, keys and values of `size` elements. Causal convolutions
    over `kernel` positions, with SiLU, follow their projections. Two projections, `decay_a` and
    `decay_b`, compute how much each element of a key fades at a position, and `beta` by which share
    the state is corrected. What the heads return gets an RMSNorm of each head, is multiplied by the
    sigmoid of what `gate_a` and `gate_b` compute, and is projected to the outputs. Without
    `low_rank`, the projections `decay` and `output_gate` are in place of each two. With a `bound`,
    the logarithm of what is left of a state is between it and 0. RoPE is not used.

    Source: Kimi Team, "Kimi Linear: An Expressive, Efficient Attention Architecture" (2025);
    transformers' `KimiLinearDeltaAttention`.
    """

    def __init__(
        self,
        features: int,
        heads: int,
        *,
        size: int,
        kernel: int,
        low_rank: bool = True,
        bound: float | None = None,
        norm_epsilon: float = 1e-5,
        dtype: DTypeLike = DType.float32,
        device: DeviceRef = CPU,
        quantization_encoding: QuantizationEncoding | None = None,
    ) -> None:
        self.heads, self.size = heads, size
        self.low_rank, self.bound = low_rank, bound
        width = heads * size
        projection = partial(
            Linear, dtype=dtype, device=device, quantization_encoding=quantization_encoding
        )
        convolution = partial(CausalConvolution, width, kernel, dtype=dtype, device=device)
        self.q, self.k, self.v = (projection(features, width) for _ in range(3))
        self.q_kernel, self.k_kernel, self.v_kernel = (convolution() for _ in range(3))
        if low_rank:
            self.decay_a, self.gate_a = (projection(features, size) for _ in range(2))
            self.decay_b, self.gate_b = (projection(size, width) for _ in range(2))
        else:
            self.decay, self.output_gate = (projection(features, width) for _ in range(2))
        self.beta = projection(features, heads)
        self.rates = HeadValues(heads, device=device)
        self.offsets = HeadValues(width, device=device)
        self.norm = RMSNorm(size, norm_epsilon, dtype=dtype, device=device)
        self.outputs = projection(width, features)

    def __call__(self, x: Value) -> Value:
        """Return outputs in the shape of the inputs, `(batch, positions, features)`."""
        q = self._split(ops.silu(self.q_kernel(self.q(x)))).cast(DType.float32)
        k = self._split(ops.silu(self.k_kernel(self.k(x)))).cast(DType.float32)
        v = self._split(ops.silu(self.v_kernel(self.v(x)))).cast(DType.float32)
        decay, gate = (
            (self.decay_b(self.decay_a(x)), self.gate_b(self.gate_a(x)))
            if self.low_rank
            else (self.decay(x), self.output_gate(x))
        )
        rates = ops.exp(self.rates()).reshape((self.heads, 1))
        scan = partial(
            ops.gated_delta_rule,
            unit_vectors(q) / sqrt(self.size),
            unit_vectors(k),
            v,
            self._fade(rates, self._split(decay.cast(DType.float32) + self.offsets())),
            ops.sigmoid(self.beta(x).cast(DType.float32)),
        )
        y = with_states(lambda states: scan(states=states))
        y = self.norm(y.cast(x.dtype)).cast(DType.float32)
        y = (y * ops.sigmoid(self._split(gate).cast(DType.float32))).cast(x.dtype)
        return self.outputs(y.reshape((*x.shape[:-1], self.heads * self.size)))

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return strategies with which each shard has some of the heads.

        Raises `ShardingError` if not every rank can get a head in whole blocks.
        """
        heads = Heads(self.heads, self.heads, self.size, value=self.size, called=DELTA_HEADS)
        parts: dict[str, MatrixLayer] = {
            "delta.q": self.q,
            "delta.k": self.k,
            "delta.v": self.v,
            "delta.q_kernel": self.q_kernel,
            "delta.k_kernel": self.k_kernel,
            "delta.v_kernel": self.v_kernel,
            "delta.beta": self.beta,
            "delta.rates": self.rates,
            "delta.offsets.apart": self.offsets,
            "delta.outputs": self.outputs,
        }
        whole = [self.norm.weight]
        if self.low_rank:
            parts |= {"delta.decay_b": self.decay_b, "delta.gate_b": self.gate_b}
            whole += [self.decay_a.weight, self.gate_a.weight]
        else:
            parts |= {"delta.decay": self.decay, "delta.output_gate": self.output_gate}
        return cut_parts(parts, devices, heads) | replicate_weights(devices, *whole)

    def take_shards(self) -> None:
        """Adopt the number of heads of a shard."""
        self.heads = self.q.outputs.size // self.size

    def _fade(self, rates: Value, given: Value) -> Value:
        """Return the logarithm of what is left of each element of a state at a position."""
        if self.bound is None:
            return -rates * ops.softplus(given)
        return ops.sigmoid(rates * given) * self.bound

    def _split(self, x: Value) -> Value:
        """Return (batch, positions, heads * size) as (batch, positions, heads, size)."""
        return x.reshape((*x.shape[:-1], self.heads, self.size))


class HeadValues(Module):
    """A number for each head."""

    def __init__(self, heads: int, *, device: DeviceRef = CPU) -> None:
        self.weight = Weight("weight", DType.float32, (heads,), device)

    def __call__(self) -> Value:
        return weight_as(self.weight, DType.float32)

    @property
    def axes(self) -> tuple[CutAxis, CutAxis]:
        """The axis of the heads, as that of outputs and of inputs."""
        return CutAxis(self.weight, 0), CutAxis(self.weight, 0)

    def cut(self, axis: int, ranges: Ranges) -> dict[Weight, ShardingStrategy]:
        """Return the weight's strategy if shards get these heads."""
        return {self.weight: cut_along(self.axes[axis], ranges)}


def unit_vectors(x: Value) -> Value:
    """Return `x / sqrt(sum(x * x) + epsilon)` over the last axis."""
    size = int(x.shape[-1])
    return ops.rms_norm(x, None, _EPSILON / size) / sqrt(size)
