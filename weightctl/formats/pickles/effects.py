"""The effect of each opcode of a pickle on the state of a scan, as a table.

Sources: CPython's `pickletools.py` and `Modules/_pickle.c`. An error is raised only where both the
C and the Python unpickler fail.
"""

from __future__ import annotations

import pickletools
from typing import TYPE_CHECKING, Any

from weightctl.formats.pickles.literals import as_index, as_string, is_float, is_integer
from weightctl.formats.pickles.memory import (
    LARGEST_STACK,
    LONGEST_NAME,
    UNKNOWN,
    LimitError,
    SizedObject,
    build,
    dictionary_put,
    evaluate_call,
    tuple_of,
)
from weightctl.formats.pickles.window import LONGEST_KEPT, TruncatedPickle
from weightctl.text.untyped import is_object, is_tuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.formats.pickles.memory import State
    from weightctl.formats.pickles.window import Window

    Effect = Callable[[State, Window, int], None]

STOP = 0x2E
# Reported for a global whose name is not a string of the pickle.
MADE_UP = "a name that is computed while the pickle loads"
_MOST_IDENTITIES = 1 << 20
_LATEST_PROTOCOL = 5
# Opcodes that call, build or store objects.
_ACTING = frozenset(b"Roib\x81\x92aesu\x90QP")


def _text(raw: bytes, encoding: str, errors: str) -> Any:
    # A longer text cannot be the name of a known global.
    return raw.decode(encoding, errors) if len(raw) <= LONGEST_NAME else UNKNOWN


def _old_text(raw: bytes) -> Any:
    """Return a string of Python 2, which is unknown if it is not ASCII.

    The loading program chooses the encoding of other strings.
    """
    return raw.decode("ascii") if len(raw) <= LONGEST_NAME and raw.isascii() else UNKNOWN


def _read_sized(width: int, decode: Callable[[bytes], Any], *, signed: bool = False) -> Effect:
    """Return the effect of an opcode whose argument begins with its length."""

    def effect(state: State, window: Window, _: int) -> None:
        length = window.number(width)
        if length >> (31 if signed else 63):
            raise ValueError("a length is negative or too large")
        raw = window.take(length)
        state.push(decode(raw) if len(raw) == length else UNKNOWN)

    return effect


def _number(width: int, *, signed: bool = False) -> Effect:
    def effect(state: State, window: Window, _: int) -> None:
        state.push(int.from_bytes(window.take(width), "little", signed=signed))

    return effect


def _long(raw: bytes) -> Any:
    return int.from_bytes(raw, "little", signed=True) if len(raw) <= 16 else UNKNOWN


def _constant(value: Any) -> Effect:
    def effect(state: State, _window: Window, _start: int) -> None:
        state.push(value)

    return effect


def _skip_bytes(width: int, pushed: Any = UNKNOWN) -> Effect:
    def effect(state: State, window: Window, _: int) -> None:
        window.take(width)
        state.push(pushed)

    return effect


def _line(decode: Callable[[bytes], Any], least: int = 0) -> Effect:
    def effect(state: State, window: Window, _: int) -> None:
        line = window.line()
        if len(line) < least:
            raise ValueError("the argument of an opcode is missing")
        # If the line is longer than the kept part, its value is unknown.
        state.push(UNKNOWN if len(line) >= LONGEST_KEPT else decode(line))

    return effect


def _integer_line(line: bytes) -> Any:
    if not is_integer(line):
        raise ValueError("an integer is not valid")
    digits = line.removesuffix(b"L")
    return int(digits) if digits.isdigit() and len(digits) < 16 else UNKNOWN


def _float_line(line: bytes) -> Any:
    if not is_float(line):
        raise ValueError("a float is not valid")
    return UNKNOWN


def _build_tuple(count: int) -> Effect:
    def effect(state: State, _window: Window, _start: int) -> None:
        state.push(tuple_of(state.take(count)))

    return effect


def _mark(state: State, _window: Window, _start: int) -> None:
    if len(state.marks) >= LARGEST_STACK:
        raise LimitError(f"it has more than {LARGEST_STACK} marks on its stack")
    state.marks.append(len(state.stack))


