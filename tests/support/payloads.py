"""A harmless payload that says that it ran, and what hides it: tricks of opcodes, and containers.

Each container is undone with the library that programs use for that.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import struct
import tarfile
import zipfile
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from assembly import call, get, many, put, text

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CONTAINERS", "PAYLOAD", "RAN", "TAIL", "TRICKS", "Container", "frame", "ran", "run"]

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
    "a name that was duplicated": text("run") + b"0" + text(__name__) + b"20" + _stacked(
        b"", text("run")
    ),
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
    """Return what joblib wrote until 0.10."""
    return b"ZF" + hex(len(raw)).encode().ljust(19) + zlib.compress(raw)


def _npy(raw: bytes) -> bytes:
    """Return a NumPy file of numbers: no program looks for a pickle in one, but for the second."""
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (4,), }"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + bytes(4) + raw


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
    "gzip in two": Container(
        lambda raw: gzip.compress(raw[:5]) + gzip.compress(raw[5:]), gzip.decompress
    ),
    "bzip2": Container(bz2.compress, bz2.decompress),
    "xz": Container(lzma.compress, lzma.decompress),
    "LZMA": Container(
        lambda raw: lzma.compress(raw, format=lzma.FORMAT_ALONE), lzma.decompress
    ),
    "zlib": Container(zlib.compress, zlib.decompress),
    "zlib of another level": Container(lambda raw: zlib.compress(raw, 1, 9), zlib.decompress),
    "ZFile": Container(_zfile, lambda raw: zlib.decompress(raw[21:])),
}  # fmt: skip
