"""The compiled twins of codecs: C, for the best instruction set that this processor has.

They are optional: where no C compiler was found at install, NumPy serves. The environment variable
`WEIGHTCTL_KERNELS` switches them `off`, or to an instruction set of less (`x86-64-v2`).
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from weightctl.kernels._native import Memory

__all__ = [
    "Kernel",
    "KernelResult",
    "Transcoder",
    "active",
    "kernel",
    "levels",
    "transcoder",
    "unknown_level",
]

_OFF = "off"


class Kernel(NamedTuple):
    """What encodes or decodes one encoding at one level: an index into `levels`."""

    level: int
    name: str
    encodes: bool
    encodes_weighted: bool
    decodes: bool

    def encode(self, rows: Memory, columns: int, importance: Memory | None, out: Memory) -> None:
        """Fill `out` with the blocks of rows of `columns` float32; all are contiguous."""
        from weightctl.kernels import _native

        _native.encode(self.level, self.name, rows, columns, importance, out)

    def decode(self, blocks: Memory, out: Memory) -> None:
        """Fill `out` with the float32 that blocks hold; both are contiguous."""
        from weightctl.kernels import _native

        _native.decode(self.level, self.name, blocks, out)


class KernelResult(NamedTuple):
    """What became of numbers that were transcoded, as in `codecs.Loss`.

    `refused` is the index of a `number` that blocks cannot hold, -1 where there is none: the first
    that is not finite, or the greatest of those that overflowed a scale.
    """

    refused: int
    number: float
    overflows: int
    underflows: int
    nonfinite: int
    squares: float
    squared_error: float


class Transcoder(NamedTuple):
    """What turns rows of one encoding into rows of another at one level, in one pass."""

    level: int
    source: str
    target: str

    def transcode(
        self,
        raw: Memory,
        columns: int,
        importance: Memory | None,
        out: Memory,
        *,
        counts: bool,
        measures: bool,
        zero_nonfinite: bool,
    ) -> KernelResult:
        """Fill `out` with rows of `columns` numbers; all are contiguous, and do not overlap.

        Overflows of plain numbers are counted with `counts`, all else with `measures`. Where a
        number is refused `out` and the rest of the outcome mean nothing.
        """
        from weightctl.kernels import _native

        names = self.level, self.source, self.target
        how = counts, measures, zero_nonfinite
        return KernelResult(*_native.transcode(*names, raw, columns, importance, out, *how))


@cache
def levels() -> tuple[str, ...]:
    """Return the instruction sets that this processor has kernels for, the best last."""
    try:
        from weightctl.kernels import _native
    except ImportError:
        return ()
    return _native.levels()


def active() -> str | None:
    """Return the instruction set whose kernels serve, None if NumPy does."""
    level = _choose_level()
    return None if level is None else levels()[level]


def unknown_level() -> str:
    """Return the value of `WEIGHTCTL_KERNELS` if it is not an instruction set with kernels."""
    wanted = _read_wanted_level()
    return "" if wanted in {"", _OFF, *levels()} else wanted


def _read_wanted_level() -> str:
    return os.environ.get("WEIGHTCTL_KERNELS", "").strip().lower()


@cache
def _choose_level() -> int | None:
    found = levels()
    wanted = _read_wanted_level()
    if not found or wanted == _OFF:
        return None
    return found.index(wanted) if wanted in found else len(found) - 1


@cache
def kernel(name: str, level: int | None = None) -> Kernel | None:
    """Return the kernel of an encoding, of the active level unless another is asked for."""
    if level is None:
        level = _choose_level()
    if level is None:
        return None
    from weightctl.kernels import _native

    abilities = _native.kernels(level).get(name)
    return None if abilities is None else Kernel(level, name, *abilities)


@cache
def transcoder(
    source: str, target: str, *, weighted: bool = False, level: int | None = None
) -> Transcoder | None:
    """Return what turns one encoding into another, `weighted` by importance; None without kernels.

    Its level is the active one unless another is asked for.
    """
    before, after = kernel(source, level), kernel(target, level)
    if before is None or after is None or not (before.decodes and after.decodes):
        return None
    if not (after.encodes_weighted if weighted else after.encodes):
        return None
    return Transcoder(before.level, source, target)
