"""Values are gone after their last use, weights after their operation."""

from __future__ import annotations

import copy
import gc
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event, get_ident
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import build
import engine_graphs
import runs
import watched_op
from arrays import stored, weights_of
from each import each
from engine_graphs import F32, counted, loaded, numbers, ran, stack, stack_weights
from graphics import on_a_gpu
from lazy import torch
from ready_children import run_ready
from runs import graph_of
from watched_op import watched
from weightctl import (
    DeviceRef,
    DType,
    Plan,
    QuantizationEncoding,
    WeightData,
    Weights,
    convert,
    open_weights,
    save,
)
from weightctl.dtype import ENCODINGS
from weightctl.engine import InferenceSession, bound_weights
from weightctl.engine.bound_weights import Arrival, WeightsAhead
from weightctl.engine.stored_weights import InFiles
from weightctl.errors import EngineError, FormatError
from weightctl.graph import Graph, TensorType, Value, Weight, ops
from weightctl.graph.ops import OPS
from weightctl.nn import Linear
from weightctl.plan.cast import cast
from weightctl.weights.data import FileBuffer
from weightctl.weights.info import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl import Buffer


FOLDERS = [str(Path(module.__file__).parent) for module in (engine_graphs, runs)]
LARGE = """
import sys
import numpy as np
from weightctl import open_weights
from weightctl.engine import InferenceSession
sys.path[:0] = {folders!r}
from engine_graphs import stack

def peak():
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1000

width = 1024
x = np.ones((1, width), np.float32)
tree = open_weights({path!r})
InferenceSession().load(stack(1, width), tree).execute(x)
peaks = [peak()]
data = {{name: node.data() for name, node in tree.items()}}
for registry, resident in ((tree, False), (data, False), (tree, True)):
    InferenceSession().load(stack(30, width), registry, resident=resident).execute(x)
    peaks.append(peak())
print(*np.diff(peaks))
"""


SMALL = """
import numpy as np
from weightctl import DType
from weightctl.engine import InferenceSession
from weightctl.graph import Graph, TensorType

def resident():
    with open("/proc/self/statm") as status:
        return int(status.read().split()[1]) * 4096 / 1e6

with Graph("small", [TensorType(DType.float32, ("n",))]) as graph:
    x = graph.inputs[0] + 1.0
    graph.output(x[:100_000] * 2.0, x[:1])
model, given = InferenceSession().load(graph), np.ones(4_000_000, np.float32)
kept = model.execute(given)
before = resident()
for _ in range(20):
    kept += model.execute(given)
print(resident() - before)
"""


