"""Reads the files of a checkpoint with other libraries, unless a pickle is dangerous."""

from __future__ import annotations

import json
import os
import re
import tempfile
from importlib.util import find_spec
from subprocess import DEVNULL, TimeoutExpired
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.formats.pytorch.archive import is_zip
from weightctl.formats.pytorch.legacy import is_stream
from weightctl.formats.scanning import scan_file
from weightctl.storage.files import open_reader
from weightctl.storage.location import is_remote
from weightctl.system.children import start_python
from weightctl.text.wording import join_names, printable, say_more
from weightctl.verify.results import Problem, keep_first

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from weightctl.formats.scanning import Scanned
    from weightctl.storage.base import Reader
    from weightctl.weights.info import Header, TensorInfo


# torch reads a file in the format before PyTorch 1.6 into memory as a whole, so larger ones are not
# tried.
_LARGEST_STREAM = 1 << 29
_MOST_NAMED = 3


class Pickled(NamedTuple):
    """The problems with the pickles of a checkpoint.

    `reason` says why the files are not given to torch; it is empty if they are.
    """

    problems: tuple[Problem, ...]
    reason: str


def scan_pickles(header: Header) -> Pickled:
    """Scan the pickles of a checkpoint without loading them.

    A file is a problem if its pickle names globals that weights do not need. Raises `FormatError`
    if a file cannot be read.
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
        reason = reason or _explain_unread(file, found)
    return Pickled(tuple(problems), reason)


def _list_outside(found: Iterable[Scanned]) -> list[str]:
    """Return the globals of pickles that are not in the allow-list, without duplicates."""
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


def _explain_unread(file: Reader, found: Iterable[Scanned]) -> str:
    """Return the reason why a file is not given to torch; empty if it is."""
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


SECONDS = 60.0
# The memory that a reader may use, in addition to twice the size of the files.
MEMORY = 4 << 30
_CHILD = os.path.join(os.path.dirname(__file__), "reader_process.py")
_READER_OF = {"safetensors": "safetensors", "gguf": "gguf", "pytorch": "torch"}
_CALLED = {
    "safetensors": "`safetensors.safe_open`",
    "gguf": "`gguf.GGUFReader`",
    "torch": "`torch.load(weights_only=True)`",
}
# Texts of errors that a reader raises for valid files that it does not support.
_TOO_OLD = (
    "which we cannot handle",
    "is not a valid GGMLQuantizationType",
    "unknown variant",
    "has no attribute",
)

# torch's name for a class that it does not build from a pickle.
_STRANGE = re.compile(r"GLOBAL ([\w.]+)")


class Answer(NamedTuple):
    """The result of reading a checkpoint with another library.

    `reader` is the name of the library, empty if the format has none. `reason` is empty if the
    library reads all files as weightctl does. Otherwise it is one line that names the rejected file
    and the reason, or says why the library was not used.
    """

    reader: str
    problems: tuple[Problem, ...] = ()
    reason: str = ""

    @property
    def notes(self) -> list[str]:
        """A note if the library could not judge the files; otherwise empty."""
        has_judged = self.problems or not self.reason
        return (
            [] if has_judged else [f"{_CALLED[self.reader]} did not read the files: {self.reason}"]
        )


class _File(NamedTuple):
    """A file of a checkpoint: file `number` of a header."""

    header: Header
    number: int

    @property
    def path(self) -> str:
        return self.header.files[self.number]


def ask_reader(*headers: Header, seconds: float = SECONDS, memory: int = MEMORY) -> Answer:
    """Read a checkpoint's files with the reference reader of its format.

    Several headers must describe separate files. The reader runs in a separate process, so that its
    crash or lack of memory does not affect the caller. The process is stopped after `seconds`, and
    may use `memory` bytes in addition to twice the size of the files.
    """
    reader = find_reader(headers[0])
    if not reader:
        return Answer("")
    if find_spec(reader) is None:
        return Answer(reader, reason="not installed")
    if any(is_remote(path) for header in headers for path in header.files):
        return Answer(reader, reason="the files are not on this machine")
    files = [_File(header, number) for header in headers for number in range(len(header.files))]
    lines, ending = _run_reader(reader, [file.path for file in files], seconds, memory)
    return _judge(reader, files, lines, ending)


def find_reader(header: Header) -> str:
    """Return the name of the library that reads a checkpoint's format; empty if there is none."""
    return _READER_OF.get(header.format, "")


