"""A CLIP model in torch with the names and the computation of OpenAI's and OpenCLIP's programs."""

from __future__ import annotations

from typing import Any

from torch import nn

from lazy import torch

__all__ = ["Clip", "make_clip"]


class QuickGelu(nn.Module):
    """OpenAI's approximation of GELU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(1.702 * x)


class ResidualBlock(nn.Module):
    """A layer of a transformer with its norms before attention and MLP."""

    def __init__(self, width: int, inner: int, heads: int, activation: nn.Module) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential()
        self.mlp.add_module("c_fc", nn.Linear(width, inner))
        self.mlp.add_module("gelu", activation)
        self.mlp.add_module("c_proj", nn.Linear(inner, width))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False, attn_mask=mask)[0]
        return x + self.mlp(self.ln_2(x))


class Layers(nn.Module):
    """The layers of an encoder."""

    def __init__(self, count: int, *sizes: Any) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList([ResidualBlock(*sizes) for _ in range(count)])

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return the output of the last layer."""
        for block in self.resblocks:
            x = block(x, mask)
        return x


class Visual(nn.Module):
    """The encoder of images."""

    def __init__(self, width: int, patch: int, grid: int, projected: int, layers: Layers) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, patch, patch, bias=False)
        self.class_embedding = nn.Parameter(torch.randn(width))
        self.positional_embedding = nn.Parameter(torch.randn(grid**2 + 1, width))
        self.ln_pre, self.ln_post = nn.LayerNorm(width), nn.LayerNorm(width)
        self.transformer = layers
        self.proj = nn.Parameter(torch.randn(width, projected))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of images, [images, projected]."""
        patches = self.conv1(pixels).flatten(2).mT
        first = self.class_embedding.expand(len(pixels), 1, -1)
        x = torch.cat([first, patches], 1) + self.positional_embedding
        return self.ln_post(self.transformer(self.ln_pre(x))[:, 0]) @ self.proj


class Clip(nn.Module):
    """A CLIP model with encoders of these sizes: (layers, width, MLP width, heads)."""

    def __init__(
        self,
        text: tuple[int, int, int, int],
        vision: tuple[int, int, int, int],
        *,
        quick_gelu: bool = True,
        projected: int = 32,
        patch: int = 8,
        grid: int = 3,
        positions: int = 12,
        vocabulary: int = 99,
    ) -> None:
        super().__init__()
        activation = QuickGelu() if quick_gelu else nn.GELU()
        width = text[1]
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.positional_embedding = nn.Parameter(torch.randn(positions, width))
        self.transformer = Layers(*text, activation)
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.randn(width, projected))
        self.logit_scale = nn.Parameter(torch.tensor(2.5))
        layers = Layers(*vision, activation)
        self.visual = Visual(vision[1], patch, grid, projected, layers)

    def encode_image(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of images, [images, projected]."""
        found: torch.Tensor = self.visual(pixels)
        return found

    def encode_text(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of texts at the positions of their highest tokens."""
        count = tokens.shape[1]
        mask = torch.full((count, count), float("-inf")).triu(1)
        x = self.token_embedding(tokens) + self.positional_embedding[:count]
        x = self.ln_final(self.transformer(x, mask))
        found: torch.Tensor = x[torch.arange(len(x)), tokens.argmax(-1)] @ self.text_projection
        return found


def make_clip(*args: Any, **options: Any) -> Clip:
    """Return a model whose weights are all drawn."""
    torch.manual_seed(0)
    model = Clip(*args, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim():
                parameter.copy_(torch.randn_like(parameter) * max(parameter.shape[-1], 4) ** -0.5)
    return model
