"""The fit of a checkpoint's tensors to its config, and config values that would fit."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import WeightctlError
from weightctl.families.configs import MODEL_TYPE
from weightctl.families.kinds import WholeNumber, show_value
from weightctl.families.matching import OF_TOKENS
from weightctl.families.model import ARCHITECTURE
from weightctl.families.names import layer
from weightctl.families.parts import shape_of
from weightctl.families.recognition import find_named_family, recognize
from weightctl.verify.results import Explanation
from weightctl.weights.derived import Derived, tensor_of
from weightctl.weights.metadata import MetadataValue
from weightctl.weights.tree import Checkpoint, header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from weightctl.families import RecognizedModel
    from weightctl.families.family import Family, TensorNames
    from weightctl.families.keys import Key
    from weightctl.weights.info import TensorInfo


__all__ = [
    "FIELDS",
    "Correction",
    "Fit",
    "Misfit",
    "Wanted",
    "explain_misfit",
    "find_corrections",
    "find_family",
    "measure_fit",
]


class Wanted(NamedTuple):
    """A missing tensor that the config asks for; `name` is its name in the checkpoint's convention.

    `shape` is the shape of its weight.
    """

    name: str
    names: TensorNames
    shape: tuple[int, ...]


class Misfit(NamedTuple):
    """A tensor of an unexpected shape or type; `name` is the stored tensor's.

    `info` describes the tensor, or its part of a stored tensor. `shape` is the expected shape.
    """

    name: str
    names: TensorNames
    info: TensorInfo
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The tensors that a checkpoint lacks, has in addition, or has with other shapes or types.

    `expected` is the number of tensors that the config asks for, as our modules count them.
    `padded` are stored tensors that have additional rows after those of all tokens.
    """

    expected: int
    missing: list[Wanted]
    misshaped: list[Misfit]
    no_numbers: list[Misfit]
    unexpected: list[str]
    padded: list[TensorInfo]

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong."""
        is_wrong = self.missing or self.misshaped or self.no_numbers or self.unexpected
        return not is_wrong and not self.padded


def measure_fit(checkpoint: RecognizedModel) -> Fit:
    """Compare a checkpoint with what its config asks for; no tensor is read."""
    missing: dict[str, Wanted] = {}
    misshaped: list[Misfit] = []
    no_numbers: list[Misfit] = []
    expected = 0
    for names in checkpoint.family.tensors(checkpoint.config):
        expected += 1
        shape = shape_of(names, checkpoint.config)
        tensor = checkpoint.tensors.get(names.module)
        if tensor is None:
            name = names.name(checkpoint.convention) or names.module
            missing.setdefault(name, Wanted(name, names, shape))
            continue
        info = tensor.info
        name = ", ".join(source.name for source in tensor.origin.sources)
        if shape != info.shape:
            misshaped.append(Misfit(name, names, info, shape))
        if not info.encoding.is_real:
            no_numbers.append(Misfit(name, names, info, shape))
    return Fit(
        expected=expected,
        missing=[*missing.values()],
        misshaped=misshaped,
        no_numbers=no_numbers,
        unexpected=checkpoint.unexpected,
        padded=[*_list_padded(checkpoint)],
    )


def _list_padded(checkpoint: RecognizedModel) -> Iterator[TensorInfo]:
    for module in OF_TOKENS:
        tensor = checkpoint.tensors.get(module)
        for stored in () if tensor is None else tensor.origin.sources:
            if len(stored.shape) == 2 and stored.shape[0] > checkpoint.config.vocabulary:
                yield stored


# Shapes of most tensors are enough, and a file may have any number of other shapes.
_MOST_SHAPES = 12
_MOST_HEADS = 512
# Each try looks at every tensor once; this many take about a second.
_MOST_LOOKS = 200_000
_MOST_NAMED = 4
# The fields that give counts and sizes.
FIELDS = ("layers", "heads", "kv_heads", "head_dim", "hidden", "intermediate", "vocabulary",
           "experts", "expert_intermediate", "context", "token_types")  # fmt: skip


class Correction(NamedTuple):
    """A config key as the checkpoint spells it, its value, and the values that fit the tensors.

    `found` is None if the key is not stated.
    """

    key: str
    found: Any
    values: tuple[int, ...]

    @property
    def statement(self) -> str:
        """The stated value, as text for messages."""
        return "is missing" if self.found is None else f"is {show_value(self.found).strip('`')}"

    @property
    def text(self) -> str:
        """The stated value and the values that fit, as text for messages."""
        values = ", ".join(map(str, self.values[:_MOST_NAMED]))
        values += ", ..." * (len(self.values) > _MOST_NAMED)
        any_of = "any of " * (len(self.values) > 1)
        return f"`{self.key}` {self.statement}; {any_of}{values} would fit"


def explain_misfit(fitting: list[Correction]) -> Explanation | None:
    """Return the likely cause, given the corrections that would each make the config fit."""
    if not fitting:
        return None
    return Explanation("config", "; or ".join(each.text for each in fitting))


def find_corrections(
    weights: Checkpoint,
    family: Family,
    document: Mapping[str, Any] | None,
    now_fits: Fit | None,
    fields: Iterable[str] = FIELDS,
) -> list[Correction]:
    """Return the values of single keys with which the config would fit the tensors.

    `document` is the content of config.json; None for GGUF, whose metadata is in the tree.
    `now_fits` is the fit of the current config, None if it is rejected; faults that no value
    affects may remain. `fields` are the fields whose keys are tried.
    """
    count = len(header_of(weights).tensors)
    left = _MOST_LOOKS // max(count, 1)
    found: list[Correction] = []
    for key in _find_keys(family, fields):
        name, now = _read_value(key, weights, document)
        if not name:
            continue
        values = [value for value in _list_candidates(key.field, weights) if value != now][:left]
        left -= len(values)
        tried = ((value, _try_value(weights, document, name, value)) for value in values)
        good = [value for value, fit in tried if fit is not None and _is_better(fit, now_fits)]
        if good:
            found.append(Correction(name, now, tuple(good)))
    return found


def find_family(weights: Checkpoint, document: Mapping[str, Any]) -> Family | None:
    """Return the family that a checkpoint states; its config may be invalid."""
    from weightctl.families import FAMILIES

    if ARCHITECTURE in header_of(weights).metadata:
        return find_named_family(weights)
    kind = document.get(MODEL_TYPE)
    return next((line.load() for line in FAMILIES.values() if kind in line.model_types), None)


def _find_keys(family: Family, fields: Iterable[str]) -> list[Key]:
    known = {key.field: key for key in reversed(family.keys) if isinstance(key.kind, WholeNumber)}
    return [known[field] for field in fields if field in known]


def _read_value(
    key: Key, weights: Checkpoint, document: Mapping[str, Any] | None
) -> tuple[str, Any]:
    if document is not None:
        return ("", None) if "." in key.hugging_face else (
            key.hugging_face, document.get(key.hugging_face)
        )  # fmt: skip
    name = key.gguf.format(arch=header_of(weights).metadata[ARCHITECTURE].content)
    value = header_of(weights).metadata.get(name)
    return name, None if value is None else value.content


def _list_candidates(field: str, weights: Checkpoint) -> Iterator[int]:
    """Yield the possible values of a field, judging by names and shapes."""
    infos = header_of(weights).tensors.values()
    if field == "layers":
        yield from _list_layers(weights)
        return
    shapes = Counter(info.shape for info in infos).most_common(_MOST_SHAPES)
    sizes = dict.fromkeys(size for shape, _ in shapes for size in shape)
    if field in {"heads", "kv_heads", "head_dim"}:
        rows = {shape[0] for shape, _ in shapes if len(shape) == 2}
        most = min(max(rows, default=0), _MOST_HEADS)
        yield from (n for n in range(1, most + 1) if any(row % n == 0 for row in rows))
        return
    yield from sizes


def _list_layers(weights: Checkpoint) -> Iterator[int]:
    numbers: set[int] = set()
    for name in header_of(weights).tensors:
        found = layer(name)
        parts = name.split(".") if found is None else [str(found)]
        numbers.update(int(part) for part in parts if part.isdecimal() and len(part) < 6)
    if numbers:
        yield max(numbers) + 1


def _try_value(
    weights: Checkpoint, document: Mapping[str, Any] | None, name: str, value: int
) -> Fit | None:
    """Return the fit with another value; None if the config is rejected with it."""
    config = None if document is None else {**document, name: value}
    if config is None:
        kind = (
            header_of(weights).metadata[name].type if name in header_of(weights).metadata else "u32"
        )
        tensors = {each: tensor_of(source_of(weights), each) for each in header_of(weights).tensors}
        metadata = {**header_of(weights).metadata, name: MetadataValue(kind, value)}
        weights = Checkpoint(Derived(source_of(weights), tensors, metadata))
    try:
        return measure_fit(recognize(weights, config))
    except (WeightctlError, ValueError, TypeError):
        return None


def _is_better(fit: Fit, before: Fit | None) -> bool:
    """Whether all shapes fit, and no more tensors are missing or unexpected than before."""
    if before is None:
        return fit.is_whole
    if fit.misshaped or len(fit.padded) > len(before.padded):
        return False
    lacks, lacked = len(fit.missing), len(before.missing)
    exceeds, exceeded = len(fit.unexpected), len(before.unexpected)
    is_less = bool(before.misshaped) or lacks + exceeds < lacked + exceeded
    return is_less and lacks <= lacked and exceeds <= exceeded
