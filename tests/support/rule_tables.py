"""The table of rules of docs/check.md.

`python tests/test_docs.py check` writes it.
"""

from __future__ import annotations

from weightctl.check import RULES

__all__ = ["list_rules"]


def list_rules() -> str:
    """Return the table of rules, with what `--fix` does."""
    lines = [
        "| rule | level | what it requires | if it is violated | `--fix` |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, rule in RULES.items():
        texts = " | ".join(map(_capitalize, (rule.about, rule.details, rule.fix)))
        lines.append(f"| `{name}` | {rule.level.value} | {texts} |")
    return "\n".join(lines)


def _capitalize(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""
