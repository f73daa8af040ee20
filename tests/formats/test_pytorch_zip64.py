"""PyTorch checkpoints with more than 32 bits, or 16 for the number of members, use zip64.

The files are sparse: no tensor data is written.
"""

from __future__ import annotations

import io
import os
import zipfile
from itertools import repeat
from typing import TYPE_CHECKING
from zlib import crc32

import pytest

from lazy import torch
from weightctl.dtype import ENCODINGS
from weightctl.formats.base import Layout, write_in_order
from weightctl.formats.pytorch.writing import RECORD, ZipMember, directory, layout, place_member
from weightctl.weights import TensorInfo
from weightctl.weights.metadata import text

if TYPE_CHECKING:
    from pathlib import Path

I8 = ENCODINGS["I8"]


def sparse(planned: Layout, path: Path, crcs: list[int]) -> None:
    """Write a file without its tensors, which are zeros."""
    with path.open("wb") as file:
        file.write(planned.header)
        position = len(planned.header)
        for number, info in enumerate(planned.tensors):
            assert planned.between is not None
            file.seek(position)
            file.write(planned.between(crcs[:number]))
            assert file.tell() == planned.offsets[number]
            position = planned.offsets[number] + info.nbytes
        file.seek(position)
        assert planned.between is not None
        file.write(planned.between(crcs))
        assert file.tell() == planned.nbytes


GIB = 1 << 30


@pytest.mark.parametrize(
    "sizes",
    [[5 * GIB, 3, 0], [3, 5 * GIB, 6 * GIB, 1], [3 * GIB, 3 * GIB, 2], [(1 << 32) - 1, 1],
     [(1 << 32) - 2, 1], [(1 << 32) - 2048, 4, 4, 4]],
    ids=str,
)  # fmt: skip
def test_zip64_where_sizes_or_offsets_need_it(sizes: list[int], tmp_path: Path) -> None:
    tensors = [TensorInfo(f"t{number}", (size,), I8) for number, size in enumerate(sizes)]
    planned = layout(tensors, {"note": text("x")})
    crcs = [crc32(bytes(size)) if size < GIB else 0x01020304 for size in sizes]
    sparse(planned, tmp_path / "a.pt", crcs)
    assert os.path.getsize(tmp_path / "a.pt") == planned.nbytes
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        infos = [archive.getinfo(f"archive/data/{number}") for number in range(len(sizes))]
        for info, size, crc, offset in zip(infos, sizes, crcs, planned.offsets, strict=True):
            assert (info.file_size, info.compress_size, info.CRC) == (size, size, crc)
            with archive.open(info) as member:
                assert not any(member.read(9))
            check_local(tmp_path / "a.pt", info, offset, crc)
        for name in ("data.pkl", "byteorder", RECORD, "version"):
            archive.read(f"archive/{name}")
    back = torch.load(tmp_path / "a.pt", weights_only=True, mmap=True)
    assert [each.numel() for each in back.values()] == sizes
    assert all(not each[:9].any() and not each[-9:].any() for each in back.values())


def check_local(path: Path, info: zipfile.ZipInfo, offset: int, crc: int) -> None:
    """Compare the bytes before and after a member with its entry in the directory."""
    large = info.file_size >= 0xFFFFFFFF
    with path.open("rb") as file:
        file.seek(info.header_offset)
        header = file.read(offset - info.header_offset)
        file.seek(offset + info.file_size)
        descriptor = file.read(24 if large else 16)
    length = int.from_bytes(header[28:30], "little")
    extra = header[30 + len(info.filename) :]
    assert len(extra) == length
    assert header[4:6] == bytes([45 if large else 20, 0])
    assert header[14:26] == bytes(4) + (b"\xff" * 8 if large else bytes(8))
    assert extra.startswith(b"\1\0\x10\0" + bytes(16)) == large
    width = 8 if large else 4
    size = info.file_size.to_bytes(width, "little")
    assert descriptor == b"PK\7\10" + crc.to_bytes(4, "little") + size + size
    assert info.flag_bits == 8


def test_zip64_where_there_are_many_members() -> None:
    """65535 is the smallest number that needs more than 16 bits."""
    count = 65535
    members: list[ZipMember] = []
    content = io.BytesIO()
    for number in range(count):
        members.append(place_member(f"data/{number}", 0, content.tell()))
        content.write(members[-1].header() + members[-1].descriptor(0))
    assert b"PK\6\6" not in directory(members[:-1], repeat(0), content.tell())
    end = directory(members, repeat(0), content.tell())
    assert b"PK\6\6" in end
    content.write(end)
    archive = zipfile.ZipFile(content)
    assert len(archive.namelist()) == count
    assert not archive.read(f"archive/data/{count - 1}")


@pytest.mark.long
def test_torch_finds_each_of_many_tensors() -> None:
    count = 65_540
    planned = layout([TensorInfo(str(number), (1,), I8) for number in range(count)], {})
    sink = io.BytesIO()
    write_in_order(planned, sink, lambda _: [b"x"])
    assert len(sink.getvalue()) == planned.nbytes
    sink.seek(0)
    reader = torch._C.PyTorchFileReader(sink)
    assert len(reader.get_all_records()) == count + 3
    for number in (0, 65_530, count - 1):
        assert reader.get_record(f"data/{number}") == b"x"
        assert reader.get_record_offset(f"data/{number}") == planned.offsets[number]
