"""Reading of a pickle into records: no global that it names is imported or called.

Globals are looked up in a closed list of constructors, which create records. Other globals stay
names.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812  # it is a class
from typing import TYPE_CHECKING, Any

from weightctl.errors import WeightctlError
from weightctl.formats.pickles.literals import MODULES
from weightctl.formats.pickles.opcodes import OPCODES, STOP
from weightctl.formats.pickles.records import Blob, Global
from weightctl.storage.base import HeldRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from weightctl.storage.base import ByteRange

_UNSOUND = (
    ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
    StructError,
)  # fmt: skip
_LONGEST_NAME = 512
_LONGEST_MESSAGE = 300
_WINDOW = 1 << 16
# The size of the first read, also after skipped bytes, and the limit up to which reads grow.
_FIRST_READ, _LARGEST_READ = 1 << 12, 1 << 18
# The longest opcode, with the part of its argument that is not read by `take` or `line`.
_LONGEST_OPCODE = 16


_LONG_BINPUT, _BINGET, _BININT1, _BININT2, _MARK, _FRAME = b"rhKM(\x95"
# The number of bytes that follow these opcodes.
_ARGUMENTS = {_LONG_BINPUT: 4, _BINGET: 1, _BININT1: 1, _BININT2: 2}
_UINT, _USHORT = Struct("<I").unpack_from, Struct("<H").unpack_from


class UnsoundPickleError(ValueError):
    """A pickle is invalid at byte `offset`; `is_cut` if it is incomplete."""

    def __init__(self, offset: int, message: str, *, is_cut: bool = False) -> None:
        # Texts of a pickle, which the message quotes, can have any length.
        is_long = len(message) > _LONGEST_MESSAGE
        super().__init__(f"{message[:_LONGEST_MESSAGE]}..." if is_long else message)
        self.offset = offset
        self.is_cut = is_cut


def load(
    data: ByteRange | memoryview,
    start: int,
    constructors: Mapping[str, Callable[..., Any] | None],
    persistent: Callable[[Any], Any],
    seen: dict[str, None] | None = None,
) -> tuple[Any, int]:
    """Return the record of the pickle at `start`, and the offset of its end.

    `persistent` returns the object of a persistent id. The paths of the globals that the pickle
    names are added to `seen`. Only the parsed bytes of a file are read, one window at a time.
    Raises `UnsoundPickleError` if the pickle is invalid, and the errors of weightctl that
    `persistent` and reading raise.
    """
    machine = Machine(data, start, constructors, persistent)
    try:
        while not _run(machine):
            pass
        if seen is not None:
            seen.update(dict.fromkeys(machine.paths()))
        return machine.stack[-1], machine.base + machine.begun + 1
    except WeightctlError:
        raise  # raised by `persistent`, or because the file has changed
    except _UNSOUND as error:
        is_cut = machine.base + max(machine.begun, machine.reached) >= machine.size
        reason = "the pickle is incomplete" if is_cut else _reason(error)
        raise UnsoundPickleError(machine.base + machine.begun, reason, is_cut=is_cut) from error


def _run(machine: Machine) -> bool:
    """Execute the opcodes of the next window; return whether STOP was reached."""
    at, opcode = machine.advance(), 0
    opcodes, stack, memo, marks = OPCODES, machine.stack, machine.memo, machine.marks
    data, window = machine.data, machine.opcodes
    try:
        while (opcode := window[at]) != STOP:
            # Two thirds of the opcodes that torch writes are these five; the table has them too.
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
                if opcode == _FRAME:
                    return False
    except IndexError:
        if at < len(window):
            raise
        opcode = 0
        return False
    finally:
        machine.begun, machine.reached = at, max(machine.at, at + _ARGUMENTS.get(opcode, 0))
    return True


def _reason(error: Exception) -> str:
    if isinstance(error, LookupError):
        return "an opcode that is invalid, or whose operands are missing"
    return str(error) or type(error).__name__


class Machine:
    """The state of a pickle that is being read: its stack, its memo, and the current position.

    `data` is a window of the bytes, which starts at `base`; other positions are relative to it.
    `opcodes` is the part of the window in which opcodes can begin: the rest is for their arguments.
    `at` is where an opcode reads its argument, `begun` where the last opcode begins or the next one
    will begin, and `reached` the end of the bytes that the last one needed.
    """

    __slots__ = (
        "_constructors",
        "_frame_end",
        "_named",
        "_reads",
        "_source",
        "_unframed",
        "at",
        "base",
        "begun",
        "data",
        "marks",
        "memo",
        "opcodes",
        "persistent",
        "reached",
        "size",
        "stack",
    )

    def __init__(
        self,
        data: ByteRange | memoryview,
        start: int,
        constructors: Mapping[str, Callable[..., Any] | None],
        persistent: Callable[[Any], Any],
    ) -> None:
        self._source = HeldRange(data) if isinstance(data, memoryview) else data
        self._reads = _FIRST_READ
        self._frame_end: int | None = None
        self.size = len(self._source)
        self.data = self._unframed = b""
        self.opcodes: bytes | memoryview = b""
        self.base = start
        self.at = self.begun = self.reached = 0
        self.persistent = persistent
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self._constructors = constructors
        self._named: dict[tuple[str, str], Global] = {}

    def advance(self) -> int:
        """Move the window to the next opcode if necessary; return its index in the window.

        Raises `ValueError` if the pickle ends there, and if an opcode crosses the end of its frame:
        Python drops the rest of such a frame, and other readers do not.
        """
        at = self.begun
        if self._frame_end is not None and self.base + at >= self._frame_end:
            if self.base + at > self._frame_end:
                raise ValueError("an opcode extends past the end of its frame")
            self._frame_end = None
        if self.base + at >= self.size:
            raise ValueError("the pickle is incomplete")
        if self._room() <= at:
            is_next = at <= len(self.data)
            self._reads = min(2 * self._reads, _LARGEST_READ) if is_next else _FIRST_READ
            self.data = self._source.read(self.base + at, self._reads)
            self.base += at
            self.at = self.begun = self.reached = at = 0
            self._unframed = self.data[: self._room()]
        self.opcodes = self._unframed
        if self._frame_end is not None:
            # A view, because every opcode can have its own frame, and copies would be slow.
            self.opcodes = memoryview(self._unframed)[: self._frame_end - self.base]
        return at

    def _room(self) -> int:
        """Return the length of the part of the window in which opcodes can begin."""
        is_last = self.base + len(self.data) >= self.size
        return len(self.data) - (0 if is_last else _LONGEST_OPCODE)

    def begin_frame(self, length: int) -> None:
        """Begin a frame of this many bytes.

        Raises `ValueError` within another frame, or if the frame extends past the end of the file.
        """
        if self._frame_end is not None or length > self.size - self.base - self.at:
            raise ValueError("a frame is inside another frame, or extends past the end of the file")
        self._frame_end = self.base + self.at + length

    def byte(self) -> int:
        """Return the next byte."""
        at = self.at
        self.at = at + 1
        return self.data[at]

    def number(self, kind: Struct) -> Any:
        """Return the next number of a type; raises `ValueError` if the pickle is too short."""
        at = self.at
        end = self.at = at + kind.size
        if self.base + end > self.size:
            raise ValueError("the pickle is incomplete")
        return kind.unpack_from(self.data, at)[0]

    def take(self, length: int) -> bytes:
        """Return the next `length` bytes; raises `ValueError` if the pickle has fewer."""
        start = self.at
        end = self._skip(length)
        if end <= len(self.data):
            return self.data[start:end]
        return self._source.read(self.base + start, length)

    def blob(self, length: int) -> Blob:
        """Return the range of the next `length` bytes without reading them; raises like `take`."""
        start = self.base + self.at
        return Blob(start, self.base + self._skip(length))

    def _skip(self, length: int) -> int:
        if length < 0:
            raise ValueError("a length is negative")
        end = self.at + length
        if self.base + end > self.size:
            self.at = self.size - self.base
            raise ValueError("the pickle is incomplete")
        self.at = end
        return end

    def line(self) -> bytes:
        """Return the bytes up to the next line feed."""
        found = self.data.find(b"\n", self.at)
        if found >= 0:
            line = self.data[self.at : found]
            self.at = found + 1
            return line
        # Windows are limited, because a line without an end can be all of a large file.
        start = end = self.base + self.at
        while (found := (piece := self._source.read(end, _WINDOW)).find(b"\n")) < 0:
            end += len(piece)
            if not piece:
                self.at = end - self.base
                raise ValueError("the pickle is incomplete")
        end += found
        self.at = end + 1 - self.base
        return self._source.read(start, end - start)

    def since_mark(self) -> list[Any]:
        """Pop the objects above the last mark, and the mark."""
        start = self.marks.pop()
        taken = self.stack[start:]
        del self.stack[start:]
        return taken

    def paths(self) -> Iterator[str]:
        """Yield the paths of the globals that were named."""
        return (each.path for each in self._named.values())

    def find_global(self, module: str, name: str) -> Global:
        """Return the record of a global; raises `ValueError` if its name is too long."""
        key = (module, name)
        found = self._named.get(key)
        if found is None:
            # A pickle can combine one long module name with many names, and refer to each many
            # times.
            if len(module) > _LONGEST_NAME or len(name) > _LONGEST_NAME:
                raise ValueError(
                    f"the module or name of a global has more than {_LONGEST_NAME} characters"
                )
            module = MODULES.get(module, module)
            make = self._constructors.get(f"{module}.{name}")
            found = self._named[key] = Global(module, name, make)
        return found
