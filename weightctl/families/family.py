"""Families: their tensors and config keys, by the names of GGUF and of Hugging Face."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.system.registry import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from weightctl.families.changes import Change
    from weightctl.families.keys import Config, Default, Fields, Key, NamingConvention
    from weightctl.weights.metadata import MetadataValue

__all__ = ["Family", "Fusion", "ModelType", "Name", "TensorNames", "layer_part", "qkv_form"]

_NUMBER, _EXPERT = "{}", "{expert}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """What a part of a model is called: by our modules, in GGUF, and by transformers.

    `{}` is the number of a layer, `{expert}` that of one of its experts; a naming convention whose
    name lacks the latter stacks all experts along a new first dimension. Each part has a tensor
    `weight`, and one `bias` where `bias` is true or names a field of the config that is. If a
    naming convention does not have the tensor, its name is None; `made` returns the numbers that
    GGUF has in it, float32, where a config asks for some, and `add_fields` the fields of a config
    with what such numbers say. The part is there where the field `when` is true, and not where
    `unless` is; what a checkpoint still holds of it then is a copy of something. `change` says how
    else the naming conventions differ. `is_float32` says that GGUF keeps it in float32, as it does
    all vectors, whatever the rest is stored in.
    """

    module: str
    gguf: str | None
    hugging_face: str | None
    bias: bool | str = False
    when: str | None = None
    unless: str | None = None
    change: Change | None = None
    is_float32: bool = False
    made: Callable[[Any], NDArray[np.float32] | None] | None = None
    add_fields: Callable[[Fields, NDArray[np.float32]], Fields] | None = None

    @property
    def is_of_experts(self) -> bool:
        """Whether each expert of a layer has the part."""
        return _EXPERT in self.module

    def is_in(self, config: Config) -> bool:
        """Whether a model of this config has the part."""
        wanted = self.when is None or getattr(config, self.when)
        return bool(wanted and not (self.unless is not None and getattr(config, self.unless)))

    def kinds(self, config: Config) -> tuple[str, ...]:
        """Return which tensors the part has in a model of this config."""
        has_bias = getattr(config, self.bias) if isinstance(self.bias, str) else self.bias
        return ("weight", "bias") if has_bias else ("weight",)


def layer_part(
    layer: str,
    module: str,
    gguf: str,
    hugging_face: str,
    *,
    bias: bool | str = False,
    change: Change | None = None,
    is_float32: bool = False,
) -> Name:
    """Return the line of a part that every layer has; `layer` begins its names at Hugging Face."""
    return Name(
        module="layers.{}." + module,
        gguf="blk.{}." + gguf,
        hugging_face=layer + hugging_face,
        bias=bias,
        change=change,
        is_float32=is_float32,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """Another form in which a checkpoint of a convention may hold some parts: all in one tensor.

    `name` is that of the whole tensor, in which `{kind}` is `weight` or `bias`. Its first dimension
    is that of the `parts`, names of ours, one after the other, `rows` of each; with `of_experts`
    that is the second, and the first is the experts.
    """

    convention: NamingConvention
    name: str
    parts: tuple[str, ...]
    rows: Callable[[Any], Sequence[int]]
    of_experts: bool = False


def qkv_form(rows: Callable[[Any], Sequence[int]] | None = None) -> Fusion:
    """Return the form of GGUF in which queries, keys and values are in one tensor.

    `rows` are those of each, where they do not follow from heads.
    """

    def of_heads(config: Any) -> Sequence[int]:
        shared = config.kv_heads * config.head_dim
        return (config.heads * config.head_dim, shared, shared)

    return Fusion(
        convention="gguf",
        name="blk.{}.attn_qkv.{kind}",
        parts=tuple(f"layers.{{}}.attention.{part}" for part in "qkv"),
        rows=rows or of_heads,
    )


class TensorNames(NamedTuple):
    """One tensor of a model: its name to our modules and in either naming convention, and its line.

    `layer` and `expert` are 0 where it is of none.
    """

    module: str
    gguf: str | None
    hugging_face: str | None
    line: Name
    kind: str = "weight"
    layer: int = 0
    expert: int = 0

    def name(self, convention: NamingConvention) -> str | None:
        """Return its name in a naming convention, None if that does not have the tensor."""
        return self.gguf if convention == "gguf" else self.hugging_face

    def is_stacked(self, convention: NamingConvention) -> bool:
        """Whether a convention has it in one tensor with those of the layer's other experts."""
        template = self.line.gguf if convention == "gguf" else self.line.hugging_face
        return self.line.is_of_experts and template is not None and _EXPERT not in template

    @property
    def change(self) -> Change | None:
        """How it differs between the naming conventions; None if it is the same in both."""
        change = self.line.change
        is_bias = self.kind == "bias"
        return None if change is None or (is_bias and not change.is_of_rows) else change

    @property
    def is_float32(self) -> bool:
        """Whether GGUF keeps it in float32 whatever the rest is stored in."""
        return self.line.is_float32 or self.kind == "bias"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelType:
    """A `model_type` of config.json's that is of a family.

    `defaults` are where it departs from those of the family's lines; `fixed` are fields that it
    does not read from config.json. `class_name` is transformers' class of the whole model, which
    config.json's `architectures` gets.
    """

    class_name: str = ""
    defaults: Mapping[str, Default] = field(default_factory=dict[str, "Default"])
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])


