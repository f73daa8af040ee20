"""The check `finite`: all values are finite, and none are missing or damaged."""

from __future__ import annotations

import dataclasses
import os
import re
from functools import partial
from itertools import groupby
from math import isnan
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightctl.codecs import transcode
from weightctl.dtype import ENCODINGS
from weightctl.errors import WeightctlError
from weightctl.families.names import split_layer_number
from weightctl.formats.huggingface import config
from weightctl.system.threads import Memory
from weightctl.text.wording import join_names
from weightctl.translate.tokenizer import TokenType, from_directory, from_metadata
from weightctl.verify.checks.finite.scales import ScaleSpread, clear_signs, form_of, read_codes
from weightctl.verify.checks.finite.survey import (
    can_decode,
    decode_rows,
    is_numbers,
    read_runs,
    survey_tensors,
)
from weightctl.verify.figures import FiniteFigures
from weightctl.verify.results import MOST_NAMED, Explanation, Problem, Result
from weightctl.weights.derived import tensor_of
from weightctl.weights.steps.numbers import read_blocks
from weightctl.weights.tree import header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8
    from weightctl.dtype import Encoding
    from weightctl.dtype.types import BlockScale
    from weightctl.families import RecognizedModel
    from weightctl.translate.tokenizer import Tokenizer
    from weightctl.verify.checks.finite.scales import Codes
    from weightctl.verify.checks.finite.survey import Survey
    from weightctl.verify.request import Request
    from weightctl.verify.subject import Subject
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import Header, TensorInfo


def check(request: Request) -> Result:
    """Check every floating-point value and every quantized block of a checkpoint.

    Problems are NaN and infinite values, damaged block scales, matrices that are all zero or
    constant, and zero rows. Zero rows of unused tokens are notes.
    """
    weights = request.subject.weights
    header = header_of(weights)
    infos = [
        info
        for info in header.tensors.values()
        if is_numbers(info.encoding)
        and info.size
        and request.has_layer(split_layer_number(info.name)[0])
    ]
    if request.layers is not None and not infos:
        return Result(
            skipped="no tensor is in the layers of --layers; `weightctl ls` lists the layers"
        )
    repeated = [info.name for info in infos if _is_repeated(header, info)]
    infos = [info for info in infos if not _is_repeated(header, info)]
    surveyed = survey_tensors(
        source_of(weights), infos, partial(request.tell, "finite"), workers=request.workers
    )
    notes = [
        f"`{name}` repeats a few values of its file, so it was not checked"
        for name in repeated[:MOST_NAMED]
    ]
    if request.layers is not None:
        notes.append(f"{len(infos)} of {len(header.tensors)} tensors are in the layers of --layers")
    judge = Judge(request.subject)
    findings: list[Finding] = []
    for info in infos:
        survey = surveyed[info.name]
        if isinstance(survey, str):
            findings.append(Finding(info.name, "unreadable", survey))
        else:
            findings.extend(judge.findings(tensor_of(source_of(weights), info.name), survey))
    return Result(
        problems=tuple(_list_problems(findings)),
        figures=FiniteFigures(
            tensors=len(infos),
            numbers=sum(info.size for info in infos),
            nbytes=sum(info.nbytes for info in infos),
        ),
        notes=(*notes, *judge.notes),
    )


def _list_problems(findings: list[Finding]) -> Iterator[Problem]:
    """Yield the first findings of each kind as problems, and a problem that counts the others."""
    counts: dict[str, int] = {}
    for finding in findings:
        counts[finding.kind] = counts.get(finding.kind, 0) + 1
        if counts[finding.kind] <= MOST_NAMED:
            yield Problem(where=finding.name, text=finding.text, cause=finding.cause)
    for kind, count in counts.items():
        if count > MOST_NAMED:
            text = f"{count - MOST_NAMED:,} more tensors have this problem: {kind}"
            yield Problem(where="", text=text)


