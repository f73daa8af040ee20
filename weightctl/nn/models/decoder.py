"""The Module of all decoders; the config selects the blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.dtype import DType
from weightctl.graph import ops
from weightctl.nn.linear import Linear
from weightctl.nn.models.block import make_norm
from weightctl.nn.models.blocks import BlockNetwork

if TYPE_CHECKING:
    from weightctl.families.decoder import DecoderConfig
    from weightctl.graph.value import Value
    from weightctl.nn.models.network import Beside

__all__ = ["Decoder"]


class Decoder(BlockNetwork):
    """A decoder: from token ids, int64[batch, seq], to logits [batch, seq, vocabulary]."""

    def __init__(self, config: DecoderConfig, dtype: DType = DType.float32) -> None:
        super().__init__(config, dtype)
        self.norm = make_norm(config, dtype)
        self.output = Linear(config.hidden, config.vocabulary, bias=config.output_bias, dtype=dtype)
        if config.tied:
            self.output.set_shared_weight("weight", self.embedding.weight)

    def begin(self, tokens: Value) -> tuple[Value, Beside]:
        """Return the tokens' vectors, and the cosines and sines of the positions."""
        positions = ops.range(tokens.shape[1], device=tokens.device)
        return self.look_up(tokens, positions), self.rotations(positions)

    def end(self, x: Value) -> Value:
        """Return the logits of the token after each position."""
        config = self.config
        logits = self.output(self.norm(x))
        if config.logit_scale != 1:
            logits = logits * config.logit_scale
        if config.logit_divisor != 1:
            logits = logits / config.logit_divisor
        cap = config.softcap
        return logits if cap is None else ops.tanh(logits / cap) * cap
