"""Pickles and zips that are hostile, damaged or unusual, and what must happen with them."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import marshal
import pickle
import pickletools
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hypothesis.strategies import SearchStrategy


# Pickles assembled opcode by opcode, in ways that no pickler would, and without weightctl.

STOP = b"."
MARK = b"("
NONE = b"N"
TUPLE = b"t"
REDUCE = b"R"
BUILD = b"b"


def text(content: str) -> bytes:
    raw = content.encode("utf-8", "surrogatepass")
    return b"X" + len(raw).to_bytes(4, "little") + raw


def blob(content: bytes) -> bytes:
    return b"B" + len(content).to_bytes(4, "little") + content


def integer(number: int) -> bytes:
    if 0 <= number < 256:
        return b"K" + bytes([number])
    raw = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8b" + len(raw).to_bytes(4, "little") + raw


def named(path: str) -> bytes:
    """Push a global: the last segment is its name."""
    module, _, name = path.rpartition(".")
    return f"c{module}\n{name}\n".encode()


def stacked(module: str, name: str) -> bytes:
    """Push a global whose names are on the stack."""
    return text(module) + text(name) + b"\x93"


def many(*pushed: bytes) -> bytes:
    return MARK + b"".join(pushed) + TUPLE


def call(function: str | bytes, *arguments: str | bytes) -> bytes:
    """Push the result of a function call; strings are arguments, bytes are opcodes."""
    pushed = (text(each) if isinstance(each, str) else each for each in arguments)
    return (named(function) if isinstance(function, str) else function) + many(*pushed) + REDUCE


def mapping(*pairs: bytes) -> bytes:
    """Push a dict from pairs of opcodes."""
    return b"}(" + b"".join(pairs) + b"u" if pairs else b"}"


def put(number: int) -> bytes:
    """Store the object on top of the stack in the memo."""
    return b"r" + number.to_bytes(4, "little")


def get(number: int) -> bytes:
    """Push an object from the memo."""
    return b"h" + bytes([number]) if number < 256 else b"j" + number.to_bytes(4, "little")


def whole(*pushed: bytes, protocol: int = 2) -> bytes:
    """Return a pickle, with the opcodes for its protocol and its end."""
    return b"\x80" + bytes([protocol]) + b"".join(pushed) + STOP


def storage(key: str = "0", count: int = 4, kind: str = "torch.FloatStorage") -> bytes:
    """Push a storage by its persistent id in zip files."""
    pushed = (text("storage"), named(kind), text(key), text("cpu"), integer(count))
    return many(*pushed) + b"Q"


def tensor(stored: bytes, shape: bytes = b"K\4\x85", strides: bytes = b"K\1\x85") -> bytes:
    """Push a tensor over a storage."""
    return (
        named("torch._utils._rebuild_tensor_v2")
        + many(stored, integer(0), shape, strides, b"\x89", call("collections.OrderedDict"))
        + REDUCE
    )


def stream(root: bytes, keys: bytes = b"\x80\2].", rest: bytes = b"") -> bytes:
    """Return a stream of torch before zip files; the root and the keys are whole pickles."""
    magic = 0x1950A86A20F9469CFC6C.to_bytes(10, "little")
    return b"\x80\2\x8a\x0a" + magic + b".\x80\2M\xe9\3.\x80\2}." + root + keys + rest


# A harmless payload that says that it ran, and what hides it: tricks of opcodes, and containers.
# Each container is undone with the library that programs use for that.

RAN: list[str] = []


def run(*_: object) -> dict[str, Any]:
    RAN.append("it ran")
    return {}


def ran(load: Callable[[], object]) -> bool:
    """Whether the payload runs where something is loaded, even if that fails later."""
    RAN.clear()
    with suppress(Exception):  # what was done before it failed is done
        load()
    done = bool(RAN)
    RAN.clear()
    return done


CALL = call(f"{__name__}.run")
TAIL = CALL + b"."
PAYLOAD = b"\x80\x02" + TAIL
NOTHING = pickle.dumps({}, 2)


def frame(length: int) -> bytes:
    return b"\x95" + length.to_bytes(8, "little")


def _stacked(module: bytes, name: bytes) -> bytes:
    return module + name + b"\x93" + many() + b"R."


def _dropped() -> bytes:
    """Return a pickle of which a file that cannot look ahead drops a part."""
    pushed = b"X" + struct.pack("<I", len(TAIL)) + TAIL
    return b"\x80\x04" + frame(7) + b"\x8c\x08aaaaa" + b"bbb" + pushed + b"0}."


_MODULE = __name__.encode()
# Each is run by `pickle.load` of a file in memory.
TRICKS: dict[str, bytes] = {
    "a call": PAYLOAD,
    "protocol 0": b"c%b\nrun\n(tR." % _MODULE,
    "INST": b"(i%b\nrun\n." % _MODULE,
    "OBJ": b"(c%b\nrun\no." % _MODULE,
    "a frame in a frame": b"\x80\x04" + frame(len(TAIL) + 9) + frame(len(TAIL)) + TAIL,
    "frames that cross": b"\x80\x04" + frame(9 + 3) + frame(3) + b"N0N" + TAIL,
    "a frame that a line crosses": b"\x80\x04" + frame(3) + b"cxx" + TAIL[1:],
    "a frame that is dropped": _dropped(),
    "a frame of nothing": b"\x80\x04" + frame(0) * 3 + TAIL,
    "a string with an escape that there is not": b"S'\\d'\n0" + TAIL,
    "a string with a large octal escape": b"S'\\401'\n0" + TAIL,
    "a string with a quote in it": b"S'a''\n0" + TAIL,
    "PUT with a NUL": b"Np0\0x\n0" + TAIL,
    "PUT with spaces": b"Np 1_0 \n0" + TAIL,
    "GET with a NUL": b"Np0\n0g0\0x\n0" + TAIL,
    "an INT line with a NUL": b"I1\0x\n0" + TAIL,
    "an INT line that begins with a NUL": b"I\0I am not one\n0" + TAIL,
    "an octal INT line": b"I 010\n0" + TAIL,
    "a LONG line with a NUL": b"L1\0 of 5\n0" + TAIL,
    "a FLOAT line with a NUL": b"F1.5\0 or so\n0" + TAIL,
    "a long line": b"L" + b"0" * 4000 + b"\n0" + TAIL,
    "a persistent id": b"N0" + CALL + b"Pid\n.",
    "failing later": TAIL[:-1] + b"0j\xff\xff\xff\xff.",
    "a late protocol later": TAIL[:-1] + b"0\x80\x63N.",
    "an unknown opcode later": TAIL[:-1] + b"\xff",
    "cut off": TAIL[:-1],
    "pushed and dropped": b"N0(1(0" + TAIL,
    "marks": b"((((1110" + TAIL,
    "a name in octal": _stacked(b"S'\\160" + _MODULE[1:] + b"'\n", b"S'run'\n"),
    "a name of escapes": _stacked(b"V\\u0070" + _MODULE[1:] + b"\n", b"Vrun\n"),
    "a name from the memo": text(__name__) + put(7) + b"0" + _stacked(get(7), text("run")),
    "a name from a sparse memo": (
        b"Nq\x050" + text(__name__) + b"\x940" + _stacked(b"h\x01", text("run"))
    ),
    "a name by GET with a NUL": (
        text(__name__) + b"p0\0\n0" + _stacked(b"g0\0 of 7\n", text("run"))
    ),
    "a name that was duplicated": text("run") + b"0" + text(__name__) + b"20" + _stacked(b"",
                                       text("run")),
    "a name below a tuple": text(__name__) + b"N\x850" + _stacked(b"", text("run")),
}  # fmt: skip


class Container(NamedTuple):
    """What bytes are put into, and how a program takes them out."""

    wrap: Callable[[bytes], bytes]
    unwrap: Callable[[bytes], bytes]


def _zipped(method: int, name: str, *others: str, front: bytes = b"") -> Container:
    def wrap(raw: bytes) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", method) as archive:
            for other in others:
                archive.writestr(other, NOTHING if other.endswith(".pkl") else b"3\n")
            archive.writestr(name, raw)
        return front + file.getvalue()

    def unwrap(raw: bytes) -> bytes:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            return archive.read(name)

    return Container(wrap, unwrap)


def _tar(name: str, **fields: Any) -> Container:
    def wrap(raw: bytes) -> bytes:
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", **fields) as tar:
            entry = tarfile.TarInfo(name)
            entry.size = len(raw)
            tar.addfile(entry, io.BytesIO(raw))
        return file.getvalue()

    def unwrap(raw: bytes) -> bytes:
        with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
            return tar.extractfile(tar.getmembers()[0]).read()  # type: ignore[union-attr]

    return Container(wrap, unwrap)


def summed_signed(raw: bytes) -> bytes:
    """Return a tar whose first header has a sum over signed bytes."""
    made = bytearray(raw)
    made[148:156] = b" " * 8
    made[148:156] = b"%06o\0 " % sum(struct.unpack("512b", bytes(made[:512])))
    return bytes(made)


def _signed_tar() -> Container:
    plain = _tar("\u00e9\u00e8.pkl", format=tarfile.GNU_FORMAT)
    return Container(lambda raw: summed_signed(plain.wrap(raw)), plain.unwrap)


def _zfile(raw: bytes) -> bytes:
    return b"ZF" + hex(len(raw)).encode().ljust(19) + zlib.compress(raw)


STORED, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
CONTAINERS: dict[str, Container] = {
    "zip": _zipped(STORED, "a.pkl"),
    "deflated zip": _zipped(DEFLATED, "a.pkl"),
    "deflated zip without a suffix": _zipped(DEFLATED, "archive/weights"),
    "zip by bzip2": _zipped(zipfile.ZIP_BZIP2, "a"),
    "zip by LZMA": _zipped(zipfile.ZIP_LZMA, "a"),
    "zip with bytes before it": _zipped(STORED, "a", front=b"#!/bin/sh\nexit 0\n"),
    "zip of torch, as a storage": _zipped(STORED, "a/data/0", "a/data.pkl", "a/version"),
    "zip of torch, as a deflated storage": _zipped(DEFLATED, "a/data/0", "a/data.pkl"),
    "zip of torch, as another member": _zipped(STORED, "a/extra/x.txt", "a/data.pkl"),
    "zip with a joblib": _zipped(STORED, "model.joblib"),
    "tar": _tar("a.pkl"),
    "tar without a suffix": _tar("a", format=tarfile.USTAR_FORMAT),
    "tar with a long name": _tar("a" * 300, format=tarfile.PAX_FORMAT),
    "tar of GNU with a long name": _tar("a" * 300, format=tarfile.GNU_FORMAT),
    "tar with a signed sum": _signed_tar(),
    "gzip": Container(gzip.compress, gzip.decompress),
    "gzip with a name": Container(
        lambda raw: b"\x1f\x8b\x08\x08" + bytes(6) + b"a\0" + gzip.compress(raw)[10:],
        gzip.decompress,
    ),
    "gzip in two": Container(lambda raw: gzip.compress(raw[:5]) + gzip.compress(raw[5:]),
                             gzip.decompress),
    "bzip2": Container(bz2.compress, bz2.decompress),
    "xz": Container(lzma.compress, lzma.decompress),
    "LZMA": Container(lambda raw: lzma.compress(raw, format=lzma.FORMAT_ALONE), lzma.decompress),
    "zlib": Container(zlib.compress, zlib.decompress),
    "zlib of another level": Container(lambda raw: zlib.compress(raw, 1, 9), zlib.decompress),
    "ZFile": Container(_zfile, lambda raw: zlib.decompress(raw[21:])),
}  # fmt: skip


# Zip files assembled piece by piece, so that each piece can be wrong.

END = b"PK\5\6"


class Entry(NamedTuple):
    """A member as its header and the directory state it; None is the correct value.

    `local_name` is its name in the local header; `at` is the offset in the directory.
    """

    name: str | bytes
    content: bytes
    local_name: str | bytes | None = None
    at: int | None = None
    size: int | None = None
    packed: int | None = None
    method: int = 0
    flags: int = 0
    extra: bytes = b""
    is_there: bool = True


def raw(name: str | bytes) -> bytes:
    return name if isinstance(name, bytes) else name.encode("utf-8", "surrogateescape")


def zip_of(
    *entries: Entry,
    count: int | None = None,
    size: int | None = None,
    place: int | None = None,
    disk: int = 0,
    comment: bytes = b"",
    comment_length: int | None = None,
    large: bytes = b"",
    between: bytes = b"",
    behind: bytes = b"",
) -> bytes:
    """Return a zip file; `large` are the 64-bit end records, and `between` precedes them."""
    body, directory = b"", b""
    for entry in entries:
        at = len(body) if entry.at is None else entry.at
        check = crc32(entry.content)
        nbytes = len(entry.content) if entry.size is None else entry.size
        packed = nbytes if entry.packed is None else entry.packed
        local = raw(entry.name if entry.local_name is None else entry.local_name)
        common = (entry.flags, entry.method, 0, 33, check, packed, nbytes)
        if entry.is_there:
            head = struct.pack("<4s5H3L2H", b"PK\3\4", 20, *common, len(local), 0)
            body += head + local + entry.content
        name = raw(entry.name)
        directory += struct.pack(
            "<4s6H3L5H2L", b"PK\1\2", 20, 20, *common, len(name), len(entry.extra), 0, 0, 0, 0, at
        )
        directory += name + entry.extra
    directory_size = len(directory) if size is None else size
    number = len(entries) if count is None else count
    start = len(body) if place is None else place
    length = len(comment) if comment_length is None else comment_length
    end = struct.pack("<4s4H2LH", END, disk, disk, number, number, directory_size, start, length)
    return body + directory + between + large + end + comment + behind


def large_end(count: int, size: int, start: int, at: int, *, disk: int = 0) -> bytes:
    """Return the 64-bit end record, which is at `at`, and its locator."""
    record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, disk, 0, count, count, size, start)
    return record + struct.pack("<4sLQL", b"PK\6\7", 0, at, 1)


def torch_zip(pickle: bytes, *members: Entry, **lies: object) -> bytes:
    """Return a zip file with torch's member names, and a storage of 4 floats."""
    first = Entry("m/data.pkl", pickle)
    return zip_of(first, *members, Entry("m/version", b"3\n"), **lies)  # type: ignore[arg-type]


