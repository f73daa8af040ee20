"""What a family of models calls its tensors and the values of its config, in two dialects."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.registry import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from weightctl.archs.keys import Config, Default, Dialect, Fields, Key
    from weightctl.archs.steps import Step

__all__ = ["Arch", "ModelType", "Name", "TensorNames", "layer_part"]

_NUMBER = "{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """What a part of a model is called: by our modules, in GGUF, and by transformers.

    `{}` is the number of a layer. Each part has a tensor `weight`, and one `bias` where `bias` is
    true or names a field of the config that is. Where a dialect has no such tensor its name is
    None. The part is there where the field `when` is true, and not where `unless` is; what a
    checkpoint still holds of it then is a copy of something. `step` says how else the dialects
    differ. `is_float32` says that GGUF keeps it in float32, as it does all vectors, whatever the
    rest is stored in.
    """

    module: str
    gguf: str | None
    hugging_face: str | None
    bias: bool | str = False
    when: str | None = None
    unless: str | None = None
    step: Step | None = None
    is_float32: bool = False

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
    step: Step | None = None,
    is_float32: bool = False,
) -> Name:
    """Return the line of a part that every layer has; `layer` begins its names at Hugging Face."""
    return Name(
        module="layers.{}." + module,
        gguf="blk.{}." + gguf,
        hugging_face=layer + hugging_face,
        bias=bias,
        step=step,
        is_float32=is_float32,
    )


class TensorNames(NamedTuple):
    """One tensor of a model: its name to our modules and in either dialect, and its line."""

    module: str
    gguf: str | None
    hugging_face: str | None
    line: Name

    def name(self, dialect: Dialect) -> str | None:
        """Return its name in a dialect, None where that has no such tensor."""
        return self.gguf if dialect == "gguf" else self.hugging_face

    @property
    def step(self) -> Step | None:
        """How it differs between the dialects; None where it is the same in both."""
        is_vector = self.module.endswith(".bias")
        step = self.line.step
        return None if step is None or (is_vector and not step.is_of_rows) else step

    @property
    def is_float32(self) -> bool:
        """Whether GGUF keeps it in float32 whatever the rest is stored in."""
        return self.line.is_float32 or self.module.endswith(".bias")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelType:
    """A `model_type` of config.json's that is of a family.

    `defaults` are where it departs from those of the family's lines; `fixed` are fields that it
    does not read from config.json.
    """

    defaults: Mapping[str, Default] = field(default_factory=dict[str, "Default"])
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])


def _as_it_is(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return document


@dataclass(frozen=True, slots=True, kw_only=True)
class Arch:
    """A family of models: how its checkpoints are read in either dialect, and what runs them.

    `name` is GGUF's `general.architecture`; `model_types` are config.json's, the usual one first.
    `config` and `module` refer to the class of its configs and of the whole model. `prefix` is
    what all names of Hugging Face's but the head's begin with, or lack. `beside` are patterns of
    tensors in either dialect that belong to no part of the model, without the prefix. `spellings`
    are other words for `weight` and `bias` at the end of names. `standard` brings config.json into
    the form that today's transformers writes. `checked` returns the fields that the lines gave as
    the config has them; `ValueError` where they contradict each other.
    """

    name: str
    model_types: Mapping[str, ModelType]
    config: str
    module: str
    prefix: str
    names: tuple[Name, ...]
    keys: tuple[Key, ...]
    beside: tuple[str, ...] = ()
    spellings: Mapping[str, str] = field(default_factory=dict[str, str])
    standard: Callable[[Mapping[str, Any]], Mapping[str, Any]] = _as_it_is
    checked: Callable[[Fields], Fields] = _as_it_is

    def tensors(self, config: Config) -> Iterator[TensorNames]:
        """Yield every tensor that a model of this config has, layer after layer."""
        present = [line for line in self.names if line.is_in(config)]
        for in_layers, group in groupby(present, lambda line: _NUMBER in line.module):
            lines = list(group)
            for number in range(config.layers if in_layers else 1):
                for line in lines:
                    for kind in line.kinds(config):
                        yield _tensor(line, number, kind)

    def copies(self, config: Config) -> Iterator[TensorNames]:
        """Yield the tensors that checkpoints of this config may hold as copies of others."""
        for line in self.names:
            if line.unless is not None and getattr(config, line.unless):
                yield _tensor(line, 0, "weight")

    def plain(self, name: str) -> str:
        """Return a name of Hugging Face's as all checkpoints have it in common."""
        name = name.removeprefix(self.prefix)
        stem, dot, last = name.rpartition(".")
        return f"{stem}{dot}{self.spellings[last]}" if last in self.spellings else name

    def is_beside(self, name: str) -> bool:
        """Whether a tensor belongs to no part of the model: a head for training, for one."""
        return any(re.fullmatch(pattern, name) for pattern in self.beside)

    def make_config(self, fields: Mapping[str, Any]) -> Config:
        """Return the family's config, a frozen dataclass, of those of these fields that it has."""
        made = load(self.config)
        config: Config = made(**{name: fields[name] for name in made.__dataclass_fields__})
        return config


def _tensor(line: Name, number: int, kind: str) -> TensorNames:
    def full(template: str | None) -> str | None:
        return None if template is None else f"{template.format(number)}.{kind}"

    return TensorNames(
        f"{line.module.format(number)}.{kind}", full(line.gguf), full(line.hugging_face), line
    )
