"""What holds for every op: types are inferred before they are seen, and values are NumPy's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each import each
from lazy import LazyModule, torch
from op_examples import EXAMPLES, INFERRED, REFUSED
from runs import run
from weightctl import Buffer
from weightctl.device import DeviceRef
from weightctl.dtype import DType
from weightctl.engine.inputs import resolve_attributes
from weightctl.errors import GraphError
from weightctl.graph import Dim, Graph, TensorType, Value, ops
from weightctl.graph.graph import apply_all
from weightctl.graph.ops import OPS, binary, unary
from weightctl.graph.ops.binary import ARITHMETIC_FUNCTIONS, COMPARISON_FUNCTIONS
from weightctl.graph.ops.product import lower_matmul
from weightctl.graph.ops.reduce import lower_reduce, lower_softmax
from weightctl.graph.ops.unary import UNARY_FUNCTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from op_examples import Example, Inferred, Refused

    Array = np.ndarray[Any, Any]

modeling_llama: Any = LazyModule("transformers.models.llama.modeling_llama")


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
        apply_all(OPS[case.op], *graph.inputs, **case.attributes)
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
            apply_all(OPS[case.op], *graph.inputs, **case.attributes)
    assert len(graph.nodes) == before


# Which dtypes and Python numbers go together, and what the functions of a family add.


@pytest.fixture
def graph() -> Iterator[Graph]:
    kinds = (DType.float16, DType.int32, DType.bool, DType.uint8)
    with Graph("types", [TensorType(kind, (2,)) for kind in kinds]) as graph:
        yield graph


@each(
    "family, functions, operands",
    [
        ("arithmetic", set(ARITHMETIC_FUNCTIONS), 2),
        ("comparison", set(COMPARISON_FUNCTIONS), 2),
        ("unary", set(UNARY_FUNCTIONS), 1),
        ("reduce", {"sum", "mean", "max", "min"}, 1),
    ],
)
def test_each_function_of_a_family_adds_itself(
    family: str, functions: set[str], operands: int
) -> None:
    for function in functions:
        kind = DType.bool if function.startswith("logical") else DType.float32
        with Graph("family", [TensorType(kind, (2,))]) as graph:
            getattr(ops, function)(*graph.inputs * operands)
        assert graph.nodes[-1].op == family
        assert graph.nodes[-1].attributes["function"] == function


def test_every_function_of_one_or_two_tensors_has_a_name_in_torch() -> None:
    of_their_own = {"cast", "clamp", "gelu", "print_value", "where"}
    functions = {name for module in (unary, binary) for name in module.__all__ if name.islower()}
    tables = (ARITHMETIC_FUNCTIONS, COMPARISON_FUNCTIONS, UNARY_FUNCTIONS)
    assert functions - of_their_own == {name for table in tables for name in table}


def test_a_number_takes_the_dtype_of_the_tensor_beside_it(graph: Graph) -> None:
    half, whole, truth, _ = graph.inputs
    assert (half + 1).dtype is DType.float16
    assert (0.5 * half).dtype is DType.float16
    assert (whole - 1).dtype is DType.int32
    assert (whole > 3).dtype is DType.bool
    assert (truth == True).dtype is DType.bool  # noqa: E712  # a value, not a comparison


def test_a_fraction_beside_integers_is_refused_with_what_to_do(graph: Graph) -> None:
    with pytest.raises(GraphError, match="cast"):
        graph.inputs[1] + 0.5


def test_a_number_that_the_dtype_beside_it_cannot_hold_is_refused(graph: Graph) -> None:
    half, _, _, byte = graph.inputs
    for too_large in (lambda: half + 1e9, lambda: byte + 256, lambda: byte * -1):
        with pytest.raises(GraphError, match="cannot be converted to"):
            too_large()


def test_infinity_is_a_number_of_every_float_type(graph: Graph) -> None:
    assert (graph.inputs[0] + -math.inf).dtype is DType.float16


def test_integers_are_divided_by_two_slashes(graph: Graph) -> None:
    whole = graph.inputs[1]
    assert (whole // 2).dtype is DType.int32
    with pytest.raises(GraphError, match="use `//`"):
        whole / 2


def test_tensors_of_two_dtypes_are_not_promoted(graph: Graph) -> None:
    half, whole = graph.inputs[:2]
    with pytest.raises(GraphError, match=r"add of float16\[2\] and int32\[2\]"):
        half + whole
    assert (half + whole.cast(DType.float16)).dtype is DType.float16


def choice(graph: Graph, left: Any, right: Any) -> Value:
    return ops.where(graph.inputs[2], left, right)


def test_a_number_beside_a_choice_takes_the_dtype_of_the_other(graph: Graph) -> None:
    half = graph.inputs[0]
    assert choice(graph, half, -math.inf).dtype is DType.float16
    assert choice(graph, 0, half).dtype is DType.float16


def test_arrays_and_dimensions_to_choose_from_keep_their_dtypes(graph: Graph) -> None:
    assert choice(graph, np.zeros(2, np.int16), 0).dtype is DType.int16
    assert choice(graph, Dim("batch"), 0).dtype is DType.int64


def test_two_numbers_to_choose_from_are_floats_where_one_has_a_fraction(graph: Graph) -> None:
    assert choice(graph, 1, 2).dtype is DType.int64
    assert choice(graph, 1, 2.5).dtype is DType.float32


def test_operands_on_two_devices_are_refused() -> None:
    there = TensorType(DType.float32, (2,), DeviceRef.GPU(0))
    with (
        Graph("devices", [TensorType(DType.float32, (2,)), there]) as graph,
        pytest.raises(GraphError, match="cpu:0 and gpu:0"),
    ):
        ops.matmul(*graph.inputs)


def test_top_k_gives_values_and_indices() -> None:
    with Graph("top", [TensorType(DType.float32, ("batch", 9))]) as graph:
        values, indices = ops.top_k(graph.inputs[0], 3)
    assert str(values.type) == "float32[batch, 3]"
    assert str(indices.type) == "int64[batch, 3]"


# Norms, against torch and transformers.


SMALL = each("kind", [np.float16, ml_dtypes.bfloat16])


def floats(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def torch_of(array: Any) -> torch.Tensor:
    name = array.dtype.name
    return torch.tensor(array.astype(np.float32)).to(getattr(torch, name))


@each("kind", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_rms_norm_is_hugging_faces(kind: Any) -> None:
    x, weight = (floats(2, 5, 64) * 9).astype(kind), floats(64).astype(kind)
    model = modeling_llama.LlamaRMSNorm(64, 1e-5)
    model.weight.data = torch_of(weight)
    expected = model(torch_of(x)).detach().float().numpy()
    found = run(lambda *values: ops.rms_norm(*values, 1e-5), x, weight)
    exact = kind is not np.float32
    np.testing.assert_allclose(found.astype(np.float32), expected, rtol=0 if exact else 1e-6)


def test_an_rms_norm_without_a_weight_has_a_mean_square_of_one() -> None:
    found = run(lambda x: ops.rms_norm(x, epsilon=0.0), floats(3, 50))
    np.testing.assert_allclose((found**2).mean(-1), 1, rtol=1e-5)


@SMALL
@each("count", [0, 1, 2])
def test_layer_norm_is_computed_in_float32_and_rounded_once(kind: Any, count: int) -> None:
    arrays = [(floats(4, 300) * 20).astype(kind), floats(300), floats(300)][: count + 1]
    arrays = [array.astype(kind) for array in arrays]
    found = run(lambda *values: ops.layer_norm(*values, epsilon=1e-5), *arrays)
    wide = [torch_of(array).double() for array in arrays]
    exact = torch.nn.functional.layer_norm(wide[0], (300,), *wide[1:], eps=1e-5).numpy()
    half_a_step = float(ml_dtypes.finfo(kind).eps) / 2
    np.testing.assert_allclose(found.astype(float), exact, rtol=half_a_step * 1.01, atol=1e-5)


def test_a_layer_norm_may_have_a_bias_alone() -> None:
    x, bias = floats(3, 8), floats(8)
    found = run(lambda *values: ops.layer_norm(values[0], bias=values[1]), x, bias)
    expected = torch.nn.functional.layer_norm(torch_of(x), (8,), None, torch_of(bias))
    np.testing.assert_allclose(found, expected, atol=1e-6)


Array = np.ndarray[Any, Any]


def tables(seq: int, pairs: int, base: float = 10000.0) -> tuple[Array, Array]:
    angles = np.outer(np.arange(seq), base ** -(np.arange(pairs) / pairs)).astype(np.float32)
    return np.cos(angles), np.sin(angles)


def rotated(x: Array, pairs: int, *, interleaved: bool) -> Array:
    """One pair after another, by a rotation matrix, in float64."""
    result = x.astype(float)
    for position in range(x.shape[-2]):
        for pair in range(pairs):
            angle = position * 10000.0 ** -(pair / pairs)
            turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            places = [2 * pair, 2 * pair + 1] if interleaved else [pair, pair + pairs]
            result[..., position, places] = x[..., position, places].astype(float) @ turn.T
    return result


def rope(interleaved: bool) -> Any:
    return lambda x, cos, sin: ops.rope(x, cos, sin, interleaved=interleaved)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.integers(1, 3), max_size=2),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 3),
    st.booleans(),
)
def test_pairs_are_rotated_and_the_rest_passes_through(
    leading: list[int], seq: int, pairs: int, rest: int, interleaved: bool
) -> None:
    shape = (*leading, seq, 2 * pairs + rest)
    x = np.random.default_rng(1).standard_normal(shape, np.float32)
    found = run(rope(interleaved), x, *tables(seq, pairs))
    np.testing.assert_allclose(found, rotated(x, pairs, interleaved=interleaved), atol=2e-6)
    np.testing.assert_array_equal(found[..., 2 * pairs :], x[..., 2 * pairs :])


@each("interleaved", [False, True])
def test_positions_may_differ_between_the_rows_of_a_batch(interleaved: bool) -> None:
    x = np.random.default_rng(2).standard_normal((2, 3, 4, 6), np.float32)
    cos, sin = (table.reshape(2, 1, 4, 3) for table in tables(8, 3))
    shapes = [("batch", 3, "seq", 6), ("batch", 1, "seq", 3), ("batch", 1, "seq", 3)]
    found = run(rope(interleaved), x, cos, sin, shapes=shapes)
    # The second row is at positions 4 to 7.
    later = np.concatenate([x[1], x[1]], 1)
    np.testing.assert_allclose(found[0], rotated(x[0], 3, interleaved=interleaved), atol=2e-6)
    np.testing.assert_allclose(
        found[1], rotated(later, 3, interleaved=interleaved)[:, 4:], atol=2e-6
    )


def test_halves_pair_as_in_hugging_faces_llama() -> None:
    x = np.random.default_rng(4).standard_normal((1, 2, 5, 8), np.float32)
    cos, sin = tables(5, 4)
    wide = (torch.tensor(np.concatenate([table, table], -1))[None] for table in (cos, sin))
    expected, _ = modeling_llama.apply_rotary_pos_emb(torch.tensor(x), torch.tensor(x), *wide)
    np.testing.assert_allclose(run(rope(interleaved=False), x, cos, sin), expected, atol=1e-6)


@each("interleaved", [False, True])
@each("kind", [np.float16, ml_dtypes.bfloat16])
def test_small_floats_are_rotated_in_float32_and_rounded_once(kind: Any, interleaved: bool) -> None:
    x = np.random.default_rng(5).standard_normal((3, 8)).astype(kind)
    found = run(rope(interleaved), x, *tables(3, 3))
    wide = run(rope(interleaved), x.astype(np.float32), *tables(3, 3))
    np.testing.assert_array_equal(found, wide.astype(kind))


# Numbers of 16 bits are added up in 32: only the result is rounded.


COUNT = 10_000


@pytest.fixture(params=["float16", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return getattr(torch, request.param)


def positive(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(3)).to(dtype)


def assert_rounded_once(result: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    assert result.dtype is dtype
    assert result.shape == exact.shape
    # Additions in float32 may end on the other side of a middle, but no further away.
    allowed = (exact.to(dtype).double() - exact).abs() + 1e-5 * exact
    assert ((result.double() - exact).abs() <= allowed).all()


def test_additions_in_sixteen_bits_would_be_noticed(dtype: torch.dtype) -> None:
    numbers = positive(32, 8192, dtype=dtype)
    sums = numbers
    while sums.shape[1] > 1:
        sums = sums[:, ::2] + sums[:, 1::2]
    with pytest.raises(AssertionError):
        assert_rounded_once(sums[:, 0], numbers.double().sum(1), dtype)


@each("rows", [(), (1,), (5,), (2, 3)], ids=str)
@each("columns", [(), (1,), (7,)], ids=str)
@each("is_transposed", [False, True])
def test_a_matrix_product_is_rounded_once(
    dtype: torch.dtype, rows: tuple[int, ...], columns: tuple[int, ...], is_transposed: bool
) -> None:
    left = positive(*rows, COUNT, dtype=dtype)
    right = positive(COUNT, *columns, dtype=dtype)
    if is_transposed and columns:
        right = right.T.contiguous().T
    product = lower_matmul(left, right)
    assert_rounded_once(product, left.double() @ right.double(), dtype)


@pytest.mark.parametrize(("shape", "axis"), [((2, 5000), None), ((COUNT, 8), 0), ((8, COUNT), 1)])
def test_a_sum_is_rounded_once(
    dtype: torch.dtype, shape: tuple[int, int], axis: int | None
) -> None:
    numbers = positive(*shape, dtype=dtype)
    total = lower_reduce(numbers, function="sum", axis=axis, keepdims=False)
    exact = numbers.double().sum() if axis is None else numbers.double().sum(axis)
    assert_rounded_once(total, exact, dtype)


def test_many_ones_are_counted(dtype: torch.dtype) -> None:
    ones = torch.ones(COUNT, dtype=dtype)
    nearest = torch.tensor(float(COUNT)).to(dtype).item()
    total = lower_reduce(ones, function="sum", axis=None, keepdims=False)
    assert total.item() == nearest
    assert lower_matmul(ones, ones).item() == nearest


def test_a_mean_does_not_overflow_where_its_sum_would(dtype: torch.dtype) -> None:
    large = torch.full((COUNT,), 32768.0, dtype=dtype)
    mean = lower_reduce(large, function="mean", axis=None, keepdims=False)
    assert mean.item() == 32768


def test_shares_are_rounded_once(dtype: torch.dtype) -> None:
    numbers = positive(4, 1000, dtype=dtype) * 8
    shares = lower_softmax(numbers, axis=-1)
    assert_rounded_once(shares, numbers.double().softmax(-1), dtype)


# Casts round once, from all bits of the numbers that are cast.


# Half a step of float16 and of bfloat16 above 1, and so little more that float32 does not hold it.
ABOVE = {DType.float16: 2.0**-11, DType.bfloat16: 2.0**-8}


def cast(array: Array, dtype: DType) -> Array:
    return run(lambda x: x.cast(dtype), array).astype(np.float64)


@each("dtype", ABOVE)
@each("sign", [1, -1])
def test_what_is_just_beside_a_tie_goes_to_the_nearest(dtype: DType, sign: int) -> None:
    half, little = ABOVE[dtype], 2.0**-40
    given = sign * np.array([1 + half - little, 1 + half, 1 + half + little])
    expected = sign * np.array([1, 1, 1 + 2 * half])
    np.testing.assert_array_equal(cast(given, dtype), expected)


def test_doubles_become_halves_as_numpys_do() -> None:
    random = np.random.default_rng(5)
    halves = random.integers(0, 2**16, 20000).astype(np.uint16).view(np.float16).astype(np.float64)
    halves = halves[np.isfinite(halves)]
    ties = halves + np.abs(np.spacing(halves.astype(np.float16))).astype(np.float64) / 2
    given = np.concatenate([halves, ties, ties * (1 + 2.0**-45), ties * (1 - 2.0**-45)])
    edges = [0.0, -0.0, 65519.999999999, 65520.0, 1e300, -1e300, 1e-300, np.inf, -np.inf, np.nan]
    given = np.concatenate([given, edges])
    with np.errstate(over="ignore"):
        expected = given.astype(np.float16)
    found = run(lambda x: x.cast(DType.float16), given)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


@each("kind", [np.int32, np.int64])
def test_integers_just_beside_a_tie_go_to_the_nearest(kind: Any) -> None:
    # Steps of bfloat16 are 2**22 here, of which 1 more than a half is lost in float32.
    tie = 2**29 + 2**21
    given = np.array([tie - 1, tie, tie + 1, -tie - 1], kind)
    expected = np.array([2**29, 2**29, 2**29 + 2**22, -(2**29) - 2**22])
    np.testing.assert_array_equal(cast(given, DType.bfloat16), expected)


def test_the_largest_integers_are_rounded_once_too() -> None:
    tie = 2**62 + 2**54
    given = np.array([tie - 1, tie, tie + 1, -tie - 1, 2**63 - 1, -(2**63)])
    expected = [2.0**62, 2.0**62, 2.0**62 + 2.0**55, -(2.0**62) - 2.0**55, 2.0**63, -(2.0**63)]
    np.testing.assert_array_equal(cast(given, DType.bfloat16), expected)


@each(
    "dtype, expected",
    [
        (DType.float8_e4m3fn, [448, -448, 448]),
        (DType.float8_e5m2, [np.inf, -np.inf, np.inf]),
        (DType.float16, [np.inf, -np.inf, np.inf]),
    ],
)
def test_what_is_too_large_is_what_the_cast_says(dtype: DType, expected: list[float]) -> None:
    np.testing.assert_array_equal(cast(np.array([1e9, -1e9, np.inf], np.float32), dtype), expected)


def test_small_floats_of_8_bits_are_rounded_once() -> None:
    given = np.array([1 + 2.0**-4 + 2.0**-40, 1 + 2.0**-4])
    found = run(lambda x: x.cast(DType.float8_e4m3fn), given)
    np.testing.assert_array_equal(found, np.array([1.125, 1], ml_dtypes.float8_e4m3fn))
