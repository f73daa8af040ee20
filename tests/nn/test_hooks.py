from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from runs import graph_of, run
from small_modules import ROWS, Block, Scale, Stack, random_values
from weightctl.dtype import DType
from weightctl.errors import GraphError
from weightctl.graph import TensorType
from weightctl.graph.scope import layer_path
from weightctl.nn import Layer, LayerList, Module, add_layer_hook, clear_hooks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.graph import Value


@pytest.fixture(autouse=True)
def _without_hooks() -> Iterator[None]:
    clear_hooks()
    yield
    clear_hooks()


class Adding(Layer):
    """A layer of plain numbers."""

    def __call__(self, number: int, *, more: int = 1) -> int:
        return number + more


class Doubling(Adding):
    """A layer that leaves a part of its work to its base."""

    def __call__(self, number: int, *, more: int = 1) -> int:
        return 2 * super().__call__(number, more=more)


def paths_in(layer: Any, *args: Any) -> list[str]:
    """The path of each layer that is called, in the order in which they return."""
    paths: list[str] = []
    with add_layer_hook(lambda *_: paths.append(layer_path())):
        layer(*args)
    return paths


def test_a_hook_gets_the_layer_its_arguments_and_its_outputs() -> None:
    calls: list[Any] = []
    add_layer_hook(lambda *call: calls.append(call))
    layer = Adding()
    assert layer(3, more=2) == 5
    assert calls == [(layer, (3,), {"more": 2}, 5)]


def test_what_a_hook_returns_replaces_the_outputs_for_the_hooks_after_it_too() -> None:
    seen: list[int] = []
    add_layer_hook(lambda _layer, _args, _kwargs, outputs: outputs * 10)
    add_layer_hook(lambda _layer, _args, _kwargs, outputs: seen.append(outputs))
    assert Adding()(1) == 20
    assert seen == [20]


def test_a_hook_that_returns_nothing_leaves_the_outputs() -> None:
    add_layer_hook(lambda *_: None)
    assert Adding()(1) == 2


def test_an_output_of_zero_replaces() -> None:
    add_layer_hook(lambda *_: 0)
    assert Adding()(1) == 0


def test_clear_hooks_removes_all() -> None:
    add_layer_hook(lambda *_: 0)
    add_layer_hook(lambda *_: 1)
    clear_hooks()
    assert Adding()(1) == 2


def test_a_hook_of_a_with_is_gone_after_it_also_after_an_error() -> None:
    def fail() -> None:
        with add_layer_hook(lambda *_: 0):
            assert Adding()(1) == 0
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert Adding()(1) == 2


def test_of_a_function_that_was_added_twice_a_with_removes_one() -> None:
    calls: list[int] = []

    def hook(*_: Any) -> None:
        calls.append(1)

    add_layer_hook(hook)
    with add_layer_hook(hook):
        Adding()(1)
    Adding()(1)
    assert len(calls) == 3


def test_removing_a_hook_that_is_gone_does_nothing() -> None:
    hook = add_layer_hook(lambda *_: 0)
    clear_hooks()
    hook.remove()
    assert Adding()(1) == 2


def test_a_call_that_goes_on_in_the_base_is_one_call() -> None:
    calls: list[Any] = []
    add_layer_hook(lambda *call: calls.append(call[3]))
    assert Doubling()(1) == 4
    assert calls == [4]


def test_a_layer_that_calls_itself_is_called_twice() -> None:
    class Recursive(Layer):
        def __call__(self, depth: int) -> int:
            return depth if depth == 0 else self(depth - 1) + 1

    outputs: list[int] = []
    add_layer_hook(lambda *call: outputs.append(call[3]))
    assert Recursive()(2) == 2
    assert outputs == [0, 1, 2]


def test_a_call_inherited_from_a_layer_or_from_no_layer_is_seen_too() -> None:
    class Inherited(Adding):
        pass

    class Other:
        def __call__(self, number: int) -> int:
            return number

    class Mixed(Other, Layer):
        pass

    class MixedToo(Mixed):
        pass

    kinds: list[type] = []
    add_layer_hook(lambda layer, *_: kinds.append(type(layer)))
    Inherited()(1)
    Mixed()(1)
    MixedToo()(1)
    assert kinds == [Inherited, Mixed, MixedToo]


def test_a_call_that_was_wrapped_after_the_class_was_made_is_seen_once() -> None:
    class Wrapped(Adding):
        def __call__(self, number: int, *, more: int = 1) -> int:
            return super().__call__(number, more=more)

    inner = Wrapped.__call__
    Wrapped.__call__ = lambda self, number, **more: inner(self, number, **more) * 2  # type: ignore[method-assign]
    calls: list[Any] = []
    add_layer_hook(lambda *call: calls.append(call))
    assert Wrapped()(1) == 4
    assert len(calls) == 1