def _pop(state: State, _window: Window, _start: int) -> None:
    if state.marks and state.marks[-1] == len(state.stack):
        state.marks.pop()
    else:
        state.pop()


def _dup(state: State, _window: Window, _start: int) -> None:
    state.require(1)
    state.push(state.stack[-1])


def _tuple(state: State, _window: Window, _start: int) -> None:
    state.push(tuple_of(state.since_mark()))


def _new_dict(state: State, _window: Window, _start: int) -> None:
    state.push({})


def _dict(state: State, _window: Window, _start: int) -> None:
    target: dict[str, Any] = {}
    dictionary_put(target, state.since_mark())
    state.push(target)


def _setitem(state: State, _window: Window, _start: int) -> None:
    target, key, value = state.take(3)
    dictionary_put(target, [key, value])
    state.push(target)


def _setitems(state: State, _window: Window, _start: int) -> None:
    flat = state.since_mark()
    state.require(1)
    dictionary_put(state.stack[-1], flat)


def _line_index(state: State, window: Window) -> int | None:
    line = window.line()
    if len(line) < LONGEST_KEPT:
        return as_index(line)
    state.problem = state.problem or "an index in a line that is too long"
    return None


def _put(index: Callable[[State, Window], int | None]) -> Effect:
    def effect(state: State, window: Window, _: int) -> None:
        place = index(state, window)
        state.require(1)
        if place is not None:
            state.memo.put(place, state.stack[-1])

    return effect


def _memoize(state: State, _window: Window, _start: int) -> None:
    state.require(1)
    state.memo.memoize(state.stack[-1])


def _get(index: Callable[[State, Window], int | None]) -> Effect:
    def effect(state: State, window: Window, _: int) -> None:
        place = index(state, window)
        state.push(UNKNOWN if place is None else state.memo.get(place))

    return effect


def _global(state: State, window: Window, start: int) -> None:
    module = window.line()
    try:
        name = window.line()
    except TruncatedPickle as cut:
        # Python drops the last character of a truncated line, and looks up the rest.
        state.name(module.decode(), cut.rest[:-1].decode(), start)
        raise
    if not module or not name:
        raise ValueError("a global has no module or no name")
    errors = "replace" if max(len(module), len(name)) >= LONGEST_KEPT else "strict"
    state.name(module.decode("utf-8", errors), name.decode("utf-8", errors), start)


def _inst(state: State, window: Window, start: int) -> None:
    _global(state, window, start)
    state.stack.pop()
    state.since_mark()
    state.push(UNKNOWN)


def _stack_global(state: State, _window: Window, start: int) -> None:
    module, name = state.take(2)
    if isinstance(module, str) and isinstance(name, str):
        state.name(module, name, start)
        return
    state.found.setdefault(MADE_UP, start)
    if not {type(module), type(name)} <= {str, type(UNKNOWN)}:
        raise ValueError("the module or name of a global is not a string")
    state.push(UNKNOWN)


def _extension(width: int) -> Effect:
    def effect(state: State, window: Window, start: int) -> None:
        code = int.from_bytes(window.take(width), "little", signed=width == 4)
        if code <= 0:
            raise ValueError("an extension code is not positive")
        state.name("copyreg", f"extension {code}", start)

    return effect


def _call(state: State, _window: Window, _start: int) -> None:
    function, arguments = state.take(2)
    state.push(evaluate_call(function, arguments))


def _build(state: State, _window: Window, _start: int) -> None:
    target, value = state.take(2)
    build(target, value)
    state.push(target)
    if isinstance(target, SizedObject) and target.is_array:
        state.array = target


def _identity(state: State, identity: Any) -> None:
    # An identity that contains a dict cannot be a key, and is not that of a storage.
    is_key = isinstance(identity, str) or (is_tuple(identity) and not any(map(is_object, identity)))
    if is_key and len(state.identities) < _MOST_IDENTITIES:
        state.identities[identity] = None
    state.push(UNKNOWN)


def _persistent_line(state: State, window: Window, _: int) -> None:
    # All unpicklers stop at other bytes. A zip file begins with this opcode.
    _identity(state, window.line().decode("ascii"))


def _persistent(state: State, _window: Window, _start: int) -> None:
    _identity(state, state.pop())


