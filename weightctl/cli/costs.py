"""Describes the costs of a command (time, network traffic, workers), and prints JSON with them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from weightctl.cli.progress import describe_workers
from weightctl.cli.render import show_text
from weightctl.storage.traffic import TRAFFIC, TrafficCounts
from weightctl.system.elapsed import seconds_elapsed
from weightctl.text.columns import Cell
from weightctl.text.sizes import format_size
from weightctl.text.wording import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.write.save import Saved

_NOTHING = TrafficCounts()


def list_costs(nbytes: int) -> list[list[Cell]]:
    """Return lines with the network traffic, if any, and the time and speed of writing."""
    seconds = seconds_elapsed()
    pace = f"{seconds:.1f} s, {format_size(int(nbytes / max(seconds, 1e-3)))}/s"
    return [[Cell(text)] for text in (*_describe_traffic(), pace)]


def _describe_traffic() -> Iterator[str]:
    counts = TRAFFIC.counts
    if counts.requests:
        parts = [f"{format_size(counts.bytes_read)} read over the network"]
        parts += [f"{format_size(counts.bytes_sent)} sent"] if counts.bytes_sent else []
        parts += [pluralize(counts.requests, "request")]
        parts += [f"{counts.retries:,} repeated"] if counts.retries else []
        yield ", ".join(parts)


def document_times(saved: Saved | None, nbytes: int) -> dict[str, float | None]:
    """Return the time and the speed of writing `nbytes` as a JSON object; null if not written."""
    if saved is None:
        return {"seconds": None, "bytes_per_second": None}
    seconds = seconds_elapsed()
    return {"seconds": seconds, "bytes_per_second": nbytes / max(seconds, 1e-3)}


def list_workers(saved: Saved) -> list[list[Cell]]:
    """Return lines that describe the work of workers; none if there were no workers."""
    if saved.workers is None:
        return []
    lines = [[Cell(f"workers: {describe_workers(saved.workers)}")]]
    if not saved.is_last:
        lines.append([Cell("the output was completed by another process")])
    return lines


def document_workers(saved: Saved | None) -> dict[str, Any]:
    """Return the work of workers as a JSON object; empty if there were no workers."""
    if saved is None or saved.workers is None:
        return {}
    return {"workers": {**saved.workers._asdict(), "is_last": saved.is_last}}


def document_network(before: TrafficCounts = _NOTHING) -> dict[str, Any]:
    """Return the traffic since `before` as a JSON object; empty if no request was made."""
    counts = TRAFFIC.counts.since(before)
    return {"network": counts._asdict()} if counts.requests else {}


def show_document(result: object, before: TrafficCounts = _NOTHING) -> None:
    """Print a record or a mapping as a line of JSON, with the traffic since `before`, if any."""
    from weightctl.text.documents import to_document

    show_text(json.dumps({**to_document(result), **document_network(before)}) + "\n")
