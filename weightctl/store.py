"""Opening checkpoints and saving plans: the doors to the disk."""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ConversionError
from weightctl.formats import FORMATS, format_by_suffix, format_module
from weightctl.formats.base import write_in_order
from weightctl.formats.huggingface import carry, companions
from weightctl.formats.parts import is_part, open_files
from weightctl.weights.source import Files
from weightctl.weights.tree import Weights

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from weightctl.formats.base import Bytes, Layout, Sink
    from weightctl.plan import Plan
    from weightctl.weights.info import TensorInfo

__all__ = ["Saved", "Target", "check", "open_weights", "save", "target"]


def open_weights(path: str | os.PathLike[str], format_name: str | None = None) -> Weights:
    """Open the checkpoint at a path as a tree; headers are parsed, no tensor is read.

    The path is a file, any part of a split set, an index, or a directory; the format is found by
    content. Of several formats in a directory safetensors is taken before GGUF, unless
    `format_name` says otherwise; `header.notes` says so then. Raises `FormatError`, and
    `ConversionError` for a format there is not.
    """
    if format_name is not None:
        format_module(format_name)
    header, files = open_files(os.fspath(path), format_name)
    return Weights(Files(header, files))


class Target(NamedTuple):
    """Where an output goes: a format, and a file, alone or inside a model's directory."""

    path: str
    format: str
    file_name: str | None = None


class Saved(NamedTuple):
    """What a save did: bytes written, seconds taken, overflows by tensor."""

    nbytes: int
    seconds: float
    overflows: dict[str, int]


def target(path: str, format_name: str | None = None) -> Target:
    """Decide what an output path means.

    A known suffix is a file of that format, as any suffix is with `format_name`. A path without a
    suffix, with a slash at its end, or of a directory is a model's directory, in the format that
    has such. Raises `ConversionError` where that leaves no answer.
    """
    stem = path.rstrip("/")
    if not stem or path == "-":
        raise ConversionError(f"`{path}` is no name for an output", hint="name a file or directory")
    if path == stem and os.path.isdir(path) and format_by_suffix(path):
        raise ConversionError(
            f"{path} is a directory with the suffix of a file",
            hint="end it with a slash if it is meant",
        )
    if format_name is not None:
        format_module(format_name)
    if path == stem and os.path.splitext(stem)[1] and not os.path.isdir(path):
        return Target(path, _format_of_file(path, format_name))
    chosen = format_name or next(name for name, line in FORMATS.items() if line.in_directory)
    line = FORMATS[chosen]
    if line.in_directory is None:
        raise ConversionError(
            f"{path}: {chosen} is a file, not a directory",
            hint=f"name it {os.path.join(stem, 'model' + line.suffix)}",
        )
    return Target(stem, chosen, line.in_directory)


def _format_of_file(path: str, format_name: str | None) -> str:
    by_suffix = format_by_suffix(path)
    if format_name and by_suffix and format_name != by_suffix:
        raise ConversionError(
            f"{path} has the suffix of {by_suffix}, but --to says {format_name}",
            hint=f"name it with {FORMATS[format_name].suffix}, or leave out --to",
        )
    if is_part(path):
        raise ConversionError(
            f"{path} has the name of one of several parts, and would be the only one",
            hint="leave the numbers out of its name",
        )
    chosen = format_name or by_suffix
    if chosen is None:
        suffixes = ", ".join(line.suffix for line in FORMATS.values())
        raise ConversionError(
            f"{path}: which format? Its suffix is none of {suffixes}",
            hint="for a directory end it with a slash; for a file pass --to and a format",
        )
    return chosen


def check(plan: Plan, where: Target, *, force: bool = False) -> Layout:
    """Refuse what `save` would refuse before it writes; return the file to be.

    Raises `ConversionError` where the format cannot hold the plan, and `OutputError` where the
    target must not or cannot be written.
    """
    from weightctl.output import check_target

    layout = plan.layout()
    path = os.path.realpath(where.path)
    header = plan.source.header
    carried = companions(header.files)
    kept: Mapping[str, str] = carried if where.file_name else {}
    check_target(
        path,
        layout.nbytes + sum(os.path.getsize(each) for each in kept.values()),
        [*header.files, *([header.index] if header.index else ()), *carried.values()],
        force=force,
        replaceable=_own_names(where, kept),
    )
    return layout


def save(
    plan: Plan,
    where: Target | str | os.PathLike[str],
    *,
    force: bool = False,
    threads: int | None = None,
    memory: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Saved:
    """Carry out a plan; the target is the complete new one, or what it was before.

    `where` is a `Target`, or a path, which must mean the plan's format. `progress` is called with
    the bytes of each piece written. Raises as `check` does, and `FormatError` where the source
    cannot be read.
    """
    # Imported here, so that opening stays quick.
    from weightctl.execute import DEFAULT_MEMORY, Losses, execute
    from weightctl.output import clear_leftovers, output_file

    started = time.monotonic()
    if not isinstance(where, Target):
        where = target(os.fspath(where), plan.format)
    # What a killed run has left takes space that this one may use.
    clear_leftovers(os.path.realpath(where.path))
    layout = check(plan, where, force=force)
    losses = Losses()
    budget = DEFAULT_MEMORY if memory is None else memory
    with _opened(plan, where, force=force) as path, output_file(path, force=force) as sink:
        pieces = execute(plan, layout.tensors, threads=threads, memory=budget, losses=losses)
        _write(layout, sink, pieces, progress)
    return Saved(layout.nbytes, time.monotonic() - started, losses.overflows)


def _own_names(where: Target, carried: Mapping[str, str]) -> set[str]:
    return {*carried, where.file_name} if where.file_name else set()


@contextmanager
def _opened(plan: Plan, where: Target, *, force: bool) -> Generator[str, None, None]:
    """Yield the path of the file to write, inside a directory with its companions or alone."""
    path = os.path.realpath(where.path)
    if where.file_name is None:
        yield path
        return
    from weightctl.output import output_directory, refused

    carried = companions(plan.source.header.files)
    own = _own_names(where, carried)
    with output_directory(path, force=force, replaceable=own) as directory:
        try:
            carry(carried, directory, _main_dtype(plan))
        except OSError as error:
            raise refused(directory, error) from error
        yield os.path.join(directory, where.file_name)


def _main_dtype(plan: Plan) -> str | None:
    """Return torch's name for what most of the weights become, None where nothing changes."""
    sizes: Counter[str] = Counter()
    for item in plan.items:
        dtype = item.info.encoding.dtype
        if dtype is not None and dtype.is_float:
            sizes[dtype.value] += item.info.size
    if not sizes or all(item.is_copy for item in plan.items):
        return None
    name = sizes.most_common(1)[0][0]
    # transformers computes in what the config says, and nothing computes in 8-bit floats.
    return None if name.startswith("float8") else name


def _write(
    layout: Layout,
    sink: Sink,
    pieces: Iterator[tuple[TensorInfo, Bytes]],
    progress: Callable[[int], object] | None,
) -> None:
    ahead = next(pieces, None)

    def pull(info: TensorInfo) -> Iterable[Bytes]:
        nonlocal ahead
        while ahead is not None and ahead[0] is info:
            yield ahead[1]
            if progress is not None:
                progress(memoryview(ahead[1]).nbytes)
            ahead = next(pieces, None)

    write_in_order(layout, sink, pull)
