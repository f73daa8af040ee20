"""The keys that map a config field to GGUF's metadata and to config.json, and their defaults."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from weightctl.families.config_values import Kind
    from weightctl.weights.info import TensorInfo

# The words of config.json for layers with full attention, and with a sliding window.
GLOBAL, LOCAL = "full_attention", "sliding_attention"
# Whose names a checkpoint uses: those of llama.cpp, or those of transformers.
NamingConvention: TypeAlias = Literal["gguf", "hugging_face"]
Fields: TypeAlias = Mapping[str, Any]
# A value, or a function that computes it from the fields of the keys before this one.
Default: TypeAlias = "Callable[[Fields], Any] | int | float | str | bool | None"


class Config(Protocol):
    """The properties that all configs have; each config is a frozen dataclass with more fields."""

    @property
    def vocabulary(self) -> int:
        """The number of tokens."""
        ...

    @property
    def context(self) -> int:
        """The number of positions that the model was trained for."""
        ...

    @property
    def hidden(self) -> int:
        """The hidden size: the number of values per position between layers."""
        ...

    @property
    def layers(self) -> int:
        """The number of layers."""
        ...


_NUMBER = re.compile(r"(?<=\.)[0-9]+(?=\.)")


class _Required:
    """The type of `REQUIRED`, the default of a key that a file must have."""

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()


class RowCount(NamedTuple):
    """A field's value is the number of rows of a tensor, or of entries along another axis."""

    tensor: str
    axis: int = 0

    def see(self, tensors: Mapping[str, TensorInfo]) -> int | None:
        """Return the number of rows, None if the tensor is missing."""
        info = tensors.get(self.tensor)
        return info.shape[self.axis] if info is not None and len(info.shape) > self.axis else None


class Present(NamedTuple):
    """A field's value is whether a checkpoint has a tensor, or the fused tensor `whole`.

    With `plain`, a name without its prefix, tensors with Hugging Face's names show it, too.
    """

    tensor: str
    whole: str = ""
    plain: str = ""

    def see(self, tensors: Mapping[str, TensorInfo]) -> bool:
        """Return whether the checkpoint has one of the two tensors."""
        return self.tensor in tensors or self.whole in tensors


class PresentInLayer(NamedTuple):
    """A field's value is whether any layer has a tensor, or the fused tensor `whole`.

    `{}` in the names is the layer number.
    """

    tensor: str
    whole: str = ""

    def see(self, tensors: Mapping[str, TensorInfo]) -> bool:
        """Return whether the checkpoint has one of the two tensors in a layer."""
        wanted = {self.tensor, self.whole}
        return any(_NUMBER.sub("{}", name, count=1) in wanted for name in tensors)


class PresentAs(NamedTuple):
    """A field's value is `meaning` if the checkpoint has a tensor."""

    tensor: str
    meaning: str

    def see(self, tensors: Mapping[str, TensorInfo]) -> str | None:
        """Return the meaning, None if the tensor is missing."""
        return self.meaning if self.tensor in tensors else None


class LayersWith(NamedTuple):
    """A field's value is a word per layer: `word` if the layer has a tensor, otherwise `other`.

    `{}` in `tensor`, `fused` and `usual` is the layer number. Layers are counted as long as they
    have the tensor `usual`. `fused` is the tensor of a fusion with `tensor`, if there is one.
    """

    tensor: str
    usual: str
    word: str
    other: str
    fused: str = ""

    def see(self, tensors: Mapping[str, TensorInfo]) -> list[str] | None:
        """Return the words, None if there are no layers."""
        found: list[str] = []
        while self.usual.format(len(found)) in tensors:
            names = (each.format(len(found)) for each in (self.tensor, self.fused))
            has = any(name in tensors for name in names)
            found.append(self.word if has else self.other)
        return found or None


class IsAbsent(NamedTuple):
    """A field's value is whether a checkpoint lacks a tensor."""

    tensor: str

    def see(self, tensors: Mapping[str, TensorInfo]) -> bool:
        """Return whether the tensor is missing."""
        return self.tensor not in tensors


