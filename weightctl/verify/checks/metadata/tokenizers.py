"""Compares two tokenizers: vocabularies, special tokens, flags, rules and chat templates."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from weightctl.text.untyped import is_list, is_object
from weightctl.text.wording import join_names
from weightctl.translate.tokenizer.added import is_padding
from weightctl.translate.tokenizer.pre_names import DEFAULT, PRES
from weightctl.translate.tokenizer.record import WORDS, TokenType
from weightctl.translate.tokenizer.template_syntax import find_syntax_error
from weightctl.translate.tokenizer.token_ids import stops
from weightctl.verify.checks.metadata.description import (
    TOKENIZER_KEYS,
    first_examples,
    is_id,
    quote,
    read_ends,
    show_token,
    state_differences,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from weightctl.translate.tokenizer import Tokenizer
    from weightctl.verify.checks.metadata.description import Description, TokenizerPair
    from weightctl.verify.results import Findings


# llama.cpp merges the pair with the highest score, so only the order of the scores matters.
_BY_ORDER = "llama"
_SCORED = {_BY_ORDER, "t5", "Unigram"}
_MERGED = {"gpt2", "gemma4", "BPE"}
# The types that are ordinary text in encoding. Other types differ in how tokens are shown, and in
# whether text may contain them; tools that write GGUF use them differently.
_ORDINARY = {int(TokenType.NORMAL), 0}
_BYTE, _UNUSED = int(TokenType.BYTE), int(TokenType.UNUSED)
# The rounding of float32, in which GGUF stores scores.
_ROUNDING = 1e-6


def compare_tokens(found: Findings, pair: TokenizerPair) -> None:
    """Compare the texts of tokens by id; tokens that only pad the vocabulary are ignored."""
    own, other = pair.tokenizer, pair.reference
    where = pair.own.place("tokens")
    if own.tokens != other.tokens:
        _compare_texts(found, where, own, other)
        _compare_counts(found, where, own, other)


def _compare_texts(found: Findings, where: str, own: Tokenizer, other: Tokenizer) -> None:
    places: Sequence[int] = [
        place
        for place, (text, wanted) in enumerate(zip(own.tokens, other.tokens, strict=False))
        if text != wanted and not (_is_padding(own, place) and _is_padding(other, place))
    ]
    if not places:
        return
    examples = [
        f"token {show_token(own, place)} is {quote(other.tokens[place])} in the reference"
        for place in first_examples(places)
    ]
    texts = sorted(own.tokens[place] for place in places)
    is_reordered = texts == sorted(other.tokens[place] for place in places)
    text = state_differences(examples, len(places))
    if is_reordered:
        what = "are swapped" if len(places) == 2 else ("are in another order than in the reference")
        text = f"{len(places):,} tokens {what}: {text}"
    found.add(where, text)


def _compare_counts(found: Findings, where: str, own: Tokenizer, other: Tokenizer) -> None:
    count, wanted = len(own.tokens), len(other.tokens)
    longer = own if count > wanted else other
    places: Sequence[int] = [
        place
        for place in range(min(count, wanted), max(count, wanted))
        if not _is_padding(longer, place)
    ]
    if not places:
        return
    shown = [f"token {show_token(longer, place)}" for place in first_examples(places)]
    what = "not in the reference" if longer is own else "missing, and in the reference"
    found.add(
        where,
        f"the vocabulary has {count:,} tokens here and {wanted:,} in the reference; {what}: "
        f"{state_differences(shown, len(places))}",
    )


def _is_padding(tokenizer: Tokenizer, place: int) -> bool:
    return tokenizer.types[place] == _UNUSED or is_padding(tokenizer, place)


def compare_types(found: Findings, pair: TokenizerPair) -> None:
    """Compare the types of the tokens that have the same id and text in both vocabularies.

    If a checkpoint is in GGUF, types that do not change the encoding of texts are notes.
    """
    own, other = pair.tokenizer, pair.reference
    if own.types == other.types:
        return
    changes: dict[tuple[int, int], list[int]] = {}
    texts = zip(own.tokens, other.tokens, strict=False)
    for place, (text, wanted) in enumerate(texts):
        change = own.types[place], other.types[place]
        if text == wanted and change[0] != change[1] and not {*change} <= _ORDINARY:
            changes.setdefault(change, []).append(place)
    for (kind, wanted_kind), places in changes.items():
        shown = [f"token {show_token(own, place)}" for place in first_examples(places)]
        examples = state_differences(shown, len(places))
        be = "is" if len(places) == 1 else "are"
        text = (
            f"{examples} {be} of type {_name_type(kind)} here and {_name_type(wanted_kind)} "
            "in the reference"
        )
        are_configs = not pair.own.is_gguf and not pair.other.is_gguf
        matters = (kind in _ORDINARY) != (wanted_kind in _ORDINARY) or _BYTE in {kind, wanted_kind}
        if are_configs or matters:
            found.add(pair.own.place("token_type"), text)
        else:
            found.notes.append(text)


def _name_type(kind: int) -> str:
    return TokenType(kind).name if kind else TokenType.NORMAL.name


def compare_scores(found: Findings, pair: TokenizerPair) -> None:
    """Compare token scores, if the tokenizer uses them.

    For a `llama` tokenizer, only the order of the scores is compared; for others, each score.
    """
    own, other = pair.tokenizer, pair.reference
    if own.model not in _SCORED or own.scores == other.scores:
        return
    where = pair.own.place("scores")
    if own.scores is None or other.scores is None:
        text = "the vocabulary has scores, but that of the reference has none"
        if own.scores is None:
            text = "the vocabulary has no scores, but that of the reference has them"
        found.add(where, text)
        return
    places: Sequence[int] = [
        place
        for place, (text, wanted) in enumerate(zip(own.tokens, other.tokens, strict=False))
        if text == wanted
        and {own.types[place], other.types[place]} <= _ORDINARY
        and not _is_close(own.scores[place], other.scores[place])
    ]
    if own.model == _BY_ORDER:
        places = _find_out_of_order(own, other, places)
    if places:
        examples = [
            f"the score of token {show_token(own, place)} is {own.scores[place]:g} here and "
            f"{other.scores[place]:g} in the reference"
            for place in first_examples(places)
        ]
        found.add(where, state_differences(examples, len(places)))


def _is_close(score: float, wanted: float) -> bool:
    return score == wanted or abs(score - wanted) <= _ROUNDING * abs(wanted)


def _find_out_of_order(own: Tokenizer, other: Tokenizer, places: Sequence[int]) -> Sequence[int]:
    """Return `places`, whose scores differ; none if both rank all tokens in the same way."""
    if not places or own.scores is None or other.scores is None:
        return []
    count = min(len(own.tokens), len(other.tokens))
    ranked = [
        place for place in range(count) if {own.types[place], other.types[place]} <= _ORDINARY
    ]
    ours, theirs = own.scores, other.scores
    ranked.sort(key=lambda place: (ours[place], theirs[place]))
    is_alike = all(
        (ours[one] < ours[two]) == (theirs[one] < theirs[two])
        and (ours[one] == ours[two]) == (theirs[one] == theirs[two])
        for one, two in pairwise(ranked)
    )
    return [] if is_alike else places


def compare_merges(found: Findings, pair: TokenizerPair) -> None:
    """Compare the merges of byte-level BPE, including their order."""
    own, other = pair.tokenizer.merges or (), pair.reference.merges or ()
    if pair.tokenizer.model not in _MERGED or own == other:
        return
    places: Sequence[int] = [
        place
        for place, (merge, wanted) in enumerate(zip(own, other, strict=False))
        if merge != wanted
    ]
    examples = [
        f"merge {place} is {quote(own[place])} here and {quote(other[place])} in the reference"
        for place in first_examples(places)
    ]
    parts = [state_differences(examples, len(places))] if places else []
    if len(own) != len(other):
        parts.append(f"there are {len(own):,} merges here and {len(other):,} in the reference")
    elif sorted(own) == sorted(other):
        parts.insert(0, "the merges are in another order than in the reference")
    found.add(pair.own.place("merges"), ": ".join(parts))


# Special tokens, flags, pre-tokenizers and chat templates.


# The ids that llama.cpp uses if a file does not state them, by `tokenizer.ggml.model`
# (src/llama-vocab.cpp, `llama_vocab::impl::load`).
DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "gpt2": {"bos": 11, "eos": 11},
    "bert": {"bos": 101, "unknown": 100, "seperator": 102, "padding": 0, "mask": 103},
    "t5": {"eos": 1, "unknown": 2, "padding": 0},
}
# The values that llama.cpp uses if a file does not state a flag, `tokenizer.ggml.FLAG`.
_FLAGS: Mapping[str, Mapping[str, bool]] = {
    "llama": {"add_bos_token": True, "add_eos_token": False, "add_space_prefix": True},
    "gpt2": {"add_eos_token": False, "add_space_prefix": False},
    "whitespace": {"add_eos_token": False, "add_space_prefix": False},
    "gemma4": {"add_bos_token": True, "add_eos_token": False, "add_space_prefix": False},
    "bert": {"add_bos_token": True, "add_eos_token": False, "add_space_prefix": False},
    "t5": {"add_bos_token": False, "add_eos_token": True, "add_space_prefix": True},
    "rwkv": {"add_bos_token": False, "add_eos_token": False, "add_space_prefix": False},
    "plamo2": {"add_bos_token": False, "add_eos_token": False, "add_space_prefix": False},
}
_END_WORDS = ("eos", "eot", "eom")
# Special tokens that config.json states in addition to the tokenizer files. Generation uses them.
_CONFIG_IDS = ("bos_token_id", "pad_token_id", "decoder_start_token_id")


def compare_special(found: Findings, pair: TokenizerPair) -> None:
    """Compare the ids of special tokens, and which of them end generation."""
    # Across naming conventions, tokens for which only GGUF has a key are not compared by key.
    words = (*WORDS.values(), *(() if pair.is_across else pair.reference.special))
    for word in dict.fromkeys((*words, *pair.tokenizer.special)):
        if word in words or not pair.is_across:
            _compare_word(found, pair, word)
    for key in _CONFIG_IDS:
        _compare_config_id(found, pair, key)
    _compare_ends(found, pair)


def _compare_word(found: Findings, pair: TokenizerPair, word: str) -> None:
    own, other = pair.tokenizer, pair.reference
    token, wanted = own.special.get(word), other.special.get(word)
    if token == wanted:
        return
    where, name = pair.own.token_key(word), word.replace("seperator", "separator")
    if wanted is None:
        if token is not None and token != _find_default(pair.other, other, word):
            text = f"is {show_token(own, token)} here, and the reference has none"
            found.notes.append(f"`{where}` {text}")
        return
    there = f"{show_token(other, wanted)} in the reference"
    if token is not None:
        found.add(where, f"the {name} token is {show_token(own, token)} here and {there}")
        return
    taken = _find_default(pair.own, own, word)
    if taken == wanted:
        return
    if pair.is_across and word not in {"bos", "eos"}:  # converters often leave out other tokens
        found.notes.append(f"`{where}` is missing, and is {there}")
        return
    instead = "" if taken is None else f" (llama.cpp uses {show_token(own, taken)} instead)"
    found.add(where, f"the {name} token is missing{instead}, and is {there}")


def _find_default(description: Description, tokenizer: Tokenizer, word: str) -> int | None:
    """Return llama.cpp's default id of a special token; None if it has none, or without GGUF."""
    return DEFAULTS.get(tokenizer.model, {}).get(word) if description.is_gguf else None


