"""Pickles of about `n` opcodes that mean far more than they say, or take long to read."""

from __future__ import annotations

from collections.abc import Callable

from assembly import (
    BUILD,
    MARK,
    NONE,
    REDUCE,
    blob,
    call,
    get,
    integer,
    many,
    mapping,
    named,
    put,
    storage,
    stream,
    tensor,
    text,
    whole,
)  # fmt: skip

Made = Callable[[int], bytes]
_MULTIARRAY = "numpy.core.multiarray"


def _name(number: int) -> bytes:
    return text(f"k{number:06x}")


def _kept(value: bytes, again: bytes, n: int, before: bytes = b"") -> bytes:
    """Return a dict of `n` values that are made from one that is written once."""
    pairs = b"".join(_name(number) + again for number in range(n))
    return whole(before + value + put(0) + b"0" + b"}(" + pairs + b"u")


def _long(n: int) -> bytes:
    return text("a" * (10 * n))


def _all(n: int, element: bytes = NONE) -> bytes:
    """Push a tuple of `n` elements."""
    return MARK + element * n + b"t"


def _entries(n: int, value: bytes = NONE) -> bytes:
    return b"}(" + b"".join(_name(number) + value for number in range(n)) + b"u"


def _laughs(push: Callable[[bytes], bytes], first: bytes = NONE) -> Made:
    """Return what makes `n` levels, each with the one below it twice."""

    def made(n: int) -> bytes:
        pushed = first + put(0)
        for level in range(1, min(n, 60)):
            pushed += push(get(level - 1)) + put(level)
        return whole(pushed)

    return made


def _deep(opening: bytes, closing: bytes, core: bytes = b")") -> Made:
    return lambda n: whole(opening * n + core + closing * n)


def _called(function: str, argument: bytes) -> Callable[[int], bytes]:
    """Return what calls a function `n` times with a tuple that is written once."""

    def made(n: int) -> bytes:
        pushed = argument if argument != b"long" else _all(n)
        calls = b"".join(_name(i) + get(1) + get(0) + REDUCE for i in range(n))
        return whole(named(function) + put(1) + b"0" + pushed + put(0) + b"0}(" + calls + b"u")

    return made


def _built(target: bytes, state: Callable[[int], bytes]) -> Made:
    """Return what gives an object the same state `n` times."""
    return lambda n: whole(state(n) + put(0) + b"0" + target + (get(0) + BUILD) * n)


def _module(state: bytes) -> bytes:
    return call("a.Module") + state + BUILD


_DTYPE = call("numpy.dtype", "f4")
_ARRAY = call(f"{_MULTIARRAY}._reconstruct", NONE)


def _array_of(content: bytes, dtype: bytes = _DTYPE) -> bytes:
    return _ARRAY + many(integer(1), many(integer(1)), dtype, b"\x89", content) + BUILD


def _parameters(n: int) -> bytes:
    same = text("_parameters") + get(0)
    state = b"}(" + text("_modules") + b"}" + same * n + b"u"
    return whole(_entries(n) + put(0) + b"0" + _module(state))


def _keys_of_texts(n: int) -> bytes:
    pairs = b"".join(get(0) + _name(number) + b"\x86" + NONE for number in range(n))
    return whole(_long(n) + put(0) + b"0}(" + pairs + b"u")


def _metadata(content: Callable[[int], bytes], keys: bytes) -> Made:
    """Return a state dict whose `_metadata` has one text `n` times."""

    def made(n: int) -> bytes:
        inner = b"}(" + b"".join(_name(i) + keys for i in range(n)) + b"u"
        state = mapping(text("_metadata") + inner)
        return whole(content(n) + put(0) + b"0" + call("collections.OrderedDict") + state + BUILD)

    return made


def _long_names(n: int) -> bytes:
    inner = b"}(" + b"".join(_name(i) + NONE for i in range(n)) + b"u"
    return whole(mapping(text("a" * 10 * n) + inner))


def _globals(n: int) -> bytes:
    made = b"".join(get(0) + _name(number) + b"\x930" for number in range(n))
    return whole(_long(n) + put(0) + b"0" + made + NONE, protocol=4)


def _objects_of_a_long_name(n: int) -> bytes:
    function = _long(n) + text("b") + b"\x93" + put(0) + b"0"
    calls = b"".join(_name(i) + get(0) + b")" + REDUCE for i in range(n))
    return whole(function + b"}(" + calls + b"u", protocol=4)


def _ids(n: int) -> bytes:
    """Return a stream that names one storage `n` times, as protocol 0 does."""
    key = "1" * (10 * n)
    identity = text(f"('storage', <class 'torch.FloatStorage'>, '{key}', 'cpu', 4, None)")
    return stream(whole(identity + put(0) + b"0" + (get(0) + b"Q0") * n + NONE))