def _protocol(state: State, window: Window, _: int) -> None:
    version = window.number(1)
    if version > _LATEST_PROTOCOL:
        state.problem = state.problem or (
            f"its protocol {version} is newer than {_LATEST_PROTOCOL}"
        )


def _frame(state: State, window: Window, _: int) -> None:
    window.frame(window.number(8))
    if window.is_short:
        state.problem = state.problem or "a frame ends after the end of the file"


def _stop(state: State, _window: Window, _start: int) -> None:
    state.result = state.pop()


def _generic(info: pickletools.OpcodeInfo) -> Effect:
    """Return the effect of an opcode that has no argument and pushes unknown values."""
    before = [each.name for each in info.stack_before]
    pops_mark = "mark" in before
    below = before.index("mark") if pops_mark else len(before)
    above = before[below + 1 :].count("any")
    pushes = len(info.stack_after)

    def effect(state: State, _window: Window, _start: int) -> None:
        if pops_mark:
            state.require(above)
            state.since_mark()
        state.take(below)
        for _ in range(pushes):
            state.push(UNKNOWN)

    return effect


_SPECIAL: dict[int, Effect] = {
    ord("("): _mark, ord("0"): _pop, ord("2"): _dup,
    ord("N"): _constant(None), 0x88: _constant(1), 0x89: _constant(0),
    ord("I"): _line(_integer_line, 1), ord("L"): _line(_integer_line, 1),
    ord("F"): _line(_float_line, 1), ord("G"): _skip_bytes(8),
    ord("J"): _number(4, signed=True), ord("K"): _number(1), ord("M"): _number(2),
    0x8A: _read_sized(1, _long), 0x8B: _read_sized(4, _long, signed=True),
    ord("V"): _line(lambda raw: _text(raw, "raw-unicode-escape", "replace")),
    0x8C: _read_sized(1, lambda raw: _text(raw, "utf-8", "surrogatepass")),
    ord("X"): _read_sized(4, lambda raw: _text(raw, "utf-8", "surrogatepass")),
    0x8D: _read_sized(8, lambda raw: _text(raw, "utf-8", "surrogatepass")),
    ord("S"): _line(lambda raw: _old_text(as_string(raw))),
    ord("U"): _read_sized(1, _old_text), ord("T"): _read_sized(4, _old_text, signed=True),
    ord("C"): _read_sized(1, lambda _: UNKNOWN), ord("B"): _read_sized(4, lambda _: UNKNOWN),
    0x8E: _read_sized(8, lambda _: UNKNOWN), 0x96: _read_sized(8, lambda _: UNKNOWN),
    ord(")"): _constant(()), 0x85: _build_tuple(1), 0x86: _build_tuple(2),
    0x87: _build_tuple(3), ord("t"): _tuple,
    ord("}"): _new_dict, ord("d"): _dict, ord("s"): _setitem, ord("u"): _setitems,
    ord("p"): _put(_line_index),
    ord("q"): _put(lambda _, window: window.number(1)),
    ord("r"): _put(lambda _, window: window.number(4)),
    0x94: _memoize,
    ord("g"): _get(_line_index),
    ord("h"): _get(lambda _, window: window.number(1)),
    ord("j"): _get(lambda _, window: window.number(4)),
    ord("c"): _global, ord("i"): _inst, 0x93: _stack_global,
    0x82: _extension(1), 0x83: _extension(2), 0x84: _extension(4),
    ord("R"): _call, 0x81: _call, ord("b"): _build,
    ord("P"): _persistent_line, ord("Q"): _persistent,
    0x80: _protocol, 0x95: _frame, STOP: _stop,
}  # fmt: skip


def _noting(effect: Effect) -> Effect:
    """Return an effect that also records that opcodes acted after a global was found."""

    def run_effect(state: State, window: Window, start: int) -> None:
        effect(state, window, start)
        if state.found:
            state.acts = True

    return run_effect


def _effects() -> list[Effect | None]:
    table: list[Effect | None] = [None] * 256
    for info in pickletools.opcodes:
        code = ord(info.code)
        effect = _SPECIAL.get(code) or _generic(info)
        table[code] = _noting(effect) if code in _ACTING else effect
    return table


EFFECTS = _effects()
