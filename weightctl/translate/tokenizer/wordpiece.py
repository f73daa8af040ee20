"""WordPiece (`tokenizer.ggml.model` "bert"): tokenizer.json, or vocab.txt.

GGUF marks tokens that begin a word with U+2581; Hugging Face marks tokens that continue one with
"##".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.errors import TokenizerError
from weightctl.text.untyped import is_object
from weightctl.translate.tokenizer.added import (
    is_padding,
    order_tokens,
    read_added,
    to_added_tokens,
)
from weightctl.translate.tokenizer.files import GENERIC_CLASSES, KEEP_HINT, TENSORS_HINT
from weightctl.translate.tokenizer.post_processor import read_surroundings, to_bert_template
from weightctl.translate.tokenizer.record import Tokenizer, TokenType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.translate.tokenizer.files import TokenizerFiles

_START = "\u2581"
_CONTINUATION = "##"
_LOWERCASE = "normalizer.lowercase"
_STRIP_ACCENTS = "normalizer.strip_accents"
# llama.cpp's name for BERT's rules. It has no other rules for WordPiece, and does not use the name.
_PRE = "bert-bge"
# Settings of a normalizer that tokenizer_config.json has, too, under other names.
_OVERRIDES = {
    "lowercase": "do_lower_case", "strip_accents": "strip_accents",
    "handle_chinese_chars": "tokenize_chinese_chars",
}  # fmt: skip
# BERT's own special tokens, for files that do not name any.
_SPECIAL = {
    "unknown": "[UNK]",
    "seperator": "[SEP]",
    "padding": "[PAD]",
    "cls": "[CLS]",
    "mask": "[MASK]",
}
# llama.cpp's default ids, which are those of BERT's own vocabulary.
_DEFAULTS = {"cls": 101, "seperator": 102, "unknown": 100}


def from_files(files: TokenizerFiles, model_type: str) -> Tokenizer:
    """Return the tokenizer of a directory's tokenizer.json or vocab.txt.

    Raises `TokenizerError`, which shows the rules, if GGUF's WordPiece does not support the rules.
    """
    del model_type
    document = _override(files.tokenizer or _slow_document(files), files.config)
    where = files.path("tokenizer.json" if files.tokenizer else "vocab.txt")
    model = document.get("model")
    vocabulary = model.get("vocab") if is_object(model) else None
    if not is_object(model) or not is_object(vocabulary):
        raise TokenizerError(f"{where}: its `model` has no `vocab`", hint=KEEP_HINT)
    if model.get("continuing_subword_prefix", _CONTINUATION) != _CONTINUATION:
        raise TokenizerError(
            f"{where}: the prefix of tokens that continue a word is not `##`", hint=KEEP_HINT
        )
    flags = _flags(document, where)
    texts, types = order_tokens(vocabulary, read_added(document, where), where)
    tokens = tuple(
        text if kind in {TokenType.CONTROL, TokenType.UNUSED} else _to_gguf(text)
        for text, kind in zip(texts, types, strict=True)
    )
    segments = (files.document("config.json") or {}).get("type_vocab_size")
    return Tokenizer(
        model="bert",
        pre=_PRE,
        tokens=tokens,
        types=tuple(types),
        special=_special(document, tokens),
        flags=flags,
        token_type_count=segments if isinstance(segments, int) else None,
    )


def to_tokenizer_json(tokenizer: Tokenizer, model_type: str) -> dict[str, Any]:
    """Return the document of tokenizer.json; raises `TokenizerError` if a special id is invalid."""
    del model_type
    tokens = [_to_hugging_face(tokenizer, token) for token in range(len(tokenizer.tokens))]
    vocabulary = {
        text: token for token, text in enumerate(tokens) if not is_padding(tokenizer, token)
    }
    special = {**_DEFAULTS, "cls": tokenizer.special.get("bos", 101), **tokenizer.special}
    for word in _DEFAULTS:
        if special[word] >= len(tokens):
            raise TokenizerError(
                f"`tokenizer.ggml.{word}_token_id` is missing, and its default value "
                f"{special[word]} is not a token id of the vocabulary",
                hint=TENSORS_HINT,
            )
    named = {word: (tokens[token], token) for word, token in special.items()}
    lowercase = tokenizer.flags.get(_LOWERCASE, True)
    accents = tokenizer.flags.get(_STRIP_ACCENTS)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": to_added_tokens(tokenizer),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None if accents == lowercase else accents,
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": to_bert_template(named["cls"], named["seperator"]),
        "decoder": {"type": "WordPiece", "prefix": _CONTINUATION, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": named["unknown"][0],
            "continuing_subword_prefix": _CONTINUATION,
            "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    }


def _to_gguf(text: str) -> str:
    if text.startswith(_CONTINUATION):
        return text.removeprefix(_CONTINUATION)
    return f"{_START}{text}"


def _to_hugging_face(tokenizer: Tokenizer, token: int) -> str:
    text = tokenizer.tokens[token]
    if text.startswith(_START):
        return text.removeprefix(_START)
    if tokenizer.types[token] in {TokenType.NORMAL, TokenType.USER_DEFINED}:
        return f"{_CONTINUATION}{text}"
    return text


def _special(document: Mapping[str, Any], tokens: tuple[str, ...]) -> dict[str, int]:
    """Return the ids of BERT's special tokens; `bos` is the token that is added before a text."""
    around = read_surroundings(document)
    first = around.first if around and around.first else _SPECIAL["cls"]
    last = around.last if around and around.last else _SPECIAL["seperator"]
    unknown = document["model"].get("unk_token")
    unknown = unknown if isinstance(unknown, str) else _SPECIAL["unknown"]
    texts = {
        "bos": first, "eos": last, **_SPECIAL, "unknown": unknown, "seperator": last, "cls": first
    }  # fmt: skip
    ids = {text: token for token, text in enumerate(tokens)}
    return {word: ids[text] for word, text in texts.items() if text in ids}


