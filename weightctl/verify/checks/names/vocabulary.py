"""Compares the token counts of the tokenizer, the config and the embedding."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from weightctl.errors import TokenizerError
from weightctl.families.configs import MODEL_TYPE
from weightctl.families.matching import EMBEDDING_WEIGHT
from weightctl.text.untyped import is_list, is_object, is_sequence
from weightctl.translate.tokenizer.directory import from_directory
from weightctl.translate.tokenizer.files import open_files
from weightctl.verify.config_keys import find_spelling
from weightctl.verify.results import Explanation, Findings
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from weightctl.families import RecognizedModel
    from weightctl.translate.tokenizer.files import TokenizerFiles
    from weightctl.verify.checks.names.fit import Fit

_PREFIX = "tokenizer.ggml."
_TOKENS = f"{_PREFIX}tokens"
_BESIDE = (f"{_PREFIX}token_type", f"{_PREFIX}scores")


def compare_counts(checkpoint: RecognizedModel, fit: Fit) -> Findings:
    """Compare the token counts of the tokenizer, the config and the embedding of a checkpoint."""
    found = Findings()
    _check_rows(found, checkpoint, fit)
    if checkpoint.convention == "gguf":
        _check_metadata(found, checkpoint)
        return found
    directory = os.path.dirname(checkpoint.where)
    try:
        files = open_files(directory)
    except TokenizerError as error:
        found.add(directory, _show_error(error))
        return found
    try:
        count, added = _count_tokens(files, str(checkpoint.document.get(MODEL_TYPE)))
    except TokenizerError as error:
        found.notes.append(f"the tokens were not counted: {_show_error(error)}")
        return found
    rows = checkpoint.config.vocabulary
    if count > rows:
        where = files.path("tokenizer.json") if files.tokenizer is not None else directory
        text = (
            f"the tokenizer has {count} tokens, and the embedding has {rows} rows; they may "
            "be of different models"
        )
        found.add(where, text)
    elif added > rows:
        note = (
            f"the tokenizer has added tokens up to {added - 1}, and the embedding has {rows} "
            f"rows; the model cannot run on tokens from {rows} on"
        )
        found.notes.append(note)
    return found


def _show_error(error: TokenizerError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message


def _check_rows(found: Findings, checkpoint: RecognizedModel, fit: Fit) -> None:
    """Add a problem for each tensor with more rows than tokens.

    Tensors with fewer rows are reported as misshaped.
    """
    count = checkpoint.config.vocabulary
    for stored in fit.padded:
        key, rows = find_spelling(checkpoint, "vocabulary").key, stored.shape[0]
        cause = None
        if checkpoint.convention == "hugging_face":
            cause = Explanation("config", f"`{key}` is {count}, and {rows} would fit")
        found.add(stored.name, f"has {rows} rows, and there are {count} tokens", cause)


def _check_metadata(found: Findings, checkpoint: RecognizedModel) -> None:
    """Add a problem for each GGUF list of tokens that does not have the length of the others.

    llama.cpp requires that the vocabulary has as many tokens as the embedding has rows.
    """
    metadata = header_of(checkpoint.tree).metadata
    value = metadata.get(_TOKENS)
    if value is None or not is_sequence(value.content):
        return
    count, rows = len(value.content), checkpoint.config.vocabulary
    if count != rows and EMBEDDING_WEIGHT in checkpoint.tensors:
        found.add(
            _TOKENS,
            f"there are {count} tokens, and the embedding has {rows} rows; llama.cpp refuses such "
            "files",
        )
    for key in _BESIDE:
        beside = metadata.get(key)
        if beside is not None and is_sequence(beside.content) and len(beside.content) != count:
            found.add(key, f"has {len(beside.content)} elements for {count} tokens")


def _count_tokens(files: TokenizerFiles, model_type: str) -> tuple[int, int]:
    """Return the number of a tokenizer's own tokens, and the largest id of an added token plus 1.

    Each is 0 if there are none of these tokens. Raises `TokenizerError` if a file is damaged.
    """
    document = files.tokenizer
    if document is None:
        found = from_directory(files.directory, 0, model_type)
        return (0 if found is None else len(found.tokens)), 0
    model: Any = document.get("model")
    words: Any = model.get("vocab") if is_object(model) else None
    count = _end_of_ids(words.values()) if is_object(words) else len(words) if is_list(words) else 0
    added: Any = document.get("added_tokens")
    tokens: list[Any] = added if is_list(added) else []
    return count, _end_of_ids(token.get("id") for token in tokens if is_object(token))


def _end_of_ids(ids: Any) -> int:
    return 1 + max((each for each in ids if type(each) is int), default=-1)
