"""Low-rank adapters (LoRA): the checkpoint's matrices, and the weights that they change."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.weights.info import Header

__all__ = ["Adapter", "adapter", "is_adapter_checkpoint"]

# In the name of the second matrix of a pair, in that of the first, and the axis of the second
# that is the rank: of PEFT [out, r], of kohya's sd-scripts and diffusers too, of MLX [r, out].
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
    """LoRA: the `ranks` that occur, and the number of weights that have a pair of `matrices`.

    `base` is what the model is called that they are for, empty if it is not stated. What the
    product of a pair is multiplied with is `alpha` / rank; None if the header does not say.
    """

    ranks: tuple[int, ...]
    matrices: int
    base: str
    alpha: float | None


def adapter(header: Header, config: Mapping[str, Any]) -> Adapter | None:
    """Return what the LoRA matrices among the tensors are, None if there is none.

    Pairs are those of PEFT, kohya's sd-scripts, diffusers, llama.cpp and MLX. `config` is
    adapter_config.json's content, or empty.
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
    """Whether a checkpoint is an adapter, and not a model that has low-rank matrices among others.

    `config` is adapter_config.json's content, or empty.
    """
    if adapter(header, config) is None:
        return False
    return bool(config) or all("lora" in name.lower() for name in header.tensors)


def _rank(header: Header, name: str) -> int:
    """Return the rank of a pair by the name of its second matrix, 0 for any other name."""
    for second, first, axis in _PAIRS:
        head, found, tail = name.rpartition(second)
        partner = header.tensors.get(head + first + tail) if found else None
        if partner is None:
            continue
        shape = header.tensors[name].shape
        # llama.cpp has [out, r], and so has MLX for experts, which stand in one tensor.
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