@pytest.fixture(autouse=True)
def few_objects() -> None:
    """Keep what earlier tests have imported out of garbage collections, which take seconds."""
    gc.freeze()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Have the op `watched`: how many of its results are alive before each run of it."""
    monkeypatch.setitem(OPS, "watched", watched_op.WATCHED)
    watched_op.results.clear()
    watched_op.seen.clear()
    return watched_op.seen


def chain(length: int) -> Graph:
    with Graph("chain", [TensorType(F32, (4,))]) as graph:
        x: Value = graph.inputs[0]
        for _ in range(length):
            x = watched(x * 0.1)
        graph.output(x)
    return graph


def test_a_value_is_gone_after_its_last_use(seen: list[tuple[int, int]]) -> None:
    loaded(chain(6)).execute(np.zeros(4, np.float32))
    # What came before the last product is not there any more; nor is the product's operand.
    assert seen == [(0, number) for number in range(6)]


def test_a_value_that_is_used_again_stays_until_then(seen: list[tuple[int, int]]) -> None:
    with Graph("again", [TensorType(F32, (4,))]) as graph:
        first = watched(graph.inputs[0])
        second = watched(first * 1.0)
        third = watched(second + first)
        graph.output(watched(third * 1.0))
    loaded(graph).execute(np.zeros(4, np.float32))
    assert [count for count, _ in seen] == [0, 1, 0, 0]


def test_a_value_in_a_subgraph_is_gone_after_its_last_use(seen: list[tuple[int, int]]) -> None:
    with Graph("outer", [TensorType(F32, (4,))]) as graph:
        with graph.add_subgraph("inner", [TensorType(F32, (4,))]) as inner:
            inner.output(watched(watched(inner.inputs[0] * 0.1) * 0.1))
        x = watched(graph.inputs[0])
        for _ in range(3):
            (x,) = ops.call(inner, x)
        graph.output(x)
    loaded(graph).execute(np.zeros(4, np.float32))
    assert {count for count, _ in seen} == {0}


def test_nothing_of_a_run_stays_when_it_is_over(seen: list[tuple[int, int]]) -> None:
    model = loaded(chain(2))
    model.execute(np.zeros(4, np.float32))
    gc.collect()
    model.execute(np.zeros(4, np.float32))
    assert seen[2] == (0, 2)


def test_a_weight_that_is_used_again_far_away_is_read_again(tmp_path: Path) -> None:
    tree, reads = counted(
        open_weights(stored(tmp_path / "a.safetensors", a=numbers(2), b=numbers(2)))
    )
    a, b = Weight("a", F32, (2,)), Weight("b", F32, (2,))
    with Graph("far", [TensorType(F32, (2,))]) as graph:
        graph.output((graph.inputs[0] + a) * b - a)
    loaded(graph, tree).execute(np.ones(2, np.float32))
    assert reads == {"a": 2, "b": 1}


def test_a_weight_that_is_used_again_at_once_is_read_once(tmp_path: Path) -> None:
    tree, reads = counted(open_weights(stored(tmp_path / "a.safetensors", a=numbers(2))))
    a = Weight("a", F32, (2,))
    with Graph("near", [TensorType(F32, (2,))]) as graph:
        graph.output(ops.silu(graph.inputs[0] + a) * a + a)
    model = loaded(graph, tree)
    assert not reads
    model.execute(np.ones(2, np.float32))
    assert reads == {"a": 1}


def test_a_resident_weight_is_read_once_however_often_it_is_used(tmp_path: Path) -> None:
    tree, reads = counted(
        open_weights(stored(tmp_path / "a.safetensors", a=numbers(2), b=numbers(2)))
    )
    a, b = Weight("a", F32, (2,)), Weight("b", F32, (2,))
    with Graph("far", [TensorType(F32, (2,))]) as graph:
        graph.output((graph.inputs[0] + a) * b - a)
    model = loaded(graph, tree, resident=True)
    for _ in range(3):
        model.execute(np.ones(2, np.float32))
    assert reads == {"a": 1, "b": 1}


def test_streamed_weights_do_not_add_up_in_memory(tmp_path: Path) -> None:
    matrix = np.full((1024, 1024), 1e-3, np.float32)
    bias = np.zeros(1024, np.float32)
    arrays = {f"layers.{n}.w": matrix for n in range(30)}
    arrays |= {f"layers.{n}.b": bias for n in range(30)}
    path = stored(tmp_path / "a.safetensors", **arrays)
    program = LARGE.format(folders=FOLDERS, path=str(path))
    done = run_ready(program, imports=["torch"])
    assert done.returncode == 0, done.stderr
    # 30 matrices of 4.2 MB each: one or two at a time, of a tree or of its data, or all of them.
    streamed, mapped, resident = map(float, done.stdout.split())
    assert streamed < 30, done.stdout
    assert mapped < 30, done.stdout
    assert resident > 80, done.stdout


def test_small_outputs_that_are_kept_do_not_keep_the_memory_of_large_values() -> None:
    done = run_ready(SMALL, imports=["torch"])
    assert done.returncode == 0, done.stderr
    # 20 values of 16 MB each were made beside them.
    assert float(done.stdout) < 160, done.stdout


def test_weights_that_fit_into_memory_are_read_once(tmp_path: Path) -> None:
    # Each matrix has 8 * 8 * 4 bytes, and each bias 8 * 4.
    weights = engine_graphs.stack_weights()
    tree, reads = counted(open_weights(stored(tmp_path / "w.safetensors", **weights)))
    model = loaded(engine_graphs.stack(), tree, memory="600B")
    x = numbers(2, 8)
    first, second, third = (model.execute(x)[0].to_numpy() for _ in range(3))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, third)
    kept = {"layers.0.w": 1, "layers.0.b": 1, "layers.1.w": 1, "layers.1.b": 1, "layers.2.b": 3}
    # What is left of 600 bytes is too little for the last ones.
    assert reads == {**kept, "layers.2.w": 3}


@each("memory", [0, "1GB"])
def test_blocks_that_fit_into_memory_are_read_once(memory: int | str, tmp_path: Path) -> None:
    path = stored(tmp_path / "w.safetensors", w=numbers(6, 32))
    convert(path, tmp_path / "w.gguf", quant="Q8_0", fallback=False)
    tree, reads = counted(open_weights(tmp_path / "w.gguf"))
    with Graph("product", [TensorType(F32, ("n", 32))]) as graph:
        graph.output(graph.inputs[0] @ Weight("w", F32, (6, 32)).T)
    model = loaded(graph, tree, memory=memory)
    for rows in (1, 9, 2):
        model.execute(numbers(rows, 32))
    assert reads == {"w": 1 if memory else 3}


# Data that is a mapping of its file is read from the file until somebody else has its memory.


@pytest.fixture
def tree(tmp_path: Path) -> Weights:
    return open_weights(stored(tmp_path / "a.safetensors", weight=numbers(4, 4)))


def doubled() -> Graph:
    with Graph("doubled") as graph:
        graph.output(Weight("weight", F32, (4, 4)) * 2.0)
    return graph


def is_shared(data: WeightData) -> bool:
    buffer = data.to_buffer()
    assert isinstance(buffer, FileBuffer)
    return buffer.is_shared


@each("resident", [False, True])
def test_the_mapping_is_not_touched(tree: Weights, resident: bool) -> None:
    data = tree.weight.data()
    found = ran(doubled(), registry={"weight": data}, resident=resident)
    np.testing.assert_array_equal(found, numbers(4, 4) * 2)
    assert not is_shared(data)


def test_the_state_of_a_module_is_not_touched(tree: Weights) -> None:
    layer = Linear(4, 4)
    layer.load_state_dict(tree)
    data = layer.state_dict()["weight"]
    graph = graph_of(layer, [TensorType(F32, ("n", 4))])
    x = numbers(2, 4, seed=1)
    found = ran(graph, x, registry=layer.state_dict())
    np.testing.assert_allclose(found, x @ numbers(4, 4).T, rtol=1e-5, atol=1e-6)
    assert isinstance(data, WeightData)
    assert not is_shared(data)


def test_what_was_allocated_as_it_is_stored_is_not_touched(tree: Weights) -> None:
    with Graph("doubled") as graph:
        graph.output(tree.weight.allocate() * 2.0)
    (data,) = tree.allocated_weights.values()
    found = ran(graph, registry={"weight": data})
    np.testing.assert_array_equal(found, numbers(4, 4) * 2)
    assert isinstance(data, WeightData)
    assert not is_shared(data)


@each("resident", [False, True])
def test_numbers_that_were_written_are_used(tree: Weights, resident: bool) -> None:
    data = tree.weight.data()
    data.to_numpy()[0] = 7
    model = loaded(doubled(), {"weight": data}, resident=resident)
    assert model.execute()[0].to_numpy()[0].tolist() == [14] * 4


def test_numbers_that_are_written_between_runs_are_used(tree: Weights) -> None:
    data = tree.weight.data()
    model = loaded(doubled(), {"weight": data})
    model.execute()
    np.from_dlpack(data)[0] = 7
    assert model.execute()[0].to_numpy()[0].tolist() == [14] * 4


@each(
    "copied", [copy.copy, copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))],
    ids=["copy", "deepcopy", "pickle"],
)  # fmt: skip
def test_a_copy_has_memory_of_its_own(tree: Weights, copied: Callable[[Buffer], Buffer]) -> None:
    data = tree.weight.data()
    copied(data.to_buffer()).to_numpy()[:] = 7
    assert not is_shared(data)
    np.testing.assert_array_equal(data.to_numpy(), numbers(4, 4))


def test_two_names_of_one_mapping_both_see_what_is_written(tree: Weights) -> None:
    data = tree.weight.data()
    data.to_buffer()
    other = data.with_name("other")
    with Graph("two") as graph:
        graph.output(Weight("weight", F32, (4, 4)), Weight("other", F32, (4, 4)))
    model = loaded(graph, {"weight": data, "other": other})
    other.to_numpy()[:] = 7
    for found in model.execute():
        assert np.unique(found.to_numpy()).tolist() == [7]


def test_an_output_is_not_a_view_of_the_mapping(tree: Weights) -> None:
    data = tree.weight.data()
    with Graph("same") as graph:
        graph.output(Weight("weight", F32, (4, 4)))
    for memory in (None, data.to_numpy()):
        (found,) = loaded(graph, {"weight": data}).execute()
        assert memory is None or not np.shares_memory(found.to_numpy(), memory)
        found.to_numpy()[:] = 0
        np.testing.assert_array_equal(data.to_numpy(), numbers(4, 4))


def test_a_written_copy_of_a_tensor_is_not_taken_for_another(tree: Weights) -> None:
    written, plain = tree.weight.data(), tree.weight.data()
    written.to_numpy()[:] = 7
    with Graph("sum") as graph:
        graph.output(Weight("a", F32, (4, 4)), Weight("b", F32, (4, 4)))
    model = loaded(graph, {"a": written, "b": plain}, resident=True)
    one, other = model.execute()
    assert np.unique(one.to_numpy()).tolist() == [7]
    np.testing.assert_array_equal(other.to_numpy(), numbers(4, 4))


def test_a_file_that_changed_meanwhile_gives_no_answer(tree: Weights) -> None:
    model = loaded(doubled(), {"weight": tree.weight.data()})
    with open(tree.header.files[0], "ab") as file:
        file.write(b"more")
    with pytest.raises(FormatError, match="changed while it was read"):
        model.execute()


# The next weights are read on a thread; fakes stand in for the files and for the GPU here.


HERE = torch.device("cpu")
LIMIT = 30.0


class Place(InFiles):
    """A weight in no file."""

    def __init__(self, name: str) -> None:
        self.info = TensorInfo(name, (1,), ENCODINGS["U8"])

    @property
    def key(self) -> str:
        return self.info.name


class Reading:
    """A copy function that notes the order, and waits for `go`."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.begun, self.go = Event(), Event()

    def __call__(self, place: Any, device: torch.device) -> Arrival:
        assert device == HERE
        self.order.append(place.key)
        self.begun.set()
        assert self.go.wait(LIMIT)
        if place.key == "bad":
            raise EngineError("the file is gone")
        return Arrival(torch.tensor([len(self.order)], dtype=torch.uint8), None)


