"""Tokenizers are converted to GGUF and back: llama.cpp and transformers agree on them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tokenizers import Tokenizer as Reference
from tokenizers import decoders, models, pre_tokenizers, trainers

import family_tokenizers
from lazy import transformers
from llama_cpp import ask
from vocabulary_files import vocabulary_only
from weightctl.translate.tokenizer import from_directory, to_documents

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = [
    *family_tokenizers.TEXT.splitlines(keepends=True),
    family_tokenizers.TEXT,
    "",
    " ",
    f"{' ' * 40}x{' ' * 70}",
    "\n\n\n",
    "<s>Hello</s>there <unk> x",
    "<|user|>\nHi<|end|>\n<|assistant|>",
    "<bos><start_of_turn>user\nHi<end_of_turn>",
]


@pytest.mark.parametrize(
    ("family", "model_type"),
    [("llama2", "llama"), ("phi3", "phi3"), ("gemma", "gemma3_text"), ("gemma4", "gemma4_text")],
)
def test_hugging_face_gguf_and_what_comes_back_agree(
    family: str, model_type: str, tmp_path: Path
) -> None:
    original = getattr(family_tokenizers, family)()
    source, back = tmp_path / "source", tmp_path / "back"
    original.save_pretrained(source)
    made = from_directory(str(source), 700, model_type)
    assert made is not None
    back.mkdir()
    plain = replace(made, remainder=None)  # like a GGUF of another tool
    for name, content in to_documents(plain, model_type, {}).items():
        (back / name).write_bytes(content)
    (back / "config.json").write_text(json.dumps({"model_type": model_type}))
    again = transformers.AutoTokenizer.from_pretrained(back)
    name = "phi-3" if family == "phi3" else family  # llama.cpp uses the name
    ids = [original.encode(text) for text in TEXTS]
    reported = ask(
        vocabulary_only(made, name, tmp_path / "v.gguf"),
        *(("tokenize", text) for text in TEXTS),
        *(("detokenize", each[1:]) for each in ids),
        only_vocabulary=True,
    )
    assert [again.encode(text) for text in TEXTS] == ids
    assert reported[: len(ids)] == ids
    assert reported[len(ids) :] == [again.decode(each[1:]) for each in ids]
    assert [again.decode(each) for each in ids] == [original.decode(each) for each in ids]
    assert len(again) == len(original)
    assert again.special_tokens_map == original.special_tokens_map
    assert again.chat_template == original.chat_template


def test_the_merges_of_a_sentencepiece_bpe_come_back_as_they_were(tmp_path: Path) -> None:
    original = family_tokenizers.sentence_pieces("<unk>", "<s>", "</s>", first="<s>")
    original.save(str(tmp_path / "tokenizer.json"))
    made = from_directory(str(tmp_path), 0, "llama")
    assert made is not None
    plain = replace(made, remainder=None)
    again = Reference.from_str(to_documents(plain, "llama", {})["tokenizer.json"].decode())
    assert json.loads(again.to_str()) == json.loads(original.to_str())


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_a_trained_bpe_with_metaspace_is_llama_cpps_and_comes_back(
    scheme: str, tmp_path: Path
) -> None:
    original = Reference(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    original.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    prefixed = [] if scheme == "never" else [decoders.Strip(" ", 1, 0)]
    original.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *prefixed]
    )
    controls = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=800, special_tokens=controls, limit_alphabet=200, show_progress=False
    )
    original.train_from_iterator(family_tokenizers.TEXT.splitlines(keepends=True) * 3, trainer)
    document = json.loads(original.to_str())
    document["added_tokens"] = document["added_tokens"][:3]
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    made = from_directory(str(tmp_path), 0, "llama")
    assert made is not None
    again = Reference.from_str(to_documents(made, "llama", {})["tokenizer.json"].decode())
    # llama.cpp adds a mark before each text, Metaspace only if there is none.
    texts = [text for text in TEXTS if text[:1] not in {" ", "<"}]
    reported = ask(
        vocabulary_only(made, "small", tmp_path / "v.gguf"),
        *(("tokenize", text) for text in texts),
        only_vocabulary=True,
    )
    original = Reference.from_file(str(tmp_path / "tokenizer.json"))
    assert reported == [original.encode(text).ids for text in texts]
    for text in TEXTS:
        ids = original.encode(text).ids
        assert again.encode(text).ids == ids
        assert again.decode(ids) == original.decode(ids)


def test_tokens_with_line_breaks_that_llama_cpp_does_not_use_are_noted(tmp_path: Path) -> None:
    family_tokenizers.gemma().save_pretrained(tmp_path)
    made = from_directory(str(tmp_path), 0, "gemma4")
    assert made is not None
    assert "splits text at line breaks" in made.notes[-1]
