"""The tokens of a Whisper model, without its special tokens, which whisper.cpp adds itself.

They are read from the files of the tokenizer beside the model: those of Hugging Face, or the
`.tiktoken` files of OpenAI's package.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from itertools import pairwise
from typing import TYPE_CHECKING

from weightctl.errors import TokenizerError
from weightctl.text.byte_level import from_byte_level, to_byte_level
from weightctl.text.untyped import is_list, is_object
from weightctl.translate.tokenizer.files import open_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.translate.tokenizer.files import TokenizerFiles

_TIKTOKEN = ("multilingual.tiktoken", "gpt2.tiktoken")
# Multilingual models have at least so many tokens.
_MULTILINGUAL = 51865
_HINT = (
    "put vocab.json or tokenizer.json of the model, or OpenAI's multilingual.tiktoken (for English "
    "models gpt2.tiktoken), beside the weights"
)


def read_vocabulary(directory: str, count: int) -> list[str]:
    """Return the tokens by id, spelled as byte-level tokenizers do.

    `count` is the number of tokens of the model. Raises `TokenizerError` if there is no tokenizer,
    or if it is invalid.
    """
    files = open_files(directory)
    ids = _read_hugging_face(files)
    if ids is None:
        name = _TIKTOKEN[0] if count >= _MULTILINGUAL else _TIKTOKEN[1]
        data = files.data(name)
        ids = None if data is None else _read_tiktoken(data, files.path(name))
    if not ids:
        raise TokenizerError(
            f"{directory or '.'}: the tokenizer, whose tokens a file of whisper.cpp contains, is "
            "missing",
            hint=_HINT,
        )
    if max(ids.values()) >= count:
        raise TokenizerError(
            f"{directory or '.'}: the tokenizer has ids up to {max(ids.values())}, but the model "
            f"has only {count} tokens",
            hint=_HINT,
        )
    words = [""] * (max(ids.values()) + 1)
    for word, number in ids.items():
        words[number] = word
    return words


def _read_hugging_face(files: TokenizerFiles) -> dict[str, int] | None:
    """Return the ids of the tokens in Hugging Face's files; None if there are none."""
    document = files.document("tokenizer.json")
    model = document.get("model") if document is not None else None
    vocabulary: object = model.get("vocab") if is_object(model) else files.document("vocab.json")
    where = files.path("tokenizer.json" if is_object(model) else "vocab.json")
    if vocabulary is None:
        return None
    special: set[object] = set((files.document("added_tokens.json") or {}).keys())
    added = document.get("added_tokens") if document is not None else None
    special |= (
        {each.get("content") for each in added or () if is_object(each)}
        if is_list(added)
        else set()
    )
    if not is_object(vocabulary):
        raise TokenizerError(f"{where}: the vocabulary is not a JSON object", hint=_HINT)
    ids = {
        word: number
        for word, number in vocabulary.items()
        if word not in special and not (word.startswith("<|") and word.endswith("|>"))
    }
    _check(ids, where)
    return ids


def _check(ids: Mapping[str, object], where: str) -> None:
    for word, number in ids.items():
        try:
            from_byte_level(word)
        except KeyError as error:
            raise TokenizerError(
                f"{where}: the token {word!r:.80} is not spelled as a byte-level tokenizer does",
                hint=_HINT,
            ) from error
        if not isinstance(number, int) or not 0 <= number < 1 << 24:
            raise TokenizerError(
                f"{where}: the id of the token {word!r:.80} is {number!r:.40}", hint=_HINT
            )


def _read_tiktoken(data: bytes, where: str) -> dict[str, int]:
    ids: dict[str, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            # The file of multilingual models has an empty token, which is written as `=`.
            ids[to_byte_level(b64decode(token))] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise TokenizerError(f"{where}: line {number} is not a token and a rank") from error
    _check(ids, where)
    return ids


def derive_merges(words: list[str]) -> list[str]:
    """Return the merges of a byte-level tokenizer whose tokens are in the order of their merges.

    Each token of several characters is the result of one merge: of the two tokens that remain when
    the merges of all earlier tokens are applied to it.
    """
    ranks = {word: rank for rank, word in enumerate(words)}
    merges: list[str] = []
    for word, limit in ranks.items():
        parts = list(word)
        while len(parts) > 2:
            joined = [ranks.get(one + other, limit) for one, other in pairwise(parts)]
            best = min(range(len(joined)), key=joined.__getitem__)
            if joined[best] >= limit:
                break
            parts[best : best + 2] = ["".join(parts[best : best + 2])]
        if len(parts) == 2:
            merges.append(" ".join(parts))
    return merges
