"""Added tokens: special tokens, and tokens of users, which the tokenizer model does not produce."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

from weightctl.errors import TokenizerError
from weightctl.text.untyped import is_list, is_object
from weightctl.translate.tokenizer.files import KEEP_HINT
from weightctl.translate.tokenizer.record import TokenType

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from weightctl.translate.tokenizer.record import Tokenizer

# The types of tokens that are searched for in a text first.
ADDED = frozenset(map(int, (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)))
# llama.cpp's older tools gave padding the type of user-defined tokens.
_UNUSED = frozenset({int(TokenType.UNUSED), int(TokenType.USER_DEFINED)})
# The limit for ids, which is more than any vocabulary has. Larger ids are damage.
MAX_TOKENS = 1 << 22
# The number of ids that can be without a token, in addition to the number of tokens.
_MAX_HOLES = 4096
# Added tokens that llama.cpp's tools treat as special, whatever their files state
# (`does_token_look_special` in its converter).
_LOOK_SPECIAL = {"<pad>", "<mask>", "<2mass>", "[@BOS@]"}
_BRACKETS = (("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">"))


def read_added(document: Mapping[str, Any], where: str) -> dict[int, Mapping[str, Any]]:
    """Return the entries of `added_tokens`, by id.

    Raises `TokenizerError` if an entry has no id or text.
    """
    entries = document.get("added_tokens")
    made: dict[int, Mapping[str, Any]] = {}
    for entry in entries if is_list(entries) else []:
        token = entry.get("id") if is_object(entry) else None
        if not is_object(entry) or not _is_id(token) or not isinstance(entry.get("content"), str):
            raise TokenizerError(
                f"{where}: `added_tokens` has the entry {str(entry)[:200]} without an id "
                "or content",
                hint=KEEP_HINT,
            )
        made[token] = entry
    return made


def type_of_added(entry: Mapping[str, Any]) -> TokenType:
    """Return the type of an added token: special, or user-defined."""
    if entry.get("special") or _looks_special(entry["content"], _BRACKETS):
        return TokenType.CONTROL
    return TokenType.USER_DEFINED


def order_tokens(
    vocabulary: Mapping[str, Any], added: Mapping[int, Mapping[str, Any]], where: str
) -> tuple[list[str], list[int]]:
    """Return the tokens and their types, ordered by id; ids without a token are padding.

    Raises `TokenizerError` if an id is invalid, or if two tokens have the same id.
    """
    texts: dict[int, str] = {}
    for text, token in vocabulary.items():
        if not _is_id(token) or texts.setdefault(token, text) != text:
            raise TokenizerError(
                f"{where}: the token {text!r:.200} has the id {token!r:.200}, which is "
                "not a unique integer",
                hint=KEEP_HINT,
            )
    count = id_count({*texts, *added}, where)
    tokens = [texts.get(token) or padding(token) for token in range(count)]
    types = [
        int(TokenType.NORMAL if token in texts else TokenType.UNUSED) for token in range(count)
    ]
    for token, entry in added.items():
        tokens[token] = entry["content"]
        types[token] = int(type_of_added(entry))
    return tokens, types


def refuse_gaps(document: Mapping[str, Any], where: str) -> None:
    """Raise `TokenizerError` for an added token that transformers gives another id than is stated.

    The library tokenizers numbers tokens that are not in the vocabulary without gaps.
    """
    stated = document["model"].get("vocab")
    # Unigram models have a list of pairs, and other models an object.
    vocabulary = stated if is_object(stated) else {text: at for at, (text, _) in enumerate(stated)}
    following = len(vocabulary)
    for token, entry in read_added(document, where).items():
        expected = vocabulary.get(entry["content"], following)
        if token != expected:
            raise TokenizerError(
                f"{where}: the added token {entry['content']!r:.200} has the id {token}, but "
                f"transformers gives it the id {expected}, because ids before it have no token",
                hint=f"add tokens for these ids, such as `{padding(expected)}`; {KEEP_HINT}",
            )
        following = max(following, token + 1)


def id_count(ids: Collection[int], where: str) -> int:
    """Return the number of ids of a vocabulary, including ids without a token.

    Raises `TokenizerError` if there are no tokens, or if the largest id is far beyond their number.
    Known vocabularies skip a few thousand ids at most.
    """
    largest = max(ids, default=-1)
    if not ids:
        raise TokenizerError(f"{where}: the vocabulary has no tokens", hint=KEEP_HINT)
    if largest > 2 * len(ids) + _MAX_HOLES:
        raise TokenizerError(
            f"{where}: the id {largest} is too large for a vocabulary of {len(ids)} "
            f"token{'' if len(ids) == 1 else 's'}",
            hint="the file is damaged: download it again from the source of the checkpoint; "
            f"{KEEP_HINT}",
        )
    return largest + 1


def padding(token: int) -> str:
    """Return the text that llama.cpp's tools give to an id without a token."""
    return f"[PAD{token}]"


def is_padding(tokenizer: Tokenizer, token: int) -> bool:
    """Whether an id has no token, and only pads the vocabulary."""
    return tokenizer.types[token] in _UNUSED and tokenizer.tokens[token] == padding(token)


def to_added_tokens(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    return [_entry(tokenizer, token) for token in _find_added(tokenizer)]


def _find_added(tokenizer: Tokenizer) -> Iterator[int]:
    special = {*tokenizer.special.values()}
    for token, kind in enumerate(tokenizer.types):
        # Old files have no types. In a faulty file, the id of a special token can be that of a
        # word.
        is_named = token in special and _looks_special(
            tokenizer.tokens[token], (*_BRACKETS, ("<", ">"), ("[", "]"))
        )
        is_added = kind in ADDED or is_named
        if is_added and not is_padding(tokenizer, token):
            yield token


def _entry(tokenizer: Tokenizer, token: int) -> dict[str, Any]:
    return {
        "id": token,
        "content": tokenizer.tokens[token],
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": tokenizer.types[token] != TokenType.USER_DEFINED,
    }


def _looks_special(text: str, brackets: Iterable[tuple[str, str]]) -> bool:
    return text in _LOOK_SPECIAL or any(
        text.startswith(start) and text.endswith(end) for start, end in brackets
    )


def _is_id(token: Any) -> TypeGuard[int]:
    return isinstance(token, int) and not isinstance(token, bool) and 0 <= token < MAX_TOKENS
