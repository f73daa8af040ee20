"""Consecutive pickles: a file can contain several, and torch's stream has five."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from weightctl.formats.pickles.dangers import is_dangerous
from weightctl.formats.pickles.effects import EFFECTS
from weightctl.formats.pickles.records import Global
from weightctl.formats.pickles.scan import MADE_UP, names
from weightctl.formats.pytorch.legacy import MAGIC
from weightctl.formats.pytorch.records import identity_of
from weightctl.formats.scanning.archives import storage_nbytes
from weightctl.formats.scanning.found import Scanned, unread
from weightctl.formats.scanning.sources import Slice
from weightctl.text.untyped import is_tuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.formats.pickles.scan import Named, PickleNames
    from weightctl.formats.scanning.sources import Budget, ScanPlace

# Names of files that are loaded as a pickle, or can be.
_NAMES = re.compile(
    r".*\.(?:pkl|pickle|pk|pck|pcl|cpkl|joblib|jbl|dill|npy|npz|pt|pth|ckpt|ptl)"
    r"|(?:.*/)?(?:pytorch_model|adapter_model|training_args|optimizer|scheduler|rng_state)[^/]*\.bin",
    re.IGNORECASE | re.DOTALL,
)
# The pickles in a stream: a magic number, a version, a description of the machine, the object, and
# the keys of its storages.
_IN_STREAM, _OBJECT = 5, 3
_LENGTH = 8
# Larger than the latest protocol, to include future ones.
_LAST_PROTOCOL = 15
_LEAST = 8
# The number of pickles without globals that are listed.
_MOST_LISTED = 1000
# Module names that Python can import; they contain no white space.
_EXTENSION = "extension "
_MODULE = re.compile(r"[^\s:;,()<>\"']+")


def is_called_pickle(name: str) -> bool:
    """Whether a file has the name of a file that is loaded as a pickle, or can be."""
    return _NAMES.fullmatch(name) is not None


def pickles(
    place: ScanPlace, head: bytes, budget: Budget, *, expected: bool
) -> Iterator[Scanned | ScanPlace]:
    """Yield the pickles at the start of a source, and the problems that prevent reading them.

    `head` is the start of the data. If no pickle is `expected`, a few opcodes that name no global
    are not reported, because data of any kind can begin with them.
    """
    source = place.source
    if not expected and EFFECTS[head[0]] is None:
        return
    found: list[Scanned] = []
    at = 0
    while source.read(at, 1):
        budget.enter()
        names_ = names(source, at, source.base, budget.reading)
        start, at = at, names_.end
        scanned = Scanned(place.member, source.base + start, names_, place.is_script)
        if names_.problem:
            if start and not names_.named:
                problem = f"{source.size() - start} bytes after the last pickle cannot be read"
                scanned = unread(problem, place.member, source.base + start)
            found.append(scanned)
            break
        if names_.named or len(found) < _MOST_LISTED:
            found.append(scanned)
        if start == 0 and names_.result == MAGIC:
            yield from _stream(place, budget, scanned)
            return
    if expected or _is_pickle(head, found, place):
        yield from found


def _is_pickle(head: bytes, found: list[Scanned], place: ScanPlace) -> bool:
    """Whether opcodes are those of a pickle, because other data cannot have their effects."""
    named = list(_importable(found))
    # Only pickles have frames, and other data has none that overlap.
    is_crossed = any(each.names.crosses for each in found)
    if is_crossed or any(is_dangerous(each.path) for each in named):
        return True
    if place.is_storage:
        return any(each.names.acts for each in found) and bool(named)
    # A module of any name can be imported, such as `my model`, if its file is where programs look.
    if any(each.names.acts and each.names.named for each in found):
        return True
    if head[:1] == b"\x80" and head[1:2] and head[1] <= _LAST_PROTOCOL and found:
        first = found[0].names
        return (
            bool(first.named)
            or first.end > found[0].start - place.source.base + _LEAST
            or (not first.problem)
        )
    if not named:
        return bool(found) and not any(each.names.problem for each in found)
    return not _is_text(head) or any(
        each.names.acts or not each.names.problem for each in found if each.names.named
    )


def _importable(found: list[Scanned]) -> Iterator[Named]:
    """Yield globals up to the first that no program can import, where unpicklers stop.

    Storages are included, because torch finds them by their names alone. Extensions are excluded,
    because they must be registered first.
    """
    for scanned in found:
        for each in scanned.names.named:
            if each.path == MADE_UP:
                if scanned.names.acts:
                    yield each
                continue
            module, _, name = each.path.rpartition(".")
            is_module = _MODULE.fullmatch(module) is not None and module.isprintable()
            if name.startswith(_EXTENSION) or not (is_module or "Storage" in name):
                return
            yield each


def _is_text(head: bytes) -> bool:
    try:
        return all(letter.isprintable() or letter in "\n\r\t" for letter in str(head, "utf-8"))
    except UnicodeDecodeError:
        return False


def _stream(place: ScanPlace, budget: Budget, first: Scanned) -> Iterator[Scanned | ScanPlace]:
    """Yield the pickles of torch's stream, and the data after its storages."""
    source = place.source
    yield first
    at, nbytes = first.names.end, 0
    for number in range(1, _IN_STREAM):
        found = names(source, at, source.base, budget.reading)
        yield Scanned(place.member, source.base + at, found)
        if found.problem:
            return
        if number == _OBJECT:
            try:
                nbytes = _storages(found)
            except ValueError as error:
                problem = f"the number of bytes of its storages cannot be computed: {error}"
                yield unread(problem, place.member, source.base + at)
                return
        at = found.end
    at += nbytes
    if source.read(at, 1):
        rest = Slice(source, at, source.size() - at)
        yield place.within(rest, "(after the storages)", place.name)
        problem = f"{rest.size()} bytes after the last storage are not part of the format"
        yield unread(problem, place.member, source.base + at)


def _storages(found: PickleNames) -> int:
    """Return the bytes of the storages of an object; raises `ValueError` if they are unknown."""
    storages: dict[str, int] = {}
    for identity in found.identities:
        fields = identity_of(identity) if isinstance(identity, str) else identity
        if is_tuple(fields) and fields[:1] == ("module",):
            continue
        if not is_tuple(fields) or len(fields) < 5 or fields[0] != "storage":
            raise ValueError("a persistent id does not describe a storage")
        kind, key, count = fields[1], fields[2], fields[4]
        if not isinstance(kind, Global) and type(key) not in {str, int}:
            raise ValueError("a storage key is not a string or integer")
        storages[str(key)] = _LENGTH + storage_nbytes(kind, key, count)
    return sum(storages.values())
