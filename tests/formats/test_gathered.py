"""Whole tensors are read from the shards of ranks as from one file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharded_files import (
    Drawn,
    bytes_for,
    contents_of,
    drawn_sets,
    gathered,
    on_ranks,
    piece_bytes,
    plan_of,
    rows_or_all,
    whole_bytes,
    write_shards,
    write_whole,
)
from weightctl import open_weights
from weightctl.dtype import ENCODINGS
from weightctl.errors import FormatError
from weightctl.formats.sharded.records import Shard, SourceShard
from weightctl.split import Cut, Grid, Sharding, Whole, columnwise
from weightctl.weights.info import TensorInfo
from weightctl.weights.metadata import MetadataValue, text

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.sharding.plan import ShardPlan
    from weightctl.weights.source import FileSource

F32 = ENCODINGS["F32"]


class Counted:
    """The files of all ranks; counts the bytes that are read."""

    def __init__(self, files: FileSource) -> None:
        self.header = files.header
        self.data, self.file_range, self.refuse_change = (
            files.data,
            files.file_range,
            files.refuse_change,
        )
        self._read_into = files.read_into
        self.nbytes = 0

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        self.nbytes += buffer.nbytes
        self._read_into(name, start, buffer)


@given(drawn=drawn_sets())
@settings(max_examples=40)
def test_any_parts_are_the_whole_that_they_were(
    drawn: Drawn, tmp_path_factory: pytest.TempPathFactory
) -> None:
    parts = drawn.write(tmp_path_factory.mktemp("drawn"))
    assert contents_of(parts) == drawn.contents
    weights = open_weights(parts)
    assert {name: bytes(node.data().view()) for name, node in weights.items()} == {
        name: content for name, (_, content) in drawn.contents.items()
    }


@given(drawn=drawn_sets(), data=st.data())
@settings(max_examples=40)
def test_a_run_of_a_tensor_is_read_and_nothing_beside_it(
    drawn: Drawn, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = gathered(drawn.write(tmp_path_factory.mktemp("drawn")))
    counted = source.shards = Counted(source.shards)  # type: ignore[assignment]
    for name, (info, content) in drawn.contents.items():
        size = info.encoding.size
        ends = st.integers(0, info.nbytes // size).map(lambda block, size=size: block * size)
        start, stop = sorted(data.draw(st.tuples(ends, ends)))
        buffer = bytearray(stop - start)
        before = counted.nbytes
        source.read_into(name, start, memoryview(buffer))
        assert buffer == content[start:stop]
        assert counted.nbytes - before == stop - start


def test_what_a_rank_has_whole_is_read_from_there_alone(tmp_path: Path) -> None:
    path = small(tmp_path, w=(4, 2))
    half = (Cut(0, ((0, 2),)),)
    for number, parts in enumerate([((), half), (half, ())]):
        mixed = Sharding("mixed", parts)
        plan = plan_of(open_weights(path), Grid(2), lambda _, __, mixed=mixed: mixed)
        source = gathered(write_shards(plan, tmp_path / f"{number}"))
        counted = source.shards = Counted(source.shards)  # type: ignore[assignment]
        assert whole_bytes(source, "w") == contents_of(path)["w"][1]
        assert counted.nbytes == 32 + 16 * number


def test_what_is_larger_than_is_read_at_once_comes_back_too(tmp_path: Path) -> None:
    contents = {
        name: (info, bytes_for(info))
        for name, shape in {"rows": (2, 300, 1100), "long": (2, 300_000)}.items()
        for info in [TensorInfo(name, shape, F32)]
    }
    path = write_whole(tmp_path / "whole", "safetensors", contents, {})
    for ranks in (2, 3):
        plan = plan_of(open_weights(path), Grid(ranks), columnwise)
        assert contents_of(write_shards(plan, tmp_path / f"{ranks}")) == contents


def small(tmp_path: Path, **shapes: tuple[int, ...]) -> Path:
    contents = {
        name: (info, bytes_for(info))
        for name, shape in shapes.items()
        for info in [TensorInfo(name, shape, F32)]
    }
    return write_whole(tmp_path / "whole", "safetensors", contents, {"format": text("pt")})


def test_of_a_tensor_that_a_rank_has_whole_a_file_is_known_to_have_it(tmp_path: Path) -> None:
    path = small(tmp_path, cut=(4, 2), kept=(3,))
    source = gathered(write_shards(plan_of(open_weights(path), Grid(2)), tmp_path / "out"))
    assert source.file_range("cut") is None
    span = source.file_range("kept")
    assert span is not None
    raw = bytearray(span.nbytes)
    span.file.read_into(span.offset, memoryview(raw))
    assert raw == contents_of(path)["kept"][1]


def test_parts_are_read_where_those_that_ask_have_them(tmp_path: Path) -> None:
    path = small(tmp_path, kept=(3,))
    out = write_shards(plan_of(open_weights(path), Grid(3)), tmp_path / "out")
    source = gathered(out)
    with (out / "rank-2" / "model.safetensors").open("r+b") as file:
        file.seek(source.ranks[2].extents["kept"].offset)
        file.write(bytes(12))
    whole = contents_of(path)["kept"][1]
    assert whole_bytes(source, "kept") == whole
    assert whole_bytes(source.view_for_ranks([2]), "kept") == bytes(12)
    assert whole_bytes(source.view_for_ranks([1]), "kept") == whole


def test_a_stage_without_a_tensor_is_not_a_gap(tmp_path: Path) -> None:
    path = small(tmp_path, first=(4, 2), last=(2, 2))
    stages = {"first": (0, 1), "last": (2, 3)}
    plan = plan_of(
        open_weights(path),
        Grid(2, 1, 2),
        lambda whole, ranks: on_ranks((), stages[whole.name], ranks),
    )
    out = write_shards(plan, tmp_path / "out")
    assert contents_of(out) == contents_of(path)
    assert [*open_weights(out / "rank-0").header.tensors] == ["first"]


def test_metadata_and_tied_names_are_those_of_the_whole(tmp_path: Path) -> None:
    info = TensorInfo("embed", (4, 2), F32)
    metadata = {"format": text("pt"), "head": text("embed"), "n": MetadataValue("u32", 3)}
    path = write_whole(
        tmp_path / "whole", "safetensors", {"embed": (info, bytes_for(info))}, metadata
    )
    whole = open_weights(path).header
    out = write_shards(plan_of(open_weights(path), Grid(2)), tmp_path / "out")
    header = open_weights(out).header
    assert header.metadata == whole.metadata == metadata
    assert header.aliases == whole.aliases == {"head": "embed"}
    assert (header.alignment, header.format) == (8, "safetensors")


def test_numbers_of_ranks_can_be_had_as_arrays(tmp_path: Path) -> None:
    path = small(tmp_path, cut=(4, 6))
    plan = plan_of(open_weights(path), Grid(3), columnwise)
    weights = open_weights(write_shards(plan, tmp_path / "out"))
    whole = open_weights(path)["cut"].data().to_numpy()
    assert weights.cut.data().to_numpy().tobytes() == whole.tobytes()


def test_a_file_that_changes_meanwhile_is_reported(tmp_path: Path) -> None:
    path = small(tmp_path, cut=(4, 6))
    out = write_shards(plan_of(open_weights(path), Grid(2)), tmp_path / "out")
    source = gathered(out)
    source.refuse_change()
    with (out / "rank-1" / "model.safetensors").open("ab") as file:
        file.write(b"more")
    with pytest.raises(FormatError, match=r"rank-1.*changed while it was read"):
        source.refuse_change()


def fused(plan: ShardPlan, names: dict[str, tuple[str, ...]], rows: int) -> ShardPlan:
    """Return a plan in which ranks store several tensors as one, with rows padded to multiples."""
    inside = {name: fused for fused, several in names.items() for name in several}
    ranks: list[tuple[Shard, ...]] = []
    for shards in plan.ranks:
        made: dict[str, list[Shard]] = {}
        for shard in shards:
            made.setdefault(inside.get(shard.info.name, shard.info.name), []).append(shard)
        ranks.append(tuple(_fused(name, several, rows) for name, several in made.items()))
    return replace(plan, layout="vllm", ranks=tuple(ranks))


def _fused(name: str, shards: list[Shard], rows: int) -> Shard:
    first = shards[0].info
    count = sum(shard.info.shape[0] for shard in shards)
    shape = (count + -count % rows, *first.shape[1:])
    pieces = tuple(piece for shard in shards for piece in shard.pieces)
    return Shard(first._replace(name=name, shape=shape), pieces, "fused")


@given(
    ranks=st.integers(1, 4),
    heads=st.tuples(*[st.integers(1, 3)] * 3),
    row=st.integers(1, 3),
    padding=st.integers(1, 5),
    kind=st.sampled_from(["F32", "BF16", "Q8_0", "Q4_K"]),
)
@settings(max_examples=25)
def test_fused_and_padded_tensors_are_taken_apart(
    ranks: int,
    heads: tuple[int, int, int],
    row: int,
    padding: int,
    kind: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("fused")
    encoding = ENCODINGS[kind]
    sizes = {f"{name}_proj": ranks * size for name, size in zip("qkv", heads, strict=True)}
    sizes |= {"embed": ranks + row, "norm": 3}
    infos = [TensorInfo(n, (size, row * encoding.block), encoding) for n, size in sizes.items()]
    contents = {info.name: (info, bytes_for(info)) for info in infos}
    path = write_whole(directory / "whole", "gguf", contents, {})
    names = {"qkv_proj": ("q_proj", "k_proj", "v_proj")}
    plan = fused(plan_of(open_weights(path), Grid(ranks), _but_norms), names, padding)
    out = write_shards(plan, directory / "out")
    assert contents_of(out) == contents
    alone = open_weights(out / "model-rank-0-part-0.gguf").header.tensors
    assert {*alone} == {"qkv_proj", "embed", "norm"}
    assert all(info.shape[0] % padding == 0 for info in alone.values())


def _but_norms(whole: Whole, ranks: int) -> Sharding:
    return on_ranks((), range(ranks), ranks) if whole.name == "norm" else rows_or_all(whole, ranks)


def test_pieces_of_one_tensor_may_lie_apart_in_a_file(tmp_path: Path) -> None:
    path = small(tmp_path, w=(6, 2))
    plan = plan_of(open_weights(path), Grid(1))
    pieces = tuple(SourceShard("w", (Cut(0, (each,)),)) for each in [(4, 6), (0, 1), (1, 4)])
    shard = Shard(TensorInfo("w", (7, 2), F32), pieces, "turned")
    turned = replace(plan, layout="vllm", ranks=((shard,),))
    out = write_shards(turned, tmp_path / "out")
    assert contents_of(out) == contents_of(path)
    alone = contents_of(out / "model-rank-0-part-0.safetensors")["w"][1]
    assert alone == b"".join(piece_bytes(plan.source, piece) for piece in pieces) + bytes(8)
