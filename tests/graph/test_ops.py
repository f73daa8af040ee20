"""What holds for every op: types are inferred before they are seen, and values are NumPy's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from each import each
from op_examples import EXAMPLES, INFERRED, REFUSED
from weightctl import Buffer
from weightctl.dtype import DType
from weightctl.engine.inputs import resolve_attributes
from weightctl.errors import GraphError
from weightctl.graph import Graph, TensorType, ops
from weightctl.graph.ops import OPS
from weightctl.graph.value import apply_all

if TYPE_CHECKING:
    from collections.abc import Mapping

    from op_examples import Example, Inferred, Refused

    Array = np.ndarray[Any, Any]


# It runs subgraphs in the place of their calls, and decodes weights where they are used.
DONE_BY_THE_ENGINE = {"call", "dequantize"}


def named(case: Example | Inferred | Refused) -> str:
    return str(case.attributes.get("function", case.op))


def lowered(op: str, inputs: tuple[Array, ...], attributes: Mapping[str, Any]) -> list[Any]:
    tensors = [torch.from_dlpack(Buffer.from_numpy(array)) for array in inputs]
    lower = OPS[op].lower
    assert lower is not None
    results = lower(*tensors, **resolve_attributes(dict(attributes), {}))
    return list(results) if isinstance(results, tuple | list) else [results]


def type_of(array: Array) -> TensorType:
    return TensorType(DType(array.dtype.name), array.shape)


def several(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple) else [found]


def test_every_op_has_examples_of_values_types_and_refusals() -> None:
    # A call's are the subgraph's; tests of its own say what it does.
    of_its_own = {"call"}
    assert {case.op for case in EXAMPLES} == set(OPS) - DONE_BY_THE_ENGINE
    assert {case.op for case in INFERRED} == set(OPS) - of_its_own - {"constant"}
    takes_anything = {"constant", "dims", "print", "transfer_to"}
    assert {case.op for case in REFUSED} >= set(OPS) - of_its_own - takes_anything


def test_every_op_has_a_record_with_its_types_and_its_torch() -> None:
    for name, op in OPS.items():
        assert op.name == name
        assert callable(op.infer), name
        assert (op.lower is None) == (name in DONE_BY_THE_ENGINE), name


def test_every_public_name_is_a_function() -> None:
    for name in set(ops.__all__) - {"OPS"}:
        assert type(getattr(ops, name)).__name__ == "function", name


@each("example", EXAMPLES, ids=named)
def test_the_type_that_is_inferred_is_the_type_that_comes_out(example: Example) -> None:
    types = [type_of(array) for array in example.inputs]
    inferred = several(OPS[example.op].infer(*types, **example.attributes))
    results = lowered(example.op, example.inputs, example.attributes)
    seen = [type_of(Buffer.from_dlpack(result).to_numpy()) for result in results]
    # How many rows are chosen is known in the run only: such a dimension has a name.
    assert [_with_sizes(*each) for each in zip(inferred, seen, strict=True)] == seen


def _with_sizes(inferred: TensorType, seen: TensorType) -> TensorType:
    pairs = zip(inferred.shape, seen.shape, strict=True)
    shape = [dim if dim.is_static else size for dim, size in pairs]
    return TensorType(inferred.dtype, shape, inferred.device)


@each("example", EXAMPLES, ids=named)
def test_the_values_that_come_out_are_those_of_the_reference(example: Example) -> None:
    results = lowered(example.op, example.inputs, example.attributes)
    for result, expected in zip(results, several(example.expected), strict=True):
        found = Buffer.from_dlpack(result).to_numpy()
        if example.tolerance:
            np.testing.assert_allclose(
                found.astype(np.float64),
                np.asarray(expected).astype(np.float64),
                rtol=example.tolerance,
                atol=example.tolerance,
            )
        else:
            np.testing.assert_array_equal(found, expected)


@each("example", EXAMPLES, ids=named)
def test_running_an_op_leaves_its_operands_alone(example: Example) -> None:
    copies = tuple(array.copy() for array in example.inputs)
    lowered(example.op, example.inputs, example.attributes)
    for array, copy in zip(example.inputs, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


@each("case", INFERRED, ids=named)
def test_names_of_dimensions_pass_through(case: Inferred) -> None:
    found = OPS[case.op].infer(*case.inputs, **case.attributes)
    assert several(found) == several(case.expected)


@each("case", REFUSED, ids=named)
def test_a_refusal_names_the_op_and_all_that_it_was_given(case: Refused) -> None:
    with Graph("refusing", case.inputs) as graph, pytest.raises(GraphError) as refusal:
        apply_all(case.op, *graph.inputs, **case.attributes)
    message = str(refusal.value)
    assert message.startswith(f"{named(case)}{' of ' if case.inputs else ': '}")
    for kind in case.inputs:
        assert str(kind) in message
    assert case.says in message


@each("case", REFUSED, ids=named)
def test_an_op_that_is_refused_leaves_the_graph_as_it_was(case: Refused) -> None:
    with Graph("refusing", case.inputs) as graph:
        before = len(graph.nodes)
        with pytest.raises(GraphError):
            apply_all(case.op, *graph.inputs, **case.attributes)
    assert len(graph.nodes) == before
