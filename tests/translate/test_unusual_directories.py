"""Model directories with entries that are not files, are elsewhere, or are nested too deeply."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest

import small_models
import weightctl
from weightctl import open_weights, save
from weightctl.dtype import ENCODINGS
from weightctl.errors import ArchitectureError, ConversionError, FormatError, OutputError
from weightctl.formats.huggingface import open_companion
from weightctl.plan.cast import cast
from weightctl.plan.choices import Names
from weightctl.translate.models import pooling_keys
from weightctl.translate.plans import plan_of
from weightctl.weights.steps.rows import StackedEntry

if TYPE_CHECKING:
    from pathlib import Path

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 609\n"


@pytest.fixture
def model(tiny_llama: Path, tmp_path: Path) -> Path:
    """Return a model directory that can be changed."""
    made = tmp_path / "model"
    shutil.copytree(tiny_llama, made)
    return made


@pytest.mark.parametrize("content", [POINTER, "<!DOCTYPE html>", "", "[]", None])
def test_a_config_that_is_none_is_reported_before_names_are_kept(
    model: Path, content: str | None
) -> None:
    path = model / "config.json"
    path.unlink()
    if content is None:
        os.mkfifo(path)
    else:
        path.write_text(content)
    with pytest.raises(ArchitectureError, match=r"config\.json: ") as caught:
        plan_of(open_weights(model), "gguf")
    assert "--names keep" in caught.value.hint
    assert plan_of(open_weights(model), "gguf", names=Names.KEEP).items


@pytest.mark.parametrize("path", ["../outside", "/", "x/../../outside", "..\\outside", None, 5])
def test_a_pooling_outside_the_directory_is_refused(tmp_path: Path, path: object) -> None:
    inside = tmp_path / "model"
    for place in (inside, tmp_path / "outside"):
        place.mkdir()
        (place / "config.json").write_text('{"pooling_mode_cls_token": true}')
    modules = [{"type": "sentence_transformers.models.Pooling", "path": path}]
    (inside / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ArchitectureError, match="the pooling path"):
        pooling_keys(str(inside), "bert", print)


def test_a_config_nested_too_deeply_to_be_written_again_is_copied(
    model: Path, tmp_path: Path
) -> None:
    text = '{"dtype": "float32", "a_config": ' + '{"a_config": ' * 900 + "{}" + "}" * 901
    (model / "config.json").write_text(text)
    plan = plan_of(open_weights(model), "safetensors", names=Names.KEEP, is_model=True)
    save(plan, tmp_path / "copy")
    assert (tmp_path / "copy" / "config.json").read_text() == text


def test_a_file_that_cannot_be_carried_along_is_named(model: Path) -> None:
    secret = model / "NOTICE"
    secret.symlink_to(secret)
    with pytest.raises(FormatError, match="NOTICE"):
        open_companion(str(secret))


def test_what_experts_of_a_stack_go_through_reads_alike_so_that_plans_fold_them() -> None:
    assert str(StackedEntry(0)) == str(StackedEntry(127))


def test_a_pooling_whose_config_is_missing_is_reported(tmp_path: Path) -> None:
    module = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
    (tmp_path / "modules.json").write_text(json.dumps([module]))
    reported: list[str] = []
    assert pooling_keys(str(tmp_path), "bert", reported.append) == {}
    assert "1_Pooling" in reported[0]
    assert "--set bert.pooling_type:u32=1" in reported[0]


def test_eight_bit_floats_whose_scales_are_missing_are_refused(model: Path, tmp_path: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    narrow = tmp_path / "narrow"
    plan = plan_of(open_weights(model), "safetensors", is_model=True, is_cast=True)
    save(cast(plan, ENCODINGS["F8_E4M3"]), narrow)
    assert plan_of(open_weights(narrow), "gguf").items
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (narrow / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ConversionError,
        match="the model is quantized, but the scales are missing",
    ):
        plan_of(open_weights(narrow), "gguf")


def test_heads_for_training_that_are_left_out_are_named(tmp_path: Path) -> None:
    network = small_models.bert()
    network.save_pretrained(tmp_path)
    notes = plan_of(open_weights(tmp_path), "gguf").notes
    assert any("pooler.dense.weight" in note and "not written" in note for note in notes)


def test_rows_of_an_embedding_that_are_of_no_token_are_left_out_and_told(tmp_path: Path) -> None:
    network = small_models.llama(vocab_size=96, tie_word_embeddings=False)
    network.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 90}))
    plan = plan_of(open_weights(tmp_path), "gguf")
    save(plan, tmp_path / "out.gguf")
    made = open_weights(tmp_path / "out.gguf")
    assert any("the last 6 rows of model.embed_tokens.weight" in note for note in plan.notes)
    for name, parameter in [
        ("token_embd", network.model.embed_tokens.weight),
        ("output", network.lm_head.weight),
    ]:
        found = made[f"{name}.weight"].data().to_numpy()
        assert (found == parameter.detach().numpy()[:90]).all()
    assert made.metadata["llama.vocab_size"].content == 90


# Files beside the weights, and whether they are copied.
BESIDE = {
    "additional_chat_templates/rag.jinja": True, "1_Pooling/config.json": True,
    "2_Dense/config.json": True, "2_Dense/model.safetensors": True, "sub/deep/table.dat": True,
    "spiece.spm": True, "vocab.bpe": True, "tokenizer.model.v3": True, "recipe.yaml": True,
    "a.json": True, "onnx/model.onnx": False, "onnx/config.json": False, "q4.gguf": False,
    "pytorch_model.bin.index.json": False, ".cache/x": False, "__pycache__/a.pyc": False,
    "big.txt": False, "linked": False, "a.bin.weightctl-0123abcd.partial": False,
}  # fmt: skip
NAMED = ("big.txt", "linked", "onnx", "q4.gguf")


def fill(model: Path) -> None:
    for name in BESIDE:
        path = model / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"torch_dtype": "float64"}')
    modules = [{"type": "a", "path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}]
    (model / "modules.json").write_text(json.dumps(modules))
    with (model / "big.txt").open("ab") as file:
        file.truncate(100_000_001)
    (model / "linked").unlink()
    (model / "linked").symlink_to("sub")


def files_in(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def test_files_and_folders_beside_the_weights_are_copied_or_named(
    model: Path, tmp_path: Path
) -> None:
    fill(model)
    (model / "q4.gguf").write_bytes(b"GGUF")
    own = {path.name for path in model.iterdir() if path.is_file()} - {*BESIDE}
    wanted = own | {name for name, is_copied in BESIDE.items() if is_copied}
    made = weightctl.convert(model, tmp_path / "out", dtype="f16")
    assert files_in(tmp_path / "out") == wanted
    assert (tmp_path / "out" / "2_Dense" / "config.json").read_bytes() == (
        model / "2_Dense" / "config.json"
    ).read_bytes()
    sharded = weightctl.shard(model, tmp_path / "ranks", tp=2)
    for rank in ("rank-0", "rank-1"):
        assert files_in(tmp_path / "ranks" / rank) == wanted
    for notes in (made.notes, sharded.notes):
        (note,) = [note for note in notes if note.startswith("not copied: ")]
        assert [name for name in NAMED if f"{name} (" in note] == [*NAMED]
        assert note.count("(") == len(NAMED)


def test_an_output_with_folders_is_replaced_unless_it_has_other_files(
    model: Path, tmp_path: Path
) -> None:
    fill(model)
    for out in (tmp_path / "out", tmp_path / "ranks"):

        def write(*, force: bool, ranks: int = 2, out: Path = out) -> None:
            if out.name == "out":
                weightctl.convert(model, out, force=force)
            else:
                weightctl.shard(model, out, tp=ranks, force=force)

        write(force=False)
        write(force=True, ranks=1)
        first = next(path for path in sorted(out.rglob("*")) if path.name == "1_Pooling")
        (first / "mine.txt").write_text("mine")
        with pytest.raises(OutputError, match=r"1_Pooling/mine\.txt"):
            write(force=True)
        assert (first / "mine.txt").exists()
