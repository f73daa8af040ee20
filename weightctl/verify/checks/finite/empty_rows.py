"""Distinguishes the rows of zeros that healthy checkpoints have from rows that were lost."""

from __future__ import annotations

import os
import re
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import WeightctlError
from weightctl.formats.huggingface import config
from weightctl.translate.tokenizer import TokenType, from_directory, from_metadata
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.translate.tokenizer import Tokenizer
    from weightctl.verify.subject import Subject
    from weightctl.weights.info import TensorInfo

__all__ = ["EmptyRows", "UsedTokens", "is_made", "is_table", "may_be_zero"]

# Tensors that are computed or that start at zero, and that training does not change: masks, bases
# of Fourier transforms, optimizer state of rows without a gradient, biases of experts.
_MADE = re.compile(
    r"mask|basis|filter|buffer|window|stft|(inv|rope)_freq|freqs|position_ids|sinusoid|"
    r"optimizer|exp_avg|momentum|bias(es)?$|bias_\w+$",
    re.IGNORECASE,
)
# The half of a low-rank adapter that is zero before training, and the segment embeddings of models
# that do not use segments.
_MAY_BE_ZERO = re.compile(
    r"lora_(B|up|embedding_B)\b|\.lora_b$|token_type(s|_embeddings)\b", re.IGNORECASE
)
_TABLE = re.compile(
    r"emb|token_type|wte|wpe|lm_head|(^|\.)output\.weight$|shared\.weight|decoder\.weight$|cls\.pred"
)
_POSITIONS = re.compile(r"pos|wpe|type", re.IGNORECASE)
# Tokens that a vocabulary reserves for later use.
_RESERVED = re.compile(
    r"unused|reserved|extra_id|extra_token|placeholder|dummy|madeupword|\[PAD|<pad|special_token",
    re.IGNORECASE,
)
_TRAINED = ("bos", "eos", "eot", "unknown", "cls", "seperator", "mask")
# Some libraries store a padding row before the first position or token.
_FIRST = 2


def is_made(name: str) -> bool:
    """Whether a tensor is computed, not trained, judging by its name: it may have any values."""
    return _MADE.search(name) is not None


def may_be_zero(name: str) -> bool:
    """Whether a tensor of this name may be all zeros in a working checkpoint."""
    return _MAY_BE_ZERO.search(name) is not None


def is_table(name: str) -> bool:
    """Whether a tensor has a row for each token, position or segment type, judging by its name."""
    return _TABLE.search(name) is not None


class EmptyRows(NamedTuple):
    """Ranges [first, stop) of rows that are all zeros: `unused` rows and `lost` rows."""

    unused: list[tuple[int, int]]
    lost: list[tuple[int, int]]


class UsedTokens:
    """The tokens of a checkpoint that are in use; the tokenizer is read on first use."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._read: dict[int, Tokenizer | None] = {}

    def split_unused(self, info: TensorInfo, runs: Sequence[tuple[int, int]]) -> EmptyRows:
        """Split ranges of zero rows of a table into unused rows and lost rows."""
        rows = info.shape[0]
        is_of_tokens = _POSITIONS.search(info.name) is None
        tokenizer = self._find_tokenizer(rows) if is_of_tokens else None
        found = EmptyRows([], [])
        for start, stop in runs:
            if tokenizer is None:
                is_padding = stop == rows or stop <= _FIRST
                (found.unused if is_padding else found.lost).append((start, stop))
                continue
            end = max(start, min(stop, len(tokenizer.tokens)))
            for is_used, alike in groupby(range(start, end), partial(_is_used, tokenizer)):
                same = list(alike)
                (found.lost if is_used else found.unused).append((same[0], same[-1] + 1))
            if end < stop:
                found.unused.append((end, stop))
        return found

    def _find_tokenizer(self, rows: int) -> Tokenizer | None:
        if rows not in self._read:
            try:
                self._read[rows] = _load_tokenizer(self._subject, rows)
            except (WeightctlError, OSError):
                self._read[rows] = None  # another check reports the error
        return self._read[rows]


def _load_tokenizer(subject: Subject, rows: int) -> Tokenizer | None:
    stored = subject.stored
    found = from_metadata(header_of(stored).metadata, subject.path)
    files = header_of(stored).files
    if found is None and files:
        directory = os.path.dirname(files[0])
        kind = str(config(files).get("model_type", ""))
        found = from_directory(directory or ".", rows, kind)
    # If there are more tokens than rows, the rows are not those of the tokens.
    return found if found is not None and len(found.tokens) <= rows else None


def _is_used(tokenizer: Tokenizer, row: int) -> bool:
    # Many models use the end-of-text token for padding.
    if row in {tokenizer.special.get(word) for word in _TRAINED}:
        return True
    is_control = tokenizer.types[row] in {TokenType.CONTROL, TokenType.UNUSED}
    is_padding = tokenizer.special.get("padding") == row
    return not (is_control or is_padding or _RESERVED.search(tokenizer.tokens[row]))
