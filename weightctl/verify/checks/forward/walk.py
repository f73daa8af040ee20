"""Runs two models part by part on the same tokens, and measures the error of each part."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.codecs import can_decode
from weightctl.errors import ConversionError
from weightctl.families.steps import convert_form, module_form
from weightctl.verify.compare.pairing import PairSide, convert_convention
from weightctl.verify.run.output import measure_activation
from weightctl.verify.run.parts import EMBEDDING, OUTPUT, name_layer
from weightctl.weights.derived import DerivedTensor
from weightctl.weights.steps.numbers import AsFloat32, read_blocks, read_floats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32
    from weightctl.verify.compare.pairing import Pairing
    from weightctl.verify.figures import Activation
    from weightctl.verify.run.parts import Flow, Replaced, Running
    from weightctl.verify.run.prompt import Prompt
    from weightctl.weights.buffer import Buffer
    from weightctl.weights.derived import ReadableTensor

    F64 = NDArray[np.float64]

    from weightctl.dtype import Encoding
    from weightctl.families import RecognizedModel
    from weightctl.verify.compare.pairing import Pair
    from weightctl.weights.info import TensorInfo

# The number of values to encode at once, in whole rows.
_RUN = 1 << 20
# Encodings with at least this many bits round each value; their error is negligible compared with
# that of quantized blocks.
_PLAIN = 16
# If more than this fraction of the blocks differ, the two tensors were quantized separately.
_MOST_CHANGED = 0.5
# The largest error of a part, as a multiple of the error that its encodings explain. On real
# models, different encoders of one encoding stay within 1.5; small faults begin at 5.
_FACTOR = 3.0
# The rounding error of float32 sums in another order: relative to the length of a position's
# vector, and relative to the length of the vector that a part adds.
_OF_LENGTH, _ROUNDING = 3e-6, 2e-5
_LEAST = 1e-30


class Share(NamedTuple):
    """The error of a part's output, as a root mean square over positions.

    At each position, the length of the difference is divided by the length of the vector that the
    part adds, so that all positions have the same weight. `all` is the whole error, and `beyond`
    the error that float32 rounding does not explain.
    """

    all: float
    beyond: float


def measure_share(found: F32, wanted: F32, added: F32) -> Share:
    """Return the error of `found` against `wanted`, relative to `added`; all are [positions, n].

    Positions where `wanted` or `added` is not finite are ignored. The error is infinite if `found`
    is not finite at one of the other positions.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        error, size, length = (
            _measure_lengths(found - wanted),
            _measure_lengths(added),
            _measure_lengths(wanted),
        )
        known = np.isfinite(size) & np.isfinite(length)
        error, size, length = error[known], size[known] + _LEAST, length[known]
        beyond = np.maximum(error - _OF_LENGTH * length, 0)
        return Share(_average(error / size), _average(beyond / size))


def is_beyond(found: Share, expected: Share) -> bool:
    """Whether a part differs by more than its encodings and rounding explain."""
    return found.beyond > _FACTOR * expected.all + _ROUNDING


def _center(logits: F32) -> F32:
    """Return logits minus the mean of their position, which does not change predictions."""
    with np.errstate(over="ignore", invalid="ignore"):
        made: F32 = logits - logits.mean(axis=-1, keepdims=True)
    return made


def _measure_lengths(rows: F32) -> F64:
    squares: F64 = np.einsum("pn,pn->p", rows, rows, dtype=np.float64)
    return np.sqrt(squares)


def _average(shares: F64) -> float:
    if not shares.size:
        return 0.0
    found = float(np.sqrt(np.mean(np.square(shares))))
    return found if np.isfinite(found) else float("inf")


_EMBEDDING, _OUTPUT = "embedding.weight", "output.weight"

# The error of the output is measured at this many positions, since each has a whole vocabulary of
# logits.
_MOST_SPOKEN = 64


