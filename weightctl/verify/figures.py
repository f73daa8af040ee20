"""Figures that the checks measure, with or without problems, and a summary of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from math import inf, isfinite, isnan, log
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from weightctl.split import Grid
from weightctl.text.rows import Tabular
from weightctl.text.sizes import format_count, format_size
from weightctl.text.wording import number, percent, pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# Perplexities that differ by less are equal: they are shown with three digits.
_EQUAL = 5e-4


class Figures(ABC):
    """The figures of a check; each check has its own dataclass."""

    __slots__ = ()

    @property
    def is_partial(self) -> bool:
        """Whether only a part of the check was possible."""
        return False

    @abstractmethod
    def summarize(self) -> str:
        """Return a summary in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructureFigures(Figures):
    """The files of a checkpoint, and the results of other readers.

    `readers` maps names of libraries (`safetensors`, `gguf`, `torch`) to text: one line
    that names the rejected file and the reason, or says why the library was not used. It is None if
    the library reads all files.
    """

    files: int
    nbytes: int
    tensors: int
    readers: Mapping[str, str | None] = field(default_factory=dict[str, str | None])

    def summarize(self) -> str:
        reading = [name for name, error in self.readers.items() if not error]
        readers = (
            f"; the {'library' if len(reading) == 1 else 'libraries'} {_list_names(reading)} can "
            f"read {'it' if self.files == 1 else 'them'}"
            if reading
            else ""
        )
        # Another reader's refusal is reported with the name of that reader.
        others = "".join(f"; {name}: {error}" for name, error in self.readers.items() if error)
        files = pluralize(self.files, "file")
        tensors = pluralize(self.tensors, "tensor")
        return f"{files}, {tensors}, {format_size(self.nbytes)}{readers}{others}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FiniteFigures(Figures):
    """The amount of data that was checked."""

    tensors: int
    numbers: int
    nbytes: int

    def summarize(self) -> str:
        tensors = pluralize(self.tensors, "tensor")
        return f"{tensors}, {format_count(self.numbers)} values checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesFigures(Figures):
    """The family of a checkpoint, empty if it is unknown, and its number of tensors.

    `expected` is the number of tensors that the config requires, counted in weightctl's modules,
    and `found` is the number of these that exist.
    """

    family: str
    layers: int
    expected: int
    found: int

    def summarize(self) -> str:
        if not self.family:
            return f"unknown family; {pluralize(self.found, 'tensor')}"
        of = f"{self.found:,} of {self.expected:,} tensors"
        found = f"all {self.found:,} tensors" if self.found == self.expected else of
        return f"{self.family}, {pluralize(self.layers, 'layer')}, {found}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataFigures(Figures):
    """The tokenizer of a checkpoint: its number of tokens, and GGUF's name for it.

    The name is empty if there is no tokenizer. `is_compared` says whether the metadata was compared
    with the metadata of a reference.
    """

    tokens: int
    tokenizer: str
    is_compared: bool

    def summarize(self) -> str:
        if not self.tokenizer:
            tokenizer = "no tokenizer"
        else:
            tokenizer = f"tokenizer {self.tokenizer}, {pluralize(self.tokens, 'token')}"
        return f"{tokenizer}; compared with the reference" if self.is_compared else tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorError:
    """The distance of a tensor from the reference's tensor.

    `name` and `reference` are the names in the two checkpoints. `part` is the name in weightctl's
    modules without the layer (`attention.q.weight`), or the tensor's name if the family is unknown;
    `layer` is the number of the layer, or None.

    `relative_rmse` is the square root of the sum of squared differences divided by the sum of the
    reference's squares. `expected` is the relative RMSE that the encodings explain. `worst` is the
    largest error of a run of 32 values, as a multiple of the expected error of that run. If only
    one of the tensors has finite values at some index, `relative_rmse` is infinite.
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

    @property
    def encodings(self) -> str:
        """The tensor's encoding, and the reference's encoding if it differs."""
        if self.encoding == self.reference_encoding:
            return self.encoding
        return f"{self.encoding}, reference {self.reference_encoding}"

    @property
    def excess(self) -> float:
        """The relative RMSE as a multiple of the one that the encodings explain."""
        return ratio_to_usual(self.relative_rmse, self.expected)

    @property
    def badness(self) -> tuple[bool, float, float, float]:
        """The key for sorting: whether it is a problem, the excess, then the errors."""
        rmse, worst = (inf if isnan(each) else each for each in (self.relative_rmse, self.worst))
        return self.is_problem, self.excess, rmse, worst


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuesFigures(Figures, Tabular):
    """The tensors that were compared, in the order of the checkpoint.

    `pairing` describes how they were paired: by the names of a family, or by equal names. `judged`
    is false if differences are only listed.
    """

    tensors: tuple[TensorError, ...]
    pairing: str = ""
    judged: bool = True

    def _records(self) -> Sequence[TensorError]:
        return self.tensors

    def summarize(self) -> str:
        compared = f"{pluralize(len(self.tensors), 'tensor')} compared"
        if not self.tensors:
            return compared
        off = list_unequal(self.tensors)
        if not off:
            return f"{compared}, all values are equal"
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
    """Return the tensors whose values differ from the reference's."""
    return [error for error in errors if error.relative_rmse != 0]


def describe_differences(errors: Sequence[TensorError]) -> str:
    """Describe how many tensors have values that differ from the reference's, and their errors."""
    unequal = list_unequal(errors)
    differ = "differs" if len(unequal) == 1 else "differ"
    of = f"{len(unequal):,} of {pluralize(len(errors), 'tensor')}"
    return f"{of} {differ}, {describe_range(unequal)}"