def _is_repeated(header: Header, info: TensorInfo) -> bool:
    """Whether a tensor has a stride of 0, so that many indices share the same stored elements."""
    strides = header.extents[info.name].strides
    return strides is not None and any(
        stride == 0 and size > 1 for stride, size in zip(strides, info.shape, strict=False)
    )


# Finds the faults of a tensor from its survey, and zero rows that are not of unused tokens.


NONFINITE = "not finite"
_F64 = ENCODINGS["F64"]
_PLAIN = {"F64", "F32", "BF16", "F16"}
# The largest and the smallest number of values from which the spread of magnitudes is measured.
_SAMPLE, _LEAST = 1 << 14, 64
# The magnitudes of most weights span fewer powers of two than the first number. They span more than
# the second one if bytes of a significand are read as exponents.
_USUAL, _WIDE = 8.0, 14.0
# The percentiles that bound most values.
_MOST = (10, 90)
# Names of tensors that may have any values: they are computed, or start at zero and may stay so.
# Examples are masks, bases of Fourier transforms, optimizer state, and biases of experts.
_MADE = re.compile(
    r"mask|basis|filter|buffer|window|stft|(inv|rope)_freq|freqs|position_ids|sinusoid|"
    r"optimizer|exp_avg|momentum|bias(es)?$|bias_\w+$",
    re.IGNORECASE,
)
# Names of tensors that may be all zeros: the half of a low-rank adapter that is zero before
# training, the segment embeddings of models that do not use segments, and what nothing reads in the
# first layer of RWKV-7.
_MAY_BE_ZERO = re.compile(
    r"lora_(B|up|embedding_B)\b|\.lora_b$|token_type(s|_embeddings)\b|^blk\.0\.time_mix_v[012]\.",
    re.IGNORECASE,
)
# Names of tensors that have a row for each token, position or segment type.
_TABLE = re.compile(
    r"emb|token_type|wte|wpe|lm_head|(^|\.)output\.weight$|shared\.weight|decoder\.weight$|cls\.pred"
)
_POSITIONS = re.compile(r"pos|wpe|type", re.IGNORECASE)
# Texts of tokens that a vocabulary reserves for later use.
_RESERVED = re.compile(
    r"unused|reserved|extra_id|extra_token|placeholder|dummy|madeupword|\[PAD|<pad|special_token",
    re.IGNORECASE,
)
_TRAINED = ("bos", "eos", "eot", "unknown", "cls", "seperator", "mask")
# Some libraries store a padding row before the first position or token.
_FIRST = 2


def _is_made(name: str) -> bool:
    """Whether a tensor of this name is computed, not trained, so that it may have any values."""
    return _MADE.search(name) is not None


class EmptyRows(NamedTuple):
    """Ranges [start, stop) of zero rows: those of unused tokens, and those that were lost."""

    unused: list[tuple[int, int]]
    lost: list[tuple[int, int]]


