"""A conversion that is planned or done, and notes on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from weightctl.families.llama_cpp import RuntimeDifference, find_unloaded_tensors
from weightctl.families.model import ARCHITECTURE
from weightctl.formats.base import ALIGNMENT_KEY, LEVELS_KEY, ROOM_KEY
from weightctl.formats.huggingface import companions, describe_left_out
from weightctl.plan.cast import is_unfit_for_llama_cpp
from weightctl.plan.choices import DEFAULT_TASK
from weightctl.schemes.buffers import is_optimizer_state
from weightctl.system.phases import log
from weightctl.text.wording import join_names, pluralize
from weightctl.write.conversion_tasks import DEFAULT_MEMORY, ConversionWork, memory_budget
from weightctl.write.executors.worker import PlannedWork, PlanRequest, digest_codecs
from weightctl.write.outcome import describe
from weightctl.write.output import count_kept_bytes
from weightctl.write.save import save

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Executor

    from weightctl.codecs.loss import Loss
    from weightctl.plan.plan import Item, Plan
    from weightctl.weights.data import Source
    from weightctl.write.outcome import Outcome
    from weightctl.write.save import Saved
    from weightctl.write.targets import Target

# The number of tensors that are named; the others are only counted.
_WORST = 5
_LONGEST = 80
# Metadata that describe the file of the source, and not the model.
_UNTOLD = frozenset({LEVELS_KEY, ROOM_KEY, ALIGNMENT_KEY, "format"})


@dataclass(frozen=True, slots=True, repr=False)
class Conversion:
    """A conversion that is planned or done; `saved` is None until it is done.

    `opened` is the source before renaming and joining, so its tensors may have other names than
    those of the plan's source. Workers make the plan from `request`. It is None if the source
    is not a path. `beside` is the conversion of the tower of a multimodal model to its own file.
    """

    plan: Plan
    target: Target
    opened: Source
    saved: Saved | None = None
    request: PlanRequest | None = None
    beside: Conversion | None = None

    def __repr__(self) -> str:
        state = "planned" if self.saved is None else "done"
        return f"<Conversion to {self.target.path} by {self.plan!r}, {state}>"

    @property
    def notes(self) -> list[str]:
        """Messages for the user, for example on values that are lost or programs that fail."""
        return notes_on(self.plan, self.target)

    @property
    def outputs(self) -> list[Conversion]:
        """The conversion itself, and the one of the tower if there is one."""
        return [self, *([] if self.beside is None else self.beside.outputs)]

    @property
    def outcome(self) -> Outcome:
        """The files of the output, with names and sizes, also before they are written.

        Raises `ConversionError` if the format cannot store the plan.
        """
        return describe(self.plan, self.target) if self.saved is None else self.saved.outcome

    @property
    def paths(self) -> list[str]:
        """The paths of the output's files; the index or the first part comes first."""
        return self.outcome.files

    @property
    def kept_bytes(self) -> int:
        """The bytes of tensors that a stopped run has written and that `save` keeps."""
        if self.saved is not None:
            return self.saved.kept_bytes
        layouts = list(self.outcome.parts.values())
        work = ConversionWork(self.plan, layouts, threads=1, memory=DEFAULT_MEMORY)
        return count_kept_bytes(self.plan, self.outcome, work)

    @property
    def losses(self) -> Mapping[str, Loss]:
        """The rounding errors of each converted tensor, by name; empty before the conversion."""
        return {} if self.saved is None else self.saved.losses

    def save(
        self,
        *,
        force: bool = False,
        threads: int | None = None,
        memory: int | str | None = None,
        progress: Callable[[int], object] | None = None,
        on: str | Executor | None = None,
        task_size: int | str = DEFAULT_TASK,
    ) -> Conversion:
        """Write the output; the arguments and errors are those of `convert` and `save`.

        The file of a tower is written last. Raises `FormatError` if files of a sharded checkpoint
        were altered since they were written.
        """
        if self.beside is not None:
            self.beside.outcome.refuse(force=force)
        for note in self.notes:
            log(note, "warning")
        distribution = None
        if on is not None:
            from weightctl.write.executors.distribution import plan_distribution

            distribution = plan_distribution(
                on,
                self.request,
                self.target,
                codecs=digest_codecs(self.plan),
                threads=threads,
                memory=memory_budget(memory),
                task_size=task_size,
            )
        saved = save(
            self.plan,
            self.target,
            force=force,
            threads=threads,
            memory=memory,
            progress=progress,
            distribution=distribution,
            opened=self.opened,
        )
        beside = self.beside
        if beside is not None:
            beside = beside.save(
                force=force,
                threads=threads,
                memory=memory,
                progress=progress,
                on=on,
                task_size=task_size,
            )
        return replace(self, saved=saved, beside=beside)

    def make_work(self, *, threads: int, memory: int) -> PlannedWork:
        """Return the work, for a worker with this number of threads and bytes of memory."""
        outcome = self.outcome
        work = ConversionWork(
            self.plan, list(outcome.parts.values()), threads=threads, memory=memory
        )
        return PlannedWork(self.plan, outcome, work, digest_codecs(self.plan))


