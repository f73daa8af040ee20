"""Importance matrices of models: what is measured, merged, continued and refused."""

from __future__ import annotations

import os
import signal
from shutil import copyfile
from typing import TYPE_CHECKING

import numpy as np
import pytest

from imatrix_models import EXPERTS, TEXT, TINY, mixture_directory, tiny_llama
from ready_children import run_ready
from weightctl import convert
from weightctl.calibrate import make_imatrix
from weightctl.calibrate.chunks import BUILT_IN, read_texts
from weightctl.errors import ConversionError, OutputError, TokenizerError
from weightctl.formats.imatrix.sums import ImportanceSums, read_sums

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]

SHORT = {"text_files": [str(TEXT)], "context": 64, "chunks": 3}
# Ends with SIGKILL in the third of three layers.
KILLED = """
import os, signal, sys
from weightctl.calibrate import make_imatrix

def advance(stage, done):
    if stage == "layer 3 of 3":
        os.kill(os.getpid(), signal.SIGKILL)

make_imatrix(sys.argv[1], sys.argv[2], text_files=[sys.argv[3]], context=64, chunks=3,
             progress=advance)
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An importance matrix of tiny-llama."""
    made = tmp_path_factory.mktemp("imatrix") / "imatrix.gguf"
    make_imatrix(TINY, made, **SHORT)
    return made


def assert_same(left: ImportanceSums, right: ImportanceSums, within: float = 0.0) -> None:
    assert left.entries.keys() == right.entries.keys()
    for name, (squares, counts) in left.entries.items():
        np.testing.assert_allclose(right.entries[name].squares, squares, rtol=within)
        np.testing.assert_array_equal(right.entries[name].counts, counts)


def test_a_file_and_a_directory_of_one_model_have_the_same_importance(
    measured: Path, tmp_path: Path
) -> None:
    convert(TINY, tmp_path / "model.gguf")
    make_imatrix(tmp_path / "model.gguf", tmp_path / "other.gguf", **SHORT)
    # Heads have another order in GGUF, so the last bits differ, and some vectors round otherwise.
    assert_same(read_sums(str(measured), 64), read_sums(str(tmp_path / "other.gguf"), 64), 1e-2)


def test_weights_in_bf16_are_multiplied_with_rounded_vectors(
    measured: Path, tmp_path: Path
) -> None:
    make_imatrix(tiny_llama(tmp_path), tmp_path / "other.gguf", **SHORT)
    rounded, exact = (read_sums(str(each), 64) for each in (measured, tmp_path / "other.gguf"))
    assert_same(exact, rounded, 3e-2)
    name = "blk.2.ffn_down.weight"
    differences = rounded.entries[name].squares / exact.entries[name].squares - 1
    assert 1e-4 < np.abs(differences).mean() < 3e-3


def test_every_matrix_of_a_layer_has_an_entry_under_its_name_in_gguf(measured: Path) -> None:
    found = read_sums(str(measured), 64)
    parts = ["attn_k", "attn_output", "attn_q", "attn_v", "ffn_down", "ffn_gate", "ffn_up"]
    assert [*found.entries] == [f"blk.{n}.{part}.weight" for n in range(3) for part in parts]
    assert {int(each.counts[0]) for each in found.entries.values()} == {3 * 64}
    assert found.chunks == 3
    assert found.datasets == (str(TEXT),)


