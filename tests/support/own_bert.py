"""Encoders of texts that transformers lacks, in torch, with the names of their checkpoints."""

from __future__ import annotations

import transformers
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

from lazy import torch
from own_llama import find_slopes

TYPE = "own_bert"


class OwnBertConfig(transformers.PreTrainedConfig):
    """The config of a BERT with ALiBi and gated MLPs, as in jina-embeddings-v2."""

    model_type = TYPE

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"


class _Embeddings(nn.Module):
    def __init__(self, config: OwnBertConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)


class _Attention(nn.Module):
    def __init__(self, config: OwnBertConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.heads = config.num_attention_heads
        parts = {name: nn.Linear(hidden, hidden) for name in ("query", "key", "value")}
        self.self = nn.ModuleDict(parts)
        self.output = nn.ModuleDict(
            {
                "dense": nn.Linear(hidden, hidden),
                "LayerNorm": nn.LayerNorm(hidden, config.layer_norm_eps),
            }
        )

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        shape = (*x.shape[:2], self.heads, -1)
        q, k, v = (self.self[name](x).view(shape).transpose(1, 2) for name in self.self)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, bias)
        dense = self.output["dense"](attended.transpose(1, 2).flatten(2))
        return self.output["LayerNorm"](x + dense)


class _Mlp(nn.Module):
    def __init__(self, config: OwnBertConfig) -> None:
        super().__init__()
        hidden, width = config.hidden_size, config.intermediate_size
        self.gated_layers = nn.Linear(hidden, 2 * width, bias=False)
        self.wo = nn.Linear(width, hidden)
        self.layernorm = nn.LayerNorm(hidden, config.layer_norm_eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gated_layers(x).chunk(2, -1)
        return self.layernorm(x + self.wo(nn.functional.gelu(gate) * up))


class _Layer(nn.Module):
    def __init__(self, config: OwnBertConfig) -> None:
        super().__init__()
        self.attention = _Attention(config)
        self.mlp = _Mlp(config)


class OwnBertModel(transformers.PreTrainedModel):
    config_class = OwnBertConfig

    def __init__(self, config: OwnBertConfig) -> None:
        super().__init__(config)
        self.embeddings = _Embeddings(config)
        layers = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))
        self.encoder = nn.ModuleDict({"layer": layers})
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.word_embeddings

    def forward(self, input_ids: torch.Tensor) -> BaseModelOutput:
        parts = self.embeddings
        x = parts.word_embeddings(input_ids) + parts.token_type_embeddings.weight[0]
        x = parts.LayerNorm(x)
        positions = torch.arange(input_ids.shape[1])
        distance = (positions - positions[:, None]).abs()
        slopes = find_slopes(self.config.num_attention_heads)[:, None, None]
        for layer in self.encoder["layer"]:
            x = layer.mlp(layer.attention(x, -distance * slopes))
        return BaseModelOutput(last_hidden_state=x)


transformers.AutoConfig.register(TYPE, OwnBertConfig)
transformers.AutoModel.register(OwnBertConfig, OwnBertModel)
