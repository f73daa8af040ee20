"""What the steps of a tokenizer.json do to spaces: the marks of a SentencePiece tokenizer."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

from weightctl.errors import TokenizerError
from weightctl.tokenizer.files import KEEP_HINT
from weightctl.tokenizer.sentencepiece_added import SPACE
from weightctl.untyped import is_list, is_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["adds_space_prefix", "charsmap", "is_sentencepiece", "removes_extra_spaces"]

_DEPTH = 8


def is_sentencepiece(document: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json is of a SentencePiece tokenizer, BPE or unigram."""
    model = document.get("model")
    if not is_object(model):
        return False
    steps = [*_steps(document, "normalizer"), *_steps(document, "pre_tokenizer")]
    if any(step.get("type") == "ByteLevel" for step in steps):
        return False
    if is_list(model.get("vocab")):
        return True  # unigram, whose type old files leave out
    is_bpe = model.get("type") == "BPE" or "merges" in model
    return is_bpe and (model.get("byte_fallback") is True or any(map(_makes_marks, steps)))


def adds_space_prefix(document: Mapping[str, Any]) -> bool:
    """Whether a space is put before the text."""
    for step in (*_steps(document, "normalizer"), *_steps(document, "pre_tokenizer")):
        if step.get("type") == "Prepend":
            return True
        if step.get("type") == "Metaspace":
            scheme = step.get("prepend_scheme")
            # Before there were schemes there was a flag.
            return scheme != "never" if scheme else step.get("add_prefix_space") is not False
    return False


def removes_extra_spaces(document: Mapping[str, Any]) -> bool:
    """Whether runs of spaces become one."""
    return any(
        step.get("type") == "Replace" and _pattern(step) in (" {2,}", " +", r"\s+")
        for step in _steps(document, "normalizer")
    ) or any(step.get("type") == "WhitespaceSplit" for step in _steps(document, "pre_tokenizer"))


def charsmap(document: Mapping[str, Any], path: str) -> bytes:
    """Return SentencePiece's compiled normalization, empty where there is none.

    Raises `TokenizerError` where it is not base64.
    """
    for step in _steps(document, "normalizer"):
        written = step.get("precompiled_charsmap")
        if isinstance(written, str):
            try:
                return base64.b64decode(written, validate=True)
            except (binascii.Error, ValueError) as error:
                raise TokenizerError(
                    f"{path}: `precompiled_charsmap` is not base64: {error}", hint=KEEP_HINT
                ) from error
    return b""


def _makes_marks(step: Mapping[str, Any]) -> bool:
    return step.get("type") == "Metaspace" or (
        step.get("type") == "Replace" and step.get("content") == SPACE
    )


def _pattern(step: Mapping[str, Any]) -> object:
    pattern = step.get("pattern")
    return next(iter(pattern.values()), None) if is_object(pattern) else pattern


def _steps(document: Mapping[str, Any], key: str) -> Iterator[Mapping[str, Any]]:
    """Yield the steps of a normalizer or pre-tokenizer, those within sequences one by one."""
    waiting = [(document.get(key), 0)]
    while waiting:
        step, depth = waiting.pop(0)
        if is_object(step):
            yield step
            for within in ("normalizers", "pretokenizers"):
                parts = step.get(within)
                if is_list(parts) and depth < _DEPTH:
                    waiting = [(part, depth + 1) for part in parts] + waiting
