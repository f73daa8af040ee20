"""Open a checkpoint, and carry out a plan into another."""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ConversionError, OutputError
from weightctl.formats import format_module
from weightctl.formats.base import is_text, write_in_order
from weightctl.formats.huggingface import carry, companions, file_name
from weightctl.formats.index import index_of
from weightctl.formats.parts import open_files
from weightctl.targets import (
    Target,
    check_place,
    refuse_inputs,
    refuse_what_is_there,
    stream_name,
    target,
)
from weightctl.temporary import without_temporary
from weightctl.weights.source import Files
from weightctl.weights.tree import Weights

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from weightctl.codecs.loss import Loss
    from weightctl.formats.base import Bytes, Layout, Sink
    from weightctl.plan import Plan
    from weightctl.weights.info import TensorInfo

__all__ = ["Output", "Saved", "check", "describe", "input_files", "open_weights", "save"]


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


@dataclass(frozen=True, slots=True)
class Output:
    """The files that a plan makes, by name and known to the byte.

    `index` is the name and content of the file that lists the others, where there is one; `carried`
    are the paths, by name, of what stands beside the source and goes along.
    """

    parts: Mapping[str, Layout]
    index: tuple[str, bytes] | None
    carried: Mapping[str, str]

    @property
    def nbytes(self) -> int:
        """The bytes of the checkpoint's files."""
        listed = len(self.index[1]) if self.index else 0
        return sum(layout.nbytes for layout in self.parts.values()) + listed

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """All tensors in the order of their bytes."""
        return tuple(chain.from_iterable(layout.tensors for layout in self.parts.values()))


class Saved(NamedTuple):
    """What a save did: the files and where they are, seconds taken, what was lost by tensor."""

    output: Output
    paths: tuple[str, ...]
    seconds: float
    losses: Mapping[str, Loss]

    @property
    def nbytes(self) -> int:
        """The bytes of the checkpoint's files."""
        return self.output.nbytes


def check(plan: Plan, where: Target, *, force: bool = False) -> Output:
    """Refuse what `save` would refuse before it writes; return the files to be.

    Raises `ConversionError` where the format cannot hold the plan, and `OutputError` where the
    target must not or cannot be written.
    """
    where = _named(plan, where)
    output = describe(plan, where)
    _refuse(plan, where, output, force=force)
    return output


def _refuse(plan: Plan, where: Target, output: Output, *, force: bool) -> None:
    if where.is_stream:
        if len(output.parts) > 1:
            raise ConversionError(
                f"{stream_name(where.path)} is one pipe, and this would be {len(output.parts)} "
                "files",
                hint="leave out --max-shard-size, or name a file",
            )
        return
    paths = _paths(where, output)
    for path in paths:
        refuse_inputs(path, input_files(plan))
    is_ours = _is_name_of(where, output)
    refuse_what_is_there(paths, force=force, is_ours=is_ours)
    rivals = _rivals(plan, where, output)
    if rivals and not force:
        raise OutputError(
            f"{rivals[0]} is of another checkpoint of this name, and readers would find both",
            hint="choose another name, or pass --force to replace it",
        )
    nbytes = output.nbytes + sum(os.path.getsize(each) for each in output.carried.values())
    root = os.path.realpath(where.path)
    check_place(os.path.dirname(root), root, nbytes)


def input_files(plan: Plan) -> list[str]:
    """Return the paths of everything that a plan reads or that belongs to it: never an output."""
    header = plan.source.header
    index = [header.index] if header.index else []
    return [*header.files, *index, *companions(header.files).values()]


def _named(plan: Plan, where: Target) -> Target:
    """Give the file in a model's directory the name that its readers look for."""
    if where.file_name is None:
        return where
    return where._replace(file_name=file_name(plan.source.header.files, where.file_name))


def describe(plan: Plan, where: Target) -> Output:
    """Return the files that a plan makes, whether or not the target can be written.

    Raises `ConversionError` as `Plan.layouts` does.
    """
    where = _named(plan, where)
    layouts = plan.layouts()
    parts = dict(zip(where.names(len(layouts)), layouts, strict=True))
    index_name = where.index_name if len(parts) > 1 else None
    if index_name is not None and not is_text(index_name):
        raise ConversionError("an index cannot name files that are no UTF-8", hint="rename OUT")
    index = None if index_name is None else (index_name, index_of(parts, plan.tied))
    if where.file_name is None:
        return Output(parts, index, {})
    # What is made anew goes before what stands beside the source.
    made = {*parts, *([index_name] if index_name else ())}
    beside = companions(plan.source.header.files)
    carried = {name: path for name, path in beside.items() if name not in made}
    return Output(parts, index, carried)