def data(key: str = "0", content: bytes = bytes(16), **lies: object) -> Entry:
    return Entry(f"m/data/{key}", content, **lies)  # type: ignore[arg-type]


# Pickles that would run code in a program that executes them; the code is harmless.

SHELL = "exit 0"
CODE = "import sys; sys.attacked = True"
NOWHERE = "/nowhere/attacked"
_EMPTY = call("collections.OrderedDict")
_SYSTEM = call("os.system", SHELL)
_IMPORTED = call("builtins.__import__", "os")
_COMPILED = call("builtins.compile", CODE, "", "exec")
_NESTED = whole(_SYSTEM)
_PATH = call("builtins.getattr", _IMPORTED, "path")
_GOT = call("builtins.getattr", call("builtins.getattr", _PATH, "os"), "system")


def _attributes(**attributes: bytes) -> bytes:
    return mapping(*(text(name) + value for name, value in attributes.items()))


# Python raises an audit event for these, besides looking up a name.
LIVE: dict[str, bytes] = {
    # A call of a global by its name.
    "os.system": whole(_SYSTEM),
    "posix.system": whole(call("posix.system", SHELL)),
    "os.popen": whole(call("os.popen", SHELL)),
    "os.execv": whole(call("os.execv", "/bin/true", many(text("true")))),
    "os.posix_spawn": whole(call("os.posix_spawn", "/bin/true", many(text("true")), mapping())),
    "os.spawnlp": whole(call("os.spawnlp", integer(0), "true", "true")),
    "os.fork": whole(call("os.fork")),
    "pty.spawn": whole(call("pty.spawn", "true")),
    "subprocess.Popen": whole(call("subprocess.Popen", many(text("true")))),
    "subprocess.check_output": whole(call("subprocess.check_output", many(text("true")))),
    "subprocess.getoutput": whole(call("subprocess.getoutput", SHELL)),
    "eval": whole(call("builtins.eval", "__import__('os').system('exit 0')")),
    "exec": whole(call("builtins.exec", CODE)),
    "compile": whole(_COMPILED),
    "import": whole(call("builtins.__import__", "this")),
    "import_module": whole(call("importlib.import_module", "this")),
    "open": whole(call("builtins.open", NOWHERE, "w")),
    "io.open": whole(call("_io.FileIO", NOWHERE, "w")),
    "os.open": whole(call("os.open", NOWHERE, integer(577))),
    "remove": whole(call("os.remove", NOWHERE)),
    "rename": whole(call("os.rename", NOWHERE, NOWHERE)),
    "mkdir": whole(call("os.mkdir", NOWHERE)),
    "rmtree": whole(call("shutil.rmtree", NOWHERE)),
    "copyfile": whole(call("shutil.copyfile", NOWHERE, NOWHERE)),
    "socket": whole(call("_socket.socket")),
    "connection": whole(call("socket.create_connection", many(text("127.0.0.1"), integer(9)))),
    "urlopen": whole(call("urllib.request.urlopen", "http://127.0.0.1:9/")),
    "ctypes": whole(call("ctypes.CDLL", NONE)),
    "marshal": whole(call("marshal.loads", blob(marshal.dumps([1])))),
    "a function of code": whole(
        call(call("types.FunctionType", call("marshal.loads", blob(marshal.dumps(
            compile(CODE, "", "exec")))), mapping()))
    ),
    # A call through another object.
    "runpy": whole(call("runpy._run_code", CODE, mapping())),
    "timeit": whole(call("timeit.timeit", CODE)),
    "profile": whole(call("cProfile.run", CODE)),
    "getattr": whole(call(call("builtins.getattr", _IMPORTED, "system"), SHELL)),
    "getattr of getattr": whole(call(_GOT, SHELL)),
    "attrgetter": whole(call(call(call("operator.attrgetter", "system"), _IMPORTED), SHELL)),
    "methodcaller": whole(call(call("operator.methodcaller", "system", SHELL), _IMPORTED)),
    "a name with dots": whole(stacked("os", "path.os.system") + many(text(SHELL)) + REDUCE,
                              protocol=4),
    "a partial": whole(call(call("functools.partial", named("os.system"), SHELL))),
    "a deque of a map": whole(
        call("collections.deque", call("builtins.map", named("os.system"), many(text(SHELL))))
    ),
    "reduce": whole(call("functools.reduce", named("os.system"), many(), text(SHELL))
                    + b"0" + _SYSTEM),
    "pydoc": whole(call("pydoc.pipepager", "", SHELL)),
    "locate": whole(call(call("pydoc.locate", "os.system"), SHELL)),
    "a config of loggers": whole(call("logging.config.dictConfig", mapping(
        text("version") + integer(1),
        text("handlers") + mapping(text("h") + _attributes(
            **{"()": text("os.system"), "command": text(SHELL)})),
    ))),
    # Opcodes that call without REDUCE.
    "INST": b"(S'exit 0'\nios\nsystem\n.",
    "OBJ": whole(MARK + named("os.system") + text(SHELL) + b"o"),
    "OBJ of a class": whole(MARK + named("subprocess.Popen") + many(text("true")) + b"o"),
    "INST of a class": b"((S'true'\ntisubprocess\nPopen\n.",
    "NEWOBJ": whole(named("_io.FileIO") + many() + b"\x81" + _SYSTEM),
    "NEWOBJ_EX": whole(named("ctypes.CDLL") + many() + mapping() + b"\x92" + _SYSTEM, protocol=4),
    "__setstate__": whole(
        call("functools.partial", named("builtins.print")) + put(0)
        + many(named("os.system"), many(text(SHELL)), mapping(), NONE) + BUILD
        + get(0) + many() + REDUCE
    ),
    "an append of its own": whole(
        call("argparse.Namespace")
        + _attributes(append=named("os.system")) + BUILD + text(SHELL) + b"a"
    ),
    "an extend of its own": whole(
        call("argparse.Namespace")
        + _attributes(extend=call("operator.methodcaller", "system", SHELL)) + BUILD
        + MARK + _SYSTEM + b"e"
    ),
    "SETITEM into the environment": whole(
        named("os.environ") + text("ATTACKED") + text("yes") + b"s"
    ),
    "SETITEMS into the environment": whole(
        named("os.environ") + MARK + text("ATTACKED") + text("yes") + b"u"
    ),
    "the extension registry": whole(
        call("copyreg.add_extension", "os", "system", integer(240)) + b"0\x82\xf0"
        + many(text(SHELL)) + REDUCE
    ),
    "the extension registry by 4 bytes": whole(
        call("copyreg.add_extension", "posix", "system", integer(241)) + b"0\x84\xf1\0\0\0"
        + many(text(SHELL)) + REDUCE
    ),
    # Pickles in pickles.
    "a nested pickle": whole(call("pickle.loads", blob(_NESTED))),
    "a nested pickle of C": whole(call("_pickle.loads", blob(_NESTED))),
    "twice nested": whole(call("pickle.loads", blob(whole(call("pickle.loads", blob(_NESTED)))))),
    "an Unpickler": whole(
        call(call("builtins.getattr", call("pickle.Unpickler", call("io.BytesIO", blob(_NESTED))),
                  "load"))
    ),
    # Hidden attacks.
    "the result is dropped": whole(_SYSTEM + b"0" + _EMPTY),
    "the result is a key": whole(mapping(_SYSTEM + NONE)),
    "kept in the memo": whole(_SYSTEM + put(9) + b"0" + mapping(text("a") + get(9))),
    "behind a mark": whole(MARK + _SYSTEM + b"1" + _EMPTY),
    "Python 2's name": whole(call("__builtin__.eval", "__import__('os').system('exit 0')")),
    "it breaks afterwards": whole(_SYSTEM + b"\xff"),
    "it ends nowhere": whole(_SYSTEM)[:-1],
    "protocol 0": b"cos\nsystem\n(S'exit 0'\ntR.",
    "protocol 0 with escapes": b"cos\nsystem\n(S'\\x65xit\\0400'\ntR.",
    "names from the memo": whole(
        text("system") + put(7) + b"0" + text("os") + get(7) + b"\x93"
        + many(text(SHELL)) + REDUCE, protocol=4
    ),
    "a persistent id of a call": whole(_SYSTEM + b"Q"),
    "a buffer": whole(_SYSTEM + b"\x97", protocol=5),
    "what it calls is a call": whole(call(call("builtins.eval", "__import__('os').system"), SHELL)),
}  # fmt: skip

