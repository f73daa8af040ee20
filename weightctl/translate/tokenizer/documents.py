"""A tokenizer as Hugging Face's files say it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from weightctl.errors import TokenizerError
from weightctl.system.registry import load
from weightctl.translate.tokenizer import WRITERS, chat_templates, special
from weightctl.translate.tokenizer.added import is_padding
from weightctl.translate.tokenizer.files import KEEP_HINT
from weightctl.translate.tokenizer.remainder import config_of, restore_document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.translate.tokenizer.record import Tokenizer

__all__ = ["to_documents"]

# The class that loads tokenizer.json as it is, in transformers 4 and (as TokenizersBackend) 5.
_CLASS = "PreTrainedTokenizerFast"
_CONTEXTS = ("max_position_embeddings", "n_positions")


def to_documents(
    tokenizer: Tokenizer, model_type: str, config: Mapping[str, Any]
) -> dict[str, bytes]:
    """Return the files of a tokenizer by name: tokenizer.json, tokenizer_config.json ...

    `config` is the content of config.json. Raises `TokenizerError` for a model that tokenizer.json
    has no form for, or whose parts contradict each other.
    """
    if tokenizer.model not in WRITERS:
        raise TokenizerError(
            f"`tokenizer.ggml.model` is `{tokenizer.model}`, which cannot be converted to "
            f"tokenizer.json",
            hint=f"supported tokenizer types: {', '.join(WRITERS)}; {KEEP_HINT}",
        )
    trimmed = _drop_padding(tokenizer)
    _check_unique(trimmed)
    document = restore_document(trimmed, load(WRITERS[tokenizer.model])(trimmed, model_type))
    return {
        "tokenizer.json": _format_json(document),
        "tokenizer_config.json": _format_json(
            {**(config_of(trimmed) or _config(trimmed, config)), **_templates(trimmed)}, indent=2
        ),
        **chat_templates.to_documents(tokenizer.chat_templates),
    }


def _drop_padding(tokenizer: Tokenizer) -> Tokenizer:
    count = len(tokenizer.tokens)
    while count and is_padding(tokenizer, count - 1):
        count -= 1
    return tokenizer.first(count)


def _check_unique(tokenizer: Tokenizer) -> None:
    if len({*tokenizer.tokens}) == len(tokenizer.tokens):
        return
    seen: dict[str, int] = {}
    for token, text in enumerate(tokenizer.tokens):
        if seen.setdefault(text, token) != token:
            raise TokenizerError(
                f"tokens {seen[text]} and {token} have the same text {text!r:.200}",
                hint=f"`tokenizer.ggml.tokens` is damaged; {KEEP_HINT}",
            )


def _config(tokenizer: Tokenizer, config: Mapping[str, Any]) -> dict[str, Any]:
    made = special.to_config(tokenizer)
    separates = "add_sep_token" in tokenizer.flags or tokenizer.model == "bert"
    for flag in ("add_bos_token", "add_eos_token"):
        # transformers makes a post_processor of its own of these, which keeps no two texts apart.
        if flag in tokenizer.flags and not separates:
            made[flag] = tokenizer.flags[flag]
    # It takes spaces out before punctuation: what BPE decodes is already the text.
    made["clean_up_tokenization_spaces"] = tokenizer.model == "bert"
    length = next((config[key] for key in _CONTEXTS if isinstance(config.get(key), int)), None)
    if length is not None:
        made["model_max_length"] = length
    if tokenizer.model != "bert":  # models that write text take no kinds of segments
        made["model_input_names"] = ["input_ids", "attention_mask"]
    made["tokenizer_class"] = _CLASS
    return made


def _templates(tokenizer: Tokenizer) -> dict[str, Any]:
    templates = chat_templates.to_config(tokenizer.chat_templates)
    return {} if templates is None else {"chat_template": templates}


def _format_json(document: Any, indent: int | None = None) -> bytes:
    try:
        return f"{json.dumps(document, ensure_ascii=False, indent=indent)}\n".encode()
    except RecursionError as error:
        raise TokenizerError(
            "the tokenizer JSON in the GGUF metadata is nested too deeply", hint=KEEP_HINT
        ) from error
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"a token or a chat template is not valid Unicode text: {error}",
            hint=f"a faulty tool wrote the file; {KEEP_HINT}",
        ) from error
