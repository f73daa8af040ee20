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
from weightctl.formats.parts import open_files
from weightctl.weights.source import Files
from weightctl.weights.tree import Weights

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from weightctl.formats.base import Bytes, Layout, Sink
    from weightctl.plan import Plan
    from weightctl.weights.info import TensorInfo

__all__ = ["Saved", "Target", "open_weights", "save", "target"]


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
    if format_name is not None:
        format_module(format_name)
    if path == stem and os.path.splitext(stem)[1] and not os.path.isdir(path):
        chosen = format_name or format_by_suffix(path)
        if chosen is None:
            suffixes = ", ".join(line.suffix for line in FORMATS.values())
            raise ConversionError(
                f"{path}: which format? Its suffix is none of {suffixes}",
                hint=f"pass --to with one of {', '.join(FORMATS)}",
            )
        return Target(path, chosen)
    chosen = format_name or next(name for name, line in FORMATS.items() if line.in_directory)
    line = FORMATS[chosen]
    if line.in_directory is None:
        raise ConversionError(
            f"{path}: {chosen} is a file, not a directory",
            hint=f"name it {os.path.join(stem, 'model' + line.suffix)}",
        )
    return Target(stem, chosen, line.in_directory)


def save(
    plan: Plan,
    where: Target,
    *,
    force: bool = False,
    threads: int | None = None,
    memory: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> Saved:
    """Carry out a plan; the target is the complete new one, or what it was before.

    `progress` is called with the bytes of each piece written. Raises `OutputError` where the
    target must not or cannot be written, and `ConversionError` where the plan cannot be.
    """
    # Imported here, so that opening stays quick.
    from weightctl.execute import DEFAULT_MEMORY, Losses, execute
    from weightctl.output import check_target, output_file

    started = time.monotonic()
    layout = plan.layout()
    carried: Mapping[str, str] = {}
    if where.file_name is not None:
        carried = companions(plan.source.header.files)
    extra = sum(os.path.getsize(path) for path in carried.values())
    check_target(
        where.path,
        layout.nbytes + extra,
        plan.source.header.files,
        force=force,
        replaceable={*carried, where.file_name or ""},
    )
    losses = Losses()
    with _opened(plan, where, carried) as path, output_file(path) as sink:
        pieces = execute(
            plan, layout.tensors, threads=threads, memory=memory or DEFAULT_MEMORY, losses=losses
        )
        _write(layout, sink, pieces, progress)
    return Saved(layout.nbytes, time.monotonic() - started, losses.overflows)


@contextmanager
def _opened(plan: Plan, where: Target, carried: Mapping[str, str]) -> Generator[str, None, None]:
    """Yield the path of the file to write, inside a directory with its companions or alone."""
    if where.file_name is None:
        yield where.path
        return
    from weightctl.output import output_directory

    with output_directory(where.path) as directory:
        carry(carried, directory, _main_dtype(plan))
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
    return sizes.most_common(1)[0][0]


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
