"""No file that runs code in a program passes a scan, however it hides what it names."""

from __future__ import annotations

import gzip
import io
import pickle
import re
import struct
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build import Gguf, safetensors_of
from lazy import torch
from payloads import Entry, call, stream, whole, zip_of
from weightctl.cli.scanned import ScanChoices, scan_paths

# The global that attacks call exists, and records the call here.
RAN: list[str] = []
ATTACK_TAIL = call(f"{__name__}.run", "hidden") + b"."
ATTACK = b"\x80\x02" + ATTACK_TAIL
NOTHING = pickle.dumps({}, 2)
MAGIC = 0x1950A86A20F9469CFC6C


def run(what: str) -> dict[str, Any]:
    RAN.append(what)
    return {}


class Evil:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return run, ("hidden",)


def by_torch(path: Path) -> Any:
    return torch.load(path, weights_only=False)


def by_pickle(path: Path) -> Any:
    with path.open("rb") as file:
        return pickle.load(file)


def by_pickle_twice(path: Path) -> Any:
    with path.open("rb") as file:
        return pickle.load(file), pickle.load(file)


def by_pickle_of_bytes(path: Path) -> Any:
    # This reader cannot look ahead, and drops the rest of a frame.
    return pickle.load(io.BytesIO(path.read_bytes()))


def by_numpy(path: Path) -> Any:
    found = np.load(path, allow_pickle=True)
    return found["a"] if path.suffix == ".npz" else found


def by_gzip(path: Path) -> Any:
    with gzip.open(path) as file:
        return pickle.load(file)


def zipped(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/version", "3\n")
        for name, content in members.items():
            archive.writestr(f"archive/{name}", content)
    return file.getvalue()


def tar_of(*members: tuple[str, bytes], first: str = "") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in ([(first, b"")] if first else []) + [*members]:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return file.getvalue()


REST = (("tensors", pickle.dumps(0, 2)), ("pickle", NOTHING))
IN_TAR = (("storages", ATTACK), *REST)


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
    made = bytearray(tar_of(*IN_TAR, first="x" * 90))
    pickles = [pickle.dumps(each, 2) for each in (MAGIC, 1001, {}, {}, [])]
    made[:100] = b"".join(pickles).ljust(100, b"\0")
    summed(made)
    return bytes(made)


def behind_numbers(length: int, *, behind: bytes = b"") -> bytes:
    """Return storages whose entry names two types; the data has the length of the first."""
    entry = b"\x80\x02(X\x01\0\0\x001X\x03\0\0\0cpuctorch\nFloatStorage\nctorch\nDoubleStorage\n0t."
    numbers = struct.pack("<q", length) + bytes(4 * length)
    return tar_of(("storages", pickle.dumps(1, 2) + entry + numbers + ATTACK + behind), *REST)


def two_places() -> bytes:
    """Return a zip file with two 64-bit offsets for its pickle; torch uses the first."""
    benign = NOTHING.ljust(len(ATTACK), b"\0")
    version = Entry("archive/version", b"3\n")
    first = 30 + len(version.name) + len(version.content)
    second = first + 30 + len("archive/data.pkl") + len(ATTACK)
    extra = b"".join(struct.pack("<2HQ", 1, 8, place) for place in (first, second))
    hidden = Entry("archive/data.pkl", ATTACK, at=0xFFFFFFFF, extra=extra)
    raw = zip_of(version, hidden)
    # The harmless pickle is between the attack and the directory.
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 33, 0, *[len(benign)] * 2, 16, 0)
    added = local + b"archive/data.pkl" + benign
    end = raw.rindex(b"PK\5\6")
    place = struct.unpack_from("<L", raw, end + 16)[0]
    moved = raw[end : end + 16] + struct.pack("<L", place + len(added)) + raw[end + 20 :]
    return raw[:place] + added + raw[place:end] + moved


def crossed_frame() -> bytes:
    """Return a pickle with an opcode that crosses a frame, so that the rest is read in two ways."""
    hidden = ATTACK_TAIL
    pushed = b"X" + struct.pack("<I", len(hidden)) + hidden
    frame = b"\x95" + struct.pack("<Q", 7)
    return b"\x80\x04" + frame + b"\x8c\x08aaaaa" + b"bbb" + pushed + b"0}."


def saved_by_numpy(save: Callable[..., None], **names: str) -> bytes:
    file = io.BytesIO()
    save(file, **{name: np.array([Evil()], dtype=object) for name in names.values()})
    return file.getvalue()


