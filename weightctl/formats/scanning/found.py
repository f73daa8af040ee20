"""The findings of a scan, and globals that the user trusts in addition to the closed list."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Self

from weightctl.errors import WeightctlError
from weightctl.formats.pickles.dangers import is_dangerous
from weightctl.formats.pickles.scan import MADE_UP, PickleNames
from weightctl.formats.pytorch.constructors import is_allowed
from weightctl.storage.files import read_start
from weightctl.text.patterns import PATTERN, select_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_OF_TORCHSCRIPT = "__torch__."
# The classes of torch's layers: to create one, or set its attributes, runs no other code.
_LAYERS = re.compile(
    r"torch\.nn\.modules\.(?:activation|adaptive|batchnorm|channelshuffle|container|conv|distance"
    r"|dropout|flatten|fold|instancenorm|linear|loss|module|normalization|padding|pixelshuffle"
    r"|pooling|rnn|sparse|transformer|upsampling)\.[A-Z][A-Za-z0-9]+"
    # The activations that layers keep, such as that of a TransformerEncoderLayer.
    r"|torch\.(?:nn\.functional|_C\._nn)\.(?:celu|elu|gelu|glu|hardsigmoid|hardswish|hardtanh"
    r"|leaky_relu|log_softmax|logsigmoid|mish|relu|relu6|selu|sigmoid|silu|softmax|softplus"
    r"|softsign|tanh)"
)
_LARGEST_FILE = 1 << 20


class Severity(StrEnum):
    """The harm that a global can do to a program that loads it."""

    DANGEROUS = "dangerous"
    UNKNOWN = "unknown"
    KNOWN = "known"


class FoundCode(NamedTuple):
    """Code outside of pickles; it is dangerous if what it does is recognized as harmful."""

    text: str
    offset: int
    is_dangerous: bool

    @property
    def label(self) -> str:
        return f"code: {self.text}"

    @property
    def severity(self) -> Severity:
        """The harm that it can do to a program that loads it."""
        return Severity.DANGEROUS if self.is_dangerous else Severity.UNKNOWN


class Scanned(NamedTuple):
    """A pickle: the member that contains it, its offset, and the globals that it names.

    `start` and the offsets of `names` are relative to the file, or to the unpacked data of a
    compressed member. `is_script` is true for a pickle of TorchScript, whose classes are in the
    archive itself. If `code` is given, it is this code, and not a pickle.
    """

    member: str
    start: int
    names: PickleNames
    is_script: bool = False
    code: FoundCode | None = None

    def severity(self, path: str) -> Severity:
        """Return the harm that a global can do."""
        is_of_script = self.is_script and path.startswith(_OF_TORCHSCRIPT)
        if is_allowed(path) or is_of_script or _LAYERS.fullmatch(path):
            return Severity.KNOWN
        return Severity.DANGEROUS if is_dangerous(path) else Severity.UNKNOWN

    def is_known(self, path: str) -> bool:
        """Whether a global is in the closed list."""
        return self.severity(path) is Severity.KNOWN


def unread(problem: str, member: str = "", start: int = 0) -> Scanned:
    """Return the finding for data that can contain a pickle but cannot be read."""
    return Scanned(member, start, PickleNames((), start, problem))


class AllowList:
    """Patterns of globals that count as known.

    A pattern with wildcards allows neither dangerous globals nor names that end in one, such as
    `torch.nn.torch.load`, because pickles reach one module through another. A pattern without
    wildcards allows exactly the global that it names.
    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        given = [*patterns]
        self._exact = frozenset(each for each in given if PATTERN.isdisjoint(each))
        self._globs = [each for each in given if each not in self._exact]
        # Raises an error for an invalid pattern before any file is opened.
        select_names([], self._globs)

    @classmethod
    def read(cls, patterns: Iterable[str], path: str | None) -> Self:
        """Return a list that also has the patterns of a file, if a path is given.

        Raises `WeightctlError` if the file cannot be read.
        """
        return cls([*patterns, *(_read_patterns(path) if path is not None else ())])

    def select(self, names: Sequence[str]) -> set[str]:
        """Return the globals among `names` that are allowed."""
        allowed = {name for name in names if name in self._exact}
        if self._globs:
            allowed |= {
                name for name in select_names(names, self._globs) if not _ends_in_danger(name)
            }
        # A pickle that computes a name can name any global.
        return allowed - {MADE_UP}

    def select_code(self, found: Iterable[FoundCode]) -> set[FoundCode]:
        """Return the code that is allowed; patterns with wildcards do not allow dangerous code."""
        given = [*found]
        harmless = [each.label for each in given if not each.is_dangerous]
        labels = {*select_names(harmless, self._globs)} if self._globs and harmless else set[str]()
        return {each for each in given if each.label in self._exact | labels}


def _ends_in_danger(name: str) -> bool:
    segments = name.split(".")
    return any(is_dangerous(".".join(segments[first:])) for first in range(len(segments) - 1))


def _read_patterns(path: str) -> list[str]:
    """Return the patterns of a file: one per line; `#` begins a comment.

    Raises `WeightctlError` if the file is missing, too large, or not text.
    """
    hint = (
        "an allow file (--allow-file) is a text file with one pattern per line, such as torch.nn.*"
    )
    try:
        raw = read_start(path, _LARGEST_FILE + 1)
        text = raw.decode()
    except UnicodeDecodeError:
        raise WeightctlError(f"{path} is not UTF-8 text", hint=hint) from None
    except OSError as error:
        raise WeightctlError(f"{path}: {error.strerror}", hint=hint) from error
    if len(raw) > _LARGEST_FILE:
        raise WeightctlError(f"{path} is larger than 1 MiB", hint=hint)
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]
