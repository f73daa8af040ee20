"""Low-rank adapters (LoRA): detection of their matrices in a checkpoint."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.weights.info import Header

# Infixes of the names of the second and the first matrix of a pair, and the axis of the second that
# is the rank. PEFT, kohya's sd-scripts and diffusers store the second as [out, r], MLX as [r, out].
_PAIRS = (
    (".lora_B", ".lora_A", 1),
    (".lora_embedding_B", ".lora_embedding_A", 1),
    (".lora_up.", ".lora_down.", 1),
    ("lora.up.", "lora.down.", 1),
    ("lora_linear_layer.up.", "lora_linear_layer.down.", 1),
    (".lora_b", ".lora_a", 0),
)
_ALPHAS = ("adapter.lora.alpha", "ss_network_alpha")
_BASES = ("general.base_model.0.name", "ss_sd_model_name")


class Adapter(NamedTuple):
    """A LoRA adapter: its different `ranks`, and the number of pairs of `matrices`.

    `base` is the name of the model that it is for, empty if unknown. The product of a pair is
    multiplied by `alpha` / rank; `alpha` is None if unknown.
    """

    ranks: tuple[int, ...]
    matrices: int
    base: str
    alpha: float | None


def adapter(header: Header, config: Mapping[str, Any]) -> Adapter | None:
    """Return a description of the LoRA matrices among the tensors; None if there are none.

    The matrices are those of PEFT, kohya's sd-scripts, diffusers, llama.cpp and MLX. `config` is
    the content of adapter_config.json, or empty.
    """
    ranks = [
        rank for name in header.tensors if "lora" in name and (rank := _rank(header, name)) > 0
    ]
    if not ranks:
        return None
    says = {key: value.content for key, value in header.metadata.items()}
    bases = (config.get("base_model_name_or_path"), *(says.get(key) for key in _BASES))
    alphas = map(_number, (config.get("lora_alpha"), *(says.get(key) for key in _ALPHAS)))
    return Adapter(
        ranks=tuple(sorted(set(ranks))),
        matrices=len(ranks),
        base=next((base for base in bases if isinstance(base, str) and base), ""),
        alpha=next((alpha for alpha in alphas if alpha is not None), None),
    )


def is_adapter_checkpoint(header: Header, config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint is an adapter, and not a model with some low-rank matrices.

    `config` is the content of adapter_config.json, or empty.
    """
    if adapter(header, config) is None:
        return False
    return bool(config) or all("lora" in name.lower() for name in header.tensors)


def _rank(header: Header, name: str) -> int:
    """Return the rank of a pair by the name of its second matrix; 0 for other names."""
    for second, first, axis in _PAIRS:
        head, found, tail = name.rpartition(second)
        partner = header.tensors.get(head + first + tail) if found else None
        if partner is None:
            continue
        shape = header.tensors[name].shape
        # llama.cpp stores [out, r]; so does MLX for experts, which are stacked in one tensor.
        is_last = second == ".lora_b" and (header.format == "gguf" or len(shape) == 3)
        rank = shape[-1 if is_last else axis] if len(shape) > 1 else 0
        return rank if rank in partner.shape else 0
    return 0


def _number(content: object) -> float | None:
    try:
        number = float(content) if isinstance(content, int | float | str) else float("nan")
    except (ValueError, OverflowError):
        return None
    return number if isfinite(number) else None
