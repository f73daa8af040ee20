"""State space models (SSM), which replace attention: Mamba and Mamba-2."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.families.modules import SSM_HEADS
from weightctl.graph import ops
from weightctl.graph.graph import Weight
from weightctl.nn.layer_sharding import (
    CutAxis,
    cut_along,
    cut_parts,
    own_range,
    replicate_weights,
    segment_sizes,
)
from weightctl.nn.linear import Linear
from weightctl.nn.module import Module, Staged
from weightctl.nn.norm import RMSNorm
from weightctl.nn.positions import with_states
from weightctl.nn.precision import weight_as
from weightctl.nn.recurrent.convolution import CausalConvolution
from weightctl.nn.xielu import softplus
from weightctl.split import Heads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.device import DeviceRef
    from weightctl.dtype import DTypeLike
    from weightctl.graph.graph import Value
    from weightctl.graph.sharding import ShardingStrategy
    from weightctl.nn.layer_sharding import MatrixLayer, Ranges

_SEGMENTS = 5


class HeadNumbers(Module):
    """Numbers of each head or channel, along the first axis of `shape`."""

    def __init__(self, *shape: int, device: DeviceRef = CPU) -> None:
        self.weight = Weight("weight", DType.float32, shape, device)

    def __call__(self) -> Value:
        return weight_as(self.weight, DType.float32)

    @property
    def axes(self) -> tuple[CutAxis, CutAxis]:
        """The first and the last axis."""
        rank = len(self.weight.original_dtype_and_shape[1])
        return CutAxis(self.weight, 0), CutAxis(self.weight, rank - 1)

    def cut(self, axis: int, ranges: Ranges) -> dict[Weight, ShardingStrategy]:
        """Return the weight's strategy if shards get these heads or channels (`axis` 0)."""
        return {self.weight: cut_along(self.axes[axis], ranges)}


class SegmentScales(NamedTuple):
    """Factors in a Mamba-2, as Falcon-H1 has them.

    `inputs` multiplies the input, `segments` the five parts of its projection, and `outputs` the
    result.
    """

    inputs: float = 1.0
    segments: Sequence[float] = (1.0,) * _SEGMENTS
    outputs: float = 1.0

    @classmethod
    def of(cls, scales: Sequence[float]) -> SegmentScales:
        """Return the factors of inputs, of the segments and of outputs, given in this order."""
        return cls(scales[0], scales[1:-1], scales[-1])


class _StagedValues(NamedTuple):
    """What a shard needs in the second stage: values of its channels, and gates unless applied.

    `dtype` is that of the layer's inputs; Mamba-2 computes `values` in float32.
    """

    values: Value
    dtype: DType
    gates: Value | None = None