Seen: TypeAlias = RowCount | Present | PresentInLayer | PresentAs | LayersWith | IsAbsent


def same(field: str) -> Callable[[Fields], Any]:
    """Return a default that is the value of another field."""
    return lambda fields: fields[field]


def quotient(field: str, divisor: int | str) -> Callable[[Fields], Any]:
    """Return a default that is one field divided by another, or by a number.

    The default raises `ValueError` if the division leaves a remainder.
    """

    def divide(fields: Fields) -> int:
        number = fields[divisor] if isinstance(divisor, str) else divisor
        if fields[field] % number:
            made = f"{fields[field]} / {number} ({field} / {divisor})"
            raise ValueError(f"would be {made}, which is not an integer")
        return int(fields[field] // number)

    return divide


def product(field: str, factor: int | str) -> Callable[[Fields], Any]:
    """Return a default that is a field times a factor, which can be that of another field."""
    return lambda fields: fields[field] * (fields[factor] if isinstance(factor, str) else factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A field of a config: its key in GGUF's metadata, its path in config.json, and its defaults.

    A family has a tuple of keys. They are read in order, so that a default can be computed from the
    fields of earlier keys. A field can have several keys, for example one for each naming
    convention.

    - `field`: the name of the field. Fields that are not in the family's config class are only used
      by defaults and checks.
    - `kind`: which values are allowed, and how they are read and written
      (`families/config_values.py`).
    - `gguf`: the key in GGUF's metadata, in which `{arch}` is the architecture; empty if there is
      none.
    - `hugging_face`: the path in config.json, with dots between nested objects; empty if there is
      none.
    - `default`: the value that transformers uses if config.json does not have the key.
    - `gguf_default`: the value that llama.cpp uses if the metadata do not have the key.
    - `seen`: how to get the value from the tensors of a GGUF file. `gguf` is read only if that
      returns None.
    - `gguf_type`: the type of the value in GGUF's metadata; empty for the usual type of the `kind`.
    - `written`: False if the key is only read. Otherwise it is written, but config.json does not
      get a value that its default computes, unless this is True.
    - `is_in_weights`: whether the tensors of a GGUF file already contain the value, so that the
      metadata may state another one.

    A key that has neither a name nor a default in a naming convention is not a key of that
    convention. If the source's convention does not define a field that the target needs, the
    default of the target is written if it is computed from other fields; into GGUF, a constant
    default is also written if `written` is True.
    """

    field: str
    kind: Kind
    gguf: str = ""
    hugging_face: str = ""
    default: Default | _Required = REQUIRED
    gguf_default: Default | _Required = REQUIRED
    seen: Seen | None = None
    gguf_type: str = ""
    written: bool | None = None
    is_in_weights: bool = False

    @property
    def seen_name(self) -> str:
        """The plain name whose presence gives the value in Hugging Face's convention, or empty."""
        return self.seen.plain if isinstance(self.seen, Present) else ""

    def is_in(self, convention: NamingConvention) -> bool:
        """Whether a naming convention defines the field: by a key, by tensors or by a default."""
        if convention == "gguf":
            is_known = bool(self.gguf) or self.seen is not None
            return is_known or self.gguf_default is not REQUIRED
        return bool(self.hugging_face) or self.default is not REQUIRED


def with_keys(
    keys: tuple[Key, ...], *others: Key, without: tuple[str, ...] = ()
) -> tuple[Key, ...]:
    """Return keys with some replaced by `others` for the same fields, and some fields left out.

    Keys of additional fields come last, so that their defaults can be computed from the rest.
    """
    added, replaced = {key.field for key in others}, set[str]()
    made: list[Key] = []
    for key in keys:
        if key.field not in added:
            made += () if key.field in without else (key,)
        elif key.field not in replaced:
            made += (each for each in others if each.field == key.field)
            replaced.add(key.field)
    return (*made, *(key for key in others if key.field not in replaced))