# Python does less for these, or needs another library.
OTHERS: dict[str, bytes] = {
    "frames that lie": whole(b"\x95" + b"\xff" * 7 + b"\x0f" + _SYSTEM, protocol=4),
    "a poisoned module": whole(named("os.path") + _attributes(attacked=NONE) + BUILD),
    "a poisoned class": whole(
        named("collections.OrderedDict") + many(NONE, _attributes(attacked=NONE)) + BUILD
    ),
    "a poisoned list of modules": whole(named("sys.modules") + text("attacked") + NONE + b"s"),
    "a poisoned path": whole(named("sys.path") + text(NOWHERE) + b"a"),
    "another __class__": whole(
        call("argparse.Namespace") + _attributes(
            __class__=named("subprocess.Popen"), __dict__=mapping(), __del__=named("os._exit"),
        ) + BUILD
    ),
    "a factory": whole(call("collections.defaultdict", named("os._exit"))),
    "torch's bytes": whole(call("torch.storage._load_from_bytes", blob(_NESTED))),
    "torch's types": whole(call(
        "torch._tensor._rebuild_from_type_v2", named("os.system"), named("torch.Tensor"),
        many(text(SHELL)), NONE)),
    "torch's types of types": whole(call(
        "torch._tensor._rebuild_from_type_v2", named("torch._tensor._rebuild_from_type_v2"), NONE,
        many(named("os.system"), NONE, many(text(SHELL)), NONE), NONE)),
    "torch's parameter of a call": whole(
        call("torch._utils._rebuild_parameter", _SYSTEM, b"\x88", _EMPTY)
    ),
    "torch's hooks": whole(call(
        "torch._utils._rebuild_tensor_v2", NONE, integer(0), many(), many(), b"\x89", _SYSTEM)),
    "torch's wrapper": whole(call("torch.jit.unsupported_tensor_ops.execWrapper", CODE)),
    "torch's environment": whole(call("torch.utils.collect_env.run", SHELL)),
    "NumPy's strings": whole(call("numpy.testing._private.utils.runstring", CODE, mapping())),
    "NumPy's load": whole(call("numpy.load", NOWHERE)),
    "NumPy's array of a class": whole(
        call("numpy.core.multiarray._reconstruct", named("subprocess.Popen"), many(integer(0)),
             blob(b"b")) + many(integer(1), many(), named("os.system"), b"\x89", _SYSTEM) + BUILD
    ),
    "NumPy's dtype of a call": whole(call("numpy.dtype", _SYSTEM, b"\x89", b"\x88")),
    "an encoding": whole(call("_codecs.encode", _SYSTEM, "rot13")),
    "a path of a call": whole(call("pathlib.PosixPath", "..", "..", NOWHERE)),
    "a call of a call of a call": whole(call(call(call("a.b")))),
    "a name with line feeds": whole(stacked("os\nsystem", "a\nb") + many(text(SHELL)) + REDUCE,
                                    protocol=4),
    "a name with control codes": whole(
        call(stacked("\x1b[2J\x1b]0;attacked\x07", "\x1b[31m\r\u202ea")), protocol=4
    ),
    "a name of surrogates": whole(call(stacked("\ud800", "\udfff")), protocol=4),
    "a name of nothing": whole(call(stacked("", "")), protocol=4),
    "a name of a number": whole(text("os") + integer(1) + b"\x93", protocol=4),
    "a name of a call": whole(text("os") + _SYSTEM + b"\x93", protocol=4),
    "a name longer than any": whole(call(stacked("a" * 100_000, "b" * 100_000)), protocol=4),
    "an unknown extension": whole(b"\x82\1" + many(text(SHELL)) + REDUCE),
    "an extension below 0": whole(b"\x84\xff\xff\xff\xff" + many(text(SHELL)) + REDUCE),
    "a persistent id": whole(text("../../etc/passwd") + b"Q"),
    "a persistent id in a line": b"(P../../etc/passwd\n.",
    "a persistent id that looks like a storage": whole(text(
        "('storage', <class 'os.system'>, '0', 'cpu', 4)") + b"Q"),
    "a storage of another class": whole(many(
        text("storage"), named("os.system"), text("0"), text("cpu"), integer(4)) + b"Q"),
    "a module by its id": whole(many(
        text("module"), named("os.system"), text(NOWHERE), text(CODE)) + b"Q"),
    "no arguments": whole(named("os.system") + text(SHELL) + REDUCE),
    "arguments that are a list": whole(named("os.system") + b"(" + text(SHELL) + b"lR"),
    "nothing on the stack": whole(REDUCE),
    "nothing below the mark": whole(b"(" + REDUCE),
    "no mark": whole(text("a") + b"t"),
    "only the end": whole(),
    "a state for nothing": whole(NONE + _attributes(a=NONE) + BUILD),
    "an object inside itself": whole(
        call("a.b") + put(0) + get(0) + BUILD + get(0) + b"a" + text("a") + get(0) + b"s"
    ),
    "an array inside itself": whole(
        call("numpy.core.multiarray._reconstruct", NONE) + put(0)
        + many(integer(1), many(), NONE, b"\x89", get(0)) + BUILD
    ),
    "a list inside itself": whole(b"]" + put(0) + get(0) + b"a"),
    "a dict inside itself": whole(b"}" + put(0) + text("a") + get(0) + b"s"),
    "a set of itself": whole(b"\x8f" + put(0) + b"(" + get(0) + b"\x90", protocol=4),
}  # fmt: skip

