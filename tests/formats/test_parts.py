"""Checkpoints of several files, and directories: which files form one checkpoint."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from huggingface_hub import save_torch_state_dict

from build import I8, Gguf, Tensor, index_of, safetensors_of
from copying import contents, raw
from lazy import torch
from weightctl import open_weights
from weightctl.errors import ConversionError, FormatError
from weightctl.formats.open.parts import merge_headers
from weightctl.weights.info import Header, Leaf

if TYPE_CHECKING:
    from pathlib import Path

GGUF_PARTS = [f"model-{number:05d}-of-00003.gguf" for number in (1, 2, 3)]
TENSOR_PARTS = [f"model-{number:05d}-of-00002.safetensors" for number in (1, 2)]
INDEX = "model.safetensors.index.json"
ALL_THREE = {"a": ("I8", (1,), b"a"), "b": ("I8", (1,), b"b"), "c": ("I8", (1,), b"c")}


def gguf_of(name: str, values: dict[str, tuple[str, object]] | None = None) -> bytes:
    return Gguf().file([Tensor(name, (1,), I8, name.encode())], values or {})


def one_tensor(name: str, metadata: dict[str, str] | None = None) -> bytes:
    return safetensors_of({name: ("I8", (1,), name.encode())}, metadata)


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """A GGUF in three parts, as llama.cpp splits it: all metadata is in the first part."""
    for number, (file, name) in enumerate(zip(GGUF_PARTS, "abc", strict=True)):
        values: dict[str, tuple[str, object]] = {
            "split.no": ("u16", number),
            "split.count": ("u16", 3),
            "split.tensors.count": ("i32", 3),
        }
        first: dict[str, tuple[str, object]] = {"general.name": ("string", "three")}
        (tmp_path / file).write_bytes(gguf_of(name, values if number else first | values))
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A safetensors checkpoint in two parts with an index."""
    for file, name in zip(TENSOR_PARTS, "ab", strict=True):
        (tmp_path / file).write_bytes(one_tensor(name, {"format": "pt"}))
    weight_map = dict(zip("ab", TENSOR_PARTS, strict=True))
    (tmp_path / INDEX).write_bytes(index_of(weight_map, {"total_size": 2, "note": "n"}))
    return tmp_path


@pytest.mark.parametrize("member", [*GGUF_PARTS, ""])
def test_a_split_gguf_is_opened_by_any_part_and_by_its_directory(member: str, split: Path) -> None:
    weights = open_weights(split / member)
    assert contents(weights) == ALL_THREE
    assert weights.header.files == tuple(str(split / part) for part in GGUF_PARTS)


def test_the_metadata_of_a_split_gguf_is_that_of_the_whole(split: Path) -> None:
    assert list(open_weights(split).metadata) == ["general.name"]


