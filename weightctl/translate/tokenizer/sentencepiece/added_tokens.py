"""Tokens that a directory's files add to a SentencePiece vocabulary, or whose type they change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import TokenizerError
from weightctl.text.untyped import is_list, is_object
from weightctl.translate.tokenizer.added import MAX_TOKENS, id_count, padding, type_of_added
from weightctl.translate.tokenizer.files import KEEP_HINT
from weightctl.translate.tokenizer.record import TokenType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.translate.tokenizer.files import TokenizerFiles

SPACE = "▁"
# The scores that llama.cpp's script gives to added tokens, and to ids without a token.
ADDED_SCORE = -1000.0
_UNUSED_SCORE = -10000.0


class VocabularyEntry(NamedTuple):
    """A token: its text in GGUF's spelling, its score, and its `TokenType`."""

    text: str
    score: float
    type: int


class TokenTable:
    """Tokens by id; ids can be set in any order, and ids without a token are unused."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._entries: dict[int, VocabularyEntry] = {}

    def __getitem__(self, index: int) -> VocabularyEntry | None:
        return self._entries.get(index)

    def put(self, index: object, entry: VocabularyEntry) -> None:
        """Set the token of an id; raises `TokenizerError` for an invalid id."""
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < MAX_TOKENS:
            raise TokenizerError(
                f"{self._path}: the id of {entry.text!r:.200} is {index!r:.200}, which is "
                "not valid",
                hint=KEEP_HINT,
            )
        self._entries[index] = entry

    def add(self, index: object, text: str, *, special: bool) -> None:
        """Set an added token of an id; byte tokens and the unknown token keep their type."""
        there = self._entries.get(index) if isinstance(index, int) else None
        if there is not None and there.type in {TokenType.UNKNOWN, TokenType.BYTE}:
            self.put(index, there._replace(text=text))
        elif type_of_added({"content": text, "special": special}) == TokenType.CONTROL:
            self.put(index, VocabularyEntry(text, ADDED_SCORE, TokenType.CONTROL))
        else:
            # llama.cpp searches for user-defined tokens in the original text.
            plain = text.replace(SPACE, " ")
            self.put(index, VocabularyEntry(plain, ADDED_SCORE, TokenType.USER_DEFINED))

    def entries(self) -> list[VocabularyEntry]:
        """Return all tokens.

        Raises `TokenizerError` if two have the same text, if there are none, or if an id is far
        beyond their number.
        """
        made = [
            self._entries.get(index)
            or VocabularyEntry(padding(index), _UNUSED_SCORE, TokenType.UNUSED)
            for index in range(id_count(self._entries, self._path))
        ]
        seen: dict[str, int] = {}
        for index, entry in enumerate(made):
            if seen.setdefault(entry.text, index) != index:
                raise TokenizerError(
                    f"{self._path}: tokens {seen[entry.text]} and {index} have the same "
                    f"text {entry.text!r:.200}",
                    hint=KEEP_HINT,
                )
        return made


def added_tokens(files: TokenizerFiles) -> Iterator[tuple[object, str, bool]]:
    """Yield the id and text of each added token, and whether it is special.

    A token in several files is yielded for each; the entry that takes precedence in transformers is
    last. Raises `TokenizerError` for invalid entries.
    """
    named = _find_role_texts(files.config)
    for text, index in (files.document("added_tokens.json") or {}).items():
        yield index, text, text in named
    decoder = files.config.get("added_tokens_decoder")
    for key, token in decoder.items() if is_object(decoder) else ():
        index = int(key) if key.isascii() and key.isdigit() and len(key) < 10 else key
        yield index, *_token(token, files.path("tokenizer_config.json"))
    listed = (files.tokenizer or {}).get("added_tokens")
    for token in listed if is_list(listed) else ():
        text, special = _token(token, files.path("tokenizer.json"))
        yield token.get("id"), text, special


def _token(token: object, path: str) -> tuple[str, bool]:
    if not is_object(token) or not isinstance(token.get("content"), str):
        raise TokenizerError(f"{path}: the added token {token!r:.200} is not valid", hint=KEEP_HINT)
    return token["content"], token.get("special") is True


def _find_role_texts(config: Any) -> set[str]:
    """Return the texts of the tokens that have a role in tokenizer_config.json."""
    values = [value for key, value in config.items() if key.endswith("_token")]
    more = config.get("additional_special_tokens")
    values += more if is_list(more) else []
    texts = [value.get("content") if is_object(value) else value for value in values]
    return {text for text in texts if isinstance(text, str)}
