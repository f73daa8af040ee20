"""Which tokens are special, and whether they surround a text: in the words of both dialects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.tokenizer.surroundings import Surroundings, read_surroundings
from weightctl.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.tokenizer.files import Files
    from weightctl.tokenizer.record import Tokenizer

__all__ = ["WORDS", "read_flags", "read_special", "to_config"]

# What tokenizer_config.json calls `tokenizer.ggml.WORD_token_id`, in llama.cpp's order.
WORDS = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "sep": "seperator",
    "pad": "padding",
    "cls": "cls",
    "mask": "mask",
}


def read_special(files: Files, ids: Mapping[str, int]) -> dict[str, int]:
    """Return the ids of special tokens by GGUF's words, of a directory's files.

    tokenizer_config.json names the tokens; what it leaves out config.json may give by number.
    """
    texts = files.special_tokens()
    config = files.document("config.json") or {}
    nested = config.get("text_config")
    configs = (config, nested if is_object(nested) else {})
    made: dict[str, int] = {}
    for name, word in WORDS.items():
        token = ids.get(texts.get(f"{name}_token", ""))
        for each in configs:
            if token is None:
                token = each.get(f"{name}_token_id")
        if isinstance(token, int) and not isinstance(token, bool) and 0 <= token < len(ids):
            made[word] = token
    return made


def read_flags(files: Files, special: Mapping[str, int], ids: Mapping[str, int]) -> dict[str, bool]:
    """Return `add_bos_token`, `add_eos_token` and `add_sep_token` of a directory's files.

    tokenizer.json's post_processor says what happens; where tokenizer_config.json speaks, it is
    what transformers goes by.
    """
    around = read_surroundings(files.tokenizer or {}) or Surroundings()
    starts = {special.get(word) for word in ("bos", "cls")}
    ends = {special.get(word) for word in ("eos", "seperator")}
    made = {
        "add_bos_token": around.first is not None and ids.get(around.first) in starts,
        "add_eos_token": around.last is not None and ids.get(around.last) in ends,
    }
    for flag in made:
        told = files.config.get(flag)
        if isinstance(told, bool) and not around.is_separated:
            made[flag] = told
    if around.is_separated:
        made["add_sep_token"] = True
    return made


def to_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the entries of tokenizer_config.json that name special tokens."""
    made: dict[str, Any] = {}
    for name, word in WORDS.items():
        token = tokenizer.special.get(word)
        made[f"{name}_token"] = None if token is None else tokenizer.tokens[token]
    # Named twice they would be what the model begins and ends with twice.
    for name, same in (("bos", "cls"), ("eos", "sep")):
        if tokenizer.model == "bert" and made[f"{name}_token"] == made[f"{same}_token"]:
            made[f"{name}_token"] = None
    return {key: value for key, value in made.items() if value is not None}
