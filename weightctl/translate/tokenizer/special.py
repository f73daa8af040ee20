"""Special tokens, and whether they surround a text, in both naming conventions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.translate.tokenizer.record import WORDS
from weightctl.translate.tokenizer.surroundings import Surroundings, read_surroundings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.translate.tokenizer.files import TokenizerFiles
    from weightctl.translate.tokenizer.record import Tokenizer
    from weightctl.translate.tokenizer.token_ids import TokenIds

__all__ = ["read_flags", "read_special", "to_config"]


def read_special(files: TokenizerFiles, ids: Mapping[str, int], given: TokenIds) -> dict[str, int]:
    """Return the ids of special tokens by GGUF's words, of a directory's files.

    tokenizer_config.json names the tokens. `given` is what the files of the model say, which counts
    where it names none.
    """
    texts = files.special_tokens()
    made: dict[str, int] = {}
    for name, word in WORDS.items():
        token = ids.get(texts.get(f"{name}_token", ""))
        token = given.first(name) if token is None else token
        if token is not None and token < len(ids):
            made[word] = token
    return made


def read_flags(
    files: TokenizerFiles, special: Mapping[str, int], ids: Mapping[str, int]
) -> dict[str, bool]:
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
        setting = files.config.get(flag)
        if isinstance(setting, bool) and not around.is_separated:
            made[flag] = setting
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
