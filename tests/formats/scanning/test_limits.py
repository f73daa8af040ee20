"""Small files do not keep a scan busy, nor take much memory: past a limit they are not judged."""

from __future__ import annotations

import gzip
import io
import pickle
import tracemalloc
import zipfile
import zlib
from typing import TYPE_CHECKING

from payloads import CONTAINERS, PAYLOAD
from weightctl.formats.scanning import scan, scanned, sources
from weightctl.weights.mapping import MappedFile

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def problems(path: Path, raw: bytes) -> list[str]:
    path.write_bytes(raw)
    return [each.names.problem for each in scanned(MappedFile(str(path))) if each.names.problem]


def test_what_unpacks_to_more_than_the_limit_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_UNPACKED", 1 << 20)
    (said,) = problems(tmp_path / "a.gz", gzip.compress(bytes(1 << 22)))
    assert said == "unpacked, it has more than 1 MiB; what follows is not read"


def test_memory_stays_bounded_while_much_is_unpacked(tmp_path: Path) -> None:
    raw = pickle.dumps(bytes(1 << 27), 4)
    packed = zlib.compress(raw, 1)
    del raw
    (tmp_path / "a.joblib").write_bytes(packed)
    tracemalloc.start()
    try:
        found = scanned(MappedFile(str(tmp_path / "a.joblib")))
        assert tracemalloc.get_traced_memory()[1] < 80 << 20
    finally:
        tracemalloc.stop()
    assert [each.names.problem for each in found] == [""]


def test_what_is_too_deep_is_not_judged(tmp_path: Path) -> None:
    raw = PAYLOAD
    for _ in range(scan._DEEPEST + 1):
        raw = CONTAINERS["zip"].wrap(raw)
    assert problems(tmp_path / "a.zip", raw) == [f"it is more than {scan._DEEPEST} levels deep"]


def test_more_members_than_the_limit_are_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_MEMBERS", 10)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(11):
            archive.writestr(f"{number}", b"")
    assert problems(tmp_path / "a.zip", file.getvalue()) == [
        "it has more than 10 members; what follows is not read"
    ]


def test_more_opcodes_than_the_limit_are_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_READ", 1 << 16)
    raw = gzip.compress(b"N0" * (1 << 17) + PAYLOAD)
    (said,) = problems(tmp_path / "a.gz", raw)
    assert said == "it has more opcodes than are read; what follows is not read"


def test_an_archive_that_contains_itself_ends(tmp_path: Path) -> None:
    raw = bytearray(CONTAINERS["zip"].wrap(PAYLOAD))
    # The directory says that the member is all of the file.
    at = raw.index(b"PK\1\2") + 20
    raw[at : at + 8] = len(raw).to_bytes(4, "little") * 2
    assert problems(tmp_path / "a.zip", bytes(raw))
