"""The files of a model directory that define its tokenizer."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weightctl.errors import FormatError, TokenizerError
from weightctl.storage.files import exists, is_file, open_reader
from weightctl.text.untyped import is_list, is_object

if TYPE_CHECKING:
    from collections.abc import Mapping

TENSORS_HINT = 'to convert only the tensors, use --names keep (names="keep" in Python)'
KEEP_HINT = (
    "to convert without a tokenizer, move the tokenizer files out of the directory: the GGUF then "
    f"accepts only token ids; {TENSORS_HINT}"
)
# The name of RWKV's kind of tokenizer in GGUF, and of its only file.
RWKV, RWKV_VOCABULARY = "rwkv", "rwkv_vocab_v20230424.txt"
# The same for PLaMo 2.
PLAMO, PLAMO_VOCABULARY = "plamo2", "tokenizer.jsonl"
# Files with the ranks of tokens: Mistral's, and those of tiktoken, whose lines have a token in
# base64 and its rank. A tokenizer.model is usually a file of SentencePiece.
TEKKEN = "tekken.json"
TIKTOKEN = ("qwen.tiktoken", "hy.tiktoken", "tiktoken.model", "tokenizer.model")
_RANK = re.compile(rb"[A-Za-z0-9+/]+=* \d+\r?\n")
# The classes of transformers that load tokenizer.json unchanged. Others replace some of its
# settings by those of tokenizer_config.json, and by their own defaults.
GENERIC_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
# The largest known files are those with 260,000 tokens: tokenizer.json has 35 MB.
_MAX_SIZE = 300_000_000
_UNREADABLE = "download the file again from the source of the checkpoint"


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """A directory's tokenizer.json (None if it is missing) and tokenizer_config.json."""

    directory: str
    tokenizer: Mapping[str, Any] | None
    config: Mapping[str, Any]

    def path(self, name: str) -> str:
        """Return the path of a file in the directory, for messages."""
        return os.path.join(self.directory, name)

    def has(self, name: str) -> bool:
        """Whether the directory has a file of this name."""
        return is_file(self.path(name))

    def data(self, name: str) -> bytes | None:
        """Return the bytes of a file; None if it is missing.

        Raises `TokenizerError` if it cannot be read, or is too large.
        """
        return _data(self.path(name))

    def text(self, name: str) -> str | None:
        """Return the text of a file; None if it is missing.

        Raises `TokenizerError` if it cannot be read, is too large, or is not UTF-8.
        """
        return _text(self.path(name))

    def find_ranks(self) -> str:
        """Return the name of the file with the ranks of tokens; empty if there is none."""
        if self.has(TEKKEN):
            return TEKKEN
        found = (
            each for each in TIKTOKEN if self.has(each) and _RANK.match(self.data(each) or b"")
        )
        return next(found, "")

    def special_tokens(self) -> dict[str, str]:
        """Return the texts of special tokens by their keys, such as `bos_token`.

        Raises `TokenizerError` if a file is damaged.
        """
        made: dict[str, str] = {}
        for document in self._list_special():
            for key, value in document.items():
                content = value.get("content") if is_object(value) else value
                if key.endswith("_token") and isinstance(content, str):
                    made[key] = content
                elif key.endswith("_token") and key in document and value is None:
                    made.pop(key, None)
        return made

    def special_texts(self, *, has_added: bool) -> set[str]:
        """Return the texts of all special tokens, also of those without a role.

        With `has_added`, those of `added_tokens_decoder` are among them.
        """
        made = {*self.special_tokens().values()}
        for document in self._list_special():
            keys = ["extra_special_tokens", "additional_special_tokens"]
            if has_added:
                keys.append("added_tokens_decoder")
            for key in keys:
                listed = document.get(key)
                entries = [*listed.values()] if is_object(listed) else listed
                for entry in entries if is_list(entries) else ():
                    content = entry.get("content") if is_object(entry) else entry
                    if isinstance(content, str):
                        made.add(content)
        return made

    def _list_special(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return the files that name special tokens; the second one takes precedence.

        transformers ignores special_tokens_map.json if tokenizer_config.json lists added tokens.
        """
        mapped = self.document("special_tokens_map.json") or {}
        if "added_tokens_decoder" in self.config:
            return mapped, self.config
        return self.config, mapped

    def document(self, name: str) -> dict[str, Any] | None:
        """Return the JSON object of a file; None if it is missing. Raises like `read_document`."""
        return read_document(self.directory, name)


def open_files(directory: str) -> TokenizerFiles:
    """Return the tokenizer files of a directory; raises `TokenizerError` if one is damaged."""
    return TokenizerFiles(
        directory,
        read_document(directory, "tokenizer.json"),
        read_document(directory, "tokenizer_config.json") or {},
    )


def read_document(directory: str, name: str) -> dict[str, Any] | None:
    """Return the JSON object of a file in a directory; None if the file is missing.

    Raises `TokenizerError` if it is damaged.
    """
    return _document(os.path.join(directory, name))


def _data(path: str) -> bytes | None:
    if not exists(path):
        return None
    try:
        file = open_reader(path)
        if file.size > _MAX_SIZE:
            raise TokenizerError(
                f"{path}: the file has {file.size} bytes, too many for a tokenizer file",
                hint=_UNREADABLE,
            )
        return file.read(0, file.size)
    except FormatError as error:
        raise TokenizerError(f"{path}: {error.reason}", hint=_UNREADABLE) from error


def _text(path: str) -> str | None:
    data = _data(path)
    try:
        return None if data is None else str(data, "utf-8")
    except ValueError as error:
        raise TokenizerError(
            f"{path}: the file is not valid UTF-8: {error}", hint=_UNREADABLE
        ) from error


def _document(path: str) -> dict[str, Any] | None:
    written = _text(path)
    if written is None:
        return None
    try:
        document = json.loads(written)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(
            f"{path}: the file is not valid JSON: {error}", hint=_UNREADABLE
        ) from error
    if not is_object(document):
        raise TokenizerError(f"{path}: the file is not a JSON object", hint=_UNREADABLE)
    return document
