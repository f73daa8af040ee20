"""The tokenizer.json of a SentencePiece tokenizer that GGUF calls "t5": a unigram model."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from weightctl.errors import TokenizerError
from weightctl.translate.tokenizer.charsmap import Charsmap
from weightctl.translate.tokenizer.files import KEEP_HINT
from weightctl.translate.tokenizer.record import TokenType
from weightctl.translate.tokenizer.sentencepiece.added_tokens import SPACE
from weightctl.translate.tokenizer.sentencepiece.documents import (
    decoder,
    make_added_entries,
    role,
    template,
)
from weightctl.translate.tokenizer.sentencepiece.normalizers import AT_ENDS, BEFORE_TEXT, RUNS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.translate.tokenizer.record import Tokenizer

__all__ = ["to_tokenizer_json"]


def to_tokenizer_json(tokenizer: Tokenizer, model_type: str) -> dict[str, Any]:
    """Return a tokenizer.json that splits text into the ids that llama.cpp does.

    Raises `TokenizerError` without scores, or with a compiled normalizer that is damaged.
    """
    if tokenizer.scores is None:
        raise TokenizerError("the vocabulary has no `tokenizer.ggml.scores`", hint=KEEP_HINT)
    spelled = list(tokenizer.tokens)
    removes = tokenizer.flags.get("remove_extra_whitespaces", False)
    # Where llama.cpp removes extra spaces, it puts one before each word.
    prefix = removes or tokenizer.flags.get("add_space_prefix", False)
    scheme = "always" if prefix else "never"
    spaces = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False}
    has_bytes = TokenType.BYTE in tokenizer.types
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": make_added_entries(tokenizer, spelled, model_type),
        "normalizer": _normalizer(tokenizer, removes=removes, prefix=prefix),
        "pre_tokenizer": spaces,
        "post_processor": template(tokenizer, add_bos=False, add_eos=True),
        "decoder": decoder(tokenizer) if has_bytes else dict(spaces),
        "model": {
            "type": "Unigram",
            "unk_id": role(tokenizer, "unknown"),
            "vocab": [list(pair) for pair in zip(spelled, _scores(tokenizer), strict=True)],
            "byte_fallback": has_bytes,
        },
    }


def _scores(tokenizer: Tokenizer) -> Iterator[float]:
    """Yield the scores, of which the lowest is that of an ordinary token.

    What an unknown character costs is counted from it, in llama.cpp from those tokens alone.
    """
    scores = tokenizer.scores or ()
    pairs = list(zip(scores, tokenizer.types, strict=True))
    lowest = min((score for score, kind in pairs if kind == TokenType.NORMAL), default=0.0)
    for score, kind in pairs:
        yield score if kind == TokenType.NORMAL else max(score, lowest)


def _normalizer(tokenizer: Tokenizer, *, removes: bool, prefix: bool) -> dict[str, Any] | None:
    steps: list[dict[str, Any]] = []
    if tokenizer.charsmap:
        Charsmap(tokenizer.charsmap, "the GGUF")
        written = base64.b64encode(tokenizer.charsmap).decode("ascii")
        steps.append({"type": "Precompiled", "precompiled_charsmap": written})
    if removes:
        steps += [_replace(AT_ENDS, ""), _replace(RUNS, " ")]
    elif prefix:
        steps.append(_replace(BEFORE_TEXT, SPACE))
    return {"type": "Sequence", "normalizers": steps} if steps else None


def _replace(regex: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": regex}, "content": content}
