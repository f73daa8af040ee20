"""Tokenizers of words without white space, as that of jina-embeddings-v2-base-zh, in llama.cpp."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tokenizers import Tokenizer as Reference
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

import family_tokenizers
from sentencepiece_files import TEXTS as HARD
from vocabulary_files import ids_of
from weightctl.errors import TokenizerError
from weightctl.translate.tokenizer import from_directory, to_documents
from weightctl.translate.tokenizer.encoding import encoder_of

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.translate.tokenizer import Tokenizer

# llama.cpp reads the texts of tokens as those of C, which end at a zero, and has another small
# letter for a capital I with a dot.
TEXTS = [
    text.replace("\0", " ").replace("\u0130", "I")
    for text in (
        *HARD,
        *family_tokenizers.COMPOSED.splitlines(),
        family_tokenizers.TEXT,
        "\u4f60\u597d\uff0c\u4e16\u754c! Don't SHOUT, e.g. x1_y2 (3.14)\t\r\n\u3000\u65e5\u672c",
    )
]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def make(into: Path, *, small: bool = True) -> Reference:
    tokenizer = Reference(models.BPE(unk_token="<unk>"))
    if small:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer.save(str(into / "tokenizer.json"))
    config = {f"{name}_token": text for name, text in
              zip(("bos", "pad", "eos", "unk", "mask"), SPECIAL, strict=True)}  # fmt: skip
    config |= {"tokenizer_class": "RobertaTokenizer", "cls_token": "<s>", "sep_token": "</s>"}
    (into / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer


def read(directory: Path) -> Tokenizer:
    found = from_directory(str(directory), 0, "bert")
    assert found is not None
    return found


@pytest.mark.parametrize("small", [True, False])
def test_llama_cpp_splits_text_as_tokenizers_does(tmp_path: Path, small: bool) -> None:
    reference = make(tmp_path, small=small)
    found = read(tmp_path)
    assert (found.model, found.pre) == ("whitespace", "whitespace")
    assert found.flags["normalizer.lowercase"] == small
    (note,) = found.notes
    assert "leaves out characters" in note
    expected = [reference.encode(text).ids for text in TEXTS]
    assert not any(3 in ids for ids in expected)
    assert ids_of(found, TEXTS, tmp_path / "v.gguf", special=True) == expected
    made = to_documents(found, "bert", {})["tokenizer.json"]
    again = Reference.from_str(made.decode())
    assert [again.encode(text).ids for text in TEXTS] == expected
    encoder = encoder_of({}, str(tmp_path), "bert", "a")
    assert encoder is not None
    assert (encoder.first, encoder.last) == ([0], [2])


def test_other_normalizers_are_refused(tmp_path: Path) -> None:
    make(tmp_path)
    document = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    document["normalizer"] = {"type": "NFKC"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(document), "utf-8")
    with pytest.raises(TokenizerError, match=r"its normalizer .*NFKC"):
        read(tmp_path)


def test_merges_of_letters_with_punctuation_are_noted(tmp_path: Path) -> None:
    make(tmp_path)
    document = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    document["model"]["vocab"]["e,"] = len(document["model"]["vocab"])
    document["model"]["merges"].append(["e", ","])
    (tmp_path / "tokenizer.json").write_text(json.dumps(document), "utf-8")
    assert any("join letters and the punctuation" in note for note in read(tmp_path).notes)
