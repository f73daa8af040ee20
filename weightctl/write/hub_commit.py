"""Writes outputs to repositories of the Hugging Face Hub, in one commit.

The files are sent while they are made. A stopped run is not continued: the next run makes the files
again, but the upload library only sends the chunks that have not arrived.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from weightctl.errors import OutputError
from weightctl.plan.plan import Plan
from weightctl.storage.files import refresh
from weightctl.storage.remote.hub_commits import (
    CommitContent,
    ModelRepository,
    XetUpload,
    load_xet,
    token_route,
)
from weightctl.storage.remote.hub_url import parse_hub_url
from weightctl.storage.remote.ordered_writes import HeldMemory, OrderedWriter
from weightctl.system.processes import defer_signals
from weightctl.text.wording import printable
from weightctl.write.object_parts import list_gaps
from weightctl.write.outcome import is_kept, list_replaced_files
from weightctl.write.run import OutputRun

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from weightctl.formats.base import Layout
    from weightctl.sharding.plan import ShardPlan
    from weightctl.storage.remote.hub import HubCommit
    from weightctl.storage.remote.hub_commits import XetFile
    from weightctl.write.journal import Purpose, Record
    from weightctl.write.outcome import Outcome

_TITLES = {"gguf": "GGUF", "pytorch": "PyTorch"}
_LONGEST = 60


class CommitRun(OutputRun):
    """The uploads of a run, and the commit that makes them visible."""

    def __init__(
        self,
        outcome: Outcome,
        repository: ModelRepository,
        parent: HubCommit,
        upload: XetUpload,
        *,
        message: str,
        memory: int,
    ) -> None:
        self._outcome = outcome
        self._repository = repository
        self._parent = parent
        self._upload = upload
        self._message = message
        self._held = HeldMemory(memory)
        self._uploaded: dict[str, XetFile] = {}
        self._small: dict[str, bytes] = {}
        self.files: list[OrderedWriter] = []

    def open_files(self) -> list[OrderedWriter]:
        """Begin all files, and write their headers; raises `OutputError` if that fails."""
        self.files = [self._open(*item) for item in self._outcome.parts.items()]
        for file, layout in zip(self.files, self._outcome.parts.values(), strict=True):
            file.write(0, layout.header)
        return self.files

    def _open(self, name: str, layout: Layout) -> OrderedWriter:
        url = self._outcome.path_of(name)
        stream = self._upload.begin(url)

        def end() -> None:
            # The file is finished immediately, since an open file takes memory.
            self._uploaded[parse_hub_url(url).path] = stream.finish()

        return OrderedWriter(
            url, layout.nbytes, send=stream.write, end=end, held=self._held, gaps=list_gaps(layout)
        )

    def begin_journal(self, purpose: Purpose, records: Iterable[Record]) -> NoReturn:
        """Raise `TypeError`, since an upload to the Hub does not have a journal."""
        del purpose, records
        raise TypeError("an upload to the Hugging Face Hub cannot be resumed: it has no journal")

    def place(self) -> NoReturn:
        """Raise `TypeError`, since workers cannot send the bytes of a file in order."""
        raise TypeError(
            "workers cannot write to the Hugging Face Hub: a single process must upload all files"
        )

    def put(self, name: str, content: bytes) -> None:
        """Keep a small file of the output until it is committed."""
        path = parse_hub_url(self._outcome.path_of(name)).path
        if not is_kept(path, self._parent.files):
            self._small[path] = content

    def publish(self, *, force: bool) -> None:
        """Commit all files; with `force`, delete parts of an earlier output.

        Raises `OutputError` if that fails; the repository is then unchanged.
        """
        for file in self.files:
            file.finish()
        large = self._repository.find_large(self._small)
        for path in sorted(large):
            self._uploaded[path] = self._upload.put(path, self._small.pop(path))
        self._upload.finish()
        old = list_replaced_files(self._outcome, self._parent.files) if force else []
        content = CommitContent(self._uploaded, self._small, old)
        with defer_signals():
            self.pull_request = self._repository.commit(self._parent.commit, self._message, content)
            self.is_committed = True
        refresh(self._outcome.path)

    def discard(self) -> None:
        """Abort all uploads, unless they were committed."""
        if not self.is_committed:
            self._upload.abort()


@contextmanager
def hold_commit(
    plan: Plan | ShardPlan, outcome: Outcome, *, force: bool, memory: int
) -> Generator[CommitRun, None, None]:
    """Begin the uploads of an output; `memory` is the limit of bytes that wait for earlier bytes.

    The model is created if it does not exist. Raises `OutputError` if the output cannot or must not
    be written.
    """
    load_xet(outcome.path)
    refresh(outcome.path)
    outcome.refuse(force=force)
    options = outcome.where.commit
    repository = ModelRepository(outcome.path, options)
    parent = repository.find_commit()
    if parent is None:
        repository.create()
        refresh(outcome.path)
        parent = repository.find_commit()
    if parent is None:
        raise OutputError(
            f"{outcome.path} cannot be written: the model {repository.place.repository} exists, "
            "but the token may not read it",
            hint="check the name, and use a token with the permission to write",
        )
    repository.check_access(token_route(repository.place, options))
    upload = XetUpload(repository.place, outcome.path, options)
    run = CommitRun(
        outcome, repository, parent, upload, message=_describe(plan, outcome), memory=memory
    )
    with run:
        yield run


def _describe(plan: Plan | ShardPlan, outcome: Outcome) -> str:
    """Return the commit message, with the recipe or the type of most bytes, and the format."""
    kind = plan.recipe if isinstance(plan, Plan) else ""
    if not kind:
        sizes: Counter[str] = Counter()
        for info in outcome.tensors:
            sizes[info.encoding.name] += info.nbytes
        kind = sizes.most_common(1)[0][0] if sizes else ""
    name = printable(os.path.basename(kind))[:_LONGEST]
    title = _TITLES.get(outcome.where.format, outcome.where.format)
    return f"{name} {title} converted with weightctl".lstrip()
