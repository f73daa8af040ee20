"""The check `forward`: the model runs, and its predictions are plausible."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightctl.dtype import DType
from weightctl.engine import InferenceSession
from weightctl.errors import ArchitectureError, EngineError, GraphError, TokenizerError
from weightctl.graph import ops
from weightctl.graph.graph import Graph, Weight
from weightctl.graph.types import TensorType
from weightctl.nn.precision import weight_as
from weightctl.schemes.buffers import is_buffer
from weightctl.system.registry import load, name_install
from weightctl.text.wording import join_names
from weightctl.verify.figures import Activation, ForwardFigures, MatrixGain
from weightctl.verify.results import Problem, Result
from weightctl.verify.run.output import (
    Ending,
    check_divergence,
    check_perplexity,
    describe_run,
    measure_activation,
    measure_usual_size,
    report_unjudged,
    run_output,
)
from weightctl.verify.run.parts import EMBEDDING, Running, explain_unbuilt, name_layer
from weightctl.weights.derived import Derived, tensor_of
from weightctl.weights.tree import Checkpoint, header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from weightctl.codecs.base import F32
    from weightctl.verify.request import Request
    from weightctl.verify.run.prompt import Prompt
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import Origin, TensorInfo

# The number of values to read at once, which is 32 MiB in float32.
_MOST = 8 * 2**20
_SEED = 8
_SHOWN = 4
# In a tensor of more than two dimensions, a smaller last dimension is the width of a kernel or
# similar, and not the number of a matrix's columns.
_LEAST_COLUMNS = 32
# A matrix of a healthy model maps a unit vector to a vector shorter than this.
_ABSURD = 1e8
_COMPARE = "weightctl.verify.checks.forward.comparison:compare"
_NO_TORCH = "running a model needs torch, which is not installed"
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
        return f"{_NO_TORCH}: {name_install('verify')}"
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


def _run_alone(request: Request, running: Running) -> Result:
    given = request.prompt
    last = request.last_layer(running.layers)
    x, figures, problems = _run_layers(request, running, given, last)
    is_sound = not problems
    ending = Ending()
    if last == running.layers - 1:
        request.tell("forward, output", (last + 1) / (last + 2))
        is_alone = request.reference is None and request.tokens is None and request.text is None
        ending = run_output(running, x, given, must_make_sense=is_alone)
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


def _run_layers(
    request: Request, running: Running, given: Prompt, last: int
) -> tuple[F32, list[Activation], list[Problem]]:
    """Return the output of layer `last`, the size of each part's output, and problems."""
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
    return x, figures, problems


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


class _Rows(NamedTuple):
    """A range of rows of a tensor that is read as a matrix with `columns` columns."""

    tensor: ReadableTensor
    columns: int
    start: int
    rows: int

    @property
    def info(self) -> TensorInfo:
        """The tensor's info, with the shape of the rows as a matrix."""
        return self.tensor.info._replace(shape=(self.rows, self.columns))

    @property
    def origin(self) -> Origin:
        """The origin of the whole tensor."""
        return self.tensor.origin

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Read bytes of the rows; `start` is relative to the first of them."""
        row = self.info.encoding.nbytes((1, self.columns))
        self.tensor.read_into(self.start * row + start, buffer)

    def file_range(self) -> None:
        """Return None: the rows are not a stored tensor, so they have no file range."""


def check_matrices(request: Request, *, at_once: int = _MOST) -> Result:
    """Run each matrix of a checkpoint; report those with non-finite or far too large outputs.

    One matrix is in memory at a time. A large matrix is read in ranges of rows with at most
    `at_once` values.
    """
    session = InferenceSession([request.device])
    tree = request.subject.weights
    infos = [info for info in header_of(tree).tensors.values() if _is_matrix(info)]
    gains: list[MatrixGain] = []
    problems: list[Problem] = []
    left: list[str] = []
    for number, info in enumerate(infos):
        request.tell("forward, matrices", number / len(infos))
        try:
            gain, usual = _measure_gain(
                session, request, tensor_of(source_of(tree), info.name), at_once
            )
        except (EngineError, GraphError):
            left.append(info.name)
            continue
        gains.append(MatrixGain(name=info.name, shape=info.shape, gain=gain, usual=usual))
        if text := _judge_gain(gain):
            problems.append(Problem(where=info.name, text=text))
    notes = ["the family is unknown: each matrix ran on its own, and the model did not run"]
    if left:
        notes.append(f"these matrices cannot run: {join_names(left, _SHOWN)}")
    figures = ForwardFigures(
        source="a random vector of length 1", device=str(request.device), matrices=tuple(gains)
    )
    return Result(problems=tuple(problems), figures=figures, notes=tuple(notes))


def _is_matrix(info: TensorInfo) -> bool:
    is_matrix = len(info.shape) > 1 and bool(info.size) and info.encoding.is_real
    # Buffers, which include optimizer state, are not matrices of the model.
    return is_matrix and not is_buffer(info)


def _count_columns(shape: tuple[int, ...]) -> int:
    """Return the number of columns of a tensor as a matrix; stacked matrices are concatenated."""
    if len(shape) == 2 or shape[-1] >= _LEAST_COLUMNS:
        return shape[-1]
    return prod(shape[1:])


def _judge_gain(gain: float) -> str:
    if not np.isfinite(gain):
        return "the product with a vector of length 1 is not finite"
    if gain > _ABSURD:
        return f"the product with a vector of length 1 has length {gain:.3g}"
    return ""


def _measure_gain(
    session: InferenceSession, request: Request, tensor: ReadableTensor, at_once: int
) -> tuple[float, float]:
    """Return the length of a matrix's output for a random unit vector, and the usual length.

    The usual length is that for independent values with the same root mean square.
    """
    columns = _count_columns(tensor.info.shape)
    vector = np.random.default_rng(_SEED).standard_normal(columns).astype(np.float32)
    vector /= np.float32(np.linalg.norm(vector))
    length = squares = 0.0
    for part in _cut_rows(tensor, columns, at_once):
        made, own = _multiply(session, request, part, vector)
        with np.errstate(invalid="ignore", over="ignore"):
            length += float(np.square(made, dtype=np.float64).sum())
        squares += own
    return length**0.5, (squares / columns) ** 0.5


def _cut_rows(tensor: ReadableTensor, columns: int, at_once: int) -> Iterator[_Rows]:
    rows, step = tensor.info.size // columns, max(1, at_once // columns)
    for start in range(0, rows, step):
        yield _Rows(tensor, columns, start, min(step, rows - start))


def _multiply(
    session: InferenceSession, request: Request, part: _Rows, vector: F32
) -> tuple[F32, float]:
    """Return the product of some rows with a vector, and the sum of the rows' squared values."""
    info = part.info
    name, encoding = info.name, info.encoding
    dtype = DType.float32 if encoding.dtype is None else encoding.dtype
    weight = Weight(name, dtype, info.shape, request.device, encoding.quantization)
    given = TensorType(DType.float32, vector.shape, request.device)
    with Graph("matrix", [given]) as graph:
        numbers = weight_as(weight, DType.float32)
        product = numbers @ ops.unsqueeze(graph.inputs[0], -1)
        graph.output(product, ops.sum(numbers * numbers))
    tree = Checkpoint(Derived(source_of(request.subject.weights), {name: part}, {}))
    made, squares = session.load(graph, {name: tree[name]}).execute(vector)
    return made.to_numpy(), float(squares.to_numpy())
