"""RWKV's "World" tokenizer (`tokenizer.ggml.model` "rwkv"): the longest token at each position.

Its vocabulary file has a line for each token but 0: the id, a Python literal of the text or bytes,
and the number of bytes. GGUF has the literals of bytes without their quotes. Sources: `rwkv`'s
`rwkv_tokenizer.py`, `_set_vocab_rwkv_world` of llama.cpp's converter, and `llama-vocab.cpp`.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from weightctl.errors import TokenizerError
from weightctl.translate.tokenizer.added import is_padding
from weightctl.translate.tokenizer.files import KEEP_HINT, RWKV, RWKV_VOCABULARY, TENSORS_HINT
from weightctl.translate.tokenizer.record import Tokenizer, TokenType

if TYPE_CHECKING:
    from weightctl.translate.tokenizer.files import TokenizerFiles

# Token 0 separates texts, and no text contains it. The converter gives it this text.
_FIRST = "<s>"
_LINE = re.compile(r"(\d{1,9}) (b?(['\"]).*\3) (\d{1,9})")
# The longest token has 128 bytes.
_MAX_LINE = 10_000
_ESCAPES = {"t": b"\t", "n": b"\n", "r": b"\r"}
_ESCAPE = re.compile(r"\\(x[0-9a-f]{2}|[^x])|\\", re.DOTALL)
_CLASS = "RwkvTokenizer"
_HINT = f"`tokenizer.ggml.tokens` is damaged; {TENSORS_HINT}"


def from_files(files: TokenizerFiles, model_type: str) -> Tokenizer:
    """Return the tokenizer of a directory's vocabulary file.

    The end of a turn is two line breaks, as in llama.cpp's converter. Raises `TokenizerError`,
    which has the number of the line, for a line that is not one of such a file, and if a byte has
    no token.
    """
    del model_type
    where = files.path(RWKV_VOCABULARY)
    lines = (files.text(RWKV_VOCABULARY) or "").removesuffix("\n").split("\n")
    contents = [
        _read_line(line.removesuffix("\r"), number, where) for number, line in enumerate(lines, 1)
    ]
    ids = {content: token for token, content in enumerate(contents, 1)}
    if len(ids) < len(contents):
        (twice, *_) = (each for token, each in enumerate(contents, 1) if ids[each] != token)
        raise TokenizerError(f"{where}: two tokens are {twice!r:.200}", hint=KEEP_HINT)
    _check_bytes(ids, where)
    special = {"bos": 0, "eos": 0}
    if b"\n\n" in ids:
        special["eot"] = ids[b"\n\n"]
    return Tokenizer(
        model=RWKV,
        tokens=(_FIRST, *map(_escape, contents)),
        types=(int(TokenType.CONTROL), *[int(TokenType.NORMAL)] * len(contents)),
        special=special,
    )


def to_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """Return the vocabulary file by its name.

    Raises `TokenizerError` if a token is not one that such a file can state.
    """
    lines = [
        f"{token} {_literal(content)} {len(content)}\n"
        for token, content in enumerate(_contents(tokenizer)[1:], 1)
    ]
    return {RWKV_VOCABULARY: "".join(lines).encode()}


def default_config(tokenizer: Tokenizer) -> dict[str, object]:
    """Return the content of tokenizer_config.json for a tokenizer that has no settings."""
    del tokenizer
    return {"add_prefix_space": False, "tokenizer_class": _CLASS}


class GreedyEncoder:
    """An encoder that takes the longest token at each position of a text.

    Raises `TokenizerError` as `to_files` does.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        contents = _contents(tokenizer)
        self._contents = contents
        self._ids = {content: token for token, content in enumerate(contents) if token}
        lengths: dict[int, set[int]] = {}
        for content in self._ids:
            lengths.setdefault(content[0], set()).add(len(content))
        self._lengths = {first: sorted(each, reverse=True) for first, each in lengths.items()}
        self.count = len(contents)
        self.first: list[int] = []
        self.last: list[int] = []

    def ids(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        data, place, found = text.encode(errors="replace"), 0, list[int]()
        while place < len(data):
            for length in self._lengths[data[place]]:
                token = self._ids.get(data[place : place + length])
                if token is not None:
                    found.append(token)
                    place += length
                    break
        return found

    def text(self, token: int) -> str:
        """Return the text of a token; bytes that are not a character are replaced."""
        return self._contents[token].decode(errors="replace") if token < self.count else ""


def _read_line(line: str, number: int, where: str) -> bytes:
    found = _LINE.fullmatch(line) if len(line) <= _MAX_LINE else None
    try:
        literal: object = None if found is None else ast.literal_eval(found[2])
        content = literal.encode() if isinstance(literal, str) else literal
    except (ValueError, SyntaxError) as error:
        raise _wrong_line(where, number, "its literal is invalid") from error
    if found is None or not isinstance(content, bytes) or not content:
        raise _wrong_line(where, number, "it is not an id, a literal and a number of bytes")
    if int(found[1]) != number:
        raise _wrong_line(where, number, f"its id is {found[1]}; the ids must follow one another")
    if int(found[4]) != len(content):
        raise _wrong_line(where, number, f"it states {found[4]} bytes for {len(content)}")
    return content


def _wrong_line(where: str, number: int, reason: str) -> TokenizerError:
    return TokenizerError(f"{where}: line {number}: {reason}", hint=KEEP_HINT)


def _check_bytes(ids: dict[bytes, int], where: str) -> None:
    """Raise `TokenizerError` if a byte has no token, because texts with it could not be encoded."""
    missing = next((byte for byte in range(256) if bytes([byte]) not in ids), None)
    if missing is not None:
        raise TokenizerError(f"{where}: the byte 0x{missing:02x} has no token", hint=KEEP_HINT)


def _literal(content: bytes) -> str:
    try:
        return repr(content.decode())
    except UnicodeDecodeError:
        return repr(content)


def _escape(content: bytes) -> str:
    return repr(content)[2:-1]


def _contents(tokenizer: Tokenizer) -> list[bytes]:
    """Return the bytes of each token, without padding at the end; those of token 0 are empty."""
    count = len(tokenizer.tokens)
    while count > 1 and is_padding(tokenizer, count - 1):
        count -= 1
    made = [b"", *(_unescape(tokenizer, token) for token in range(1, count))]
    ids = {content: token for token, content in enumerate(made)}
    if len(ids) < len(made):
        raise TokenizerError("two tokens have the same bytes, or a token has none", hint=_HINT)
    _check_bytes(ids, "`tokenizer.ggml.tokens`")
    return made


def _unescape(tokenizer: Tokenizer, token: int) -> bytes:
    text, made, place = tokenizer.tokens[token], b"", 0
    if tokenizer.types[token] != TokenType.NORMAL:
        raise TokenizerError(
            f"token {token} ({text!r:.60}) has the type {tokenizer.types[token]}; "
            f"{RWKV_VOCABULARY} can only state normal tokens after token 0",
            hint=TENSORS_HINT,
        )
    for found in _ESCAPE.finditer(text):
        code = found[1]
        if code is None:
            raise TokenizerError(f"token {token} ({text!r:.60}) has an open escape", hint=_HINT)
        made += text[place : found.start()].encode()
        is_hex = len(code) > 1
        made += bytes.fromhex(code[1:]) if is_hex else _ESCAPES.get(code, code.encode())
        place = found.end()
    return made + text[place:].encode()
