"""Families: their tensors and config keys, by the names of GGUF and of Hugging Face."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from weightctl.system.registry import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from weightctl.families.changes import Change
    from weightctl.families.fusions import Fusion
    from weightctl.families.keys import Config, Default, Fields, Key, NamingConvention
    from weightctl.weights.metadata import MetadataValue

__all__ = [
    "Extent",
    "Family",
    "ModelType",
    "Name",
    "TensorNames",
    "WeightAxes",
    "at_layer",
]

_NUMBER, _EXPERT = "{}", "{expert}"
_CONVENTIONS: tuple[NamingConvention, ...] = ("gguf", "hugging_face")
_LAYER_NUMBER = re.compile(r"(?:layers|blk)\.(\d{1,9})\.")
# What some checkpoints call the layers that predict further tokens.
_FURTHER = "mtp."
# The field of a config that leaves out what is a copy of the embedding.
_TIED = "tied"
_NOTHING: Mapping[Any, Any] = MappingProxyType({})

# What lies along an axis of a weight: a word of `families/parts.py`, or a field of the config that
# has its size.
Extent: TypeAlias = str


class WeightAxes(NamedTuple):
    """What lies along the axes of a part's weight: `outputs` one after the other, and `inputs`.

    A vector has no inputs. `all_layers` need a part though it is of none.
    """

    outputs: tuple[Extent, ...]
    inputs: tuple[Extent, ...] = ()
    all_layers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """What a part of a model is called: by our modules, in GGUF, and by transformers.

    `{}` is the number of a layer, `{expert}` that of one of its experts; a naming convention whose
    name lacks the latter stacks all experts along a new first dimension. Each part has a tensor
    `weight`, and one `bias` where `bias` is true or names a field of the config that is. `axes` are
    those of the weight in our modules: its shape follows from them, and how it is cut.

    If a naming convention does not have the tensor by itself, its name is None: a `Fusion` of the
    family may have it. `made` returns the numbers in it, float32, if a config has them, because
    the other naming convention has keys for them; those of layers stand one after the other.
    `add_fields` returns the fields of a config with what the numbers of a tensor say. The part is
    there where all fields `when` are true, and not where `unless` is; a field may have a value for
    each layer. What a checkpoint still holds of a part that `tied` leaves out is a copy of
    something. `change` says how else the naming conventions differ. `is_float32` says that GGUF
    keeps it in float32, as it does all vectors, whatever the rest is stored in. `ends` is what the
    name of its weight ends in, in a naming convention where that is not `.weight`. Naming
    conventions count layers from the one that the field `first` of a config has the number of.
    """

    module: str
    gguf: str | None
    hugging_face: str | None
    axes: WeightAxes
    bias: bool | str = False
    when: tuple[str, ...] = ()
    unless: str | None = None
    change: Change | None = None
    is_float32: bool = False
    first: str = ""
    made: Callable[[Any], NDArray[np.float32] | None] | None = None
    add_fields: Callable[[Fields, NDArray[np.float32]], Fields] | None = None
    ends: Mapping[NamingConvention, str] = field(default_factory=dict["NamingConvention", str])

    @property
    def is_of_experts(self) -> bool:
        """Whether each expert of a layer has the part."""
        return _EXPERT in self.module

    @property
    def is_of_layers(self) -> bool:
        """Whether layers have the part, each of them one."""
        return _NUMBER in self.module

    def is_in(self, config: Config, layer: int = 0) -> bool:
        """Whether a model of this config has the part, in a layer if it is of layers."""
        wanted = all(at_layer(config, field, layer) for field in self.when)
        return bool(wanted and not (self.unless and at_layer(config, self.unless, layer)))

    def kinds(self, config: Config) -> tuple[str, ...]:
        """Return which tensors the part has in a model of this config."""
        has_bias = getattr(config, self.bias) if isinstance(self.bias, str) else self.bias
        return ("weight", "bias") if has_bias else ("weight",)

    def template(self, convention: NamingConvention) -> str | None:
        """Return what a naming convention calls the part, None if it has no tensor for it."""
        return self.gguf if convention == "gguf" else self.hugging_face

    def tensor(
        self, convention: NamingConvention, kind: str, layer: int | str, expert: int | str = 0
    ) -> str | None:
        """Return the name of a tensor of the part, None if a convention does not have it."""
        template = self.tensor_template(convention, kind)
        return None if template is None else template.format(layer, expert=expert)

    def tensor_template(self, convention: NamingConvention, kind: str) -> str | None:
        """Return the name of a tensor of the part, with fields for the numbers in it."""
        template = self.template(convention)
        if template is None:
            return None
        end = self.ends.get(convention) if kind == "weight" else None
        return template + (f".{kind}" if end is None else end)


def at_layer(config: Any, field: str, layer: int) -> Any:
    """Return what a field of a config says of a layer; it may have a value for each."""
    value = getattr(config, field)
    return cast("Sequence[Any]", value)[layer] if type(value) is tuple else value


class TensorNames(NamedTuple):
    """One tensor of a model: its name to our modules and in either naming convention, and its line.

    `layer` and `expert` are 0 where it is of none. Where checkpoints of a convention have it in one
    tensor with other parts, the name there is that tensor's, and `fusions` say how.
    """

    module: str
    gguf: str | None
    hugging_face: str | None
    line: Name
    kind: str = "weight"
    layer: int = 0
    expert: int = 0
    fusions: Mapping[NamingConvention, Fusion] = _NOTHING

    def name(self, convention: NamingConvention) -> str | None:
        """Return its name in a naming convention, None if that does not have the tensor."""
        return self.gguf if convention == "gguf" else self.hugging_face

    def is_stacked(self, convention: NamingConvention) -> bool:
        """Whether a convention has it in one tensor with those of the layer's other experts."""
        if not self.line.is_of_experts:
            return False
        if convention in self.fusions:
            return self.fusions[convention].of_experts
        template = self.line.template(convention)
        return template is not None and _EXPERT not in template

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
    same, `is_of` tells one by the metadata, and no model of it has the tensor that it `lacks`.
    `model_types` are config.json's, the usual one first. `config` and `module` refer to the class
    of its configs and of the whole model; where `module` is empty weightctl does not run its
    models, and does all else. `blocks` are fields of the config that all models of the family have
    alike: what blocks it is made of. `prefix` is what all names of Hugging Face's but the head's
    begin with, or lack; `other_prefixes` are what stands there in checkpoints of more than the
    model. `beside` are patterns of tensors in either naming convention that belong to no part of
    the model, without the prefix. `spellings` are other words for `weight` and `bias` at the end of
    names. With `has_further_layers` checkpoints may have more layers than the config counts, for
    training and drafts. `fusions` are tensors with several parts. `keeps_window` says that
    llama.cpp knows of sliding windows in this family, and `heads_fill_hidden` that it loads no
    models whose heads together are wider or narrower than the hidden size; `unloaded` returns why
    else it does not load a model with some fields, and `differs` says what it computes differently
    from transformers, for tied models alone if `differs_tied`. `older` is what older versions of
    transformers call keys of rotary embeddings. `standard` brings config.json into the form that
    the keys are of, and `completed` brings it back. `checked` returns the fields that the lines
    gave as the config has them; raises `ValueError` if they contradict each other.
    """

    name: str
    model_types: Mapping[str, ModelType]
    names: tuple[Name, ...]
    keys: tuple[Key, ...]
    config: str = "weightctl.families.decoder:DecoderConfig"
    module: str = "weightctl.nn.models.decoder:Decoder"
    blocks: Mapping[str, Any] = field(default_factory=dict[str, Any])
    prefix: str = "model."
    other_prefixes: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    has_further_layers: bool = False
    spellings: Mapping[str, str] = field(default_factory=dict[str, str])
    fusions: tuple[Fusion, ...] = ()
    keeps_window: bool = False
    heads_fill_hidden: bool = False
    older: Mapping[str, str] = field(default_factory=dict[str, str])
    unloaded: Callable[[Fields], str | None] | None = None
    differs: str = ""
    differs_tied: bool = False
    gguf: str = ""
    is_of: Callable[[Mapping[str, MetadataValue]], bool] | None = None
    lacks: str = ""
    standard: Callable[[Mapping[str, Any]], Mapping[str, Any]] = _as_it_is
    completed: Callable[[Mapping[str, Any]], Mapping[str, Any]] = _as_it_is
    checked: Callable[[Fields], Fields] = _as_it_is

    @property
    def gguf_name(self) -> str:
        """GGUF's `general.architecture`."""
        return self.gguf or self.name

    def tensors(self, config: Config) -> Iterator[TensorNames]:
        """Yield every tensor that a model of this config has, layer after layer."""
        for of_layers, group in groupby(self.names, lambda line: line.is_of_layers):
            lines = [(line, self._written_fusions(line)) for line in group]
            for layer in range(config.layers if of_layers else 1):
                for line, fusions in lines:
                    if not line.is_in(config, layer):
                        continue
                    for kind in line.kinds(config):
                        yield from _list_tensors(line, layer, kind, fusions, config)

    def copies(self, config: Config) -> Iterator[TensorNames]:
        """Yield the tensors that checkpoints of this config may hold as copies of others."""
        for line in self.names:
            if line.unless == _TIED and at_layer(config, _TIED, 0):
                yield from _list_tensors(line, 0, "weight", _NOTHING, config)

    def plain(self, name: str) -> str:
        """Return a name of Hugging Face's as all checkpoints have it in common."""
        prefixes = (*self.other_prefixes, self.prefix)
        name = name.removeprefix(next(filter(name.startswith, prefixes), ""))
        stem, dot, last = name.rpartition(".")
        return f"{stem}{dot}{self.spellings[last]}" if last in self.spellings else name

    def is_beside(self, name: str, config: Config) -> bool:
        """Whether a tensor belongs to no part of the model: a head for training, for one.

        `name` is as all checkpoints have it in common.
        """
        if any(re.fullmatch(pattern, name) for pattern in self.beside):
            return True
        return self.is_further(name, config)

    def is_further(self, name: str, config: Config) -> bool:
        """Whether a tensor is of layers that predict further tokens, behind those of the model.

        `name` is as all checkpoints have it in common.
        """
        if not self.has_further_layers:
            return False
        found = _LAYER_NUMBER.match(name)
        return name.startswith(_FURTHER) or (found is not None and int(found[1]) >= config.layers)

    def make_config(self, fields: Mapping[str, Any], convention: NamingConvention) -> Config:
        """Return the family's config, a frozen dataclass, of those of these fields that it has.

        Modules compute with tensors as a naming convention has them, which is in the config too.
        """
        made = load(self.config)
        own = made.__dataclass_fields__
        given = {**self.blocks, **fields}
        for line in self.names:
            if line.change is not None:
                given |= line.change.fields(convention)
        config: Config = made(**{name: value for name, value in given.items() if name in own})
        return config

    def _written_fusions(self, line: Name) -> Mapping[NamingConvention, Fusion]:
        """Return the fusions that conventions have in place of the part's own tensors."""
        found: dict[NamingConvention, Fusion] = {}
        for fusion in self.fusions:
            if line.module in fusion.parts and line.template(fusion.convention) is None:
                found.setdefault(fusion.convention, fusion)
        return found or _NOTHING


def _list_tensors(
    line: Name,
    layer: int,
    kind: str,
    fusions: Mapping[NamingConvention, Fusion],
    config: Any,
) -> Iterator[TensorNames]:
    """Yield the tensors of a line and a kind in a layer: one, or one for each expert."""
    gguf, hugging_face = (
        fusions[convention].template(kind)
        if convention in fusions
        else line.tensor_template(convention, kind)
        for convention in _CONVENTIONS
    )
    module = f"{line.module}.{kind}"
    number = layer - getattr(config, line.first) if line.first else layer
    for expert in range(config.experts) if line.is_of_experts else (0,):
        yield TensorNames(
            module.format(layer, expert=expert),
            None if gguf is None else gguf.format(number, expert=expert),
            None if hugging_face is None else hugging_face.format(number, expert=expert),
            line,
            kind,
            layer,
            expert,
            fusions,
        )
