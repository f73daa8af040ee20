"""What cannot be run is refused in one clear error."""

from __future__ import annotations

import subprocess
import sys
from math import inf, nan
from typing import Any

import numpy as np
import pytest
import torch

from each import each
from engine_graphs import CPU, F32, loaded, numbers, stack, stack_weights
from watched_op import LYING, lying
from weightctl import DeviceRef, DType
from weightctl.engine import InferenceSession
from weightctl.errors import EngineError
from weightctl.graph import Dim, Graph, TensorType, Value, ops
from weightctl.graph.ops import OPS
from weightctl.graph.ops.lowering import torch_dtype

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
    assert InferenceSession(CPU).devices == InferenceSession([CPU]).devices == (CPU,)


@each("devices", ["cpu", ["cpu"], None, [torch.device("cpu")]], ids=str)
def test_what_is_not_a_device_is_refused(devices: Any) -> None:
    with pytest.raises(EngineError, match=r"(?s)is not a device.*DeviceRef\.CPU\(\)"):
        InferenceSession(devices)


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
    assert "pip install 'weightctl[torch]'" in done.stdout


def test_the_engine_is_imported_without_torch_or_numpy() -> None:
    program = (
        "import sys, weightctl.engine.session\nsys.exit(str({'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == "set()"
