"""PLaMo 2's tokenizer (`tokenizer.ggml.model` "plamo2"): the tokens with the best scores together.

Its file has a line of JSON for each token: a list of the text, the score and the type. A character
that no token begins with becomes the tokens of its bytes. Sources: `tokenization_plamo.py` of the
published checkpoints, `_set_vocab_plamo` of llama.cpp's converter, and `llama-vocab.cpp`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from weightctl.errors import TokenizerError
from weightctl.families.configs import shortest
from weightctl.text.untyped import is_list
from weightctl.translate.tokenizer.files import KEEP_HINT, PLAMO, PLAMO_VOCABULARY, TENSORS_HINT
from weightctl.translate.tokenizer.record import Tokenizer, TokenType
from weightctl.translate.tokenizer.tokenizer_config import special_entries

if TYPE_CHECKING:
    from weightctl.translate.tokenizer.files import TokenizerFiles

_CLASS = "Plamo2Tokenizer"
# The token that begins a message of a chat, and so ends the one before it.
_MESSAGE = "<|plamo:op|>"
_CONTROL = ("<|plamo:", "|>")
_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
# Scores are compared as integers. A character without a token costs as much as this score.
_SCALE, _UNKNOWN, _INVALID = 1e4, -10_000_000, -20_000_000


def from_files(files: TokenizerFiles, model_type: str) -> Tokenizer:
    """Return the tokenizer of a directory's file.

    Raises `TokenizerError`, which has the number of the line, for a line that is not one of such a
    file, if a byte has no token, and for tokenizers of another class.
    """
    del model_type
    where = files.path(PLAMO_VOCABULARY)
    if files.config.get("tokenizer_class", _CLASS) != _CLASS:
        raise TokenizerError(
            f"{where}: only the class {_CLASS} is supported for this file, not "
            f"{files.config['tokenizer_class']!r:.200}",
            hint=KEEP_HINT,
        )
    lines = (files.text(PLAMO_VOCABULARY) or "").removesuffix("\n").split("\n")
    rows = [_read_line(line, number, where) for number, line in enumerate(lines, 1)]
    tokens = tuple(text for text, _, _ in rows)
    ids: dict[str, int] = {}
    for token, text in enumerate(tokens):
        if ids.setdefault(text, token) != token:
            raise TokenizerError(
                f"{where}: line {token + 1}: line {ids[text] + 1} has the same text {text!r:.200}",
                hint=KEEP_HINT,
            )
    types = tuple(int(kind) for _, _, kind in rows)
    _check_bytes(tokens, types, where)
    return Tokenizer(
        model=PLAMO,
        pre="default",
        tokens=tokens,
        types=types,
        scores=tuple(score for _, score, _ in rows),
        special={"eot": ids[_MESSAGE]} if _MESSAGE in ids else {},
        flags={"add_space_prefix": False},
    )


def to_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """Return the vocabulary file by its name.

    Raises `TokenizerError` if a byte has no token, or if the tokenizer has no scores.
    """
    _check_bytes(tokenizer.tokens, tokenizer.types, "`tokenizer.ggml.tokens`")
    rows = zip(tokenizer.tokens, _scores(tokenizer), tokenizer.types, strict=True)
    lines = [
        json.dumps([text, shortest(score), TokenType(kind or 1).name], ensure_ascii=False)
        for text, score, kind in rows
    ]
    return {PLAMO_VOCABULARY: "".join(f"{line}\n" for line in lines).encode()}


def default_config(tokenizer: Tokenizer) -> dict[str, object]:
    """Return the content of tokenizer_config.json for a tokenizer that has no settings."""
    adds = {flag: value for flag, value in tokenizer.flags.items() if flag.endswith("_token")}
    return {**special_entries(tokenizer), **adds, "tokenizer_class": _CLASS}


class BestEncoder:
    """An encoder that divides a text into the tokens with the best scores together.

    Of two divisions with the same score, it takes the one with the longer first token. Raises
    `TokenizerError` as `to_files` does.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokens, kinds = tokenizer.tokens, tokenizer.types
        _check_bytes(tokens, kinds, "`tokenizer.ggml.tokens`")
        self._tokens, self.count = tokens, len(tokens)
        self._bytes = {
            int(text[3:5], 16): token
            for token, text in enumerate(tokens)
            if kinds[token] == TokenType.BYTE
        }
        self._ids: dict[str, tuple[int, int]] = {}
        lengths: dict[str, set[int]] = {}
        for token, score in enumerate(_scores(tokenizer)):
            value = round(score * _SCALE)
            if kinds[token] != TokenType.BYTE and tokens[token] and value > _INVALID:
                self._ids[tokens[token]] = token, value
                lengths.setdefault(tokens[token][0], set()).add(len(tokens[token]))
        self._lengths = {first: sorted(each, reverse=True) for first, each in lengths.items()}
        self.first, self.last = (
            [tokenizer.special[word]]
            if tokenizer.flags.get(f"add_{word}_token") and word in tokenizer.special
            else []
            for word in ("bos", "eos")
        )

    def ids(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        costs, steps = [0] * (len(text) + 1), [(1, -1)] * len(text)
        for place in range(len(text) - 1, -1, -1):
            costs[place] = costs[place + 1] - _UNKNOWN + 1
            for length in self._lengths.get(text[place], ()):
                end = place + length
                token, score = self._ids.get(text[place:end], (-1, 0))
                if token >= 0 and end <= len(text) and costs[end] - score < costs[place]:
                    costs[place] = costs[end] - score
                    steps[place] = length, token
            if steps[place][1] < 0:
                costs[place] -= 1  # a token with the same score is taken first
        found, place = list[int](), 0
        while place < len(text):
            length, token = steps[place]
            raw = text[place].encode(errors="replace")
            found += [token] if token >= 0 else [self._bytes[byte] for byte in raw]
            place += length
        return found

    def text(self, token: int) -> str:
        """Return the text of a token; a byte that is not a character is replaced."""
        if token >= self.count:
            return ""
        text = self._tokens[token]
        is_byte = self._bytes.get(int(text[3:5], 16)) == token if text in _BYTES else False
        return bytes([int(text[3:5], 16)]).decode(errors="replace") if is_byte else text


def _read_line(line: str, number: int, where: str) -> tuple[str, float, TokenType]:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{where}: line {number}: it is not JSON", hint=KEEP_HINT) from error
    text, score, kind = (*row, "NORMAL")[:3] if is_list(row) and len(row) > 1 else ("", None, "")
    if not isinstance(text, str) or not isinstance(score, int | float) or not text:
        raise TokenizerError(
            f"{where}: line {number}: it is not a list of a text, a score and a type",
            hint=KEEP_HINT,
        )
    if kind in ("UNKNOWN", "CONTROL", "BYTE"):
        return text, float(score), TokenType[kind]
    begin, end = _CONTROL
    is_control = text.startswith(begin) and text.endswith(end)
    return text, float(score), TokenType.CONTROL if is_control else TokenType.NORMAL


def _check_bytes(tokens: tuple[str, ...], types: tuple[int, ...], where: str) -> None:
    """Raise `TokenizerError` if a byte has no token, which llama.cpp requires."""
    kinds = dict(zip(tokens, types, strict=True))
    for text in _BYTES:
        if kinds.get(text) != TokenType.BYTE:
            raise TokenizerError(f"{where}: the byte {text} has no token", hint=TENSORS_HINT)
    if kinds[tokens[0]] == TokenType.BYTE:
        raise TokenizerError(f"{where}: token 0 is that of a byte", hint=TENSORS_HINT)


def _scores(tokenizer: Tokenizer) -> tuple[float, ...]:
    if tokenizer.scores is None:
        raise TokenizerError("`tokenizer.ggml.scores` is missing", hint=TENSORS_HINT)
    return tokenizer.scores
