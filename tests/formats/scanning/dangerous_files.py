"""Files that run code, the programs that run it, and what a scan must say of them."""

from __future__ import annotations

import base64
import gzip
import io
import json
import lzma
import marshal
import pickle
import struct
import sys
import tarfile
import warnings
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import jinja2
import numpy as np
import yaml

import payloads
from build import Gguf
from lazy import peft, torch, transformers
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
    stacked,
    stream,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Load = Callable[[Path], object]

NAMED, UNREAD = {"named"}, {"unread"}
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


def by_pickle_of(module: str) -> Load:
    """Load where another module has the payload, too."""

    def by(path: Path) -> object:
        with patch.dict(sys.modules, {module: payloads}):
            return by_pickle(path)

    return by


def by_pickle_twice(path: Path) -> object:
    with path.open("rb") as file:
        return pickle.load(file), pickle.load(file)


def by_container(container: payloads.Container) -> Load:
    return lambda path: pickle.loads(container.unwrap(path.read_bytes()))


def by_yaml(path: Path) -> object:
    return yaml.unsafe_load(path.read_bytes())


def by_jinja(path: Path) -> object:
    template = path.read_text()
    if path.suffix == ".json":
        template = json.loads(template)["chat_template"][0]["template"]
    return jinja2.Environment().from_string(template).render(messages=[])


# Programs that run a Python file beside the file with its name.


def beside(path: Path, name: str) -> str:
    (path.parent / name).write_text("import payloads\npayloads.run()\n")
    return str(path.parent)


def by_auto_config(path: Path) -> object:
    place = beside(path, "conf.py")
    return transformers.AutoConfig.from_pretrained(place, trust_remote_code=True)


def by_auto_tokenizer(path: Path) -> object:
    (path.parent / "config.json").write_text('{"model_type": "llama"}')
    place = beside(path, "slow.py")
    return transformers.AutoTokenizer.from_pretrained(place, trust_remote_code=True)


def by_pipeline(path: Path) -> object:
    place = beside(path, "pairs.py")
    return transformers.pipeline("pairs", model=place, trust_remote_code=True)


def by_diffusers(path: Path) -> object:
    import diffusers

    place = beside(path, "mine.py")
    return diffusers.DiffusionPipeline.from_pretrained(place, trust_remote_code=True)


def by_peft(path: Path) -> object:
    with patch.object(sys, "path", [beside(path, "evil_net.py"), *sys.path]):
        return peft.AutoPeftModel.from_pretrained(path.parent, import_allowlist=["evil_net"])


SLOW = {by_auto_config, by_auto_tokenizer, by_pipeline, by_diffusers, by_peft}


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
_MAGIC = 0x1950A86A20F9469CFC6C


def old_tar_of(*members: tuple[str, bytes], first: str = "") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in ([(first, b"")] if first else []) + [*members]:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return file.getvalue()


_REST = (("tensors", pickle.dumps(0, 2)), ("pickle", NOTHING))
_MEMBERS = (("storages", PAYLOAD), *_REST)


def without_ustar(raw: bytes) -> bytes:
    """Return a tar file of the format before ustar (1979)."""
    made = bytearray(raw)
    at = 0
    while at < len(made) and made[at]:
        made[at + 257 : at + 265] = bytes(8)
        size = int(bytes(made[at + 124 : at + 135]), 8)
        summed(made, at)
        at += 512 + size + -size % 512
    return bytes(made)


def summed(made: bytearray, at: int = 0) -> None:
    made[at + 148 : at + 156] = b" " * 8
    made[at + 148 : at + 156] = b"%06o\0 " % sum(made[at : at + 512])


def stream_and_tar() -> bytes:
    made = bytearray(old_tar_of(*_MEMBERS, first="x" * 90))
    pickles = [pickle.dumps(each, 2) for each in (_MAGIC, 1001, {}, {}, [])]
    made[:100] = b"".join(pickles).ljust(100, b"\0")
    summed(made)
    return bytes(made)


def behind_numbers(length: int, *, behind: bytes = b"") -> bytes:
    """Return storages whose entry names two types; the data has the length of the first."""
    entry = b"\x80\x02(X\x01\0\0\x001X\x03\0\0\0cpuctorch\nFloatStorage\nctorch\nDoubleStorage\n0t."
    numbers = struct.pack("<q", length) + bytes(4 * length)
    return old_tar_of(("storages", pickle.dumps(1, 2) + entry + numbers + PAYLOAD + behind), *_REST)


