"""ExLlamaV3: tiles of 16 x 16 elements; a tile of K-bit codes takes 16 * K words of I16."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.schemes.naming import LogicalWeight, NameEndings
from weightctl.schemes.scheme import Scheme

if TYPE_CHECKING:
    from weightctl.schemes.naming import Candidate


def _infer(candidate: Candidate) -> LogicalWeight | None:
    if len(candidate.numbers.shape) != 3:
        return None
    inputs, outputs, words = candidate.numbers.shape
    if candidate.scales.shape != (16 * inputs,) or words not in range(8, 129, 8):
        return None
    # Bit widths such as 2.5 are possible.
    return LogicalWeight((16 * outputs, 16 * inputs), element=f"{words / 16:g}-bit")


SCHEME = Scheme(
    label="EXL3 {element}",
    names=(NameEndings(".suh", ".trellis", ".weight", ("I16",), (".svh", ".mcg", ".mul1")),),
    infer=_infer,
)