class Mamba(Staged):
    """A selective state space model in which each of the `inner` channels has its own rates.

    One projection computes values and gates. A causal convolution over `kernel` positions and SiLU
    follow, then the projection `selection` to a vector of `rank` elements, from which `step`
    computes a step for each channel, and to the matrices B and C of `states` elements. With
    `norm_epsilon` these three have an RMSNorm, without weights unless `norms_weighted`. `bias` is
    for the projections of inputs and outputs, `kernel_bias` for the convolution.

    Source: transformers' `MambaMixer`.
    """

    def __init__(
        self,
        features: int,
        inner: int,
        *,
        states: int,
        rank: int,
        kernel: int,
        bias: bool = False,
        kernel_bias: bool = True,
        norm_epsilon: float | None = None,
        norms_weighted: bool = True,
        dtype: DTypeLike = DType.float32,
        device: DeviceRef = CPU,
    ) -> None:
        self.inner, self.states, self.rank = inner, states, rank
        self.inputs = Linear(features, 2 * inner, bias, dtype=dtype, device=device)
        self.kernel = CausalConvolution(inner, kernel, bias=kernel_bias, dtype=dtype, device=device)
        self.selection = Linear(inner, rank + 2 * states, dtype=dtype, device=device)
        self.has_norms = norm_epsilon is not None
        if norm_epsilon is not None:
            self.step_norm, self.b_norm, self.c_norm = (
                RMSNorm(size, norm_epsilon, weight=norms_weighted, dtype=dtype, device=device)
                for size in (rank, states, states)
            )
        self.step = Linear(rank, inner, bias=True, dtype=dtype, device=device)
        self.rates = HeadNumbers(inner, states, device=device)
        self.skip = HeadNumbers(inner, device=device)
        self.outputs = Linear(inner, features, bias, dtype=dtype, device=device)

    def begin(self, x: Value) -> tuple[tuple[Value, ...], _StagedValues]:
        """Return what this shard's channels add to steps, B and C; and its values and gates."""
        values, gates = ops.split(self.inputs(x), [self.inner] * 2, axis=-1)
        values = ops.silu(self.kernel(values))
        return (self.selection(values),), _StagedValues(values, x.dtype, gates)

    def finish(self, summed: Sequence[Value], kept: _StagedValues) -> Value:
        """Return outputs in the shape of the inputs, `(batch, positions, features)`."""
        (selected,) = summed
        step, b, c = ops.split(selected, [self.rank, self.states, self.states], axis=-1)
        if self.has_norms:
            step, b, c = self.step_norm(step), self.b_norm(b), self.c_norm(c)
        steps = softplus(self.step(step).cast(DType.float32))
        wide = kept.values.cast(DType.float32)
        scan = partial(
            ops.selective_scan,
            ops.unsqueeze(wide, -1),
            steps,
            -ops.exp(self.rates()),
            ops.unsqueeze(b, 2),
            ops.unsqueeze(c, 2),
        )
        y = with_states(lambda states: scan(states=states))
        y = y.reshape(wide.shape) + wide * self.skip()
        if kept.gates is not None:
            y = y * ops.silu(kept.gates.cast(DType.float32))
        return self.outputs(y.cast(kept.dtype))

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return strategies with which each shard has some of the channels.

        Raises `ShardingError` if there are fewer channels, or blocks of them, than devices.
        """
        parts: dict[str, MatrixLayer] = {
            "ssm.inputs.channels": self.inputs,
            "ssm.kernel.channels": self.kernel,
            "ssm.selection": self.selection,
            "ssm.step": self.step,
            "ssm.rates.channels": self.rates,
            "ssm.skip.channels": self.skip,
            "ssm.outputs.channels": self.outputs,
        }
        cuts = cut_parts(parts, devices)
        if self.has_norms:
            norms = (self.step_norm, self.b_norm, self.c_norm)
            cuts |= replicate_weights(devices, *(norm.weight for norm in norms))
        return cuts

    def take_shards(self) -> None:
        """Adopt the number of channels of a shard."""
        self.inner = self.outputs.inputs.size


class Mamba2(Staged):
    """A selective state space model in which the channels of a head have the same step and rate.

    One projection computes gates, values, the matrices B and C of `states` elements for each of the
    `groups` of heads, and a step for each head. A causal convolution over `kernel` positions and
    SiLU follow for values, B and C. With `norm_epsilon`, the gated outputs of each group are
    normed. `bias` is for the projections, `kernel_bias` for the convolution.

    Source: transformers' `Mamba2Mixer`.
    """

    def __init__(
        self,
        features: int,
        heads: int,
        head_dim: int,
        *,
        groups: int,
        states: int,
        kernel: int,
        bias: bool = False,
        kernel_bias: bool = True,
        norm_epsilon: float | None = None,
        scales: SegmentScales | None = None,
        dtype: DTypeLike = DType.float32,
        device: DeviceRef = CPU,
    ) -> None:
        self.heads, self.head_dim, self.own_groups, self.states = heads, head_dim, groups, states
        self.scales = scales
        inner, matrix = heads * head_dim, groups * states
        self.sizes: tuple[int, ...] = (inner, inner, matrix, matrix, heads)
        self.inputs = Linear(features, sum(self.sizes), bias, dtype=dtype, device=device)
        self.kernel = CausalConvolution(
            inner + 2 * matrix, kernel, bias=kernel_bias, dtype=dtype, device=device
        )
        self.step_bias = HeadNumbers(heads, device=device)
        self.rates = HeadNumbers(heads, device=device)
        self.skip = HeadNumbers(heads, device=device)
        self.norm_epsilon = norm_epsilon
        if norm_epsilon is not None:
            self.norm = HeadNumbers(inner, device=device)
        self.outputs = Linear(inner, features, bias, dtype=dtype, device=device)
        # Of how many groups a shard has which, and the channels of a group in all shards.
        self.all_groups, self.first_group = groups, 0
        self.group_size = inner // groups

    def begin(self, x: Value) -> tuple[tuple[Value, ...], _StagedValues]:
        """Return the sum of the squares of each group's channels, and these channels.

        There are no sums if channels are not normed. Those of groups of other shards are 0.
        """
        gates, values, b, c, steps = self._project(x)
        _, inner, matrix, _, heads = self.sizes
        mixed = ops.silu(self.kernel(ops.concat([values, b, c], -1))).cast(DType.float32)
        values, b, c = ops.split(mixed, [inner, matrix, matrix], axis=-1)
        places = x.shape[:-1]
        of_heads = values.reshape((*places, heads, self.head_dim))
        b, c = (each.reshape((*places, self.own_groups, self.states)) for each in (b, c))
        steps = softplus(steps.cast(DType.float32) + self.step_bias())
        rates = ops.unsqueeze(-ops.exp(self.rates()), 1)
        scan = partial(ops.selective_scan, of_heads, steps, rates, b, c)
        y = with_states(lambda states: scan(states=states))
        y = (y + of_heads * ops.unsqueeze(self.skip(), 1)).reshape((*places, inner))
        y = y * ops.silu(gates.cast(DType.float32))
        kept = _StagedValues(y, x.dtype)
        if self.norm_epsilon is None:
            return (), kept
        return (self._among_all(ops.sum(self._by_group(y * y), -1)),), kept

    def finish(self, summed: Sequence[Value], kept: _StagedValues) -> Value:
        """Return outputs in the shape of the inputs, `(batch, positions, features)`."""
        y = kept.values
        if self.norm_epsilon is not None:
            (sums,) = summed
            own = sums[..., self.first_group : self.first_group + self.own_groups]
            scale = ops.rsqrt(own / self.group_size + self.norm_epsilon)
            y = (self._by_group(y) * ops.unsqueeze(scale, -1)).reshape(y.shape) * self.norm()
        y = self.outputs(y.cast(kept.dtype))
        return y if self.scales is None else y * self.scales.outputs

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return strategies with which each shard has some of the heads, and their groups.

        If there are fewer groups than devices, several shards have a group and divide its heads.
        Raises `ShardingError` if not each can have a head, in whole blocks.
        """
        heads = Heads(
            self.heads, self.own_groups, self.head_dim, value=self.states, called=SSM_HEADS
        )
        parts: dict[str, MatrixLayer] = {
            "ssm.inputs": self.inputs,
            "ssm.kernel": self.kernel,
            "ssm.step_bias": self.step_bias,
            "ssm.rates": self.rates,
            "ssm.skip": self.skip,
            "ssm.outputs": self.outputs,
        }
        if self.norm_epsilon is not None:
            parts["ssm.norm"] = self.norm
        return cut_parts(parts, devices, heads)

    def take_shards(self) -> None:
        """Adopt the heads and groups of a shard."""
        shared = self.heads // self.own_groups
        self.sizes = segment_sizes(self.inputs.outputs, self.sizes)
        self.heads, self.own_groups = self.sizes[-1], self.sizes[2] // self.states
        own = own_range(self.outputs.inputs)
        self.first_group = 0 if own is None else own[0] // self.head_dim // shared

    def _project(self, x: Value) -> Sequence[Value]:
        """Return gates, values, B, C and steps."""
        if self.scales is None:
            return ops.split(self.inputs(x), self.sizes, axis=-1)
        parts = ops.split(self.inputs(x * self.scales.inputs), self.sizes, axis=-1)
        scaled = zip(parts, self.scales.segments, strict=True)
        return [part * scale for part, scale in scaled]

    def _by_group(self, x: Value) -> Value:
        """Return (..., channels) as (..., groups, channels of a group)."""
        size = int(x.shape[-1]) // self.own_groups
        return x.reshape((*x.shape[:-1], self.own_groups, size))

    def _among_all(self, sums: Value) -> Value:
        """Return (..., groups) with zeros for the groups of other shards."""
        after = self.all_groups - self.first_group - self.own_groups
        zeros = sums[..., :1] * 0.0
        parts = [zeros] * self.first_group + [sums] + [zeros] * after
        return sums if len(parts) == 1 else ops.concat(parts, -1)
