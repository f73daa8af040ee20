"""The tables of a model family: the names of its tensors and the keys of its config."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from weightctl.families.modules import TensorNames, at_layer
from weightctl.system.registry import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from weightctl.families.config_keys import Config, Default, Fields, Key, NamingConvention
    from weightctl.families.fusions import Fusion
    from weightctl.families.modules import Name
    from weightctl.weights.metadata import MetadataValue

_CONVENTIONS: tuple[NamingConvention, ...] = ("gguf", "hugging_face")
# The config field that states that the output is the embedding, without a weight of its own.
_TIED = "tied"
_LAYER, _HF_LAYER = "layers.{}.", "model.layers.{}."
_NOTHING: Mapping[Any, Any] = MappingProxyType({})
# How tensors that are computed from the config are described to users.
OF_CONFIG = "of the config"


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpForm:
    """How a family stores its layers for MTP.

    - `prefix`: what their names begin with in Hugging Face's convention, where these layers have
      numbers of their own; empty if they have the numbers after those of the other layers.
    - `renamed`: the rest of names there that differ from other layers, by the part of the layer.
    - `changed`: the fields of lines that differ from those of other layers, by the part of the
      layer; with a name in Hugging Face's convention if it does not follow from `prefix`.
    - `values`: the values that fields with a value for each layer have in these layers; without
      one, that of the last layer.
    - `unstated`: the fields whose GGUF keys have no values for these layers.
    - `fused`: the parts of these layers that GGUF stores in a fused tensor.
    - `in_gguf`: whether llama.cpp has a place for these layers.
    """

    prefix: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict[str, str])
    changed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, "Mapping[str, Any]"])
    values: Mapping[str, Default] = field(default_factory=dict[str, "Default"])
    unstated: tuple[str, ...] = ()
    fused: tuple[str, ...] = ()
    in_gguf: bool = True

    def adapt(self, line: Name) -> Name:
        """Return a line of the family's layers with the names that it has in a layer for MTP."""
        part, name = line.module.removeprefix(_LAYER), line.hugging_face
        if part in self.fused or not self.in_gguf:
            line = replace(line, gguf=None)
        if part in self.changed:
            return replace(line, restarts=True, **self.changed[part])
        if self.prefix and name is None:  # a fused tensor has it
            return replace(line, restarts=True)
        if not self.prefix or name is None or not name.startswith(_HF_LAYER):
            return line
        rest = self.renamed.get(part, name.removeprefix(_HF_LAYER))
        return replace(line, hugging_face=self.prefix + rest, restarts=True)

    def adapt_fusion(self, fusion: Fusion) -> Fusion:
        """Return a fusion of the family's layers with the name that it has in a layer for MTP."""
        if not self.prefix or not fusion.name.startswith(_HF_LAYER):
            return fusion
        return replace(fusion, name=self.prefix + fusion.name.removeprefix(_HF_LAYER))

    def value(self, name: str, values: tuple[Any, ...], known: Fields) -> Any:
        """Return the value of a field in these layers; `values` are those of the other layers."""
        usual = self.values.get(name, values[-1])
        return usual(known) if callable(usual) else usual


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelType:
    """A `model_type` of config.json that belongs to a family.

    - `class_name`: transformers' class of the whole model, for `architectures`.
    - `defaults`: the defaults that differ from those of the family's keys, by field.
    - `fixed`: the fields that have one value for this type, and that are not read from config.json.
    """

    class_name: str = ""
    defaults: Mapping[str, Default] = field(default_factory=dict[str, "Default"])
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])