def two_places() -> bytes:
    """Return a zip file with two 64-bit offsets for its pickle; torch uses the first."""
    benign = NOTHING.ljust(len(PAYLOAD), b"\0")
    version = payloads.Entry("archive/version", b"3\n")
    first = 30 + len(version.name) + len(version.content)
    second = first + 30 + len("archive/data.pkl") + len(PAYLOAD)
    extra = b"".join(struct.pack("<2HQ", 1, 8, place) for place in (first, second))
    hidden = payloads.Entry("archive/data.pkl", PAYLOAD, at=0xFFFFFFFF, extra=extra)
    raw = payloads.zip_of(version, hidden)
    # The harmless pickle is between the attack and the directory.
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 33, 0, *[len(benign)] * 2, 16, 0)
    added = local + b"archive/data.pkl" + benign
    end = raw.rindex(b"PK\5\6")
    place = struct.unpack_from("<L", raw, end + 16)[0]
    moved = raw[end : end + 16] + struct.pack("<L", place + len(added)) + raw[end + 20 :]
    return raw[:place] + added + raw[place:end] + moved


# Files in which the first version of the scan found no pickle, and similar ones.
_PICKLES: dict[str, tuple[bytes, Load | None, set[str]]] = {
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
    "an array of an unknown size.joblib": (
        with_array(bytes(9), text("u1")) + _END, None, NAMED | UNREAD,
    ),
    "an array of unknown padding.joblib": (
        with_array(bytes(4)).replace(b"K\x10", b"NQ") + _END, None, NAMED | UNREAD,
    ),
    "bytes.dat": (b"\x80\x04" + blob(b"x") + b"0" + TAIL, by_pickle, NAMED),
    "of protocol 1.pkl": (b"\x80\x01" + TAIL, by_pickle, NAMED),
    "with a byte behind.pkl": (TAIL + b"x", by_pickle, NAMED | UNREAD),
    "the second.pkl": (NOTHING + PAYLOAD, by_pickle_twice, NAMED),
    "as GGUF.gguf": (b"GGUF\3\0\0\0\0" + TAIL, by_pickle, NAMED | UNREAD),
    "late magic.pt": (b"\x80\x02" + b"N0" * 20 + stream(PAYLOAD)[2:], by_torch, NAMED),
    "magic in text.pt": (
        b"\x80\x02L%dL\n." % _MAGIC + pickle.dumps(1001, 2) + NOTHING + PAYLOAD, by_torch, NAMED,
    ),
    "large letters.pt": (zipped("archive/DATA.PKL", PAYLOAD), by_torch, NAMED),
    "two places.pt": (two_places(), by_torch, NAMED | UNREAD),
    "a dropped frame.pt": (
        zipped("archive/data.pkl", TRICKS["a frame that is dropped"]), by_torch, NAMED | UNREAD,
    ),
    "storages behind another.pt": (old_tar_of(*_MEMBERS, first="a"), by_torch, NAMED),
    "storages of an old tar.pt": (without_ustar(old_tar_of(*_MEMBERS)), by_torch, NAMED),
    "storages twice.pt": (
        old_tar_of(("storages", PAYLOAD), ("./storages", NOTHING), *_REST), None, NAMED,
    ),
    "a stream that is a tar.pt": (stream_and_tar(), by_torch, NAMED | UNREAD),
    "behind numbers.pt": (behind_numbers(16, behind=bytes(300)), by_torch, NAMED | UNREAD),
    "behind more numbers.pt": (behind_numbers(40), by_torch, NAMED),
    # The heads of GGUF and of safetensors are opcodes, too.
    **{
        f"{module} behind {head!r}.bin": (
            head + named(f"{module}.run") + b")R." + bytes(100), by_pickle_of(module),
            NAMED | UNREAD,
        )
        for head in (b"", b"\x80\x04", b"GGUF\3\0\0\0\0", b"G\0\0\0\0\0\0\0{")
        for module in ("my model", "a\u200bb", "x-y", "a,b", "(m)", "modell\u00fc")
    },
    **{
        f"{name}.packed": (container.wrap(PAYLOAD), by_container(container), NAMED)
        for name, container in CONTAINERS.items()
    },
}  # fmt: skip

# Code outside of pickles.

TEMPLATE = "{{ cycler.__init__.__globals__.__builtins__.__import__('payloads').run() }}"
_REACHED = "a chat template that reaches for __builtins__, __globals__, __import__, __init__"


