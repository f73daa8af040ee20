"""The weights of torch modules, and how far from what those give is what our layers give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazy import torch

if TYPE_CHECKING:
    from collections.abc import Mapping


def seeded(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """The module with weights large enough that each of them tells in what it gives."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            spread = 0.3 if parameter.ndim > 1 else 0.5
            parameter.normal_(0.0, spread, generator=generator)
            if parameter.ndim == 1 and name.endswith("weight"):
                parameter.add_(1.0)
    return module.eval()


def numbers(*shape: int, seed: int = 1, dtype: torch.dtype | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype or torch.float32)


def taken(module: torch.nn.Module, names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The weights of a torch module, parts of their names replaced in the order given."""
    found: dict[str, Any] = {}
    for name, weight in module.state_dict().items():
        for old, new in (names or {}).items():
            name = name.replace(old, new)  # noqa: PLW2901  # replaced part by part
        found[name] = weight.detach()
    return found


def difference(left: torch.Tensor, right: torch.Tensor) -> float:
    assert left.shape == right.shape
    assert left.dtype == right.dtype
    return float((left.float() - right.float()).abs().max())
