"""Gives a sharded checkpoint that is whole its name, or removes what came to nothing."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from weightctl.formats.huggingface import carry
from weightctl.formats.sharded.manifest import manifest_bytes
from weightctl.formats.sharded.record import MANIFEST
from weightctl.system.interrupts import uninterrupted
from weightctl.write.output_file import cannot_write
from weightctl.write.replacing import exchange, rename, sync_directory
from weightctl.write.shards.belongings import remove
from weightctl.write.shards.journal import JOURNAL, REPLACED, begin_journal
from weightctl.write.shards.place import hold_directory
from weightctl.write.shards.writable import put

if TYPE_CHECKING:
    from collections.abc import Collection

    from weightctl.formats.sharded.record import Manifest
    from weightctl.write.shards.outcome import ShardOutcome

__all__ = ["discard", "finish"]


def finish(outcome: ShardOutcome, manifest: Manifest, *, force: bool) -> None:
    """Put the whole manifest and what goes along into the directory, and give that its name.

    Raises `OutputError`.
    """
    for directory in outcome.directories:
        below = os.path.relpath(directory, outcome.partial).removeprefix(".")
        beside = {
            os.path.basename(name): source
            for name, source in outcome.carried.items()
            if os.path.dirname(name) == below
        }
        try:
            carry(beside, directory, None)
        except OSError as error:
            raise cannot_write(directory, error) from error
        sync_directory(directory)
    put(os.path.join(outcome.partial, MANIFEST), manifest_bytes(manifest))
    with uninterrupted():
        _name(outcome, force=force)
        # Up to here a run that was killed goes on; from here on there is nothing to go on with.
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(outcome.path, JOURNAL))
    sync_directory(os.path.dirname(outcome.path))


def _name(outcome: ShardOutcome, *, force: bool) -> None:
    """Give the directory its name; what it takes the place of is removed."""
    partial, path = outcome.partial, outcome.path
    if not os.path.isdir(path):
        rename(partial, path)
        return
    os.chmod(partial, stat.S_IMODE(os.stat(path).st_mode))
    if not os.listdir(path):
        rename(partial, path)
        return
    outcome.refuse_target(path, force=force)
    names = outcome.list_replaced(path)
    # Nobody is to begin another run in it before it is removed.
    with hold_directory(path):
        journal = os.path.join(path, JOURNAL)
        # By a journal the next run knows these files, should this one not come to remove them.
        begin_journal(journal, REPLACED._replace(names=tuple(names)))
        try:
            exchange(partial, path)
            try:
                outcome.refuse_target(partial, force=force)
            except BaseException:
                exchange(partial, path)
                raise
        except BaseException:
            os.unlink(journal)
            raise
        _clear(partial, names)


def discard(outcome: ShardOutcome) -> None:
    """Remove all that a run has made that came to nothing."""
    with uninterrupted():
        _clear(outcome.partial, outcome.names)


def _clear(partial: str, names: Collection[str]) -> None:
    remove(partial, {*names} - {JOURNAL})
    remove(partial, {JOURNAL})
    with suppress(OSError):
        os.rmdir(partial)