ATTACKS = {**LIVE, **OTHERS}
# Several pickles, or pickles at other places.
SEVERAL = {
    "a second pickle": whole(_EMPTY) + _NESTED,
    "a pickle before the stream's object": stream(_NESTED + whole(_EMPTY)),
    "the keys of a stream": stream(whole(_EMPTY), keys=_NESTED),
    "nothing but an end": STOP,
}


# Pickles of about `n` opcodes that mean far more than they say, or take long to read.

Made = Callable[[int], bytes]
_MULTIARRAY = "numpy.core.multiarray"


def _name(number: int) -> bytes:
    return text(f"k{number:06x}")


def _kept(value: bytes, again: bytes, n: int, before: bytes = b"") -> bytes:
    pairs = b"".join(_name(number) + again for number in range(n))
    return whole(before + value + put(0) + b"0" + b"}(" + pairs + b"u")


def _long(n: int) -> bytes:
    return text("a" * (10 * n))


def _all(n: int, element: bytes = NONE) -> bytes:
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
    "laughing states": _laughs(lambda below: call("a.b") + below + BUILD + below + BUILD,
                               call("a.b")),
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
    "sets of a list": lambda n: _kept(b"(" + NONE * n + b"l",
                                      named("builtins.set") + get(0) + b"\x85" + REDUCE, n),
    "sets of a tuple": lambda n: _kept(_all(n),
                                       named("builtins.frozenset") + get(0) + b"\x85" + REDUCE, n),
    "sparse tensors of many parts": lambda n: _kept(_all(n),
        named("torch._utils._rebuild_sparse_tensor") + NONE + get(0) + b"\x86" + REDUCE, n),
    "marks": lambda n: whole(b"(" * n + b"t" * n),
    "arguments that are many": lambda n: _kept(_all(n),
        named("torch._utils._rebuild_parameter") + get(0) + REDUCE, n),
    "arguments of objects": lambda n: _kept(_all(n), named("a.b") + get(0) + REDUCE, n),
    "a path": _called("pathlib.PosixPath", many(*[text("a" * 256)] * 64)),
    "a device": _called("torch.device", many(text("cuda"), integer(1 << 14_000))),
    "an array of too many arguments": _called(f"{_MULTIARRAY}._reconstruct", b"long"),
    "an object of too many arguments": _called("copyreg._reconstructor", b"long"),
    "bytes of a text": lambda n: _kept(_long(n),
                                       named("_codecs.encode") + get(0) + b"\x85" + REDUCE, n),
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
    "arrays over a text": lambda n: _kept(_long(n) + put(1) + b"0" + _DTYPE + put(2),
        _array_of(get(1), get(2)), n),
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