def test_a_part_opened_by_its_name_alone_finds_the_others(
    split: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(split)
    assert contents(open_weights(GGUF_PARTS[1])) == ALL_THREE


def test_a_set_of_one_part_is_whole(tmp_path: Path) -> None:
    (tmp_path / "a-00001-of-00001.gguf").write_bytes(gguf_of("a"))
    assert list(open_weights(tmp_path).header.tensors) == ["a"]


@pytest.mark.parametrize(
    "name", ["a-00002-of-00001.gguf", "a-0001-of-0002.gguf", "a-of-00002.gguf"]
)
def test_a_name_that_is_nearly_a_part_is_a_file_by_itself(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(gguf_of("a"))
    assert open_weights(tmp_path / name).header.files == (str(tmp_path / name),)


def test_a_single_part_that_was_renamed_is_refused(split: Path) -> None:
    (split / GGUF_PARTS[1]).rename(split / "renamed.gguf")
    with pytest.raises(FormatError, match=r"`split\.no` is 1, but 0 is expected"):
        open_weights(split / "renamed.gguf")


@pytest.mark.parametrize("member", [*TENSOR_PARTS, INDEX, ""])
def test_a_sharded_checkpoint_is_opened_by_any_part_by_its_index_and_by_its_directory(
    member: str, sharded: Path
) -> None:
    weights = open_weights(sharded / member)
    assert contents(weights) == {"a": ("I8", (1,), b"a"), "b": ("I8", (1,), b"b")}
    assert len(weights.header.files) == 2


def test_an_index_gives_its_texts_and_keeps_its_sizes(sharded: Path) -> None:
    metadata = open_weights(sharded).metadata
    assert {key: value.content for key, value in metadata.items()} == {"format": "pt", "note": "n"}


def test_parts_need_no_index(sharded: Path) -> None:
    (sharded / INDEX).unlink()
    assert list(open_weights(sharded / TENSOR_PARTS[1]).header.tensors) == ["a", "b"]


def test_parts_that_the_index_beside_them_does_not_name_are_a_set_by_themselves(
    sharded: Path,
) -> None:
    (sharded / "other.safetensors").write_bytes(one_tensor("c"))
    (sharded / INDEX).write_bytes(index_of({"c": "other.safetensors"}))
    assert list(open_weights(sharded / TENSOR_PARTS[0]).header.tensors) == ["a", "b"]
    assert list(open_weights(sharded).header.tensors) == ["c"]


def test_an_index_may_name_files_of_any_name(tmp_path: Path) -> None:
    (tmp_path / "first.safetensors").write_bytes(one_tensor("a"))
    (tmp_path / "second.bin").write_bytes(one_tensor("b"))
    weight_map = {"a": "first.safetensors", "b": "second.bin"}
    (tmp_path / INDEX).write_bytes(index_of(weight_map))
    assert list(open_weights(tmp_path).header.tensors) == ["a", "b"]


def test_the_tied_names_of_an_index_are_aliases(sharded: Path) -> None:
    weight_map = dict(zip("ab", TENSOR_PARTS, strict=True))
    (sharded / INDEX).write_bytes(index_of(weight_map, {"lm_head.weight": "a"}))
    weights = open_weights(sharded)
    assert weights.header.aliases == {"lm_head.weight": "a"}
    assert bytes(weights.lm_head.weight.data().view()) == b"a"


def test_names_that_share_a_tensor_in_a_part_are_aliases_of_the_whole(tmp_path: Path) -> None:
    names = [f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2)]
    tied = torch.arange(4.0)
    torch.save({"embed": tied, "head": tied}, tmp_path / names[0])
    torch.save({"b": torch.ones(2), "count": 3}, tmp_path / names[1])
    weight_map = {"embed": names[0], "head": names[0], "b": names[1]}
    (tmp_path / "pytorch_model.bin.index.json").write_bytes(index_of(weight_map))
    header = open_weights(tmp_path).header
    assert (list(header.tensors), header.aliases) == (["embed", "b"], {"head": "embed"})
    assert list(header.leaves) == ["count"]


def test_what_parts_say_is_merged_and_the_first_is_right() -> None:
    first = Header("pytorch", ("1",), {}, {}, leaves={"n": Leaf("int", "1")}, aliases={"t": "a"})
    later = Header(
        "pytorch", ("2",), {}, {},
        leaves={"n": Leaf("int", "2"), "m": Leaf("int", "3")}, aliases={"t": "b", "u": "b"},
    )  # fmt: skip
    header = merge_headers([first, later])
    assert header.leaves == {"n": Leaf("int", "1"), "m": Leaf("int", "3")}
    assert header.aliases == {"t": "a", "u": "b"}


def test_an_alias_is_not_looked_for_in_another_part(tmp_path: Path) -> None:
    names = [f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2)]
    tied = torch.arange(4.0)
    torch.save({"embed": tied, "head": tied}, tmp_path / names[0])
    torch.save({"b": torch.ones(2)}, tmp_path / names[1])
    weight_map = {"embed": names[0], "head": names[1], "b": names[1]}
    (tmp_path / "pytorch_model.bin.index.json").write_bytes(index_of(weight_map))
    with pytest.raises(FormatError, match=r"1 tensor not in the part that .* names \(`head`\)"):
        open_weights(tmp_path)


def test_a_tied_name_may_also_be_in_the_weight_map(sharded: Path) -> None:
    weight_map = dict(zip(["a", "b", "tied"], [*TENSOR_PARTS, TENSOR_PARTS[0]], strict=True))
    (sharded / INDEX).write_bytes(index_of(weight_map, {"tied": "a"}))
    assert open_weights(sharded).header.aliases == {"tied": "a"}


def test_what_huggingface_hub_writes_of_shards_and_tied_weights_is_read(tmp_path: Path) -> None:
    tied = torch.arange(100.0)
    state = {"embed.weight": tied, "middle": torch.ones(100), "lm_head.weight": tied}
    save_torch_state_dict(dict(state), tmp_path, max_shard_size=400)
    assert (tmp_path / INDEX).exists()
    weights = open_weights(tmp_path)
    assert len(weights.header.tensors) == 2
    assert {name for name, _ in weights.items()} == set(state)
    for name, node in weights.items():
        assert node.data().to_numpy().tolist() == state[name].tolist()