def describe_range(errors: Sequence[TensorError]) -> str:
    """Describe the smallest, the largest and the median error of some tensors."""
    values = sorted(error.relative_rmse for error in errors)
    ends = list(dict.fromkeys(percent(value) for value in (values[0], values[-1])))
    middle = f", median {percent(median(values))}" if len(ends) > 1 and len(values) > 2 else ""
    return f"relative RMSE {' to '.join(ends)}{middle}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """The output of a part of a model: the root mean square and the largest magnitude.

    `name` is `embedding`, `layers.0` and so on, or `output` for the logits. `nonfinite` is the
    number of infinite and NaN values; `rms` and `greatest` are those of the finite values.
    """

    name: str
    rms: float
    greatest: float
    nonfinite: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NextToken:
    """A token that a model predicts next, with its text if known, and its probability."""

    token: int
    text: str
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixGain:
    """The length of a matrix's output for a random unit vector, if the family is unknown.

    `usual` is the length for a matrix of independent values with the same root mean square.
    """

    name: str
    shape: tuple[int, ...]
    gain: float
    usual: float

    @property
    def excess(self) -> float:
        """The length as a multiple of the usual one."""
        return ratio_to_usual(self.gain, self.usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDivergence:
    """The distance of a part's output from the reference's, for the reference's input.

    `divergence` is a root mean square over positions. At each position, the length of the
    difference is divided by the length of the vector that the part adds to its input, so that a
    position with huge values does not hide the others. `expected` is the divergence that the
    encodings of the part's weights explain.
    """

    name: str
    divergence: float
    expected: float
    is_problem: bool = False

    @property
    def excess(self) -> float:
        """The divergence as a multiple of the one that the encodings explain."""
        return ratio_to_usual(self.divergence, self.expected)


class DivergenceBin(NamedTuple):
    """The positions with a divergence below a bound, which is not below that of the bin before."""

    below: float
    positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The distance of a model's predictions from the reference's, over all positions.

    `mean`, `percentile_99` and `greatest` are Kullback-Leibler divergences from the reference's
    distribution to the model's, in nats. They are None for encoders, which have `cosine` instead:
    the smallest cosine between the final states of the two models.
    """

    layers: tuple[LayerDivergence, ...]
    mean: float | None = None
    percentile_99: float | None = None
    greatest: float | None = None
    top_1: float | None = None
    reference_perplexity: float | None = None
    cosine: float | None = None
    histogram: tuple[DivergenceBin, ...] = ()

    def summarize(self) -> list[str]:
        """Return a summary as a few short texts."""
        parts: list[str] = []
        if self.mean is not None:
            parts.append(f"KL divergence {number(self.mean)}")
        if self.cosine is not None:
            parts.append(f"cosine of states at least {show_cosine(self.cosine)}")
        return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardFigures(Figures):
    """A run of a model on tokens in independent windows.

    `source` describes where the tokens come from. A sharded checkpoint runs on `tp` ranks in each
    of `ep` expert groups, in each of `pp` pipeline stages in turn. `perplexity` is None for
    encoders, and if only a part of the model ran. `matrices` are the matrices of a model of unknown
    family, which cannot run as a whole.
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
        """Whether matrices were run one by one, since the family is unknown."""
        return bool(self.matrices)

    def summarize(self) -> str:
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
            other = self.divergence.reference_perplexity if self.divergence else None
            how = "" if other is None else f" ({compare_with_reference(self.perplexity, other)})"
            parts.append(f"perplexity {number(self.perplexity)}{how}")
        if self.divergence is not None:
            parts += self.divergence.summarize()
        return ", ".join(parts)


def compare_with_reference(value: float, reference: float) -> str:
    """Return how a perplexity compares with the reference's: `2.1 % above the reference's 18.3`."""
    if not (isfinite(value) and isfinite(reference) and reference):
        return f"reference: {number(reference)}"
    change = value / reference - 1
    if abs(change) < _EQUAL:
        return f"equal to the reference's {number(reference)}"
    direction = "above" if change > 0 else "below"
    return f"{percent(abs(change))} {direction} the reference's {number(reference)}"


def show_cosine(value: float) -> str:
    """Return a cosine with enough digits to distinguish it from 1."""
    return f"{value:.5f}" if abs(value) < 2 else number(value)


def _list_names(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _name_device(name: str) -> str:
    """Return a device as the command line spells it."""
    return "cpu" if name == "cpu:0" else name.replace("gpu", "cuda")


# Order of tensors and matrices by how unusual they are, worst first.


def ratio_to_usual(value: float, usual: float) -> float:
    """Return a value as a multiple of the usual one; 1 if both are 0, infinite for NaN."""
    if isnan(value) or isnan(usual):
        return inf
    if value == usual:
        return 1.0
    return value / usual if usual > 0 else inf


def sort_worst_first(errors: Iterable[TensorError]) -> list[TensorError]:
    """Return the tensors sorted by `badness`, worst first.

    If none is a problem, they are sorted by decreasing error alone.
    """
    found = list(errors)
    if any(error.is_problem for error in found):
        return sorted(found, key=lambda error: error.badness, reverse=True)
    return sorted(found, key=lambda error: error.badness[2:], reverse=True)


def choose_title(errors: Iterable[TensorError]) -> str:
    """Return the title of a table with the first tensors that `sort_worst_first` returns."""
    is_wrong = any(error.is_problem for error in errors)
    return (
        "largest errors, relative to the expected errors"
        if is_wrong
        else "largest errors, all as expected"
    )


def sort_strangest_first(matrices: Iterable[MatrixGain]) -> list[MatrixGain]:
    """Return the matrices sorted by how far their gain is from the usual gain, farthest first."""

    def strangeness(matrix: MatrixGain) -> float:
        found = matrix.excess
        return abs(log(found)) if isfinite(found) and found > 0 else inf

    return sorted(matrices, key=strangeness, reverse=True)
