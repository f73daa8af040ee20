"""Shards are joined into the original tensors, or the error says why they cannot be."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each import usual
from lazy import torch
from sharded_files import (
    bytes_for,
    contents_of,
    document_of,
    gathered,
    plan_of,
    rows_or_all,
    write_document,
    write_shards,
    write_whole,
)
from weightctl import Plan, open_weights
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError, FormatError, OutputError
from weightctl.sharding.plan_file import read_rules
from weightctl.sharding.planning import shard_plan
from weightctl.split import Grid, Sharding, Whole, columnwise, replicate
from weightctl.weights.info import TensorInfo
from weightctl.weights.metadata import MetadataValue
from weightctl.write.digests import Altered, find_altered
from weightctl.write.gathering import gather, gathering
from weightctl.write.save import save
from weightctl.write.shard import save_shards

if TYPE_CHECKING:
    from collections.abc import Callable

    from families import Made
    from weightctl.sharding.planning import CutRulesLike
    from weightctl.weights.tree import Checkpoint


def change(parts: Path, rank: int, name: str, at: int = 0) -> Path:
    """Turn a bit of a tensor in a rank's file; return its path."""
    header = gathered(parts).ranks[rank]
    with Path(header.files[0]).open("r+b") as file:
        file.seek(header.extents[name].offset + at)
        (byte,) = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    return Path(header.files[0])


def copied(weights: Checkpoint, path: Path) -> bytes:
    """Return the file that a plain copy of a checkpoint is."""
    save(Plan.copy(weights, "gguf" if path.suffix == ".gguf" else "safetensors"), path)
    return path.read_bytes()


def columns_or_all(whole: Whole, ranks: int) -> Sharding:
    return columnwise(whole, ranks) if len(whole.shape) > 1 else replicate(whole, ranks)


@pytest.mark.parametrize("grid", [Grid(2), Grid(4), Grid(1, 1, 3), Grid(2, 1, 2)])
def test_a_model_is_the_very_file_that_it_was(grid: Grid, tiny_llama: Path, tmp_path: Path) -> None:
    plan = shard_plan(open_weights(tiny_llama), grid)
    saved = gather(write_shards(plan, tmp_path / "parts"), tmp_path / "whole.safetensors")
    assert saved.paths == [str(tmp_path / "whole.safetensors")]
    expected = (tiny_llama / "model.safetensors").read_bytes()
    assert (tmp_path / "whole.safetensors").read_bytes() == expected


def test_into_a_directory_goes_what_stood_beside_the_parts(
    tiny_llama: Path, tmp_path: Path
) -> None:
    parts = write_shards(shard_plan(open_weights(tiny_llama), Grid(2)), tmp_path / "parts")
    for rank in (0, 1):
        shutil.copy(tiny_llama / "config.json", parts / f"rank-{rank}")
        shutil.copy(tiny_llama / "tokenizer.json", parts / f"rank-{rank}")
    gather(parts, tmp_path / "whole")
    names = ["config.json", "model.safetensors", "tokenizer.json"]
    assert sorted(path.name for path in (tmp_path / "whole").iterdir()) == names
    for name in names:
        assert (tmp_path / "whole" / name).read_bytes() == (tiny_llama / name).read_bytes()


def test_what_says_who_has_what_is_not_carried_along(tiny_llama: Path, tmp_path: Path) -> None:
    plan = replace(shard_plan(open_weights(tiny_llama), Grid(2)), layout="vllm")
    parts = write_shards(plan, tmp_path / "parts")
    shutil.copy(tiny_llama / "config.json", parts)
    gather(parts, tmp_path / "whole")
    assert {path.name for path in (tmp_path / "whole").iterdir()} == {
        "config.json", "model.safetensors",
    }  # fmt: skip
    # What others call a manifest is theirs.
    (tmp_path / "whole" / "manifest.json").write_text('{"version": 1}')
    save(Plan.copy(open_weights(tmp_path / "whole"), "safetensors"), tmp_path / "copy")
    assert (tmp_path / "copy" / "manifest.json").read_text() == '{"version": 1}'


