"""The tokenizer.json of a SentencePiece tokenizer that GGUF calls "llama": BPE by scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.errors import TokenizerError
from weightctl.translate.tokenizer.files import KEEP_HINT
from weightctl.translate.tokenizer.record import TokenType
from weightctl.translate.tokenizer.sentencepiece.added_tokens import SPACE
from weightctl.translate.tokenizer.sentencepiece.merges import merges_from_scores
from weightctl.translate.tokenizer.surroundings import to_template

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.translate.tokenizer.record import Tokenizer

__all__ = ["decoder", "make_added_entries", "role", "template", "to_tokenizer_json"]

# What llama.cpp takes where a file says nothing.
_ROLES = {"unknown": 0, "bos": 1, "eos": 2}
# The control tokens of phi3 after which spaces go, all but these (llama.cpp knows them by name).
_PHI3_PLAIN = {"<unk>", "<s>", "<|endoftext|>"}


def to_tokenizer_json(tokenizer: Tokenizer, model_type: str) -> dict[str, Any]:
    """Return a tokenizer.json that splits text into the ids that llama.cpp does.

    Raises `TokenizerError` if the tokenizer has no scores, or two tokens are the same.
    """
    if tokenizer.scores is None:
        raise TokenizerError("the vocabulary has no `tokenizer.ggml.scores`", hint=KEEP_HINT)
    spelled = _spell_tokens(tokenizer)
    unknown = role(tokenizer, "unknown")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": make_added_entries(tokenizer, spelled, model_type),
        "normalizer": _normalizer(tokenizer),
        "pre_tokenizer": _pre_tokenizer(tokenizer),
        "post_processor": template(tokenizer, add_bos=True, add_eos=False),
        "decoder": decoder(tokenizer),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None if unknown is None else spelled[unknown],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": TokenType.BYTE in tokenizer.types,
            "ignore_merges": False,
            "vocab": {text: index for index, text in enumerate(spelled)},
            "merges": merges_from_scores(
                _find_joined_scores(spelled, tokenizer.types, tokenizer.scores)
            ),
        },
    }


def role(tokenizer: Tokenizer, word: str) -> int | None:
    """Return the id of the token of a role, `bos`, `eos` or `unknown`, None if there is none."""
    found = tokenizer.special.get(word)
    if found is not None or tokenizer.model != "llama":
        return found
    index = _ROLES[word]
    marked = {TokenType.CONTROL, TokenType.UNKNOWN}
    return index if index < len(tokenizer.types) and tokenizer.types[index] in marked else None


def template(tokenizer: Tokenizer, *, add_bos: bool, add_eos: bool) -> dict[str, Any] | None:
    """Return what puts bos and eos around a text; the arguments hold where no flag says it."""
    first = role(tokenizer, "bos") if tokenizer.flags.get("add_bos_token", add_bos) else None
    last = role(tokenizer, "eos") if tokenizer.flags.get("add_eos_token", add_eos) else None
    return to_template(
        *(None if index is None else (tokenizer.tokens[index], index) for index in (first, last))
    )


def make_added_entries(
    tokenizer: Tokenizer, spelled: list[str], model_type: str
) -> list[dict[str, Any]]:
    """Return tokenizer.json's `added_tokens`: those that are looked for in the text as it is."""
    special = {TokenType.CONTROL, TokenType.UNKNOWN}
    return [
        {
            "id": index,
            "content": spelled[index],
            "single_word": False,
            "lstrip": False,
            "rstrip": model_type == "phi3" and spelled[index] not in _PHI3_PLAIN,
            "normalized": False,
            "special": kind in special,
        }
        for index, kind in enumerate(tokenizer.types)
        if kind in special or kind == TokenType.USER_DEFINED
    ]


def _spell_tokens(tokenizer: Tokenizer) -> list[str]:
    """Return the tokens as tokenizer.json spells them.

    GGUF has runs of spaces that are user defined as they stand in a text. Hugging Face has them as
    they stand after the normalizer, where merges make each of them out of shorter ones.
    """
    tokens = tokenizer.tokens
    runs = {
        token
        for token, kind in zip(tokens, tokenizer.types, strict=True)
        if kind == TokenType.USER_DEFINED and len(token) > 1 and not token.strip(" ")
    }
    there = {*tokens}
    reached = there | {SPACE * len(run) for run in runs}
    made = [
        SPACE * len(token)
        if token in runs and SPACE * len(token) not in there and SPACE * (len(token) - 1) in reached
        else token
        for token in tokens
    ]
    if len({*made}) != len(made):
        raise TokenizerError("two tokens of the vocabulary are the same", hint=KEEP_HINT)
    return made


def _find_joined_scores(
    spelled: Sequence[str], types: Sequence[int], scores: Sequence[float]
) -> dict[str, float]:
    """Return the scores of the tokens that others are joined to, or are joined out of."""
    made: dict[str, float] = {}
    for text, kind, score in zip(spelled, types, scores, strict=True):
        if kind in {TokenType.NORMAL, TokenType.UNUSED}:
            made[text] = score
        elif kind == TokenType.USER_DEFINED and not text.strip(SPACE):
            made[text] = float("inf")  # SentencePiece takes these before it joins anything
    return made


def _normalizer(tokenizer: Tokenizer) -> dict[str, Any]:
    marked = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    if not tokenizer.flags.get("add_space_prefix", True):
        return marked
    return {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, marked]}


def _pre_tokenizer(tokenizer: Tokenizer) -> dict[str, Any] | None:
    if tokenizer.flags.get("add_space_prefix", True):
        return None
    # Gemma's has it. It changes nothing, since no space comes through the normalizer.
    split = {"pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    return {"type": "Split", **split}


def decoder(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the decoder for tokens if some of them are bytes."""
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if tokenizer.flags.get("add_space_prefix", True):
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}
