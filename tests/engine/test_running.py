"""Graphs give what NumPy says, and give it the same way each time."""

from __future__ import annotations

import re
import subprocess
import sys
from math import inf, nan
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from arrays import stored
from each import each
from engine_graphs import (
    CPU,
    F32,
    counted,
    loaded,
    numbers,
    ran,
    stack,
    stack_in_numpy,
    stack_weights,
)
from graphics import on_a_gpu
from lazy import torch
from watched_op import LYING, lying
from weightctl import DeviceRef, DType, open_weights
from weightctl.engine import InferenceSession
from weightctl.errors import EngineError
from weightctl.graph import Dim, Graph, TensorType, Value, Weight, ops
from weightctl.graph.ops import OPS, binary, quantized, value_checks
from weightctl.graph.ops.chosen_rows import number_chosen
from weightctl.graph.ops.lowering import torch_dtype
from weightctl.nn import MixtureOfExperts

if TYPE_CHECKING:
    from pathlib import Path

    from engine_graphs import Array


def test_a_graph_gives_what_numpy_says() -> None:
    x, weights = numbers(5, 8), stack_weights()
    np.testing.assert_allclose(
        ran(stack(), x, registry=weights), stack_in_numpy(x, weights), rtol=1e-5, atol=1e-6
    )


def test_streamed_and_resident_weights_give_the_same_bits(tmp_path: Path) -> None:
    tree = open_weights(stored(tmp_path / "a.safetensors", **stack_weights()))
    x = numbers(5, 8)
    streamed = ran(stack(), x, registry=tree)
    np.testing.assert_array_equal(streamed, ran(stack(), x, registry=tree, resident=True))
    np.testing.assert_array_equal(streamed, ran(stack(), x, registry=stack_weights()))


def test_a_run_gives_the_same_bits_each_time() -> None:
    x, graph = numbers(64, 256), stack(width=256)
    model = loaded(graph, stack_weights(width=256))
    first = model.execute(x)[0].to_numpy()
    for _ in range(3):
        np.testing.assert_array_equal(first, model.execute(x)[0].to_numpy())


def test_a_run_changes_no_state_of_torch() -> None:
    before = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_num_threads(),
              torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(),
              torch.random.get_rng_state().tolist())  # fmt: skip
    ran(stack(), numbers(5, 8), registry=stack_weights())
    after = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_num_threads(),
             torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(),
             torch.random.get_rng_state().tolist())  # fmt: skip
    assert before == after


def test_a_single_list_is_the_list_of_inputs() -> None:
    kind = TensorType(F32, (2,))
    with Graph("sum", [kind, kind]) as graph:
        graph.output(graph.inputs[0] + graph.inputs[1])
    one, other = np.ones(2, np.float32), np.full(2, 2, np.float32)
    for given in ((one, other), ([one, other],), ((one, other),)):
        assert loaded(graph).execute(*given)[0].to_numpy().tolist() == [3, 3]


def test_a_size_that_a_name_stands_for_is_known_to_operations() -> None:
    with Graph("sizes", [TensorType(F32, ("rows", "columns"))]) as graph:
        (x,) = graph.inputs
        graph.output(
            ops.range(Dim("rows") * 2),
            x.reshape((Dim("rows") * "columns",)),
            ops.dims(Dim("columns") + 1),
            x[: Dim("rows") - 1],
            x.broadcast_to((3, "rows", "columns")),
        )
    found = loaded(graph).execute(numbers(4, 5))
    assert [buffer.shape for buffer in found] == [(8,), (20,), (), (3, 5), (3, 4, 5)]
    assert int(found[2].to_numpy()) == 6


def test_what_nobody_needs_is_not_run_and_its_weights_are_not_read(tmp_path: Path) -> None:
    tree = open_weights(stored(tmp_path / "a.safetensors", used=numbers(2), unused=numbers(2)))
    tree, reads = counted(tree)
    with Graph("part") as graph:
        _ = Weight("unused", F32, (2,)) * 2.0
        graph.output(Weight("used", F32, (2,)) * 2.0)
    loaded(graph, tree).execute()
    assert reads == {"used": 1}


