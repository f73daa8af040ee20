"""Reading of a pickle into records: no global that it names is imported or called.

Globals are looked up in a closed list of constructors, which create records. Other globals stay
names.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812  # it is a class
from typing import TYPE_CHECKING, Any, TypeAlias

from weightctl.errors import WeightctlError
from weightctl.formats.pickles.literals import MODULES, integer, parse_quoted
from weightctl.formats.pickles.records import Blob, Built, Global, Pairs, PickledCall, record_call
from weightctl.storage.base import HeldRange
from weightctl.text.untyped import is_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from weightctl.storage.base import ByteRange

Opcode: TypeAlias = "Callable[[Machine], None]"

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
STOP = 0x2E
_INT, _UINT, _USHORT, _ULONG, _DOUBLE = map(Struct, ("<i", "<I", "<H", "<Q", ">d"))
# The longest string of Python 2 that is read as text. Longer ones are data: in Python 2, strings
# are bytes.
_LONGEST_TEXT = 256
_read_uint, _read_ushort = _UINT.unpack_from, _USHORT.unpack_from


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
                memo[_read_uint(data, at + 1)[0]] = stack[-1]
                at += 5
            elif opcode == _BINGET:
                stack.append(memo[data[at + 1]])
                at += 2
            elif opcode == _BININT1:
                stack.append(data[at + 1])
                at += 2
            elif opcode == _BININT2:
                stack.append(_read_ushort(data, at + 1)[0])
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


# The effect of each opcode on the machine: each has a function and a line in `OPCODES`.
# Source: CPython's `pickletools.py`, protocols 0 to 5.


def _constant(value: Any) -> Opcode:
    """Return the effect of an opcode that pushes a constant."""

    def run(machine: Machine) -> None:
        machine.stack.append(value)

    return run


def _number(kind: Struct) -> Opcode:
    """Return the effect of an opcode that pushes a number."""

    def run(machine: Machine) -> None:
        machine.stack.append(machine.number(kind))

    return run


def _pass_number(use: Callable[[Machine, int], None], kind: Struct | None = None) -> Opcode:
    """Return the effect of an opcode whose argument begins with a number, by default a byte."""
    if kind is None:
        return lambda machine: use(machine, machine.byte())
    return lambda machine: use(machine, machine.number(kind))


def _mark(machine: Machine) -> None:
    machine.marks.append(len(machine.stack))


def _pop(machine: Machine) -> None:
    if machine.marks and machine.marks[-1] == len(machine.stack):
        machine.marks.pop()
    else:
        machine.stack.pop()


def _pop_mark(machine: Machine) -> None:
    machine.since_mark()


def _dup(machine: Machine) -> None:
    machine.stack.append(machine.stack[-1])


# Numbers.


def _int(machine: Machine) -> None:
    line = machine.line()
    # Protocol 0 writes booleans this way.
    machine.stack.append(line == b"01" if line in {b"00", b"01"} else integer(line))


def _long(machine: Machine) -> None:
    machine.stack.append(integer(machine.line().removesuffix(b"L")))


def _float(machine: Machine) -> None:
    machine.stack.append(float(machine.line()))


def _binint1(machine: Machine) -> None:
    machine.stack.append(machine.data[machine.at])
    machine.at += 1


def _binint2(machine: Machine) -> None:
    at = machine.at
    machine.at = at + 2
    machine.stack.append(_USHORT.unpack_from(machine.data, at)[0])


def _long_of(machine: Machine, length: int) -> None:
    machine.stack.append(int.from_bytes(machine.take(length), "little", signed=True))


# Texts and bytes.


def _text(machine: Machine, length: int) -> None:
    machine.stack.append(str(machine.take(length), "utf-8", "surrogatepass"))


def _unicode(machine: Machine) -> None:
    machine.stack.append(str(machine.line(), "raw-unicode-escape"))


def _string(machine: Machine) -> None:
    machine.stack.append(parse_quoted(machine.line()))


def _bytes_of_python_2(machine: Machine, length: int) -> None:
    if length > _LONGEST_TEXT:
        _blob(machine, length)
    else:
        machine.stack.append(str(machine.take(length), "latin-1"))


def _blob(machine: Machine, length: int) -> None:
    machine.stack.append(machine.blob(length))


# Containers.


def _tuple(machine: Machine) -> None:
    machine.stack.append(tuple(machine.since_mark()))


def _tuple1(machine: Machine) -> None:
    machine.stack[-1] = (machine.stack[-1],)


def _tuple2(machine: Machine) -> None:
    stack = machine.stack
    last = stack.pop()
    stack[-1] = (stack[-1], last)


def _tuple3(machine: Machine) -> None:
    stack = machine.stack
    last, middle = stack.pop(), stack.pop()
    stack[-1] = (stack[-1], middle, last)


def _empty_list(machine: Machine) -> None:
    machine.stack.append([])


def _list(machine: Machine) -> None:
    machine.stack.append(machine.since_mark())


def _empty_set(machine: Machine) -> None:
    machine.stack.append(PickledCall(machine.find_global("builtins", "set"), ()))


def _frozenset(machine: Machine) -> None:
    made = PickledCall(machine.find_global("builtins", "frozenset"), ())
    made.elements = machine.since_mark()
    machine.stack.append(made)


def _extend(target: Any, elements: list[Any]) -> None:
    if isinstance(target, PickledCall):
        target = target.elements
    if not is_list(target):
        raise TypeError("elements are appended to an object that is not a list")
    target.extend(elements)


def _append(machine: Machine) -> None:
    element = machine.stack.pop()
    _extend(machine.stack[-1], [element])


def _appends(machine: Machine) -> None:
    elements = machine.since_mark()
    _extend(machine.stack[-1], elements)


def _empty_dict(machine: Machine) -> None:
    machine.stack.append(Pairs())


def _dict(machine: Machine) -> None:
    made = Pairs()
    _put(made, machine.since_mark())
    machine.stack.append(made)


def _put(target: Any, flat: list[Any]) -> None:
    if not isinstance(target, Pairs | PickledCall):
        raise TypeError("items are set on an object that is not a mapping")
    if len(flat) % 2:
        raise TypeError("a key has no value")
    target.pairs.extend(zip(flat[::2], flat[1::2], strict=True))


def _setitem(machine: Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _put(machine.stack[-1], [key, value])


def _setitems(machine: Machine) -> None:
    flat = machine.since_mark()
    _put(machine.stack[-1], flat)


# The memo.


def _binput(machine: Machine) -> None:
    machine.memo[machine.data[machine.at]] = machine.stack[-1]
    machine.at += 1


def _long_binput(machine: Machine) -> None:
    at = machine.at
    machine.at = at + 4
    machine.memo[_UINT.unpack_from(machine.data, at)[0]] = machine.stack[-1]


def _put_line(machine: Machine) -> None:
    machine.memo[integer(machine.line())] = machine.stack[-1]


def _memoize(machine: Machine) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _binget(machine: Machine) -> None:
    machine.stack.append(machine.memo[machine.data[machine.at]])
    machine.at += 1


def _long_binget(machine: Machine) -> None:
    machine.stack.append(machine.memo[machine.number(_UINT)])


def _get_line(machine: Machine) -> None:
    machine.stack.append(machine.memo[integer(machine.line())])


# Objects. Nothing is imported, and only weightctl's own constructors are called.


def _global(machine: Machine) -> None:
    module = str(machine.line(), "utf-8")
    machine.stack.append(machine.find_global(module, str(machine.line(), "utf-8")))


def _stack_global(machine: Machine) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise TypeError("the module or name of a global is not a string")
    machine.stack.append(machine.find_global(module, name))


def _extension(machine: Machine, code: int) -> None:
    # The registry of extensions is that of the loading program, so the global cannot be determined.
    machine.stack.append(machine.find_global("copyreg", f"extension {code}"))


def _reduce(machine: Machine) -> None:
    stack = machine.stack
    arguments = stack.pop()
    stack[-1] = record_call(stack[-1], arguments)


def _newobj_ex(machine: Machine) -> None:
    machine.stack.pop()
    _reduce(machine)


def _inst(machine: Machine) -> None:
    module = str(machine.line(), "utf-8")
    function = machine.find_global(module, str(machine.line(), "utf-8"))
    machine.stack.append(record_call(function, tuple(machine.since_mark())))


def _obj(machine: Machine) -> None:
    function, *arguments = machine.since_mark()
    machine.stack.append(record_call(function, tuple(arguments)))


def _build(machine: Machine) -> None:
    state = machine.stack.pop()
    target = machine.stack[-1]
    if isinstance(target, PickledCall):
        target.states.append(state)
    elif isinstance(target, Pairs):
        target.attributes = state
    elif isinstance(target, Built):
        target.build(state)
    # Other objects do not store a state; for a tensor, it would be gradients and hooks.


def _persid(machine: Machine) -> None:
    machine.stack.append(machine.persistent(str(machine.line(), "utf-8")))


def _binpersid(machine: Machine) -> None:
    machine.stack[-1] = machine.persistent(machine.stack[-1])


def _proto(machine: Machine) -> None:
    version = machine.byte()
    if version > 5:
        raise ValueError(f"pickle protocol {version} is not supported; the newest is 5")


def _frame(machine: Machine) -> None:
    machine.begin_frame(machine.number(_ULONG))


def _buffer(_: Machine) -> None:
    raise ValueError("it refers to buffers that are stored outside of the pickle")


OPCODES: dict[int, Opcode] = {
    ord("("): _mark, ord("0"): _pop, ord("1"): _pop_mark, ord("2"): _dup,
    ord("N"): _constant(None), 0x88: _constant(True), 0x89: _constant(False),
    ord("I"): _int, ord("L"): _long, ord("F"): _float, ord("J"): _number(_INT), ord("K"): _binint1,
    ord("M"): _binint2, 0x8A: _pass_number(_long_of), 0x8B: _pass_number(_long_of, _INT),
    ord("G"): _number(_DOUBLE),
    ord("V"): _unicode, ord("X"): _pass_number(_text, _UINT), 0x8C: _pass_number(_text),
    0x8D: _pass_number(_text, _ULONG),
    ord("S"): _string, ord("T"): _pass_number(_bytes_of_python_2, _INT),
    ord("U"): _pass_number(_bytes_of_python_2),
    ord("B"): _pass_number(_blob, _UINT), ord("C"): _pass_number(_blob),
    0x8E: _pass_number(_blob, _ULONG), 0x96: _pass_number(_blob, _ULONG),
    ord(")"): _constant(()), ord("t"): _tuple, 0x85: _tuple1, 0x86: _tuple2, 0x87: _tuple3,
    ord("]"): _empty_list, ord("l"): _list, ord("a"): _append, ord("e"): _appends,
    ord("}"): _empty_dict, ord("d"): _dict, ord("s"): _setitem, ord("u"): _setitems,
    0x8F: _empty_set, 0x90: _appends, 0x91: _frozenset,
    ord("q"): _binput, ord("r"): _long_binput, ord("p"): _put_line, 0x94: _memoize,
    ord("h"): _binget, ord("j"): _long_binget, ord("g"): _get_line,
    ord("c"): _global, 0x93: _stack_global, 0x82: _pass_number(_extension),
    0x83: _pass_number(_extension, _USHORT), 0x84: _pass_number(_extension, _INT),
    ord("R"): _reduce, 0x81: _reduce, 0x92: _newobj_ex, ord("i"): _inst, ord("o"): _obj,
    ord("b"): _build, ord("P"): _persid, ord("Q"): _binpersid,
    0x80: _proto, 0x95: _frame, 0x97: _buffer, 0x98: lambda _: None,
}  # fmt: skip
