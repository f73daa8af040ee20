"""Figures that the checks measure, whether or not something is wrong, and a line about each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from weightctl.split import Grid
from weightctl.text.sizes import format_count, format_size
from weightctl.text.wording import number, percent, pluralize
from weightctl.verify.ranking import sort_worst_first

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "Activation",
    "Divergence",
    "Figures",
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
    "describe_differences",
    "describe_range",
    "list_unequal",
    "show_cosine",
]


class Figures(ABC):
    """The figures of a check; each check has a dataclass of its own for that."""

    __slots__ = ()

    @property
    def is_partial(self) -> bool:
        """Whether the check could be made in part alone."""
        return False

    @abstractmethod
    def summarize(self) -> str:
        """Return what was measured, in a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructureFigures(Figures):
    """The files of a checkpoint, and what other readers say of them.

    `readers` are by name (`safetensors`, `gguf`, `torch`): empty for one that reads the files, else
    which file it refuses and why, or why it was not asked, in one line.
    """

    files: int
    nbytes: int
    tensors: int
    readers: Mapping[str, str] = field(default_factory=dict[str, str])

    def summarize(self) -> str:
        """Return what was measured, in a line."""
        reading = [name for name, error in self.readers.items() if not error]
        readers = (
            f"; {_list_names(reading)} can read {'it' if self.files == 1 else 'them'}"
            if reading
            else ""
        )
        # What another reader refuses is its verdict, and says so by its name.
        others = "".join(f"; {name}: {error}" for name, error in self.readers.items() if error)
        files = pluralize(self.files, "file")
        tensors = pluralize(self.tensors, "tensor")
        return f"{files}, {tensors}, {format_size(self.nbytes)}{readers}{others}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FiniteFigures(Figures):
    """The amount of numbers that were looked at."""

    tensors: int
    numbers: int
    nbytes: int

    def summarize(self) -> str:
        """Return what was measured, in a line."""
        tensors = pluralize(self.tensors, "tensor")
        return f"{tensors}, {format_count(self.numbers)} values checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesFigures(Figures):
    """The family that a checkpoint is of, empty where it is unknown, and how many tensors it has.

    `expected` is how many tensors its config asks for, as our modules count them, and `found` how
    many of these are there.
    """

    family: str
    layers: int
    expected: int
    found: int

    def summarize(self) -> str:
        """Return what was measured, in a line."""
        if not self.family:
            return f"unknown family; {pluralize(self.found, 'tensor')}"
        of = f"{self.found:,} of {self.expected:,} tensors"
        found = f"all {self.found:,} tensors" if self.found == self.expected else of
        return f"{self.family}, {pluralize(self.layers, 'layer')}, {found}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataFigures(Figures):
    """The tokenizer that goes with a checkpoint: how many tokens it has, and GGUF's name for it.

    The name is empty where there is none. `is_compared` tells whether a reference was there to
    compare all metadata with.
    """

    tokens: int
    tokenizer: str
    is_compared: bool

    def summarize(self) -> str:
        """Return what was measured, in a line."""
        if not self.tokenizer:
            tokenizer = "no tokenizer"
        else:
            tokenizer = f"tokenizer {self.tokenizer}, {pluralize(self.tokens, 'token')}"
        return f"{tokenizer}; compared with the reference" if self.is_compared else tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorError:
    """The distance of a tensor from the same one of the reference.

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
class ValuesFigures(Figures):
    """The tensors that were compared, in the order of the checkpoint, and how they were paired.

    `pairing` says how: by the names of a family, or by equal names. They were not `judged` where
    differences are only listed.
    """

    tensors: tuple[TensorError, ...]
    pairing: str = ""
    judged: bool = True

    def summarize(self) -> str:
        """Return what was measured, in a line."""
        compared = f"{pluralize(len(self.tensors), 'tensor')} compared"
        if not self.tensors:
            return compared
        off = list_unequal(self.tensors)
        if not off:
            return f"{compared}, no differences"
        if not self.judged:
            return describe_differences(self.tensors)
        worst = sort_worst_first(off)[0]
        usual = f", expected {percent(worst.expected)}" if worst.expected else ""
        rmse = f"relative RMSE {percent(worst.relative_rmse)}"
        called = (
            "largest error relative to the expected error" if worst.is_problem else "largest error"
        )
        return f"{compared}; {called}: {worst.name}, {rmse}{usual}"


def list_unequal(errors: Sequence[TensorError]) -> list[TensorError]:
    """Return the tensors that have other values than the reference's."""
    return [error for error in errors if error.relative_rmse != 0]