def _paths(where: Target, output: Output) -> list[str]:
    """Return what will be new: the directory, or the files."""
    if where.file_name is not None:
        return [os.path.realpath(where.path)]
    if len(output.parts) == 1:
        return [os.path.realpath(where.path)]
    directory = os.path.dirname(os.path.realpath(where.path))
    return [os.path.join(directory, name) for name in _names(output)]


def _names(output: Output) -> list[str]:
    """Return the names of the files, that which leads to the others first."""
    return [*([output.index[0]] if output.index else ()), *output.parts]


def _rivals(plan: Plan, where: Target, output: Output) -> list[str]:
    """Return the files beside the output that readers take for the same checkpoint.

    They are those of another number of parts; the input may stand there too, and is none.
    """
    directory = os.path.dirname(os.path.realpath(where.path))
    if where.file_name is not None or not os.path.isdir(directory):
        return []
    inputs = set(map(os.path.realpath, input_files(plan)))
    new = set(_paths(where, output))
    there = [os.path.join(directory, name) for name in sorted(os.listdir(directory))
             if where.pattern().fullmatch(name)]  # fmt: skip
    return [path for path in there if os.path.realpath(path) not in inputs | new]


def _is_name_of(where: Target, output: Output) -> Callable[[str], bool]:
    """Return what tells the names that an output into a directory may have."""
    own = where.pattern()

    def is_ours(name: str) -> bool:
        name = without_temporary(name)
        return name in output.carried or own.fullmatch(name) is not None

    return is_ours


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

    `where` is a `Target`, or a path, which must mean the plan's format. `threads` work side by
    side, as many as there are cores unless said otherwise, within `memory` bytes; neither changes
    what is written. `progress` is called with the bytes of each piece written. Raises as `check`
    does, and `FormatError` where the source cannot be read.
    """
    # Imported here, so that opening stays quick.
    from weightctl.execute import DEFAULT_MEMORY, execute
    from weightctl.output import clear_leftovers

    started = time.monotonic()
    if not isinstance(where, Target):
        where = target(os.fspath(where), plan.format)
    where = _named(plan, where)
    output = describe(plan, where)
    # What a killed run has left takes space that this one may use.
    if not where.is_stream:
        names = where.pattern() if where.file_name is None else None
        clear_leftovers(os.path.realpath(where.path), names)
    _refuse(plan, where, output, force=force)
    losses: dict[str, Loss] = {}
    budget = DEFAULT_MEMORY if memory is None else memory
    pieces = execute(plan, output.tensors, threads=threads, memory=budget, losses=losses)
    with closing(pieces), _sinks(plan, where, output, force=force) as sink_of:
        pull = _Pull(pieces, progress)
        if output.index:
            sink_of(output.index[0]).write(output.index[1])
        for name, layout in output.parts.items():
            write_in_order(layout, sink_of(name), pull)
    return Saved(output, tuple(_final_paths(where, output)), time.monotonic() - started, losses)


def _final_paths(where: Target, output: Output) -> list[str]:
    if where.is_stream:
        return [where.path]
    if where.file_name is None:
        return _paths(where, output)
    return [os.path.join(os.path.realpath(where.path), name) for name in _names(output)]


@contextmanager
def _sinks(
    plan: Plan, where: Target, output: Output, *, force: bool
) -> Generator[Callable[[str], Sink], None, None]:
    """Yield what opens the file of a name: in a new directory, in one that is there, or a pipe."""
    from weightctl.output import output_directory, output_files, output_stream, refused

    if where.is_stream:
        with output_stream(where.path) as stream:
            yield lambda _: stream
        return
    path = os.path.realpath(where.path)
    if where.file_name is None:
        directory, base = os.path.split(path)
        rivals = _rivals(plan, where, output)
        with output_files(force=force, replaced=rivals) as create:
            # A link is followed, so that the file has the name of what it leads to.
            alone = len(output.parts) == 1
            yield lambda name: create(os.path.join(directory, base if alone else name))
        return
    is_ours = _is_name_of(where, output)
    with output_directory(path, force=force, is_ours=is_ours) as directory:
        try:
            carry(output.carried, directory, _main_dtype(plan))
        except OSError as error:
            raise refused(directory, error) from error
        with output_files() as create:
            yield lambda name: create(os.path.join(directory, name))


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


class _Pull:
    """Gives each tensor its pieces; they come in the order of the tensors."""

    def __init__(
        self,
        pieces: Iterator[tuple[TensorInfo, Bytes]],
        progress: Callable[[int], object] | None,
    ) -> None:
        self._pieces = pieces
        self._progress = progress
        self._ahead: tuple[TensorInfo, Bytes] | None = None

    def __call__(self, info: TensorInfo) -> Iterable[Bytes]:
        if self._ahead is None:
            self._ahead = next(self._pieces, None)
        while self._ahead is not None and self._ahead[0] is info:
            yield self._ahead[1]
            if self._progress is not None:
                self._progress(memoryview(self._ahead[1]).nbytes)
            self._ahead = next(self._pieces, None)
