"""The merges of byte-level BPE, and the files that older tokenizers keep them in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.errors import TokenizerError
from weightctl.text.untyped import is_list, is_object
from weightctl.translate.tokenizer import regexes
from weightctl.translate.tokenizer.files import KEEP_HINT
from weightctl.translate.tokenizer.rules import (
    BYTES,
    PreTokenizerRule,
    to_normalizer,
    to_pre_tokenizer,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from weightctl.translate.tokenizer.files import TokenizerFiles

__all__ = ["check_merges", "read_merges", "slow_document"]

_SPACE = "\u0120"  # what byte-level tokens have for a space
# How the classes of tokenizers without a tokenizer.json cut text.
_CLASSES = {
    "GPT2Tokenizer": PreTokenizerRule((regexes.GPT_2, BYTES)),
    "RobertaTokenizer": PreTokenizerRule((regexes.GPT_2, BYTES)),
    "Qwen2Tokenizer": PreTokenizerRule((regexes.QWEN_2, BYTES), is_composed=True),
}
_CLASS = "GPT2Tokenizer"
# Digits of an id; of thousands Python makes no number.
_LONGEST = 20


def read_merges(merges: Any, where: str) -> tuple[str, ...]:
    """Return merges as "left right", of a list of such strings or of pairs.

    Raises `TokenizerError` for what is neither.
    """
    if not is_list(merges):
        raise TokenizerError(f"{where}: its `model` has no list of `merges`", hint=KEEP_HINT)
    if all(isinstance(merge, str) for merge in merges):
        made = tuple(merges)
    else:
        try:
            made = tuple(
                f"{left.replace(' ', _SPACE)} {right.replace(' ', _SPACE)}"
                for left, right in merges
            )
        except (AttributeError, TypeError, ValueError) as error:
            raise TokenizerError(
                f"{where}: a merge is not a pair of tokens", hint=KEEP_HINT
            ) from error
    strange = next((merge for merge in made if merge.count(" ") != 1), None)
    if strange is not None:
        raise TokenizerError(
            f"{where}: the merge {strange!r:.200} does not have two tokens", hint=KEEP_HINT
        )
    return made


def check_merges(merges: Iterable[str], vocabulary: Mapping[str, int]) -> list[str]:
    """Return merges as tokenizer.json has them.

    Raises `TokenizerError` for one whose parts, or what they make, are not tokens.
    """
    made = list(merges)
    for merge in made:
        left, _, right = merge.partition(" ")
        if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise TokenizerError(
                f"the merge {merge!r:.200} has a token that is not in the vocabulary",
                hint=f"`tokenizer.ggml.merges` is damaged; {KEEP_HINT}",
            )
    return made


def slow_document(files: TokenizerFiles) -> dict[str, Any]:
    """Return the document that a tokenizer.json would be, of vocab.json and merges.txt."""
    vocabulary = files.document("vocab.json")
    merges = files.text("merges.txt")
    if vocabulary is None or merges is None:
        raise TokenizerError(
            f"{files.directory}: tokenizer.json is missing, and so are vocab.json and merges.txt",
            hint=f"download them from the source of the checkpoint; {KEEP_HINT}",
        )
    added = {**(files.document("added_tokens.json") or {})}
    rule = _CLASSES.get(_class_of(files), _CLASSES[_CLASS])
    lines = merges.splitlines()
    return {
        "added_tokens": [*_list_added(files, vocabulary, added)],
        "normalizer": to_normalizer(rule),
        "pre_tokenizer": to_pre_tokenizer(rule),
        "model": {
            "type": "BPE",
            "vocab": vocabulary,
            "merges": [line for line in lines if line and not line.startswith("#version")],
        },
    }


def _class_of(files: TokenizerFiles) -> str:
    return str(files.config.get("tokenizer_class", _CLASS)).removesuffix("Fast")


def _list_added(
    files: TokenizerFiles, vocabulary: Mapping[str, Any], added: Mapping[str, Any]
) -> list[dict[str, Any]]:
    decoder = files.config.get("added_tokens_decoder")
    if is_object(decoder):
        return [
            {**entry, "id": int(token)}
            for token, entry in decoder.items()
            if is_object(entry) and token.isdecimal() and len(token) < _LONGEST
        ]
    special = {**added}
    for value in files.special_tokens().values():
        if value in vocabulary:
            special[value] = vocabulary[value]
    return [
        {"id": token, "content": text, "special": text not in added}
        for text, token in special.items()
    ]