def _compare_config_id(found: Findings, pair: TokenizerPair, key: str) -> None:
    if pair.is_across or pair.own.is_gguf:
        return
    ids: tuple[Any, Any] = (pair.own.text_config.get(key), pair.other.text_config.get(key))
    token, wanted = ids
    if is_id(token) and is_id(wanted) and token != wanted:
        if any(problem.where == key.removesuffix("_id") for problem in found.problems):
            return  # the tokenizer files state the same
        found.add(
            key,
            f"is {show_token(pair.tokenizer, token)} here and "
            f"{show_token(pair.reference, wanted)} in the reference's config.json",
        )


def _compare_ends(found: Findings, pair: TokenizerPair) -> None:
    """Compare which tokens end generation.

    It is a problem if the checkpoint lacks an end token of the reference, since generation does not
    stop there. An additional end token is a problem if both checkpoints have transformers configs;
    otherwise it is a note, since llama.cpp may add it itself.
    """
    own, other = _list_ends(pair.own, pair.tokenizer), _list_ends(pair.other, pair.reference)
    where = f"{TOKENIZER_KEYS}eos_token_id" if pair.own.is_gguf else "eos_token_id"
    if not other or any(problem.where == where for problem in found.problems):
        return
    implied = _list_implied_ends(pair.own, pair.tokenizer)
    may_have = implied | _list_implied_ends(pair.other, pair.reference)
    missing = [token for token in other if token not in {*own} | implied]
    more = [token for token in own if token not in {*other} | may_have]
    text = (
        f"generation ends with {_show_ends(pair.tokenizer, own)} here and with "
        f"{_show_ends(pair.reference, other)} in the reference"
    )
    are_configs = not pair.is_across and not pair.own.is_gguf
    # A config without an end token uses the default of its class, which the files do not contain.
    is_stated = bool(own) or pair.own.is_gguf or are_configs
    if (missing and is_stated) or (more and are_configs):
        found.add(where, text)
    elif missing or more:
        found.notes.append(text)


