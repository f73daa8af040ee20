"""The tokenizer.json of a SentencePiece tokenizer that GGUF calls "t5": a unigram model."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from weightctl.errors import TokenizerError
from weightctl.tokenizer.files import KEEP_HINT
from weightctl.tokenizer.record import TokenType
from weightctl.tokenizer.sentencepiece_added import SPACE
from weightctl.tokenizer.sentencepiece_json import added_entries, decoder, role, template

if TYPE_CHECKING:
    from weightctl.tokenizer.record import Tokenizer

__all__ = ["to_tokenizer_json"]


def to_tokenizer_json(tokenizer: Tokenizer, model_type: str) -> dict[str, Any]:
    """Return a tokenizer.json of a unigram model; raises `TokenizerError` without scores."""
    if tokenizer.scores is None:
        raise TokenizerError("the vocabulary has no `tokenizer.ggml.scores`", hint=KEEP_HINT)
    spelled = list(tokenizer.tokens)
    scheme = "always" if tokenizer.flags.get("add_space_prefix", True) else "never"
    spaces = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": True}
    has_bytes = TokenType.BYTE in tokenizer.types
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_entries(tokenizer, spelled, model_type),
        "normalizer": _normalizer(tokenizer),
        "pre_tokenizer": spaces,
        "post_processor": template(tokenizer, add_bos=False, add_eos=True),
        "decoder": decoder(tokenizer) if has_bytes else dict(spaces),
        "model": {
            "type": "Unigram",
            "unk_id": role(tokenizer, "unknown"),
            "vocab": [list(pair) for pair in zip(spelled, tokenizer.scores, strict=True)],
            "byte_fallback": has_bytes,
        },
    }


def _normalizer(tokenizer: Tokenizer) -> dict[str, Any] | None:
    steps: list[dict[str, Any]] = []
    if tokenizer.charsmap is not None:
        written = base64.b64encode(tokenizer.charsmap).decode("ascii")
        steps.append({"type": "Precompiled", "precompiled_charsmap": written})
    if tokenizer.flags.get("remove_extra_whitespaces", True):
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    return {"type": "Sequence", "normalizers": steps} if steps else None
