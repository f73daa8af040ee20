"""The check `forward`: the model runs, and its predictions are plausible."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import ArchitectureError, EngineError, TokenizerError
from weightctl.system.registry import load
from weightctl.verify.checks.forward.matrices import check_matrices
from weightctl.verify.checks.forward.predictions import (
    check_divergence,
    check_perplexity,
    report_unjudged,
)
from weightctl.verify.figures import Activation, ForwardFigures
from weightctl.verify.results import Problem, Result
from weightctl.verify.run.output import (
    Ending,
    describe_run,
    measure_activation,
    measure_usual_size,
    run_output,
)
from weightctl.verify.run.parts import EMBEDDING, Running, explain_unbuilt, name_layer

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from weightctl.codecs.base import F32
    from weightctl.verify.request import Request
    from weightctl.verify.run.prompt import Prompt

__all__ = ["check", "require_prompt"]

_COMPARE = "weightctl.verify.checks.forward.comparison:compare"
_NO_TORCH = "running a model needs torch, which is not installed: pip install 'weightctl[verify]'"
# The median magnitude of the positions grows by far less than this factor from one layer to the
# next, even if the embeddings are tiny. It ignores the few positions that grow by more.
_MOST_GROWTH = 1e4


def check(request: Request) -> Result:
    """Run a model on a text, and compare it with its reference, if there is one.

    If the family is unknown, each matrix is run by itself. It is a problem if a layer's output or
    the logits are not those of a working model, or if a figure is above its limit. The check is
    skipped if the tensors do not form a model; the check `names` reports the details.
    """
    found = _run(request)
    figures = found.figures
    if isinstance(figures, ForwardFigures) and figures.activations:
        return found
    why = found.skipped or "the family is unknown, so that the model did not run"
    return replace(found, problems=(*found.problems, *report_unjudged(request, why)))


def _run(request: Request) -> Result:
    subject, reference = request.subject, request.reference
    if why := _explain_skip(request):
        return Result(skipped=why)
    if subject.checkpoint is None:
        return check_matrices(request)
    notes: tuple[str, ...] = ()
    if reference is not None and reference.checkpoint is not None:
        compared: Result = load(_COMPARE)(request)
        return compared
    if reference is not None and reference.refusal is not None:
        notes = (f"the reference did not run: {reference.refusal.headline}",)
    try:
        running = Running(subject.checkpoint, request.device, subject.cut)
    except ArchitectureError as error:
        return Result(skipped=explain_unbuilt(error), notes=notes)
    found = _run_alone(request, running)
    return replace(found, notes=(*notes, *found.notes))


def require_prompt(request: Request) -> None:
    """Raise `ConversionError` if the model cannot run on the requested text or tokens.

    Such an error is about the request, and not a problem of the checkpoint.
    """
    is_given = request.tokens is not None or request.text is not None
    if is_given and request.subject.checkpoint is not None:
        with suppress(TokenizerError):  # reported when the model runs
            _ = request.prompt


def _explain_skip(request: Request) -> str:
    """Return the reason why neither the model nor its matrices can run; empty if they can."""
    subject = request.subject
    if find_spec("torch") is None:
        return _NO_TORCH
    if subject.checkpoint is None:
        refusal = None if subject.is_of_unknown_family else subject.refusal
        return "" if refusal is None else explain_unbuilt(refusal)
    obstacle = subject.checkpoint.family.find_obstacle(subject.checkpoint.config)
    if obstacle is not None:
        return f"{obstacle}, so the forward pass was not checked"
    layers = subject.checkpoint.config.layers
    if request.layers is not None and request.last_layer(layers) < 0:
        return f"--layers names none of the model's {layers} layers"
    return ""


class _Pass(NamedTuple):
    """The result of running the layers.

    `x` is the last layer's output, and `figures` has the size of each part's output. `is_whole`
    says whether all layers ran.
    """

    x: F32
    figures: list[Activation]
    problems: list[Problem]
    is_whole: bool


def _run_alone(request: Request, running: Running) -> Result:
    given = request.prompt
    last = request.last_layer(running.layers)
    passed = _run_layers(request, running, given, last)
    problems, figures = list(passed.problems), list(passed.figures)
    is_sound = not problems
    ending = Ending()
    if passed.is_whole:
        request.tell("forward, output", (last + 1) / (last + 2))
        is_alone = request.reference is None and request.tokens is None and request.text is None
        ending = run_output(running, passed.x, given, must_make_sense=is_alone)
        figures += ending.figures
        # If an earlier part is faulty, the output is faulty as a consequence.
        problems += ending.problems if is_sound else []
        problems += check_perplexity(
            request, given, ending.perplexity, has_logits=running.has_logits
        )
        problems += check_divergence(request, None, has_logits=running.has_logits)
    return Result(
        problems=tuple(problems),
        figures=replace(
            describe_run(running, request.device, given),
            activations=tuple(figures),
            perplexity=ending.perplexity,
            next_tokens=ending.next_tokens,
        ),
        notes=(*given.notes, *running.notes, *ending.notes),
    )


def _run_layers(request: Request, running: Running, given: Prompt, last: int) -> _Pass:
    figures: list[Activation] = []
    problems: list[Problem] = []
    size = 0.0
    x: Any = None
    for number, (name, made) in enumerate(_run_parts(request, running, given, last), -1):
        x = made
        before, size = size, measure_usual_size(x, given.mask)
        figure = measure_activation(name, x, given.mask)
        if request.has_layer(number):
            figures.append(figure)
        # Parts after the first faulty one are faulty as a consequence.
        text = "" if problems else _judge_size(figure, before, size)
        if text:
            problems.append(Problem(where=name, text=text))
    return _Pass(x, figures, problems, is_whole=last == running.layers - 1)


def _run_parts(
    request: Request, running: Running, given: Prompt, last: int
) -> Iterator[tuple[str, F32]]:
    with _name_errors(EMBEDDING):
        flow = running.begin(given.ids, given.mask)
    x = flow.x
    yield EMBEDDING, x
    for number in range(last + 1):
        request.tell(f"forward, layer {number}", number / (last + 2))
        with _name_errors(name_layer(number)):
            x = running.layer(number, x, flow.beside)
        yield name_layer(number), x


@contextmanager
def _name_errors(part: str) -> Generator[None]:
    """Add the name of a part of the model to engine errors in this context."""
    try:
        yield
    except EngineError as error:
        raise EngineError(f"{part}: {error.message}", hint=error.hint) from error


def _judge_size(figure: Activation, before: float, size: float) -> str:
    if figure.nonfinite:
        return (
            f"{figure.nonfinite:,} of its output values are NaN or infinite, and its input "
            "is finite"
        )
    if before and size > before * _MOST_GROWTH:
        return (
            f"its output is {size / before:.3g} times as large as its input: root mean "
            f"square {before:.3g} before and {size:.3g} after"
        )
    return ""
