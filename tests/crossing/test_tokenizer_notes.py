"""The notes of `convert` on tokenizers that llama.cpp does not follow completely."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tokenizers import AddedToken, normalizers

import family_tokenizers as families
from small_models import llama

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tokenizers import Tokenizer

    from conftest import Completed


def model_with(tokenizer: Tokenizer, directory: Path) -> Path:
    size = tokenizer.get_vocab_size()
    llama(vocab_size=size).save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture
def pieces() -> Tokenizer:
    return families.sentence_pieces("<unk>", "<s>", "</s>", first="<s>")


def test_convert_names_the_tokens_whose_flags_llama_cpp_does_not_heed(
    pieces: Tokenizer, tmp_path: Path, weightctl: Callable[..., Completed]
) -> None:
    pieces.add_special_tokens([AddedToken("<turn>", rstrip=True)])
    done = weightctl("convert", model_with(pieces, tmp_path / "model"), tmp_path / "model.gguf")
    assert done.returncode == 0, done.stderr
    assert "white space after `<turn>` (`rstrip`)" in " ".join(done.stderr.split())


def test_convert_refuses_a_normalizer_that_llama_cpp_would_leave_out(
    pieces: Tokenizer, tmp_path: Path, weightctl: Callable[..., Completed]
) -> None:
    pieces.normalizer = normalizers.Sequence([normalizers.NFKC(), pieces.normalizer])
    model = model_with(pieces, tmp_path / "model")
    done = weightctl("convert", model, tmp_path / "model.gguf")
    assert done.returncode == 2
    assert '{"type": "NFKC"}' in " ".join(done.stderr.split())
    assert not (tmp_path / "model.gguf").exists()