def test_what_is_printed_is_run_though_nobody_needs_it(capsys: pytest.CaptureFixture[str]) -> None:
    with Graph("seen", [TensorType(F32, (2,))]) as graph:
        (graph.inputs[0] * 2.0).print("twice")
        graph.output(graph.inputs[0])
    loaded(graph).execute(np.ones(2, np.float32))
    assert "twice" in capsys.readouterr().out


def test_an_output_is_not_a_view_of_an_input_a_weight_or_a_constant() -> None:
    weight, given = np.ones(3, np.float32), np.ones(3, np.float32)
    with Graph("same", [TensorType(F32, (3,))]) as graph:
        graph.output(graph.inputs[0], Weight("w", F32, (3,)), ops.constant([1.0, 1.0, 1.0]))
    for resident in (False, True):
        model = loaded(graph, {"w": weight}, resident=resident)
        for buffer in model.execute(given):
            buffer.to_numpy()[:] = 7
        assert [buffer.to_numpy().tolist() for buffer in model.execute(given)] == [[1, 1, 1]] * 3


def test_outputs_of_the_same_numbers_have_memory_of_their_own() -> None:
    with Graph("twice", [TensorType(F32, (2, 2))]) as graph:
        y = graph.inputs[0] * 2.0
        graph.output(y, y, y.reshape((4,)), y[:1])
    first, *others = loaded(graph).execute(np.ones((2, 2), np.float32))
    first.to_numpy()[:] = 7
    assert {number for other in others for number in other.to_numpy().ravel()} == {2.0}


def test_an_output_that_is_computed_is_handed_out_without_a_copy_and_can_be_written() -> None:
    with Graph("twice", [TensorType(DType.bfloat16, (2,))]) as graph:
        graph.output(graph.inputs[0] * 2.0)
    (buffer,) = loaded(graph).execute(torch.ones(2, dtype=torch.bfloat16))
    shared = torch.from_dlpack(buffer)
    shared += 1
    assert torch.from_dlpack(buffer).tolist() == [3, 3]
    assert buffer.device.kind == "cpu"


def test_numbers_of_less_than_32_bits_are_added_up_in_float32() -> None:
    ones = torch.ones(1, 4096, dtype=torch.bfloat16)
    with Graph("dot", [TensorType(DType.bfloat16, (1, 4096))]) as graph:
        (x,) = graph.inputs
        graph.output(x @ x.T)
    assert torch.from_dlpack(loaded(graph).execute(ones)[0]).item() == 4096


@each("name", ["float8_e4m3fn", "bfloat16", "float16", "int8", "bool"])
def test_a_value_of_every_size_goes_in_and_comes_out(name: str) -> None:
    given = torch.tensor([0, 1, 0, 1]).to(getattr(torch, name))
    with Graph("through", [TensorType(DType(name), (4,))]) as graph:
        graph.output(graph.inputs[0].reshape((2, 2)))
    (buffer,) = loaded(graph).execute(given)
    assert buffer.dtype is DType(name)
    assert torch.from_dlpack(buffer).float().tolist() == [[0, 1], [0, 1]]


# What cannot be run is refused in one clear error.


TYPES = [TensorType(F32, ("batch", 3)), TensorType(F32, ("batch", 3))]


def added(*types: TensorType) -> Graph:
    with Graph("added", types) as graph:
        graph.output(*(value * 2.0 for value in graph.inputs))
    return graph


@each(
    "inputs, says",
    [
        ([numbers(2, 3)], "takes 2 inputs, not 1"),
        ([numbers(2, 3), numbers(3)], r"input 1 is float32\[3\], .* expects float32\[batch, 3\]"),
        ([numbers(2, 3), numbers(2, 3).astype("f8")], r"input 1 is float64\[2, 3\].*float32 first"),
        ([numbers(2, 4), numbers(2, 3)], r"input 0 .* dimension 1 of .* must be 3, not 4"),
        ([numbers(2, 3), numbers(5, 3)], r"`batch` is 2 in input 0 and 5 in input 1"),
        ([numbers(2, 3), "text"], "input 1: str is not an array"),
        ([numbers(2, 3), np.array(["text"])], "input 1: no DType matches arrays of <U4"),
        ([numbers(2, 3), 1.0], "input 1: float is not an array"),
    ],
)  # fmt: skip
def test_an_input_that_does_not_fit_is_refused(inputs: list[Any], says: str) -> None:
    with pytest.raises(EngineError, match=f"(?s){says}"):
        loaded(added(*TYPES)).execute(*inputs)


