"""Open a checkpoint, and carry out a plan into another."""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import ExitStack, closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from weightctl.errors import ArgumentTypeError
from weightctl.formats import format_module
from weightctl.formats.open.parts import open_files
from weightctl.formats.sharded.opening import manifest_at, note_of_part, open_sharded
from weightctl.text.sizes import format_size
from weightctl.weights.source import FileSource
from weightctl.weights.tree import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from weightctl.codecs.loss import Loss
    from weightctl.plan.plan import Plan
    from weightctl.weights.info import TensorInfo
    from weightctl.weights.protocol import Weights
    from weightctl.weights.source import Span
    from weightctl.write.outcome import Outcome
    from weightctl.write.output import OutputFile
    from weightctl.write.targets import Target

__all__ = ["Saved", "open_weights", "save"]


def open_weights(path: str | os.PathLike[str], format_name: str | None = None) -> Checkpoint:
    """Open the checkpoint at a path as a tree; headers are parsed, no tensor is read.

    The path is a file, any part of a split set, an index, a directory, or the manifest of a sharded
    checkpoint, of which the tensors are the whole ones; the format is found by content. Of several
    formats in a directory safetensors is taken before GGUF, unless `format_name` says otherwise;
    `header.notes` says so then. Raises `FormatError`, and `ConversionError` for a format there is
    not.
    """
    if format_name is not None:
        format_module(format_name)
    where = _path(path)
    listing = manifest_at(where)
    if listing is not None:
        return Checkpoint(open_sharded(listing, format_name))
    header, files = open_files(where, format_name)
    if note := note_of_part(header.files):
        header = header._replace(notes=(*header.notes, note))
    return Checkpoint(FileSource(header, files))


def _path(given: object) -> str:
    if not isinstance(given, str | bytes | os.PathLike):
        raise ArgumentTypeError(
            f"a checkpoint is opened by its path, not by a {type(given).__name__}",
            hint="give the path of a file or a directory",
        )
    return os.fsdecode(cast("str | bytes | os.PathLike[str]", given))


class Saved(NamedTuple):
    """What a save did: the files and where they are, seconds taken, what was lost by tensor."""

    outcome: Outcome
    seconds: float
    losses: Mapping[str, Loss]

    def __repr__(self) -> str:
        path, size = self.outcome.where.path, format_size(self.nbytes)
        return f"<Saved {path}: {size} in {self.seconds:.1f} s>"

    @property
    def paths(self) -> list[str]:
        """Where the checkpoint's files are, that which leads to the others first."""
        return self.outcome.files

    @property
    def nbytes(self) -> int:
        """The bytes of the checkpoint's files."""
        return self.outcome.nbytes


