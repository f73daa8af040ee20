"""Finds the uploads that a stopped run has left in an object store, and their journal."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.system.temporary import (
    JOURNAL_PART,
    REST,
    new_token,
    temporary_name,
    token_of,
)
from weightctl.text.untyped import is_object
from weightctl.write.executors.markers import markers_of, read_done
from weightctl.write.executors.rests import parse_rest
from weightctl.write.journal import parse_journal
from weightctl.write.objects.object_journal import PUBLISHING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from weightctl.storage.base import StoredObject, Uploads
    from weightctl.write.executors.markers import DoneBatch, Markers
    from weightctl.write.executors.rests import Rest
    from weightctl.write.journal import Purpose, Record

_JOURNAL = re.compile(rf"\.weightctl-[0-9a-f]{{8}}\.partial{JOURNAL_PART}")
# If a journal was not written for this number of seconds, its run counts as ended.
_ENDED_AFTER = 900.0
# A journal that changes while it is read is read this number of times more.
_TRIES = 3


class BegunUpload(NamedTuple):
    """An upload in a journal: its id, the size of its parts, and the URL of its object."""

    id: str
    part: int
    path: str


class StoppedUpload(NamedTuple):
    """The state of a stopped run: its token, its records, and its uploads by file number.

    If no run can be continued, the token is new, and `lost` is the reason if there was a run.
    `objects` are the URLs of the journal. `published` is the time, in seconds by the store's clock,
    at which the run began to publish; 0 if it had not begun. `rests` are bytes of parts that its
    workers could not complete. `shared` are batches of processes that shared the run; they are not
    in the journal, but in the `markers`.
    """

    token: str
    objects: tuple[str, ...] = ()
    records: tuple[Record, ...] = ()
    uploads: Mapping[int, BegunUpload] = {}
    published: float = 0.0
    lost: str = ""
    rests: tuple[Rest, ...] = ()
    shared: tuple[DoneBatch, ...] = ()
    markers: Markers | None = None


def find_stopped_upload(
    path: str, uploads: Uploads, identify: Callable[[], Purpose] | None, *, clear: bool = True
) -> StoppedUpload:
    """Return the state of a stopped run with the same plan and input.

    If `clear` is set, the uploads and journals of other runs that have ended are removed.
    """
    from weightctl.storage.remote.requests import MissingObjectError  # needs obstore

    # A process that completes a shared output removes the journal, maybe while it is read here.
    for _ in range(_TRIES):
        with suppress(MissingObjectError):
            return _find_upload(path, uploads, identify, clear=clear)
    return _find_upload(path, uploads, identify, clear=clear)


def _find_upload(
    path: str, uploads: Uploads, identify: Callable[[], Purpose] | None, *, clear: bool
) -> StoppedUpload:
    lost = ""
    for token, objects in _list_journals(path, uploads).items():
        contents = {each: uploads.read(each) for each in sorted(objects)}
        found = parse_journal(b"".join(contents.values()))
        newest = max(each.written for each in objects.values())
        has_ended = time.time() - newest > _ENDED_AFTER
        if found is None:
            # These objects are left from a journal that could not be removed completely.
            if clear and has_ended:
                uploads.delete(list(objects))
            continue
        before, records, others = found
        begun = dict(filter(None, map(_parse_upload, others)))
        now = None if identify is None else identify()
        if now == before:
            began = (objects[each].written for each in contents if PUBLISHING in contents[each])
            published = next(began, 0.0)
            rests = tuple(filter(None, map(parse_rest, others)))
            markers = markers_of(path, before)
            return StoppedUpload(
                token, tuple(contents), tuple(records), begun, published, rests=rests,
                shared=tuple(read_done(markers).values()), markers=markers,
            )  # fmt: skip
        lost = "the input has changed" if now is None or now.input != before.input else (
            "the plan has changed"
        )  # fmt: skip
        if clear and has_ended:
            for each in begun.values():
                uploads.abort(each.path, each.id)
            left = uploads.list_objects(f"{temporary_name(path, token)}{REST}")
            uploads.delete([*left, *objects])
    return StoppedUpload(new_token(), lost=lost)


def _list_journals(path: str, uploads: Uploads) -> dict[str, dict[str, StoredObject]]:
    """Return the objects of an output's journals, by token and URL."""
    found: dict[str, dict[str, StoredObject]] = {}
    for url, stored in uploads.list_objects(f"{path}.weightctl-").items():
        if _JOURNAL.fullmatch(url.removeprefix(path)):
            found.setdefault(token_of(os.path.basename(url)), {})[url] = stored
    return found


def _parse_upload(entry: Mapping[str, Any]) -> tuple[int, BegunUpload] | None:
    upload, number, size = entry.get("upload"), entry.get("of"), entry.get("part")
    if not is_object(entry) or type(number) is not int or type(size) is not int:
        return None
    return number, BegunUpload(str(upload), size, str(entry.get("path")))
