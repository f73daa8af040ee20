"""Pipeline stages whose layers use the keys and values of layers of earlier stages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from family_cases import make_checkpoint
from runs import executed
from weightctl import open_weights, shard
from weightctl.families import recognize
from weightctl.families.matching import match
from weightctl.graph.graph import Graph
from weightctl.nn.models import build_network
from weightctl.split import shares

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", ["gemma3n-shared", "gemma4"])
def test_each_stage_computes_its_layers_with_the_weights_of_its_own_file(
    name: str, crossed: Path, tmp_path: Path
) -> None:
    made = make_checkpoint(name, crossed)
    stages = 3
    shard(made.path, tmp_path / "ranks", pp=stages)
    found = recognize(open_weights(made.path))
    network: Any = build_network(found)
    given: list[Any] = [np.array([made.tokens])]
    types = network.input_types()
    for stage, (first, last) in enumerate(shares(found.config.layers, stages)):
        with Graph(f"stage{stage}", input_types=types) as graph:
            inputs: Any = graph.inputs
            x, beside = (inputs[0], inputs[1:]) if stage else network.begin(*inputs)
            for layer in network.layers[first:last]:
                x = network.through(layer, x, tuple(beside))
            graph.output(*((network.end(x),) if stage == stages - 1 else (x, *beside)))
        types = [value.type for value in graph.outputs]
        tree = open_weights(tmp_path / "ranks" / f"rank-{stage}")
        own = match(tree, found.family, found.convention, found.config, found.where)
        weights = replace(found, tree=tree, tensors=own.tensors).weights
        given = executed(graph, *given, weights=weights)
    assert np.abs(given[0][0] - made.expected).max() < 1e-4
