"""Files that run code in a program do not pass a scan; each is tested with its program.

Every payload does run here: an attack only counts if it works.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import lzma
import pickle
import re
import struct
import sys
import tarfile
import warnings
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import payloads
from lazy import torch
from payloads import (
    CONTAINERS,
    NOTHING,
    PAYLOAD,
    TAIL,
    TRICKS,
    blob,
    many,
    mapping,
    named,
    ran,
    stacked,
    stream,
    text,
)
from weightctl.cli.scanned import ScanChoices, scan_paths

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Load = Callable[[Path], object]

NAMED, UNREAD = {"named"}, {"unread"}
VERDICTS = {"named": re.compile("  (?:dangerous|unknown)  "), "unread": re.compile("  unread  ")}
# For these files, the scan also reports that programs read them in different ways.
UNSURE = {
    "a frame in a frame", "frames that cross", "a frame that a line crosses",
    "a frame that is dropped", "a late protocol later", "an unknown opcode later", "cut off",
}  # fmt: skip


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        return pid


def by_pickle(path: Path) -> object:
    return _Unpickler(io.BytesIO(path.read_bytes())).load()


def by_python(path: Path) -> object:
    return pickle._Unpickler(io.BytesIO(path.read_bytes())).load()  # type: ignore[attr-defined]


def by_one_unpickler(path: Path) -> object:
    unpickler = pickle.Unpickler(io.BytesIO(path.read_bytes()))
    return unpickler.load(), unpickler.load()


def by_numpy(path: Path) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.load(path, allow_pickle=True)


def by_numpy_twice(path: Path) -> object:
    with path.open("rb") as file:
        return np.load(file, allow_pickle=True), np.load(file, allow_pickle=True)


def by_numpy_in_zip(path: Path) -> object:
    return by_numpy(path)["a"]  # type: ignore[index]


def by_torch(path: Path) -> object:
    return torch.load(path, weights_only=False)


def by_torch_twice(path: Path) -> object:
    with path.open("rb") as file:
        return torch.load(file, weights_only=False), torch.load(file, weights_only=False)


def by_gzip(path: Path) -> object:
    with gzip.open(path) as file:
        return pickle.load(file)


def by_zlib(path: Path) -> object:
    """Load as joblib does: its file object decompresses a block at a time."""
    unpacked = zlib.decompressobj().decompress(path.read_bytes())
    return pickle.loads(unpacked)


def by_lzma(path: Path) -> object:
    with lzma.open(path, format=lzma.FORMAT_ALONE) as file:
        return pickle.load(file)


def by_zip(name: str, load: Callable[[bytes], object] = pickle.loads) -> Load:
    def by(path: Path) -> object:
        with zipfile.ZipFile(path) as archive:
            return load(archive.read(name))

    return by


def by_tar(name: str) -> Load:
    def by(path: Path) -> object:
        with tarfile.open(path) as tar:
            return pickle.load(tar.extractfile(name))  # type: ignore[arg-type]

    return by


def zipped(name: str, raw: bytes, method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("archive/version", "3\n")
        archive.writestr(name, raw)
    return file.getvalue()


def tar_of(kind: bytes = tarfile.REGTYPE, **members: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, raw in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(raw)
            entry.type = kind
            # A byte above 127, so that the signed and the unsigned checksum of a header differ.
            entry.uname = "\u00e9"
            tar.addfile(entry, io.BytesIO(raw))
    return file.getvalue()


def signed(raw: bytes) -> bytes:
    made = bytearray(raw)
    at = 0
    while made[at : at + 1].strip(b"\0"):
        made[at : at + 512] = payloads.summed_signed(bytes(made[at : at + 512]))
        size = int(bytes(made[at + 124 : at + 135]), 8)
        at += 512 + size + -size % 512
    return bytes(made)


def npy(header: str, raw: bytes = PAYLOAD, version: int = 1) -> bytes:
    encoded = header.encode("utf-8" if version == 3 else "latin-1")
    length = struct.pack("<H" if version == 1 else "<I", len(encoded))
    return b"\x93NUMPY" + bytes([version, 0]) + length + encoded + raw


ARRAY = "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
NUMBERS = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", bytes(4))


def with_array(raw: bytes, dtype: bytes = b"", *, aligned: bool = True) -> bytes:
    """Return a pickle of joblib, with the bytes of an array between opcodes."""
    kind = dtype or (
        named("numpy.dtype") + many(text("u1"), b"\x89", b"\x88") + b"R"
        + b"(K\x03" + text("|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
    )  # fmt: skip
    state = mapping(
        text("subclass") + named("numpy.ndarray"),
        text("shape") + b"K\x04\x85",
        text("dtype") + kind,
        text("numpy_array_alignment_bytes") + (b"K\x10" if aligned else b"N"),
    )
    wrapper = stacked("joblib.numpy_pickle", "NumpyArrayWrapper") + b")\x81" + state + b"b"
    return b"\x80\x04(" + wrapper + raw


class _Wrapper:
    """The class of this name in joblib, as far as joblib's unpickler needs it."""

    def __init__(self) -> None:
        self.shape: tuple[int, ...] = ()
        self.dtype: Any = None
        self.numpy_array_alignment_bytes: int | None = None

    def read(self, file: io.BytesIO) -> Any:
        if self.dtype.hasobject:
            return pickle.load(file)
        if self.numpy_array_alignment_bytes is not None:
            file.read(file.read(1)[0])
        return file.read(int(np.prod(self.shape)) * self.dtype.itemsize)