def test_hooks_added_and_removed_in_a_hook_count_from_the_next_call_on() -> None:
    calls: list[str] = []

    def second(*_: Any) -> None:
        calls.append("second")

    def first(*_: Any) -> None:
        calls.append("first")
        handle.remove()
        add_layer_hook(second)

    handle = add_layer_hook(first)
    layer = Adding()
    layer(1)
    layer(1)
    assert calls == ["first", "second"]


def test_a_hook_is_called_after_those_of_the_layers_inside() -> None:
    assert paths_in_stack() == [
        "layers.0.up", "layers.0.down", "layers.0", "layers.1.up", "layers.1.down", "layers.1",
        "head", "",
    ]  # fmt: skip


def paths_in_stack() -> list[str]:
    paths: list[str] = []
    with add_layer_hook(lambda *_: paths.append(layer_path())):
        graph_of(Stack(2), [ROWS])
    return paths


def test_what_is_not_a_function_is_not_a_hook() -> None:
    with pytest.raises(TypeError, match="a hook must be a function, not int"):
        add_layer_hook(3)  # type: ignore[arg-type]


def test_a_layer_without_a_call_says_so() -> None:
    with pytest.raises(NotImplementedError, match="Layer does not define `__call__`"):
        Layer()()


def test_a_call_keeps_its_name_and_documentation() -> None:
    assert Adding.__call__.__qualname__ == "Adding.__call__"


def test_an_error_leaves_no_layer_behind() -> None:
    class Failing(Layer):
        def __call__(self) -> None:
            raise KeyError

    class Outer(Layer):
        def __init__(self) -> None:
            self.inner = Failing()

        def __call__(self) -> None:
            self.inner()

    with pytest.raises(KeyError):
        Outer()()
    assert layer_path() == ""
    assert paths_in(Adding(), 1) == [""]


def test_an_error_in_a_hook_leaves_no_layer_behind() -> None:
    with add_layer_hook(lambda *_: 1 / 0), pytest.raises(ZeroDivisionError):
        Adding()(1)
    assert layer_path() == ""


def test_a_layer_that_no_attribute_leads_to_is_called_by_its_class() -> None:
    class Holder(Layer):
        def __init__(self) -> None:
            self.inner = Hidden()

        def __call__(self) -> None:
            self.inner()

    class Hidden(Layer):
        def __call__(self) -> None:
            Adding()(1)

    assert paths_in(Holder()) == ["inner.<Adding>", "inner", ""]
    assert paths_in(Hidden()) == ["<Adding>", ""]


def test_a_layer_that_is_made_during_a_call_has_its_path() -> None:
    class Lazy(Layer):
        def __init__(self) -> None:
            self.first = Adding()

        def __call__(self) -> None:
            self.first(1)
            self.second = Adding()
            self.second(1)

    assert paths_in(Lazy()) == ["first", "second", ""]


def test_the_graph_knows_the_layer_of_each_operation() -> None:
    graph = graph_of(Stack(1), [ROWS])
    paths = [node.path for node in graph.nodes if node.op == "arithmetic"]
    assert paths == ["layers.0.up", "layers.0.down", "layers.0", "head"]


def test_an_error_of_the_graph_names_the_layer() -> None:
    with pytest.raises(GraphError, match=r"mul of .* \(in layers\.0\.up\)"):
        graph_of(Stack(1), [TensorType(DType.float32, ("batch", 5))])


def test_threads_do_not_see_each_others_layers() -> None:
    barrier = threading.Barrier(2, timeout=10)

    class Meeting(Layer):
        def __init__(self) -> None:
            self.inner = Adding()

        def __call__(self) -> None:
            barrier.wait()
            self.inner(1)
            barrier.wait()

    paths: dict[int, list[str]] = {}

    def note(*_: Any) -> None:
        paths.setdefault(threading.get_ident(), []).append(layer_path())

    with add_layer_hook(note):
        threads = [threading.Thread(target=Meeting()) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert list(paths.values()) == [["inner", ""], ["inner", ""]]


def test_a_hook_replaces_a_value_in_the_graph() -> None:
    model = Stack(1)
    model.load_state_dict(random_values(model))
    x = np.ones((2, 4), np.float32)
    first = model.layers[0]

    def zeros(layer: Layer, _args: Any, _kwargs: Any, outputs: Value) -> Value | None:
        return outputs * 0 if layer is first else None

    plain = run(model, x)
    with add_layer_hook(zeros):
        replaced = run(model, x)
    assert plain.any()
    assert not replaced.any()


def test_what_a_hook_adds_to_the_graph_is_its_layers() -> None:
    with add_layer_hook(lambda layer, *rest: rest[2] * 2 if isinstance(layer, Scale) else None):
        graph = graph_of(Block(), [ROWS])
    assert [node.path for node in graph.nodes if node.op == "arithmetic"] == [
        "up", "up", "down", "down", "",
    ]  # fmt: skip


def test_a_list_of_layers_has_no_call() -> None:
    with pytest.raises(NotImplementedError, match="LayerList"):
        LayerList([Adding()])()


def test_a_module_is_a_layer_that_hooks_see() -> None:
    assert issubclass(Module, Layer)
    assert paths_in_stack()[-1] == ""
