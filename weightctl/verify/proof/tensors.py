"""Proofs of tensors: each block is compared with what encoders make of the source's values."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.codecs import can_encode, is_exact, transcode
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError, NonFiniteError
from weightctl.system.threads import Memory, map_in_threads
from weightctl.verify.proof.codes import Judged, find_layout, judge_blocks
from weightctl.verify.proof.grids import has_grid, judge_grids
from weightctl.weights.steps.numbers import read_blocks, read_floats

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from threading import Event

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8
    from weightctl.codecs.feedback import Curvature
    from weightctl.dtype import Encoding
    from weightctl.formats.imatrix.entry import ColumnWeights
    from weightctl.verify.compare.pairing import Pair
    from weightctl.verify.proof.making import Part
    from weightctl.verify.proof.neighbors import Neighbors
    from weightctl.weights.info import TensorInfo

    Bools = NDArray[np.bool_]

_F32 = ENCODINGS["F32"]
# The types that tools convert a model to before they quantize it.
_BETWEEN = tuple(ENCODINGS[name] for name in ("F16", "BF16"))
# The rows that decide how a tensor was probably made, and the values of a piece.
_PROBED, _PIECE = 8, 1 << 20
# The float32 rounding of a quotient, and the rounding of quotients in bfloat16.
_TIE, _HALF_PRECISION = 1e-4, 2.0**-8
# The rows with wrong blocks that are kept.
MOST_ROWS = 64


class Route(NamedTuple):
    """How a tensor was probably made from the source's values.

    `through` is the type that they were converted to before, if any. `reproduces` says whether the
    encoder gives most of its blocks, and `is_weighted` and `feeds_back` whether it needs the
    importance, and error feedback, for them.
    """

    through: Encoding | None
    reproduces: bool
    is_weighted: bool = False
    feeds_back: bool = False


@dataclass(slots=True)
class Counts:
    """The blocks of a tensor by what is known of them; counts of pieces can be added.

    `other_rows` are the first rows with blocks that are not the same; if codes have neighbors, with
    wrong or unusual codes.
    `through` is the type of another route that explains some blocks, empty if there is none.
    """

    rows: int = 0
    blocks: int = 0
    same: int = 0
    wrong: int = 0
    unusual: int = 0
    other_rows: list[int] = field(default_factory=list[int])
    wrong_rows: list[int] = field(default_factory=list[int])
    unusual_rows: list[int] = field(default_factory=list[int])
    through: str = ""

    def add(self, other: Counts) -> None:
        for name in ("rows", "blocks", "same", "wrong", "unusual"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.other_rows += other.other_rows[: MOST_ROWS - len(self.other_rows)]
        self.wrong_rows += other.wrong_rows[: MOST_ROWS - len(self.wrong_rows)]
        self.unusual_rows += other.unusual_rows[: MOST_ROWS - len(self.unusual_rows)]
        self.through = self.through or other.through


class Claim(NamedTuple):
    """A tensor, the source's tensor, and the rows of both to compare, in ranges.

    `importance` has the weights of the columns of each matrix, if they are known; `matrix` is the
    number of the first matrix of the tensor among them. `find_curvature` returns the curvature for
    rounding with error feedback, if that is known. `is_fed_back` says that the checkpoint states
    such rounding, but the curvature is not known. `neighbors` are those of `find_neighbors`.
    """

    pair: Pair
    ranges: Sequence[range]
    importance: ColumnWeights | None = None
    matrix: int = 0
    find_curvature: Callable[[Encoding], Curvature | None] | None = None
    is_fed_back: bool = False
    neighbors: Neighbors | None = None

    @property
    def width(self) -> int:
        """The number of values of a row."""
        shape = self.pair.tensor.info.shape
        return shape[-1] if shape else 1

    @property
    def height(self) -> int:
        """The number of rows of a matrix."""
        shape = self.pair.tensor.info.shape
        return shape[-2] if len(shape) > 1 else 1


class _PlainRows(NamedTuple):
    """Rows of values in an encoding, (rows, bytes)."""

    raw: U8
    encoding: Encoding

    def convert(self, encoding: Encoding | None) -> _PlainRows:
        if encoding is None or not self.raw.size:
            return self
        return _PlainRows(transcode(self.raw, self.encoding, encoding).raw, encoding)

    def decode(self) -> F32:
        """Return the values, (rows, width)."""
        return self.convert(_F32).raw.view(np.float32)


class Differences(NamedTuple):
    """The numbers of bytes of a weight of a scheme that a conversion of the source makes otherwise.

    These are bytes of codes, and of scales and zero points by the names of their tensors. `first`
    are those of the scales of the first columns, which tools with error feedback (GPTQ) choose
    before they change a value.
    """

    codes: int = 0
    scales: Mapping[str, int] = MappingProxyType({})
    first: int = 0


class Proved(NamedTuple):
    route: Route
    counts: Counts


def prove_claims(
    claims: Sequence[Claim],
    progress: Callable[[float], object] | None = None,
    *,
    threads: int | None = None,
) -> Generator[Proved]:
    """Yield how each tensor was made, and the counts of its blocks, in order.

    Tensors have a type that weightctl encodes, or codes that `find_layout` knows. The work is
    divided among `threads`, by default one for each core; each uses a few megabytes of memory.
    Raises `FormatError` if a file cannot be read.
    """
    memory = Memory()
    total = sum(len(rows) * claim.width for claim in claims for rows in claim.ranges) or 1
    done = 0
    routes = list[Route]()

    def pieces() -> Iterator[tuple[Claim, Route, range]]:
        for claim in claims:
            routes.append(_find_route(claim, memory))
            known = claim if routes[-1].feeds_back else claim._replace(find_curvature=None)
            for rows in _cut_rows(claim):
                yield known, routes[-1], rows

    def judge(piece: tuple[Claim, Route, range], ended: Event) -> Counts:
        return Counts() if ended.is_set() else judge_rows(*piece, memory)

    with map_in_threads(judge, pieces(), threads=threads) as made:
        for number, claim in enumerate(claims):
            found = Counts()
            for part in islice(made, sum(1 for _ in _cut_rows(claim))):
                found.add(part)
                done += part.rows * claim.width
                if progress is not None:
                    progress(done / total)
            # A tensor without rows has no pieces, and its route is found with the next ones.
            route = routes[number] if number < len(routes) else Route(None, reproduces=True)
            yield Proved(route, found)


def compare_scales(parts: Mapping[str, Sequence[Part]]) -> dict[str, Differences]:
    """Return where the stored tensors of weights differ from those that a conversion makes.

    Raises `FormatError` if a file cannot be read.
    """
    memory = Memory()
    pieces = [
        (
            weight,
            each[0][0].info,
            part,
            range(start, min(start + _PIECE, part[0].info.nbytes)),
        )
        for weight, each in parts.items()
        for part in each
        for start in range(0, part[0].info.nbytes, _PIECE)
    ]

    def compare(piece: tuple[str, TensorInfo, Part, range], ended: Event) -> tuple[int, int]:
        _, codes, part, places = piece
        rooms = [memory.room(use, len(places)) for use in ("own", "made")]
        try:
            for tensor, room in zip(part, rooms, strict=True):
                if not ended.is_set():
                    tensor.read_into(places.start, room)
        except ConversionError:
            return len(places), 0  # the source has values that cannot be stored so
        own, made = (np.frombuffer(room, np.uint8) for room in rooms)
        other, info = np.flatnonzero(own != made) + places.start, part[0].info
        if len(info.shape) < 2:
            return len(other), len(other)
        row, column = np.divmod(other // info.encoding.size, info.shape[1])
        first = column if info.shape[0] == codes.shape[0] else row
        return len(other), int(np.count_nonzero(first == 0))

    found = {weight: Differences() for weight in parts}
    with map_in_threads(compare, pieces) as made:
        for (weight, codes, part, _), (number, first) in zip(pieces, made, strict=True):
            name, of = part[0].info.name, found[weight]
            if name == codes.name:
                found[weight] = of._replace(codes=of.codes + number)
            elif number:
                scales = {**of.scales, name: of.scales.get(name, 0) + number}
                found[weight] = of._replace(scales=scales, first=of.first + first)
    return found


def _cut_rows(claim: Claim) -> Iterator[range]:
    """Yield the ranges of rows, cut into pieces; a piece has rows of one matrix."""
    step = max(1, _PIECE // claim.width)
    for rows in claim.ranges:
        first = rows.start
        while first < rows.stop:
            matrix = first // claim.height
            last = min(first + step, rows.stop, (matrix + 1) * claim.height)
            yield range(first, last)
            first = last


def _find_route(claim: Claim, memory: Memory) -> Route:
    """Return how the probed rows were made: the first route that explains most of their blocks."""
    if claim.neighbors is not None:
        return Route(None, reproduces=False)
    alone, found = _try_routes(claim._replace(find_curvature=None), memory)
    if claim.find_curvature is None:
        return alone
    fed_back, more = _try_routes(claim, memory)
    return fed_back._replace(is_weighted=True, feeds_back=True) if more > found else alone


def _try_routes(claim: Claim, memory: Memory) -> tuple[Route, int]:
    """Return the best route of a claim, and the number of its blocks that the encoder gives."""
    rows = [row for each in claim.ranges for row in each]
    probed = {rows[len(rows) * place // _PROBED] for place in range(_PROBED if rows else 0)}
    routes = [None, *_list_between(claim)]
    right, same, unweighted = ([0] * len(routes) for _ in range(3))
    plain = claim._replace(importance=None, find_curvature=None)
    blocks = 0
    for row in sorted(probed):
        one = range(row, row + 1)
        source, raw = _read_source(claim, one), _read_blocks(claim, one, memory)
        blocks += raw.shape[1]
        for place, through in enumerate(routes):
            tile = _RowBlocks(claim, one, source, raw, reproduces=True)
            tile.judge(through)
            right[place] += int(np.count_nonzero(~tile.is_wrong))
            same[place] += int(np.count_nonzero(tile.is_same))
            if claim.importance is not None:
                tile = _RowBlocks(plain, one, source, raw, reproduces=True)
                same_without = tile.find_same(source.convert(through), raw)
                unweighted[place] += int(np.count_nonzero(same_without))
    best = max(range(len(routes)), key=lambda place: (right[place], same[place]))
    is_weighted = claim.importance is not None and unweighted[best] < same[best]
    return Route(routes[best], 2 * same[best] >= blocks, is_weighted), same[best]


def judge_rows(claim: Claim, route: Route, rows: range, memory: Memory) -> Counts:
    """Compare blocks of rows with those that encoders make of the source's values.

    A block is right if it is on the given route, or on another one.
    """
    source = _read_source(claim, rows)
    if claim.neighbors is not None:
        return _judge_neighbors(claim, claim.neighbors, source.convert(route.through), rows)
    encoding = claim.pair.tensor.info.encoding
    raw = _read_blocks(claim, rows, memory)
    tile = _RowBlocks(claim, rows, source, raw, reproduces=route.reproduces)
    tile.judge(route.through)
    through = ""
    for other in (None, *_list_between(claim)):
        if other != route.through and tile.is_open.any():
            before = np.count_nonzero(tile.is_open)
            tile.judge(other)
            if other is not None and np.count_nonzero(tile.is_open) < before:
                through = through or other.name
    if encoding.dtype is None and not can_judge(encoding):
        tile.is_unusual, tile.is_wrong = tile.is_wrong, tile.is_unusual
    return Counts(
        rows=len(rows),
        blocks=tile.is_same.size,
        same=int(np.count_nonzero(tile.is_same)),
        wrong=int(np.count_nonzero(tile.is_wrong)),
        unusual=int(np.count_nonzero(tile.is_unusual)),
        other_rows=_list_rows(~tile.is_same, rows),
        wrong_rows=_list_rows(tile.is_wrong, rows),
        unusual_rows=_list_rows(tile.is_unusual, rows),
        through=through,
    )


def _list_rows(found: Bools, rows: range) -> list[int]:
    """Return the first of the rows in which something is found."""
    places: list[int] = (np.flatnonzero(found.any(axis=1))[:MOST_ROWS] + rows.start).tolist()
    return places


class _RowBlocks:
    """The blocks of some rows, (rows, blocks): which ones an encoder gives, and which none does."""

    def __init__(
        self, claim: Claim, rows: range, source: _PlainRows, raw: U8, *, reproduces: bool
    ) -> None:
        self._claim, self._rows, self._source, self._raw = claim, rows, source, raw
        self._encoding = claim.pair.tensor.info.encoding
        self._reproduces = reproduces or self._encoding.dtype is not None
        self.is_same = np.zeros(raw.shape[:2], bool)
        self.is_wrong, self.is_unusual = ~self.is_same, self.is_same.copy()

    @property
    def is_open(self) -> Bools:
        """The blocks that another route may explain."""
        return ~self.is_same if self._reproduces else self.is_wrong

    def judge(self, through: Encoding | None) -> None:
        """Judge the rows with open blocks on a route."""
        of_rows = self.is_open.any(axis=1)
        # Whole pieces are not copied.
        places = slice(None) if of_rows.all() else np.flatnonzero(of_rows)
        values = _PlainRows(self._source.raw[places], self._source.encoding).convert(through)
        raw = self._raw[places]
        is_same = self.is_same[places]
        if self._reproduces:
            is_same |= self.find_same(values, raw)
            self.is_same[places] = is_same
            self.is_unusual[places] &= ~is_same
        is_wrong = self.is_wrong[places] & ~is_same
        if is_wrong.any():
            blocks = values.decode().reshape(*is_wrong.shape, self._encoding.block)
            chosen = (slice(None), slice(None)) if is_wrong.all() else is_wrong
            found = _judge(
                blocks[chosen].reshape(-1, self._encoding.block),
                raw[chosen].reshape(-1, self._encoding.size),
                self._encoding,
            )
            is_unusual = self.is_unusual[places]
            is_unusual[is_wrong] = found.unusual & ~found.wrong
            self.is_unusual[places] = is_unusual
            is_wrong[is_wrong] = found.wrong
        self.is_wrong[places] = is_wrong

    def find_same(self, values: _PlainRows, raw: U8) -> Bools:
        """Return the blocks of rows, (rows, blocks, bytes), that the encoder gives."""
        made = self._encode(values)
        if made is None:
            return np.zeros(raw.shape[:2], bool)
        equal = made.reshape(raw.shape) == raw
        # Usually all are, and the result of each block takes ten times as long.
        found: Bools = np.ones(raw.shape[:2], bool) if equal.all() else np.all(equal, axis=2)
        return found

    def _encode(self, values: _PlainRows) -> U8 | None:
        """Return what the encoder makes of rows; None if it cannot encode them."""
        claim, encoding, importance = self._claim, self._encoding, None
        if claim.importance is not None and encoding.takes_importance:
            importance = claim.importance[claim.matrix + self._rows.start // claim.height]
        if not can_encode(encoding) or (encoding.needs_importance and importance is None):
            return None
        curvature = None if claim.find_curvature is None else claim.find_curvature(encoding)
        try:
            return transcode(
                values.raw, values.encoding, encoding, importance, curvature=curvature
            ).raw
        except NonFiniteError:
            return None


def can_judge(encoding: Encoding) -> bool:
    """Whether blocks that no encoder gives are known, also with an unknown importance matrix."""
    return find_layout(encoding) is not None or has_grid(encoding)


def _list_between(claim: Claim) -> list[Encoding]:
    """Return the types that change values of the source, and that tools use before quantization."""
    source = claim.pair.reference.info.encoding
    return [each for each in _BETWEEN if not is_exact(source, each)]


def _read_source(claim: Claim, rows: range) -> _PlainRows:
    first, count = rows.start * claim.width, len(rows) * claim.width
    tensor = claim.pair.reference
    encoding = tensor.info.encoding
    if encoding in _BETWEEN:
        return _PlainRows(read_blocks(tensor, first, count).reshape(len(rows), -1), encoding)
    floats = read_floats(tensor, first, count).reshape(len(rows), claim.width)
    return _PlainRows(floats.view(np.uint8), _F32)


def _read_blocks(claim: Claim, rows: range, memory: Memory) -> U8:
    """Return the blocks of rows, (rows, blocks, bytes), valid until this thread reads the next."""
    encoding = claim.pair.tensor.info.encoding
    size = encoding.row_bytes(claim.width)
    room = memory.room("own", len(rows) * size)
    claim.pair.tensor.read_into(rows.start * size, room)
    return np.frombuffer(room, np.uint8).reshape(len(rows), -1, encoding.size)


def _judge_neighbors(claim: Claim, neighbors: Neighbors, own: _PlainRows, rows: range) -> Counts:
    """Compare each value with those of the two codes beside its own.

    A code is wrong if another one is nearer, and unusual if this can be the rounding of the
    quotient to 16 bits, or of the scale.
    """
    first, count = rows.start * claim.width, len(rows) * claim.width
    values = own.decode()
    stored = read_floats(claim.pair.tensor, first, count).reshape(values.shape)
    is_wrong, is_unusual = np.zeros(values.shape, bool), np.zeros(values.shape, bool)
    with np.errstate(all="ignore"):
        distance = values - stored
        offset = np.abs(stored) * np.float32(_HALF_PRECISION)
        if neighbors.rounding is not None:
            offset += np.abs(read_floats(neighbors.rounding, first, count).reshape(values.shape))
        for tensor in (neighbors.lower, neighbors.higher):
            apart = read_floats(tensor, first, count).reshape(values.shape) - stored
            step = np.abs(apart)
            beyond = distance * np.sign(apart) - step * np.float32(0.5)
            rounding = offset + step * np.float32(_HALF_PRECISION)
            is_unusual |= (beyond > step * np.float32(_TIE)) & (step != 0)
            is_wrong |= (beyond > rounding) & (step != 0)
        is_wrong |= ~np.isfinite(distance)
    return Counts(
        rows=len(rows),
        blocks=values.size,
        wrong=int(np.count_nonzero(is_wrong)),
        unusual=int(np.count_nonzero(is_unusual & ~is_wrong)),
        other_rows=_list_rows(is_wrong | is_unusual, rows),
        wrong_rows=_list_rows(is_wrong, rows),
    )


def _judge(values: F32, raw: U8, encoding: Encoding) -> Judged:
    if encoding.dtype is None:
        if find_layout(encoding) is not None:
            return judge_blocks(values, raw, encoding)
        if has_grid(encoding):
            return judge_grids(values, raw, encoding)
        # Another route may give them.
        nothing = np.zeros(len(raw), bool)
        return Judged(~nothing, nothing)
    stored = transcode(raw, encoding, _F32).raw.view(np.float32)
    # A tool can cut off bits in place of rounding.
    step = np.abs(values) * np.float32(2.0 ** (1 - (encoding.significand or 24)))
    with np.errstate(all="ignore"):
        is_wrong = ~(np.abs(values - stored) <= step)[:, 0]
    return Judged(is_wrong, ~is_wrong)
