"""Token ids outside of the vocabulary, as in a published GGUF; transformers crashes on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from build import Gguf
from weightctl import open_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]

PADDING = "tokenizer.ggml.padding_token_id"


@pytest.fixture
def without_padding(tmp_path: Path) -> Path:
    """A vocabulary whose padding token is -1, written as if it had no sign."""
    path = tmp_path / "in.gguf"
    values = {
        "general.architecture": ("string", "llama"),
        "tokenizer.ggml.tokens": ("array[string]", ["a", "b", "c"]),
        "tokenizer.ggml.bos_token_id": ("u32", 0),
        "tokenizer.ggml.eos_token_id": ("u32", 2),
        PADDING: ("u32", 4294967295),
    }
    path.write_bytes(Gguf().file([], values))
    return path


def test_a_note_says_which_token_is_none(weightctl: Run, without_padding: Path) -> None:
    # A published GGUF has such ids, and transformers crashes on it.
    note = (
        f"`{PADDING}` is 4294967295, but the vocabulary has only 3 tokens; to remove it, "
        f"use --unset {PADDING} (unset in Python)"
    )
    assert open_weights(without_padding).header.notes == (note,)
    for command in (["ls"], ["convert", "--dry-run"]):
        out = [without_padding.with_name("out.gguf")] if "convert" in command else []
        done = weightctl(*command, without_padding, *out)
        assert done.returncode == 0
        assert note in done.stderr


def test_what_the_note_says_leaves_the_token_out(
    weightctl: Run, without_padding: Path, tmp_path: Path
) -> None:
    # A published GGUF has such ids, and transformers crashes on it.
    done = weightctl("convert", without_padding, tmp_path / "out.gguf", "--unset", PADDING)
    assert done.returncode == 0
    out = open_weights(tmp_path / "out.gguf")
    assert PADDING not in out.metadata
    assert out.metadata["tokenizer.ggml.eos_token_id"] == ("u32", 2)
    assert out.header.notes == ()


def test_tokens_that_are_there_are_not_noted(tmp_path: Path) -> None:
    values = {
        "tokenizer.ggml.tokens": ("array[string]", ["a", "b", "c"]),
        "tokenizer.ggml.eos_token_id": ("u32", 2),
        "tokenizer.ggml.add_bos_token": ("bool", True),
    }
    (tmp_path / "in.gguf").write_bytes(Gguf().file([], values))
    assert open_weights(tmp_path / "in.gguf").header.notes == ()