def _as_it_is(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return document


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of models: how its checkpoints are read in either convention, and what runs them.

    `name` is GGUF's `general.architecture`, unless that is `gguf`; where several families have the
    same, `is_of` tells one by the metadata. `model_types` are config.json's, the usual one first.
    `config` and `module` refer to the class of its configs and of the whole model. `prefix` is what
    all names of Hugging Face's but the head's begin with, or lack; `other_prefixes` are what stands
    there in checkpoints of more than the model. `beside` are patterns of tensors in either naming
    convention that belong to no part of the model, without the prefix. `spellings` are other words
    for `weight` and `bias` at the end of names. `fusions` are other forms in which checkpoints may
    have tensors, which we read and do not write. `keeps_window` says that llama.cpp knows of
    sliding windows in this family, and `heads_fill_hidden` that it loads no models whose heads
    together are wider or narrower than the hidden size. `standard` brings config.json into the form
    that the keys are of. `checked` returns the fields that the lines gave as the config has them;
    raises `ValueError` if they contradict each other.
    """

    name: str
    model_types: Mapping[str, ModelType]
    config: str
    module: str
    prefix: str
    names: tuple[Name, ...]
    keys: tuple[Key, ...]
    other_prefixes: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    spellings: Mapping[str, str] = field(default_factory=dict[str, str])
    fusions: tuple[Fusion, ...] = ()
    keeps_window: bool = False
    heads_fill_hidden: bool = False
    gguf: str = ""
    is_of: Callable[[Mapping[str, MetadataValue]], bool] | None = None
    standard: Callable[[Mapping[str, Any]], Mapping[str, Any]] = _as_it_is
    checked: Callable[[Fields], Fields] = _as_it_is

    @property
    def gguf_name(self) -> str:
        """GGUF's `general.architecture`."""
        return self.gguf or self.name

    def tensors(self, config: Config) -> Iterator[TensorNames]:
        """Yield every tensor that a model of this config has, layer after layer."""
        present = [line for line in self.names if line.is_in(config)]
        for in_layers, group in groupby(present, lambda line: _NUMBER in line.module):
            lines = list(group)
            for number in range(config.layers if in_layers else 1):
                for line in lines:
                    for kind in line.kinds(config):
                        for expert in range(_experts(line, config)):
                            yield _tensor(line, number, kind, expert)

    def copies(self, config: Config) -> Iterator[TensorNames]:
        """Yield the tensors that checkpoints of this config may hold as copies of others."""
        for line in self.names:
            if line.unless is not None and getattr(config, line.unless):
                yield _tensor(line, 0, "weight")

    def plain(self, name: str) -> str:
        """Return a name of Hugging Face's as all checkpoints have it in common."""
        prefixes = (*self.other_prefixes, self.prefix)
        name = name.removeprefix(next(filter(name.startswith, prefixes), ""))
        stem, dot, last = name.rpartition(".")
        return f"{stem}{dot}{self.spellings[last]}" if last in self.spellings else name

    def is_beside(self, name: str) -> bool:
        """Whether a tensor belongs to no part of the model: a head for training, for one."""
        return any(re.fullmatch(pattern, name) for pattern in self.beside)

    def make_config(self, fields: Mapping[str, Any]) -> Config:
        """Return the family's config, a frozen dataclass, of those of these fields that it has."""
        made = load(self.config)
        own = made.__dataclass_fields__
        config: Config = made(**{name: value for name, value in fields.items() if name in own})
        return config


def _experts(line: Name, config: Any) -> int:
    """Return how many tensors of one layer the line is of."""
    return config.experts if line.is_of_experts else 1


def _tensor(line: Name, number: int, kind: str, expert: int = 0) -> TensorNames:
    def full(template: str | None) -> str | None:
        return None if template is None else f"{template.format(number, expert=expert)}.{kind}"

    module = f"{line.module.format(number, expert=expert)}.{kind}"
    return TensorNames(module, full(line.gguf), full(line.hugging_face), line, kind, number, expert)
