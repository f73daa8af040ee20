"""Files that no program loads as a pickle pass a scan, whatever their bytes are."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import pkgutil
import string
import struct
import sys
import tarfile
import zipfile
import zlib
from importlib import import_module
from itertools import product
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from build import Gguf, safetensors_of
from each import each
from lazy import torch
from payloads import NOTHING, stream
from weightctl.cli.scanned import ScanChoices, scan_paths
from weightctl.formats.scanning import scan_file, unread
from weightctl.storage.files import open_reader

if TYPE_CHECKING:
    from pathlib import Path

FLOATS = np.arange(1000, dtype=np.float32)
TEXT = b"All work and no play makes a dull model.\n" * 400


def findings(path: Path) -> list[str]:
    found = scan_file(open_reader(str(path)))
    return [
        *(each.names.problem for each in found),
        *(n.path for each in found for n in each.names.named if not each.is_known(n.path)),
    ]


def zipped(method: int = zipfile.ZIP_DEFLATED, **members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, raw in members.items():
            archive.writestr(name, raw)
    return file.getvalue()


def arrays(*, compressed: bool) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, a=FLOATS, b=np.arange(3), c=np.bool_(1))
    return file.getvalue()


def array(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def tarred(**members: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, raw in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(raw)
            tar.addfile(entry, io.BytesIO(raw))
    return file.getvalue()


def old_numpy(header: str, raw: bytes) -> bytes:
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + raw


FIELDS = np.zeros(3, dtype=[("Object", "<f4"), ("b", "<i8", (2,)), ("c", "S5"), ("d", "<U2")])
CLEAN: dict[str, bytes] = {
    "words.txt": b"cat\ndog\nfish\n",
    "more words.txt": b"I\nN\ncopy\nthat\n",
    "notes.md": b"N. Bohr wrote this.\n",
    "list.txt": b"]. that is all\n",
    "zlib in text.txt": b"x^2 + y^2 = 1\n" * 500,
    "call.txt": b"(Some words, and more of them)\n" * 500,
    "a.json": json.dumps({"a": [1, 2]}).encode(),
    "log.csv.gz": gzip.compress(TEXT),
    "log.csv.bz2": bz2.compress(TEXT),
    "log.csv.xz": lzma.compress(TEXT),
    "log.zlib": zlib.compress(TEXT),
    "texts.zip": zipped(**{"a.txt": TEXT, "b.json": b"{}"}),
    "texts.tar": tarred(**{"a.txt": TEXT, "b.json": b"{}"}),
    "texts.tar.gz": gzip.compress(tarred(**{"a.txt": TEXT})),
    "a.npz": arrays(compressed=False),
    "compressed.npz": arrays(compressed=True),
    "a.npy": array(FLOATS),
    "no axes.npy": array(np.array(5)),
    "dates.npy": array(np.array(["2026-01-01"], dtype="M8[D]")),
    "fields.npy": array(FIELDS),
    "two.npy": array(FLOATS) + array(FIELDS),
    "of Python 2.npy": old_numpy(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2L,), }", bytes(8)
    ),
    "a.gguf": Gguf().file(),
    "a.safetensors": safetensors_of({"a": ("U8", (9,), bytes(9))}),
    "safetensors.pt": safetensors_of({"a": ("U8", (9,), bytes(9))}),
    "gguf.bin": Gguf().file(),
    "image.png": b"\x89PNG\r\n\x1a\n" + bytes(50),
    "model.onnx": b"\x08\x07\x12\x07pytorch" + bytes(50),
    "tokenizer.model": b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\2" * 20,
    "zeros.bin": bytes(5000),
    "ones.bin": b"\xff" * 5000,
    "nones.bin": b"N" * 5000,
    "plain.pkl": NOTHING,
    "several.pkl": NOTHING * 3,
    "plain.joblib": zlib.compress(pickle.dumps({"a": 1.5})),
    "stream.pt": stream(NOTHING),
    "empty.pkl": b"",
    "README.md": b"# model\n\nc\n",
    "CITATION.cff": b"cff-version: 1.2.0\nmessage: cite it\ntitle: x\n",
    "LICENSE": b"I am a license.\ncopyright (c) nobody, ever\nand so on\n",
    "dots.txt": b"...\n",
    "vocab.txt": b"(\n)\n.\n",
    "config.json": b"{}",
    "numbers.safetensors": safetensors_of({"a": ("U8", (0x280 - 70,), bytes(0x280 - 70))}),
    "b.safetensors": b"\x80\x02\0\0\0\0\0\0" + b"{}".ljust(0x280),
    "c.safetensors": b"\x80\x02\x02\0\0\0\0\0" + b"{}".ljust(0x20280),
    "random.bin": np.random.default_rng(0).bytes(100_000),
}  # fmt: skip


@each("name", CLEAN)
def test_a_harmless_file_passes(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(CLEAN[name])
    assert scan_paths([str(tmp_path / name)], ScanChoices(quiet=True)) == 0


def test_layers_of_torch_are_known_and_nothing_else_of_their_modules() -> None:
    nothing = unread("")
    for info in pkgutil.iter_modules(torch.nn.modules.__path__):
        module = import_module(f"torch.nn.modules.{info.name}")
        for name, value in vars(module).items():
            is_layer = isinstance(value, type) and issubclass(value, torch.nn.Module)
            is_own = is_layer and value.__module__ == module.__name__ and name == value.__name__
            path = f"{module.__name__}.{name}"
            if is_own and not name.startswith("_") and not info.name.startswith("_"):
                assert nothing.is_known(path), path
            elif nothing.is_known(path):
                # Types that these modules import, and that run nothing.
                assert isinstance(value, type) or value.__module__ in {"typing", "types"}, path
    for path in (
        "torch.nn.modules.conv.F",
        "torch.nn.modules.conv.F.os",
        "torch.nn.modules.Conv.x",
        "torch.nn.modules.module.warnings",
        "torch.nn.modules._functions.Function",
    ):
        assert not nothing.is_known(path), path


STATES = {
    "zip": {"_use_new_zipfile_serialization": True},
    "stream": {"_use_new_zipfile_serialization": False},
}


@pytest.mark.parametrize("form", STATES)
def test_a_checkpoint_of_many_dtypes_passes(form: str, tmp_path: Path) -> None:
    dtypes = (torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64)
    state = {str(dtype): torch.ones(7, 3, dtype=dtype) for dtype in dtypes}
    state["view"] = state["torch.float32"][2:5]
    torch.save(state, tmp_path / "a.pt", **STATES[form])
    assert not any(findings(tmp_path / "a.pt"))


def test_a_model_of_any_class_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The first line of the file ends with the module: the class follows as if it were opcodes.
    module = ModuleType("vgg")
    monkeypatch.setitem(sys.modules, "vgg", module)
    offenders: list[str] = []
    for letter, protocol in product(string.ascii_letters + "_", (2, 3, 4)):
        made = type(f"{letter}Model", (torch.nn.Module,), {"__module__": "vgg"})
        setattr(module, made.__name__, made)
        model = made()
        model.layers = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU())
        torch.save(model, tmp_path / "a.pt", pickle_protocol=protocol)
        found = set(findings(tmp_path / "a.pt")) - {"", f"vgg.{made.__name__}"}
        offenders += [f"{made.__name__}, protocol {protocol}: {found}"] if found else []
    assert not offenders, "\n".join(offenders)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Couldn.t retrieve source code:UserWarning")
def test_none_of_2000_files_that_torch_wrote_is_an_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("own")
    monkeypatch.setitem(sys.modules, "own", module)
    draw = np.random.default_rng(0)
    layers = (
        lambda: torch.nn.Linear(3, 4), lambda: torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU,
        lambda: torch.nn.LSTM(2, 3), lambda: torch.nn.BatchNorm1d(5), lambda: torch.nn.LayerNorm(4),
        lambda: torch.nn.MultiheadAttention(4, 2), lambda: torch.nn.Embedding(7, 2),
        lambda: torch.nn.Dropout(0.1), lambda: torch.nn.TransformerEncoderLayer(4, 2, 8),
        lambda: torch.nn.TransformerEncoderLayer(4, 2, 8, activation=torch.nn.functional.gelu),
    )  # fmt: skip
    offenders: list[str] = []
    for number in range(2000):
        letters = "".join(draw.choice([*string.ascii_letters], int(draw.integers(0, 9))))
        name = string.ascii_letters[number % 52] + letters
        made = type(name, (torch.nn.Module,), {"__module__": "own"})
        setattr(module, name, made)
        model = made()
        model.layers = torch.nn.Sequential(*(make() for make in draw.choice(layers, 2)))
        model.table = torch.from_numpy(draw.integers(0, 256, int(draw.integers(1, 300)), "u1"))
        optimizer = torch.optim.AdamW([*model.parameters(), torch.nn.Parameter(torch.ones(2))])
        saved: Any = (model, model.state_dict(), {"model": model, "optim": optimizer.state_dict()})
        form = {"_use_new_zipfile_serialization": bool(number % 3)}
        torch.save(
            saved[int(draw.integers(3))], tmp_path / "a.pt",
            pickle_protocol=int(draw.integers(2, 6)), **form,
        )  # fmt: skip
        found = set(findings(tmp_path / "a.pt")) - {"", f"own.{name}"}
        offenders += [f"{number}, {name}, {form}: {found}"] if found else []
    assert not offenders, "\n".join(offenders)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_torchscript_archive_passes(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "a.pt")
    assert not any(findings(tmp_path / "a.pt"))


def test_storages_of_random_bytes_pass(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    state = {str(n): torch.from_numpy(generator.integers(0, 256, 64, "u1")) for n in range(500)}
    # The starts of protocols and compressions.
    starts = (b"\x80\2", b"\x80\5", b"\x78\x9c", b"(S", b"\x5d\0\0", b"c12\n", b"\x8c\2os\x93R")
    state |= {repr(raw): torch.tensor([*raw, *bytes(60)], dtype=torch.uint8) for raw in starts}
    torch.save(state, tmp_path / "a.pt")
    assert not any(findings(tmp_path / "a.pt"))


def test_storages_of_one_byte_throughout_pass(tmp_path: Path) -> None:
    state = {str(byte): torch.full((300,), byte, dtype=torch.uint8) for byte in range(256)}
    torch.save(state, tmp_path / "a.pt")
    assert not any(findings(tmp_path / "a.pt"))


def test_compressed_files_are_not_called_clean_by_a_python_without_the_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some builds of Python have no `bz2` and no `lzma`."""
    monkeypatch.setattr("weightctl.formats.scanning.compressions._BZ2", None)
    monkeypatch.setattr("weightctl.formats.scanning.compressions._LZMA", None)
    packed = {
        "a.bz2": (bz2.compress(TEXT), "bz2"),
        "a.xz": (lzma.compress(TEXT), "lzma"),
        "a.lzma": (lzma.compress(TEXT, lzma.FORMAT_ALONE), "lzma"),
    }
    for name, (raw, module) in packed.items():
        (tmp_path / name).write_bytes(raw)
        found = scan_paths([str(tmp_path / name)], ScanChoices(quiet=True))
        assert found == 1
        assert f"built without the module `{module}`" in capsys.readouterr().out
