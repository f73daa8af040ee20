"""Tokenizers, read from and written to both dialects: Hugging Face's files and GGUF's metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.registry import loaded_on_use

if TYPE_CHECKING:
    from weightctl.tokenizer.directory import from_directory
    from weightctl.tokenizer.documents import to_documents
    from weightctl.tokenizer.ends import assumed_end, with_ends
    from weightctl.tokenizer.metadata import from_metadata, to_metadata
    from weightctl.tokenizer.record import Tokenizer, TokenType
    from weightctl.tokenizer.token_ids import TokenIds, ids_of, read_token_ids

__all__ = [
    "READERS",
    "WRITERS",
    "TokenIds",
    "TokenType",
    "Tokenizer",
    "assumed_end",
    "from_directory",
    "from_metadata",
    "ids_of",
    "read_token_ids",
    "to_documents",
    "to_metadata",
    "with_ends",
]

# What reads the files of each kind of model: `(files: Files, model_type: str) -> Tokenizer`. Ids of
# special tokens, flags, templates and padding that the files beside say are added to its answer.
READERS: dict[str, str] = {
    "byte-level BPE": "weightctl.tokenizer.bpe:from_files",
    "WordPiece": "weightctl.tokenizer.wordpiece:from_files",
    "SentencePiece": "weightctl.tokenizer.sentencepiece:from_files",
}
# What writes each `tokenizer.ggml.model`: `(tokenizer: Tokenizer, model_type: str) -> the document
# of tokenizer.json`. The padding at the end of `tokens` is gone from what it is given.
WRITERS: dict[str, str] = {
    "gpt2": "weightctl.tokenizer.bpe:to_tokenizer_json",
    "bert": "weightctl.tokenizer.wordpiece:to_tokenizer_json",
    "llama": "weightctl.tokenizer.sentencepiece_json:to_tokenizer_json",
    "t5": "weightctl.tokenizer.unigram:to_tokenizer_json",
}

_NAMES = {
    "TokenIds": "weightctl.tokenizer.token_ids:TokenIds",
    "TokenType": "weightctl.tokenizer.record:TokenType",
    "Tokenizer": "weightctl.tokenizer.record:Tokenizer",
    "assumed_end": "weightctl.tokenizer.ends:assumed_end",
    "from_directory": "weightctl.tokenizer.directory:from_directory",
    "from_metadata": "weightctl.tokenizer.metadata:from_metadata",
    "ids_of": "weightctl.tokenizer.token_ids:ids_of",
    "read_token_ids": "weightctl.tokenizer.token_ids:read_token_ids",
    "to_documents": "weightctl.tokenizer.documents:to_documents",
    "to_metadata": "weightctl.tokenizer.metadata:to_metadata",
    "with_ends": "weightctl.tokenizer.ends:with_ends",
}

__getattr__ = loaded_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)
