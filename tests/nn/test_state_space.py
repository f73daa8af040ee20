"""State space models on several ranks, which sum a part of the computation midway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import each
from runs import executed
from weightctl import DType
from weightctl.device import CPU
from weightctl.errors import ShardingError
from weightctl.graph import Graph, TensorType
from weightctl.nn import Module
from weightctl.nn.across_ranks import parallel
from weightctl.nn.recurrent.state_space import Mamba, Mamba2, SegmentScales
from weightctl.split import Grid

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from weightctl.graph import Value
    from weightctl.nn import Divisible

FEATURES, HEADS, SIZE = 8, 4, 3
SCALES = SegmentScales(2.0, (1.0, 2.0, 3.0, 0.5, 0.25), 3.0)


class Whole(Module):
    """A module with one layer."""

    def __init__(self, layer: Divisible) -> None:
        self.layer = layer

    def __call__(self, x: Value) -> Any:
        return self.layer(x)


def run(make: Callable[[], Divisible], ranks: int) -> NDArray[np.float32]:
    """Return the output of a layer with drawn weights on some ranks."""
    drawn = np.random.default_rng(5)
    whole = Whole(make())
    whole.name_weights()
    weights = {
        name: 0.4 * drawn.standard_normal([int(size) for size in weight.shape], np.float32)
        for name, weight in whole.raw_state_dict().items()
    }
    if ranks > 1:
        whole = parallel(whole, [CPU] * ranks, grid=Grid(ranks))
    x = drawn.standard_normal((2, 5, FEATURES), np.float32)
    with Graph("whole", [TensorType(DType.float32, x.shape, CPU)]) as graph:
        graph.output(whole(*graph.inputs))
    (output,) = executed(graph, x, weights=weights)
    return output


def make_mamba2(groups: int, *, normed: bool = True) -> Callable[[], Divisible]:
    def make() -> Divisible:
        return Mamba2(
            FEATURES,
            HEADS,
            SIZE,
            groups=groups,
            states=5,
            kernel=3,
            bias=True,
            norm_epsilon=1e-5 if normed else None,
            scales=None if normed else SCALES,
        )

    return make


def make_mamba() -> Divisible:
    return Mamba(FEATURES, 12, states=5, rank=2, kernel=3, bias=True, norm_epsilon=1e-6)


@each(
    "groups, normed, ranks",
    [(1, True, 3), (2, True, 2), (2, True, 4), (4, True, 3), (1, False, 2), (2, False, 4)],
)
def test_ranks_divide_heads_and_share_groups(groups: int, normed: bool, ranks: int) -> None:
    make = make_mamba2(groups, normed=normed)
    assert np.allclose(run(make, ranks), run(make, 1), rtol=1e-4, atol=1e-5)


@each("ranks", [2, 5])
def test_ranks_divide_the_channels_of_a_mamba(ranks: int) -> None:
    assert np.allclose(run(make_mamba, ranks), run(make_mamba, 1), rtol=1e-4, atol=1e-5)


def test_ranks_without_heads_are_refused() -> None:
    whole = Whole(make_mamba2(2)())
    with pytest.raises(ShardingError, match="4 SSM heads and 2 groups") as raised:
        parallel(whole, [CPU] * 3, grid=Grid(3))
    assert raised.value.hint == "1, 2 or 4 ranks work"
