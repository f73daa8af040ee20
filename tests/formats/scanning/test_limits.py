"""Small files keep a scan busy only up to a limit of time and memory; then they are unread."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import tracemalloc
import zipfile
import zlib
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from each import each
from payloads import CONTAINERS, PAYLOAD, TRICKS, ran
from weightctl.formats.pickles import memory
from weightctl.formats.scanning import scan, scan_file, sources
from weightctl.storage.files import open_reader

if TYPE_CHECKING:
    from pathlib import Path


def problems(path: Path, raw: bytes) -> list[str]:
    path.write_bytes(raw)
    return [each.names.problem for each in scan_file(open_reader(str(path))) if each.names.problem]


def test_what_unpacks_to_more_than_the_limit_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_UNPACKED", 1 << 20)
    (message,) = problems(tmp_path / "a.gz", gzip.compress(bytes(1 << 22)))
    assert message == "its unpacked size is more than 1 MiB; the rest of the file is not read"


def test_a_large_compressed_file_of_tensors_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_UNPACKED", 1 << 20)
    random = np.random.default_rng(0)
    tensors = {str(n): random.standard_normal(1 << 18, np.float32) for n in range(4)}
    np.savez_compressed(tmp_path / "a.npz", **tensors)
    assert not scan_file(open_reader(str(tmp_path / "a.npz")))


def test_memory_stays_bounded_while_much_is_unpacked(tmp_path: Path) -> None:
    raw = pickle.dumps(bytes(1 << 27), 4)
    packed = zlib.compress(raw, 1)
    del raw
    (tmp_path / "a.joblib").write_bytes(packed)
    tracemalloc.start()
    try:
        found = scan_file(open_reader(str(tmp_path / "a.joblib")))
        assert tracemalloc.get_traced_memory()[1] < 80 << 20
    finally:
        tracemalloc.stop()
    assert [each.names.problem for each in found] == [""]


def test_what_is_too_deep_is_not_judged(tmp_path: Path) -> None:
    raw = PAYLOAD
    for _ in range(scan._DEEPEST + 1):
        raw = CONTAINERS["zip"].wrap(raw)
    assert problems(tmp_path / "a.zip", raw) == [
        (f"it is nested more than {scan._DEEPEST} levels deep")
    ]


def test_more_members_than_the_limit_are_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_MEMBERS", 10)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(11):
            archive.writestr(f"{number}", b"")
    assert problems(tmp_path / "a.zip", file.getvalue()) == [
        "it has more than 10 members or pickles; the rest of the file is not read"
    ]


def test_more_opcodes_than_the_limit_are_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_READ", 1 << 16)
    raw = gzip.compress(b"N0" * (1 << 17) + PAYLOAD)
    (message,) = problems(tmp_path / "a.gz", raw)
    assert message == "it has more opcodes than the limit; the rest of the file is not read"


def test_more_pickles_than_the_limit_are_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_MEMBERS", 5000)
    assert not problems(tmp_path / "a", b"N." * 4000)
    assert problems(tmp_path / "a", b"N." * 6000 + PAYLOAD) == [
        "it has more than 5000 members or pickles; the rest of the file is not read"
    ]


def test_a_stack_beyond_the_limit_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "LARGEST_STACK", 1000)
    assert problems(tmp_path / "a", b"N" * 1001 + PAYLOAD) == [
        "it has more than 1000 objects on its stack; the rest of the file is not read"
    ]


def test_a_memo_beyond_the_limit_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_MOST_KEPT", 1000)
    puts = b"".join(b"r" + (2 * n).to_bytes(4, "little") for n in range(1100))
    (message,) = problems(tmp_path / "a", b"N" + puts + b"0" + PAYLOAD)
    assert "it uses more than 1000 memo indices out of order" in message


def test_a_header_beyond_the_limit_is_not_judged(tmp_path: Path) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("\u00e9" * 200))
    raw = bytearray(file.getvalue())
    raw[124:136] = b"%011o\0" % (1 << 30)
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw[:512])
    (message,) = problems(tmp_path / "a.tar", bytes(raw))
    assert message.startswith("it has a header of more than 32 MiB")


def test_a_numpy_file_may_have_many_arrays(tmp_path: Path) -> None:
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (4,), }"
    array = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + bytes(4)
    assert not problems(tmp_path / "a.npy", array * 2000)
    assert problems(tmp_path / "a.npy", array * 2000 + b"x")


def test_an_archive_that_contains_itself_ends(tmp_path: Path) -> None:
    raw = bytearray(CONTAINERS["zip"].wrap(PAYLOAD))
    # The directory states that the member is the whole file.
    at = raw.index(b"PK\1\2") + 20
    raw[at : at + 8] = len(raw).to_bytes(4, "little") * 2
    assert problems(tmp_path / "a.zip", bytes(raw))


NAMES = ("a.bin", "a.pt", "a.joblib", "a", "a.txt")


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: object) -> object:
        return pid


def is_clean(path: Path, raw: bytes) -> bool:
    path.write_bytes(raw)
    return not any(
        each.names.problem or not all(map(each.is_known, (name.path for name in each.names.named)))
        for each in scan_file(open_reader(str(path)))
    )


@each("outer", CONTAINERS)
def test_no_two_containers_hide_a_payload(outer: str, tmp_path: Path) -> None:
    for inner in CONTAINERS:
        raw = CONTAINERS[inner].wrap(TRICKS["a call"])
        assert not is_clean(tmp_path / "a", CONTAINERS[outer].wrap(raw)), inner


@pytest.mark.filterwarnings("ignore")
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    trick=st.sampled_from([*TRICKS]),
    layers=st.lists(st.sampled_from([*CONTAINERS]), max_size=2),
    name=st.sampled_from(NAMES),
)
def test_no_trick_passes_in_any_layers(
    trick: str, layers: list[str], name: str, tmp_path: Path
) -> None:
    raw = TRICKS[trick]
    for layer in layers:
        raw = CONTAINERS[layer].wrap(raw)
    unwrapped = raw
    for layer in reversed(layers):
        unwrapped = CONTAINERS[layer].unwrap(unwrapped)
    assert ran(lambda: _Unpickler(io.BytesIO(unwrapped)).load())
    assert not is_clean(tmp_path / name, raw)
