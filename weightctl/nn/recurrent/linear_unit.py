"""The real-gated linear recurrent unit (RG-LRU) of Griffin, which replaces attention."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.families.modules import LRU_BLOCKS
from weightctl.graph import ops
from weightctl.nn.layer_sharding import cut_parts
from weightctl.nn.linear import Linear
from weightctl.nn.mlp import ACTIVATIONS
from weightctl.nn.module import Divisible
from weightctl.nn.positions import list_positions, with_states
from weightctl.nn.recurrent.convolution import CausalConvolution
from weightctl.nn.recurrent.state_space import HeadNumbers
from weightctl.split import Heads

if TYPE_CHECKING:
    from weightctl.device import DeviceRef
    from weightctl.dtype import DTypeLike
    from weightctl.graph.graph import Value, Weight
    from weightctl.graph.sharding import ShardingStrategy
    from weightctl.nn.layer_sharding import MatrixLayer

# The factor of the rates, and the least rate: a state that fades less does not change in float32.
_FACTOR, _LEAST_RATE = 8.0, 1e-20


class RealGatedRecurrence(Divisible):
    """A recurrence in which each of `width` channels has one state, multiplied by a gate.

    One projection and `activation` compute the gate, and another one the values, which a causal
    convolution over `kernel` positions follows. Two further gates, for what is added to a state and
    for how fast it fades, are computed from the values in `blocks` of channels: a channel only
    reads those of its own block. `rates` has a number for each channel.

    Source: De et al., "Griffin" (2024); transformers' `RecurrentGemmaRecurrentBlock`.
    """

    def __init__(
        self,
        features: int,
        width: int,
        *,
        blocks: int,
        kernel: int,
        activation: str,
        dtype: DTypeLike = DType.float32,
        device: DeviceRef = CPU,
    ) -> None:
        self.blocks, self.size = blocks, width // blocks
        self.activation = ACTIVATIONS[activation]
        self.gate = Linear(features, width, bias=True, dtype=dtype, device=device)
        self.inputs = Linear(features, width, bias=True, dtype=dtype, device=device)
        self.kernel = CausalConvolution(width, kernel, bias=True, dtype=dtype, device=device)
        size = self.size
        self.input_gate = HeadNumbers(blocks, size, size, device=device)
        self.input_gate_bias = HeadNumbers(blocks, size, device=device)
        self.fade_gate = HeadNumbers(blocks, size, size, device=device)
        self.fade_gate_bias = HeadNumbers(blocks, size, device=device)
        self.rates = HeadNumbers(width, device=device)
        self.outputs = Linear(width, features, bias=True, dtype=dtype, device=device)

    def __call__(self, x: Value) -> Value:
        """Return outputs in the shape of the inputs, `(batch, positions, features)`."""
        values = self.kernel(self.inputs(x)).cast(DType.float32)
        added = values * self._compute_gate(values, self.input_gate, self.input_gate_bias)
        fading = self._compute_gate(values, self.fade_gate, self.fade_gate_bias)
        steps = ops.maximum(fading * (ops.softplus(self.rates()) * _FACTOR), _LEAST_RATE)
        # The first position has no state before it, and is added as it is.
        positions = list_positions(x.shape[1], x.device)
        has_state = ops.unsqueeze(ops.minimum(positions, 1).cast(DType.float32), -1)
        scale = ops.sqrt(1.0 - ops.exp(steps * -2.0) * has_state)
        ones = ops.unsqueeze(ops.unsqueeze(values[..., :1] * 0.0 + 1.0, -1), -1)
        ones = ones.reshape((*values.shape[:-1], 1, 1))
        scan = partial(
            ops.selective_scan,
            ops.unsqueeze(added * scale / steps, -1),
            steps,
            ops.unsqueeze(self.rates() * 0.0 - 1.0, -1),
            ones,
            ones,
        )
        found = with_states(lambda states: scan(states=states))
        y = found.reshape(values.shape).cast(x.dtype)
        return self.outputs(y * self.activation(self.gate(x)))

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return strategies with which each shard has some of the blocks of channels.

        Raises `ShardingError` if there are fewer blocks than devices.
        """
        parts: dict[str, MatrixLayer] = {
            "lru.gate": self.gate,
            "lru.inputs": self.inputs,
            "lru.kernel": self.kernel,
            "lru.input_gate": self.input_gate,
            "lru.input_gate_bias": self.input_gate_bias,
            "lru.fade_gate": self.fade_gate,
            "lru.fade_gate_bias": self.fade_gate_bias,
            "lru.rates": self.rates,
            "lru.outputs": self.outputs,
        }
        heads = Heads(self.blocks, self.blocks, self.size, called=LRU_BLOCKS)
        return cut_parts(parts, devices, heads)

    def take_shards(self) -> None:
        """Adopt the number of blocks of a shard."""
        self.blocks = self.outputs.inputs.size // self.size

    def _compute_gate(self, values: Value, weight: HeadNumbers, bias: HeadNumbers) -> Value:
        """Return the sigmoid of a projection of each block of channels."""
        places = values.shape[:-1]
        blocks = values.reshape((*places, self.blocks, 1, self.size))
        y = (blocks @ weight()).reshape((*places, self.blocks, self.size))
        return ops.sigmoid(y + bias()).reshape(values.shape)