def test_a_gguf_is_the_very_file_that_it_was_with_all_its_metadata(tmp_path: Path) -> None:
    shapes = {"Q8_0": (6, 64), "Q4_K": (2, 1024), "F32": (5,), "BF16": (4, 3, 2)}
    infos = [TensorInfo(f"blk.0.{kind}", shape, ENCODINGS[kind]) for kind, shape in shapes.items()]
    contents = {info.name: (info, bytes_for(info)) for info in infos}
    metadata = {
        "general.architecture": MetadataValue("string", "llama"),
        "general.alignment": MetadataValue("u32", 64),
        "llama.block_count": MetadataValue("u64", 1),
        "tokenizer.ggml.tokens": MetadataValue("array[string]", ["a", "b", "ü"]),
        "tokenizer.ggml.scores": MetadataValue("array[f32]", [0.5, -1.0, float("inf")]),
    }
    path = write_whole(tmp_path / "whole.gguf", "gguf", contents, metadata)
    expected = copied(open_weights(path), tmp_path / "copy.gguf")
    for cut in (rows_or_all, columns_or_all):
        plan = plan_of(open_weights(path), Grid(2), cut)
        gather(write_shards(plan, tmp_path / "parts"), tmp_path / "again.gguf", force=True)
        assert (tmp_path / "again.gguf").read_bytes() == expected


def test_tied_names_and_values_of_a_nested_checkpoint_come_back(tmp_path: Path) -> None:
    tensor = torch.arange(12.0).reshape(4, 3)
    nested = {"model": {"w": tensor, "b": torch.zeros(3)}, "steps": [1, 2], "tied": tensor}
    torch.save(nested, tmp_path / "trained.pt")
    weights = open_weights(tmp_path / "trained.pt")
    copied(weights, tmp_path / "copy.safetensors")
    parts = write_shards(plan_of(weights, Grid(2), format_name="safetensors"), tmp_path / "parts")
    header = open_weights(parts).header
    assert (header.leaves, header.aliases) == (weights.header.leaves, {"tied": "model.w"})
    gather(parts, tmp_path / "again.safetensors")
    assert contents_of(tmp_path / "again.safetensors") == contents_of(tmp_path / "trained.pt")
    again, copy = (open_weights(tmp_path / f"{name}.safetensors") for name in ("again", "copy"))
    assert again.metadata == copy.metadata
    assert again.header.leaves == weights.header.leaves


def test_a_copy_of_a_cut_checkpoint_is_what_one_of_the_whole_is(
    tiny_llama: Path, tmp_path: Path
) -> None:
    parts = write_shards(shard_plan(open_weights(tiny_llama), Grid(2)), tmp_path / "parts")
    expected = copied(open_weights(tiny_llama), tmp_path / "a.safetensors")
    assert copied(open_weights(parts), tmp_path / "b.safetensors") == expected


@pytest.mark.parametrize(
    ("rank", "name", "at"), [(0, "norm", 3), (1, "norm", 0), (1, "w", 47), (0, "q", 67)]
)
def test_an_altered_byte_is_named_and_nothing_is_written(
    rank: int, name: str, at: int, parts: Path, tmp_path: Path
) -> None:
    path = change(parts, rank, name, at)
    assert find_altered(gathered(parts)) == [Altered(rank, str(path), name)]
    with pytest.raises(FormatError) as raised:
        gather(parts, tmp_path / "whole.gguf")
    error = raised.value
    assert error.reason == f"altered since it was written: rank {rank}: `{name}` in {path}"
    assert error.hint
    assert not (tmp_path / "whole.gguf").exists()


def test_all_that_is_altered_is_reported_at_once(parts: Path, tmp_path: Path) -> None:
    paths = [change(parts, rank, name) for rank in (0, 1) for name in ("norm", "w", "q")]
    with pytest.raises(FormatError) as raised:
        gather(parts, tmp_path / "whole.gguf")
    lines = raised.value.reason.splitlines()
    assert lines[0] == "altered since they were written:"
    assert lines[1] == f"  rank 0: `norm` in {paths[0]}"
    assert lines[5:] == [f"  rank 1: `w` in {paths[3]}", "  ... and 1 more"]


def test_a_digest_that_is_another_is_an_altered_tensor(parts: Path, tmp_path: Path) -> None:
    document = document_of(parts)
    document["ranks"][1]["tensors"][0]["sha256"] = "0" * 64
    write_document(document, parts)
    with pytest.raises(FormatError, match="rank 1: `norm` in "):
        gather(parts, tmp_path / "whole.gguf")


def test_parts_that_are_missing_are_named_and_nothing_is_written(
    parts: Path, tmp_path: Path
) -> None:
    (parts / "rank-1" / "model.gguf").unlink()
    with pytest.raises(FormatError, match=r"rank 1: rank-1/model\.gguf is missing"):
        gather(parts, tmp_path / "whole.gguf")
    assert not (tmp_path / "whole.gguf").exists()


@pytest.mark.parametrize("what", ["rank-0", "rank-0/model.gguf"])
def test_what_is_not_a_set_is_told_to_be_none(what: str, two_ranks: Path, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="is not a sharded checkpoint: it has no manifest"):
        gather(two_ranks / what, tmp_path / "whole.gguf")


