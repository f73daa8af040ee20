"""Whether two checkpoints have the same special tokens, and end generation with the same ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.tokenizer.pre_names import DEFAULT, PRES
from weightctl.tokenizer.special import WORDS
from weightctl.verify.describing.compared import Compared, show_token
from weightctl.verify.describing.description import is_id, read_ends

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from weightctl.tokenizer import Tokenizer
    from weightctl.verify.describing.compared import Pair
    from weightctl.verify.describing.description import Description

__all__ = ["DEFAULTS", "compare_ends", "compare_flags", "compare_special"]

# The ids that llama.cpp takes where a file states none, by `tokenizer.ggml.model`
# (src/llama-vocab.cpp, `llama_vocab::impl::load`).
DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "gpt2": {"bos": 11, "eos": 11},
    "bert": {"bos": 101, "unknown": 100, "seperator": 102, "padding": 0, "mask": 103},
    "t5": {"eos": 1, "unknown": 2, "padding": 0},
}
# The same for `tokenizer.ggml.FLAG`.
_FLAGS: Mapping[str, Mapping[str, bool]] = {
    "llama": {"add_bos_token": True, "add_eos_token": False, "add_space_prefix": True},
    "gpt2": {"add_eos_token": False, "add_space_prefix": False},
    "bert": {"add_bos_token": True, "add_eos_token": False, "add_space_prefix": False},
    "t5": {"add_bos_token": False, "add_eos_token": True, "add_space_prefix": True},
}
# What ends generation in llama.cpp beside `eos`, `eot` and `eom`: other special tokens, and
# every token of such a text (`special_eog_ids` there).
_END_WORDS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
_END_TEXTS = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
}  # fmt: skip
# What config.json states beside the tokenizer's own files, which generation goes by.
_CONFIG_IDS = ("bos_token_id", "pad_token_id", "decoder_start_token_id")


def compare_special(pair: Pair) -> Compared:
    """Compare the ids of the tokens with a meaning of their own: bos, eos, unknown, padding ..."""
    found = Compared()
    own, other = pair.tokenizer, pair.reference
    known = {*WORDS.values()} if pair.is_across else {*own.special, *other.special}
    for word in dict.fromkeys((*WORDS.values(), *own.special, *other.special)):
        token, wanted = _special(pair.own, own, word), _special(pair.other, other, word)
        if token == wanted or word not in known:
            continue  # what only GGUF has a word for is compared as what ends generation
        where, name = pair.own.token_key(word), word.replace("seperator", "separator")
        if wanted is None:
            found.notes.append(f"`{where}` is {_shown(own, token)}, and the reference states none")
        elif token is None and _may_lack(pair, word):
            found.notes.append(
                f"`{where}` is not stated, and is {_shown(other, wanted)} in the reference"
            )
        else:
            state = "not stated" if token is None else show_token(own, token)
            if token is not None and word not in own.special:
                state = f"not stated, for which llama.cpp takes {state}"
            found.add(
                where,
                f"the {name} token is {state}, and {show_token(other, wanted)} in the reference",
            )
    for key in _CONFIG_IDS:
        _compare_config_id(found, pair, key)
    return found


def _shown(tokenizer: Tokenizer, token: int | None) -> str:
    return "none" if token is None else show_token(tokenizer, token)


def _special(description: Description, tokenizer: Tokenizer, word: str) -> int | None:
    token = tokenizer.special.get(word)
    if token is None and description.is_gguf:
        token = DEFAULTS.get(tokenizer.model, {}).get(word)
        if token is not None and token >= len(tokenizer.tokens):
            return None
    return token


def _may_lack(pair: Pair, word: str) -> bool:
    """Whether other tools leave a token out that nothing is computed with."""
    return pair.is_across and word not in {"bos", "eos"}


def _compare_config_id(found: Compared, pair: Pair, key: str) -> None:
    if pair.is_across or pair.own.is_gguf:
        return
    ids: tuple[Any, Any] = (pair.own.text_config.get(key), pair.other.text_config.get(key))
    token, wanted = ids
    if is_id(token) and is_id(wanted) and token != wanted:
        if any(problem.where == key.removesuffix("_id") for problem in found.problems):
            return  # the tokenizer's own files say the same
        found.add(
            key,
            f"is {show_token(pair.tokenizer, token)}, and {show_token(pair.reference, wanted)} in "
            "the reference's config.json",
        )


def compare_ends(pair: Pair) -> Compared:
    """Compare which tokens end generation.

    One that the reference has and the model lacks lets it run on; that is a problem. One more is a
    problem where both have configs of transformers, and else may be what llama.cpp adds itself.
    """
    found = Compared()
    own, other = _ends(pair.own, pair.tokenizer), _ends(pair.other, pair.reference)
    if other is None:
        return found
    where = "tokenizer.ggml.eos_token_id" if pair.own.is_gguf else "eos_token_id"
    if own is None:
        if pair.own.is_gguf or not pair.is_across:
            ends = _show_ends(pair.reference, other)
            found.add(where, f"no token ends generation, and {ends} in the reference")
        return found
    implied = _implied(pair.own, pair.tokenizer)
    may_have = implied | _implied(pair.other, pair.reference)
    missing = [token for token in other if token not in {*own} | implied]
    more = [token for token in own if token not in {*other} | may_have]
    text = (
        f"generation ends with {_show_ends(pair.tokenizer, own)}, and with "
        f"{_show_ends(pair.reference, other)} in the reference"
    )
    if missing or (more and not pair.is_across and not pair.own.is_gguf):
        found.add(where, text)
    elif more:
        found.notes.append(text)
    return found


def _ends(description: Description, tokenizer: Tokenizer) -> tuple[int, ...] | None:
    if not description.is_gguf:
        return read_ends(description)
    if tokenizer.model == "bert":
        return None
    words = (_special(description, tokenizer, word) for word in _END_WORDS)
    return tuple(dict.fromkeys(token for token in words if token is not None)) or None


def _implied(description: Description, tokenizer: Tokenizer) -> set[int]:
    """Return the tokens that llama.cpp ends generation with for their texts."""
    if not description.is_gguf:
        return set()
    return {token for token, text in enumerate(tokenizer.tokens) if text in _END_TEXTS}


def _show_ends(tokenizer: Tokenizer, ends: Iterable[int]) -> str:
    return " or ".join(show_token(tokenizer, token) for token in ends) or "no token"


def compare_flags(pair: Pair) -> Compared:
    """Compare what is put around texts: `add_bos_token`, `add_space_prefix` and their like."""
    found = Compared()
    own, other = pair.tokenizer, pair.reference
    for flag in dict.fromkeys((*own.flags, *other.flags)):
        value, wanted = _flag(own, flag), _flag(other, flag)
        if value == wanted:
            continue
        where = pair.own.place(flag) if pair.own.is_gguf else flag
        if value is None or wanted is None:
            missing = "not stated" if value is None else _show_flag(value)
            there = "not stated" if wanted is None else _show_flag(wanted)
            found.notes.append(f"`{where}` is {missing}, and {there} in the reference")
        else:
            found.add(where, f"is {_show_flag(value)}, and {_show_flag(wanted)} in the reference")
    return found


def _flag(tokenizer: Tokenizer, flag: str) -> bool | None:
    value = tokenizer.flags.get(flag)
    if value is not None:
        return value
    if flag == "add_bos_token" and tokenizer.model == "gpt2":
        pre = PRES.get(tokenizer.pre or DEFAULT)
        return None if pre is None else pre.adds_bos
    return _FLAGS.get(tokenizer.model, {}).get(flag)


def _show_flag(value: bool) -> str:
    return "true" if value else "false"
