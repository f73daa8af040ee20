"""`shard --tp auto`: list the numbers of ranks for which a checkpoint can be split."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from weightctl.cli.costs import document_network
from weightctl.cli.render import Cell, columns, is_terminal, show_lines, show_text
from weightctl.cli.splits import join_ranks
from weightctl.cli.wrapping import hung
from weightctl.errors import TensorSplitError
from weightctl.text.wording import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.sharding.possible import Possible

# The numbers of ranks to try: those of one machine, and of several machines together.
COUNTS = (*range(1, 17), 32, 64)


def show_possible(path: str, found: Sequence[Possible], *, as_json: bool) -> None:
    """Print which numbers of ranks work, and the tensor and reason that prevent the others."""
    if as_json:
        show_text(json.dumps(_document(path, found)) + "\n")
        return
    reasons: dict[str, list[int]] = {}
    for each in found:
        reasons.setdefault(_reason(each), []).append(each.ranks)
    counts = {reason: join_ranks(ranks) for reason, ranks in reasons.items()}
    room = max(map(len, counts.values()))
    # Lines for a pipe are not wrapped, unless COLUMNS sets their length.
    wraps = is_terminal() or "COLUMNS" in os.environ
    lines = [[Cell(printable(path), "bold"), Cell(" can be split with --tp")], list[Cell]()]
    for reason, numbers in counts.items():
        head = Cell(f"  {numbers:<{room}}  ", "" if reason else "green")
        lines += hung([head], reason or "works", columns() if wraps else None)
    show_lines(lines)


def _reason(each: Possible) -> str:
    """Return why a number of ranks does not work, in words that do not depend on the number.

    The text is empty if the number works.
    """
    match each.refusal:
        case None:
            return ""
        case TensorSplitError(summary=summary):
            return summary
        case refusal:
            return refusal.message


def _document(path: str, found: Sequence[Possible]) -> dict[str, Any]:
    return {
        "input": path,
        "possible": [
            {
                "tp": each.ranks,
                "works": each.refusal is None,
                "reason": each.refusal.message if each.refusal else None,
            }
            for each in found
        ],
        **document_network(),
    }