# Pickles that are nearly those that somebody wrote, and some that nobody would.

Changes = list[tuple[str, int, int, bytes]]

_FUNCTIONS = [
    "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_parameter", "torch._utils._rebuild_qtensor",
    "torch._utils._rebuild_sparse_tensor", "torch._utils._rebuild_nested_tensor",
    "torch._tensor._rebuild_from_type_v2", "torch._utils._rebuild_meta_tensor_no_storage",
    "torch.storage._load_from_bytes", "torch.fx.graph_module.reduce_graph_module",
    "torch.serialization._get_layout", "torch.Size", "torch.device", "torch.float16",
    "torch.per_tensor_affine", "torch.FloatStorage", "collections.OrderedDict",
    "collections.defaultdict", "builtins.set", "builtins.complex", "builtins.bytearray",
    "_codecs.encode", "copyreg._reconstructor", "argparse.Namespace", "pathlib.PosixPath",
    "numpy.dtype", "numpy.core.multiarray._reconstruct", "numpy.core.multiarray.scalar",
    "numpy._core.numeric._frombuffer", "a.Module", "__torch__.Module",
]  # fmt: skip
_TEXTS = [
    "", "a", "0", "<f4", ">f8", "O", "cpu", "strided", "_metadata", "_parameters", "_buffers",
    "_modules", "storage", "module", "a.b", "\ud800", "\n\x1b[2J", "#2", "g_idx", "weight",
]  # fmt: skip
_NUMBERS = [0, 1, 2, 4, -1, 255, 1 << 31, 1 << 62, 1 << 63, -(1 << 63), 1 << 70, 1 << 5000]
# What a pickle can be put together from, with all that has a meaning here.
PIECES = [
    *map(named, _FUNCTIONS), *map(text, _TEXTS), *map(integer, _NUMBERS), NONE, b"\x88", b"\x89",
    b"G\x7f\xf8" + bytes(6), blob(b""), blob(bytes(16)), blob(stream(whole(storage()))), MARK, MARK,
    MARK, TUPLE, TUPLE, TUPLE, b")", b"\x85", b"\x86", b"\x87", b"]", b"l", b"a", b"e", b"}", b"d",
    b"s", b"u", b"u", REDUCE, REDUCE, REDUCE, BUILD, BUILD, b"\x81", b"\x92", b"o",
    b"ios\nsystem\n",
    b"Q", b"Pa\n", b"2", b"0", b"1", b"\x8f", b"\x90", b"\x91", b"\x93", b"\x94", b"\x82\1",
    *map(put, range(3)), *map(get, range(3)), storage(), storage("1", 4, "torch.QInt8Storage"),
    tensor(storage()), tensor(storage(), b")", b")"), mapping(text("a") + NONE), call("a.b"),
    call("numpy.dtype", "f4"), b"\x95" + b"\xff" * 8, b"I01\n", b"L5L\n", b"S'\\x41'\n",
    b"F1e999\n",
]  # fmt: skip

