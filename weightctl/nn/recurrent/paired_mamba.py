"""The state space model of PLaMo 2: heads as in Mamba-2, steps and matrices as in Mamba."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.families.modules import SSM_HEADS
from weightctl.graph import ops
from weightctl.nn.layer_sharding import cut_parts, replicate_weights
from weightctl.nn.linear import Linear
from weightctl.nn.module import Staged
from weightctl.nn.norm import RMSNorm
from weightctl.nn.positions import with_states
from weightctl.nn.recurrent.convolution import CausalConvolution
from weightctl.nn.recurrent.state_space import HeadNumbers
from weightctl.nn.xielu import softplus
from weightctl.split import Heads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.device import DeviceRef
    from weightctl.dtype import DTypeLike
    from weightctl.graph.graph import Value, Weight
    from weightctl.graph.sharding import ShardingStrategy
    from weightctl.nn.layer_sharding import MatrixLayer


class _OfHeads(NamedTuple):
    """Values and gates of a shard, `(batch, positions, heads, size)`, and the dtype of inputs."""

    values: Value
    gates: Value
    dtype: DType


class PairedMamba(Staged):
    """A selective state space model of `heads` with one step and one rate each; they share B and C.

    One projection computes, head by head, `size` gates and `size` values. A causal convolution of
    the values over `kernel` positions and SiLU follow, then the projection `selection` to B and C
    of `states` elements and to a vector of `rank` elements, from which `step` computes the steps.
    These three have an RMSNorm. There are no biases but that of the steps.

    Source: llama.cpp's `models/plamo2.cpp`.
    """

    def __init__(
        self,
        features: int,
        heads: int,
        size: int,
        *,
        states: int,
        rank: int,
        kernel: int,
        norm_epsilon: float,
        dtype: DTypeLike = DType.float32,
        device: DeviceRef = CPU,
    ) -> None:
        self.heads, self.size, self.states, self.rank = heads, size, states, rank
        inner = heads * size
        linear = partial(Linear, dtype=dtype, device=device)
        norm = partial(RMSNorm, eps=norm_epsilon, dtype=dtype, device=device)
        self.inputs = linear(features, 2 * inner)
        self.kernel = CausalConvolution(inner, kernel, bias=False, dtype=dtype, device=device)
        self.selection = linear(inner, 2 * states + rank)
        self.b_norm, self.c_norm, self.step_norm = norm(states), norm(states), norm(rank)
        self.step = linear(rank, heads)
        self.step_bias = HeadNumbers(heads, device=device)
        self.rates = HeadNumbers(heads, device=device)
        self.skip = HeadNumbers(heads, device=device)
        self.outputs = linear(inner, features)

    def begin(self, x: Value) -> tuple[tuple[Value, ...], _OfHeads]:
        """Return what this shard's heads add to B, C and steps; and their values and gates."""
        places = x.shape[:-1]
        pairs = self.inputs(x).reshape((*places, self.heads, 2 * self.size))
        gates, values = ops.split(pairs, [self.size] * 2, axis=-1)
        values = ops.silu(self.kernel(values.reshape((*places, self.heads * self.size))))
        of_heads = values.reshape((*places, self.heads, self.size))
        return (self.selection(values),), _OfHeads(of_heads, gates, x.dtype)

    def finish(self, summed: Sequence[Value], kept: _OfHeads) -> Value:
        """Return outputs in the shape of the inputs, `(batch, positions, features)`."""
        (selected,) = summed
        b, c, step = ops.split(selected, [self.states, self.states, self.rank], axis=-1)
        step = self.step(self.step_norm(step)).cast(DType.float32)
        values = kept.values.cast(DType.float32)
        scan = partial(
            ops.selective_scan,
            values,
            softplus(step + self.step_bias()),
            ops.unsqueeze(-ops.exp(self.rates()), 1),
            ops.unsqueeze(self.b_norm(b).cast(DType.float32), 2),
            ops.unsqueeze(self.c_norm(c).cast(DType.float32), 2),
        )
        y = with_states(lambda states: scan(states=states))
        y = y + values * ops.unsqueeze(self.skip(), 1)
        y = y * ops.silu(kept.gates.cast(DType.float32))
        return self.outputs(y.reshape((*y.shape[:-2], self.heads * self.size)).cast(kept.dtype))

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return strategies with which each shard has some of the heads.

        Raises `ShardingError` if not each can have a head, in whole blocks.
        """
        heads = Heads(self.heads, 1, self.size, value=self.states, called=SSM_HEADS)
        parts: dict[str, MatrixLayer] = {
            "ssm.inputs.paired": self.inputs,
            "ssm.kernel.paired": self.kernel,
            "ssm.selection.paired": self.selection,
            "ssm.step.paired": self.step,
            "ssm.step_bias": self.step_bias,
            "ssm.rates": self.rates,
            "ssm.skip": self.skip,
            "ssm.outputs": self.outputs,
        }
        norms = (self.b_norm, self.c_norm, self.step_norm)
        whole = replicate_weights(devices, *(norm.weight for norm in norms))
        return cut_parts(parts, devices, heads) | whole

    def take_shards(self) -> None:
        """Adopt the heads of a shard."""
        self.heads = self.outputs.inputs.size // self.size
