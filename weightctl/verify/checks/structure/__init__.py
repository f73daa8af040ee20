"""The check `structure`: files are complete, consistent, and readable by other programs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from weightctl.errors import FormatError
from weightctl.formats.huggingface import CONFIG
from weightctl.formats.sharded.gathered import GatheredSource
from weightctl.storage.files import file_size, is_file, open_reader
from weightctl.text.untyped import is_object
from weightctl.verify.checks.structure.readers import Answer, ask_reader, find_reader, scan_pickles
from weightctl.verify.figures import StructureFigures
from weightctl.verify.results import MOST_NAMED, Problem, Result, keep_first
from weightctl.weights.json_file import read_json
from weightctl.weights.metadata import TEXT
from weightctl.weights.tree import source_of
from weightctl.write.digests import compute_digests, count_checked_bytes, find_altered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from weightctl.verify.request import Request
    from weightctl.weights.info import Header


__all__ = ["check", "check_digests", "check_total"]

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
            readers={answer.reader: answer.reason} if answer.reader else {},
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