@pytest.mark.long
def test_a_run_that_was_killed_continues_with_the_next_layer(
    measured: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.gguf"
    done = run_ready(KILLED, TINY, out, TEXT, imports=["torch"])
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith("out.gguf.weightctl-")
    made = make_imatrix(TINY, out, **SHORT)
    assert made.resumed == 2
    assert made.notes == ("continued after 2 layers of a stopped run",)
    assert out.read_bytes() == measured.read_bytes()
    assert [*tmp_path.iterdir()] == [out]


def stop(stage: str, _done: float) -> None:
    if stage == "layer 2 of 3":
        raise KeyboardInterrupt


def test_a_stopped_run_on_another_text_starts_over_and_says_so(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    with pytest.raises(KeyboardInterrupt):
        make_imatrix(TINY, out, **SHORT, progress=stop)
    assert len([*tmp_path.iterdir()]) == 1
    made = make_imatrix(TINY, out, **SHORT | {"chunks": 2})
    assert made.resumed == 0
    assert made.notes == ("the state of a stopped run with another input was removed",)
    assert [*tmp_path.iterdir()] == [out]


def test_a_run_that_fails_before_a_layer_is_done_leaves_nothing(tmp_path: Path) -> None:
    def fail(stage: str, _done: float) -> None:
        if stage == "layer 1 of 3":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_imatrix(TINY, tmp_path / "out.gguf", **SHORT, progress=fail)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("suffix", ["gguf", "dat"])
def test_merged_files_have_the_sums_of_both(measured: Path, tmp_path: Path, suffix: str) -> None:
    first, both = tmp_path / f"first.{suffix}", tmp_path / f"both.{suffix}"
    make_imatrix(None, first, merge=[str(measured)], context=64)
    made = make_imatrix(None, both, merge=[str(measured), str(first)], context=64)
    assert (made.format, made.chunks, made.merged) == (suffix, 0, (str(measured), str(first)))
    doubled = read_sums(str(measured), 64)
    doubled.add(read_sums(str(measured), 64), "itself")
    assert_same(doubled, read_sums(str(both), 64), 1e-6)
    assert read_sums(str(both), 64).datasets == (str(TEXT),)


def test_experts_that_no_token_reached_are_counted(tmp_path: Path) -> None:
    made = make_imatrix(
        mixture_directory(tmp_path), tmp_path / "out.gguf", text_files=[str(TEXT)], context=16,
        chunks=1,
    )  # fmt: skip
    found = read_sums(str(tmp_path / "out.gguf"), 16)
    gates = found.entries["blk.0.ffn_gate_exps.weight"]
    assert gates.squares.shape == (EXPERTS, 256)
    assert gates.counts.sum() == 2 * 16
    for each in made.seldom:
        counts = found.entries[each.tensor].counts
        assert each.experts == EXPERTS
        assert each.unreached == (counts == 0).sum()


def test_the_output_is_measured_on_request(tmp_path: Path) -> None:
    make_imatrix(TINY, tmp_path / "out.gguf", **SHORT | {"chunks": 1}, process_output=True)
    found = read_sums(str(tmp_path / "out.gguf"), 64)
    assert found.entries["output.weight"].counts.tolist() == [64]


def test_quantization_uses_the_file(measured: Path, tmp_path: Path) -> None:
    convert(TINY, tmp_path / "plain.gguf", quant="Q4_K")
    convert(TINY, tmp_path / "weighted.gguf", quant="Q4_K", imatrix=str(measured))
    assert (tmp_path / "plain.gguf").read_bytes() != (tmp_path / "weighted.gguf").read_bytes()


def test_the_built_in_text_is_part_of_the_package() -> None:
    (text,) = read_texts([])
    assert text.name == BUILT_IN
    assert 30_000 < len(text.content.encode()) < 60_000
    assert "Assistant:" in text.content
    assert "```python" in text.content


def test_a_model_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        copyfile(TINY / name, bare / name)
    with pytest.raises(TokenizerError, match="the tokenizer is missing") as caught:
        make_imatrix(bare, tmp_path / "out.gguf", **SHORT)
    assert "tokenizer.json" in caught.value.hint


def test_a_short_text_and_wrong_numbers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("too short")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    out = tmp_path / "out.gguf"
    short = {"text_files": [str(tmp_path / "short.txt")]}
    for arguments, reason in (
        (short, "the text has .* tokens, but a chunk has 512"),
        ({"text_files": [str(tmp_path / "bytes.txt")]}, "is not UTF-8 text: byte 0"),
        (SHORT | {"context": 8}, "a chunk of 8 tokens is too short"),
        (SHORT | {"chunks": 0}, "the number of chunks is 0"),
    ):
        with pytest.raises(ConversionError, match=reason):
            make_imatrix(TINY, out, **arguments)
    with pytest.raises(ConversionError, match="there is nothing to write"):
        make_imatrix(None, out)
    assert not out.exists()


def test_an_existing_file_is_replaced_only_with_force(measured: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_text("mine")
    with pytest.raises(OutputError, match="exists"):
        make_imatrix(None, out, merge=[str(measured)])
    assert out.read_text() == "mine"
    make_imatrix(None, out, merge=[str(measured)], force=True)
    assert read_sums(str(out), 512).entries
    with pytest.raises(OutputError, match="is a directory"):
        make_imatrix(None, tmp_path, merge=[str(measured)])


def test_files_of_different_models_are_not_merged(measured: Path) -> None:
    other = read_sums(str(measured), 64)
    name = next(iter(other.entries))
    other.entries[name] = other.entries[name]._replace(squares=np.ones((1, 128)))
    with pytest.raises(ConversionError, match="has 128 values in that file, but 256"):
        read_sums(str(measured), 64).add(other, "that file")


def test_the_command_prints_what_it_wrote(weightctl: Run, tmp_path: Path) -> None:
    arguments = ["-o", "out.gguf", "--text-file", TEXT, "--context", "64", "--chunks", "1"]
    done = weightctl("imatrix", TINY, *arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "out.gguf: 21 tensors, measured on 1 chunk of 64 tokens\n"
    again = weightctl("imatrix", TINY, *arguments, cwd=tmp_path)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr.startswith("error: out.gguf exists\nhint: ")
    assert os.listdir(tmp_path) == ["out.gguf"]
