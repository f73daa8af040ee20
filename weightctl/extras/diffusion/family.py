"""The tables of a diffusion transformer: its tensors in both naming conventions, and its config."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weightctl.families.file_tables import FileTable, open_table
from weightctl.system.registry import load
from weightctl.text.untyped import is_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from weightctl.families.config_keys import NamingConvention


# The functions of the config of a model, by the field of the `DiffusionFamily`.
_PLACE = "weightctl.extras.diffusion.rules"
_RULES = {
    name: {
        "config": f"{_PLACE}:config_of_{name}",
        "usual": f"{_PLACE}:usual_of_{name}",
        "standard": f"{_PLACE}:standard_{name}",
    }
    for name in ("flux", "qwen_image", "sd3", "wan")
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPair:
    """A tensor of an original file, and the tensors of diffusers with the same values.

    In the names, `{}` is the number of the layer.

    - `original`: the name in original files.
    - `diffusers`: the names in diffusers. If there are several, their rows, one tensor after the
      other, are those of the original tensor.
    - `shares`: how the rows of the original tensor are divided among them.
    - `is_swapped`: whether the two halves of the rows are exchanged in diffusers.
    - `of`: the optional part of the model, or of a layer, that the tensor belongs to; empty if all
      models have it. A part has all its tensors, or none.
    - `layers`: the layers that have it: `all`, the `last`, or the `others`.
    """

    original: str
    diffusers: tuple[str, ...]
    shares: tuple[int, ...] = (1,)
    is_swapped: bool = False
    of: str = ""
    layers: str = "all"

    def names(self, convention: NamingConvention) -> tuple[str, ...]:
        """Return the names in a naming convention, without the number filled in."""
        return (self.original,) if convention == "gguf" else self.diffusers

    def group(self, convention: NamingConvention) -> str:
        """Return what precedes the number of the layer, empty for a tensor outside of layers."""
        before, number, _ = self.names(convention)[0].partition("{}")
        return before if number else ""

    def is_in(self, layer: int, count: int) -> bool:
        """Whether a layer, one of `count`, can have the tensor."""
        return self.layers == "all" or (self.layers == "last") == (layer == count - 1)


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """The shapes of a model's tensors, by their original names, from which a config follows."""

    shapes: Mapping[str, tuple[int, ...]]

    def has(self, name: str) -> bool:
        """Whether the model has a tensor."""
        return name in self.shapes

    def shape(self, name: str, rank: int = 2) -> tuple[int, ...]:
        """Return the shape of a tensor; raises `ValueError` if its rank is another."""
        found = self.shapes[name]
        if len(found) != rank:
            raise ValueError(f"`{name}` has shape {list(found)} instead of {rank} dimensions")
        return found

    def layers(self, group: str) -> int:
        """Return the number of layers whose names begin with `group` and a number."""
        pattern = re.compile(rf"{re.escape(group)}\.(\d+)\.")
        return len({found[1] for name in self.shapes if (found := pattern.match(name))})

    def heads(self, width: int, size: int) -> int:
        """Return how many heads of a size have a width; raises `ValueError` for a rest."""
        if not size or width % size:
            raise ValueError(f"the width {width} is not a multiple of the size of heads, {size}")
        return width // size


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffusionFamily:
    """A family of diffusion transformers.

    - `name`: the name of the family, the value of `general.architecture` in GGUF.
    - `class_name`: diffusers' class, the value of `_class_name` in config.json.
    - `tensors`: the tensors.
    - `config`: returns the keys of config.json that the shapes define. Raises `ValueError` for
      shapes that no config describes.
    - `usual`: returns the other keys of config.json, which no tensor shows, from those that the
      shapes define. These are the values of the published models. Raises `ValueError` if the keys
      must be known.
    - `standard`: brings a config.json into the form that `config` has.
    - `internal`: the keys of `config` and `standard` that config.json does not have.
    """

    name: str
    class_name: str
    tensors: tuple[TensorPair, ...]
    config: Callable[[ModelSizes], dict[str, Any]]
    usual: Callable[[Mapping[str, Any]], dict[str, Any]]
    standard: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    internal: frozenset[str] = frozenset()


def read_diffusion_family(path: Path) -> DiffusionFamily:
    """Return the family that a file in `tables/` describes.

    Raises `FormatError` with the line and the entry if the file is invalid.
    """
    top = open_table(path, {})
    rules = {
        name: load(reference)
        for name, reference in top.choose("rules", _RULES, "the rules").items()
    }
    family = DiffusionFamily(
        name=path.stem,
        class_name=top.text("class"),
        tensors=tuple(_read_pairs(top.table("tensors"))),
        internal=frozenset(top.texts("internal")),
        **rules,
    )
    top.end()
    return family


def _read_pairs(rows: FileTable) -> Iterator[TensorPair]:
    """Yield the pairs of rows, by original names.

    In names, `*` is a weight and a bias, and `{last}` or `{others}` the number of such a layer.
    """
    for original in rows.names():
        if isinstance(rows.peek(original), dict):
            yield from _read_pair(rows.table(original), original)
        else:
            row = {"diffusers": rows.value(original)}
            yield from _read_pair(rows.within(row, original), original)


def _read_pair(row: FileTable, original: str) -> Iterator[TensorPair]:
    content = row.peek("diffusers")
    names = row.texts("diffusers") if is_list(content) else (row.text("diffusers"),)
    shares = tuple(row.items("shares")) or (1,) * len(names)
    if len(shares) != len(names) or not all(type(each) is int for each in shares):
        row.fail("must have an integer for each name", "shares")
    of, is_swapped = row.text("of", ""), row.flag("swapped")
    row.end()
    layers = next((each for each in ("last", "others") if f"{{{each}}}" in original), "all")
    for kind in ("weight", "bias") if original.endswith("*") else ("",):
        yield TensorPair(
            original=original.replace(f"{{{layers}}}", "{}").removesuffix("*") + kind,
            diffusers=tuple(name.removesuffix("*") + kind for name in names),
            shares=shares,
            is_swapped=is_swapped,
            of=of,
            layers=layers,
        )
