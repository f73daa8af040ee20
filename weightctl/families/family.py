"""The tables of a model family: the names of its tensors and the keys of its config."""

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

    from weightctl.families.fusions import Fusion
    from weightctl.families.keys import Config, Default, Fields, Key, NamingConvention
    from weightctl.families.mtp import MtpForm
    from weightctl.families.steps import Change
    from weightctl.weights.metadata import MetadataValue

_NUMBER, _EXPERT = "{}", "{expert}"
_CONVENTIONS: tuple[NamingConvention, ...] = ("gguf", "hugging_face")
# The config field that states that the output is the embedding, without a weight of its own.
_TIED = "tied"
_NOTHING: Mapping[Any, Any] = MappingProxyType({})
# How tensors that are computed from the config are described to users.
OF_CONFIG = "of the config"

# What the elements along an axis of a weight are: an extent that `families/parts.py` defines, or
# the name of the config field with the number of elements.
Extent: TypeAlias = str


class WeightAxes(NamedTuple):
    """What the elements along the two axes of a weight are, as our modules store it.

    `outputs` are the extents along the rows, one after the other (queries, keys and values of a
    fused projection), and `inputs` those along the columns. A vector has no `inputs`. `all_layers`
    states that the part is not in a layer, but that every layer needs it: each pipeline stage gets
    a copy. `kernel` has the extents of further axes, those of the kernel of a convolution.
    """

    outputs: tuple[Extent, ...]
    inputs: tuple[Extent, ...] = ()
    all_layers: bool = False
    kernel: tuple[Extent, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A part of a model, in each layer or once: what its tensors are called, and what they contain.

    A family has a tuple of these lines; `families/lines.py` has the usual ones. In the names, `{}`
    is the layer number and `{expert}` the number of an expert. If the name in a naming convention
    lacks `{expert}`, that convention stores all experts of a layer in one tensor, along a new first
    dimension. A part has the tensor `weight`, and `bias` if the model has biases there.

    - `module`: the name in our modules, for example `layers.{}.attention.q`.
    - `gguf`, `hugging_face`: the names in the naming conventions, without `.weight`. None if the
      convention does not store the tensor on its own: a `Fusion` of the family may contain it, or
      `made` may compute it.
    - `axes`: what the elements along the axes of the weight are. The shape and the shards follow
      from it.
    - `bias`: whether there is a bias, or the name of the config field that states it.
    - `when`: the config fields that must all be true for the part to exist. A field may have a
      value per layer.
    - `unless`: the config field that must be false for the part to exist. With `tied`, a checkpoint
      may still store the tensor, as a copy of the embedding.
    - `change`: how the values or their order differ between the naming conventions.
    - `is_float32`: whether GGUF stores the weight in float32 whatever the type of the other tensors
      is. GGUF does so for all vectors.
    - `first`: the config field that is subtracted from the layer numbers in names, or empty.
    - `made`: a function that returns the tensor's values, float32, from a config whose naming
      convention has them as config keys, or None. A part of layers has a row per layer.
    - `add_fields`: the opposite: a function that adds the fields that the tensor's values define.
    - `unread`: whether nothing reads the tensor, though llama.cpp needs it.
    - `ends`: the ending of the weight's name, by naming convention, where it is not `.weight`.
    - `restarts`: whether Hugging Face's names of layers for MTP have numbers from 0.
    - `counted`: whether Hugging Face's names only count the layers that have the part.
    - `count`: the config field with the number of what `{expert}` numbers.
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
    restarts: bool = False
    counted: bool = False
    unread: bool = False
    count: str = "experts"

    @property
    def is_of_experts(self) -> bool:
        """Whether each expert of a layer has the part."""
        return _EXPERT in self.module

    @property
    def is_of_layers(self) -> bool:
        """Whether each layer has the part."""
        return _NUMBER in self.module

    def is_in(self, config: Config, layer: int = 0) -> bool:
        """Whether a model with this config has the part, in the given layer if layers have it."""
        wanted = all(at_layer(config, field, layer) for field in self.when)
        return bool(wanted and not (self.unless and at_layer(config, self.unless, layer)))

    def kinds(self, config: Config) -> tuple[str, ...]:
        """Return which tensors the part has in a model with this config."""
        has_bias = getattr(config, self.bias) if isinstance(self.bias, str) else self.bias
        return ("weight", "bias") if has_bias else ("weight",)

    def template(self, convention: NamingConvention) -> str | None:
        """Return the part's name in a naming convention, None if it is not stored on its own."""
        return self.gguf if convention == "gguf" else self.hugging_face

    def tensor(
        self, convention: NamingConvention, kind: str, layer: int | str, expert: int | str = 0
    ) -> str | None:
        """Return the name of one of the part's tensors, None if the convention does not have it."""
        template = self.tensor_template(convention, kind)
        return None if template is None else template.format(layer, expert=expert)

    def tensor_template(self, convention: NamingConvention, kind: str) -> str | None:
        """Return the name of a tensor of the part, without the numbers filled in."""
        template = self.template(convention)
        if template is None:
            return None
        end = self.ends.get(convention) if kind == "weight" else None
        return template + (f".{kind}" if end is None else end)


def at_layer(config: Any, field: str, layer: int) -> Any:
    """Return the value of a config field for a layer; the field may have a value per layer."""
    value = getattr(config, field)
    return cast("Sequence[Any]", value)[layer] if type(value) is tuple else value


class TensorNames(NamedTuple):
    """A tensor of a model: its names in our modules and in both naming conventions, and its line.

    `layer` and `expert` are 0 for tensors outside of layers and experts. If checkpoints of a naming
    convention store the tensor in a fused one, the name is that of the fused tensor, and `fusions`
    has the `Fusion`.
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
        """Return the name in a naming convention, None if that does not have the tensor."""
        return self.gguf if convention == "gguf" else self.hugging_face

    def is_stacked(self, convention: NamingConvention) -> bool:
        """Whether a naming convention stores all experts of the layer in one tensor."""
        if not self.line.is_of_experts:
            return False
        if convention in self.fusions:
            return self.fusions[convention].of_experts
        template = self.line.template(convention)
        return template is not None and _EXPERT not in template

    @property
    def change(self) -> Change | None:
        """How the tensor differs between the naming conventions; None if it is the same in both."""
        change = self.line.change
        is_bias = self.kind == "bias"
        return None if change is None or (is_bias and not change.is_of_rows) else change

    @property
    def is_float32(self) -> bool:
        """Whether GGUF stores the tensor in float32 whatever the type of the other tensors is."""
        return self.line.is_float32 or self.kind == "bias"


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
    usual tables: `DECODER` in `families/lines.py` and `DECODER_KEYS` in
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
