"""Treatment of text before a SentencePiece tokenizer's model, in the terms of GGUF.

llama.cpp has two such tokenizers. "llama", a BPE, marks spaces and may put a mark before the text;
it normalizes nothing. "t5", a unigram model, also applies SentencePiece's compiled normalizer and
may remove extra spaces. Steps of a tokenizer.json that amount to this become a `TextRule`; other
steps are refused, because text would become other tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weightctl.errors import TokenizerError
from weightctl.text.untyped import is_list, is_object
from weightctl.translate.tokenizer.charsmap import Charsmap
from weightctl.translate.tokenizer.files import KEEP_HINT
from weightctl.translate.tokenizer.sentencepiece.added_tokens import SPACE
from weightctl.translate.tokenizer.sentencepiece.normalizers import Steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weightctl.translate.tokenizer.sentencepiece.protobuf import SentencePieceModel

__all__ = ["TextRule", "is_sentencepiece", "rule_of_document", "rule_of_model"]

_DEPTH = 8
_DECODED = (
    "the model file changes the text of generated tokens (`denormalizer_spec`); llama.cpp does not"
)
_SPACES_ALONE = "SentencePiece adds the prefix before a text of spaces only; llama.cpp does not"
_EXTRA = (
    "SentencePiece removes extra spaces from text for this model; llama.cpp and the llama "
    "tokenizer of transformers keep them"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRule:
    """What happens to text. `notes` say where llama.cpp does otherwise.

    `adds_prefix`: a space comes before it. `removes_spaces`: those at its ends go, and of several
    one is left. `splits_words`: no token has a space but at its start. `charsmap` is the compiled
    normalizer, empty if there is none.
    """

    adds_prefix: bool
    removes_spaces: bool = False
    splits_words: bool = False
    charsmap: bytes = b""
    notes: tuple[str, ...] = ()


def is_sentencepiece(document: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json is of a SentencePiece tokenizer, BPE or unigram."""
    model = document.get("model")
    if not is_object(model):
        return False
    steps = [step for step in _all_steps(document) if is_object(step)]
    if any(step.get("type") == "ByteLevel" for step in steps):
        return False
    if is_list(model.get("vocab")):
        return True  # unigram, whose type old files leave out
    is_bpe = model.get("type") == "BPE" or "merges" in model
    return is_bpe and (model.get("byte_fallback") is True or any(map(_makes_marks, steps)))


def rule_of_document(document: Mapping[str, Any], path: str, *, is_unigram: bool) -> TextRule:
    """Return what the normalizer and the pre_tokenizer of a tokenizer.json do.

    Raises `TokenizerError`, with the step, for what llama.cpp does not do.
    """
    steps = Steps(path, is_unigram=is_unigram)
    for step in _all_steps(document):
        steps.take(step)
    if not steps.is_marked:
        raise TokenizerError(
            f"{path}: its normalizer and pre_tokenizer keep spaces, but llama.cpp "
            f"replaces them with `{SPACE}`: text would be tokenized differently",
            hint=KEEP_HINT,
        )
    _check_prefix(
        path, removes=steps.removes_spaces, adds=bool(steps.prefix), is_unigram=is_unigram
    )
    return TextRule(
        adds_prefix=bool(steps.prefix),
        removes_spaces=steps.removes_spaces,
        splits_words=steps.splits_words,
        charsmap=steps.charsmap,
        notes=tuple(steps.notes()),
    )


def rule_of_model(model: SentencePieceModel, path: str, *, is_unigram: bool) -> TextRule:
    """Return what SentencePiece's own file says.

    Raises `TokenizerError` for what llama.cpp does not do.
    """
    removes = model.remove_extra_whitespaces
    if model.charsmap and not is_unigram:
        raise TokenizerError(
            f"{path}: its normalizer `{model.normalizer}` changes text, but llama.cpp "
            "does not normalize text for a SentencePiece BPE: text would be tokenized "
            "differently",
            hint=KEEP_HINT,
        )
    if model.marks_word_ends or not model.escapes_spaces:
        does = "marks the ends of words" if model.marks_word_ends else "does not mark spaces"
        raise TokenizerError(
            f"{path}: the tokenizer {does}, but llama.cpp marks the starts of words: text would be "
            "tokenized differently",
            hint=KEEP_HINT,
        )
    _check_prefix(path, removes=removes, adds=model.add_dummy_prefix, is_unigram=is_unigram)
    if model.charsmap:
        Charsmap(model.charsmap, path)
    notes = [_DECODED] if model.denormalizes else []
    if removes and not is_unigram:
        notes.append(_EXTRA)
    elif is_unigram and model.add_dummy_prefix and not removes:
        notes.append(_SPACES_ALONE)
    return TextRule(
        adds_prefix=model.add_dummy_prefix,
        removes_spaces=removes and is_unigram,
        charsmap=model.charsmap,
        notes=tuple(notes),
    )


def _check_prefix(path: str, *, removes: bool, adds: bool, is_unigram: bool) -> None:
    if is_unigram and removes and not adds:
        raise TokenizerError(
            f"{path}: it removes extra spaces and adds none before a text, but llama.cpp "
            "adds one before each word when it removes them: text would be tokenized "
            "differently",
            hint=KEEP_HINT,
        )


def _makes_marks(step: Mapping[str, Any]) -> bool:
    return step.get("type") == "Metaspace" or (
        step.get("type") == "Replace" and step.get("content") == SPACE
    )


def _all_steps(document: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the steps that text takes, those within sequences one by one."""
    parts = (document.get("normalizer"), document.get("pre_tokenizer"))
    waiting = [(part, 0) for part in parts if part is not None]
    while waiting:
        step, depth = waiting.pop(0)
        yield step
        for key in ("normalizers", "pretokenizers") if is_object(step) else ():
            within = step.get(key)
            if is_list(within):
                inner: list[Any] = within if depth < _DEPTH else [None]  # which is refused
                waiting = [(part, depth + 1) for part in inner] + waiting
