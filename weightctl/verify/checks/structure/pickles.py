"""The globals that a checkpoint's pickles name, and reasons not to give them to torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.formats.pytorch.archive import is_zip
from weightctl.formats.pytorch.legacy import is_stream
from weightctl.formats.scanning import scan_file
from weightctl.storage.location import open_reader
from weightctl.text.wording import join_names
from weightctl.verify.results import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weightctl.formats.scanning import Scanned
    from weightctl.storage.base import Reader
    from weightctl.weights.info import Header

__all__ = ["Pickled", "scan_pickles"]

# A stream is read into memory whole.
_LARGEST_STREAM = 1 << 29
_MOST_NAMED = 3


class Pickled(NamedTuple):
    """The findings in the pickles of a checkpoint.

    `reason` is why torch does not read them; empty if it does.
    """

    problems: tuple[Problem, ...]
    reason: str


def scan_pickles(header: Header) -> Pickled:
    """Scan the pickles of a checkpoint; nothing in them is built or run.

    Problems are globals that weights do not need. Raises `FormatError` if a file cannot be read.
    """
    if header.format != "pytorch":
        return Pickled((), "")
    problems: list[Problem] = []
    reason = ""
    for path in header.files:
        file = open_reader(path)
        found = scan_file(file)
        outside = _list_outside(found)
        if outside:
            reason = "not tried, because the pickle names globals that weights do not need"
            problems.append(Problem(where=path, text=_name_outside(outside)))
        reason = reason or _explain_refusal(file, found)
    return Pickled(tuple(problems), reason)


def _list_outside(found: Iterable[Scanned]) -> list[str]:
    """Return the globals of pickles that are not in the allow-list, each once."""
    names: dict[str, None] = {}
    for pickle in found:
        for each in pickle.names.named:
            if not pickle.is_known(each.path):
                names.setdefault(f"`{each.path}`")
        if pickle.names.problem:
            names.setdefault(f"globals that cannot be determined ({pickle.names.problem})")
    return [*names]


def _name_outside(outside: list[str]) -> str:
    return (
        f"the pickle names {join_names(outside, _MOST_NAMED)}, which weights do not need; a "
        "program that loads the file runs this code or refuses the file. `weightctl ls "
        "--scan` lists what it names, and `weightctl convert` writes only the weights"
    )


def _explain_refusal(file: Reader, found: Iterable[Scanned]) -> str:
    """Return the reason why torch cannot or should not read a file; empty if it can."""
    if any(each.is_script for each in found):
        return "not tried, because `weights_only=True` does not load TorchScript"
    if is_zip(file):
        return ""
    if not is_stream(file.read(0, 512)):
        return "not tried, because the file is a pickle that `torch.save` did not write"
    if file.size > _LARGEST_STREAM:
        return (
            "not tried, because it would read the whole file into memory: the file has the "
            "format of PyTorch before 1.6"
        )
    return ""