def _list_ends(description: Description, tokenizer: Tokenizer) -> Sequence[int]:
    """Return the ids of the tokens that a checkpoint states to end generation."""
    if not description.is_gguf:
        return read_ends(description)
    if tokenizer.ends:
        return tokenizer.ends
    words = () if tokenizer.model == "bert" else _END_WORDS
    ids = (tokenizer.special.get(word) for word in words)
    return tuple(dict.fromkeys(token for token in ids if token is not None))


def _list_implied_ends(description: Description, tokenizer: Tokenizer) -> set[int]:
    """Return the tokens at which llama.cpp ends generation by itself; none without GGUF."""
    if not description.is_gguf:
        return set()
    return set(stops(tokenizer))


def _show_ends(tokenizer: Tokenizer, ends: Iterable[int]) -> str:
    return " or ".join(show_token(tokenizer, token) for token in ends) or "no token"


def compare_flags(found: Findings, pair: TokenizerPair) -> None:
    """Compare the flags that add tokens or a space to texts, such as `add_bos_token`."""
    own, other = pair.tokenizer, pair.reference
    for flag in dict.fromkeys((*own.flags, *other.flags)):
        value, wanted = _read_flag(own, flag), _read_flag(other, flag)
        if value == wanted:
            continue
        where = pair.own.place(flag) if pair.own.is_gguf else flag
        if value is None or wanted is None:
            missing = "missing" if value is None else _show_flag(value)
            there = "missing" if wanted is None else _show_flag(wanted)
            found.notes.append(f"`{where}` is {missing}, and {there} in the reference")
        else:
            found.add(
                where, f"is {_show_flag(value)} here and {_show_flag(wanted)} in the reference"
            )