def describe_differences(errors: Sequence[TensorError]) -> str:
    """Say how many tensors have other values than the reference's, and by how much they differ."""
    unequal = list_unequal(errors)
    differ = "differs" if len(unequal) == 1 else "differ"
    of = f"{len(unequal):,} of {pluralize(len(errors), 'tensor')}"
    return f"{of} {differ}, {describe_range(unequal)}"


def describe_range(errors: Sequence[TensorError]) -> str:
    """Say how small and how large the errors of some tensors are, and the median."""
    values = sorted(error.relative_rmse for error in errors)
    ends = list(dict.fromkeys(percent(value) for value in (values[0], values[-1])))
    middle = f", median {percent(median(values))}" if len(ends) > 1 and len(values) > 2 else ""
    return f"relative RMSE {' to '.join(ends)}{middle}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """The output of a part of a model: the root mean square of its numbers, and the greatest.

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
    """The length of the vector that a matrix of an unknown model makes of a random unit vector.

    `usual` is what a matrix of independent numbers of the same root mean square would make of it.
    """

    name: str
    shape: tuple[int, ...]
    gain: float
    usual: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDivergence:
    """The distance of a part's output from the reference's, both given what the reference's is.

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
    """The distance of what a model says from what the reference says, over all positions.

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

    def summarize(self) -> list[str]:
        """Return what was measured, in a few words each."""
        parts: list[str] = []
        if self.reference_perplexity is not None:
            parts.append(f"reference {number(self.reference_perplexity)}")
        if self.mean is not None:
            parts.append(f"KL divergence {number(self.mean)}")
        if self.cosine is not None:
            parts.append(f"cosine of states at least {show_cosine(self.cosine)}")
        return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardFigures(Figures):
    """The run of a model: on how many tokens, cut into windows that do not see each other.

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

    @property
    def is_partial(self) -> bool:
        """Whether matrices were tried one by one, as the model that they make up is not known."""
        return bool(self.matrices)

    def summarize(self) -> str:
        """Return what was measured, in a line."""
        parts: list[str] = []
        if self.tokens:
            source = f" of {self.source}" if self.source else ""
            grid = Grid(self.tp, self.ep, self.pp)
            ranks = (
                f" by {pluralize(grid.ranks, 'rank')} ({grid.degrees})" if grid.ranks > 1 else ""
            )
            device = _name_device(self.device)
            parts.append(f"{pluralize(self.tokens, 'token')}{source} on {device}{ranks}")
        if self.matrices:
            count = len(self.matrices)
            noun = "matrix" if count == 1 else "matrices"
            parts.append(f"{count:,} {noun}, each on a random unit vector")
            parts.append(f"on {_name_device(self.device)}")
        if self.perplexity is not None:
            parts.append(f"perplexity {number(self.perplexity)}")
        if self.divergence is not None:
            parts += self.divergence.summarize()
        return ", ".join(parts)


def show_cosine(value: float) -> str:
    """Return a cosine with the digits that tell it from 1."""
    return f"{value:.5f}" if abs(value) < 2 else number(value)


def _list_names(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _name_device(name: str) -> str:
    """Return a device as people name it to the command."""
    return "cpu" if name == "cpu:0" else name.replace("gpu", "cuda")
