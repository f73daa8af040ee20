"""The Module of gemma2, and the layers that gemma3 has too."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from weightctl.dtype import DType
from weightctl.graph import ops
from weightctl.nn.attention import Attention
from weightctl.nn.base_layer import LayerList
from weightctl.nn.embedding import Embedding
from weightctl.nn.linear import Linear
from weightctl.nn.mlp import GatedMLP
from weightctl.nn.models.network import Network
from weightctl.nn.module import Module
from weightctl.nn.norm import RMSNorm
from weightctl.nn.rope import RotaryEmbedding

if TYPE_CHECKING:
    from weightctl.families.gemma2 import Gemma2Config
    from weightctl.graph.value import Value
    from weightctl.nn.models.network import Beside

__all__ = ["Gemma2", "GemmaLayer", "GemmaNetwork"]


class GemmaLayer(Module):
    """Attention, then a gated MLP, each between two norms and added to what came in."""

    def __init__(
        self, config: Gemma2Config, dtype: DType, *, is_local: bool, has_head_norms: bool = False
    ) -> None:
        norm = partial(
            RMSNorm, config.hidden, config.norm_epsilon, offset=config.norm_offset, dtype=dtype
        )
        self.is_local = is_local
        self.attention_norm = norm()
        self.attention = Attention(
            config.hidden,
            config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            window=config.sliding_window if is_local else None,
            softcap=config.attention_softcap,
            scale=config.query_scalar**-0.5,
            norm_epsilon=config.norm_epsilon if has_head_norms else None,
            norm_offset=config.norm_offset,
            dtype=dtype,
        )
        self.post_attention_norm = norm()
        self.mlp_norm = norm()
        self.mlp = GatedMLP(config.hidden, config.intermediate, config.activation, dtype=dtype)
        self.post_mlp_norm = norm()

    def __call__(self, x: Value, cos: Value, sin: Value) -> Value:
        """Return what goes to the next layer, in the shape of `x`."""
        x = x + self.post_attention_norm(self.attention(self.attention_norm(x), cos, sin))
        return x + self.post_mlp_norm(self.mlp(self.mlp_norm(x)))


class GemmaNetwork(Network):
    """What comes before and after the layers of a gemma.

    Embeddings are multiplied by the root of their length; logits may have a soft cap.
    """

    def __init__(
        self, config: Gemma2Config, dtype: DType = DType.float32, *, has_head_norms: bool = False
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.embedding = Embedding(config.vocabulary, config.hidden, dtype=dtype)
        self.rope = RotaryEmbedding(config.rope_dimensions, config.rope_base, config.rope_scaling)
        self.layers = LayerList(
            [
                GemmaLayer(config, dtype, is_local=is_local, has_head_norms=has_head_norms)
                for is_local in config.windowed_layers[: config.layers]
            ]
        )
        self.norm = RMSNorm(
            config.hidden, config.norm_epsilon, offset=config.norm_offset, dtype=dtype
        )
        self.output = Linear(config.hidden, config.vocabulary, dtype=dtype)
        if config.tied:
            self.output.set_shared_weight("weight", self.embedding.weight)

    def begin(self, tokens: Value) -> tuple[Value, Beside]:
        """Return the tokens' scaled vectors, and by how much each position is rotated."""
        x = self.embedding(tokens, self.dtype)
        # The factor is rounded to the dtype of activations, as models were trained with it.
        x = x * ops.constant(self.config.hidden**0.5, self.dtype, tokens.device)
        return x, self.rope(ops.range(tokens.shape[1], device=tokens.device))

    def end(self, x: Value) -> Value:
        """Return the logits of what follows each token."""
        logits, cap = self.output(self.norm(x)), self.config.softcap
        return logits if cap is None else ops.tanh(logits / cap) * cap


class Gemma2(GemmaNetwork):
    """A gemma2: from token ids, int64[batch, seq], to logits [batch, seq, vocabulary]."""
