"""Runs each matrix of a model of unknown family by itself, on a random unit vector."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.dtype import DType
from weightctl.engine import InferenceSession
from weightctl.errors import EngineError, GraphError
from weightctl.graph import ops
from weightctl.graph.graph import Graph
from weightctl.graph.types import TensorType
from weightctl.graph.weight import Weight
from weightctl.nn.precision import weight_as
from weightctl.schemes.buffers import is_buffer
from weightctl.text.wording import join_names
from weightctl.verify.figures import ForwardFigures, MatrixGain
from weightctl.verify.results import Problem, Result
from weightctl.weights.derived import Derived, tensor_of
from weightctl.weights.tree import Checkpoint, header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.codecs.base import F32
    from weightctl.verify.request import Request
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
