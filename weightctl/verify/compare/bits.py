"""How many bits a checkpoint spends on each number of a tensor, however it stores them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.weights.derived import Tensor
    from weightctl.weights.info import Header, TensorInfo

__all__ = ["bits_of"]


def bits_of(header: Header) -> Callable[[Tensor], float]:
    """Return what tells the bits per number of a tensor of this header, or made of one.

    A weight that is stored in parts, of which scales are some, is counted with all of them.
    """
    apart: dict[tuple[TensorInfo, ...], float] = {
        origin.sources: sum(source.nbytes for source in origin.sources) * 8 / info.size
        for name, origin in header.origins.items()
        if (info := header.tensors.get(name)) is not None and info.size and origin.sources
    }

    def bits(tensor: Tensor) -> float:
        sources = tensor.origin.sources
        encoding = sources[0].encoding if sources else tensor.info.encoding
        return apart.get(sources, encoding.size * 8 / encoding.block)

    return bits