@each(
    "dtype, fits, refused",
    [(F32, [1, 2.5, True], []), (DType.int8, [1, -3, True], [2.5, 300]),
     (DType.bool, [True], [1, 0.5]), (DType.uint8, [255], [-1, 256]),
     (DType.uint64, [2**53], [-1, 2**64]), (DType.int64, [-(2**63)], [2**63]),
     (DType.float16, [2048, 65504.0], [2049, 65536, 70000.0]),
     (F32, [2**24, inf, 1e30], [2**24 + 1, 1e300, 10**100]),
     (DType.float64, [2**53], [2**53 + 1, 10**400]),
     (DType.float8_e4m3fn, [448.0], [449, 1e9, inf])],
)  # fmt: skip
def test_numbers_are_inputs_of_rank_0_where_their_dtype_holds_them(
    dtype: DType, fits: list[float], refused: list[float]
) -> None:
    with Graph("scalar", [TensorType(dtype, ())]) as graph:
        graph.output(graph.inputs[0].cast(DType.float64))
    for number in fits:
        found = loaded(graph).execute(number)[0].to_numpy()
        assert found == torch.tensor(number, dtype=torch_dtype(dtype)).double()
    for number in refused:
        with pytest.raises(EngineError, match=f"input 0: .* cannot be stored in {dtype.value}"):
            loaded(graph).execute(number)


def test_a_number_that_a_float_rounds_is_an_input() -> None:
    with Graph("scalar", [TensorType(F32, ())]) as graph:
        graph.output(graph.inputs[0])
    assert loaded(graph).execute(0.1)[0].to_numpy() == np.float32(0.1)
    assert np.isnan(loaded(graph).execute(nan)[0].to_numpy())


def test_complex_numbers_are_inputs_of_rank_0() -> None:
    with Graph("scalar", [TensorType(DType.complex64, ())]) as graph:
        graph.output(graph.inputs[0])
    for number in (1, 1.5, 2 - 3j):
        assert loaded(graph).execute(number)[0].to_numpy() == number
    with pytest.raises(EngineError, match=r"1e\+300j cannot be stored in complex64"):
        loaded(graph).execute(1e300j)


def test_a_dimension_that_is_arithmetic_is_checked() -> None:
    model = loaded(added(TensorType(F32, ("n",)), TensorType(F32, (Dim("n") * 2,))))
    assert model.execute(numbers(2), numbers(4))[1].shape == (4,)
    with pytest.raises(
        EngineError, match=r"dimension 0 of float32\[2\*n\] must be 4 \(2\*n\), not 5"
    ):
        model.execute(numbers(2), numbers(5))


N, M = Dim("n"), Dim("m")


