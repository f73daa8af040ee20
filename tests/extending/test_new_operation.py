"""An operation takes its functions and three lines: then graphs have it, and it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from extended_package import Line

if TYPE_CHECKING:
    from extended_package import ExtendedPackage

FUNCTIONS = '''

def cube(x):
    """Return the third powers of the elements."""
    return apply("cube", x)


def infer_cube(x):
    """Return the operand's own type."""
    require_float(x)
    return x


def lower_cube(x):
    """Return a copy."""
    return x * x * x


CUBE = Op("cube", infer_cube, lower_cube)
'''
LINES = [
    Line("from weightctl.graph.ops.unary import CUBE, cube", before="ops.unary import ("),
    Line('    "cube",', before='"dequantize",'),
    Line("    CUBE,", before="    ROPE,"),
]
PROGRAM = """
import numpy as np
from weightctl import DType, Graph, InferenceSession, TensorType, ops

with Graph("g", [TensorType(DType.float32, ["n"])]) as graph:
    graph.output(ops.cube(graph.inputs[0]))
(result,) = InferenceSession().load(graph).execute(np.array([1, 2, 3], np.float32))
assert result.to_numpy().tolist() == [1, 8, 27]
"""


def test_an_operation_is_its_functions_and_three_lines(extended: ExtendedPackage) -> None:
    modules, lines = {"graph/ops/unary.py": FUNCTIONS}, {"graph/ops/__init__.py": LINES}
    assert extended.follow("an operation", "unary", modules, lines) == 3
    extended.run("-c", PROGRAM)
