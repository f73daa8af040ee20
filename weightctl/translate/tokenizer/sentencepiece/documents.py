"""Writing of tokenizer.json for SentencePiece tokenizers.

They are BPE with scores ("llama"), BPE with merges ("gemma4"), or unigram ("t5").
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from weightctl.errors import TokenizerError
from weightctl.translate.tokenizer.bpe import check_merges
from weightctl.translate.tokenizer.files import KEEP_HINT
from weightctl.translate.tokenizer.post_processor import to_template
from weightctl.translate.tokenizer.record import TokenType
from weightctl.translate.tokenizer.sentencepiece.added_tokens import SPACE
from weightctl.translate.tokenizer.sentencepiece.normalizers import (
    AT_ENDS,
    BEFORE_TEXT,
    RUNS,
    Charsmap,
)
from weightctl.translate.tokenizer.sentencepiece.tokens import merges_from_scores

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.translate.tokenizer.record import Tokenizer

# llama.cpp's default ids.
_ROLES = {"unknown": 0, "bos": 1, "eos": 2}
# The control tokens of phi3 after which llama.cpp keeps spaces (it selects them by name).
_PHI3_PLAIN = {"<unk>", "<s>", "<|endoftext|>"}


def to_tokenizer_json(tokenizer: Tokenizer, model_type: str) -> dict[str, Any]:
    """Return a tokenizer.json that splits text into the same ids as llama.cpp.

    Raises `TokenizerError` if the tokenizer has no scores, or if two tokens are the same.
    """
    if tokenizer.scores is None:
        raise TokenizerError("the vocabulary has no `tokenizer.ggml.scores`", hint=KEEP_HINT)
    spelled = _spell_tokens(tokenizer)
    merges = merges_from_scores(_find_joined_scores(spelled, tokenizer.types, tokenizer.scores))
    return _make_bpe_json(tokenizer, spelled, merges, model_type)


def to_merged_json(tokenizer: Tokenizer, model_type: str) -> dict[str, Any]:
    """Return a tokenizer.json with the merges of a tokenizer.

    Raises `TokenizerError` if the tokenizer has no merges, or if one is not a pair of tokens.
    """
    if tokenizer.merges is None:
        raise TokenizerError("the vocabulary has no `tokenizer.ggml.merges`", hint=KEEP_HINT)
    merges = check_merges(tokenizer.merges, frozenset(tokenizer.tokens))
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    return _make_bpe_json(tokenizer, list(tokenizer.tokens), pairs, model_type)


def _make_bpe_json(
    tokenizer: Tokenizer,
    spelled: list[str],
    merges: Sequence[tuple[str, str]],
    model_type: str,
) -> dict[str, Any]:
    unknown = _role(tokenizer, "unknown")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _make_added_entries(tokenizer, spelled, model_type),
        "normalizer": _normalizer(tokenizer),
        "pre_tokenizer": _pre_tokenizer(tokenizer),
        "post_processor": _template(tokenizer, add_bos=True, add_eos=False),
        "decoder": _decoder(tokenizer),
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
            "merges": [list(pair) for pair in merges],
        },
    }


def _role(tokenizer: Tokenizer, word: str) -> int | None:
    """Return the id of the token of a role (`bos`, `eos` or `unknown`); None if there is none."""
    found = tokenizer.special.get(word)
    if found is not None or tokenizer.model != "llama":
        return found
    index = _ROLES[word]
    marked = {TokenType.CONTROL, TokenType.UNKNOWN}
    return index if index < len(tokenizer.types) and tokenizer.types[index] in marked else None


def _template(tokenizer: Tokenizer, *, add_bos: bool, add_eos: bool) -> dict[str, Any] | None:
    """Return the template with bos and eos; the arguments are the defaults of the flags."""
    first = _role(tokenizer, "bos") if tokenizer.flags.get("add_bos_token", add_bos) else None
    last = _role(tokenizer, "eos") if tokenizer.flags.get("add_eos_token", add_eos) else None
    return to_template(
        *(None if index is None else (tokenizer.tokens[index], index) for index in (first, last))
    )


def _make_added_entries(
    tokenizer: Tokenizer, spelled: list[str], model_type: str
) -> list[dict[str, Any]]:
    """Return tokenizer.json's `added_tokens`, which are searched for in the original text."""
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
    """Return the tokens in the spelling of tokenizer.json.

    In GGUF, user-defined runs of spaces are spelled as in a text. In Hugging Face, they are spelled
    as after the normalizer, and merges create each of them from shorter ones.
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
    """Return the scores of the tokens that take part in joins, as input or result."""
    made: dict[str, float] = {}
    for text, kind, score in zip(spelled, types, scores, strict=True):
        if kind in {TokenType.NORMAL, TokenType.UNUSED}:
            made[text] = score
        elif kind == TokenType.USER_DEFINED and not text.strip(SPACE):
            made[text] = float("inf")  # SentencePiece finds these before it joins tokens
    return made


def _normalizer(tokenizer: Tokenizer) -> dict[str, Any]:
    marked = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    if not tokenizer.flags.get("add_space_prefix", True):
        return marked
    return {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, marked]}


def _pre_tokenizer(tokenizer: Tokenizer) -> dict[str, Any] | None:
    if tokenizer.flags.get("add_space_prefix", True):
        return None
    # Gemma's tokenizer.json has this step. It has no effect, because the normalizer leaves no
    # spaces.
    split = {"pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    return {"type": "Split", **split}


def _decoder(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the decoder for tokens if some of them are bytes."""
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if tokenizer.flags.get("add_space_prefix", True):
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def to_unigram_json(tokenizer: Tokenizer, model_type: str) -> dict[str, Any]:
    """Return a tokenizer.json that splits text into the same ids as llama.cpp.

    Raises `TokenizerError` if the tokenizer has no scores, or if its compiled normalizer is
    damaged.
    """
    if tokenizer.scores is None:
        raise TokenizerError("the vocabulary has no `tokenizer.ggml.scores`", hint=KEEP_HINT)
    spelled = list(tokenizer.tokens)
    removes = tokenizer.flags.get("remove_extra_whitespaces", False)
    # If llama.cpp removes extra spaces, it adds one before each word.
    prefix = removes or tokenizer.flags.get("add_space_prefix", False)
    scheme = "always" if prefix else "never"
    spaces = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False}
    has_bytes = TokenType.BYTE in tokenizer.types
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _make_added_entries(tokenizer, spelled, model_type),
        "normalizer": _unigram_normalizer(tokenizer, removes=removes, prefix=prefix),
        "pre_tokenizer": spaces,
        "post_processor": _template(tokenizer, add_bos=False, add_eos=True),
        "decoder": _decoder(tokenizer) if has_bytes else dict(spaces),
        "model": {
            "type": "Unigram",
            "unk_id": _role(tokenizer, "unknown"),
            "vocab": [list(pair) for pair in zip(spelled, _scores(tokenizer), strict=True)],
            "byte_fallback": has_bytes,
        },
    }