Reader = Callable[[Path], Any]
HIDDEN: dict[str, tuple[bytes, Reader]] = {
    "a.pkl": (ATTACK, by_pickle),
    "behind a push.pkl": (b"N0" + ATTACK_TAIL, by_pickle),
    "of protocol 1.pkl": (b"\x80\x01" + ATTACK_TAIL, by_pickle),
    "with a byte behind.pkl": (ATTACK_TAIL + b"x", by_pickle),
    "without an end.pkl": (ATTACK_TAIL[:-1], by_pickle),
    "failing later.pkl": (ATTACK_TAIL[:-1] + b"0j\xff\xff\xff\xff.", by_pickle),
    "the second.pkl": (NOTHING + ATTACK, by_pickle_twice),
    "as GGUF.gguf": (b"GGUF\3\0\0\0\0" + ATTACK_TAIL, by_pickle),
    "late magic.pt": (
        b"\x80\x02" + b"N0" * 20 + stream(ATTACK)[2:], by_torch
    ),
    "magic in text.pt": (
        b"\x80\x02L%dL\n." % MAGIC + pickle.dumps(1001, 2) + NOTHING + ATTACK, by_torch
    ),
    "large letters.pt": (zipped(**{"DATA.PKL": ATTACK}), by_torch),
    "another member.pt": (zipped(**{"data.pkl": NOTHING, "more": ATTACK}), lambda _: run("")),
    "two places.pt": (two_places(), by_torch),
    "crossed frame.pt": (zipped(**{"data.pkl": crossed_frame()}), by_torch),
    "crossed frame.pkl": (crossed_frame(), by_pickle_of_bytes),
    "storages.pt": (tar_of(*IN_TAR), by_torch),
    "storages behind another.pt": (tar_of(*IN_TAR, first="a"), by_torch),
    "storages of an old tar.pt": (without_ustar(tar_of(*IN_TAR)), by_torch),
    "storages twice.pt": (
        tar_of(("storages", ATTACK), ("./storages", NOTHING), *REST), lambda _: run("")
    ),
    "a stream that is a tar.pt": (stream_and_tar(), by_torch),
    "behind numbers.pt": (behind_numbers(16, behind=bytes(300)), by_torch),
    "behind more numbers.pt": (behind_numbers(40), by_torch),
    "objects.npy": (saved_by_numpy(np.save, arr="arr"), by_numpy),
    "objects.npz": (saved_by_numpy(np.savez, a="a"), by_numpy),
    "packed.pkl.gz": (gzip.compress(ATTACK), by_gzip),
}  # fmt: skip


@pytest.mark.parametrize("name", HIDDEN)
def test_what_runs_does_not_pass(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, load = HIDDEN[name]
    path = tmp_path / name
    path.write_bytes(raw)
    RAN.clear()
    with suppress(Exception):  # errors after the attack do not matter
        load(path)
    assert RAN
    RAN.clear()
    assert scan_paths([str(path)], ScanChoices()) == 1
    said = capsys.readouterr().out
    assert re.search("  (?:dangerous|unknown|unread)  ", said)
    assert not RAN


def test_a_class_of_torchscript_is_known_in_its_archive_alone(tmp_path: Path) -> None:
    named = whole(call("__torch__.model.Model"))
    (tmp_path / "script.pt").write_bytes(zipped(**{"data.pkl": named, "constants.pkl": NOTHING}))
    (tmp_path / "a.pt").write_bytes(zipped(**{"data.pkl": named}))
    assert scan_paths([str(tmp_path / "script.pt")], ScanChoices(quiet=True)) == 0
    assert scan_paths([str(tmp_path / "a.pt")], ScanChoices(quiet=True)) == 1


def test_what_is_below_a_directory_or_missing_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    below = tmp_path / "model" / "below"
    below.mkdir(parents=True)
    (below / "a.bin").write_bytes(ATTACK)
    assert scan_paths([str(tmp_path / "model")], ScanChoices(quiet=True)) == 1
    (tmp_path / "m-00001-of-00002.bin").write_bytes(zipped(**{"data.pkl": NOTHING}))
    capsys.readouterr()
    assert scan_paths([str(tmp_path / "m-00001-of-00002.bin")], ScanChoices(quiet=True)) == 1
    assert "No such file or directory; the file was not scanned" in capsys.readouterr().out


HARMLESS: dict[str, bytes] = {
    "README.md": b"# model\n\nc\n",
    "CITATION.cff": b"cff-version: 1.2.0\nmessage: cite it\ntitle: x\n",
    "LICENSE": b"I am a license.\ncopyright (c) nobody, ever\nand so on\n",
    "dots.txt": b"...\n",
    "vocab.txt": b"(\n)\n.\n",
    "config.json": b"{}",
    "empty": b"",
    "a.gguf": Gguf().file(),
    "a.safetensors": safetensors_of({"a": ("U8", (0x280 - 70,), bytes(0x280 - 70))}),
    "b.safetensors": b"\x80\x02\0\0\0\0\0\0" + b"{}".ljust(0x280),
    "c.safetensors": b"\x80\x02\x02\0\0\0\0\0" + b"{}".ljust(0x20280),
    "numbers.npy": saved_by_numpy(lambda file, arr: np.save(file, np.arange(arr.size)), arr="arr"),
    "random.bin": np.random.default_rng(0).bytes(100_000),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_not_a_pickle_passes(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(HARMLESS[name])
    assert scan_paths([str(tmp_path / name)], ScanChoices(quiet=True)) == 0


def test_tensors_of_any_bytes_are_not_pickles(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    state = {str(n): torch.randn(64, generator=generator) for n in range(300)}
    state["ci"] = torch.tensor([*b"cc\n\nii\n\n"] * 9, dtype=torch.uint8)
    torch.save(state, tmp_path / "a.pt")
    assert scan_paths([str(tmp_path / "a.pt")], ScanChoices(quiet=True)) == 0