def _as_it_is(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return document


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model family: what its checkpoints look like in both naming conventions, and what runs it.

    To add a family, write a file in `families/tables/`. Most families change a few lines of the
    usual tables: `DECODER` in `families/usual_names.py` and `DECODER_KEYS` in
    `families/decoder_keys.py`. "Plain names" are Hugging Face's tensor names without the prefix.

    What a family is:

    - `name`: the name of the family in messages.
    - `gguf`: the value of GGUF's `general.architecture`; empty if it is `name`.
    - `model_types`: the values of `model_type` in config.json, the usual one first.
    - `is_of`: returns whether GGUF metadata describe this family. If several families have the same
      `general.architecture`, all but the usual one have this function.
    - `is_of_config`: returns whether a config.json of a `model_type` that several families have
      describes this family; all but the usual one have this function.
    - `lacks`: a GGUF tensor that the models of a family with `is_of` never have.

    Tensors:

    - `names`: the lines of its tensors; the lines of layers follow one another.
    - `fusions`: tensors that contain several parts.
    - `prefix`: what Hugging Face's names begin with, except that of the output. Checkpoints of the
      base model lack it.
    - `other_prefixes`: prefixes in larger checkpoints, such as those of multimodal models.
    - `spellings`: other last words of names, mapped to `weight` or `bias`.
    - `beside`: regular expressions for tensors, by their GGUF names or plain names, that
      checkpoints may contain although they are not a part of the model.
    - `mtp`: how checkpoints store layers of multi-token prediction (MTP); None if the family has
      none. `names` then has lines with `in_mtp` in `when`, and the first key is their number.
    - `copied`: returns GGUF tensors that llama.cpp loads and does not use, and what they copy.

    Config:

    - `keys`: the keys of its config, in the order in which they are read.
    - `config`: the class of its configs, as `module:class`.
    - `blocks`: the fields of the config that are the same in all models of the family.
    - `standard`, `completed`: bring a config.json into the form that the keys describe, and back.
    - `older`: the names of RoPE keys in older versions of transformers.
    - `checked`: returns the fields that the keys gave as the config has them; raises `ValueError`
      if they contradict each other.

    Programs:

    - `module`: the class of the whole model, as `module:class`; empty if weightctl does not run it.
    - `not_run`: returns why weightctl does not run a model with a given config, or None.
    - `in_llama_cpp`, `keeps_window`: whether llama.cpp has this family, and its sliding windows.
    - `heads_fill_hidden`: whether llama.cpp requires heads that together are as wide as `hidden`.
    - `unloaded`: returns why else llama.cpp does not load a model with the given fields, or None;
      `llama_cpp.toml` has the tensors and kinds of layers that it requires.
    - `differs`: what llama.cpp computes differently from transformers, or a function that returns
      this for the given fields, or None.
    - `notes`: what users should know, in Markdown, for the documentation: paragraphs.
    """

    name: str
    model_types: Mapping[str, ModelType]
    names: tuple[Name, ...]
    keys: tuple[Key, ...]
    config: str = "weightctl.families.decoder:DecoderConfig"
    module: str = "weightctl.nn.models.decoder:Decoder"
    not_run: Callable[[Any], str | None] | None = None
    blocks: Mapping[str, Any] = field(default_factory=dict[str, Any])
    prefix: str = "model."
    other_prefixes: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    mtp: MtpForm | None = None
    copied: Callable[[Any], Mapping[str, str]] | None = None
    spellings: Mapping[str, str] = field(default_factory=dict[str, str])
    fusions: tuple[Fusion, ...] = ()
    in_llama_cpp: bool = True
    keeps_window: bool = False
    heads_fill_hidden: bool = False
    older: Mapping[str, str] = field(default_factory=dict[str, str])
    unloaded: Callable[[Fields], str | None] | None = None
    differs: str | Callable[[Fields], str | None] = ""
    notes: str = ""
    gguf: str = ""
    is_of: Callable[[Mapping[str, MetadataValue]], bool] | None = None
    is_of_config: Callable[[Mapping[str, Any]], bool] | None = None
    lacks: str = ""
    standard: Callable[[Mapping[str, Any]], Mapping[str, Any]] = _as_it_is
    completed: Callable[[Mapping[str, Any]], Mapping[str, Any]] = _as_it_is
    checked: Callable[[Fields], Fields] = _as_it_is

    @property
    def gguf_name(self) -> str:
        """The value of GGUF's `general.architecture`."""
        return self.gguf or self.name

    def find_obstacle(self, config: Config) -> str | None:
        """Return why weightctl does not run a model with this config, None if it does."""
        if not self.module:
            return f"weightctl does not run {self.name} models"
        reason = None if self.not_run is None else self.not_run(config)
        return None if reason is None else f"weightctl does not run this {self.name}: {reason}"

    def find_difference(self, fields: Fields) -> str | None:
        """Return what llama.cpp computes differently from transformers, or None."""
        return self.differs or None if isinstance(self.differs, str) else self.differs(fields)

    def tensors(self, config: Config) -> Iterator[TensorNames]:
        """Yield all tensors of a model with this config, layer after layer."""
        further = 0 if self.mtp is None else getattr(config, "mtp_layers", 0)
        for of_layers, group in groupby(self.names, lambda line: line.is_of_layers):
            lines = [(line, _written_fusions(line, self.fusions)) for line in group]
            for layer in range(config.layers + further if of_layers else 1):
                if of_layers and layer == config.layers and self.mtp is not None:
                    own = [*map(self.mtp.adapt_fusion, self.fusions)]
                    adapted = [self.mtp.adapt(line) for line, _ in lines]
                    lines = [(line, _written_fusions(line, own)) for line in adapted]
                for line, fusions in lines:
                    if not line.is_in(config, layer):
                        continue
                    for kind in line.kinds(config):
                        yield from _list_tensors(line, layer, kind, fusions, config)

    def copies(self, config: Config) -> Iterator[TensorNames]:
        """Yield the tensors that checkpoints with this config may hold as copies of others."""
        for line in self.names:
            if line.unless == _TIED and at_layer(config, _TIED, 0):
                yield from _list_tensors(line, 0, "weight", _NOTHING, config)

    def list_made(
        self, config: Config, convention: NamingConvention
    ) -> Iterator[tuple[TensorNames, NDArray[np.float32]]]:
        """Yield tensors of a naming convention whose values the other one has as config keys.

        Each tensor comes with its values, float32.
        """
        for line in self.names:
            numbers = None if line.made is None else line.made(config)
            if numbers is None or line.template(convention) is None:
                continue
            for layer in range(config.layers if line.is_of_layers else 1):
                gguf, hugging_face = (line.tensor(each, "weight", layer) for each in _CONVENTIONS)
                module = f"{line.module}.weight".format(layer)
                names = TensorNames(module, gguf, hugging_face, line, layer=layer)
                yield names, numbers[layer] if line.is_of_layers else numbers

    def plain(self, name: str) -> str:
        """Return a name of Hugging Face's without its prefix, ending in `weight` or `bias`."""
        prefixes = (*self.other_prefixes, self.prefix)
        name = name.removeprefix(next(filter(name.startswith, prefixes), ""))
        stem, dot, last = name.rpartition(".")
        return f"{stem}{dot}{self.spellings[last]}" if last in self.spellings else name

    def is_beside(self, name: str) -> bool:
        """Whether a tensor is not a part of the model, for example a head for training.

        `name` is a plain name.
        """
        return any(re.fullmatch(pattern, name) for pattern in self.beside)

    def make_config(self, fields: Mapping[str, Any], convention: NamingConvention) -> Config:
        """Return the config, a frozen dataclass, from the fields that its class has.

        The config also states the form of the tensors, which depends on the naming convention.
        """
        made = load(self.config)
        own = made.__dataclass_fields__
        given = {**self.blocks, **fields}
        for line in self.names:
            if line.change is not None:
                given |= line.change.fields(convention)
        config: Config = made(**{name: value for name, value in given.items() if name in own})
        return config


def _written_fusions(line: Name, fusions: Sequence[Fusion]) -> Mapping[NamingConvention, Fusion]:
    """Return the fusion that each naming convention uses instead of the part's own tensors."""
    found: dict[NamingConvention, Fusion] = {}
    for fusion in fusions:
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
    """Yield the weights or biases of a line in a layer: one tensor, or one for each expert."""
    gguf, hugging_face = (
        fusions[convention].template(kind)
        if convention in fusions
        else line.tensor_template(convention, kind)
        for convention in _CONVENTIONS
    )
    module = f"{line.module}.{kind}"
    number = layer - getattr(config, line.first) if line.first else layer
    own_number = layer - config.layers if line.restarts else number
    if line.counted:
        own_number = sum(line.is_in(config, each) for each in range(layer))
    for expert in range(getattr(config, line.count)) if line.is_of_experts else (0,):
        yield TensorNames(
            module.format(layer, expert=expert),
            None if gguf is None else gguf.format(number, expert=expert),
            None if hugging_face is None else hugging_face.format(own_number, expert=expert),
            line,
            kind,
            layer,
            expert,
            fusions,
        )