class _JoblibUnpickler(pickle._Unpickler):  # type: ignore[name-defined,misc]
    """`NumpyUnpickler` of joblib, without the code that reads other files."""

    dispatch = pickle._Unpickler.dispatch.copy()  # type: ignore[attr-defined]

    def find_class(self, module: str, name: str) -> Any:
        if name == "NumpyArrayWrapper":
            return _Wrapper
        return super().find_class(module, name)

    def load_build(self) -> None:
        pickle._Unpickler.load_build(self)  # type: ignore[attr-defined]
        if isinstance(self.stack[-1], _Wrapper):
            self.stack.append(self.stack.pop().read(self.file))

    dispatch[pickle.BUILD[0]] = load_build


def by_joblib(path: Path) -> object:
    unpickler = _JoblibUnpickler(file := io.BytesIO(path.read_bytes()))
    unpickler.file = file
    return unpickler.load()


def by_pickle_with_joblib(path: Path) -> object:
    class Plain(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            return _Wrapper if name == "NumpyArrayWrapper" else super().find_class(module, name)

    return Plain(io.BytesIO(path.read_bytes())).load()


OBJECTS = named("numpy.dtype") + many(text("O8"), b"\x89", b"\x88") + b"R"
IN_TAR = tar_of(storages=PAYLOAD, tensors=NOTHING, pickle=NOTHING)
_END = b"0N."
# Files in which the first version of the scan found no pickle, and similar ones.
FILES: dict[str, tuple[bytes, Load, set[str]]] = {
    **{
        f"{name}.dat": (
            raw, by_pickle, NAMED | UNREAD if name in UNSURE else NAMED,
        ) for name, raw in TRICKS.items()
    },
    "names of the pickle before.dat": (
        text(payloads.__name__) + b"q\x000N." + b"h\x00" + text("run") + b"\x93)R.",
        by_one_unpickler, NAMED,
    ),
    "read by Python.dat": (b"\x80\x04" + payloads.frame(1 << 40) + TAIL, by_python, NAMED | UNREAD),
    "another order.npy": (
        npy("{'fortran_order': False, 'shape': (1,), 'descr': '|O', }"), by_numpy, NAMED,
    ),
    "spelled out.npy": (npy(ARRAY.replace("|O", "object")), by_numpy, NAMED),
    "without a byte order.npy": (npy(ARRAY.replace("|O", "O")), by_numpy, NAMED),
    "escaped.npy": (npy(ARRAY.replace("|O", r"|\x4f")), by_numpy, NAMED),
    "escaped otherwise.npy": (npy(ARRAY.replace("|O", r"\N{VERTICAL LINE}O")), by_numpy, NAMED),
    "glued.npy": (npy(ARRAY.replace("'|O'", "'|' 'O'")), by_numpy, NAMED),
    "as a field.npy": (npy(ARRAY.replace("'|O'", "[('a', '<i4'), ('b', '|O')]")), by_numpy, NAMED),
    "as a field of a field.npy": (
        npy(ARRAY.replace("'|O'", "[('a', [('b', '|O', (2,))])]")), by_numpy, NAMED,
    ),
    "as several.npy": (npy(ARRAY.replace("|O", "i4,O")), by_numpy, NAMED | UNREAD),
    "as an array.npy": (npy(ARRAY.replace("'|O'", "('|O', (2,))")), by_numpy, NAMED),
    "long.npy": (npy(ARRAY.ljust(60_000)), by_numpy, NAMED),
    "longer.npy": (npy(ARRAY.ljust(200_000), version=2), by_numpy, NAMED | UNREAD),
    "of version 2.npy": (npy(ARRAY, version=2), by_numpy, NAMED),
    "of version 3.npy": (npy(ARRAY, version=3), by_numpy, NAMED),
    "of Python 2.npy": (npy(ARRAY.replace("(1,)", "(1L,)")), by_numpy, NAMED),
    "behind numbers.npy": (NUMBERS + npy(ARRAY), by_numpy_twice, NAMED),
    "not an array.npy": (PAYLOAD, by_numpy, NAMED),
    "an array.npz": (zipped("a.npy", npy(ARRAY)), by_numpy_in_zip, NAMED),
    "a deflated array.npz": (
        zipped("a.npy", npy(ARRAY), zipfile.ZIP_DEFLATED), by_numpy_in_zip, NAMED,
    ),
    "zlib.joblib": (zlib.compress(PAYLOAD), by_zlib, NAMED),
    "zlib without its sum.joblib": (zlib.compress(PAYLOAD)[:-4], by_zlib, NAMED),
    "LZMA.joblib": (CONTAINERS["LZMA"].wrap(PAYLOAD), by_lzma, NAMED),
    "gzip with a wrong sum.gz": (gzip.compress(PAYLOAD)[:-8] + bytes(8), by_gzip, NAMED),
    "gzip without an end.gz": (gzip.compress(PAYLOAD)[:-8], by_gzip, NAMED),
    "behind an array.joblib": (with_array(b"\2aa" + b"c\0.x" + TAIL), by_joblib, NAMED),
    "behind an old array.joblib": (with_array(b"c\0.x" + TAIL, aligned=False), by_joblib, NAMED),
    "in an array.joblib": (with_array(TAIL), by_pickle_with_joblib, NAMED | UNREAD),
    "as an array.joblib": (with_array(PAYLOAD + _END, OBJECTS), by_joblib, NAMED),
    "behind an array of objects.joblib": (
        with_array(NOTHING + TAIL, OBJECTS), by_joblib, NAMED,
    ),
    "a zip in a zip.zip": (
        zipped("a", zipped("b", PAYLOAD)),
        by_zip("a", lambda raw: pickle.loads(zipfile.ZipFile(io.BytesIO(raw)).read("b"))),
        NAMED,
    ),
    "a checkpoint in a zip.zip": (
        zipped("a.pt", zipped("archive/data.pkl", PAYLOAD)),
        by_zip("a.pt", lambda raw: torch.load(io.BytesIO(raw), weights_only=False)), NAMED,
    ),
    "a gzip in a zip.zip": (
        zipped("a.pkl.gz", gzip.compress(PAYLOAD)),
        by_zip("a.pkl.gz", lambda raw: pickle.loads(gzip.decompress(raw))), NAMED,
    ),
    "deflated.zip": (zipped("weights", PAYLOAD, zipfile.ZIP_DEFLATED), by_zip("weights"), NAMED),
    "as a storage.zip": (zipped("a/data/0", PAYLOAD), by_zip("a/data/0"), NAMED),
    "a joblib.zip": (zipped("a.joblib", PAYLOAD), by_zip("a.joblib"), NAMED),
    "behind a script.zip": (b"#!/bin/sh\n" + zipped("a", PAYLOAD), by_zip("a"), NAMED),
    "deflated.pt": (zipped("archive/data.pkl", PAYLOAD, zipfile.ZIP_DEFLATED), by_torch, NAMED),
    "in a tar.tar": (tar_of(a=PAYLOAD), by_tar("a"), NAMED),
    **{
        f"of type {kind!r} in a tar.tar": (tar_of(kind, a=PAYLOAD), by_tar("a"), NAMED | UNREAD)
        for kind in (b"8", b"A", b"Z", b"\xff")
    },
    "of type 7 in a tar.tar": (tar_of(b"7", a=PAYLOAD), by_tar("a"), NAMED),
    "of an unknown type.pt": (
        tar_of(b"8", storages=PAYLOAD, tensors=NOTHING, pickle=NOTHING), by_torch, NAMED | UNREAD,
    ),
    "signed.pt": (signed(IN_TAR), by_torch, NAMED),
    "unsigned.pt": (IN_TAR, by_torch, NAMED),
    "behind the storages.pt": (stream(NOTHING) + stream(PAYLOAD), by_torch_twice, NAMED | UNREAD),
    "bytes.dat": (b"\x80\x04" + blob(b"x") + b"0" + TAIL, by_pickle, NAMED),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_runs_something_does_not_pass(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, load, verdict = FILES[name]
    path = tmp_path / name
    path.write_bytes(raw)
    assert ran(lambda: load(path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert scan_paths([str(path)], ScanChoices()) == 1
    said = capsys.readouterr().out
    assert {each for each, pattern in VERDICTS.items() if pattern.search(said)} == verdict
    assert not payloads.RAN


# The heads of GGUF and of safetensors are opcodes, too.
@pytest.mark.parametrize("head", [b"", b"\x80\x04", b"GGUF\3\0\0\0\0", b"G\0\0\0\0\0\0\0{"])
@pytest.mark.parametrize("module", ["my model", "a\u200bb", "x-y", "a,b", "(m)", "modell\u00fc"])
def test_a_module_with_any_name_can_be_imported(
    module: str,
    head: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, module, payloads)
    path = tmp_path / "a.bin"
    path.write_bytes(head + named(f"{module}.run") + b")R." + bytes(100))
    assert ran(lambda: by_pickle(path))
    assert scan_paths([str(path)], ScanChoices()) == 1
    assert VERDICTS["named"].search(capsys.readouterr().out)


PACKED = {
    "zstd.pkl.zst": b"\x28\xb5\x2f\xfd" + bytes(20),
    "lz4.joblib": b"\x04\x22\x4d\x18" + bytes(20),
    "encrypted.pkl": b"\xf3\x01" * 40,
    "an early end.joblib": zlib.compress(pickle.dumps([*range(900)]))[:-40],
    "other bytes.pt": b"Salted__" + bytes(40),
    "trailing bytes.pkl": NOTHING + b"x",
    "trailing bytes.pkl.gz": gzip.compress(NOTHING) + b"x",
    "trailing bytes.dat": NOTHING + b"x",
    "trailing numbers.pt": stream(NOTHING) + bytes(8),
    "in a zip.zip": zipped("a.pkl", NOTHING + b"x"),
    "a later protocol.dat": b"\x80\x06" + pickle.dumps(["a" * 9])[2:],
    "of an unknown type.npy": npy(ARRAY.replace("|O", "StringDType"), bytes(16)),
    "a header that is not one.npy": npy("{'descr': '<f4'", bytes(16)),
    "an array of an unknown size.joblib": with_array(bytes(9), text("u1")) + _END,
    "an array of unknown padding.joblib": with_array(bytes(4)).replace(b"K\x10", b"NQ") + _END,
    "a negative memo index.pkl": b"\x80\x02Np-1\n.",
}


@pytest.mark.parametrize("name", PACKED)
def test_what_cannot_be_judged_does_not_pass(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(PACKED[name])
    assert scan_paths([str(tmp_path / name)], ScanChoices()) == 1
    assert "cannot be judged" in capsys.readouterr().out


def test_an_encrypted_member_does_not_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = bytearray(zipped("a", NOTHING))
    for magic, place in ((b"PK\1\2", 8), (b"PK\3\4", 6)):
        at = raw.rindex(magic) + place
        raw[at] |= 1
    (tmp_path / "a.zip").write_bytes(raw)
    assert scan_paths([str(tmp_path / "a.zip")], ScanChoices()) == 1
    assert "it is encrypted: decrypt it first" in capsys.readouterr().out


def test_the_output_of_a_scan_can_be_dropped(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(PAYLOAD)
    with contextlib.redirect_stdout(io.StringIO()):
        assert scan_paths([str(tmp_path / "a.pkl")], ScanChoices(as_json=True, quiet=True)) == 1