def test_a_target_that_is_there_stays_as_it_is(two_ranks: Path, tmp_path: Path) -> None:
    target = tmp_path / "whole.gguf"
    target.write_bytes(b"mine")
    with pytest.raises(OutputError, match="exists"):
        gather(two_ranks, target)
    assert target.read_bytes() == b"mine"
    gather(two_ranks, target, force=True)
    assert contents_of(target) == contents_of(two_ranks)


@pytest.mark.parametrize("out", ["parts/rank-1/model.gguf", "parts/manifest.json/x.gguf"])
def test_no_part_is_ever_a_target(out: str, parts: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in parts.rglob("*") if path.is_file()}
    with pytest.raises(OutputError):
        gather(parts, tmp_path / out, force=True)
    assert {path: path.read_bytes() for path in parts.rglob("*") if path.is_file()} == before


def test_a_directory_of_parts_is_never_a_target(tiny_llama: Path, tmp_path: Path) -> None:
    parts = write_shards(shard_plan(open_weights(tiny_llama), Grid(2)), tmp_path / "parts")
    for out in (parts, parts / "rank-1"):
        with pytest.raises(OutputError, match="contains the input"):
            gather(parts, out, force=True)
    assert contents_of(parts) == contents_of(tiny_llama)


def test_what_will_be_done_is_reported_and_nothing_is_done(two_ranks: Path, tmp_path: Path) -> None:
    described = gathering(two_ranks, tmp_path / "whole.gguf")
    assert described.gathered.manifest.grid == Grid(2)
    assert list(tmp_path.iterdir()) == []
    gather(two_ranks, tmp_path / "whole.gguf")
    assert described.outcome.nbytes == (tmp_path / "whole.gguf").stat().st_size


def test_progress_comes_to_all_that_is_read_and_written(two_ranks: Path, tmp_path: Path) -> None:
    reported: list[int] = []
    gather(two_ranks, tmp_path / "whole.gguf", progress=reported.append)
    assert sum(reported) == gathering(two_ranks, tmp_path / "other.gguf").nbytes
    # Of `norm` there are two copies to check, and one to write.
    assert sum(reported) == 2 * sum(len(raw) for _, raw in contents_of(two_ranks).values()) + 16


# A checkpoint that is sharded for any number of ranks and joined has the same bytes.


COUNTS = (1, 2, 3, 4, 8)
KEPT_BY = {"gguf": ("F32", "BF16", "Q8_0", "Q4_K"), "safetensors": ("F32", "BF16")}