def _read_flag(tokenizer: Tokenizer, flag: str) -> bool | None:
    value = tokenizer.flags.get(flag)
    if value is not None:
        return value
    if flag == "add_bos_token" and tokenizer.model == "gpt2":
        pre = PRES.get(tokenizer.pre or DEFAULT)
        return None if pre is None else pre.adds_bos
    return _FLAGS.get(tokenizer.model, {}).get(flag)


def _show_flag(value: bool) -> str:
    return "true" if value else "false"


_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_ADDED_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_TEMPLATE = "tokenizer.chat_template"
_MOST_NAMED = 3


def compare_pre_tokenizers(found: Findings, pair: TokenizerPair) -> None:
    """Compare how a text is normalized and split before its tokens are looked up."""
    own, other = pair.tokenizer, pair.reference
    if own.model == other.model == "gpt2" and not _cuts_alike(own, other):
        found.add(
            pair.own.place("pre"),
            f"the pre-tokenizer is {_show_rules(own)} here and {_show_rules(other)} in the "
            "reference",
        )
    if own.charsmap != other.charsmap:
        what = "is missing" if own.charsmap is None else "differs from the reference"
        if other.charsmap is None:
            what = "is not in the reference"
        found.add(pair.own.place("precompiled_charsmap"), f"the text normalization {what}")
    if None not in {own.token_type_count, other.token_type_count} and (
        own.token_type_count != other.token_type_count
    ):
        found.add(
            pair.own.place("token_type_count"),
            f"there are {own.token_type_count} token types here and {other.token_type_count} "
            "in the reference",
        )


