"""Finding weights that are stored in several tensors, by names and shapes in a header."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError, WeightctlError
from weightctl.schemes import SCHEMES, added_schemes
from weightctl.schemes.buffers import is_activation_scale, is_buffer, is_optimizer_state
from weightctl.schemes.naming import ACTIVATIONS, Quantized
from weightctl.schemes.scheme import load_scheme
from weightctl.schemes.settings import Settings, read_settings
from weightctl.weights.tree import header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping

    from weightctl.schemes.naming import NameEndings
    from weightctl.schemes.scheme import Scheme
    from weightctl.weights.info import Header, TensorInfo
    from weightctl.weights.tree import Checkpoint

# Endings of the names of scales. A scheme's record is loaded if there is a name with its ending.
MARKS = tuple(dict.fromkeys(ending for line in SCHEMES.values() for ending in line.scales))
# Encodings that can hold packed values.
_PACKED = frozenset(
    name
    for name, encoding in ENCODINGS.items()
    if encoding.dtype is not None and (encoding.size == 1 or not encoding.dtype.is_float)
)
# The maximum size of a tensor whose content is read.
_MAX_READ = 4096


def find_quantized(
    header: Header, settings: Settings | None, read: Callable[[str], bytes]
) -> dict[str, Quantized]:
    """Return the weights that are stored in several tensors, by name, in the order of the file.

    `settings` are by default those beside the files. `read` returns the bytes of a small tensor in
    little-endian order, and can raise `WeightctlError`. Tensors that do not fit together are not
    reported as a weight, without an error.
    """
    tensors, extents, content = header.tensors, header.extents, _Contents(read)
    found: dict[str, Quantized] = {}
    owner: dict[str, str] = {}
    stated: Settings | None = None
    for mark, ways in _list_marks(tensors, owner):
        if stated is None:
            stated = read_settings(header) if settings is None else settings
            stated.assign(list_layers(tensors))
        for names, schemes in ways.items():
            candidate = names.gather(tensors[mark], tensors, stated, content)
            if candidate is None:
                continue
            name, own = candidate.layer + names.weight, candidate.names
            is_taken = name in found or (name in tensors and name not in own)
            if is_taken or not owner.keys().isdisjoint(own):
                continue
            inferred = ((each, schemes[each].infer(candidate)) for each in schemes)
            scheme, logical = next((pair for pair in inferred if pair[1] is not None), ("", None))
            if logical is None or not prod(logical.shape):
                continue
            nbytes = sum([extents[tensor].nbytes for tensor in own])
            label = _label(schemes[scheme], logical.bits, logical.element)
            found[name] = Quantized(name, logical.shape, scheme, label, logical.bits, own, nbytes)
            owner.update(dict.fromkeys(own, name))
            break
    order = dict.fromkeys(owner[name] for name in tensors if name in owner)
    return {name: found[name] for name in order}


def list_scheme_tensors(header: Header) -> set[str]:
    """Return the tensors that are only meaningful together: stored values, and their scales.

    This is decided by names and encodings. The result includes all tensors of `find_quantized`, and
    possibly others that do not form a weight.
    """
    return {name for names in _list_groups(header.tensors) for name in names}


def _list_groups(tensors: Mapping[str, TensorInfo]) -> Iterator[tuple[str, ...]]:
    nothing, grouped = Settings({}), set[str]()
    for mark, ways in _list_marks(tensors, grouped):
        for names in ways:
            if candidate := names.gather(tensors[mark], tensors, nothing, _read_nothing):
                grouped.update(candidate.names)
                yield candidate.names


def refuse_separated(tensors: Mapping[str, TensorInfo], kept: Container[str]) -> None:
    """Raise `ConversionError` if some tensors of a quantized weight are kept, and others are not.

    Scales of activations can be left out.
    """
    for names in _list_groups(tensors):
        needed = [name for name in names if not name.endswith(ACTIVATIONS)]
        lost = [name for name in needed if name not in kept]
        if lost and len(lost) < len(needed):
            own = next(name for name in needed if name in kept)
            raise ConversionError(
                f"`{own}` and `{lost[0]}` are one quantized weight, and the patterns separate them",
                hint=f"use a pattern for both, such as `{own.rpartition('.')[0]}.*`",
            )


def load_schemes(ending: str = "", *, added: bool = False) -> dict[str, Scheme]:
    """Return the schemes whose scales can have names with this ending, in table order.

    With `added`, they are those of installed packages.
    """
    return {
        name: load_scheme(name)
        for name, line in (added_schemes() if added else SCHEMES).items()
        if any(ending.endswith(scales) or scales.endswith(ending) for scales in line.scales)
    }


def _list_marks(
    tensors: Mapping[str, TensorInfo], owned: Container[str]
) -> Iterator[tuple[str, Mapping[NameEndings, dict[str, Scheme]]]]:
    """Yield names that can be those of scales, and possible names of the tensors beside them.

    Installed packages are asked last, and only if a tensor that can hold packed values is then not
    in `owned`, to which the caller adds tensors.
    """
    for mark in _find_marks(tensors, MARKS):
        yield mark, _find_ways(mark[mark.rfind(".") + 1 :], added=False)
    packed = (info for info in tensors.values() if info.encoding.name in _PACKED)
    if any(info.name not in owned and not is_buffer(info) for info in packed):
        endings = (ending for line in added_schemes().values() for ending in line.scales)
        for mark in _find_marks(tensors, tuple(endings)):
            yield mark, _find_ways(mark[mark.rfind(".") + 1 :], added=True)


@lru_cache(maxsize=256)  # a model has few different names of scales, each in many layers
def _find_ways(last: str, *, added: bool) -> Mapping[NameEndings, dict[str, Scheme]]:
    """Return the possible names of the tensors beside scales, each with its schemes.

    The result depends only on the last segment of the name of the scales.
    """
    ending = "." + last
    ways: dict[NameEndings, dict[str, Scheme]] = {}
    for name, scheme in load_schemes(ending, added=added).items():
        for names in scheme.names:
            if ending.endswith(names.scales) or names.scales.endswith(ending):
                ways.setdefault(names, {})[name] = scheme
    return ways


@lru_cache(maxsize=256)
def _label(scheme: Scheme, bits: int, element: str) -> str:
    return scheme.label.format(bits=bits, element=element)


def _find_marks(names: Iterable[str], endings: tuple[str, ...]) -> list[str]:
    """Return the names that can be those of scales."""
    # Nearly all names have this ending, and no scales do.
    return [name for name in names if not name.endswith(".weight") and name.endswith(endings)]


def list_layers(names: Iterable[str]) -> Iterator[str]:
    """Yield the names of modules, which are those of tensors without the last segment."""
    return (name.rpartition(".")[0] for name in names)


def _read_nothing(_info: TensorInfo, _numbers: TensorInfo) -> None:
    return None


class _Contents:
    """Contents of small tensors; if names differ only in numbers, only the first tensor is read."""

    def __init__(self, read: Callable[[str], bytes]) -> None:
        self._read = read
        self._known: dict[object, bytes] = {}

    def __call__(self, info: TensorInfo, numbers: TensorInfo) -> bytes | None:
        # Experts have tens of thousands of these tensors, all with the same content.
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


Entry: TypeAlias = "TensorInfo | Quantized"


class _Entries(NamedTuple):
    """The entries of a checkpoint: tensors, and weights that are stored in several tensors.

    `quantized` are the weights in several tensors, and `part_of` has the weight of each of their
    tensors. `buffers` are the stored tensors that are not weights: `buffer` or `optimizer`.
    """

    entries: Mapping[str, Entry]
    quantized: Mapping[str, Quantized]
    part_of: Mapping[str, str]
    buffers: Mapping[str, str]


def read_entries(weights: Checkpoint) -> _Entries:
    """Return the entries of a checkpoint; only headers and small tensors are read."""
    header = header_of(weights)
    source = source_of(weights)

    def read(name: str) -> bytes:
        raw = bytearray(header.extents[name].nbytes)
        source.read_into(name, 0, memoryview(raw))
        return bytes(raw)

    quantized = find_quantized(header, None, read)
    part_of = {tensor: name for name, weight in quantized.items() for tensor in weight.tensors}
    entries: Mapping[str, Entry] = header.tensors
    if quantized:
        names = dict.fromkeys(part_of.get(name, name) for name in header.tensors)
        entries = {name: quantized.get(name) or header.tensors[name] for name in names}
    buffers = {
        name: "optimizer" if is_optimizer_state(info) else "buffer"
        for name, info in header.tensors.items()
        if is_buffer(info) or (quantized and name not in part_of and is_activation_scale(info))
    }
    return _Entries(entries, quantized, part_of, buffers)


def count_parameters(entries: Iterable[Entry], buffers: Container[str]) -> int:
    """Return the number of elements of all weights; buffers and scales are not parameters.

    A tied tensor is one entry, so it is counted once. A weight in several tensors is counted with
    its decoded elements.
    """
    # Many tensors have the same shape.
    sizes: dict[tuple[int, ...], int] = {}
    total = 0
    for entry in entries:
        if entry.name not in buffers:
            size = sizes.get(entry.shape)
            if size is None:
                size = sizes[entry.shape] = prod(entry.shape)
            total += size
    return total