@each(
    "dim, says",
    [(N - 5, "n - 5 is less than 0 with n is 3"),
     (N // M, r"\(n // m\) divides by 0 with m is 0 and n is 3")],
    ids=str,
)  # fmt: skip
def test_a_dimension_that_comes_out_as_no_size_is_refused(dim: Dim, says: str) -> None:
    known = [TensorType(F32, ("n",)), TensorType(F32, ("m",))]
    given = [numbers(3), numbers(0)]
    model = loaded(added(*known, TensorType(F32, (dim,))))
    with pytest.raises(EngineError, match=f"dimension 0 of input 2, .*: {says}"):
        model.execute(*given, numbers(0))
    with Graph("sizes", known) as graph:
        graph.output(Value(dim))
    with pytest.raises(EngineError, match=f"dims: {says}"):
        loaded(graph).execute(*given)
    with Graph("calling", known) as graph:
        with graph.add_subgraph("called", [TensorType(F32, ("k",))]) as called:
            called.output(Value("k"))
        graph.output(*ops.call(called, ops.broadcast_to(ops.constant(1.0), (dim,))))
    with pytest.raises(EngineError, match=says):
        loaded(graph).execute(*given)


@each(
    "registry, says",
    [
        ([np.ones(2)], "weights_registry must be a mapping, not a list"),
        ("a.safetensors", "weights_registry must be a mapping, not a str"),
        ({0: np.ones(2)}, r"layers\.0\.w`: missing"),
    ],
)
def test_what_is_not_a_registry_is_refused(registry: Any, says: str) -> None:
    with pytest.raises(EngineError, match=says):
        loaded(stack(1), registry)


def test_what_is_not_a_graph_is_refused() -> None:
    with pytest.raises(EngineError, match="NoneType is not a graph"):
        InferenceSession().load(None)  # type: ignore[arg-type]


def test_a_session_takes_one_device_or_several() -> None:
    for given in (CPU, [CPU], "cpu", ["cpu"]):
        assert InferenceSession(given).devices == (CPU,)


@each("devices", ["tpu", ["tpu"], None, lambda: [torch.device("cpu")]], ids=str)
def test_what_is_not_a_device_is_refused(devices: Any) -> None:
    with pytest.raises(EngineError, match=r"(?s)is not a device.*DeviceRef\.CPU\(\)"):
        InferenceSession(devices() if callable(devices) else devices)


def test_a_name_that_no_input_gives_a_size_is_refused() -> None:
    model = loaded(added(TensorType(F32, (Dim("n") * 2,))))
    with pytest.raises(
        EngineError, match=r"the size of `n`, on which 2\*n depends, is not defined"
    ):
        model.execute(numbers(4))


def test_a_graph_without_outputs_is_refused() -> None:
    with Graph("nothing", [TensorType(F32, (2,))]) as graph:
        pass
    with pytest.raises(EngineError, match=r"(?s)has no outputs.*graph\.output"):
        loaded(graph)


def test_an_id_that_a_table_lacks_is_reported_with_the_operation_and_the_shapes() -> None:
    with Graph("rows", [TensorType(F32, (3, 2)), TensorType(DType.int64, ("n",))]) as graph:
        table, ids = graph.inputs
        graph.output(ops.embedding(table, ids))
    message = r"embedding of float32\[3, 2\] and int64\[1\]: row 7 does not exist"
    with pytest.raises(EngineError, match=message):
        loaded(graph).execute(numbers(3, 2), np.array([7]))


def test_what_torch_refuses_is_reported_with_the_operation_and_the_shapes() -> None:
    with Graph("top", [TensorType(F32, ("n",))]) as graph:
        graph.output(*ops.top_k(graph.inputs[0], 9))
    with pytest.raises(EngineError, match=r"top_k of float32\[4\]: ") as caught:
        loaded(graph).execute(numbers(4))
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_what_fails_in_a_layer_names_the_layer() -> None:
    from weightctl.nn import Embedding, LayerList, Module

    class Model(Module):
        def __init__(self) -> None:
            self.layers = LayerList([Embedding(3, 2)])

        def __call__(self, ids: Any) -> Any:
            return self.layers[0](ids)

    model = Model()
    with Graph("rows", [TensorType(DType.int64, ("n",))]) as graph:
        model.raw_state_dict()
        graph.output(model(graph.inputs[0]))
    with pytest.raises(EngineError, match=r"embedding of .* \(in layers\.0\)"):
        loaded(graph, {"layers.0.weight": numbers(3, 2)}).execute(np.array([7]))


@each(
    "result, says",
    [(torch.zeros(3), r"gave float32\[3\] instead of float32\[2\]"),
     (torch.zeros(2, dtype=torch.float64), r"gave float64\[2\]"),
     ((torch.zeros(2), torch.zeros(2)), "the operation gave 2 results instead of 1")],
)  # fmt: skip
def test_a_result_that_is_not_what_was_inferred_is_refused(
    result: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OPS, "lying", LYING)
    with Graph("wrong", [TensorType(F32, (2,))]) as graph:
        graph.output(lying(graph.inputs[0], result))
    with pytest.raises(EngineError, match=f"lying of float32\\[2\\]: .*{says}"):
        loaded(graph).execute(numbers(2))


def test_a_graph_on_a_device_that_the_session_lacks_is_refused() -> None:
    for device in (DeviceRef.GPU(0), DeviceRef.CPU(1)):
        with pytest.raises(EngineError, match=rf"(?s)placed on {device}.*has cpu:0.*DeviceRef\."):
            InferenceSession([CPU]).load(stack(device=device), stack_weights())


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built with CUDA")
def test_a_gpu_is_refused_where_torch_is_built_without_cuda() -> None:
    with pytest.raises(EngineError, match=r"(?s)gpu:0 .* without GPU support.*hint: install"):
        InferenceSession([DeviceRef.GPU(0)])


@each(
    "count, says",
    [(0, "gpu:1 .* finds no GPU"), (1, "gpu:1 is not available")],
)  # fmt: skip
def test_a_gpu_that_is_not_there_is_refused(
    count: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(EngineError, match=says):
        InferenceSession([DeviceRef.CPU(), DeviceRef.GPU(0), DeviceRef.GPU(1)])


def test_a_device_of_no_known_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="'tpu' is not a device kind"):
        InferenceSession([DeviceRef("tpu")])


def test_without_torch_the_hint_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from weightctl.engine import InferenceSession\n"
        "from weightctl.errors import EngineError\n"
        "try: InferenceSession()\n"
        "except EngineError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "`pip install 'torch>=2.6'`" in done.stdout


def test_the_engine_is_imported_without_torch_or_numpy() -> None:
    program = (
        "import sys, weightctl.engine.session\nsys.exit(str({'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == "set()"


# Values on a GPU are checked once, at the end of a run; the CPU stands in for the GPU here.


GPU, INT64 = DeviceRef.GPU(0), DType.int64


@pytest.fixture
def delayed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Treat all tensors as those of a GPU; return how many checks were read at a time."""
    read: list[int] = []
    stack = torch.stack

    def watch(tensors: Any, *rest: Any) -> Any:
        read.append(len(tensors))
        return stack(tensors, *rest)

    for module in (value_checks, binary, quantized):
        monkeypatch.setattr(module, "is_on_gpu", lambda _: True)
    monkeypatch.setattr("torch.stack", watch)
    return read


def picking(device: DeviceRef = CPU) -> Graph:
    """Return a graph that picks rows of a table of eight, twice, and divides the numbers."""
    with Graph("rows", [TensorType(INT64, ("n",), device)] * 2) as graph:
        ids, divisors = graph.inputs
        table = Weight("w", F32, (8, 4), device)
        rows = ops.embedding(table, ids) + ops.embedding(table, ids)
        graph.output(rows, ids // divisors, ids % divisors)
    return graph


def run(ids: list[int], divisors: list[int], device: DeviceRef = CPU) -> list[Any]:
    model = InferenceSession([device]).load(picking(device), {"w": numbers(8, 4)}, resident=True)
    found = model.execute(np.array(ids), np.array(divisors))
    return [each.to_numpy() for each in found]


def test_all_checks_of_a_run_are_read_together(delayed: list[int]) -> None:
    rows, quotients, rests = run([3, 7, 0], [2, 3, 1])
    np.testing.assert_array_equal(rows, 2 * numbers(8, 4)[[3, 7, 0]])
    assert quotients.tolist() == [1, 2, 0]
    assert rests.tolist() == [1, 1, 0]
    assert delayed == [4]


@pytest.mark.parametrize("row", [8, -1, 2**62, -(2**63)])
def test_a_row_that_does_not_exist_is_an_error_of_its_operation(
    delayed: list[int], row: int
) -> None:
    with pytest.raises(EngineError, match=r"embedding of .*: a row does not exist") as refusal:
        run([0, row], [1, 1])
    assert refusal.value.hint == "the table has rows 0 to 7"
    assert delayed == [4]


def test_the_first_error_is_raised(delayed: list[int]) -> None:
    with pytest.raises(EngineError, match="embedding"):
        run([9, 1], [0, 1])
    with pytest.raises(EngineError, match=r"floordiv of int64\[2\] and .*: integers are divided"):
        run([7, 1], [0, 1])
    assert delayed


@pytest.mark.usefixtures("delayed")
@each("rows", [0, 3])
def test_no_rows_need_no_table(rows: int) -> None:
    with Graph("rows", [TensorType(INT64, ("n",))]) as graph:
        graph.output(ops.embedding(Weight("w", F32, (rows, 4)), graph.inputs[0]))
    model = loaded(graph, {"w": numbers(rows, 4)}, resident=True)
    assert model.execute(np.zeros(0, np.int64))[0].shape == (0, 4)
    if not rows:
        with pytest.raises(EngineError, match="row 0 does not exist"):
            model.execute(np.zeros(1, np.int64))


@each("function", [ops.floordiv, ops.mod])
def test_integers_are_not_divided_by_zero(function: Any) -> None:
    kind = TensorType(INT64, (2,))
    with Graph("quotients", [kind, kind]) as graph:
        graph.output(function(*graph.inputs))
    with pytest.raises(EngineError, match="integers are divided by 0"):
        loaded(graph).execute(np.array([1, 2]), np.array([1, 0]))


def test_a_constant_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with Graph("sum", [TensorType(F32, (2,))]) as graph:
        constant = ops.constant([1.0, 2.0])
        graph.output(graph.inputs[0] + constant, constant)
    made: list[Any] = []
    from torch.utils import dlpack

    take: Any = dlpack.from_dlpack
    monkeypatch.setattr(dlpack, "from_dlpack", lambda data: made.append(data) or take(data))
    model = loaded(graph)
    for _ in range(3):
        total, alone = model.execute(np.zeros(2, np.float32))
        np.testing.assert_array_equal(total.to_numpy(), [1, 2])
        # An output is not the constant itself, which further runs use.
        alone.to_numpy()[:] = 7
    assert len(made) == 1


@on_a_gpu
def test_bad_values_on_a_gpu_are_errors_and_the_gpu_works_on() -> None:
    for ids, divisors in (([9], [1]), ([-1], [1]), ([1], [0])):
        with pytest.raises(EngineError, match=r"a row does not exist|are divided by 0"):
            run(ids, divisors, GPU)
    assert run([7], [2], GPU)[1].tolist() == [3]


# Subgraphs give what their operations would give in the place of the call.


def layered(layers: int = 3, width: int = 8) -> Graph:
    """Return the graph of `stack` with the layer in it once."""
    with Graph("layered", [TensorType(F32, ("batch", width))]) as graph:
        kind = TensorType(F32, ("rows", width))
        with graph.add_subgraph("layer", [kind], "layers.0.") as layer:
            weight = Weight("layers.0.w", F32, (width, width))
            bias = Weight("layers.0.b", F32, (width,))
            layer.output(ops.silu(layer.inputs[0] @ weight.T + bias))
        x: Value = graph.inputs[0]
        for number in range(layers):
            (x,) = ops.call(layer, x, prefix=f"layers.{number}.")
        graph.output(x)
    return graph


def test_calls_give_the_bits_of_layers_in_a_row() -> None:
    x, weights = numbers(5, 8), stack_weights()
    for resident in (False, True):
        inlined = ran(stack(), x, registry=weights, resident=resident)
        called = ran(layered(), x, registry=weights, resident=resident)
        np.testing.assert_array_equal(called, inlined)


def test_each_call_has_the_weights_of_its_prefix(tmp_path: Path) -> None:
    tree, reads = counted(open_weights(stored(tmp_path / "a.safetensors", **stack_weights())))
    x = numbers(5, 8)
    np.testing.assert_allclose(
        ran(layered(), x, registry=tree), stack_in_numpy(x, stack_weights()), rtol=1e-5, atol=1e-6
    )
    assert reads == dict.fromkeys(stack_weights(), 1)


def test_a_missing_weight_of_a_call_is_named_whole() -> None:
    weights = stack_weights()
    del weights["layers.2.b"]
    with pytest.raises(EngineError, match=re.escape("`layers.2.b`: missing")):
        loaded(layered(), weights)


def test_prefixes_of_nested_calls_are_put_together() -> None:
    kind = TensorType(F32, (2,))
    with Graph("outer", [kind]) as graph:
        with graph.add_subgraph("block", [kind], "blocks.0.") as block:
            with block.add_subgraph("part", [kind], "blocks.0.parts.0.") as part:
                part.output(part.inputs[0] + Weight("blocks.0.parts.0.w", F32, (2,)))
            (x,) = ops.call(part, block.inputs[0], prefix="blocks.0.parts.0.")
            (x,) = ops.call(part, x, prefix="blocks.0.parts.1.")
            (x,) = ops.call(part, x, prefix="shared.")
            block.output(x + Weight("fixed", F32, (2,)))
        (x,) = ops.call(block, graph.inputs[0], prefix="blocks.0.")
        (x,) = ops.call(block, x, prefix="blocks.7.")
        graph.output(x)
    names = {
        "blocks.0.parts.0.w": 1, "blocks.0.parts.1.w": 2, "blocks.7.parts.0.w": 4,
        "blocks.7.parts.1.w": 8, "shared.w": 16, "fixed": 32,
    }  # fmt: skip
    weights = {name: np.full(2, value, np.float32) for name, value in names.items()}
    found = ran(graph, np.zeros(2, np.float32), registry=weights)
    assert found.tolist() == [15 + 2 * 48] * 2


def test_names_of_dimensions_are_those_of_each_call() -> None:
    with Graph("outer", [TensorType(F32, ("a", "b"))]) as graph:
        with graph.add_subgraph("flat", [TensorType(F32, ("rows", "columns"))]) as flat:
            (x,) = flat.inputs
            flat.output(x.reshape((Dim("rows") * "columns",)), ops.range(Dim("rows") + 1))
        (x,) = graph.inputs
        one, first = ops.call(flat, x)
        other, second = ops.call(flat, ops.concat([x.T, x.T]))
        graph.output(one, other, first, second)
    found = loaded(graph).execute(numbers(2, 3))
    assert [buffer.shape for buffer in found] == [(6,), (12,), (3,), (7,)]


def test_what_a_call_gives_to_nobody_is_not_run(tmp_path: Path) -> None:
    tree, reads = counted(
        open_weights(stored(tmp_path / "a.safetensors", a=numbers(2), b=numbers(2)))
    )
    kind = TensorType(F32, (2,))
    with Graph("outer", [kind]) as graph:
        with graph.add_subgraph("pair", [kind]) as pair:
            x = pair.inputs[0]
            pair.output(x + Weight("a", F32, (2,)), x + Weight("b", F32, (2,)))
        graph.output(ops.call(pair, graph.inputs[0])[0])
    loaded(graph, tree).execute(np.zeros(2, np.float32))
    assert reads == {"a": 1}


def test_a_failure_in_a_call_says_which_call_it_was() -> None:
    kind = TensorType(F32, (3, 2))
    with Graph("outer", [kind]) as graph:
        with graph.add_subgraph("rows", [kind], "layers.0.") as rows:
            table = Weight("layers.0.w", F32, (3, 2))
            rows.output(ops.embedding(table, rows.inputs[0].cast(DType.int64)))
        graph.output(*ops.call(rows, graph.inputs[0], prefix="layers.4."))
    model = loaded(graph, {"layers.4.w": numbers(3, 2)})
    with pytest.raises(EngineError, match=r"embedding of .*called as rows for `layers\.4\.`"):
        model.execute(np.full((3, 2), 99, np.float32))


# Operations on chosen rows: those of a column that chooses none do not run, nor read weights.


COLUMNS = 3


def mixing(*, keeps: bool = False) -> Graph:
    """Return a graph that multiplies the rows that a column chooses by its weight, and adds up."""
    with Graph("mixing", [TensorType(F32, ("n", 4)), TensorType(F32, ("n", COLUMNS))]) as graph:
        x, shares = graph.inputs
        chosen = ops.chosen_rows(shares)
        made = []
        for column, rows in enumerate(chosen):
            weight = Weight(f"w{column}", F32, (4, 4))
            share = ops.embedding(shares[:, column : column + 1], rows)
            made.append(ops.relu(ops.embedding(x, rows) @ weight.T) * share)
        total = ops.sum_rows(ops.concat(made), ops.concat(chosen), count=x.shape[0])
        graph.output(total, *(made if keeps else ()))
    return graph


@pytest.fixture
def weights() -> dict[str, Array]:
    return {f"w{column}": numbers(4, 4, seed=column) for column in range(COLUMNS)}


def expected(x: Array, shares: Array, weights: dict[str, Array]) -> Array:
    parts = [np.maximum(x @ weights[f"w{n}"].T, 0) * shares[:, n : n + 1] for n in range(COLUMNS)]
    return np.asarray(sum(parts))


@each("used, reads", [((0, 2), {"w0": 1, "w2": 1}), ((1,), {"w1": 1}), ((), {})])
def test_weights_of_a_column_that_chooses_no_row_are_not_read(
    used: tuple[int, ...], reads: dict[str, int], weights: dict[str, Array], tmp_path: Path
) -> None:
    tree, seen = counted(open_weights(stored(tmp_path / "w.safetensors", **weights)))
    x, shares = numbers(5, 4, seed=9), np.zeros((5, COLUMNS), np.float32)
    for row in range(5):
        for column in used[: row % len(used) + 1] if used else ():
            shares[row, column] = 0.25 + row
    found = ran(mixing(), x, shares, registry=tree)
    np.testing.assert_allclose(found, expected(x, shares, weights), rtol=1e-5, atol=1e-6)
    assert seen == reads


def test_empty_results_of_operations_that_did_not_run_can_be_outputs(
    weights: dict[str, Array],
) -> None:
    shares = np.array([[0, 1, 0]], np.float32)
    outputs = loaded(mixing(keeps=True), weights).execute(numbers(1, 4), shares)
    assert [each.shape for each in outputs] == [(1, 4), (0, 4), (1, 4), (0, 4)]


def test_every_run_chooses_its_own_rows(weights: dict[str, Array]) -> None:
    model, x = loaded(mixing(), weights), numbers(2, 4)
    for column in range(COLUMNS):
        shares = np.zeros((2, COLUMNS), np.float32)
        shares[column % 2, column] = 1
        (found,) = model.execute(x, shares)
        wanted = expected(x, shares, weights)
        np.testing.assert_allclose(found.to_numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_one_expert_of_a_mixture_can_be_all() -> None:
    module = MixtureOfExperts(8, 4, "silu", count=1, used=1)
    module.name_weights()
    with Graph("one", [TensorType(F32, ("batch", "seq", 8))]) as graph:
        graph.output(module(graph.inputs[0]))
    registry = {
        name: numbers(*weight.original_dtype_and_shape[1].sizes)
        for name, weight in module.raw_state_dict().items()
    }
    x = numbers(2, 3, 8)
    gate, up, down = (registry[f"experts.0.{name}.weight"] for name in ("gate", "up", "down"))
    gated = x @ gate.T
    wanted = (gated / (1 + np.exp(-gated)) * (x @ up.T)) @ down.T
    np.testing.assert_allclose(ran(graph, x, registry=registry), wanted, rtol=1e-4, atol=1e-5)


def test_on_a_gpu_the_same_rows_are_found_without_waiting_for_it() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    for shape in ((7, 40), (3, 1), (4, 0)):
        chosen = torch.from_numpy(rng.integers(0, 2, shape) != 0)
        count = int(chosen.sum())
        found = number_chosen(chosen, count)
        assert found.tolist() == chosen.nonzero()[:, 1].tolist()
    # Elements on the device `meta` have no values that could be read.
    assert number_chosen(torch.ones(2, 3, dtype=torch.bool, device="meta"), 4).shape == (4,)
