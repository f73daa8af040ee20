"""The outcome for every type of step in the tokenizers library.

A step is kept (llama.cpp gives the same ids, without a note), noted (a note describes the
difference from llama.cpp), or refused. A new type in the library fails here until its outcome is
decided.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

import family_tokenizers as families
from each import each
from sentencepiece_files import TEXTS, charsmap, pieces
from vocabulary_files import ids_of
from weightctl.errors import TokenizerError
from weightctl.translate.tokenizer import from_directory, from_metadata, to_documents, to_metadata

if TYPE_CHECKING:
    from pathlib import Path

KEPT, NOTED, REFUSED = "kept", "noted", "refused"
# A step of each type, and its outcome in a tokenizer of each `tokenizer.ggml.model`; models that
# are not listed refuse it.
NORMALIZERS: dict[str, tuple[Any, dict[str, str]]] = {
    "BertNormalizer": (normalizers.BertNormalizer(), {"bert": KEPT}),
    "ByteLevel": (normalizers.ByteLevel(), {}),
    "Lowercase": (normalizers.Lowercase(), {}),
    "NFC": (normalizers.NFC(), {"gpt2": NOTED}),
    "NFD": (normalizers.NFD(), {}),
    "NFKC": (normalizers.NFKC(), {}),
    "NFKD": (normalizers.NFKD(), {}),
    "Nmt": (normalizers.Nmt(), {}),
    "Precompiled": (normalizers.Precompiled(charsmap()), {"t5": NOTED}),
    "Prepend": (normalizers.Prepend("▁"), {"llama": KEPT, "t5": NOTED}),
    "Replace": (normalizers.Replace(" ", "▁"), {"llama": KEPT, "t5": KEPT}),
    "Sequence": (normalizers.Sequence([]), {"gpt2": KEPT, "llama": KEPT, "t5": KEPT}),
    "Strip": (normalizers.Strip(), {"t5": NOTED}),
    "StripAccents": (normalizers.StripAccents(), {}),
}
PRE_TOKENIZERS: dict[str, tuple[Any, dict[str, str]]] = {
    "BertPreTokenizer": (pre_tokenizers.BertPreTokenizer(), {"bert": KEPT}),
    "ByteLevel": (pre_tokenizers.ByteLevel(add_prefix_space=False), {"gpt2": KEPT}),
    "CharDelimiterSplit": (pre_tokenizers.CharDelimiterSplit("x"), {}),
    "Digits": (pre_tokenizers.Digits(individual_digits=True), {"gpt2": KEPT}),
    "FixedLength": (pre_tokenizers.FixedLength(3), {}),
    "Metaspace": (pre_tokenizers.Metaspace(split=False), {"llama": NOTED, "t5": NOTED}),
    "Punctuation": (pre_tokenizers.Punctuation("removed"), {}),
    "Sequence": (pre_tokenizers.Sequence([]), {"gpt2": KEPT, "llama": KEPT, "t5": KEPT}),
    "Split": (
        pre_tokenizers.Split(Regex(" "), "merged_with_previous"),
        {"llama": KEPT, "t5": KEPT},
    ),
    "UnicodeScripts": (pre_tokenizers.UnicodeScripts(), {}),
    "Whitespace": (pre_tokenizers.Whitespace(), {}),
    "WhitespaceSplit": (pre_tokenizers.WhitespaceSplit(), {}),
}
SPM = {"llama": KEPT, "t5": KEPT}
DECODERS: dict[str, tuple[Any, dict[str, str]]] = {
    "BPEDecoder": (decoders.BPEDecoder(), {}),
    "ByteFallback": (decoders.ByteFallback(), SPM),
    "ByteLevel": (decoders.ByteLevel(), {"gpt2": KEPT, "llama": REFUSED}),
    "CTC": (decoders.CTC(), {}),
    "Fuse": (decoders.Fuse(), SPM),
    "Metaspace": (decoders.Metaspace(), SPM),
    "Replace": (decoders.Replace("▁", " "), SPM),
    "Sequence": (decoders.Sequence([]), {**SPM, "gpt2": KEPT, "bert": KEPT}),
    "Strip": (decoders.Strip(" ", 1, 0), SPM),
    "WordPiece": (decoders.WordPiece(), {"bert": KEPT}),
}
PROCESSORS = {"BertProcessing", "ByteLevel", "RobertaProcessing", "Sequence", "TemplateProcessing"}
ABSTRACT = {"Normalizer", "PreTokenizer", "Decoder", "PostProcessor", "Model", "DecodeStream"}
MODELS = ("gpt2", "bert", "llama", "t5")


@cache
def base(model: str) -> Tokenizer:
    if model == "gpt2":
        return families.byte_level(None, "<|endoftext|>")
    if model == "bert":
        return families.word_pieces()
    if model == "llama":
        return families.sentence_pieces("<unk>", "<s>", "</s>", first="<s>", prefix=False)
    vocabulary = [(text, score) for text, score, _ in pieces("unigram")]
    made = Tokenizer(models.Unigram(vocabulary, 0, byte_fallback=False))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    return made


def document_with(model: str, part: str, step: Any) -> dict[str, Any]:
    """Return a tokenizer.json for a type of model, with this step and all necessary steps."""
    document: dict[str, Any] = json.loads(base(model).to_str())
    added: dict[str, Any] = json.loads(step.__getstate__())
    needed = document[part]
    if part == "normalizer" and model in {"llama", "t5"}:
        steps = [added, needed] if needed else [added]
        document[part] = {"type": "Sequence", "normalizers": steps}
    elif part == "pre_tokenizer" and model == "t5":
        document[part] = {"type": "Sequence", "pretokenizers": [needed, added]}
    elif part == "pre_tokenizer" and model == "gpt2" and added["type"] != "ByteLevel":
        document[part] = {"type": "Sequence", "pretokenizers": [added, needed]}
    else:
        document[part] = added
    return document


def texts_for(model: str, step: str) -> list[str]:
    if model in {"llama", "t5"}:
        return TEXTS
    return [families.TEXT if step == "NFC" else families.WHOLE, *families.WHOLE.splitlines()]


@pytest.mark.parametrize(
    ("module", "known"),
    [
        (normalizers, {*NORMALIZERS}),
        (pre_tokenizers, {*PRE_TOKENIZERS}),
        (decoders, {*DECODERS}),
        (processors, PROCESSORS),
        (models, {"BPE", "Unigram", "WordLevel", "WordPiece"}),
    ],
)
def test_every_kind_of_the_library_is_listed(module: Any, known: set[str]) -> None:
    kinds = {name for name in dir(module) if isinstance(getattr(module, name), type)}
    assert kinds - ABSTRACT == known


def test_spaces_that_are_removed_at_both_ends_are_noted_in_this_order(tmp_path: Path) -> None:
    document = document_with("t5", "normalizer", normalizers.Strip())
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    made = from_directory(str(tmp_path), 0, "llama")
    assert made is not None
    assert [note for note in made.notes if "removes spaces" in note] == [
        f"transformers removes spaces at the {end} of a text; llama.cpp keeps them"
        for end in ("end", "start")
    ]


@each("model", MODELS)
@each(
    ("part", "kind"),
    [("normalizer", kind) for kind in NORMALIZERS]
    + [("pre_tokenizer", kind) for kind in PRE_TOKENIZERS],
)
def test_a_step_before_the_model_is_kept_or_noted_or_refused(
    part: str, kind: str, model: str, tmp_path: Path
) -> None:
    table = NORMALIZERS if part == "normalizer" else PRE_TOKENIZERS
    step, outcomes = table[kind]
    document = document_with(model, part, step)
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    outcome = outcomes.get(model, REFUSED)
    if outcome == REFUSED:
        with pytest.raises(TokenizerError) as caught:
            from_directory(str(tmp_path), 0, "llama")
        assert caught.value.hint
        return
    made = from_directory(str(tmp_path), 0, "llama")
    assert made is not None
    texts = texts_for(model, kind)
    original = Tokenizer.from_str(json.dumps(document))
    expected = [original.encode(text, add_special_tokens=False).ids for text in texts]
    found = ids_of(made, texts, tmp_path / "v.gguf")
    if model == "bert":  # llama.cpp always adds tokens around a text
        found = [ids[1:-1] if ids[:1] == [made.special["bos"]] else ids for ids in found]
    assert (found == expected) == (outcome == KEPT)
    # The texts have no spacing marks, but the vocabulary has.
    notes = [note for note in made.notes if "spacing combining marks" not in note]
    assert bool(notes) == (outcome == NOTED)
    again = from_metadata(to_metadata(made), "model.gguf")
    assert again is not None
    back = json.loads(to_documents(again, "llama", {})["tokenizer.json"])
    assert back[part] == document[part]


@each("model", MODELS)
@each("kind", DECODERS)
def test_a_decoder_is_usual_or_noted(kind: str, model: str, tmp_path: Path) -> None:
    step, outcomes = DECODERS[kind]
    outcome = outcomes.get(model, NOTED)
    document = document_with(model, "decoder", step)
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    if outcome == REFUSED:
        with pytest.raises(TokenizerError):
            from_directory(str(tmp_path), 0, "llama")
        return
    made = from_directory(str(tmp_path), 0, "llama")
    assert made is not None
    noted = [note for note in made.notes if "decoder" in note]
    assert [kind in note for note in noted] == ([True] if outcome == NOTED else [])


@pytest.mark.parametrize(
    ("processor", "is_noted"),
    [
        (processors.TemplateProcessing("<s> $A", None, [("<s>", 1)]), False),
        (processors.TemplateProcessing("<s> $A </s>", None, [("<s>", 1), ("</s>", 2)]), False),
        (processors.BertProcessing(("</s>", 2), ("<s>", 1)), False),
        (processors.ByteLevel(), False),
        (processors.Sequence([processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])]), False),
        (processors.TemplateProcessing("<s> <s> $A", None, [("<s>", 1)]), True),
        (processors.TemplateProcessing("<unk> $A", None, [("<unk>", 0)]), True),
        (processors.TemplateProcessing("$A </s> <s>", None, [("<s>", 1), ("</s>", 2)]), True),
    ],
)
def test_what_is_put_around_a_text_is_kept_or_noted(
    processor: Any, is_noted: bool, tmp_path: Path
) -> None:
    document = document_with("llama", "post_processor", processor)
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    made = from_directory(str(tmp_path), 0, "llama")
    assert made is not None
    original = Tokenizer.from_str(json.dumps(document))
    (found,) = ids_of(made, ["Hello"], tmp_path / "v.gguf", special=True)
    assert (found != original.encode("Hello").ids) == is_noted
    assert [note for note in made.notes if "post_processor" in note] == list(made.notes)
    assert bool(made.notes) == is_noted


def test_a_model_of_whole_words_is_refused(tmp_path: Path) -> None:
    Tokenizer(models.WordLevel({"a": 0}, "a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerError, match="WordLevel"):
        from_directory(str(tmp_path), 0, "llama")


@pytest.mark.parametrize(
    "option", ["dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"]
)
def test_options_of_a_sentencepiece_bpe_that_llama_cpp_lacks_are_refused(
    option: str, tmp_path: Path
) -> None:
    document = json.loads(base("llama").to_str())
    values = {"dropout": 0.1, "ignore_merges": True}
    document["model"][option] = values.get(option, "@@")
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(TokenizerError, match=option):
        from_directory(str(tmp_path), 0, "llama")