class UsedTokens:
    """Knows which tokens of a checkpoint are in use; reads the tokenizer on first use."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._read: dict[int, Tokenizer | None] = {}

    def split_unused(self, info: TensorInfo, runs: Sequence[tuple[int, int]]) -> EmptyRows:
        """Split ranges of zero rows of an embedding table into unused rows and lost rows.

        Without a tokenizer, rows at the end and padding rows at the beginning count as unused.
        """
        rows = info.shape[0]
        is_of_tokens = _POSITIONS.search(info.name) is None
        tokenizer = self._find_tokenizer(rows) if is_of_tokens else None
        found = EmptyRows([], [])
        for start, stop in runs:
            if tokenizer is None:
                is_padding = stop == rows or stop <= _FIRST
                (found.unused if is_padding else found.lost).append((start, stop))
                continue
            end = max(start, min(stop, len(tokenizer.tokens)))
            for is_used, alike in groupby(range(start, end), partial(_is_used, tokenizer)):
                same = list(alike)
                (found.lost if is_used else found.unused).append((same[0], same[-1] + 1))
            if end < stop:
                found.unused.append((end, stop))
        return found

    def _find_tokenizer(self, rows: int) -> Tokenizer | None:
        if rows not in self._read:
            try:
                self._read[rows] = _load_tokenizer(self._subject, rows)
            except (WeightctlError, OSError):
                self._read[rows] = None  # another check reports the error
        return self._read[rows]


def _load_tokenizer(subject: Subject, rows: int) -> Tokenizer | None:
    stored = subject.stored
    found = from_metadata(header_of(stored).metadata, subject.path)
    files = header_of(stored).files
    if found is None and files:
        directory = os.path.dirname(files[0])
        kind = str(config(header_of(stored)).get("model_type", ""))
        found = from_directory(directory or ".", rows, kind)
    # If there are more tokens than rows, the rows are not those of the tokenizer's tokens.
    return found if found is not None and len(found.tokens) <= rows else None


def _is_used(tokenizer: Tokenizer, row: int) -> bool:
    # Many models use the end-of-text token for padding.
    if row in {tokenizer.special.get(word) for word in _TRAINED}:
        return True
    is_control = tokenizer.types[row] in {TokenType.CONTROL, TokenType.UNUSED}
    is_padding = tokenizer.special.get("padding") == row
    return not (is_control or is_padding or _RESERVED.search(tokenizer.tokens[row]))


_MOST_ROWS = 5
_MOST_IDLE = 4
# Products of two values of this size are close to overflowing float32.
_ABSURD = 1e18
# A matrix with fewer values may be constant by chance.
_LEAST_MATRIX = 32


_ZEROED = Explanation(
    "zeroed",
    "it was never written, or was lost in a conversion; take it from the original checkpoint",
)
_ROWS_LOST = Explanation(
    "rows_lost",
    "they were never written, or were lost; only rows of pruned neurons are zero on purpose",
)
_TOKENS_LOST = Explanation(
    "rows_lost", "they were never written, or were lost; take them from the original checkpoint"
)
_FLIPPED = Explanation(
    "flipped", "a bit of the file has changed; compare its hash with that of the original"
)
_SWAPPED = Explanation(
    "byte_order",
    "the byte order is swapped: with the bytes of each value reversed the weights are plausible",
)


class Finding(NamedTuple):
    """A fault of the tensor `name`; findings of the same `kind` are the same fault."""

    name: str
    kind: str
    text: str
    cause: Explanation | None = None


class Judge:
    """Finds the faults of tensors from their surveys, reading unusual tensors again.

    `notes` describe tensors that are unusual but not wrong.
    """

    def __init__(self, subject: Subject) -> None:
        self._idle: list[str] = []
        self._unused: list[str] = []
        self._vocabulary = UsedTokens(subject)
        self._norms = _name_norm_gains(subject.checkpoint)
        self._memory = Memory()

    @property
    def notes(self) -> list[str]:
        """The notes on unusual tensors so far, which name only the first of many."""
        idle = join_names(self._idle, _MOST_IDLE)
        which = "is all zeros and has" if len(self._idle) == 1 else "are all zeros and have"
        notes = [f"{idle} {which} no effect, which is usual for such tensors"] if self._idle else []
        return [*notes, *self._unused[:MOST_NAMED]]

    def findings(self, tensor: ReadableTensor, survey: Survey) -> Iterator[Finding]:
        info = tensor.info
        damaged: list[Finding] = []
        if not all(each.are_usual for each in survey.extremes):
            damaged = list(self._judge_scales(tensor))
        if survey.has_nonfinite:
            text = self._find_nonfinite(tensor)
            # If a wrong scale makes values NaN or infinite, both are reported as one finding.
            cause = next((each.cause for each in damaged if each.kind == NONFINITE), None)
            if cause is None and has_swapped_bytes(tensor):
                cause = _SWAPPED
            if text:
                damaged = [each for each in damaged if each.kind != NONFINITE]
                yield Finding(info.name, NONFINITE, text, cause)
        yield from damaged
        if _is_made(info.name):
            return
        if survey.greatest > _ABSURD and not damaged and not survey.has_nonfinite:
            text = f"the largest value is {survey.greatest:.3g}, which training does not produce"
            cause = _SWAPPED if has_swapped_bytes(tensor) else _FLIPPED
            yield Finding(info.name, "absurd", text, cause)
        is_matrix = sum(size > 1 for size in info.shape) > 1 and info.size >= _LEAST_MATRIX
        constant = survey.constant
        if survey.rows and survey.zeros == survey.rows:
            constant = 0.0
        if constant is not None and (is_matrix or (constant == 0 and info.name in self._norms)):
            yield from self._judge_constant(info, constant)
        elif survey.zeros:
            yield from self._judge_empty_rows(info, survey)

    def _find_nonfinite(self, tensor: ReadableTensor) -> str:
        info = tensor.info
        nan, infinite = find_nonfinite(tensor, self._memory)
        kinds = [("NaN", nan), ("infinite", infinite)]
        if _is_made(info.name):
            kinds = kinds[:1]  # masks have infinite values on purpose
        sentences = [
            f"{found.count:,} of {info.size:,} values {_say_are(found.count)} {kind}, the "
            f"first {_say_place(info, found.first)}"
            for kind, found in kinds
            if found.count
        ]
        return "; ".join(sentences)

    def _judge_scales(self, tensor: ReadableTensor) -> Iterator[Finding]:
        info = tensor.info
        kinds, spreads = find_bad_scales(tensor, self._memory)
        for kind in kinds:
            yield Finding(info.name, kind.text, _say_scales(info, kind), _blame_scale(info, kind))
        if any(spread.is_coarse for spread in spreads):
            yield Finding(
                info.name,
                "coarse",
                f"most block scales are too small for float16, about {spreads[0].usual:.1g}, "
                "so that values are wrong by 10 % or more",
                Explanation(
                    "scale",
                    f"the values are too small for {info.encoding}; keep this tensor in bf16",
                ),
            )

    def _judge_constant(self, info: TensorInfo, constant: float) -> Iterator[Finding]:
        if constant:
            text = f"all {info.size:,} values are {_say_number(constant)}"
            yield Finding(info.name, "constant", text, _ZEROED)
        elif _MAY_BE_ZERO.search(info.name):
            self._idle.append(f"`{info.name}`")
        else:
            text = f"all {info.size:,} values are 0"
            yield Finding(info.name, "zero", text, _ZEROED)

    def _judge_empty_rows(self, info: TensorInfo, survey: Survey) -> Iterator[Finding]:
        lost: Sequence[tuple[int, int]] = survey.zero_runs
        count, cause = survey.zeros, _ROWS_LOST
        if _TABLE.search(info.name) and len(info.shape) == 2:
            unused, lost = self._vocabulary.split_unused(info, lost)
            spared = sum(stop - start for start, stop in unused)
            count, cause = count - spared, _TOKENS_LOST
            if spared:
                self._unused.append(
                    f"`{info.name}` has {spared:,} {_say_rows(spared)} of zeros, for padding "
                    "or unused tokens"
                )
        if lost:
            named = ", ".join(_say_run(info, start, stop) for start, stop in lost[:_MOST_ROWS])
            more = ", ..." if len(lost) > _MOST_ROWS else ""
            text = (
                f"{count:,} of {survey.rows:,} rows {_say_are(count)} all zeros: "
                f"{_say_rows(count)} {named}{more}"
            )
            yield Finding(info.name, "empty rows", text, cause)


def _name_norm_gains(checkpoint: RecognizedModel | None) -> frozenset[str]:
    """Return the stored names of norm gains, whose values must not all be zero.

    A gain of zero removes the signal. Gains that are stored minus 1 are left out.
    """
    if checkpoint is None:
        return frozenset()
    found: set[str] = set()
    for names in checkpoint.family.tensors(checkpoint.config):
        is_gain = names.module.endswith("norm.weight")
        change = names.change
        is_less_one = change is not None and bool(
            change.fields(checkpoint.convention).get("norm_offset")
        )
        name = getattr(names, checkpoint.convention)
        if is_gain and not is_less_one and name is not None:
            found.add(name)
    return frozenset(found)


def _say_scales(info: TensorInfo, kind: ScaleFault) -> str:
    found, called = kind.found, kind.field.called
    plural = f"{called}s" if found.count > 1 else called
    usual = f"; about {kind.usual:.1g} is usual in this tensor" if kind.usual else ""
    return (
        f"the {plural} of {found.count:,} {'blocks are' if found.count > 1 else 'block is'} "
        f"{kind.text}: {_say_number(found.value)} {_say_place(info, found.first)}{usual}"
    )


def _blame_scale(info: TensorInfo, kind: ScaleFault) -> Explanation:
    return Explanation(
        "scale",
        f"the {kind.field.called} of {info.encoding} blocks is damaged: a bit of the file "
        "has changed, or values were not finite before quantization",
    )


def _say_place(info: TensorInfo, element: int) -> str:
    place: list[int] = []
    for size in reversed(info.shape):
        element, index = divmod(element, size)
        place.append(index)
    return f"at {place[::-1]}"


def _say_run(info: TensorInfo, start: int, stop: int) -> str:
    first, last = _say_row(info, start), _say_row(info, stop - 1)
    return first if stop - start == 1 else f"{first} to {last}"


def _say_row(info: TensorInfo, number: int) -> str:
    """Return a row's number as text; in a stack of matrices, [matrix, row]."""
    if len(info.shape) == 2:
        return str(number)
    return str(list(divmod(number, info.shape[1])))


