"""Special tokens around a text, which tokenizer.json's post_processor adds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weightctl.text.untyped import is_list, is_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The tokens before and after a text, and whether two are between two texts.

    `is_separated`: the last token appears twice between two texts, as in RoBERTa.
    """

    before: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    is_separated: bool = False

    @property
    def first(self) -> str | None:
        """The first token before a text; None if there is none."""
        return self.before[0] if self.before else None

    @property
    def last(self) -> str | None:
        """The last token after a text; None if there is none."""
        return self.behind[-1] if self.behind else None


def read_surroundings(document: Mapping[str, Any]) -> Surroundings | None:
    """Return the tokens that a tokenizer.json adds around a text; None if it states none."""
    for part in reversed(_parts(document.get("post_processor"))):
        kind = part.get("type") if is_object(part) else None
        if kind in ("RobertaProcessing", "BertProcessing"):
            before, behind = (_texts([_text(part.get(key))]) for key in ("cls", "sep"))
            return Surroundings(before, behind, is_separated=kind == "RobertaProcessing")
        if kind == "TemplateProcessing":
            return _of_template(part)
    return None


def to_template(
    first: tuple[str, int] | None, last: tuple[str, int] | None
) -> dict[str, Any] | None:
    """Return the template that adds these tokens around every text; None if both are None."""
    around = [each for each in (first, last) if each is not None]
    if not around:
        return None

    def text(name: str, kind: int) -> list[dict[str, Any]]:
        before = [_special(first, kind)] if first is not None else []
        after = [_special(last, kind)] if last is not None else []
        return [*before, {"Sequence": {"id": name, "type_id": kind}}, *after]

    return _template(text("A", 0), [*text("A", 0), *text("B", 1)], around)


def to_bert_template(cls: tuple[str, int], sep: tuple[str, int]) -> dict[str, Any]:
    """Return BERT's template: `[CLS] A [SEP] B [SEP]`."""
    single = [
        _special(cls, 0),
        {"Sequence": {"id": "A", "type_id": 0}},
        _special(sep, 0),
    ]
    second = [{"Sequence": {"id": "B", "type_id": 1}}, _special(sep, 1)]
    return _template(single, [*single, *second], [cls, sep])


def _template(
    single: Sequence[Any], pair: Sequence[Any], tokens: Sequence[tuple[str, int]]
) -> dict[str, Any]:
    return {
        "type": "TemplateProcessing",
        "single": list(single),
        "pair": list(pair),
        "special_tokens": {
            text: {"id": text, "ids": [token], "tokens": [text]} for text, token in tokens
        },
    }


def _special(token: tuple[str, int], kind: int) -> dict[str, Any]:
    return {"SpecialToken": {"id": token[0], "type_id": kind}}


def _of_template(template: Mapping[str, Any]) -> Surroundings:
    single = template.get("single")
    pieces: list[Any] = single if is_list(single) else []
    places = [
        place for place, piece in enumerate(pieces) if is_object(piece) and "Sequence" in piece
    ]
    if not places:
        return Surroundings()
    before = map(_name, pieces[: places[0]])
    behind = map(_name, pieces[places[-1] + 1 :])
    return Surroundings(_texts(before), _texts(behind))


def _texts(names: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(name for name in names if name is not None)


def _name(piece: Any) -> str | None:
    special = piece.get("SpecialToken") if is_object(piece) else None
    return _text(special.get("id") if is_object(special) else None)


def _text(entry: Any) -> str | None:
    if is_list(entry) and entry:
        entry = entry[0]
    return entry if isinstance(entry, str) else None


def _parts(document: Any) -> list[Any]:
    if is_object(document) and document.get("type") == "Sequence":
        parts = document.get("processors")
        return parts if is_list(parts) else []
    return [] if document is None else [document]
