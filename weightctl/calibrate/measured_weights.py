"""Which weights of a model get an entry in an importance matrix, under which names, and the sums.

As in llama-imatrix, these are the matrices of the layers that the hidden state is multiplied with,
and optionally the output. Source: llama.cpp, tools/imatrix/imatrix.cpp.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.engine.products import SquaresObserver
from weightctl.errors import EngineError
from weightctl.formats.imatrix.sums import ColumnSums

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from weightctl.families.checkpoint import RecognizedModel
    from weightctl.families.family import TensorNames

_OUTPUT = "output.weight"
# llama.cpp multiplies other vectors with these matrices than our modules do: it computes attention
# with latent vectors in place of keys and values. The modules sum the squares of these vectors.
_ABSORBED = (".attn_k_b.weight", ".attn_v_b.weight")


class MeasuredWeight(NamedTuple):
    """The place of a weight in an importance matrix.

    `tensor` is the name of its tensor in GGUF, which consists of `matrices`, and `matrix` is the
    number of the weight among them. `order` has the column of our module for each column in GGUF;
    None if they are in the same order.
    """

    tensor: str
    matrix: int
    matrices: int
    order: Sequence[int] | None = None


def list_measured_weights(
    model: RecognizedModel, *, has_output: bool = False
) -> dict[str, MeasuredWeight]:
    """Return the place of each measured weight, by the names of the weights in our modules.

    Of several weights that are parts of one tensor, and so read the same values, only the first has
    a place. `list_absorbed` has those of latent attention.
    """
    of_tensor: Mapping[str, dict[int, TensorNames]] = defaultdict(dict)
    for tensor, names in _list_named(model, has_output=has_output):
        if not tensor.endswith(_ABSORBED):
            of_tensor[tensor].setdefault(names.expert, names)
    return {
        names.module: MeasuredWeight(tensor, number, max(experts) + 1, _order(names, model))
        for tensor, experts in of_tensor.items()
        for number, names in experts.items()
    }


def list_absorbed(model: RecognizedModel) -> dict[str, MeasuredWeight]:
    """Return the places of the weights of latent attention whose modules sum the squares.

    As in llama-imatrix, the matrices of all heads have one count.
    """
    return {
        names.module: MeasuredWeight(tensor, 0, 1)
        for tensor, names in _list_named(model)
        if tensor.endswith(_ABSORBED)
    }


def _list_named(
    model: RecognizedModel, *, has_output: bool = False
) -> Iterator[tuple[str, TensorNames]]:
    for names in model.family.tensors(model.config):
        is_of_model = names.module == _OUTPUT and has_output
        is_of_layer = names.line.is_of_layers and names.layer < model.config.layers
        if names.kind != "weight" or not (is_of_layer or is_of_model):
            continue
        # A GGUF file may have other fused tensors than weightctl writes.
        is_gguf = model.convention == "gguf"
        tensor = model.stored.get(names.module) if is_gguf else names.gguf
        if tensor is not None:
            yield tensor, names


def _order(names: TensorNames, model: RecognizedModel) -> Sequence[int] | None:
    """Return the order of the columns in GGUF, None if it is that of the model."""
    change = names.change
    if change is None or change.order is None or change.is_of_rows:
        return None
    return change.order(model.config)


class SumsCollector:
    """Adds the squares of the left operands of products, for the weights that are measured.

    `observe` is for `InferenceSession.load`, and `entries` has the sums by the names of the tensors
    in GGUF. `absorbed` are the weights of latent attention, whose sums are added with `add`.
    """

    def __init__(
        self, measured: Mapping[str, MeasuredWeight], absorbed: Mapping[str, MeasuredWeight]
    ) -> None:
        self._absorbed = absorbed
        self.entries: dict[str, ColumnSums] = {}

        def add(name: str, squares: NDArray[np.float64], rows: int) -> None:
            self._add(measured[name], squares, rows)

        self.observe = SquaresObserver(measured, add)

    def add(self, name: str, squares: NDArray[np.float64], rows: int) -> None:
        """Add the sums of squares that a module of latent attention computes for `rows` positions.

        Weights that are not in `absorbed` are ignored: llama.cpp does not absorb them.
        """
        if (weight := self._absorbed.get(name)) is not None:
            self._add(weight, squares, rows)

    def _add(self, weight: MeasuredWeight, squares: NDArray[np.float64], rows: int) -> None:
        """Add the sums of squares of `rows` vectors that a weight is multiplied with.

        Raises `EngineError` if they are not finite.
        """
        if weight.order is not None:
            squares = squares[list(weight.order)]
        if not np.isfinite(squares).all():
            raise EngineError(
                f"`{weight.tensor}` is multiplied with values that are NaN or too large",
                hint="the model or the file is damaged; check it with `weightctl verify`",
            )
        entry = self.entries.get(weight.tensor)
        if entry is None:
            shape = (weight.matrices, len(squares))
            entry = ColumnSums(np.zeros(shape), np.zeros(weight.matrices, np.int64))
            self.entries[weight.tensor] = entry
        entry.squares[weight.matrix] += squares
        entry.counts[weight.matrix] += rows

    def take(self) -> dict[str, ColumnSums]:
        """Return the sums so far, and begin with none."""
        taken, self.entries = self.entries, {}
        return taken