def lambda_layer(source: str) -> dict[str, Any]:
    """Return the config that Keras 3 writes for a Lambda layer."""
    code = base64.b64encode(marshal.dumps(eval(source).__code__)).decode()
    function = {"class_name": "__lambda__", "config": {"code": code, "defaults": None}}
    return {"module": "keras.layers", "class_name": "Lambda", "config": {"function": function}}


def model_of(layer: dict[str, Any]) -> dict[str, Any]:
    return {"module": "keras", "class_name": "Sequential", "config": {"layers": [layer]}}


HARMFUL = lambda_layer("lambda x: __import__('os').system('id')")
HARMLESS = lambda_layer("lambda x: x / 255.0")
DENSE = {"module": "keras.layers", "class_name": "Dense", "registered_name": None}


def hdf5_of(config: Any, **attributes: Any) -> bytes:
    import h5py

    file = io.BytesIO()
    with h5py.File(file, "w") as made:
        made.attrs["model_config"] = json.dumps(config)
        for name, value in attributes.items():
            made.attrs[name] = value
    return file.getvalue()


def json_of(document: Any) -> bytes:
    return json.dumps(document).encode()


def escaped(raw: bytes, word: bytes) -> bytes:
    """Return JSON in which the letters of a word are escapes."""
    return raw.replace(word, b"".join(b"\\u%04x" % letter for letter in word))


def keras_of(config: bytes) -> bytes:
    return members_of(**{"config.json": config})


