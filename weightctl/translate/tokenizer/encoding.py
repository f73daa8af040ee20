"""Encoding of text into token ids, by the `tokenizers` library, which transformers uses too."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from weightctl.errors import TokenizerError
from weightctl.system.registry import name_install
from weightctl.text.untyped import is_object
from weightctl.translate.tokenizer.directory import from_directory, to_documents
from weightctl.translate.tokenizer.files import PLAMO, RWKV, open_files
from weightctl.translate.tokenizer.library_process import TokenizerProcess
from weightctl.translate.tokenizer.plamo import BestEncoder
from weightctl.translate.tokenizer.record import from_metadata
from weightctl.translate.tokenizer.rwkv import GreedyEncoder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.weights.metadata import MetadataValue

_TOKENIZER, _CONFIG = "tokenizer.json", "tokenizer_config.json"
_PROBE = "a"


class TokenEncoder(Protocol):
    """What encodes texts: `first` and `last` are the tokens added around one, `count` is of all."""

    first: list[int]
    last: list[int]

    @property
    def count(self) -> int:
        """The number of tokens in the vocabulary."""
        ...

    def ids(self, text: str) -> list[int]:
        """Return the tokens of a text, without those added around it."""
        ...

    def text(self, token: int) -> str:
        """Return the text of a token, which can be empty."""
        ...


class Encoder:
    """An encoder that treats text as a tokenizer.json defines.

    `first` and `last` are the tokens that are added before and after a text; they can be empty.
    Raises `TokenizerError` if the `tokenizers` library is not installed or rejects the document;
    `where` names the document in errors.
    """

    def __init__(self, document: bytes, config: Mapping[str, Any], where: str) -> None:
        if find_spec("tokenizers") is None:
            raise TokenizerError(
                "the package `tokenizers`, which splits text into tokens, is not installed",
                hint=f"install it: {name_install('verify')}; or use token ids",
            )
        self._tokenizer = TokenizerProcess(document, where)
        first, last = self._around()
        self.first = self._apply_config(config, "bos", first)
        self.last = self._apply_config(config, "eos", last)

    @property
    def count(self) -> int:
        """The number of tokens in the vocabulary."""
        return self._tokenizer.count

    def ids(self, text: str) -> list[int]:
        """Return the tokens of a text, without those added around it."""
        return self._tokenizer.encode(text, is_whole=False)

    def text(self, token: int) -> str:
        """Return the text of a token, which can be empty."""
        return self._tokenizer.decode(token)

    def _around(self) -> tuple[list[int], list[int]]:
        """Return the tokens that are added before and after a text."""
        plain = self._tokenizer.encode(_PROBE, is_whole=False)
        whole = self._tokenizer.encode(_PROBE, is_whole=True)
        for start in range(len(whole) - len(plain) + 1):
            if whole[start : start + len(plain)] == plain:
                return whole[:start], whole[start + len(plain) :]
        return [], []

    def _apply_config(
        self, config: Mapping[str, Any], word: str, found: Sequence[int]
    ) -> list[int]:
        """Return the tokens on one side after tokenizer_config.json applies, as in transformers."""
        is_added, named = config.get(f"add_{word}_token"), config.get(f"{word}_token")
        content = named.get("content") if is_object(named) else named
        token = self._tokenizer.find(content) if isinstance(content, str) else None
        if token is None or not isinstance(is_added, bool):
            return [*found]
        if is_added:
            return [*found] or [token]
        return [] if [*found] == [token] else [*found]


def encoder_of(
    metadata: Mapping[str, MetadataValue], directory: str | None, model_type: str, where: str
) -> TokenEncoder | None:
    """Return an encoder for a GGUF's metadata, else for a model directory; None if neither has one.

    Raises `TokenizerError` if the tokenizer is damaged, if tokenizer.json cannot express it, or if
    the `tokenizers` library is not installed.
    """
    made = from_metadata(metadata, where)
    if made is None and directory is not None:
        files = open_files(directory)
        written = files.data(_TOKENIZER)
        if written is not None:
            return Encoder(written, files.config, files.path(_TOKENIZER))
        made, where = from_directory(directory, 0, model_type), directory
    if made is None:
        return None
    if made.model == RWKV:
        return GreedyEncoder(made)
    if made.model == PLAMO:
        return BestEncoder(made)
    documents = to_documents(made, model_type, {})
    return Encoder(documents[_TOKENIZER], json.loads(documents[_CONFIG]), where)
