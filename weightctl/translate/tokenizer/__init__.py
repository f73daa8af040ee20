"""Tokenizers: read from and written to Hugging Face's files and GGUF's metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.system.registry import load_on_use

if TYPE_CHECKING:
    from weightctl.translate.tokenizer.directory import (
        READERS,
        WRITERS,
        from_directory,
        to_documents,
    )
    from weightctl.translate.tokenizer.record import (
        Tokenizer,
        TokenType,
        from_metadata,
        to_metadata,
    )
    from weightctl.translate.tokenizer.token_ids import (
        TokenIds,
        describe_assumed_end,
        ids_of,
        read_token_ids,
        with_ends,
    )

__all__ = [
    "READERS",
    "WRITERS",
    "TokenIds",
    "TokenType",
    "Tokenizer",
    "describe_assumed_end",
    "from_directory",
    "from_metadata",
    "ids_of",
    "read_token_ids",
    "to_documents",
    "to_metadata",
    "with_ends",
]

_NAMES = {
    "READERS": "weightctl.translate.tokenizer.directory:READERS",
    "WRITERS": "weightctl.translate.tokenizer.directory:WRITERS",
    "TokenIds": "weightctl.translate.tokenizer.token_ids:TokenIds",
    "TokenType": "weightctl.translate.tokenizer.record:TokenType",
    "Tokenizer": "weightctl.translate.tokenizer.record:Tokenizer",
    "describe_assumed_end": "weightctl.translate.tokenizer.token_ids:describe_assumed_end",
    "from_directory": "weightctl.translate.tokenizer.directory:from_directory",
    "from_metadata": "weightctl.translate.tokenizer.record:from_metadata",
    "ids_of": "weightctl.translate.tokenizer.token_ids:ids_of",
    "read_token_ids": "weightctl.translate.tokenizer.token_ids:read_token_ids",
    "to_documents": "weightctl.translate.tokenizer.directory:to_documents",
    "to_metadata": "weightctl.translate.tokenizer.record:to_metadata",
    "with_ends": "weightctl.translate.tokenizer.token_ids:with_ends",
}

__getattr__ = load_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)
