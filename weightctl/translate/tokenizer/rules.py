"""Rules for splitting text before byte-level BPE: two parts of tokenizer.json as one rule.

A rule lists the regular expressions that split each piece in turn (into matches and the text
between them), and states at which step bytes become characters.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weightctl.errors import TokenizerError
from weightctl.text.untyped import is_list, is_object
from weightctl.translate.tokenizer import regexes
from weightctl.translate.tokenizer.files import KEEP_HINT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# The step that converts bytes to characters.
BYTES = ""
# Every character is part of a match of these patterns, so keeping only matches is the same as
# "Isolated".
_COVERING = r"\s+", r"\s{1}"


@dataclass(frozen=True, slots=True)
class PreTokenizerRule:
    """The steps before BPE, and whether text is first normalized to Unicode's NFC."""

    steps: tuple[str, ...]
    is_composed: bool = False


def parse(document: Mapping[str, Any], where: str) -> PreTokenizerRule:
    """Return the rule of a tokenizer.json.

    Raises `TokenizerError`, which shows the part of the document, if GGUF cannot express it.
    """
    steps = tuple(_steps(document.get("pre_tokenizer"), where))
    return PreTokenizerRule(steps, _is_composed(document.get("normalizer"), where))


def show_rule_parts(document: Mapping[str, Any]) -> str:
    """Return the two parts of a tokenizer.json that define its rule, as text for messages."""
    parts = {key: document.get(key) for key in ("normalizer", "pre_tokenizer")}
    written = json.dumps(parts, ensure_ascii=False)
    return written if len(written) < 1500 else f"{written[:1500]}..."


def hash_rule(rule: PreTokenizerRule) -> str:
    """Return the SHA-256 of a rule: the same for other spellings of it in tokenizer.json."""
    text = json.dumps([*rule.steps, rule.is_composed], ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def to_normalizer(rule: PreTokenizerRule) -> dict[str, Any] | None:
    """Return the normalizer of a rule, as tokenizer.json has it."""
    return {"type": "NFC"} if rule.is_composed else None


def to_pre_tokenizer(rule: PreTokenizerRule) -> dict[str, Any] | None:
    """Return the pre_tokenizer of a rule, as tokenizer.json has it."""
    steps = list(rule.steps)
    made: list[dict[str, Any]] = []
    while steps:
        step = steps.pop(0)
        if step == regexes.GPT_2 and steps[:1] == [BYTES]:
            steps.pop(0)
            made.append(byte_level(use_regex=True))
        elif step == BYTES:
            made.append(byte_level(use_regex=False))
        elif step in {regexes.DIGIT, regexes.ANY_DIGITS}:
            made.append({"type": "Digits", "individual_digits": step == regexes.DIGIT})
        elif step == regexes.PUNCTUATION_FALCON:
            made.append({"type": "Punctuation", "behavior": "Contiguous"})
        else:
            made.append(
                {
                    "type": "Split",
                    "pattern": {"Regex": step},
                    "behavior": "Isolated",
                    "invert": False,
                }
            )
    if len(made) > 1:
        return {"type": "Sequence", "pretokenizers": made}
    return made[0] if made else None


def byte_level(*, use_regex: bool) -> dict[str, Any]:
    """Return the part of tokenizer.json that converts bytes to characters."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _is_composed(normalizer: Any, where: str) -> bool:
    parts = _parts(normalizer, "normalizers")
    kinds = [part.get("type") if is_object(part) else None for part in parts]
    if any(kind != "NFC" for kind in kinds):
        raise _unknown("normalizer", normalizer, where)
    return bool(kinds)


def _steps(pre_tokenizer: Any, where: str) -> Iterator[str]:
    for part in _parts(pre_tokenizer, "pretokenizers"):
        kind = part.get("type") if is_object(part) else None
        if kind == "Sequence":
            yield from _steps(part, where)
        elif kind == "ByteLevel" and not part.get("add_prefix_space"):
            yield from (regexes.GPT_2, BYTES) if part.get("use_regex", True) else (BYTES,)
        elif kind == "Digits":
            yield regexes.DIGIT if part.get("individual_digits") else regexes.ANY_DIGITS
        elif kind == "Punctuation" and part.get("behavior") == "Contiguous":
            yield regexes.PUNCTUATION_FALCON
        elif kind == "Split" and (regex := _regex(part)) is not None:
            yield regex
        else:
            raise _unknown("pre_tokenizer", part, where)


def _regex(split: Mapping[str, Any]) -> str | None:
    pattern = split.get("pattern")
    regex = pattern.get("Regex") if is_object(pattern) else None
    if not isinstance(regex, str):
        return None
    regex = regexes.plain(regex)
    behavior = split.get("behavior")
    keeps = behavior == "Removed" and bool(split.get("invert")) and regex.endswith(_COVERING)
    return regex if behavior == "Isolated" or keeps else None


def _parts(document: Any, key: str) -> list[Any]:
    if document is None:
        return []
    if is_object(document) and document.get("type") == "Sequence":
        parts = document.get(key)
        return parts if is_list(parts) else [None]
    return [document]


def _unknown(what: str, part: Any, where: str) -> TokenizerError:
    written = json.dumps(part, ensure_ascii=False)[:1500]
    return TokenizerError(
        f"{where}: GGUF cannot express the {what} {written}",
        hint=KEEP_HINT,
    )
