"""Weights of a header that are stored in several tensors, by names and shapes alone."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from weightctl.errors import WeightctlError
from weightctl.schemes import SCHEMES
from weightctl.system.registry import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from weightctl.schemes.names import NameEndings
    from weightctl.schemes.scheme import Scheme
    from weightctl.weights.info import Header, TensorInfo

__all__ = ["MARKS", "Quantized", "find_quantized", "list_scheme_tensors", "load_schemes"]

# How the names of scales end. Records of schemes are loaded where there are some.
MARKS = tuple(dict.fromkeys(ending for line in SCHEMES.values() for ending in line.scales))
# No tensor that is read for what it says is larger.
_MAX_READ = 4096


class Quantized(NamedTuple):
    """A weight that is stored as several tensors: packed numbers, and what scales them.

    `name` and `shape` are those of the weight that they represent, outermost dimension first.
    `label` is what people call the packing. `tensors` are the names of those that are stored, the
    packed numbers first, and `nbytes` is what all of them fill. Each number is packed in
    `number_bits`, which is 0 where the scheme says it.
    """

    name: str
    shape: tuple[int, ...]
    scheme: Scheme
    label: str
    number_bits: int
    tensors: tuple[str, ...]
    nbytes: int

    @property
    def size(self) -> int:
        """The number of elements of the weight."""
        return prod(self.shape)

    @property
    def bits(self) -> float:
        """Stored bits for each element, scales included."""
        return 8 * self.nbytes / self.size


def find_quantized(
    header: Header, config: Mapping[str, Any], read: Callable[[str], bytes]
) -> dict[str, Quantized]:
    """Return the weights that are stored in several tensors, by name, in the order of their first.

    `config` is config.json's content, or empty. `read` gives the bytes of a small tensor in
    little-endian order and may raise `WeightctlError`. Where tensors do not fit together, they
    are not a weight; nothing is raised for it.
    """
    tensors, extents, content = header.tensors, header.extents, _Contents(read)
    found: dict[str, Quantized] = {}
    owner: dict[str, str] = {}
    for mark in _find_marks(tensors):
        for names, schemes in _find_ways(mark):
            candidate = names.gather(tensors[mark], tensors, config, content)
            if candidate is None:
                continue
            name, own = candidate.layer + names.weight, candidate.names
            is_taken = name in found or (name in tensors and name not in own)
            if is_taken or not owner.keys().isdisjoint(own):
                continue
            for scheme in schemes:
                logical = scheme.infer(candidate)
                if logical is not None:
                    break
            else:
                continue
            if not prod(logical.shape):
                continue
            nbytes = sum([extents[tensor].nbytes for tensor in own])
            label = _label(scheme, logical.bits, logical.element)
            found[name] = Quantized(name, logical.shape, scheme, label, logical.bits, own, nbytes)
            owner.update(dict.fromkeys(own, name))
            break
    order = dict.fromkeys(owner[name] for name in tensors if name in owner)
    return {name: found[name] for name in order}


def list_scheme_tensors(header: Header) -> set[str]:
    """Return the tensors that only have a meaning together: numbers, and what scales them.

    Names and encodings alone decide, so that these may be tensors that `find_quantized` cannot
    make a weight of; what it finds is always among them.
    """
    tensors = header.tensors
    return {
        tensor
        for mark in _find_marks(tensors)
        for names, _ in _find_ways(mark)
        if (candidate := names.gather(tensors[mark], tensors, {}, _read_nothing))
        for tensor in candidate.names
    }


def load_schemes(ending: str = "") -> tuple[Scheme, ...]:
    """Return the schemes whose scales have names that may end so, in the order of the table."""
    return tuple(
        cast("Scheme", load(line.record))
        for line in SCHEMES.values()
        if any(ending.endswith(scales) or scales.endswith(ending) for scales in line.scales)
    )


def _find_ways(mark: str) -> tuple[tuple[NameEndings, tuple[Scheme, ...]], ...]:
    """Return how the tensors beside these scales may be called, each with the schemes that do so.

    They are those for any name that ends like it after the last dot.
    """
    return _find_ways_of(mark[mark.rfind(".") + 1 :])


@lru_cache(maxsize=256)  # a model has few names of scales, each in many layers
def _find_ways_of(last: str) -> tuple[tuple[NameEndings, tuple[Scheme, ...]], ...]:
    ending = "." + last
    ways: dict[NameEndings, list[Scheme]] = {}
    for scheme in load_schemes(ending):
        for names in scheme.names:
            if ending.endswith(names.scales) or names.scales.endswith(ending):
                ways.setdefault(names, []).append(scheme)
    return tuple((names, tuple(schemes)) for names, schemes in ways.items())


@lru_cache(maxsize=256)
def _label(scheme: Scheme, bits: int, element: str) -> str:
    return scheme.label.format(bits=bits, element=element)


def _find_marks(names: Iterable[str]) -> list[str]:
    """Return the names that may be those of scales."""
    # Nearly all names end like this, and no scales do.
    return [name for name in names if not name.endswith(".weight") and name.endswith(MARKS)]


def _read_nothing(_info: TensorInfo, _numbers: TensorInfo) -> None:
    return None


class _Contents:
    """What small tensors hold; of layers that differ in numbers alone, the first is read."""

    def __init__(self, read: Callable[[str], bytes]) -> None:
        self._read = read
        self._known: dict[object, bytes] = {}

    def __call__(self, info: TensorInfo, numbers: TensorInfo) -> bytes | None:
        # Experts have tens of thousands of these, and the same in all of them.
        name = info.name.encode("utf-8", "surrogatepass").translate(None, b"0123456789")
        alike = (name, info.shape, info.encoding.name, numbers.shape)
        raw = self._known.get(alike)
        if raw is None:
            try:
                if info.nbytes > _MAX_READ:
                    return None
                raw = self._read(info.name)
            except WeightctlError:
                return None
            if len(raw) != info.nbytes:
                return None
            self._known[alike] = raw
        return raw