def _override(document: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a document with the normalizer that transformers' classes for BERT make of it."""
    normalizer, kind = document.get("normalizer"), config.get("tokenizer_class")
    if kind in GENERIC_CLASSES or not is_object(normalizer):
        return document
    stated = {key: config[name] for key, name in _OVERRIDES.items() if name in config}
    usual = {"lowercase": True} if kind else {}
    return {**document, "normalizer": {**normalizer, **usual, **stated}}


def _flags(document: Mapping[str, Any], where: str) -> dict[str, bool]:
    normalizer = document.get("normalizer")
    pre_tokenizer = document.get("pre_tokenizer")
    is_berts = (
        is_object(normalizer)
        and normalizer.get("type") == "BertNormalizer"
        and normalizer.get("clean_text", True)
        and normalizer.get("handle_chinese_chars", True)
        and is_object(pre_tokenizer)
        and pre_tokenizer.get("type") == "BertPreTokenizer"
    )
    if not is_berts or not is_object(normalizer):
        raise TokenizerError(
            f"{where}: GGUF's WordPiece splits text in the same way as BERT: it cannot represent "
            f"the normalizer {normalizer!r:.500} with the pre_tokenizer {pre_tokenizer!r:.500}",
            hint=KEEP_HINT,
        )
    lowercase = bool(normalizer.get("lowercase", True))
    accents = normalizer.get("strip_accents")
    return {
        _LOWERCASE: lowercase,
        _STRIP_ACCENTS: lowercase if accents is None else bool(accents),
    }


def _slow_document(files: TokenizerFiles) -> dict[str, Any]:
    lines = (files.text("vocab.txt") or "").split("\n")
    vocabulary = {text.rstrip("\r"): token for token, text in enumerate(lines) if text}
    special = {*_SPECIAL.values(), *files.special_tokens().values()}
    config = files.config
    return {
        "added_tokens": [
            {"id": token, "content": text, "special": True}
            for text, token in vocabulary.items()
            if text in special
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": config.get("tokenize_chinese_chars", True),
            "strip_accents": config.get("strip_accents"),
            "lowercase": config.get("do_lower_case", True),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {"type": "WordPiece", "vocab": vocabulary},
    }