def _say_rows(count: int) -> str:
    return "row" if count == 1 else "rows"


def _say_are(count: int) -> str:
    return "is" if count == 1 else "are"


def _say_number(value: float) -> str:
    return "NaN" if isnan(value) else f"{value:g}"


# Finds the faults of an unusual tensor: wrong values, wrong block scales, and swapped bytes.


@dataclasses.dataclass(slots=True)
class Occurrences:
    """The number of occurrences of a fault, and the index and the value of the first one.

    `first` is an index into the flattened tensor, -1 if there is no occurrence.
    """

    count: int = 0
    first: int = -1
    value: float = 0.0

    def add(self, start: int, step: int, wrong: NDArray[np.bool_], values: NDArray[Any]) -> None:
        """Count the values for which `wrong` is true.

        Value i is that of the `step` elements from `start + i * step` on.
        """
        count = int(np.count_nonzero(wrong))
        if count and not self.count:
            index = int(wrong.argmax())
            self.first, self.value = start + index * step, float(values[index])
        self.count += count


@dataclasses.dataclass(slots=True)
class ScaleFault:
    """One kind of wrong block scales in a tensor.

    `field` is the scale's field in the block, `text` says what is wrong, and `usual` is the power
    of two of the median scale. `is_wrong` returns for each scale whether it has the fault.
    """

    field: BlockScale
    text: str
    usual: float
    is_wrong: Callable[[Codes, F32], NDArray[np.bool_]]
    found: Occurrences = dataclasses.field(default_factory=Occurrences)


