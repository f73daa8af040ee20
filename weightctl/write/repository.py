"""Checks the files of an output in a repository, and those that it replaces there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from weightctl.errors import OutputError
from weightctl.storage.location import has_commits
from weightctl.storage.remote.hub_commits import ModelRepository
from weightctl.storage.remote.hub_url import parse_hub_url
from weightctl.write.targets import make_older_error

if TYPE_CHECKING:
    from collections.abc import Collection

    from weightctl.write.outcome import Outcome

_CARD = "README.md"
_REPLACE = "to replace it, use --force (force=True in Python)"


def is_kept(path: str, files: Collection[str]) -> bool:
    """Whether the repository keeps its own file of this path: an existing model card."""
    return os.path.basename(path) == _CARD and path in files


def list_replaced_files(outcome: Outcome, files: Collection[str]) -> list[str]:
    """Return files of a repository that readers would assign to the output.

    These are parts of an earlier output that this output does not have.
    """
    directory = os.path.dirname(parse_hub_url(outcome.path_of(outcome.names[0])).path)
    new = {parse_hub_url(outcome.path_of(name)).path for name in outcome.names}
    pattern = outcome.where.pattern()
    return sorted(
        path
        for path in files
        if os.path.dirname(path) == directory
        and pattern.fullmatch(os.path.basename(path))
        and path not in new
    )


def refuse_files(outcome: Outcome, *, force: bool) -> None:
    """Raise `OutputError` if an output cannot be committed, or replaces files without `force`.

    Other files in the repository are kept.
    """
    repository = ModelRepository(outcome.path, outcome.where.commit)
    repository.refuse()
    commit = repository.find_commit()
    if commit is None:
        return
    files = commit.files
    beside = [*outcome.carried, *outcome.documents] if outcome.is_directory else []
    urls = {parse_hub_url(url).path: url for url in map(outcome.path_of, (*outcome.names, *beside))}
    old = list_replaced_files(outcome, files)
    inputs = {parse_hub_url(url) for url in outcome.inputs if has_commits(url)}
    for name in outcome.names:
        if parse_hub_url(outcome.path_of(name)) in inputs:
            raise OutputError(
                f"{outcome.path_of(name)} is the input itself",
                hint="choose another name for the output",
            )
    for path, url in urls.items():
        if path in commit.directories:
            raise OutputError(f"{url} is a directory", hint="choose another name for the output")
        if path in files and not force and not is_kept(path, files):
            raise OutputError(f"{url} exists", hint=_REPLACE)
    for path in old:
        if not force:
            raise make_older_error(f"{path} in {outcome.path}")
        if repository.place._replace(path=path) in inputs:
            raise OutputError(
                f"{path} in {outcome.path} is an input, which the output would replace",
                hint="choose another name for the output",
            )