def _tensors(n: int, *, rank: int = 64) -> bytes:
    ones, zeros = b"(" + b"K\1" * rank + b"t", b"(" + b"K\0" * rank + b"t"
    one = named("torch._utils._rebuild_tensor_v2") + put(2) + b"0"
    arguments = many(storage(), integer(0), ones, zeros, b"\x89", NONE) + put(3) + b"0"
    calls = b"".join(_name(i) + get(2) + get(3) + REDUCE for i in range(n))
    return whole(one + arguments + b"}(" + calls + b"u")


def _bombs_as_ids(n: int) -> bytes:
    """Return protocol 0, so that the whole must be read to be known, with an id that never ends."""
    pushed = b"(lp0\n"
    for level in range(1, min(n, 60)):
        pushed += f"(g{level - 1}\ng{level - 1}\nlp{level}\n".encode()
    return b"(" + pushed + b"Ql."


def _quantized(n: int) -> bytes:
    arguments = many(storage(), integer(0), integer(4) + b"\x85", integer(1) + b"\x85", get(0))
    one = call("collections.OrderedDict") + b"0"
    values = b"".join(_name(i) + get(1) for i in range(n))
    return whole(
        one + _all(n) + put(0) + b"0" + named("torch._utils._rebuild_qtensor") + arguments
        + REDUCE + put(1) + b"0}(" + values + b"u"
    )  # fmt: skip


