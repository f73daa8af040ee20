"""Modules of a few numbers, and their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from weightctl.dtype import DType
from weightctl.graph import TensorType, Weight, ops
from weightctl.nn import LayerList, Module

if TYPE_CHECKING:
    from weightctl.graph import Value

    Array = np.ndarray[Any, Any]


ROWS = TensorType(DType.float32, ("batch", 4))


class Scale(Module):
    """A product with a weight of one number per feature."""

    def __init__(self, features: int = 4) -> None:
        self.weight = Weight("weight", DType.float32, (features,))

    def __call__(self, x: Value) -> Value:
        return x * self.weight


class Block(Module):
    """A product, and another on top."""

    def __init__(self) -> None:
        self.up = Scale()
        self.down = Scale()

    def __call__(self, x: Value) -> Value:
        return self.down(ops.silu(self.up(x))) + x


class Stack(Module):
    """Blocks in a list, one after the other."""

    def __init__(self, blocks: int = 3) -> None:
        self.layers = LayerList([Block() for _ in range(blocks)])
        self.head = Scale()

    def __call__(self, x: Value) -> Value:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def random_values(module: Module) -> dict[str, Array]:
    generator = np.random.default_rng(0)
    return {
        name: generator.normal(size=weight.shape.sizes).astype(np.float32)
        for name, weight in module.raw_state_dict().items()
    }


def refusal(module: Module, state: Any, **options: Any) -> str:
    """The error, after which nothing is changed."""

    def now() -> list[Any]:
        described = [(weight.name, weight.align, repr(weight)) for _, weight in all_weights(module)]
        return [described, {name: id(value) for name, value in values(module).items()}]

    before = now()
    with pytest.raises(ValueError) as error:  # noqa: PT011  # the message is what is returned
        module.load_state_dict(state, **options)
    assert now() == before
    return str(error.value)


def all_weights(module: Module) -> list[tuple[str, Weight]]:
    from weightctl.nn.weight_names import find_owned

    return [(name, sites[0].weight) for name, sites in find_owned(module).items()]


def values(module: Module) -> dict[str, Any]:
    from weightctl.nn.values import get_value
    from weightctl.nn.weight_names import find_owned

    return {name: get_value(sites[0].weight) for name, sites in find_owned(module).items()}
