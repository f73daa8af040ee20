"""Every line of every family has a role on purpose, and what is widened is narrowed again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from each import each
from weightctl.families import FAMILIES
from weightctl.families.lines import LINES as USUAL
from weightctl.families.parts import ROLES, part_of_layer, role

if TYPE_CHECKING:
    from weightctl.families.family import Family, Name

LOADED = {name: line.load() for name, line in FAMILIES.items()}
LINES = [(family, line) for family in LOADED.values() for line in family.names]


@each("line", [pytest.param(line, id=f"{family.name}-{line.module}") for family, line in LINES])
def test_every_part_of_every_family_has_a_role(line: Name) -> None:
    found = role(line, "weight")
    assert bool(found.extents) == (found.strategy != "replicate")


def test_every_usual_line_is_of_the_module_that_it_is_called_by() -> None:
    for name, line in USUAL.items():
        assert part_of_layer(line) == re.sub(
            r"\.(whole|latent|sized|apart|channels|paired)$", "", name
        )


@each("family", LOADED.values(), ids=LOADED)
def test_what_makes_inner_numbers_is_cut_as_what_reads_them(family: Family) -> None:
    roles = {part_of_layer(line): role(line, "weight") for line in family.names}
    made = {extent for each in roles.values() if each.axis == 0 for extent in each.extents}
    read = {extent for each in roles.values() if each.axis == 1 for extent in each.extents}
    # Keys and values are read by the queries, tokens by people.
    own = {"queries", "keys", "plain_keys", "each_head"}
    # Numbers of SSM heads, and matrices of their groups, are read where they are made.
    own |= {"ssm_heads", "ssm_group_states"}
    # The gates and values of SSM heads in turn are read as their channels.
    own |= {"ssm_gated_channels"}
    # The gates of a linear recurrent unit are read as its channels.
    own |= {"lru_blocks"}
    # Embeddings for layers are cut by tokens, and read by every layer.
    own |= {"layer_vocabulary", "layer_inputs"}
    if "key_values" in made:  # of which each is that of several query heads
        own |= {"key_values", "values"}
    outputs = {extent for line in family.names for extent in line.axes.outputs}
    # Where numbers are normed together, every rank computes all of them.
    own |= {"inner"} if "intermediate" in outputs else set()
    assert made - own == (read | {"vocabulary"}) - own
    parts = {module.partition(".")[0] for module in roles}
    if "attention" in parts:
        # In DeepSeek-V4 all heads share one key, which every rank computes.
        shares = "attention.kv" in roles
        assert made & {"keys", "plain_keys"} or "all_keys" in outputs or shares
        assert "queries" in made or "all_queries" in outputs
    if "mlp" in parts:
        assert read & {"inner", "expert_inner"}
    assert parts & {"attention", "ssm", "rwkv"}


@each("line", [pytest.param(line, id=f"{family.name}-{line.module}") for family, line in LINES])
def test_a_bias_is_cut_as_the_outputs_that_it_is_added_to(line: Name) -> None:
    weight, bias = role(line, "weight"), role(line, "bias")
    assert bias == (weight if weight.axis == 0 else ROLES["norm"])


def test_what_is_for_all_layers_is_never_cut() -> None:
    assert {name for name, each in ROLES.items() if each.all_layers} == {
        "rope_factors", "long_rope_factors", "short_rope_factors",
    }  # fmt: skip
    assert not any(each.extents for each in ROLES.values() if each.all_layers)
