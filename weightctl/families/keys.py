"""Configs, and the lines that say where GGUF's metadata and config.json have their fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from weightctl.families.kinds import Kind
    from weightctl.weights.info import TensorInfo

__all__ = [
    "REQUIRED",
    "Config",
    "Default",
    "Fields",
    "IsAbsent",
    "Key",
    "LayersWith",
    "NamingConvention",
    "Present",
    "PresentAs",
    "RowCount",
    "Seen",
    "product",
    "quotient",
    "same",
]

# How a checkpoint calls things: as llama.cpp does, or as transformers does.
NamingConvention: TypeAlias = Literal["gguf", "hugging_face"]
Fields: TypeAlias = Mapping[str, Any]
# A value, or what gives it from the fields of the lines above.
Default: TypeAlias = "Callable[[Fields], Any] | int | float | str | bool | None"


class Config(Protocol):
    """What the configs of all families have; each is a frozen dataclass with fields of its own."""

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        ...

    @property
    def context(self) -> int:
        """How many positions the model was made for."""
        ...

    @property
    def hidden(self) -> int:
        """How many numbers go from layer to layer for each position."""
        ...

    @property
    def layers(self) -> int:
        """How many layers there are."""
        ...


class _Required:
    """Stands where a file must have the key."""

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()


class RowCount(NamedTuple):
    """How many rows a tensor has; nothing if there is none."""

    tensor: str

    def see(self, tensors: Mapping[str, TensorInfo]) -> int | None:
        """Return the rows."""
        info = tensors.get(self.tensor)
        return info.shape[0] if info is not None and info.shape else None


class Present(NamedTuple):
    """Whether there is a tensor, or the one that it may be a part of."""

    tensor: str
    whole: str = ""

    def see(self, tensors: Mapping[str, TensorInfo]) -> bool:
        """Return whether either is there."""
        return self.tensor in tensors or self.whole in tensors


class PresentAs(NamedTuple):
    """What the presence of a tensor means."""

    tensor: str
    meaning: str

    def see(self, tensors: Mapping[str, TensorInfo]) -> str | None:
        """Return the meaning if it is there."""
        return self.meaning if self.tensor in tensors else None


class LayersWith(NamedTuple):
    """For each layer one of two words: `word` if it has a tensor, and `other` if not.

    The names have a field for the number of a layer; every layer has the tensor `usual`.
    """

    tensor: str
    usual: str
    word: str
    other: str

    def see(self, tensors: Mapping[str, TensorInfo]) -> list[str] | None:
        """Return the words, None if there are no layers."""
        found: list[str] = []
        while self.usual.format(len(found)) in tensors:
            has = self.tensor.format(len(found)) in tensors
            found.append(self.word if has else self.other)
        return found or None


class IsAbsent(NamedTuple):
    """Whether the tensor is missing."""

    tensor: str

    def see(self, tensors: Mapping[str, TensorInfo]) -> bool:
        """Return whether it is not there."""
        return self.tensor not in tensors


Seen: TypeAlias = RowCount | Present | PresentAs | LayersWith | IsAbsent


def same(field: str) -> Callable[[Fields], Any]:
    """Return what gives the value of another field."""
    return lambda fields: fields[field]


def quotient(field: str, divisor: str) -> Callable[[Fields], Any]:
    """Return what gives one field divided by another.

    `ValueError` if something is left over.
    """

    def divide(fields: Fields) -> int:
        if fields[field] % fields[divisor]:
            raise ValueError(
                f"would be {fields[field]} / {fields[divisor]} ({field} / {divisor}), "
                "which is not an integer"
            )
        return int(fields[field] // fields[divisor])

    return divide


def product(field: str, factor: int) -> Callable[[Fields], Any]:
    """Return what gives a field multiplied."""
    return lambda fields: fields[field] * factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Where one field of a config stands in either convention, and what it is where it does not.

    `gguf` is a key of GGUF's metadata, in which `{arch}` is the architecture; where `seen` is
    given, the tensors themselves say it, and the key counts only where they do not. `hugging_face`
    is a path into config.json. If it is empty, the key does not exist. `default` is what
    transformers takes where config.json has none, `gguf_default` what llama.cpp takes.

    Into GGUF's metadata a value goes as `gguf_type`, or as the usual type of its kind. Where the
    fields lack it, because the other naming convention does, its default is written if it follows
    from other fields. Into config.json a value does not go that follows from others. With `written`
    set each is written in either naming convention, and with `written` False the key is only read.
    If a value `is_in_weights`, GGUF's tensors contain it, so that its metadata can differ.
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

    def is_in(self, convention: NamingConvention) -> bool:
        """Whether the line is of a naming convention: whether it has a key or a default there."""
        if convention == "gguf":
            is_known = bool(self.gguf) or self.seen is not None
            return is_known or self.gguf_default is not REQUIRED
        return bool(self.hugging_face) or self.default is not REQUIRED