@dataclass(frozen=True, slots=True)
class ComparedPart:
    """A part of the checkpoint, compared with the reference's part on the same input.

    `found` is the error of the part's output against the output of the reference's part. `expected`
    is the error of the reference's part with the encoding errors added to its weights. `recompute`
    runs this part of a given model with some weights replaced, and returns its error.
    """

    name: str
    found: Share
    expected: Share
    recompute: Callable[[Running, Replaced], Share]

    @property
    def is_beyond(self) -> bool:
        """Whether the part differs by more than its encodings and rounding explain."""
        return is_beyond(self.found, self.expected)

    def is_well(self, running: Running, replaced: Replaced) -> bool:
        """Whether this part of the model `running` matches with some weights replaced."""
        return not is_beyond(self.recompute(running, replaced), self.expected)


class LayerAhead:
    """Runs the layers of a model in order, up to `last`, one of them in advance.

    On a GPU none is, since its layers would compete for the memory.
    """

    def __init__(self, running: Running, last: int) -> None:
        self._running, self._last = running, last
        self._thread = ThreadPoolExecutor(1, "weightctl-layer") if running.is_on_cpu else None
        self._begun: Future[F32] | None = None

    def take(self, number: int, x: F32, beside: Sequence[Buffer]) -> F32:
        """Return the output of a layer for its input `x`, and begin to run the next one.

        An error of a layer is raised when its own output is taken.
        """
        begun, self._begun = self._begun, None
        made = self._running.layer(number, x, beside) if begun is None else begun.result()
        if self._thread is not None and number < self._last:
            # NumPy's error state is part of the context.
            run = copy_context().run
            self._begun = self._thread.submit(run, self._running.layer, number + 1, made, beside)
        return made

    def close(self) -> None:
        """Wait for the layer that runs, and drop its output."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)


class Walk:
    """Runs two models part by part on the tokens of a prompt, starting with the embeddings.

    `own` is the output of the last part that the checkpoint ran, computed from its own previous
    output; `wanted` is that of the reference. Both are float32[windows, positions, hidden].
    `activations` are the figures of the checkpoint's parts so far. The layers up to `last` are to
    be run. Unless `reference` runs on a GPU, it runs a layer on another thread, while the
    checkpoint runs the one before.
    """

    def __init__(
        self, subject: Running, reference: Running, pairing: Pairing, prompt: Prompt, last: int
    ) -> None:
        self.subject, self.reference = subject, reference
        self._ahead = LayerAhead(reference, last)
        self._pairs = {pair.module: pair for pair in pairing.pairs}
        self._prompt = prompt
        self._flows: dict[Running, Flow] = {}
        self._beside = reference.begin(prompt.ids, prompt.mask)
        self.own, self.wanted = self._make_flow(subject).x, self._beside.x
        self.activations: list[Activation] = []
        self._note(EMBEDDING)

    def embedding(self) -> ComparedPart:
        ids, mask = self._prompt.ids, self._prompt.mask
        wanted = self.wanted

        def recompute(running: Running, replaced: Replaced) -> Share:
            return self._measure_share(running.begin(ids, mask, replaced).x, wanted, wanted)

        found = self._measure_share(self.own, wanted, wanted)
        return self._compare_part(EMBEDDING, found, recompute)

    def layer(self, number: int) -> ComparedPart:
        """Run a layer of both models, and compare the outputs for the reference's input.

        Layers must be run in order. The checkpoint's layer also runs on its own previous output.
        """
        given = self.wanted
        wanted = self._ahead.take(number, given, self._beside.beside)
        added = _subtract(wanted, given)

        def recompute(running: Running, replaced: Replaced) -> Share:
            beside = self._make_flow(running).beside
            made = running.layer(number, given, beside, replaced)
            return self._measure_share(made, wanted, added)

        is_apart = not np.array_equal(self.own, given)
        both = np.concatenate([self.own, given]) if is_apart else given
        made = self.subject.layer(number, both, self._make_flow(self.subject).beside)
        self.own, forced = made[: len(given)], made[-len(given) :]
        self.wanted = wanted
        self._note(name_layer(number))
        found = self._measure_share(forced, wanted, added)
        return self._compare_part(name_layer(number), found, recompute)

    def close(self) -> None:
        """Wait for the layer that the reference runs, if any, and drop its output."""
        self._ahead.close()

    def output(self) -> ComparedPart:
        """Compare the logits of some positions after the last layer."""
        given = self.wanted[self._prompt.mask]
        chosen = np.unique(np.linspace(0, len(given) - 1, _MOST_SPOKEN).astype(np.int64))
        few = given[chosen][None]
        wanted = _center(self.reference.end(few)[0])

        def recompute(running: Running, replaced: Replaced) -> Share:
            made = running.end(few, replaced)[0]
            width = min(made.shape[-1], wanted.shape[-1])
            aim = wanted[:, :width]
            return measure_share(_center(made[:, :width]), aim, aim)

        return self._compare_part(OUTPUT, recompute(self.subject, {}), recompute)

    def _compare_part(
        self, name: str, found: Share, recompute: Callable[[Running, Replaced], Share]
    ) -> ComparedPart:
        expected = Share(0.0, 0.0)
        if found.beyond > _ROUNDING and (far_off := self._far_off(name)):
            expected = recompute(self.reference, far_off)
        return ComparedPart(name, found, expected, recompute)

    def _far_off(self, name: str) -> dict[str, ReadableTensor]:
        found: dict[str, ReadableTensor] = {}
        for module in self.reference.weights_of(name):
            pair = self._pairs.get(module)
            if name == OUTPUT and module == _EMBEDDING:
                # The checkpoint may have an output tensor although the reference's is tied.
                pair = self._pairs.get(_OUTPUT, pair)
            if pair is None:
                continue
            made = degrade(pair, self.subject.checkpoint, self.reference.checkpoint)
            if made is not None:
                found[module] = made
        return found

    def _make_flow(self, running: Running) -> Flow:
        """Return the input of a model's first layer, and the inputs that all layers share."""
        if running is self.reference:
            return self._beside
        if running not in self._flows:
            self._flows[running] = running.begin(self._prompt.ids, self._prompt.mask)
        return self._flows[running]

    def _measure_share(self, found: F32, wanted: F32, added: F32) -> Share:
        mask = self._prompt.mask
        return measure_share(found[mask], wanted[mask], added[mask])

    def _note(self, name: str) -> None:
        self.activations.append(measure_activation(name, self.own, self._prompt.mask))


