"""Every pre-tokenizer that GGUF has a name for splits text in llama.cpp as in transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import family_tokenizers as families
from each import each
from sentencepiece_files import TEXTS as HARD
from vocabulary_files import ids_of
from weightctl.errors import TokenizerError
from weightctl.translate.tokenizer import from_directory
from weightctl.translate.tokenizer.pre_names import PRES
from weightctl.translate.tokenizer.rules import to_normalizer, to_pre_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.translate.tokenizer.pre_names import Pre

SIZE = 1500
# Pieces that cross the words of any rule, so that each place where text is split is seen.
CORPUS = [
    *families.COMPOSED.splitlines(keepends=True),
    "'s 's 's",
    "12 34 567 8901",
    "a, b. c; d\n",
]
TEXTS = [
    *families.COMPOSED.splitlines(),
    families.COMPOSED,
    "1234567 89",
    "x\n\n  y \n",
    "  ",
    "e.g. it'S",
]


def first_names() -> dict[Pre, str]:
    """Return one name of each pre-tokenizer: that which is written."""
    found: dict[Pre, str] = {}
    for name, pre in PRES.items():
        found.setdefault(pre, name)
    return found


NAMES = [
    pytest.param(name, marks=() if first_names()[pre] == name else pytest.mark.long)
    for name, pre in PRES.items()
]


# Digits are pieces of their own in the vocabularies that have these rules, and bytes that look like
# digits to the rule are never joined: llama.cpp relies on it.
OF_OWN_PIECES = {"deepseek-llm", "falcon"}


@cache
def document(name: str = "") -> str:
    """Return a tokenizer.json whose merges were learned from text split by a rule, or unsplit."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    if name:
        made = json.loads(tokenizer.to_str())
        made["pre_tokenizer"] = to_pre_tokenizer(PRES[name].rule)
        tokenizer = Tokenizer.from_str(json.dumps(made))
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=6,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    return tokenizer.to_str()


@each("name", NAMES)
def test_a_pre_tokenizer_splits_text_as_llama_cpp_does(name: str, tmp_path: Path) -> None:
    pre = PRES[name]
    made: dict[str, Any] = json.loads(document(name if name in OF_OWN_PIECES else ""))
    made["normalizer"] = to_normalizer(pre.rule)
    made["pre_tokenizer"] = to_pre_tokenizer(pre.rule)
    made["model"]["ignore_merges"] = pre.ignores_merges
    (tmp_path / "tokenizer.json").write_text(json.dumps(made))
    found = from_directory(str(tmp_path), 0, "llama")
    assert found is not None
    assert PRES[found.pre or ""].rule == pre.rule
    assert any("combining marks" in note for note in found.notes) == pre.parts_marks
    reference = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert any("capital letters" in note for note in found.notes) == pre.joins_case
    texts = [families.without_marks(text) if pre.parts_marks else text for text in TEXTS]
    texts = [text.lower() if pre.joins_case else text for text in texts]
    expected = [reference.encode(text, add_special_tokens=False).ids for text in texts]
    assert ids_of(replace(found, pre=name), texts, tmp_path / "v.gguf", name="x") == expected


def test_superbpe_merges_over_spaces_but_not_into_thousands(tmp_path: Path) -> None:
    made: dict[str, Any] = json.loads(document())
    made["pre_tokenizer"] = to_pre_tokenizer(PRES["superbpe"].rule)
    (tmp_path / "tokenizer.json").write_text(json.dumps(made))
    found = from_directory(str(tmp_path), 0, "olmo2")
    assert found is not None
    assert found.pre == "superbpe"
    reference = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    texts = [*HARD, *TEXTS, "1 12 123 1234 12345678 3.14159 1,234,567 x1234y"]
    expected = [reference.encode(text, add_special_tokens=False).ids for text in texts]
    assert ids_of(found, texts, tmp_path / "v.gguf") == expected
    words = [reference.id_to_token(token) for ids in expected for token in ids]
    assert any("\u0120" in word[1:] for word in words)


def test_a_rule_without_a_name_is_refused_with_its_hash_and_the_nearest_name(
    tmp_path: Path,
) -> None:
    made: dict[str, Any] = json.loads(document())
    rule = PRES["llama-bpe"].rule
    made["pre_tokenizer"] = to_pre_tokenizer(replace(rule, steps=(r"\p{N}", *rule.steps)))
    (tmp_path / "tokenizer.json").write_text(json.dumps(made))
    with pytest.raises(TokenizerError, match=r"SHA-256 of its rule: [0-9a-f]{64}") as caught:
        from_directory(str(tmp_path), 0, "llama")
    assert "The nearest that llama.cpp has is `llama-bpe`" in caught.value.message
    assert caught.value.message.endswith(r"this one has `\p{N}`")
