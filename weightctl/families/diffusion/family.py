"""The tables of a diffusion transformer: its tensors in both naming conventions, and its config."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from weightctl.families.keys import NamingConvention


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


def pair(original: str, *diffusers: str, **more: Any) -> tuple[TensorPair, ...]:
    """Return the line of a tensor whose names are given whole."""
    return (TensorPair(original=original, diffusers=diffusers, **more),)


def linear(original: str, diffusers: str, **more: Any) -> tuple[TensorPair, ...]:
    """Return the lines of a weight and its bias."""
    return fused_linear(original, (diffusers,), (1,), **more)


def fused_linear(
    original: str, diffusers: tuple[str, ...], shares: tuple[int, ...] = (1, 1, 1), **more: Any
) -> tuple[TensorPair, ...]:
    """Return the lines of a weight, and its bias, that contain several of diffusers."""
    return tuple(
        TensorPair(
            original=f"{original}.{kind}",
            diffusers=tuple(f"{name}.{kind}" for name in diffusers),
            shares=shares,
            **more,
        )
        for kind in ("weight", "bias")
    )


def on_layers(original: str, diffusers: str, *lines: TensorPair) -> tuple[TensorPair, ...]:
    """Return lines with the beginnings of the names of a layer before theirs."""
    return tuple(
        replace(
            line,
            original=f"{original}.{{}}.{line.original}",
            diffusers=tuple(f"{diffusers}.{{}}.{name}" for name in line.diffusers),
        )
        for line in lines
    )


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


def _no_change(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return document


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
    standard: Callable[[Mapping[str, Any]], Mapping[str, Any]] = field(default=_no_change)
    internal: frozenset[str] = frozenset()