def _subtract(wanted: F32, given: F32) -> F32:
    with np.errstate(over="ignore", invalid="ignore"):
        made: F32 = wanted - given
    return made


# Simulates the encoding errors of the checkpoint in the reference's weights.


def degrade(
    pair: Pair, subject: RecognizedModel, reference: RecognizedModel
) -> ReadableTensor | None:
    """Return the reference's tensor with the errors that the encodings of both sides cause.

    The result is in the form of the reference's modules. Return None if the encodings explain no
    difference, so that both tensors should be equal, or if the tensors cannot be compared, for
    example because their shapes differ.
    """
    if pair.names is None:
        return None
    # The output of a tied model is only in the pair, not among the model's tensors.
    own = subject.tensors.get(pair.module, pair.tensor)
    other = reference.tensors.get(pair.module, pair.reference)
    sides = (
        PairSide(own.info.encoding, pair.bits),
        PairSide(other.info.encoding, pair.reference_bits),
    )
    is_alike = sides[0] == sides[1]
    is_plain = min(side.bits for side in sides) >= _PLAIN
    if is_alike and (is_plain or not _is_otherwise_quantized(pair)):
        return None
    step = Degraded(*sides, is_repeated=is_alike)
    if not step.costs:
        return None
    # The convention is that of the side with fewer bits, since its blocks must not be split.
    convention = (subject if pair.bits <= pair.reference_bits else reference).convention
    try:
        turned = convert_convention(pair.names, own, subject, convention)
        wanted = convert_convention(pair.names, other, reference, convention)
        if turned.info.shape != wanted.info.shape:
            return None
        made = DerivedTensor(pair.module, step, [wanted, turned])
        form = module_form(pair.names, reference.convention)
        return convert_form(pair.names, made, reference.config, convention, form)
    except ConversionError:
        return None


