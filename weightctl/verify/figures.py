"""Figures that the checks measure, whether or not something is wrong: plain numbers for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Activation",
    "Divergence",
    "FiniteFigures",
    "ForwardFigures",
    "LayerDivergence",
    "MatrixGain",
    "MetadataFigures",
    "NamesFigures",
    "NextToken",
    "StructureFigures",
    "TensorError",
    "ValuesFigures",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StructureFigures:
    """The files of a checkpoint, and what other readers say of them.

    `readers` are by name (`safetensors`, `gguf`, `torch`): empty for one that reads the files, else
    which file it refuses and why, or why it was not asked, in one line.
    """

    files: int
    nbytes: int
    tensors: int
    readers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class FiniteFigures:
    """How much was looked at."""

    tensors: int
    numbers: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesFigures:
    """The family that a checkpoint is of, empty where it is unknown, and how many tensors it has.

    `expected` is how many tensors its config asks for, as our modules count them, and `found` how
    many of these are there.
    """

    family: str
    layers: int
    expected: int
    found: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataFigures:
    """The tokenizer that goes with a checkpoint: how many tokens it has, and GGUF's name for it.

    The name is empty where there is none. `is_compared` tells whether a reference was there to
    compare all metadata with.
    """

    tokens: int
    tokenizer: str
    is_compared: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorError:
    """How far a tensor is from the same one of the reference.

    `name` and `reference` are what either calls it, `part` what our modules call it without the
    layer (`attention.q.weight`, or the name where the family is unknown), `layer` its number, None
    where it is of none. `relative_rmse` is the root of the squared differences' sum over that of
    the reference's squares, `expected` what the encodings should cost of that, and `worst` how many
    times what they should cost the difference is in the worst run of numbers. Where numbers are not
    finite the errors are infinite.
    """

    name: str
    reference: str
    part: str
    layer: int | None
    shape: tuple[int, ...]
    encoding: str
    reference_encoding: str
    relative_rmse: float
    max_error: float
    cosine: float
    expected: float
    worst: float
    is_problem: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuesFigures:
    """The tensors that were compared, in the order of the checkpoint, and how they were paired.

    `pairing` tells people how: by the names of a family, or by equal names.
    """

    tensors: tuple[TensorError, ...]
    pairing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """What a part of a model gives: the root mean square of its numbers, and the greatest.

    `name` is `embedding`, `layers.0` ... or `output`, the logits. `nonfinite` counts numbers that
    are infinite or NaN; the rest is of the others.
    """

    name: str
    rms: float
    greatest: float
    nonfinite: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NextToken:
    """A token that a model thinks may come next: its id, its text where that is known."""

    token: int
    text: str
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixGain:
    """How long the vector is that a matrix of an unknown model makes of a random unit vector.

    `usual` is what a matrix of independent numbers of the same root mean square would make of it.
    """

    name: str
    shape: tuple[int, ...]
    gain: float
    usual: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDivergence:
    """How far what a part of a model gives is from the reference's, both given the reference's.

    `divergence` is the root mean square, over positions, of the length of the difference over that
    of what the part adds, so that no position with huge numbers hides the others; `expected` is
    what the encodings of its weights should cost of that.
    """

    name: str
    divergence: float
    expected: float
    is_problem: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """How far what a model says is from what the reference says, over all positions.

    Kullback-Leibler divergences are of the reference's distribution from the model's, in nats, None
    for encoders, of which `cosine` is the least between their states. `histogram` counts positions
    by their divergence: the upper bounds, and how many are below each and not below the one before.
    """

    layers: tuple[LayerDivergence, ...]
    mean: float | None = None
    percentile_99: float | None = None
    greatest: float | None = None
    top_1: float | None = None
    reference_perplexity: float | None = None
    cosine: float | None = None
    histogram: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardFigures:
    """How a model ran: on how many tokens, cut into windows that do not see each other.

    `source` says where the tokens are from. A checkpoint that is cut for several ranks was computed
    by as many: `tp` in each of `ep` groups of experts, in each of `pp` stages in turn. `perplexity`
    is None where not the whole model ran, and for encoders. `matrices` are those of a model that is
    of no known family, which did not run.
    """

    source: str = ""
    device: str = "cpu"
    tp: int = 1
    ep: int = 1
    pp: int = 1
    tokens: int = 0
    windows: int = 1
    activations: tuple[Activation, ...] = ()
    perplexity: float | None = None
    next_tokens: tuple[NextToken, ...] = ()
    matrices: tuple[MatrixGain, ...] = ()
    divergence: Divergence | None = None