def test_safetensors_is_taken_before_gguf_with_a_note(tmp_path: Path) -> None:
    (tmp_path / "any.safetensors").write_bytes(one_tensor("a"))
    (tmp_path / "model.gguf").write_bytes(gguf_of("b"))
    header = open_weights(tmp_path).header
    assert header.format == "safetensors"
    assert any(
        "contains safetensors and gguf checkpoints; safetensors is read" in note
        for note in header.notes
    )


def test_a_format_that_is_asked_for_is_taken_without_a_note(tmp_path: Path) -> None:
    (tmp_path / "any.safetensors").write_bytes(one_tensor("a"))
    (tmp_path / "model.gguf").write_bytes(gguf_of("b"))
    header = open_weights(tmp_path, "gguf").header
    assert (header.format, header.notes) == ("gguf", ())


def test_a_format_is_found_by_content_not_by_suffix(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(gguf_of("a"))
    (tmp_path / "weights").write_bytes(one_tensor("a"))
    assert open_weights(tmp_path / "model.safetensors").header.format == "gguf"
    assert open_weights(tmp_path / "weights").header.format == "safetensors"


def test_a_file_of_another_format_than_asked_for_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(gguf_of("a"))
    with pytest.raises(FormatError, match="not a safetensors file: it is gguf") as caught:
        open_weights(tmp_path / "a.gguf", "safetensors")
    assert (
        "leave out --from (source_format or format_name in Python), or use --from gguf"
        in caught.value.hint
    )


def test_a_directory_without_the_format_that_is_asked_for_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(gguf_of("a"))
    with pytest.raises(
        FormatError, match="the directory has no safetensors file that weightctl can read"
    ):
        open_weights(tmp_path, "safetensors")


def test_a_format_there_is_not_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="`zip` is not a supported format") as caught:
        open_weights(tmp_path, "zip")
    assert "safetensors, gguf" in caught.value.hint


@pytest.mark.parametrize("suffix", ["safetensors", "gguf"])
def test_several_checkpoints_in_a_directory_are_an_error_that_names_them(
    suffix: str, tmp_path: Path
) -> None:
    content = one_tensor("a") if suffix == "safetensors" else gguf_of("a")
    for name in (f"one.{suffix}", f"two-00001-of-00002.{suffix}", f"two-00002-of-00002.{suffix}"):
        (tmp_path / name).write_bytes(content)
    named = rf"several {suffix} checkpoints: one\.{suffix}, two-\*-of-00002\.{suffix}"
    with pytest.raises(FormatError, match=named):
        open_weights(tmp_path)


def test_several_indexes_in_a_directory_are_an_error_that_names_them(sharded: Path) -> None:
    (sharded / "other.safetensors.index.json").write_bytes((sharded / INDEX).read_bytes())
    with pytest.raises(FormatError, match=r"several .*: model\S*index\.json, other\S*index\.json"):
        open_weights(sharded)


def test_model_safetensors_is_taken_before_other_names(tmp_path: Path) -> None:
    (tmp_path / "adapter.safetensors").write_bytes(one_tensor("b"))
    (tmp_path / "model.safetensors").write_bytes(one_tensor("a"))
    assert list(open_weights(tmp_path).header.tensors) == ["a"]


def test_other_files_in_a_directory_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "empty.bin").touch()
    (tmp_path / "gone.safetensors").symlink_to("nowhere")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "b.gguf").write_bytes(gguf_of("b"))
    (tmp_path / "a.gguf").write_bytes(gguf_of("a"))
    assert list(open_weights(tmp_path).header.tensors) == ["a"]


def cached(root: Path, files: dict[str, bytes]) -> Path:
    """Arrange files as in the Hugging Face cache: links to blobs that are named by a hash."""
    snapshot = root / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (root / "blobs").mkdir()
    for number, (name, content) in enumerate(files.items()):
        (root / "blobs" / f"{number:064x}").write_bytes(content)
        (snapshot / name).symlink_to(f"../../blobs/{number:064x}")
    return snapshot


@pytest.mark.parametrize("member", ["", "model.safetensors"])
def test_a_snapshot_in_the_hugging_face_cache_is_opened(member: str, tmp_path: Path) -> None:
    snapshot = cached(tmp_path, {"model.safetensors": one_tensor("a"), "config.json": b"{}"})
    assert list(open_weights(snapshot / member).header.tensors) == ["a"]


