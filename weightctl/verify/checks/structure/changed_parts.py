"""The parts of a sharded checkpoint that are no longer what was written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.shards.digests import altered, checked_bytes
from weightctl.verify.problem import Problem, first_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.formats.sharded.gathered import Gathered
    from weightctl.verify.request import Request

__all__ = ["changed_parts"]


def changed_parts(gathered: Gathered, request: Request) -> Sequence[Problem]:
    """Return a problem for each tensor of a rank whose SHA-256 is not the manifest's.

    Raises `FormatError` where a file cannot be read.
    """
    total, done = checked_bytes(gathered), 0

    def tell(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        request.tell("reading the parts of all ranks", 0.2 * done / total)

    problems = [
        Problem(
            where=part.tensor,
            text=f"is altered on rank {part.rank}: in {part.file} its SHA-256 is not that of the "
            "manifest",
            hint="copy the file anew, or write the shards anew",
        )
        for part in altered(gathered, progress=tell)
    ]
    where = gathered.header.listing or ""
    return first_of(problems, "{} more parts are altered", where)