def find_nonfinite(tensor: ReadableTensor, memory: Memory) -> tuple[Occurrences, Occurrences]:
    """Return the occurrences of NaN and of infinity in a tensor."""
    nan, infinite = Occurrences(), Occurrences()
    encoding = tensor.info.encoding
    if can_decode(encoding):
        for run in read_runs(tensor, 0, tensor.info.size, memory):
            numbers = decode_rows(run.raw, encoding, memory).reshape(-1)
            nan.add(run.start, 1, np.isnan(numbers), numbers)
            infinite.add(run.start, 1, np.isinf(numbers), numbers)
    return nan, infinite


def find_bad_scales(
    tensor: ReadableTensor, memory: Memory
) -> tuple[list[ScaleFault], list[ScaleSpread]]:
    """Return the faults of a tensor's block scales, and the distribution of each field's scales."""
    info = tensor.info
    fields = info.encoding.scales
    spreads = [ScaleSpread(each) for each in fields]
    for run in read_runs(tensor, 0, info.size, memory):
        for each, spread in zip(fields, spreads, strict=True):
            spread.add(read_codes(each, run.raw.reshape(-1), info.encoding.size))
    kinds = [kind for spread in spreads for kind in _list_kinds(spread)]
    if not kinds:
        return [], spreads
    for run in read_runs(tensor, 0, info.size, memory):
        for kind in kinds:
            codes = read_codes(kind.field, run.raw.reshape(-1), info.encoding.size).reshape(-1)
            values = form_of(kind.field).as_float32(codes)
            step = info.encoding.block // kind.field.width
            kind.found.add(run.start, step, kind.is_wrong(codes, values), values)
    return [kind for kind in kinds if kind.found.count], spreads


