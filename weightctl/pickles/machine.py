"""Reads a pickle into records: it imports nothing, and calls nothing that a pickle names.

What one names is looked up in a closed list of constructors, which make records; everything else
stays a name.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812  # it is a class
from typing import TYPE_CHECKING, Any

from weightctl.errors import WeightctlError
from weightctl.pickles.literals import MODULES
from weightctl.pickles.opcodes import OPCODES, STOP
from weightctl.pickles.records import Global

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Machine", "UnsoundPickleError", "load"]

_UNSOUND = (
    ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
    StructError,
)  # fmt: skip
_LONGEST_NAME = 512
_LONGEST_MESSAGE = 300
_WINDOW = 1 << 16


_LONG_BINPUT, _BINGET, _BININT1, _BININT2, _MARK = b"rhKM("
# The bytes behind those opcodes.
_ARGUMENTS = {_LONG_BINPUT: 4, _BINGET: 1, _BININT1: 1, _BININT2: 2}
_UINT, _USHORT = Struct("<I").unpack_from, Struct("<H").unpack_from


class UnsoundPickleError(ValueError):
    """A pickle is not sound; `offset` is where, `is_cut` whether it ends before its end."""

    def __init__(self, offset: int, message: str, *, is_cut: bool = False) -> None:
        # What a pickle says of itself may be as long as it likes.
        is_long = len(message) > _LONGEST_MESSAGE
        super().__init__(f"{message[:_LONGEST_MESSAGE]}..." if is_long else message)
        self.offset = offset
        self.is_cut = is_cut


def load(
    data: memoryview,
    start: int,
    constructors: Mapping[str, Callable[..., Any] | None],
    persistent: Callable[[Any], Any],
) -> tuple[Any, int]:
    """Return the record of the pickle at `start`, and where it ends.

    `persistent` says what stands behind a persistent id. Raises `UnsoundPickleError`, and the
    errors of weightctl that `persistent` raises.
    """
    machine = Machine(data, start, constructors, persistent)
    opcodes, stack, memo, marks = OPCODES, machine.stack, machine.memo, machine.marks
    at, opcode = start, 0
    try:
        while (opcode := data[at]) != STOP:
            # Two thirds of what torch writes are these five; the table has them too.
            if opcode == _LONG_BINPUT:
                memo[_UINT(data, at + 1)[0]] = stack[-1]
                at += 5
            elif opcode == _BINGET:
                stack.append(memo[data[at + 1]])
                at += 2
            elif opcode == _BININT1:
                stack.append(data[at + 1])
                at += 2
            elif opcode == _BININT2:
                stack.append(_USHORT(data, at + 1)[0])
                at += 3
            elif opcode == _MARK:
                marks.append(len(stack))
                at += 1
            else:
                machine.at = at + 1
                opcodes[opcode](machine)
                at = machine.at
        return stack[-1], at + 1
    except WeightctlError:
        raise  # of what stands behind a persistent id
    except _UNSOUND as error:
        is_cut = max(machine.at, at + _ARGUMENTS.get(opcode, 0)) >= len(data)
        reason = "it ends in the middle" if is_cut else _reason(error)
        raise UnsoundPickleError(max(at, machine.framed_at), reason, is_cut=is_cut) from error


def _reason(error: Exception) -> str:
    if isinstance(error, LookupError):
        return "an opcode that there is not, or that finds nothing where it should"
    return str(error) or type(error).__name__


class Machine:
    """The state of a pickle that is being read: its stack, its memo, and where it is."""

    __slots__ = (
        "_constructors",
        "_is_framed",
        "_named",
        "at",
        "data",
        "framed_at",
        "marks",
        "memo",
        "persistent",
        "stack",
    )

    def __init__(
        self,
        data: memoryview,
        start: int,
        constructors: Mapping[str, Callable[..., Any] | None],
        persistent: Callable[[Any], Any],
    ) -> None:
        self.data = data
        self.at = start
        # Where the last opcode of a frame was.
        self.framed_at = start
        self._is_framed = False
        self.persistent = persistent
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self._constructors = constructors
        self._named: dict[tuple[str, str], Global] = {}

    def run_frame(self, length: int) -> None:
        """Carry out the opcodes of a frame, up to its end or that of the pickle.

        Python drops what is left of a frame that an opcode crosses, and reads on elsewhere than
        other readers do; so that is a `ValueError`, as is a frame in another or past the end.
        """
        if self._is_framed or length > len(self.data) - self.at:
            raise ValueError("a frame that is not where it should be")
        self._is_framed = True
        end, opcodes, data = self.at + length, OPCODES, self.data
        while self.at < end and (opcode := data[self.at]) != STOP:
            self.framed_at = self.at
            self.at += 1
            opcodes[opcode](self)
        if self.at > end:
            raise ValueError("an opcode that is not within its frame")
        self._is_framed = False

    def byte(self) -> int:
        """Return the next byte."""
        at = self.at
        self.at = at + 1
        return self.data[at]

    def number(self, kind: Struct) -> Any:
        """Return the next number of a kind; `ValueError` where the pickle ends before."""
        at = self.at
        end = self.at = at + kind.size
        if end > len(self.data):
            raise ValueError("it ends in the middle")
        return kind.unpack_from(self.data, at)[0]

    def take(self, length: int) -> memoryview:
        """Return the next bytes; `ValueError` where there are not as many."""
        at = self.at
        if length < 0:
            raise ValueError("a length below zero")
        if length > len(self.data) - at:
            self.at = len(self.data)
            raise ValueError("it ends in the middle")
        self.at = at + length
        return self.data[at : at + length]

    def line(self) -> bytes:
        """Return the bytes up to the next line feed."""
        start, window = self.at, 256
        while True:
            piece = bytes(self.data[self.at : self.at + window])
            end = piece.find(b"\n")
            if end >= 0:
                end += self.at
                self.at = end + 1
                return bytes(self.data[start:end])
            self.at += len(piece)
            if len(piece) < window:
                raise ValueError("it ends in the middle")
            # Never more at once: a line that does not end may be all of a large file.
            window = _WINDOW

    def since_mark(self) -> list[Any]:
        """Take what was pushed since the last mark."""
        start = self.marks.pop()
        taken = self.stack[start:]
        del self.stack[start:]
        return taken

    def named(self, module: str, name: str) -> Global:
        """Return the record of a global; `ValueError` for a name longer than any."""
        key = (module, name)
        found = self._named.get(key)
        if found is None:
            # A pickle may put a long one before each of many others, and name that often.
            if len(module) > _LONGEST_NAME or len(name) > _LONGEST_NAME:
                raise ValueError(f"a name of more than {_LONGEST_NAME} letters")
            module = MODULES.get(module, module)
            make = self._constructors.get(f"{module}.{name}")
            found = self._named[key] = Global(module, name, make)
        return found
