"""Which globals a pickle names: its opcodes are read one after another, and nothing is built."""

from __future__ import annotations

import pickletools
from typing import TYPE_CHECKING, NamedTuple

from weightctl.pickles.literals import MODULES, quoted
from weightctl.weights.byte_range import HeldRange

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.weights.byte_range import ByteRange

__all__ = ["MADE_UP", "Named", "Names", "names"]

# What stands for a name that is not written where it is used.
MADE_UP = "a name that is put together while it loads"
_INFO = {ord(info.code): info for info in pickletools.opcodes}
# How many bytes say how long an argument is; `pickletools` has a number for each way.
_LENGTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_LONGEST = 1 << 16
_LONGEST_NAME = 512


class Named(NamedTuple):
    """A global, as `os.system`, and the byte of the opcode that names it first."""

    path: str
    offset: int


class Names(NamedTuple):
    """What a pickle names, where it ends, and what keeps it from being read to its end."""

    named: tuple[Named, ...]
    end: int
    problem: str = ""


def names(data: ByteRange | memoryview, start: int = 0) -> Names:
    """Return the globals that the pickle at `start` names, each once, in their order."""
    scanner = _Scanner(HeldRange(data) if isinstance(data, memoryview) else data, start)
    try:
        scanner.run()
    except (ValueError, LookupError) as error:
        scanner.problem = f"it cannot be read from byte {scanner.at} on: {error}"
    return Names(
        tuple(Named(path, offset) for path, offset in scanner.found.items()),
        scanner.at,
        scanner.problem,
    )


class _Scanner:
    """Reads opcodes; of what they push it remembers only texts, which may become names."""

    def __init__(self, data: ByteRange, start: int) -> None:
        self.found: dict[str, int] = {}
        self.problem = ""
        self.at = start
        self._frame: int | None = None
        self._data = data
        self._pushed: list[str | None] = []
        self._memo: dict[int, str | None] = {}

    def run(self) -> None:
        """Read up to the end of the pickle."""
        while True:
            start = self.at
            if start >= len(self._data):
                raise ValueError("it ends in the middle")
            opcode = self._data.read(start, 1)[0]
            info = _INFO.get(opcode)
            if info is None:
                raise ValueError(f"there is no opcode {opcode:#04x}")
            # The place is kept at an opcode that cannot be read.
            argument, end = self._argument(info, start + 1)
            self._follow(info.name, argument, start)
            self.at = end
            if info.name == "STOP":
                return
            self._keep_to_frames(info.name, argument)

    def _keep_to_frames(self, name: str, argument: bytes) -> None:
        """Refuse what Python reads in another way than anybody else: see `Machine.end_frame`."""
        if name == "FRAME":
            length = int.from_bytes(argument, "little")
            if self._frame is not None or length > len(self._data) - self.at:
                raise ValueError("a frame that is not where it should be")
            self._frame = self.at + length
        if self._frame is not None and self.at >= self._frame:
            if self.at > self._frame:
                raise ValueError("an opcode that is not within its frame")
            self._frame = None

    def _argument(self, info: pickletools.OpcodeInfo, at: int) -> tuple[bytes, int]:
        """Return an opcode's argument, of a long one the beginning, and where it ends."""
        if info.arg is None:
            return b"", at
        length = info.arg.n
        if length == pickletools.UP_TO_NEWLINE:
            lines = 2 if info.name in {"GLOBAL", "INST"} else 1
            end = at
            for _ in range(lines):
                end = self._line_end(end)
            return self._data.read(at, min(end - at, _LONGEST)), end
        if length in _LENGTHS:
            width = _LENGTHS[length]
            length = int.from_bytes(self._data.read(at, width), "little")
            at += width
        if at + length > len(self._data):
            raise ValueError("it ends in the middle")
        return self._data.read(at, min(length, _LONGEST)), at + length

    def _line_end(self, at: int) -> int:
        window = 256
        while True:
            piece = self._data.read(at, window)
            found = piece.find(b"\n")
            if found >= 0:
                return at + found + 1
            if len(piece) < window:
                raise ValueError("it ends in the middle")
            at += window
            window *= 2

    def _follow(self, name: str, argument: bytes, start: int) -> None:
        if name in {"GLOBAL", "INST"}:
            module, _, rest = argument.decode().partition("\n")
            self._name(module, rest.removesuffix("\n"), start)
        elif name == "STACK_GLOBAL":
            texts = [text for text in self._pushed if text is not None]
            if len(texts) == 2:
                self._name(texts[0], texts[1], start)
            else:
                self.found.setdefault(MADE_UP, start)
        elif name in {"EXT1", "EXT2", "EXT4"}:
            self._name("copyreg", f"extension {int.from_bytes(argument, 'little')}", start)
        if name in _TRANSPARENT:
            return
        if name in _PUTS:
            index = len(self._memo) if name == "MEMOIZE" else _index(name, argument)
            self._memo[index] = self._pushed[-1] if self._pushed else None
        elif name in _GETS:
            self._push(self._memo.get(_index(name, argument)))
        elif name in _TEXTS:
            self._push(_TEXTS[name](argument))
        else:
            # Whatever it does, what comes next is not what was pushed before.
            self._pushed.clear()

    def _push(self, text: str | None) -> None:
        self._pushed = [*self._pushed[-1:], text]

    def _name(self, module: str, name: str, start: int) -> None:
        module = MODULES.get(module, module)
        # One long text may stand before each of many others.
        path = f"{module[:_LONGEST_NAME]}.{name[:_LONGEST_NAME]}"
        self.found.setdefault(path, start)


def _index(name: str, argument: bytes) -> int:
    return int(argument) if name in {"PUT", "GET"} else int.from_bytes(argument, "little")


_TRANSPARENT = {"PROTO", "FRAME"}
_PUTS = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
_GETS = {"GET", "BINGET", "LONG_BINGET"}
_TEXTS: dict[str, Callable[[bytes], str]] = {
    **{
        name: lambda raw: raw.decode("utf-8", "replace")
        for name in ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8")
    },
    "UNICODE": lambda raw: raw.removesuffix(b"\n").decode("raw-unicode-escape", "replace"),
    # Of a longer one the end is not there, and it is no name.
    "STRING": lambda raw: quoted(raw) if len(raw) < _LONGEST else MADE_UP,
    "BINSTRING": lambda raw: raw.decode("latin-1"),
    "SHORT_BINSTRING": lambda raw: raw.decode("latin-1"),
}
