"""The Module of all encoders: which blocks it is made of is in its config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.dtype import DType
from weightctl.graph import ops
from weightctl.nn.models.block import make_norm
from weightctl.nn.models.blocks import BlockNetwork

if TYPE_CHECKING:
    from weightctl.families.decoder import EncoderConfig
    from weightctl.graph.value import Value
    from weightctl.nn.models.network import Beside

__all__ = ["TextEncoder"]


class TextEncoder(BlockNetwork):
    """An encoder: from token ids and a mask to the last layer's states [batch, seq, hidden].

    The mask is 1 where there is a token and 0 where there is padding.
    """

    INPUTS = ("tokens", "mask")

    def __init__(self, config: EncoderConfig, dtype: DType = DType.float32) -> None:
        super().__init__(config, dtype, token_types=config.token_types)
        if config.pre_norms:
            self.norm = make_norm(config, dtype)

    def begin(
        self, tokens: Value, mask: Value, token_types: Value | None = None
    ) -> tuple[Value, Beside]:
        """Return the tokens' vectors, which positions hold tokens, and the rotations.

        All tokens are of type 0 unless `token_types` tells.
        """
        positions = ops.range(tokens.shape[1], device=tokens.device)
        batch, seq = tokens.shape
        is_token = (mask != 0).reshape((batch, 1, 1, seq))
        is_near = is_token
        if self.config.sliding_window is not None:
            # Attention has windows of the positions before one; those after it are as many.
            ahead = positions.reshape((1, seq)) - positions.reshape((seq, 1))
            is_near = is_token & (ahead <= self.config.sliding_window // 2)
        x = self.look_up(tokens, positions, token_types)
        return x, (is_token, is_near, *self.rotations(positions))

    def through(self, layer: Any, x: Value, beside: Beside) -> Value:
        """Return what a layer makes of what goes into it, at the positions that hold tokens."""
        is_token, is_near, *rotations = beside
        mask = is_token if layer.attention.window is None else is_near
        if layer.rotation is None:
            made: Value = layer(x, mask=mask)
        else:
            made = layer(x, *rotations[2 * layer.rotation :][:2], mask)
        return made

    def end(self, x: Value) -> Value:
        """Return the last layer's states, normed if the layers norm what they read."""
        return self.norm(x) if self.config.pre_norms else x