def _cuts_alike(own: Tokenizer, other: Tokenizer) -> bool:
    """Whether llama.cpp has the same rules for the pre-tokenizers of both tokenizers."""
    names = [each.pre or DEFAULT for each in (own, other)]
    if names[0] == names[1]:
        return True
    one, two = (PRES.get(name) for name in names)
    if one is None or two is None:
        return False
    return (one.rule.steps, one.ignores_merges) == (two.rule.steps, two.ignores_merges)


def _show_rules(tokenizer: Tokenizer) -> str:
    return "missing" if tokenizer.pre is None else quote(tokenizer.pre)


def check_chat_templates(found: Findings, own: Description) -> None:
    """Add a problem for each chat template that Jinja cannot parse; none without Jinja.

    Templates with a problem, such as a difference from the reference, get no other one.
    """
    templates: Mapping[str, str] = {} if own.tokenizer is None else own.tokenizer.chat_templates
    key = _TEMPLATE if own.is_gguf else "chat_template"
    reported = {problem.where for problem in found.problems}
    for name, template in templates.items():
        where = f"{key}.{name}" if name else key
        with suppress(ImportError):
            if where not in reported and (reason := find_syntax_error(template)):
                found.add(where, f"the chat template {reason}")


def compare_chat_templates(found: Findings, pair: TokenizerPair) -> None:
    """Compare the chat templates by name."""
    own, other = pair.tokenizer.chat_templates, pair.reference.chat_templates
    key = _TEMPLATE if pair.own.is_gguf else "chat_template"
    for name in dict.fromkeys((*own, *other)):
        where = f"{key}.{name}" if name else key
        if name not in other:
            found.notes.append(f"the chat template `{where}` is not in the reference")
        elif name not in own:
            found.add(where, "the chat template is missing, and the reference has one")
        elif _split_lines(own[name]) != _split_lines(other[name]):
            found.add(where, _show_first_line(_split_lines(own[name]), _split_lines(other[name])))


def _split_lines(template: str) -> list[str]:
    # Jinja ignores one line break at the end of a template.
    return template.removesuffix("\n").split("\n")


def _show_first_line(own: list[str], other: list[str]) -> str:
    place = _count_equal(own, other)
    shown = [
        quote(_show_around(lines, place, rest)) if place < len(lines) else "missing"
        for lines, rest in ((own, other), (other, own))
    ]
    return (
        f"the chat template differs from line {place + 1} on: {shown[0]} here and {shown[1]} "
        "in the reference"
    )


def _count_equal(own: Sequence[str], other: Sequence[str]) -> int:
    """Return the number of elements before the first difference."""
    pairs = enumerate(zip(own, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(own), len(other)))


def _show_around(lines: list[str], place: int, rest: list[str]) -> str:
    """Return the line at `place`, cut to start shortly before the first difference to `rest`."""
    line = lines[place]
    other = rest[place] if place < len(rest) else ""
    start = max(0, _count_equal(line, other) - 20)
    return f"…{line[start:]}" if start else line


def compare_stated_parts(pair: TokenizerPair) -> list[str]:
    """Return the names of the parts in which two tokenizer.json files differ.

    These are `normalizer` and so on, and the flags of added tokens. None are returned if one of the
    files is missing.
    """
    own, other = (
        None if each.files is None else each.files.tokenizer for each in (pair.own, pair.other)
    )
    if own is None or other is None:
        return []
    found = [f"`{part}`" for part in _PARTS if own.get(part) != other.get(part)]
    flags, wanted = _list_flags(own), _list_flags(other)
    tokens = [token for token in flags if token in wanted and flags[token] != wanted[token]]
    if tokens:
        found.append(f"flags of added tokens {join_names(tokens, _MOST_NAMED)}")
    return found


def _list_flags(document: Mapping[str, Any]) -> dict[int, tuple[bool, ...]]:
    added: Any = document.get("added_tokens")
    entries: list[Any] = added if is_list(added) else []
    return {
        entry["id"]: tuple(bool(entry.get(flag)) for flag in _ADDED_FLAGS)
        for entry in entries
        if is_object(entry) and type(entry.get("id")) is int
    }