def notes_on(plan: Plan, where: Target) -> list[str]:
    """Return the notes on a plan, for users to read before it is carried out."""
    return [*plan.source.header.notes, *plan.notes, *_advice(plan, where)]


def _advice(plan: Plan, where: Target) -> Iterator[str]:
    # Tensors that cannot be read are left out, since they are reported as an error.
    known = {*plan.metadata, *plan.unread}
    lost = [(name, leaf.kind) for name, leaf in plan.unkept.items() if name not in known]
    if lost:
        named = [f"{_short(name)} ({_short(kind)})" for name, kind in lost]
        yield f"not kept: {join_names(named, _WORST)}"
    unstored = [f"`{_short(key)}`" for key in plan.metadata if key not in _UNTOLD | {*plan.tied}]
    if plan.format == "dcp" and unstored:
        yield f"the format dcp stores no metadata; not kept: {join_names(unstored, _WORST)}"
    if plan.zero_nonfinite and not any(_holds_no_nan(item) for item in plan.items):
        yield (
            "--nonfinite zero applies to block types only, and no tensor becomes one: NaN stays NaN"
        )
    count = sum(1 for item in plan.items if is_unfit_for_llama_cpp(plan, item))
    if count:
        yield (
            f"{count} vectors are not F32, the only type that llama.cpp uses for vectors; to "
            "convert them, use --dtype or --quant (dtype or quant in Python)"
        )
    if plan.source.header.missing:
        yield "the output lacks the tensors of the missing parts, so it does not load as a model"
        return
    if plan.format == "gguf":
        yield from _advise_on_loading(plan)
    header = plan.source.header
    if where.file_name is not None and not plan.translation:
        yield from describe_left_out(header)
    if where.file_name is not None and not plan.documents and not companions(header):
        why = "there is no config.json beside the input"
        remedy = "; to make a model of it, use --config DIR (config in Python)"
        if ARCHITECTURE in plan.metadata:
            why, remedy = "GGUF's names and metadata are kept without a config.json", ""
        yield f"{why}, so transformers does not load the output{remedy}"
    yield from _advise_on_state(plan)


def _advise_on_state(plan: Plan) -> Iterator[str]:
    """Yield a note if the output has the state of an optimizer."""
    count = sum(is_optimizer_state(item.info) for item in plan.items)
    if count:
        yield (
            f"{pluralize(count, 'tensor')} {'is' if count == 1 else 'are'} the state of an "
            "optimizer; --weights-only (weights_only in Python) leaves them out"
        )


def _advise_on_loading(plan: Plan) -> Iterator[str]:
    """Yield why llama.cpp does not load a GGUF of a model."""
    if ARCHITECTURE not in plan.metadata:
        yield RuntimeDifference(
            "names and metadata are not translated to GGUF's (`general.architecture` and others), "
            "so llama.cpp does not load the output; to translate them, name the directory of a "
            "model of a supported family with --config (config in Python), and do not use "
            "--names keep"
        )
    elif plan.translation:
        names = [item.info.name for item in plan.items]
        if reason := find_unloaded_tensors(plan.metadata, names):
            yield RuntimeDifference(f"llama.cpp does not load the output: {reason}")


def _holds_no_nan(item: Item) -> bool:
    return item.info.encoding.quantization is not None and not item.is_copy


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
