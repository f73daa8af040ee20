"""A model or a data set that another was made from: an id, a web address, or facts about it."""

from __future__ import annotations

from weightctl.text.untyped import is_object
from weightctl.translate.card.keys import ENTRY, HUB
from weightctl.translate.card.model_id import parse_model_id, title

__all__ = ["format_origin", "origin"]

_ADDRESSES = ("http://", "https://", "ssh://")


def origin(written: object, parameters: int = 0) -> dict[str, str]:
    """Return what a card's entry says; nothing if it is neither text nor a mapping."""
    if is_object(written):
        return {key: text for key in ENTRY if isinstance(text := written.get(key), str) and text}
    if not isinstance(written, str) or not written:
        return {}
    is_address = written.startswith(_ADDRESSES)
    name = written.removeprefix(HUB) if is_address else written
    if is_address and (name == written or name.count("/") != 1):
        return {"repo_url": written}
    found = parse_model_id(name, parameters)
    facts = {
        "name": found.name and title(found.name),
        "version": found.version,
        "organization": found.organization and title(found.organization),
        "repo_url": f"{HUB}{found.organization}/{found.name}" if found.organization else None,
    }
    return {key: text for key, text in facts.items() if text} | (
        {"repo_url": written} if is_address else {}
    )


def format_origin(facts: dict[str, str]) -> str | dict[str, str]:
    """Return a card's entry that says these facts: an id or an address where one says them all."""
    address = facts.get("repo_url", "")
    for text in (address.removeprefix(HUB), address, facts.get("name", "").replace(" ", "-")):
        if text and origin(text) == facts:
            return text
    return facts
