"""Comparison of rules for texts: pre-tokenizer, normalizer, chat template."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.text.untyped import is_list, is_object
from weightctl.text.wording import join_names
from weightctl.translate.tokenizer.pre_names import DEFAULT, PRES
from weightctl.verify.checks.metadata.comparison import Compared, quote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.translate.tokenizer import Tokenizer
    from weightctl.verify.checks.metadata.comparison import TokenizerPair

__all__ = ["compare_chat_templates", "compare_pre_tokenizers", "compare_stated_parts"]

_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_TEMPLATE = "tokenizer.chat_template"
_MOST_NAMED = 3


def compare_pre_tokenizers(pair: TokenizerPair) -> Compared:
    """Compare the rules that split a text before its tokens are looked up."""
    found = Compared()
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
    return found


def _cuts_alike(own: Tokenizer, other: Tokenizer) -> bool:
    """Whether llama.cpp treats two names of rules in the same way."""
    names = [each.pre or DEFAULT for each in (own, other)]
    if names[0] == names[1]:
        return True
    one, two = (PRES.get(name) for name in names)
    if one is None or two is None:
        return False
    return (one.rule.steps, one.ignores_merges) == (two.rule.steps, two.ignores_merges)


def _show_rules(tokenizer: Tokenizer) -> str:
    return "missing" if tokenizer.pre is None else quote(tokenizer.pre)


def compare_chat_templates(pair: TokenizerPair) -> Compared:
    """Compare the chat templates by name."""
    found = Compared()
    own, other = pair.tokenizer.chat_templates, pair.reference.chat_templates
    for name in dict.fromkeys((*own, *other)):
        where = _name_template(pair, name)
        if name not in other:
            found.notes.append(f"the chat template `{where}` is not in the reference")
        elif name not in own:
            found.add(where, "the chat template is missing, and the reference has one")
        elif _split_lines(own[name]) != _split_lines(other[name]):
            found.add(where, _show_first_line(_split_lines(own[name]), _split_lines(other[name])))
    return found


def _name_template(pair: TokenizerPair, name: str) -> str:
    key = _TEMPLATE if pair.own.is_gguf else "chat_template"
    return f"{key}.{name}" if name else key


def _split_lines(template: str) -> list[str]:
    # Jinja ignores a line break at the very end.
    return template.removesuffix("\n").split("\n")


def _show_first_line(own: list[str], other: list[str]) -> str:
    pairs = enumerate(zip(own, other, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), min(len(own), len(other)))
    shown = [
        quote(_show_around(lines, place, rest)) if place < len(lines) else "missing"
        for lines, rest in ((own, other), (other, own))
    ]
    return (
        f"the chat template differs from line {place + 1} on: {shown[0]} here and {shown[1]} "
        "in the reference"
    )


def _show_around(lines: list[str], place: int, rest: list[str]) -> str:
    """Return a line from shortly before the difference, if it is too long to show whole."""
    line = lines[place]
    other = rest[place] if place < len(rest) else ""
    pairs = enumerate(zip(line, other, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), min(len(line), len(other)))
    start = max(0, first - 20)
    return f"…{line[start:]}" if start else line


def compare_stated_parts(pair: TokenizerPair) -> list[str]:
    """Return the parts of two tokenizer.json that differ: rules, and the flags of added tokens."""
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
        entry["id"]: tuple(bool(entry.get(flag)) for flag in _FLAGS)
        for entry in entries
        if is_object(entry) and type(entry.get("id")) is int
    }
