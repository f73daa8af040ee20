"""No key of a family is read for nothing: a misspelled field would be lost unseen."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from test_tensor_names import STATED

from each import each
from weightctl.families import FAMILIES
from weightctl.families.configs import from_hugging_face
from weightctl.families.kinds import Exactly, OrNone, WholeNumber
from weightctl.families.latent import YARN_MULTIPLIER
from weightctl.families.layers import LayersAlike
from weightctl.families.mistral3 import HEAD_MULTIPLIER
from weightctl.families.rope_keys import LONGROPE_KEYS
from weightctl.families.state_space import Unlimited
from weightctl.system.registry import load

if TYPE_CHECKING:
    from weightctl.families.family import Family


# What of these is read follows from the kind of scaling.
OF_ROPE = {key.field for key in (*LONGROPE_KEYS, YARN_MULTIPLIER, HEAD_MULTIPLIER)}
# Sections of RoPE matter for images only.
OF_ROPE |= {"ramp_between_pairs", "rope_sections"}
# llama.cpp needs the number, from which nothing follows in Nemotron-H. In Gemma 4, the key matters
# for images only.
CARRIED = {"shared_count", "sees_ahead"}


class Watched(dict[str, Any]):
    """Fields that record which of them are asked for."""

    def __init__(self, fields: Any, asked: set[str]) -> None:
        super().__init__(fields)
        self.asked = asked

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)


def list_asked(family: Family) -> set[str]:
    """Return the fields that others follow from, or that are checked."""
    asked: set[str] = set()
    document = {"model_type": next(iter(family.model_types)), **STATED.get(family.name, {})}
    fields = from_hugging_face(family, document, "here").fields
    rules = [rule for key in family.keys for rule in (key.default, key.gguf_default)]
    for rule in (*rules, family.checked, family.unloaded):
        with suppress(KeyError, TypeError, ValueError):  # some are of the other convention
            if callable(rule):
                rule(Watched(fields, asked))
    return asked


@each("name", FAMILIES)
def test_every_key_is_a_field_of_the_config_or_says_something_of_one(name: str) -> None:
    family = FAMILIES[name].load()
    fields = {field.name for field in dataclasses.fields(load(family.config))}
    assert family.blocks.keys() <= fields
    asked = list_asked(family)
    for key in family.keys:
        kind = key.kind.kind if isinstance(key.kind, OrNone) else key.kind
        is_refused = isinstance(kind, Exactly | LayersAlike | Unlimited) or (
            isinstance(key.kind, WholeNumber) and (key.written is False or key.kind.most == 0)
        )
        follows = callable(key.default) or callable(key.gguf_default)
        is_used = key.field in fields | asked or is_refused or follows
        assert is_used or key.field in OF_ROPE | CARRIED, key
