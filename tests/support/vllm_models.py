"""Small models in vLLM's layout."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import small_models
from cut_models import apart, saved
from vllm_states import CLASSES
from weightctl.sharding.planning import shard_plan
from weightctl.split import Grid

if TYPE_CHECKING:
    from pathlib import Path

    from small_models import Arrays
    from weightctl.sharding.plan import ShardPlan

ATTENTION = "model.layers.0.self_attn"
_MIXTRAL = {".mlp.": ".block_sparse_moe.", ".gate_proj.": ".w1.", ".up_proj.": ".w3.",
            ".down_proj.": ".w2."}  # fmt: skip


def model(family: str, **changes: Any) -> tuple[Arrays, dict[str, Any]]:
    """Return the tensors and the config.json of a small model of one layer."""
    made = getattr(small_models, family)(**({"num_hidden_layers": 1} | changes))
    return small_models.arrays(made), made.config.to_dict() | {"architectures": [CLASSES[family]]}


def on_disk(arrays: Arrays, family: str) -> Arrays:
    """Return tensors as in checkpoints on the Hub: each expert is stored separately."""
    found = apart(arrays)
    if family != "mixtral":
        return found
    table = re.compile("|".join(map(re.escape, _MIXTRAL)))
    return {table.sub(lambda match: _MIXTRAL[match[0]], name): each for name, each in found.items()}


def planned(folder: Path, family: str, ranks: int = 2, **changes: Any) -> ShardPlan:
    arrays, config = model(family, **changes)
    weights = saved(folder / "in", on_disk(arrays, family), config)
    return shard_plan(weights, Grid(ranks), layout="vllm")
