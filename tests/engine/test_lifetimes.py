"""Values are gone after their last use, weights after their operation."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import engine_graphs
import watched_op
from arrays import stored
from each import each
from engine_graphs import F32, counted, loaded, numbers
from watched_op import watched
from weightctl import convert, open_weights
from weightctl.graph import Graph, TensorType, Value, Weight, ops
from weightctl.graph.ops import OPS

LARGE = """
import sys
import numpy as np
from weightctl import open_weights
from weightctl.engine import InferenceSession
sys.path.insert(0, {folder!r})
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
    program = LARGE.format(folder=str(Path(engine_graphs.__file__).parent), path=str(path))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    # 30 matrices of 4.2 MB each: one or two at a time, of a tree or of its data, or all of them.
    streamed, mapped, resident = map(float, done.stdout.split())
    assert streamed < 30, done.stdout
    assert mapped < 30, done.stdout
    assert resident > 80, done.stdout


def test_small_outputs_that_are_kept_do_not_keep_the_memory_of_large_values() -> None:
    done = subprocess.run([sys.executable, "-c", SMALL], capture_output=True, text=True, check=True)
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