@dataclass(frozen=True, slots=True)
class Degraded:
    """A step that adds the encoding errors of two tensors to the values of the first.

    `stored` describes the first tensor's encoding and `other` the second's; both tensors have the
    same shape. `is_repeated` is set if both have the same encoding but different blocks. The values
    that both were encoded from are then unknown, and random errors of the typical size are added.
    """

    stored: PairSide
    other: PairSide
    is_repeated: bool = False

    @property
    def costs(self) -> bool:
        """Whether one of the encodings has an error that counts."""
        return _is_worth_counting(self.stored, self.other) or _is_worth_counting(
            self.other, self.stored
        )

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        for info in inputs:
            if not can_decode(info.encoding):
                raise ConversionError(
                    f"`{info.name}` is {info.encoding}, which weightctl cannot decode"
                )
            if not info.encoding.fits(info.shape[-1:]):
                raise ConversionError(f"the rows of `{info.name}` are not whole blocks")
        return AsFloat32().infer(inputs[:1])

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        made = np.frombuffer(buffer, np.float32)
        shape = inputs[0].info.shape
        row = shape[-1] if shape else 1
        begin, end = start // 4, start // 4 + len(made)
        at_once = max(1, _RUN // max(1, row)) * row
        for first in range(begin // row * row, end, at_once):
            last = min(first + at_once, -(-end // row) * row)
            numbers = self._read_numbers(inputs, first, last, row)
            kept = slice(max(begin - first, 0), max(min(end, last) - first, 0))
            part = numbers.reshape(-1)[kept]
            made[max(first - begin, 0) :][: len(part)] = part

    def __str__(self) -> str:
        return "as far off as its encoding"

    def _read_numbers(
        self, inputs: Sequence[ReadableTensor], first: int, last: int, row: int
    ) -> F32:
        numbers = read_floats(inputs[0], first, last - first).reshape(-1, row)
        if self.is_repeated:
            return _add_noise(numbers, self.stored.typical, first)
        made = numbers
        if _is_worth_counting(self.stored, self.other):
            made = _pass_through(self.stored, numbers, first)
        if _is_worth_counting(self.other, self.stored):
            given = read_floats(inputs[1], first, last - first).reshape(-1, row)
            with np.errstate(over="ignore", invalid="ignore"):
                cost = given - _pass_through(self.other, given, first)
                made = made + np.where(np.isfinite(cost), cost, 0)
        return made


def _is_worth_counting(side: PairSide, beside: PairSide) -> bool:
    """Whether the error of `side` is significant compared with the error of `beside`."""
    return not side.keeps_all and not (side.bits >= _PLAIN > beside.bits)


def _pass_through(side: PairSide, rows: F32, seed: int) -> F32:
    fits = side.encoding.fits(rows.shape)
    found = side.through(rows.reshape(-1)) if fits else None
    return _add_noise(rows, side.typical, seed) if found is None else found.reshape(rows.shape)


def _add_noise(rows: F32, noise: float, seed: int) -> F32:
    drawn = np.random.default_rng(seed).standard_normal(rows.shape, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.sqrt(np.mean(np.square(rows), axis=-1, keepdims=True)) * np.float32(noise)
        made: F32 = rows + drawn * np.nan_to_num(size, posinf=0, neginf=0)
    return made


def _is_otherwise_quantized(pair: Pair) -> bool:
    """Whether two tensors have different encodings, or most of their blocks differ."""
    one, other = pair.tensor.info, pair.reference.info
    if one.encoding != other.encoding or one.nbytes != other.nbytes:
        return True
    block, changed, step = one.encoding.block, 0, max(1, _RUN // one.encoding.size)
    for start in range(0, one.size, step * block):
        count = min(step * block, one.size - start)
        own, counterpart = (
            read_blocks(tensor, start, count).reshape(-1, one.encoding.size)
            for tensor in (pair.tensor, pair.reference)
        )
        changed += int(np.count_nonzero((own != counterpart).any(axis=-1)))
    return changed > one.size // block * _MOST_CHANGED