def _scores(tokenizer: Tokenizer) -> Iterator[float]:
    """Yield the scores, raised so that no score is below that of the lowest normal token.

    The score of an unknown character is relative to the lowest score; llama.cpp only considers
    normal tokens for it.
    """
    scores = tokenizer.scores or ()
    pairs = list(zip(scores, tokenizer.types, strict=True))
    lowest = min((score for score, kind in pairs if kind == TokenType.NORMAL), default=0.0)
    for score, kind in pairs:
        yield score if kind == TokenType.NORMAL else max(score, lowest)


def _unigram_normalizer(
    tokenizer: Tokenizer, *, removes: bool, prefix: bool
) -> dict[str, Any] | None:
    steps: list[dict[str, Any]] = []
    if tokenizer.charsmap:
        Charsmap(tokenizer.charsmap, "the GGUF")
        written = base64.b64encode(tokenizer.charsmap).decode("ascii")
        steps.append({"type": "Precompiled", "precompiled_charsmap": written})
    if removes:
        steps += [_replace(AT_ENDS, ""), _replace(RUNS, " ")]
    elif prefix:
        steps.append(_replace(BEFORE_TEXT, SPACE))
    return {"type": "Sequence", "normalizers": steps} if steps else None


def _replace(regex: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": regex}, "content": content}