class Drawn:
    """Tensors of one strategy, with rules that say so, and sizes that divide by luck alone."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any], ranks: int) -> None:
        self._draw, self._ranks = draw, ranks
        self.some = lambda: draw(st.integers(1, 3))

    def enough(self) -> int:
        """Return as many units as there are ranks, or more."""
        return self._ranks + self._draw(st.integers(0, 5))

    def heads(self) -> tuple[int, int]:
        """Return how many heads there are, and of keys and values, which may be fewer."""
        few = [count for count in range(1, self._ranks) if self._ranks % count == 0]
        keys = self._draw(st.sampled_from([*few, self._ranks, self._ranks + 1]))
        group = self._draw(st.integers(-(-self._ranks // keys), 3 + self._ranks // keys))
        return keys * group, keys

    def replicate(self, block: int) -> tuple[tuple[int, ...], str]:
        return (self.some(), self.some() * block), "'replicate'"

    def rowwise(self, block: int) -> tuple[tuple[int, ...], str]:
        return (self.enough(), self.some() * block), "'rowwise'"

    def columnwise(self, block: int) -> tuple[tuple[int, ...], str]:
        return (self.some(), self.enough() * block), "'columnwise'"

    def axiswise(self, block: int) -> tuple[tuple[int, ...], str]:
        axis = self._draw(st.integers(0, 2))
        shape = [self.enough() if place == axis else self.some() for place in range(3)]
        return (*shape[:2], shape[2] * block), f"{{ strategy = 'axiswise', axis = {axis} }}"

    def segmented(self, block: int) -> tuple[tuple[int, ...], str]:
        axis = self._draw(st.integers(0, 1))
        sizes = [self.enough() * (block if axis else 1) for _ in range(self.some())]
        shape = [self.some(), self.some() * block]
        shape[axis] = sum(sizes)
        text = f"{{ strategy = 'segmented', sizes = {sizes}, axis = {axis} }}"
        return tuple(shape), text

    def gate_up(self, block: int) -> tuple[tuple[int, ...], str]:
        return (2 * self.enough(), self.some() * block), "'gate_up'"

    def stacked_qkv(self, block: int) -> tuple[tuple[int, ...], str]:
        (heads, keys), size = self.heads(), self.some()
        text = f"heads = {heads}, kv_heads = {keys}, head_dim = {size}"
        shape = ((heads + 2 * keys) * size, self.some() * block)
        return shape, f"{{ strategy = 'stacked_qkv', {text} }}"

    def head_aware_columnwise(self, block: int) -> tuple[tuple[int, ...], str]:
        (heads, keys), size = self.heads(), self.some() * block
        text = f"heads = {heads}, kv_heads = {keys}, head_dim = {size}"
        return (
            self.some(),
            heads * size,
        ), f"{{ strategy = 'head_aware_columnwise', {text} }}"

    def expert_parallel(self, block: int) -> tuple[tuple[int, ...], str]:
        return (self.enough(), self.some(), self.some() * block), "'expert_parallel'"


STRATEGIES = [name for name, of in vars(Drawn).items() if callable(of) and name[0] != "_"]
STRATEGIES = [name for name in STRATEGIES if name not in {"enough", "heads"}]


def put_back(source: Path, directory: Path, grid: Grid, rules: CutRulesLike | None = None) -> Path:
    """Cut a checkpoint, put it together again, and return where that is."""
    weights = open_weights(source)
    save_shards(shard_plan(weights, grid, rules=rules), directory / "shards")
    whole = directory / f"whole.{weights.header.format}"
    gather(directory / "shards", whole)
    return whole


@pytest.mark.parametrize("format_name", KEPT_BY)
@pytest.mark.parametrize("ranks", usual([1, 3], COUNTS))
@given(data=st.data())
@settings(max_examples=3)
def test_every_strategy_gives_back_what_it_cut(
    format_name: str, ranks: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("cut")
    drawn = Drawn(data.draw, ranks)
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    contents: dict[str, tuple[TensorInfo, bytes]] = {}
    lines = ["[tensors]"]
    for strategy, encoding in product(STRATEGIES, KEPT_BY[format_name]):
        shape, text = getattr(drawn, strategy)(ENCODINGS[encoding].block)
        info = TensorInfo(f"{strategy}.{encoding}", shape, ENCODINGS[encoding])
        contents[info.name] = info, random.bytes(info.nbytes)
        lines.append(f"'^{strategy}.{encoding}$' = {text}")
    (directory / "plan.toml").write_text("\n".join(lines))
    source = write_whole(directory / "in.bin", format_name, contents, {})
    rules = read_rules(str(directory / "plan.toml"))
    whole = put_back(source, directory, Grid(ranks), rules)
    assert contents_of(whole) == contents
    shardings = shard_plan(open_weights(source), Grid(ranks), rules=rules).shardings
    for name, sharding in shardings.items():
        assert (ranks > 1 and "replicate" not in name) == any(sharding.parts)
    shutil.rmtree(directory)


GRIDS = [
    ("llama", Grid(2, 1, 2)), ("llama", Grid(4)), ("llama-yarn", Grid(2, 1, 2)), ("qwen2", Grid(4)),
    ("gemma3", Grid(2, 1, 3)), ("phi3-long", Grid(4, 1, 2)), ("gpt2", Grid(3, 1, 2)),
    ("bert", Grid(3, 1, 2)), ("mixtral", Grid(1, 3)), ("mixtral", Grid(2, 4, 2)),
    ("qwen3moe", Grid(4, 2, 2)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "grid"), usual([("qwen3moe", Grid(4, 2, 2))], GRIDS))
def test_models_of_every_family_come_back(
    name: str, grid: Grid, family: Callable[[str], Made], tmp_path: Path
) -> None:
    source = family(name).bf16
    assert contents_of(put_back(source, tmp_path, grid)) == contents_of(source)


@pytest.mark.parametrize(("option", "dtype", "name", "grid"), usual([
    ("--quant", "q4_k_m", "mixtral", Grid(1, 2, 2)), ("--quant", "q8_0", "qwen2", Grid(1, 1, 2)),
], [
    (*stored, *cut)
    for stored in [("--dtype", "f32"), ("--quant", "q8_0"), ("--quant", "q4_k_m")]
    for cut in [("mixtral", Grid(1, 2, 2)), ("qwen2", Grid(1, 1, 2))]
]))  # fmt: skip
def test_models_of_gguf_come_back(
    name: str,
    grid: Grid,
    option: str,
    dtype: str,
    family: Callable[[str], Made],
    converted: Callable[..., Path],
    tmp_path: Path,
) -> None:
    own = converted(family(name).bf16, f"{name}-{dtype}.gguf", option, dtype)
    tp = 1 if dtype == "q4_k_m" else 2  # of its rows a head is less than a block
    whole = put_back(own, tmp_path, grid._replace(tp=tp))
    assert contents_of(whole) == contents_of(own)
    assert open_weights(whole).metadata == open_weights(own).metadata