def places(*names: str) -> dict[Any, torch.device]:
    return {Place(name): HERE for name in names}


def test_weights_are_read_in_the_order_in_which_they_are_announced() -> None:
    reading = Reading()
    ahead = WeightsAhead(reading)
    reading.go.set()
    ahead.start(places("a", "b", "c"))
    found = [ahead.take(Place(name), HERE).raw().tolist() for name in ("c", "a", "b")]
    assert reading.order == ["a", "b", "c"]
    assert found == [[3], [1], [2]]


def test_a_weight_that_is_announced_twice_is_read_once() -> None:
    reading = Reading()
    ahead = WeightsAhead(reading)
    reading.go.set()
    ahead.start(places("a"))
    ahead.start(places("a", "b"))
    for name in ("a", "b"):
        ahead.take(Place(name), HERE)
    assert reading.order == ["a", "b"]


def test_only_the_weights_of_the_last_announcement_are_in_memory() -> None:
    reading = Reading()
    ahead = WeightsAhead(reading)
    ahead.start(places("a", "b"))
    assert reading.begun.wait(LIMIT)
    ahead.start(places("c"))
    reading.go.set()
    (place,) = places("b")
    # It was not being read yet, so it never is.
    assert ahead.take(place, HERE) is place
    assert ahead.take(Place("c"), HERE).raw().tolist() == [2]
    assert reading.order == ["a", "c"]