@pytest.mark.parametrize("member", ["", INDEX, *TENSOR_PARTS])
def test_a_sharded_snapshot_in_the_cache_is_opened_by_its_links(member: str, sharded: Path) -> None:
    files = {name: (sharded / name).read_bytes() for name in (*TENSOR_PARTS, INDEX)}
    snapshot = cached(sharded / "cache", files)
    assert list(open_weights(snapshot / member).header.tensors) == ["a", "b"]


def test_a_part_in_the_cache_is_told_by_the_name_of_its_link(split: Path) -> None:
    snapshot = cached(split / "cache", {name: (split / name).read_bytes() for name in GGUF_PARTS})
    assert contents(open_weights(snapshot / GGUF_PARTS[2])) == ALL_THREE


def test_a_file_that_becomes_shorter_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(gguf_of("a"))
    weights = open_weights(tmp_path / "a.gguf")
    os.truncate(tmp_path / "a.gguf", 10)
    with pytest.raises(FormatError, match=r"a\.gguf, byte 64: 1 bytes cannot be mapped"):
        weights.a.data()
    with pytest.raises(FormatError, match=r"a\.gguf, byte 64: the file ends here"):
        raw(weights, "a")


@pytest.mark.parametrize("kind", ["missing", "fifo", "null\0byte", "x" * 300])
def test_a_path_that_is_not_a_file_is_a_clear_error(kind: str, tmp_path: Path) -> None:
    if kind == "fifo":
        os.mkfifo(tmp_path / kind)
    with pytest.raises(FormatError, match=r"regular|No such|null byte|too long") as caught:
        open_weights(tmp_path / kind)
    assert caught.value.hint


# Sets with missing parts


def test_a_part_without_the_others_can_be_opened(split: Path) -> None:
    (split / GGUF_PARTS[0]).unlink()
    (split / GGUF_PARTS[2]).unlink()
    weights = open_weights(split / GGUF_PARTS[1], partial=True)
    assert contents(weights) == {"b": ALL_THREE["b"]}
    assert weights.header.missing == (GGUF_PARTS[0], GGUF_PARTS[2])
    assert weights.header.notes == (
        f"part 2 of 3; the other parts are missing: `{GGUF_PARTS[0]}`, `{GGUF_PARTS[2]}`",
    )
    assert not [key for key in weights.metadata if key.startswith("split.")]


@pytest.mark.parametrize("name", [TENSOR_PARTS[1], INDEX, "."])
def test_an_index_without_all_of_its_parts_can_be_opened(sharded: Path, name: str) -> None:
    (sharded / TENSOR_PARTS[0]).unlink()
    weights = open_weights(sharded / name, partial=True)
    assert contents(weights) == {"b": ALL_THREE["b"]}
    assert weights.header.notes == (f"part 2 of 2; the other part is missing: `{TENSOR_PARTS[0]}`",)


def test_several_parts_that_exist_are_opened_together(split: Path) -> None:
    (split / GGUF_PARTS[1]).unlink()
    weights = open_weights(split, partial=True)
    assert [*weights.header.tensors] == ["a", "c"]
    assert weights.header.notes == (f"1 of 3 parts is missing: `{GGUF_PARTS[1]}`",)


def test_missing_parts_are_an_error_that_says_how_to_convert_the_others(split: Path) -> None:
    (split / GGUF_PARTS[1]).unlink()
    with pytest.raises(FormatError, match="1 of 3 parts is missing") as caught:
        open_weights(split)
    assert caught.value.hint.endswith("use --partial (partial=True in Python)")


def test_a_set_without_any_part_is_an_error_all_the_same(sharded: Path) -> None:
    for name in TENSOR_PARTS:
        (sharded / name).unlink()
    with pytest.raises(FormatError, match="2 of 2 parts are missing") as caught:
        open_weights(sharded / INDEX, partial=True)
    assert "--partial" not in caught.value.hint


def test_a_whole_set_says_nothing_of_parts(split: Path) -> None:
    header = open_weights(split, partial=True).header
    assert (header.missing, header.notes) == ((), ())


def test_parts_that_exist_must_be_sound_and_in_their_place(split: Path) -> None:
    (split / GGUF_PARTS[0]).unlink()
    (split / GGUF_PARTS[2]).rename(split / GGUF_PARTS[1])
    with pytest.raises(FormatError, match=r"`split\.no` is 2, but 1 is expected"):
        open_weights(split, partial=True)
