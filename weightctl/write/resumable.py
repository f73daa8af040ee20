"""Finds the files that a stopped run has left next to its output."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from weightctl.system.temporary import JOURNAL, TEMPORARY, new_token, token_of
from weightctl.write.journal import read_journal

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.write.executors.markers import Markers
    from weightctl.write.journal import Purpose, Record


class ResumableFiles(NamedTuple):
    """The state of a stopped run: the token of its file names, and its records.

    If no run can be continued, the token is new, and `lost` is the reason if there was a run.
    `markers` are those of processes that shared the run.
    """

    token: str
    records: tuple[Record, ...] = ()
    lost: str = ""
    markers: Markers | None = None


def find_resumable(
    path: str, identify: Callable[[], Purpose] | None, *, has_markers: bool = True
) -> ResumableFiles:
    """Return the state of a stopped run with the same plan and input.

    The records are those of the journal and, if `has_markers` is set, those in the markers of
    processes that shared the run.
    """
    lost = ""
    directory, base = os.path.split(path)
    pattern = re.compile(f"{re.escape(base)}{TEMPORARY}")
    with suppress(OSError):
        for name in sorted(filter(pattern.fullmatch, os.listdir(directory))):
            found = read_journal(os.path.join(directory, name)) if name.endswith(JOURNAL) else None
            if found is None:
                continue
            before, records = found
            now = None if identify is None else identify()
            if now is None:
                lost = "the input is in memory, and cannot be compared"
            elif before.input != now.input:
                lost = "the input has changed"
            elif before.plan != now.plan:
                lost = "the plan has changed"
            else:
                from weightctl.write.executors.markers import markers_of, read_done

                markers = markers_of(path, now)
                if has_markers:
                    records += chain.from_iterable(
                        done.records for done in read_done(markers).values()
                    )
                return ResumableFiles(token_of(name), tuple(records), markers=markers)
    return ResumableFiles(new_token(), lost=lost)