def _run_reader(
    reader: str, paths: Sequence[str], seconds: float, memory: int
) -> tuple[list[dict[str, Any]], str]:
    """Run a reader on files; return the lines that it printed, and how its process ended.

    The second text is empty if the process ended normally.
    """
    nbytes = sum(os.path.getsize(path) for path in paths)
    with tempfile.TemporaryFile() as output:
        process = start_python(
            *("-W", "ignore", _CHILD, reader, str(memory + 2 * nbytes)),
            *map(os.path.abspath, paths),
            stdin=DEVNULL,
            stdout=output,
            stderr=DEVNULL,
            is_untrusted=True,
        )
        ending = ""
        try:
            code = process.wait(seconds)
            ending = f"ended with exit code {code}" if code else ""
        except TimeoutExpired:
            ending = f"did not answer within {seconds:g} seconds"
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        return [*_parse_lines(output.read())], ending


def _parse_lines(raw: bytes) -> Iterator[dict[str, Any]]:
    for line in raw.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return


def _judge(
    reader: str, files: Sequence[_File], lines: Sequence[Mapping[str, Any]], ending: str
) -> Answer:
    problems: list[Problem] = []
    reasons: list[str] = []
    refused: list[str] = []
    number = 0
    where = files[0].path
    for line in lines:
        if "missing" in line:
            return Answer(reader, reason=f"cannot be started: {_join_lines(line['missing'])}")
        number = int(line.get("begin", number))
        where = files[number].path
        if "error" in line:
            message = _join_lines(line["error"])
            are_known = _are_known(files[number].header)
            if are_known and any(part in message for part in _TOO_OLD):
                reasons.append(f"does not support such files: {message}")
            else:
                why = _explain_refusal(reader, message)
                problems.append(
                    Problem(where=where, text=f"{_CALLED[reader]} refuses the file: {why}")
                )
                refused.append(f"{os.path.basename(where)}: {why.partition('; ')[0]}")
        elif "tensors" in line:
            differences = list(_find_differences(files[number], line))
            named = [
                Problem(where=name, text=f"{_CALLED[reader]} {text}") for name, text in differences
            ]
            others = f"{_CALLED[reader]} reads {{}} more tensors differently"
            problems += keep_first(named, others, where)
            reasons += [f"reads other tensors in {os.path.basename(where)}"] * bool(differences)
    if ending and ending.startswith("ended"):
        text = f"{_CALLED[reader]} crashes on the file: its process {ending}"
        problems.append(Problem(where=where, text=text))
        reasons.append(f"crashes on {os.path.basename(where)}: its process {ending}")
    if refused:
        more = f" ({say_more(len(refused) - 1)})" if len(refused) > 1 else ""
        reasons.insert(0, f"refuses {refused[0]}{more}")
    return Answer(reader, tuple(problems), next(iter(reasons), ending))


def _join_lines(text: Any) -> str:
    return printable(" ".join(str(text).split()))


def _explain_refusal(reader: str, text: str) -> str:
    """Return why a reader rejects a file.

    For a class that torch does not load from a pickle, the text names the class instead of torch's
    advice.
    """
    strange = _STRANGE.search(text) if reader == "torch" else None
    if strange is None:
        return text
    name = strange[1]
    return (
        f"it also contains {_choose_article(name)} `{name}`; `weightctl convert IN OUT.pt` "
        "keeps what can be loaded"
    )


def _choose_article(name: str) -> str:
    return "an" if name[:1].lower() in "aeiou" else "a"


def _are_known(header: Header) -> bool:
    return all(info.encoding.is_known for info in header.tensors.values())


def _find_differences(file: _File, line: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name of each tensor that a reader reads differently, with the difference."""
    header, number = file
    seen: Mapping[str, Any] = line["tensors"]
    ours = {
        name: info for name, info in header.tensors.items() if header.extents[name].file == number
    }
    names = {**ours, **{name: ours.get(other) for name, other in header.aliases.items()}}
    for name, info in ours.items():
        if name in seen:
            if text := _describe_difference(header.format, info, *seen[name]):
                yield name, text
        elif line["whole"]:
            yield name, "does not find it"
    if line["whole"] and header.format != "pytorch":
        for name in seen:
            if name not in names:
                yield name, "finds it, and weightctl does not"


def _describe_difference(
    format_name: str, info: TensorInfo, dtype: Any, shape: Sequence[int]
) -> str:
    if tuple(shape) != info.shape:
        return f"reads the shape {list(shape)}, and weightctl {list(info.shape)}"
    ours = info.encoding.ids.get(format_name)
    if info.encoding.is_known and ours is not None and ours != dtype:
        return f"reads {dtype}, and weightctl {info.encoding}"
    return ""
