"""A checkpoint of a diffusion transformer, matched with the tables of its family."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weightctl.errors import ArchitectureError, ConversionError
from weightctl.extras.diffusion.family import ModelSizes
from weightctl.extras.diffusion.index import FAMILIES
from weightctl.extras.diffusion.recognition import find_names
from weightctl.families.checkpoint import fold_problems
from weightctl.families.config_values import show_value
from weightctl.formats.huggingface import CLASS_NAME
from weightctl.text.untyped import is_sequence
from weightctl.text.wording import list_first, pluralize
from weightctl.weights.derived import DerivedTensor, tensor_of
from weightctl.weights.steps.numbers import AsFloat32
from weightctl.weights.steps.rows import RowRange
from weightctl.weights.steps.stacked import Joined
from weightctl.weights.tree import header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightctl.extras.diffusion.family import DiffusionFamily, TensorPair
    from weightctl.families.config_keys import NamingConvention
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.tree import Checkpoint

_MOST_NAMED = 20
_HINT = (
    'to convert the tensors under their present names, use --names keep (names="keep" in Python), '
    "but other programs cannot load such a file as a model"
)


@dataclass(frozen=True, kw_only=True)
class RecognizedDiffusion:
    """A checkpoint of a diffusion transformer.

    - `tree`: the checkpoint.
    - `where`: its name in errors.
    - `family`: its family.
    - `convention`: the naming convention, `hugging_face` for diffusers, `gguf` for original names.
    - `tensors`: the tensors by their original names, and with the values that original files have.
    - `pairs`: the line, and the number of the layer, of each of these tensors.
    - `stated`: the config.json of diffusers, empty if the checkpoint does not have it.
    - `problems`: a sentence for each tensor that is missing or does not fit the others.
    - `unexpected`: tensors that are not part of the model, by their names in the checkpoint.
    - `beside`: tensors of other models in the same file, such as text encoders and the VAE.
    """

    tree: Checkpoint
    where: str
    family: DiffusionFamily
    convention: NamingConvention
    tensors: Mapping[str, ReadableTensor]
    pairs: Mapping[str, tuple[TensorPair, int]]
    stated: Mapping[str, Any]
    problems: Sequence[str]
    unexpected: Sequence[str]
    beside: Sequence[str]

    @property
    def name(self) -> str:
        return self.family.name

    @property
    def layers(self) -> int:
        layers = {(line.group("gguf"), layer) for line, layer in self.pairs.values()}
        return sum(bool(group) for group, _ in layers)

    def check(self) -> None:
        """Raise `ArchitectureError` for a checkpoint that is not a whole model.

        The error lists all tensors that are missing, unexpected, or of a wrong shape.
        """
        unexpected = (f"`{name}` is not a part of {self.family.name}" for name in self.unexpected)
        problems = [*self.problems, *unexpected]
        if problems:
            raise ArchitectureError(
                "\n  ".join(
                    [
                        f"the checkpoint is not a whole model of the family {self.family.name}:",
                        *list_first(fold_problems(problems), _MOST_NAMED),
                    ]
                ),
                hint="check that the checkpoint is complete; to leave out tensors that are not "
                f"part of the model, use --exclude (exclude in Python); {_HINT}",
            )

    def make_config(self) -> dict[str, Any]:
        """Return the content of config.json for diffusers.

        It is the stated one if there is one. Raises `ArchitectureError` if it contradicts the
        shapes of the tensors, or if there is none and the shapes do not define all keys.
        """
        family = self.family
        sizes = ModelSizes({name: tensor.info.shape for name, tensor in self.tensors.items()})
        try:
            found = family.config(sizes)
            if not self.stated:
                whole = {CLASS_NAME: family.class_name, **found, **family.usual(found)}
                return {key: value for key, value in whole.items() if key not in family.internal}
        except ValueError as error:
            raise ArchitectureError(
                f"{self.where}: {error}",
                hint="convert from the directory with diffusers' config.json of this model",
            ) from error
        stated = family.standard(self.stated)
        for key, value in found.items():
            if key in stated and _plain(stated[key]) != _plain(value):
                raise ArchitectureError(
                    f"{self.where}: the config states `{key}` = {show_value(stated[key])}, but the "
                    f"shapes of the tensors mean {show_value(value)}",
                    hint="check that the config belongs to this checkpoint, and that the "
                    "checkpoint is complete",
                )
        return dict(self.stated)


def _plain(value: Any) -> Any:
    return list(value) if is_sequence(value) else value


def match(weights: Checkpoint) -> RecognizedDiffusion | None:
    """Return a checkpoint as a diffusion transformer; None if it is not one. No tensor is read.

    Raises `ArchitectureError` for layer numbers that are too large.
    """
    header = header_of(weights)
    found = find_names(header)
    if found is None:
        return None
    family = FAMILIES[found.architecture].load()
    prefix, convention, stated = found.prefix, found.convention, found.stated
    own: dict[str, str] = {}
    beside: list[str] = []
    for name in header.tensors:
        if name.startswith(prefix):
            own[name.removeprefix(prefix)] = name
        else:
            beside.append(name)
    where = header.files[0] if header.files else "the checkpoint"
    matched = _Matching(weights, family, convention, own, where)
    matched.run()
    return RecognizedDiffusion(
        tree=weights,
        where=where,
        family=family,
        convention=convention,
        tensors=matched.tensors,
        pairs=matched.pairs,
        stated=stated if stated.get(CLASS_NAME) == family.class_name else {},
        problems=[*matched.problems, *matched.list_misfits()],
        unexpected=[stored for name, stored in own.items() if name not in matched.used],
        beside=beside,
    )


class _Matching:
    """The tensors of a checkpoint, matched with the lines of a family.

    `own` maps the names without the prefix to those in the checkpoint; `used` are those that match.
    """

    def __init__(
        self,
        weights: Checkpoint,
        family: DiffusionFamily,
        convention: NamingConvention,
        own: Mapping[str, str],
        where: str,
    ) -> None:
        self.tensors: dict[str, ReadableTensor] = {}
        self.pairs: dict[str, tuple[TensorPair, int]] = {}
        self.problems: list[str] = []
        self.used: set[str] = set()
        self._parts: set[tuple[str, tuple[str, int]]] = set()
        self._source = source_of(weights)
        self._family = family
        self._convention: NamingConvention = convention
        self._own = own
        self._where = where

    def run(self) -> None:
        """Match all lines; what is missing becomes a problem."""
        counts = {line.group(self._convention): 0 for line in self._family.tensors}
        counts = {group: self._count_layers(group) for group in counts}
        places = [
            (line, layer)
            for line in self._family.tensors
            for layer in range(counts[line.group(self._convention)])
            if line.is_in(layer, counts[line.group(self._convention)])
        ]
        self._parts = {
            (line.of, self._place(line, layer))
            for line, layer in places
            if line.of and any(name in self._own for name in self._names(line, layer))
        }
        for line, layer in places:
            if line.of and (line.of, self._place(line, layer)) not in self._parts:
                continue
            names = self._names(line, layer)
            missing = [name for name in names if name not in self._own]
            self.used.update(names)
            self.problems += [f"`{name}` is missing" for name in missing]
            if not missing:
                self._add(line, layer, [self._own[name] for name in names])

    def list_misfits(self) -> Iterator[str]:
        """Yield the tensors of layers whose shape differs from that in most layers."""
        shapes: dict[object, dict[tuple[int, ...], list[str]]] = {}
        for name, (line, layer) in self.pairs.items():
            # Optional parts of a layer can change the shapes of its other tensors.
            place = self._place(line, layer)
            alike = line, frozenset(of for of, where in self._parts if where == place)
            shape = self.tensors[name].info.shape
            shapes.setdefault(alike, {}).setdefault(shape, []).append(name)
        for found in shapes.values():
            usual = max(found, key=lambda shape: len(found[shape]))
            for shape, names in found.items():
                for name in names if shape != usual else ():
                    yield f"`{name}` has shape {list(shape)} instead of {list(usual)}"

    def _place(self, line: TensorPair, layer: int) -> tuple[str, int]:
        return line.group(self._convention), layer

    def _names(self, line: TensorPair, layer: int) -> tuple[str, ...]:
        return tuple(name.format(layer) for name in line.names(self._convention))

    def _count_layers(self, group: str) -> int:
        """Return the number of layers of a group; 1 for tensors outside of layers."""
        if not group:
            return 1
        pattern = re.compile(rf"{re.escape(group)}([0-9]{{1,9}})\.")
        numbers = {int(found[1]) for name in self._own if (found := pattern.match(name))}
        count = max(numbers, default=-1) + 1
        if count > len(self._own):
            raise ArchitectureError(
                f"{self._where}: a tensor has the layer number {count - 1}, but there are only "
                f"{pluralize(len(self._own), 'tensor')}",
                hint="check that the checkpoint is complete",
            )
        if not count:
            self.problems.append(f"`{group}0` is missing, with all its tensors")
        return count

    def _add(self, line: TensorPair, layer: int, stored: Sequence[str]) -> None:
        name = line.original.format(layer)
        parts: list[ReadableTensor] = [tensor_of(self._source, each) for each in stored]
        floats = [each for each in parts if not each.info.encoding.is_real]
        if floats:
            info = floats[0].info
            self.problems.append(f"`{info.name}` is stored as {info.encoding}, not as numbers")
            return
        try:
            if self._convention == "hugging_face":
                made = _join(name, line, parts)
            else:
                (made,) = parts
                split_rows(line, made)
        except ConversionError as error:
            self.problems.append(error.message)
            return
        self.tensors[name] = made
        self.pairs[name] = (line, layer)


def split_rows(line: TensorPair, whole: ReadableTensor) -> list[ReadableTensor]:
    """Return the tensors of diffusers for one of an original file.

    Raises `ConversionError` if its rows cannot be divided.
    """
    rows = whole.info.shape[0] if whole.info.shape else 0
    count = 2 if line.is_swapped else sum(line.shares)
    if rows % count:
        raise ConversionError(
            f"`{whole.info.name}` has shape {list(whole.info.shape)}: {rows} rows cannot be "
            f"divided into {count} equal parts"
        )
    if line.is_swapped:
        return [_swap_halves(whole)]
    if len(line.shares) == 1:
        return [whole]
    parts: list[ReadableTensor] = []
    first = 0
    for share in line.shares:
        last = first + rows // count * share
        parts.append(DerivedTensor(whole.info.name, RowRange(first, last), [whole]))
        first = last
    return parts


def _swap_halves(whole: ReadableTensor) -> ReadableTensor:
    """Return a tensor with the second half of its rows before the first."""
    name, rows = whole.info.name, whole.info.shape[0]
    halves = [
        DerivedTensor(name, RowRange(rows // 2, rows), [whole]),
        DerivedTensor(name, RowRange(0, rows // 2), [whole]),
    ]
    return DerivedTensor(name, Joined(2), halves)


def _join(name: str, line: TensorPair, parts: list[ReadableTensor]) -> ReadableTensor:
    """Return the tensor of an original file for those of diffusers."""
    if len(parts) == 1:
        return split_rows(line, parts[0])[0]
    rows = [part.info.shape[0] if part.info.shape else 0 for part in parts]
    first = rows[0] // line.shares[0]
    for part, share, own in zip(parts, line.shares, rows, strict=True):
        if own != first * share:
            raise ConversionError(
                f"`{part.info.name}` has {own} rows instead of {first * share}, because "
                f"`{parts[0].info.name}` has {rows[0]}"
            )
    if len({part.info.encoding for part in parts}) > 1:
        parts = [DerivedTensor(name, AsFloat32(), [part]) for part in parts]
    return DerivedTensor(name, Joined(len(parts)), parts)
