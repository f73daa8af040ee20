"""Tokens that end generation.

transformers stops at each id of the list `eos_token_id`. llama.cpp stops at the ids of some keys of
GGUF, and at tokens with certain texts. Source: `llama_vocab::impl::load` in llama.cpp's
`llama-vocab.cpp`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.errors import TokenizerError
from weightctl.text.wording import join_names
from weightctl.translate.tokenizer.files import KEEP_HINT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.translate.tokenizer.record import Tokenizer

__all__ = ["DEFAULT_ENDS", "describe_assumed_end", "list_ends", "stops", "with_ends"]

# What llama.cpp takes for the end where no key names it, by `tokenizer.ggml.model`.
DEFAULT_ENDS = {"llama": 2, "gpt2": 11, "t5": 1}
# The end of a turn, where the key `eot` does not name it.
_TURN_ENDS = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
    "<EOT>", "_<EOT>", "[EOT]", "<end_of_utterance>",
})  # fmt: skip
_END_TEXTS = _TURN_ENDS | {
    "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "</s>", "<|eom_id|>", "[EOS]", "<eos>",
    "<turn|>", "<|tool_response>",
}  # fmt: skip
# Tokens that fill a gap in a text, by their keys. llama.cpp also stops at the last three.
_FILL_TEXTS = {
    "fim_pre": ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<PRE>", "<|code_prefix|>",
                "<|prefix|>"),
    "fim_suf": ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<SUF>", "<|code_suffix|>",
                "<|suffix|>"),
    "fim_mid": ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<MID>", "<|code_middle|>",
                "<|middle|>"),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}  # fmt: skip
_OLD_FILL_WORDS = ("prefix", "suffix", "middle")
_END_WORDS = ("eos", "eot", "eom")
_FILL_ENDS = ("fim_pad", "fim_rep", "fim_sep")
_KNOWN = _END_TEXTS.union(*_FILL_TEXTS.values())
_MOST_NAMED = 8


def stops(tokenizer: Tokenizer) -> frozenset[int]:
    """Return the tokens at which llama.cpp ends generation, with the existing keys."""
    ids = _ids(tokenizer)
    named = {word: tokenizer.special[word] for word in _END_WORDS if word in tokenizer.special}
    default = _default(tokenizer)
    if default is not None:
        named.setdefault("eos", default)
    ends = {*named.values(), *(ids[text] for text in _END_TEXTS if text in ids)}
    for word in _FILL_ENDS:
        by_text = [ids[text] for text in _FILL_TEXTS[word] if text in ids]
        found = [tokenizer.special[word]] if word in tokenizer.special else by_text
        ends |= {*found} if len(found) == 1 else set()  # of several texts it takes any
    texts = {tokenizer.tokens[token]: token for token in ends}
    calls = texts.keys() & {"<|call|>", "<|calls|>"}
    if calls and texts.keys() & {"<|return|>", "<|flush|>"}:
        ends.discard(texts.get("<|end|>", -1))  # it ends parts of a message there
    if "<|tool_response>" in texts:
        ends.discard(texts.get("</s>", -1))
    return frozenset(ends)


def with_ends(tokenizer: Tokenizer, directory: str) -> Tokenizer:
    """Return a tokenizer whose keys make llama.cpp stop at all of its `ends`.

    Raises `TokenizerError` that names the tokens that GGUF has no key for.
    """
    if not tokenizer.ends or tokenizer.model == "bert":
        return tokenizer
    known = stops(tokenizer)
    left = [token for token in tokenizer.ends if token not in known]
    special = {**tokenizer.special, **dict(zip(_free_words(tokenizer), left, strict=False))}
    made = replace(tokenizer, special=special)
    lost = [token for token in tokenizer.ends if token not in stops(made)]
    if lost:
        names = [f"{token} ({tokenizer.tokens[token]!r:.60})" for token in lost]
        count = len(tokenizer.ends)
        raise TokenizerError(
            f"{directory}: `eos_token_id` has {count} ids, but GGUF has no key for "
            f"{join_names(names, _MOST_NAMED)}: llama.cpp would not stop at these tokens",
            hint="remove these ids from `eos_token_id` in generation_config.json and "
            "config.json, and give their texts to llama.cpp as stop strings "
            f"(`--reverse-prompt`); {KEEP_HINT}",
        )
    return made


def describe_assumed_end(tokenizer: Tokenizer) -> str:
    """Return a note where no end is given and llama.cpp takes its default; empty if one is."""
    default = _default(tokenizer)
    if "eos" in tokenizer.special or default is None:
        return ""
    return (
        "no `eos_token` or `eos_token_id` defines the end of generation: llama.cpp stops "
        f"at its default, token {default} ({tokenizer.tokens[default]!r:.60})"
    )


def list_ends(tokenizer: Tokenizer) -> list[int]:
    """Return the tokens at which transformers is to end generation, as llama.cpp does.

    Without a list they are those of the keys, then those that llama.cpp recognizes by their texts.
    Tokens that fill a gap are not among them: nothing but a request to fill one makes them.
    """
    if tokenizer.ends:
        return list(tokenizer.ends)
    words = _END_WORDS if _fills_gaps(tokenizer) else (*_END_WORDS, *_FILL_ENDS)
    named = [tokenizer.special[word] for word in words if word in tokenizer.special]
    ids = _ids(tokenizer)
    by_text = sorted(ids[text] for text in _END_TEXTS if text in ids)
    ends = stops(tokenizer)
    return [token for token in dict.fromkeys((*named, *by_text)) if token in ends]


def _free_words(tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the keys that can make llama.cpp stop at one more token each."""
    ids = _ids(tokenizer)
    # A token that llama.cpp recognizes as the end of a turn stays that as long as possible.
    words = ["eom", "eot"] if _TURN_ENDS & ids.keys() else ["eot", "eom"]
    if not _fills_gaps(tokenizer):
        words += _FILL_ENDS
    yield from (word for word in words if word not in tokenizer.special)


def _fills_gaps(tokenizer: Tokenizer) -> bool:
    """Whether the model has tokens to fill a gap in a text with."""
    ids = _ids(tokenizer)
    words = (*list(_FILL_TEXTS)[:3], *_OLD_FILL_WORDS)
    is_named = any(word in tokenizer.special for word in words)
    return is_named or any(text in ids for texts in _FILL_TEXTS.values() for text in texts)


def _ids(tokenizer: Tokenizer) -> dict[str, int]:
    return {text: token for token, text in enumerate(tokenizer.tokens) if text in _KNOWN}


def _default(tokenizer: Tokenizer) -> int | None:
    """Return the end that llama.cpp takes where no key names one, None if it takes none."""
    default = DEFAULT_ENDS.get(tokenizer.model)
    return default if default is not None and default < len(tokenizer.tokens) else None