def members_of(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, raw in members.items():
            archive.writestr(name, raw)
    return file.getvalue()


# A file name, its bytes, what is found (the severity and the start of the text), and the program.
DANGEROUS, UNKNOWN = "dangerous", "unknown"
_CODE: dict[str, tuple[Any, ...]] = {
    "a Lambda layer": ("model.keras", keras_of(json_of(model_of(HARMFUL))),
        DANGEROUS, "a Lambda layer of Keras"),
    "a Lambda layer with escapes": ("model.keras",
        keras_of(escaped(json_of(model_of(HARMFUL)), b"class_name")),
        DANGEROUS, "a Lambda layer of Keras"),
    "a harmless Lambda layer": ("model.keras", keras_of(json_of(model_of(HARMLESS))),
        UNKNOWN, "a Lambda layer of Keras"),
    "a Lambda layer in HDF5": ("model.h5", hdf5_of(model_of(HARMFUL)),
        DANGEROUS, "a Lambda layer of Keras"),
    "a class of another module": ("config.json",
        json_of(model_of({"module": "mylib.layers", "class_name": "Attention"})),
        UNKNOWN, "mylib.layers.Attention, which Keras imports"),
    "a function of os": ("model.keras",
        keras_of(json_of({"module": "os", "class_name": "system", "config": "id"})),
        DANGEROUS, "os.system, which Keras imports"),
    "a repeated key": ("config.json",
        b'{"class_name": "Dense", "module": "os", "class_name": "system", "module": "keras"}',
        DANGEROUS, "os.system, which Keras imports"),
    "a class of Python in UTF-16": ("config.json",
        json.dumps({"module": "builtins", "class_name": "eval"}).encode("utf-16"),
        DANGEROUS, "builtins.eval, which Keras imports"),
    "objects of PyTables": ("data.h5", hdf5_of({}, PYTABLES_FORMAT_VERSION="2.1"),
        UNKNOWN, "objects that PyTables unpickles"),
    "a pickle in PyTables": ("data.h5",
        hdf5_of({}, PYTABLES_FORMAT_VERSION="2.1", x=b"cos\nsystem\n(S'id'\ntR."),
        DANGEROUS, "a pickle in HDF5"),
    "chunks of zarr": (".zarray", json_of({"dtype": "|O", "filters": [{"id": "pickle"}]}),
        UNKNOWN, "chunks that zarr unpickles"),
    "auto_map": ("config.json",
        json_of({"model_type": "mine", "auto_map": {"AutoConfig": "conf.Conf"}}),
        UNKNOWN, "conf.Conf, which auto_map names", by_auto_config),
    "auto_map of a tokenizer": ("tokenizer_config.json",
        json_of({"auto_map": {"AutoTokenizer": ["slow.Slow", None]}}),
        UNKNOWN, "slow.Slow, which auto_map names", by_auto_tokenizer),
    "a custom pipeline": ("config.json",
        json_of({"model_type": "llama", "custom_pipelines": {
            "pairs": {"impl": "pairs.Pairs", "pt": ["AutoModel"], "type": "text"},
        }}),
        UNKNOWN, "pairs.Pairs, which a custom pipeline names", by_pipeline),
    "a pipeline of diffusers": ("model_index.json", json_of({"_class_name": ["mine", "Mine"]}),
        UNKNOWN, "mine, which a custom pipeline names", by_diffusers),
    "a module of sentence-transformers": ("modules.json",
        json_of([{"idx": 0, "name": "0", "path": "", "type": "custom_st.Transformer"}]),
        UNKNOWN, "custom_st.Transformer, which sentence-transformers imports"),
    "a library of PEFT": ("adapter_config.json",
        json_of({"auto_mapping": {"base_model_class": "Net", "parent_library": "os.net"}}),
        DANGEROUS, "os.net, which PEFT imports"),
    "another library of PEFT": ("adapter_config.json",
        json_of({"peft_type": "LORA", "base_model_name_or_path": "a",
                 "auto_mapping": {"base_model_class": "Net", "parent_library": "evil_net"}}),
        UNKNOWN, "evil_net, which PEFT imports", by_peft),
    "a target of Hydra": ("model_config.yaml", b"model:\n  _target_: os.system\n",
        DANGEROUS, "os.system, which Hydra imports"),
    "a target of Hydra in a tar": ("model.nemo",
        tar_of(**{"model_config.yaml": b"_target_: a.B\n"}),
        UNKNOWN, "a.B, which Hydra imports"),
    "a tag of YAML": ("a.yml", b"a: !!python/object/apply:payloads.run []\n",
        DANGEROUS, "a YAML tag that creates Python objects", by_yaml),
    "an escaped tag of YAML": ("a.yml", b"a: !!%70ython/object/apply:payloads.run []\n",
        DANGEROUS, "a YAML tag that creates Python objects", by_yaml),
    "a tag of YAML with a prefix": ("a.yml",
        b"%TAG !e! tag:yaml.org,2002:pyth\n---\na: !e!on/object/apply:payloads.run []\n",
        DANGEROUS, "a YAML tag that creates Python objects", by_yaml),
    "a chat template": ("chat_template.jinja", TEMPLATE.encode(),
        DANGEROUS, _REACHED, by_jinja),
    "a chat template in JSON": ("tokenizer_config.json",
        json_of({"chat_template": [{"name": "default", "template": TEMPLATE}]}),
        DANGEROUS, _REACHED, by_jinja),
    "a chat template in GGUF": ("model.gguf",
        Gguf().file(values={"tokenizer.chat_template": ("string", TEMPLATE)}),
        DANGEROUS, _REACHED),
    "a computed name in a template": ("chat_template.jinja",
        b"{{ ''|attr('_' + '_class_' + '_') }}",
        UNKNOWN, "a chat template that computes the names of attributes"),
    "an expression of torch.export": ("models/model.json",
        json_of({"graph_module": {}, "range": {"expr_str": "__import__('os').system('id')"}}),
        DANGEROUS, "the expression"),
    "native code": ("model.pt2", members_of(**{"m/data/a.so": b"\x7fELF"}),
        DANGEROUS, "native code"),
    "source in an archive": ("package.pt", members_of(**{"m/net.py": b"class Net: ...\n"}),
        UNKNOWN, "Python source"),
    "operations of TensorFlow": ("saved_model.pb", b"\n\x0f\x12\x08\n\x08ReadFile",
        DANGEROUS, "a TensorFlow operation on files"),
}  # fmt: skip
# What cannot be judged.
_UNREAD: dict[str, bytes] = {
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
    "a negative memo index.pkl": b"\x80\x02Np-1\n.",
}


class Case(NamedTuple):
    """A file, the program that runs what it has, and what the scan says.

    `load` is None where the program is not installed. `verdict` has severities, or "named" for any
    severity but "known", and "unread"; `text` is the start of the text of code outside of pickles.
    """

    file: str
    raw: bytes
    load: Load | None
    verdict: set[str]
    text: str = ""


CASES = {
    **{name: Case(name, *row) for name, row in _PICKLES.items()},
    **{name: Case(name, raw, None, UNREAD) for name, raw in _UNREAD.items()},
    **{
        name: Case(file, raw, load[0] if load else None, {severity}, text)
        for name, (file, raw, severity, text, *load) in _CODE.items()
    },
}
