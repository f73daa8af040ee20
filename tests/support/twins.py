"""An encoding's codecs: its definition in NumPy, and the kernel of each instruction set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.codecs import definition
from weightctl.codecs.compiled import CompiledCodec
from weightctl.dtype import ENCODINGS
from weightctl.kernels import active, kernel, levels

if TYPE_CHECKING:
    from weightctl.codecs.base import Codec


def twins(encoding: str) -> list[tuple[str, Codec]]:
    """Return every codec of an encoding that can run here, with its name; NumPy's is first."""
    plain = definition(ENCODINGS[encoding])
    found: list[tuple[str, Codec]] = [("NumPy", plain)]
    if active() is None:
        return found
    for level, name in enumerate(levels()):
        compiled = kernel(encoding, level)
        if compiled is not None:
            found.append((name, CompiledCodec(plain, compiled)))
    return found