def save(
    plan: Plan | Weights | Mapping[str, Any],
    where: Target | str | os.PathLike[str],
    *,
    force: bool = False,
    threads: int | None = None,
    memory: int | str | None = None,
    progress: Callable[[int], object] | None = None,
) -> Saved:
    """Carry out a plan; the target is the complete new one, or what it was before.

    A tree of weights, or arrays by name such as a module's or torch's `state_dict()`, are stored
    as they are, in the format that the target means. `where` is a `Target`, or a path, which must
    mean a plan's format. `threads` work side by side, as many as there are cores unless said
    otherwise, within `memory` bytes, which may be text such as "512MiB"; neither changes what is
    written. `progress` is called with the bytes of each piece written. Raises as `describe` and
    `Outcome.refuse` do, before anything is written, and `FormatError` where the source cannot be
    read, or has changed meanwhile.
    """
    # Imported here, so that opening stays quick.
    from weightctl.formats.base import write_in_order
    from weightctl.plan.plan import Plan
    from weightctl.system.threads import thread_count
    from weightctl.write.execute import execute, memory_budget
    from weightctl.write.outcome import describe
    from weightctl.write.output import beginning
    from weightctl.write.targets import Target, target

    started = time.monotonic()
    budget, count = memory_budget(memory), thread_count(threads)
    if not isinstance(where, Target):
        where = target(os.fspath(where), plan.format if isinstance(plan, Plan) else None)
    if not isinstance(plan, Plan):
        plan = Plan.copy(plan, where.format)
    outcome = describe(plan, where)
    names = where.pattern() if where.file_name is None else None
    path = os.path.realpath(where.path)
    losses: dict[str, Loss] = {}
    # Where a checksum of the bytes is written too, they must be seen.
    are_seen = any(layout.between is not None for layout in outcome.parts.values())
    with ExitStack() as stack:
        # Opening a pipe waits for its reader, which no other run is to wait for.
        with nullcontext() if where.is_stream else beginning(path, names, force=force):
            outcome.refuse(force=force)
            create = stack.enter_context(_sinks(outcome, force=force))
            leading = create(outcome.names[0])
        if where.file_name is not None:
            _put_beside(plan, outcome, os.path.dirname(leading.path))
        pieces = execute(
            plan, outcome.tensors, threads=count, memory=budget, losses=losses, spans=not are_seen
        )
        pull = _Pull(stack.enter_context(closing(pieces)), progress)
        if outcome.index:
            leading.write(outcome.index[1])
        for name, layout in outcome.parts.items():
            sink = leading if name == outcome.names[0] else create(name)
            sink.reserve(layout.nbytes)
            write_in_order(layout, sink, pull)
        # Before the output gets its name: what was read may be half of the one and half of another.
        plan.source.refuse_change()
    return Saved(outcome, time.monotonic() - started, losses)


@contextmanager
def _sinks(outcome: Outcome, *, force: bool) -> Generator[Callable[[str], OutputFile], None, None]:
    """Yield what opens the file of a name: in a new directory, in one that is there, or a pipe."""
    from weightctl.write.output import output_directory, output_files, output_stream

    where = outcome.where
    if where.is_stream:
        with output_stream(where.path) as stream:
            yield lambda _: stream
        return
    if where.file_name is None:
        paths = dict(zip(outcome.names, outcome.files, strict=True))
        with output_files(force=force, replaced=outcome.replaced) as create:
            yield lambda name: create(paths[name])
        return
    path = os.path.realpath(where.path)
    with (
        output_directory(path, force=force, is_ours=outcome.has_name) as directory,
        output_files() as create,
    ):
        yield lambda name: create(os.path.join(directory, name))


def _put_beside(plan: Plan, outcome: Outcome, directory: str) -> None:
    """Put what belongs to a model beside its weights: config, tokenizer, licence."""
    from weightctl.formats.huggingface import carry, write_beside
    from weightctl.write.output import cannot_write

    try:
        dtype = _main_dtype(plan)
        carry(outcome.carried, directory, dtype)
        write_beside(outcome.documents, directory, dtype)
    except OSError as error:
        raise cannot_write(directory, error) from error


def _main_dtype(plan: Plan) -> str | None:
    """Return torch's name for what most of the weights become, None where the config has it."""
    sizes: Counter[str] = Counter()
    for item in plan.items:
        dtype = item.info.encoding.dtype
        if dtype is not None and dtype.is_float:
            sizes[dtype.value] += item.info.size
    is_said = not plan.documents and all(item.is_copy for item in plan.items)
    if not sizes or is_said:
        return None
    name = sizes.most_common(1)[0][0]
    # transformers computes in what the config says, and nothing computes in 8-bit floats.
    return None if name.startswith("float8") else name


class _Pull:
    """Gives each tensor its pieces; they come in the order of the tensors."""

    def __init__(
        self,
        pieces: Iterator[tuple[TensorInfo, memoryview | Span]],
        progress: Callable[[int], object] | None,
    ) -> None:
        self._pieces = pieces
        self._progress = progress
        self._ahead: tuple[TensorInfo, memoryview | Span] | None = None

    def __call__(self, info: TensorInfo) -> Iterable[memoryview | Span]:
        if self._ahead is None:
            self._ahead = next(self._pieces, None)
        while self._ahead is not None and self._ahead[0] is info:
            yield self._ahead[1]
            if self._progress is not None:
                self._progress(self._ahead[1].nbytes)
            self._ahead = next(self._pieces, None)