def _list_kinds(spread: ScaleSpread) -> list[ScaleFault]:
    """Return the kinds of faults that scales with this distribution may have."""
    each, usual = spread.field, spread.usual
    form, greatest, least = form_of(each), spread.greatest, spread.least
    # Whether the distribution allows a kind, what is wrong, and which scales have the fault.
    kinds: list[tuple[bool, str, Callable[[Codes, F32], NDArray[np.bool_]]]] = [
        (spread.nonfinite > 0, NONFINITE, lambda codes, _: clear_signs(each, codes) >= form.limit),
        (spread.has_few_negative, "negative", lambda codes, _: (codes > form.sign)
         & (clear_signs(each, codes) < form.limit)),
        (greatest < np.inf, "implausibly large", lambda codes, values: (np.abs(values) >= greatest)
         & (clear_signs(each, codes) < form.limit)),
        (least > 0, "implausibly small", lambda _, values: _find_lone(np.abs(values), least)),
    ]  # fmt: skip
    return [ScaleFault(each, text, usual, is_wrong) for may_be, text, is_wrong in kinds if may_be]


def _find_lone(values: NDArray[Any], least: float) -> NDArray[np.bool_]:
    """Return whether each value is isolated: nonzero, below `least`, and its neighbors are not."""
    small = values < least
    beside = np.zeros_like(small)
    beside[1:] |= small[:-1]
    beside[:-1] |= small[1:]
    alone: NDArray[np.bool_] = small & ~beside & (values > 0)
    return alone


def has_swapped_bytes(tensor: ReadableTensor) -> bool:
    """Whether full-precision values have plausible magnitudes only with their bytes reversed."""
    info = tensor.info
    encoding = info.encoding
    if encoding.name not in _PLAIN or info.size < _LEAST:
        return False
    given = read_blocks(tensor, 0, min(info.size, _SAMPLE))
    swapped = np.ascontiguousarray(given.reshape(-1, encoding.size)[:, ::-1]).reshape(-1)
    return _measure_spread(given, encoding) > _WIDE and _measure_spread(swapped, encoding) < _USUAL


def _measure_spread(raw: U8, encoding: Encoding) -> float:
    """Return the range of the magnitudes of most values (10th to 90th percentile), in log2."""
    with np.errstate(all="ignore"):  # misread bits may be NaN
        numbers = transcode(raw.reshape(1, -1), encoding, _F64).raw.reshape(-1).view(np.float64)
    sizes = np.abs(numbers[np.isfinite(numbers) & (numbers != 0)])
    if sizes.size < _LEAST:
        return 0.0
    low, high = np.percentile(np.log2(sizes), _MOST)
    return float(high - low)
