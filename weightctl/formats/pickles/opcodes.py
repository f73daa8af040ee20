"""The effect of each opcode on the pickle machine: each has a function and a line in `OPCODES`.

Source: CPython's `pickletools.py`, protocols 0 to 5.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any

from weightctl.formats.pickles.literals import integer, parse_quoted
from weightctl.formats.pickles.records import Built, Pairs, PickledCall, record_call
from weightctl.text.untyped import is_list

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.formats.pickles.machine import Machine

    Opcode = Callable[[Machine], None]

STOP = 0x2E
_INT, _UINT, _USHORT, _ULONG, _DOUBLE = map(Struct, ("<i", "<I", "<H", "<Q", ">d"))
# The longest string of Python 2 that is read as text. Longer ones are data: in Python 2, strings
# are bytes.
_LONGEST_TEXT = 256


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