AMPLIFYING: dict[str, Made] = {
    "laughing lists": _laughs(lambda below: b"(" + below + below + b"l"),
    "laughing tensors": _laughs(lambda below: b"(" + below + below + b"l", tensor(storage())),
    "laughing tuples": _laughs(lambda below: below + below + b"\x86"),
    "laughing dicts": _laughs(lambda below: mapping(text("a") + below, text("b") + below)),
    "laughing calls": _laughs(lambda below: named("a.b") + below + below + b"\x86" + REDUCE),
    "laughing states": _laughs(
        lambda below: call("a.b") + below + BUILD + below + BUILD, call("a.b")
    ),
    "laughing types": _laughs(
        lambda below: named("torch._tensor._rebuild_from_type_v2")
        + many(named("torch.Size"), NONE, below + below + b"\x86" + b"\x85", NONE) + REDUCE
    ),
    "laughing items": _laughs(
        lambda below: call("collections.OrderedDict", b"(" + text("a") + below + b"\x86" + text("b")
                           + below + b"\x86l")
    ),
    "laughing ids": _bombs_as_ids,
    "a laughing id of a stream": lambda n: stream(
        _laughs(lambda below: b"(" + below + below + b"l")(n)[:-1] + b"Q."
    ),
    "laughing metadata": lambda n: whole(
        _laughs(lambda below: mapping(text("a") + below, text("b") + below))(n)[2:-1]
        + put(99) + b"0" + call("collections.OrderedDict")
        + mapping(text("_metadata") + get(99)) + BUILD
    ),
    "deep tuples": _deep(b"", b"\x85"),
    "deep lists": _deep(b"(", b"l"),
    "deep dicts": _deep(b"(K\0", b"d"),
    "deep calls": _deep(named("a.b"), b"\x85R"),
    "deep items": _deep(b"ccollections\nOrderedDict\n", b"\x85R"),
    "deep sizes": _deep(b"ctorch\nSize\n", b"\x85R"),
    "deep states": _deep(named("a.b") + b")R", BUILD),
    "deep types": lambda n: whole(
        (named("torch._tensor._rebuild_from_type_v2") + MARK) * n
        + (named("torch._tensor._rebuild_from_type_v2") + NONE) + b")" + NONE + b"tR"
        + (NONE + b")" + NONE + b"tR") * (n - 1)
    ),
    "types of many arguments": lambda n: _kept(
        _all(n),
        named("torch._tensor._rebuild_from_type_v2")
        + many(named("torch._utils._rebuild_parameter"), NONE, get(0), NONE) + REDUCE, n
    ),
    "sets of a list": lambda n: _kept(
        b"(" + NONE * n + b"l", named("builtins.set") + get(0) + b"\x85" + REDUCE, n
    ),
    "sets of a tuple": lambda n: _kept(
        _all(n), named("builtins.frozenset") + get(0) + b"\x85" + REDUCE, n
    ),
    "sparse tensors of many parts": lambda n: _kept(
        _all(n), named("torch._utils._rebuild_sparse_tensor") + NONE + get(0) + b"\x86" + REDUCE, n
    ),
    "marks": lambda n: whole(b"(" * n + b"t" * n),
    "arguments that are many": lambda n: _kept(
        _all(n), named("torch._utils._rebuild_parameter") + get(0) + REDUCE, n
    ),
    "arguments of objects": lambda n: _kept(_all(n), named("a.b") + get(0) + REDUCE, n),
    "a path": _called("pathlib.PosixPath", many(*[text("a" * 256)] * 64)),
    "a device": _called("torch.device", many(text("cuda"), integer(1 << 14_000))),
    "an array of too many arguments": _called(f"{_MULTIARRAY}._reconstruct", b"long"),
    "an object of too many arguments": _called("copyreg._reconstructor", b"long"),
    "bytes of a text": lambda n: _kept(
        _long(n), named("_codecs.encode") + get(0) + b"\x85" + REDUCE, n
    ),
    "states of a dtype": _built(call("numpy.dtype", "f4"), lambda n: many(
        integer(3), text("<"), NONE, NONE, NONE, *[NONE] * n)),
    "states of an array": _built(_ARRAY, _all),
    "a state of tuples": lambda n: whole(
        _entries(n) + put(0) + b"0" + call("a.b") + _all(n, get(0)) + BUILD
    ),
    "states of mappings": _built(call("a.b"), _entries),
    "elements": lambda n: whole(b"]" + put(0) + (b"(" + get(0) + b"e") * n),
    "texts in a list": lambda n: whole(_long(n) + put(0) + b"0](" + get(0) * n + b"e"),
    "texts in a dict": lambda n: _kept(_long(n), get(0), n),
    "numbers in a dict": lambda n: _kept(integer(1 << 4000), get(0), n),
    "numbers as keys": lambda n: whole(
        integer(1 << 4000) + put(0) + b"0}(" + (get(0) + NONE) * n + b"u"
    ),
    "lists in a dict": lambda n: _kept(b"(" + b"K\1" * n + b"l", get(0), n),
    "texts as keys": _keys_of_texts,
    "long names": _long_names,
    "globals of a long module": _globals,
    "objects of a long name": _objects_of_a_long_name,
    "parameters": _parameters,
    "texts in metadata": _metadata(_long, get(0)),
    "keys in metadata": _metadata(_long, b"}" + get(0) + b"K\1s"),
    "a number in metadata": _metadata(lambda n: integer(1 << 8 * n), get(0)),
    "arrays over a text": lambda n: _kept(
        _long(n) + put(1) + b"0" + _DTYPE + put(2), _array_of(get(1), get(2)), n
    ),
    "arrays of nothing known over a text": lambda n: _kept(
        _long(n) + put(1) + b"0" + call("numpy.dtype", "O8") + put(2),
        _array_of(get(1), get(2)), n
    ),
    "arrays over encoded bytes": lambda n: _kept(
        call("_codecs.encode", _long(n)) + put(1) + b"0" + call("numpy.dtype", "O8") + put(2),
        _array_of(get(1), get(2)), n
    ),
    "scalars over a text": lambda n: _kept(
        call("_codecs.encode", _long(n)) + put(1) + b"0" + _DTYPE + put(2),
        named(f"{_MULTIARRAY}.scalar") + get(2) + get(1) + b"\x86" + REDUCE, n
    ),
    "swapped arrays": lambda n: _kept(
        blob(bytes(8 * n)) + put(1) + b"0" + call("numpy.dtype", ">f8") + put(2),
        _ARRAY + many(integer(1), many(integer(n)), get(2), b"\x89", get(1)) + BUILD, n // 8
    ),
    "ids": _ids,
    "quantizers": _quantized,
    "a tensor often": lambda n: _kept(tensor(storage()), get(0), n),
    "tensors of many dimensions": _tensors,
    "frames": lambda n: whole(b"\x95" + b"\xff" * 8 + NONE + (b"\x95" + bytes(8)) * n, protocol=4),
    "a memo": lambda n: whole(NONE + b"".join(put(i * 7919 % (1 << 32)) for i in range(n))),
    "a line of digits": lambda n: b"(I" + b"9" * (100 * n) + b"\nl.",
    "a line of a long": lambda n: b"(L" + b"9" * (100 * n) + b"L\nl.",
    "a line without an end": lambda n: whole(b"cos" + b"a" * (100 * n)),
    "lines of escapes": lambda n: b"(S'" + b"\\x41" * n + b"'\nl.",
    "a long integer": lambda n: whole(integer(1 << (800 * n))),
    "a long integer as a size": lambda n: whole(
        tensor(storage(), integer(1 << (80 * n)) + b"\x85", integer(1) + b"\x85")
    ),
    "a long integer as a storage": lambda n: whole(tensor(storage(count=1 << (80 * n)))),
    "a long integer as an offset": lambda n: whole(
        named("torch._utils._rebuild_tensor_v2") + many(
            storage(), integer(1 << (80 * n)), b"K\4\x85", b"K\1\x85", b"\x89", NONE) + REDUCE
    ),
    "a long integer as a stride": lambda n: whole(
        tensor(storage(), strides=integer(1 << (80 * n)) + b"\x85")
    ),
    "a long integer as a key": lambda n: whole(mapping(integer(1 << (80 * n)) + NONE)),
    "a long integer as a storage's key": lambda n: whole(many(
        text("storage"), named("torch.FloatStorage"), integer(1 << (80 * n)), NONE, integer(4),
    ) + b"Q"),
    "a long integer as an array's size": lambda n: whole(
        _ARRAY + many(integer(1), many(integer(1 << (80 * n))), _DTYPE, b"\x89", blob(b"")) + BUILD
    ),
}  # fmt: skip
