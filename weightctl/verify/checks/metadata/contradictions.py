"""Metadata that contradicts the checkpoint itself, without a reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.families.model import ARCHITECTURE
from weightctl.text.untyped import is_list, is_sequence
from weightctl.translate.tokenizer.record import TokenType
from weightctl.verify.checks.metadata.comparison import Compared, show_token
from weightctl.verify.checks.metadata.description import TOKENIZER_KEYS
from weightctl.verify.checks.metadata.special_tokens import DEFAULTS
from weightctl.verify.config_keys import find_spelling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.families import RecognizedModel
    from weightctl.translate.tokenizer import Tokenizer
    from weightctl.verify.checks.metadata.description import Description

__all__ = ["find_contradictions"]

_TYPES, _TOKENS = f"{TOKENIZER_KEYS}token_type", f"{TOKENIZER_KEYS}tokens"
_EOS = f"{TOKENIZER_KEYS}eos_token_id"
# The values by which tools mark an absent id, in various integer types.
_NONE = {-1, 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF}
# Ids that generation needs. Padding ids may be beyond the vocabulary of the training.
_NEEDED = {"bos_token_id", "eos_token_id", "decoder_start_token_id"}
# Families without an end-of-generation token.
_ENCODERS = {"bert"}


def find_contradictions(description: Description, checkpoint: RecognizedModel | None) -> Compared:
    """Return the faults of a tokenizer or a config that need no reference to detect.

    Only what no working model has is a problem.
    """
    found = Compared()
    if description.is_gguf:
        _check_ids_of_gguf(found, description)
        if description.refusal:
            found.add(_TOKENS, f"the tokenizer cannot be used: {description.refusal}")
    else:
        _check_ids_of_configs(found, description, checkpoint)
        if description.refusal:
            found.notes.append(f"the tokenizer cannot be stored in GGUF: {description.refusal}")
    if description.is_gguf and description.tokenizer is not None:
        _check_types(found, description, description.tokenizer)
        _check_end(found, description, description.tokenizer)
    if checkpoint is not None:
        _check_context(found, checkpoint)
    return found


def _check_ids_of_gguf(found: Compared, description: Description) -> None:
    tokens = description.metadata.get(_TOKENS)
    count = len(tokens.content) if tokens is not None and is_sequence(tokens.content) else 0
    for key, value in description.metadata.items():
        if not count or not (key.startswith(TOKENIZER_KEYS) and key.endswith("_token_id")):
            continue
        token: Any = value.content
        if isinstance(token, int) and token not in _NONE and not 0 <= token < count:
            found.add(key, f"is {token}, and there are {count:,} tokens")


def _check_ids_of_configs(
    found: Compared, description: Description, checkpoint: RecognizedModel | None
) -> None:
    if checkpoint is None:
        return
    rows = checkpoint.config.vocabulary
    documents = (
        ("config.json", description.text_config),
        ("generation_config.json", description.generation),
    )
    for name, document in documents:
        for key, content in document.items():
            if not key.endswith("_token_id"):
                continue
            for token in _find_beyond(content, rows):
                text = f"is {token} in {name}, and the embedding has {rows:,} rows"
                if key in _NEEDED:
                    found.add(key, text)
                else:
                    found.notes.append(f"`{key}` {text}")


def _find_beyond(content: Any, rows: int) -> Iterator[int]:
    for token in content if is_list(content) else [content]:
        if type(token) is int and token >= rows:
            yield token


def _check_types(found: Compared, description: Description, tokenizer: Tokenizer) -> None:
    """Find a vocabulary without token types, where special tokens are ordinary text."""
    kinds = {*tokenizer.types}
    if not kinds <= {0, int(TokenType.NORMAL)}:
        return
    special = dict.fromkeys(tokenizer.special.values())
    if not special:
        return
    shown = ", ".join(show_token(tokenizer, token) for token in [*special][:3])
    state = (
        "says that every token"
        if _TYPES in description.metadata
        else "is missing, so that every token"
    )
    found.add(
        _TYPES,
        f"{state} is ordinary text, including the special tokens: {shown}",
    )


def _check_end(found: Compared, description: Description, tokenizer: Tokenizer) -> None:
    """Find a generative model without an end token for which llama.cpp picks an ordinary one."""
    architecture = description.metadata.get(ARCHITECTURE)
    is_encoder = architecture is None or "bert" in str(architecture.content)
    stated = description.metadata.get(_EOS)
    if is_encoder or stated is not None or tokenizer.model not in DEFAULTS:
        return
    token = DEFAULTS[tokenizer.model].get("eos")
    if token is None:
        return
    is_there = token < len(tokenizer.tokens)
    is_ordinary = is_there and tokenizer.types[token] in {0, int(TokenType.NORMAL)}
    if not is_there or is_ordinary:
        text = f"is missing; llama.cpp uses token {show_token(tokenizer, token)} instead"
        found.add(_EOS, text)


def _check_context(found: Compared, checkpoint: RecognizedModel) -> None:
    """Find a context length that is shorter than the one that RoPE scaling extends."""
    scaling = getattr(checkpoint.config, "rope_scaling", None)
    context = checkpoint.config.context
    if scaling is not None and context < scaling.original_context:
        found.add(
            find_spelling(checkpoint, "context").key,
            f"is {context}, but its RoPE scaling extends a context of {scaling.original_context}",
        )