changes: SearchStrategy[Changes] = st.lists(
    st.tuples(
        st.sampled_from(["insert", "insert", "copy", "cut", "swap", "replace", "bytes", "end"]),
        st.integers(0, 400),
        st.integers(0, 400),
        st.one_of(st.sampled_from(PIECES), st.binary(min_size=1, max_size=4)),
    ),
    min_size=1,
    max_size=4,
)
sequences: SearchStrategy[bytes] = st.lists(st.sampled_from(PIECES), max_size=24).map(b"".join)


def opcodes(raw: bytes) -> list[bytes]:
    places = [place or 0 for _, _, place in pickletools.genops(raw)]
    # The last of them, behind which a file may go on, has no argument.
    return [raw[a:b] for a, b in zip(places, [*places[1:], places[-1] + 1], strict=True)]


def changed(pieces: Sequence[bytes], drawn: Changes) -> bytes:
    """Put in, leave out, copy, exchange or change opcodes, at places modulo their number."""
    made = list(pieces)
    for change, first, second, content in drawn:
        at, other = first % (len(made) or 1), second % (len(made) or 1)
        if change == "insert" or not made:
            made.insert(at, content)
        elif change == "copy":
            made[at:at] = made[other : other + 1 + first % 7]
        elif change == "cut":
            del made[at : at + 1 + second % 3]
        elif change == "swap":
            made[at], made[other] = made[other], made[at]
        elif change == "replace":
            made[at] = content
        elif change == "bytes":
            inside = second % (len(made[at]) + 1)
            made[at] = made[at][:inside] + content + made[at][inside + len(content) :]
        else:
            del made[at:]
    return b"".join(made)


