"""Finding the globals that a pickle names: its opcodes are followed, and no object is created.

A pickle is read as CPython's unpicklers in C and in Python read it: everything that either accepts
is accepted. Where they differ, all ways are followed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.formats.pickles.effects import EFFECTS, MADE_UP, STOP
from weightctl.formats.pickles.memory import (
    LARGEST_STACK,
    UNKNOWN,
    LimitError,
    State,
    array_nbytes,
    is_padded,
)
from weightctl.formats.pickles.window import Readable, Window

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MADE_UP", "Named", "PickleNames", "Reading", "names"]

_FRAMES = "its frames overlap or split opcodes, and programs read them in different ways"
_ARRAYS = "the number of bytes of a joblib array cannot be computed"
_MOST_NESTED = 4
# The lengths of frequent opcodes with their arguments: those that push an integer (here unsigned),
# those that push an unknown object, and those of the memo. For texts, the argument is their length.
_MEMOIZE, _MARK = b"\x94("
_INTEGERS = {ord("K"): 2, ord("M"): 3, ord("J"): 5}
_OBJECTS = {ord("G"): 9, ord("]"): 1}
_PUTS = {ord("q"): 2, ord("r"): 5}
_GETS = {ord("h"): 2, ord("j"): 5}
_TEXTS = {0x8C: 2, ord("X"): 5}
_LONGEST_FREQUENT_TEXT = 255
_LONGEST_FREQUENT = 5 + _LONGEST_FREQUENT_TEXT


class Named(NamedTuple):
    """A global, such as `os.system`, and the byte offset of the opcode that first names it."""

    path: str
    offset: int


class PickleNames(NamedTuple):
    """The globals that a pickle names, its end, and the problem that prevents reading all of it.

    `acts` is true if opcodes that call, build or store objects follow a global. `result` is the
    final object and `identities` are the persistent ids, as far as `memory` stores them. `crosses`
    is true if programs read its frames in different ways.
    """

    named: tuple[Named, ...]
    end: int
    problem: str = ""
    acts: bool = False
    result: Any = UNKNOWN
    identities: Mapping[Any, None] = {}
    crosses: bool = False


class Reading:
    """A limit on the number of opcodes: `left` is how many more can be read."""

    __slots__ = ("left",)

    def __init__(self, left: float) -> None:
        self.left = left


def names(
    data: Readable, start: int = 0, base: int = 0, reading: Reading | None = None
) -> PickleNames:
    """Return the globals that the pickle at `start` names, each once, in order.

    `base` is added to the offsets. Raises `LimitError` if the limit of `reading` is exceeded.
    """
    limit = reading or Reading(float("inf"))
    scanner = _Scanner(data, start, base, limit)
    scanner.run()
    scanners = [scanner]
    problem = scanner.problem
    if scanner.window.crossed:
        problem = problem or _FRAMES
        scanners.append(_Scanner(data, start, base, limit, drops=True))
    if scanner.has_arrays:
        # A program without joblib reads the bytes of the first array as opcodes.
        scanners.append(_Scanner(data, start, base, limit, skips=False))
    found: dict[str, int] = {}
    for each in scanners:
        if each is not scanner:
            each.run()
        found = {**found, **each.state.found, **found}
    state = scanner.state
    return PickleNames(
        tuple(Named(path, base + offset) for path, offset in found.items()),
        scanner.window.at,
        problem,
        any(each.state.acts for each in scanners),
        state.result,
        state.identities,
        # The C unpickler stops at an incomplete frame, and the Python unpickler at overlapping
        # frames.
        scanner.window.crossed and not scanner.window.is_short,
    )


class _Scanner:
    """A reader of the opcodes of a pickle in one of several ways.

    `drops` is as in `Window`; with `skips`, the bytes of joblib's arrays are skipped.
    """

    def __init__(
        self, data: Readable, start: int, base: int, reading: Reading, *,
        drops: bool = False, skips: bool = True, depth: int = 0,
    ) -> None:  # fmt: skip
        self.window = Window(data, start, drops=drops)
        self.state = State()
        self.problem = ""
        self.has_arrays = False
        self._data, self._base, self._reading = data, base, reading
        self._skips, self._depth = skips, depth

    def run(self) -> None:
        """Read to the end of the pickle, or to a position where all unpicklers stop."""
        start = self.window.at
        try:
            while True:
                self._hurry()
                start = self.window.at
                if self._step(start):
                    break
        except (ValueError, LookupError) as error:
            # The position stays at the opcode that cannot be read.
            self.window.at = start
            self.problem = f"it cannot be read from byte {self._base + start}: {error}"
        self.problem = self.problem or self.state.problem

    def _hurry(self) -> None:  # noqa: C901, PLR0912, PLR0915  # inlined, because calls cost more than opcodes
        """Follow opcodes up to one that is not frequent; the table has all opcodes."""
        state, window = self.state, self.window
        buffer, place, end = window.ahead()
        first, last = place, end - _LONGEST_FREQUENT
        stack, marks = state.stack, state.marks
        memoize, put, get = state.memo.memoize, state.memo.put, state.memo.get
        fence = marks[-1] if marks else 0
        while place < last:
            opcode = buffer[place]
            if opcode == _MEMOIZE:
                if len(stack) <= fence:
                    break
                memoize(stack[-1])
                place += 1
            elif opcode in _INTEGERS:
                following = place + _INTEGERS[opcode]
                stack.append(int.from_bytes(buffer[place + 1 : following], "little"))
                place = following
            elif opcode in _OBJECTS:
                stack.append(UNKNOWN)
                place += _OBJECTS[opcode]
            elif opcode in _TEXTS:
                text = place + _TEXTS[opcode]
                length = int.from_bytes(buffer[place + 1 : text], "little")
                if length > _LONGEST_FREQUENT_TEXT:
                    break
                following = text + length
                try:
                    stack.append(str(buffer[text:following], "utf-8", "surrogatepass"))
                except UnicodeDecodeError:
                    break
                place = following
            elif opcode == _MARK:
                fence = len(stack)
                marks.append(fence)
                place += 1
            elif opcode in _PUTS:
                if len(stack) <= fence:
                    break
                following = place + _PUTS[opcode]
                put(int.from_bytes(buffer[place + 1 : following], "little"), stack[-1])
                place = following
            elif opcode in _GETS:
                following = place + _GETS[opcode]
                stack.append(get(int.from_bytes(buffer[place + 1 : following], "little")))
                place = following
            else:
                break
        if max(len(stack), len(marks)) > LARGEST_STACK:
            raise LimitError(f"it has more than {LARGEST_STACK} objects on its stack")
        self._reading.left -= place - first
        window.at += place - first

    def _step(self, start: int) -> bool:
        """Follow an opcode; return whether it is the last one."""
        self._reading.left -= 1
        if self._reading.left < 0:
            raise LimitError("it has more opcodes than the limit")
        state, window = self.state, self.window
        opcode = window.byte()
        effect = EFFECTS[opcode]
        if effect is None:
            raise ValueError(f"opcode {opcode:#04x} does not exist")
        effect(state, window, start)
        if opcode == STOP:
            return True
        if state.array is not None:
            self.has_arrays = True
            wrapper, state.array = state.array, None
            if self._skips:
                self._skip(wrapper)
        return False

    def _skip(self, wrapper: Any) -> None:
        """Skip the bytes that joblib writes after a wrapper."""
        nbytes, padded = array_nbytes(wrapper), is_padded(wrapper)
        if nbytes is None or (nbytes >= 0 and padded is None):
            raise ValueError(_ARRAYS)
        if nbytes >= 0:
            self.window.take(self.window.byte() if padded else 0)
            self.window.take(nbytes)
            return
        if self._depth == _MOST_NESTED:
            raise ValueError("it contains pickles that are nested too deeply")
        inner = _Scanner(
            self._data, self.window.at, self._base, self._reading, depth=self._depth + 1
        )
        inner.run()
        for path, offset in inner.state.found.items():
            self.state.found.setdefault(path, offset)
        self.window.at = inner.window.at
        if inner.problem:
            raise ValueError(inner.problem)