def test_a_weight_that_was_not_announced_is_read_where_it_is_stored() -> None:
    ahead = WeightsAhead(Reading())
    place = Place("a")
    assert ahead.take(place, HERE) is place


def test_an_error_is_raised_where_the_weight_is_used() -> None:
    reading = Reading()
    reading.go.set()
    ahead = WeightsAhead(reading)
    ahead.start(places("bad"))
    with pytest.raises(EngineError, match="the file is gone"):
        ahead.take(Place("bad"), HERE)
    ahead.start(places("bad"))
    ahead.stop()  # nobody uses it


@each("memory", [0, 700, "1MB"])
def test_a_run_that_reads_ahead_gives_the_same(
    memory: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, x = stack_weights(), numbers(5, 8)
    expected = ran(stack(), x, registry=weights)
    tree, reads = counted(open_weights(stored(tmp_path / "a.safetensors", **weights)))
    monkeypatch.setattr(bound_weights, "reads_ahead", lambda _: True)
    waiting: list[int] = []
    start: Any = WeightsAhead.start

    def watch(ahead: WeightsAhead, given: Any) -> None:
        waiting.append(len(given))
        start(ahead, given)

    monkeypatch.setattr(WeightsAhead, "start", watch)
    model = loaded(stack(), tree, memory=memory)
    for _ in range(2):
        np.testing.assert_array_equal(model.execute(x)[0].to_numpy(), expected)
    counts = set(reads.values())
    assert counts == ({2} if not memory else {1} if memory == "1MB" else {1, 2})
    assert max(waiting) == 1


def test_threads_that_run_one_graph_read_ahead_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, x = stack_weights(layers=8), numbers(5, 8)
    expected = ran(stack(8), x, registry=weights)
    monkeypatch.setattr(bound_weights, "reads_ahead", lambda _: True)
    users: dict[WeightsAhead, set[int]] = {}
    start: Any = WeightsAhead.start

    def watch(ahead: WeightsAhead, given: Any) -> None:
        users.setdefault(ahead, set()).add(get_ident())
        start(ahead, given)

    monkeypatch.setattr(WeightsAhead, "start", watch)
    model = loaded(stack(8), open_weights(stored(tmp_path / "a.safetensors", **weights)))
    together = Barrier(4)

    def run(_: int) -> Any:
        together.wait()
        return model.execute(x)[0].to_numpy()

    with ThreadPoolExecutor(4) as threads:
        for made in threads.map(run, range(4)):
            np.testing.assert_array_equal(made, expected)
    assert [len(each) for each in users.values()] == [1] * 4


@on_a_gpu
@each("memory", [0, "1MB"])
def test_weights_are_copied_to_a_gpu_while_it_computes(memory: int | str, tmp_path: Path) -> None:
    gpu, width, layers = DeviceRef.GPU(0), 512, 6
    weights = {
        name: array / 16 for name, array in stack_weights(layers=layers, width=width).items()
    }
    x = numbers(5, width)
    expected = ran(stack(layers, width), x, registry=weights)
    tree = open_weights(stored(tmp_path / "a.safetensors", **weights))
    model = InferenceSession([gpu]).load(stack(layers, width, gpu), tree, memory=memory)
    for _ in range(3):
        found = model.execute(x)[0].to_numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


# Of a table whose rows are picked only these are read.


INT64 = DType.int64


def picking(name: str = "w", width: int = 4, **options: Any) -> Graph:
    """Return a graph that picks rows of a table of eight."""
    with Graph("rows", [TensorType(INT64, ("a", "b"))]) as graph:
        graph.output(ops.embedding(Weight(name, F32, (8, width), **options), graph.inputs[0]))
    return graph


@pytest.fixture
def table(tmp_path: Path) -> tuple[Weights, dict[str, int]]:
    """Return a stored table, and how often it is read."""
    return counted(open_weights(stored(tmp_path / "a.safetensors", w=numbers(8, 4))))


def test_each_row_that_is_picked_is_read_once(table: tuple[Weights, dict[str, int]]) -> None:
    tree, reads = table
    ids = np.array([[3, 7, 3], [0, 3, 7]])
    np.testing.assert_array_equal(ran(picking(), ids, registry=tree), numbers(8, 4)[ids])
    assert reads == {"w": 3}


def test_no_row_is_read_where_none_is_picked(table: tuple[Weights, dict[str, int]]) -> None:
    tree, reads = table
    assert ran(picking(), np.zeros((2, 0), np.int64), registry=tree).shape == (2, 0, 4)
    assert not reads


@each("row", [8, -1, 2**62, -(2**63)])
def test_a_row_that_is_not_there_is_refused(
    table: tuple[Weights, dict[str, int]], row: int
) -> None:
    with pytest.raises(EngineError, match=r"embedding of float32\[8, 4\] and int64\[1, 2\]"):
        loaded(picking(), table[0]).execute(np.array([[0, row]]))


def test_a_resident_table_is_read_once_and_whole(table: tuple[Weights, dict[str, int]]) -> None:
    tree, reads = table
    model = loaded(picking(), tree, resident=True)
    for _ in range(2):
        model.execute(np.array([[3, 7]]))
    assert reads == {"w": 1}


def test_a_table_that_is_used_at_once_as_a_whole_is_read_once(
    table: tuple[Weights, dict[str, int]],
) -> None:
    tree, reads = table
    with Graph("tied", [TensorType(INT64, ("n",))]) as graph:
        weight = Weight("w", F32, (8, 4))
        graph.output(ops.embedding(weight, graph.inputs[0]) @ weight.T)
    whole = numbers(8, 4)
    found = ran(graph, np.array([5, 5]), registry=tree)
    np.testing.assert_allclose(found, whole[[5, 5]] @ whole.T, rtol=1e-5, atol=1e-6)
    assert reads == {"w": 1}


def test_rows_become_the_dtype_that_the_graph_has(tmp_path: Path) -> None:
    array = numbers(8, 4).astype(np.float16)
    tree, reads = counted(open_weights(stored(tmp_path / "a.safetensors", w=array)))
    found = ran(picking(), np.array([[6, 1]]), registry=tree)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, array[[[6, 1]]])
    assert reads == {"w": 2}