def bytewise(raw: bytes, drawn: Changes) -> bytes:
    """Change the bytes of a file in the same ways."""
    made = bytearray(raw)
    for change, first, second, content in drawn:
        at = (first * 401 + second) % (len(made) + 1)
        if change in {"insert", "copy"}:
            made[at:at] = content
        elif change == "end":
            del made[at:]
        else:
            made[at : at + len(content)] = b"" if change == "cut" else content
    return bytes(made)


# What `weightctl ls` says of files that it refuses, and what that costs.

MEASURE = Path(__file__).with_name("listing_costs.py")


def measured(directory: Path, names: Iterable[str]) -> dict[str, Any]:
    """Return what `ls` said of each file, all in one process, and what each cost."""
    paths = [str(directory / name) for name in names]
    done = subprocess.run(
        [sys.executable, str(MEASURE), *paths], capture_output=True, text=True, check=True
    )
    return {Path(line["path"]).name: line for line in json.loads(done.stdout)}


def assert_cheap(figures: dict[str, Any]) -> None:
    assert figures["seconds"] < 1
    assert figures["bytes"] < 100 << 20


def assert_one_error(figures: dict[str, Any]) -> None:
    assert (figures["code"], figures["stdout"]) == (2, "")
    assert figures["stderr"].startswith("error: ")
    assert "\nhint: " in figures["stderr"]
    assert "Traceback" not in figures["stderr"]
    assert figures["stderr"].replace("\n", "").isprintable()
