"""A tokenizer.json as it stands, for tokenizers that have no form in GGUF."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.errors import TokenizerError
from weightctl.tokenizer.added import MAX_TOKENS, read_added, type_of_added
from weightctl.tokenizer.chat_templates import read_chat_templates
from weightctl.tokenizer.record import Tokenizer, TokenType
from weightctl.tokenizer.special import read_special
from weightctl.tokenizer.token_ids import read_token_ids
from weightctl.untyped import is_list, is_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.tokenizer.files import Files

__all__ = ["read_raw"]


def read_raw(files: Files) -> Tokenizer | None:
    """Return what a tokenizer.json says literally: tokens by id, types of added ones, merges.

    None where there is none, or its model has no vocabulary. Raises `TokenizerError` for added
    tokens without an id or text, and for ids beyond all vocabularies.
    """
    document = files.tokenizer
    model: Any = None if document is None else document.get("model")
    if document is None or not is_object(model):
        return None
    where = files.path("tokenizer.json")
    texts, scores = _vocabulary(model.get("vocab"))
    added = read_added(document, where)
    texts |= {token: str(entry["content"]) for token, entry in added.items()}
    count = max(texts, default=-1) + 1
    if count > MAX_TOKENS:
        raise TokenizerError(f"{where}: an id of {count - 1:,} is beyond all vocabularies")
    types = [int(TokenType.UNUSED)] * count
    for token in texts:
        entry = added.get(token)
        types[token] = int(TokenType.NORMAL if entry is None else type_of_added(entry))
    ids = {text: token for token, text in texts.items()}
    merges: Any = model.get("merges")
    return Tokenizer(
        model=str(model.get("type", "")),
        tokens=tuple(texts.get(token, "") for token in range(count)),
        types=tuple(types),
        scores=None if scores is None else tuple(scores.get(token, 0.0) for token in range(count)),
        merges=tuple(map(_merge, merges)) if is_list(merges) else None,
        special=read_special(files, ids, read_token_ids(files.directory)),
        chat_templates=read_chat_templates(files),
    )


def _vocabulary(vocabulary: Any) -> tuple[dict[int, str], Mapping[int, float] | None]:
    """Return the texts of a model's tokens by id, and their scores where it has some."""
    if is_object(vocabulary):
        return {
            token: text
            for text, token in vocabulary.items()
            if type(token) is int and 0 <= token <= MAX_TOKENS
        }, None
    pairs = [
        (token, pair)
        for token, pair in enumerate(vocabulary if is_list(vocabulary) else [])
        if is_list(pair) and len(pair) == 2 and isinstance(pair[1], int | float)
    ]
    texts = {token: str(pair[0]) for token, pair in pairs}
    return texts, {token: float(pair[1]) for token, pair in pairs} if pairs else None


def _merge(merge: Any) -> str:
    return " ".join(map(str, merge)) if is_list(merge) else str(merge)
