"""The check `structure`: files are complete, consistent, and readable by other programs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from importlib.util import find_spec
from subprocess import DEVNULL, TimeoutExpired
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import FormatError
from weightctl.formats.huggingface import CONFIG
from weightctl.formats.pytorch.archive import is_zip
from weightctl.formats.pytorch.legacy import is_stream
from weightctl.formats.scanning import scan_file
from weightctl.formats.sharded.gathered import GatheredSource
from weightctl.storage.files import file_size, is_file, open_reader
from weightctl.storage.location import is_remote
from weightctl.system.children import start_python
from weightctl.system.registry import name_install
from weightctl.text.untyped import is_object
from weightctl.text.wording import join_names, printable, say_more
from weightctl.verify.figures import StructureFigures
from weightctl.verify.results import MOST_NAMED, Problem, Result, keep_first
from weightctl.weights.json_file import read_json
from weightctl.weights.metadata import TEXT
from weightctl.weights.tree import source_of
from weightctl.write.digests import compute_digests, count_checked_bytes, find_altered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from weightctl.formats.scanning import Scanned
    from weightctl.storage.base import Reader
    from weightctl.verify.request import Request
    from weightctl.weights.info import Header, TensorInfo


# The caches of the Hub and of Ollama name a file after the SHA-256 of its content.
_HASH_NAME = re.compile(r"(sha256-)?(?P<hash>[0-9a-f]{64})")
_LARGEST_INDEX = 100_000_000
# ggml stores a name in 64 bytes, including a final zero byte.
_LONGEST_GGUF_NAME = 63
_FRAMEWORKS = ("pt", "tf", "flax", "mlx", "np")


def check(request: Request) -> Result:
    """Compare a checkpoint's headers, files and index, and run its format's own reader.

    It is a problem if the reader rejects a file or reads it differently. Properties that only make
    a file slow or unusual are notes. Raises `FormatError` if a file can no longer be read.
    """
    source = source_of(request.subject.stored)
    header = source.header
    request.tell("reading headers", 0)
    problems = [problem for find in _PROBLEMS for problem in find(header)]
    if isinstance(source, GatheredSource):
        problems += check_digests(source, request)
    request.tell("reading with another library", 0.2)
    found = scan_pickles(header)
    headers = source.ranks if isinstance(source, GatheredSource) else (header,)
    answer = (
        Answer(find_reader(header), reason=found.reason) if found.reason else ask_reader(*headers)
    )
    # If a file changes while it is read, another reader's error is not a property of the file.
    source.refuse_change()
    return Result(
        problems=(*problems, *found.problems, *answer.problems),
        figures=StructureFigures(
            files=len(header.files),
            nbytes=sum(file_size(path) for path in header.files),
            tensors=len(header.tensors),
            readers={answer.reader: answer.reason or None} if answer.reader else {},
        ),
        notes=(
            *header.notes,
            *(note for find in _NOTES for note in find(header)),
            *(() if found.problems else answer.notes),
        ),
    )


def check_total(header: Header) -> Iterator[Problem]:
    """Yield a problem if the index states a total size that is not that of the tensors."""
    # A manifest of ranks states the bytes of each tensor, but no total.
    is_index = header.listing is not None and not header.shardings
    stated_size = _read_stated_size(header.listing) if is_index and header.listing else None
    # Some writers count a tensor once for each of its names.
    once = sum(extent.nbytes for extent in header.extents.values())
    repeated = sum(header.extents[name].nbytes for name in header.aliases.values())
    if (
        header.listing is not None
        and stated_size is not None
        and stated_size not in {once, once + repeated}
    ):
        yield Problem(
            where=header.listing,
            text=f"`total_size` is {stated_size:,}, and the tensors of all parts have {once:,} "
            "bytes; the index may be that of other files",
        )


def _read_stated_size(path: str) -> int | None:
    try:
        document: Any = read_json(open_reader(path), _LARGEST_INDEX)
    except FormatError:
        return None
    metadata: Any = document.get("metadata") if is_object(document) else None
    size: Any = metadata.get("total_size") if is_object(metadata) else None
    is_whole = isinstance(size, int) or (isinstance(size, float) and size.is_integer())
    return int(size) if is_whole and not isinstance(size, bool) else None


def _check_content_hash(header: Header) -> Iterator[Problem]:
    """Yield a problem for each file of a cache whose content does not have the hash of its name."""
    for path in header.files:
        if is_remote(path):
            continue
        named = _HASH_NAME.fullmatch(os.path.basename(os.path.realpath(path)))
        if named is None:
            continue
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != named["hash"]:
            yield Problem(
                where=path,
                text="the file has changed since it was downloaded: its SHA-256 is "
                f"{found[:12]}..., and its name in the cache states {named['hash'][:12]}...",
                hint="download it again",
            )


def _check_encodings(header: Header) -> Iterator[Problem]:
    """Yield a problem for each unknown encoding, at the first tensor that has it."""
    kinds: dict[str, list[str]] = {}
    for name, info in header.tensors.items():
        if not info.encoding.is_known:
            kinds.setdefault(info.encoding.name, []).append(name)
    for kind, names in [*kinds.items()][:MOST_NAMED]:
        more = f"; {len(names) - 1} more tensors have it" if len(names) > 1 else ""
        yield Problem(
            where=names[0],
            text=f"has an encoding that weightctl does not support ({kind}), so its values cannot "
            f"be verified{more}",
        )


def _check_name_lengths(header: Header) -> Iterator[Problem]:
    """Yield a problem for each tensor name of a GGUF file that is too long for llama.cpp."""
    if header.format != "gguf":
        return
    found = [name for name in header.tensors if len(name.encode()) > _LONGEST_GGUF_NAME]
    problems = [
        Problem(
            where=name,
            text=f"the name has {len(name.encode())} bytes, and llama.cpp reads at most "
            f"{_LONGEST_GGUF_NAME}; shorten it with --rename",
        )
        for name in found
    ]
    yield from keep_first(problems, "{} more names are too long for llama.cpp")


def _note_empty(header: Header) -> Iterator[str]:
    if not header.tensors:
        yield "there are no tensors; only the header was checked"


def _note_misaligned(header: Header) -> Iterator[str]:
    """Yield a note if misaligned tensors of a safetensors file cannot be read without a copy."""
    if header.format != "safetensors":
        return
    crooked = [
        name
        for name, extent in header.extents.items()
        if extent.nbytes
        and header.tensors[name].encoding.block == 1
        and extent.offset % header.tensors[name].encoding.size
    ]
    if crooked:
        some = f"`{crooked[0]}`" if len(crooked) == 1 else f"{len(crooked)} tensors"
        verb = "starts" if len(crooked) == 1 else "start"
        yield (
            f"{some} {verb} at an offset that is not a multiple of the element size, so "
            "programs must copy instead of map; `weightctl convert` writes an aligned file"
        )


def _note_no_framework(header: Header) -> Iterator[str]:
    """Yield a note if transformers before version 5 rejects a file's metadata."""
    if header.format != "safetensors" or not header.metadata:
        return
    value = header.metadata.get("format")
    is_stated = value is not None and value.type == TEXT and value.content in _FRAMEWORKS
    is_model = is_file(os.path.join(os.path.dirname(header.files[0]), CONFIG))
    if is_model and not is_stated:
        yield (
            "the metadata has no `format`, and transformers before version 5 refuses such "
            "files; `weightctl convert` adds it"
        )