@each("width, count", [(6, 2), (5, 1)])
def test_rows_that_start_within_a_byte_are_not_read_by_themselves(
    tmp_path: Path, width: int, count: int
) -> None:
    raw = bytes(range(8 * width // 2))
    declared = {"w": {"dtype": "F4", "shape": [8, width], "data_offsets": [0, len(raw)]}}
    (tmp_path / "a.safetensors").write_bytes(build.safetensors(declared, raw))
    tree, reads = counted(open_weights(tmp_path / "a.safetensors"))
    found = ran(picking(width=width), np.array([[3, 1]]), registry=tree)
    assert reads == {"w": count}
    np.testing.assert_array_equal(found, tree.w.data().to_numpy().astype("f4")[[[3, 1]]])


@each("encoding", [None, QuantizationEncoding.Q8_0])
def test_rows_of_blocks_are_the_numbers_in_them(
    tmp_path: Path, encoding: QuantizationEncoding | None
) -> None:
    plan = Plan.copy(weights_of({"w.weight": numbers(8, 64)}), "gguf")
    save(cast(plan, ENCODINGS["Q8_0"]), tmp_path / "a.gguf")
    tree, reads = counted(open_weights(tmp_path / "a.gguf"))
    held = tree["w.weight"].data().astype(F32).to_numpy()
    graph = picking("w.weight", 64, quantization_encoding=encoding)
    np.testing.assert_array_equal(ran(graph, np.array([[6, 1]]), registry=tree), held[[[6, 1]]])
    assert reads == {"w.weight": 2}