def _note_byte_order(header: Header) -> Iterator[str]:
    if header.big_endian:
        yield "the values are big-endian; llama.cpp reads such files only on big-endian machines"


_PROBLEMS: tuple[Callable[[Header], Iterator[Problem]], ...] = (
    check_total,
    _check_content_hash,
    _check_encodings,
    _check_name_lengths,
)
_NOTES: tuple[Callable[[Header], Iterator[str]], ...] = (
    _note_empty,
    _note_misaligned,
    _note_no_framework,
    _note_byte_order,
)


def check_digests(gathered: GatheredSource, request: Request) -> Sequence[Problem]:
    """Return a problem for each shard whose SHA-256 differs from the one in the manifest.

    Raises `FormatError` if a file cannot be read.
    """
    total, done = count_checked_bytes(gathered), 0

    def tell(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        request.tell("reading the files of all ranks", 0.2 * done / total)

    problems = [
        Problem(
            where=part.tensor,
            text=f"the values on rank {part.rank} were changed: the SHA-256 in {part.file} is not "
            "that of the manifest",
            hint="copy the file again, or write the shards again",
        )
        for part in find_altered(gathered, progress=tell, digests=_digest_by_workers(request))
    ]
    where = gathered.header.listing or ""
    return keep_first(problems, "{} more shards were changed", where)


def _digest_by_workers(request: Request) -> dict[str, str] | None:
    """Return the SHA-256 of each shard, computed by workers; None if there are no workers."""
    gathered = request.subject.cut
    if request.workers is None or gathered is None:
        return None
    tensors = gathered.shards.header.tensors
    # The shards are read in file order, which is fastest on disks.
    names = sorted(tensors, key=lambda name: gathered.shards.header.extents[name][:2])
    made = request.workers.map(
        _digest_units,
        names,
        [tensors[name].nbytes for name in names],
        lambda done: request.tell("reading the files of all ranks", 0.2 * done),
    )
    return {name: digest.hex() for name, digest in zip(names, made, strict=True)}


def _digest_units(request: Request, names: Sequence[str]) -> list[bytes]:
    gathered = request.subject.cut
    if gathered is None:
        raise TypeError("only sharded checkpoints have digests")
    found = compute_digests(gathered.shards, names, threads=1)
    return [bytes.fromhex(found[name]) for name in names]


# Reads the files of a checkpoint with other libraries, unless a pickle is dangerous.


# torch reads a file in the format before PyTorch 1.6 into memory as a whole, so larger ones are not
# tried.
_LARGEST_STREAM = 1 << 29
_MOST_GLOBALS = 3


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
        f"the pickle names {join_names(outside, _MOST_GLOBALS)}, which weights do not need; a "
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
        extra = "torch" if reader == "torch" else "check"
        return Answer(reader, reason=f"not installed: {name_install(extra)}")
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
            tensors = files[number].header.tensors.values()
            are_known = all(info.encoding.is_known for info in tensors)
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
