"""Objects of any class are named and never created; the tensors in them are read."""

from __future__ import annotations

import copyreg
import datetime as dt
import enum
import functools
import io
import pathlib
import pickle
import uuid
from collections import OrderedDict, UserDict, deque
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import pytest

from each import each
from lazy import torch
from torch_checkpoints import FORMS, assert_same, here, look, saved
from weightctl import open_weights

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = [
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
    pytest.mark.filterwarnings("ignore:Couldn't retrieve source code"),
    pytest.mark.filterwarnings("ignore:.*quantize.*deprecated"),
]
ONES = [torch.ones(n) for n in range(10)]


class Color(enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    LARGE = 3


class Flags(enum.Flag):
    A = 1
    B = 2


class Point(NamedTuple):
    x: torch.Tensor
    y: int


@dataclass
class Settings:
    lr: float = 0.5
    tensor: torch.Tensor = field(default_factory=lambda: ONES[2])
    inner: Any = None


@dataclass(frozen=True, slots=True)
class Slotted:
    tensor: torch.Tensor
    name: str


class Slots:
    __slots__ = ("__dict__", "tensor")

    def __init__(self) -> None:
        self.tensor = ONES[3]
        self.more = ONES[4]


class Own:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __getstate__(self) -> Any:
        return self.parts

    def __setstate__(self, state: Any) -> None:
        self.parts = state


class Text:
    def __getstate__(self) -> Any:
        return "state"

    def __setstate__(self, state: Any) -> None:
        pass


class Reduced:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        return Reduced, self.parts


class Setter:
    def __reduce__(self) -> Any:
        return Setter, (), {"a": 1}, None, None, _set


def _set(target: Any, state: Any) -> None:
    target.__dict__.update(state)


class Keyed:
    def __new__(cls, *, size: int) -> Self:
        made = object.__new__(cls)
        made.size = size
        return made

    def __getnewargs_ex__(self) -> Any:
        return (), {"size": self.size}


class Mapping(dict[str, Any]):
    pass


class Ordered(OrderedDict[str, Any]):
    pass


class Sequence(list[Any]):
    pass


class Pair(tuple[Any, ...]):
    __slots__ = ()


class Number(int):
    pass


class Letters(str):
    __slots__ = ()


class Registered:
    pass


copyreg.pickle(Registered, lambda _: (Registered, ()))


def objects() -> dict[str, Any]:
    mapping, ordered, sequence = Mapping(w=ONES[1]), Ordered(w=ONES[2]), Sequence([ONES[3]])
    mapping.more = ONES[4]
    sequence.more = ONES[5]
    return {
        "enum": Color.RED,
        "int enum": Size.LARGE,
        "flags": Flags.A | Flags.B,
        "point": Point(ONES[6], 3),
        "settings": Settings(inner=Settings()),
        "slotted": Slotted(ONES[7], "x"),
        "slots": Slots(),
        "own tuple": Own(ONES[1], 2),
        "own nothing": Own(),
        "own text": Text(),
        "reduced": Reduced(ONES[2], "a", {"w": ONES[3]}),
        "setter": Setter(),
        "keyed": Keyed(size=4),
        "mapping": mapping,
        "ordered": ordered,
        "sequence": sequence,
        "pair": Pair((ONES[6], 2)),
        "number": Number(7),
        "letters": Letters("abc"),
        "registered": Registered(),
        "deque": deque([ONES[7], 1], 5),
        "user": UserDict({"w": ONES[8]}),
        "partial": functools.partial(Reduced, ONES[9], key=1),
        "path": pathlib.PurePosixPath("/home/x/a.ckpt"),
        "windows": pathlib.PureWindowsPath("C:\\models\\a.ckpt"),
        "long path": pathlib.PurePosixPath("/" + "a" * 300),
        "when": dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC),
        "day": dt.date(2024, 5, 1),
        "took": dt.timedelta(hours=3),
        "uuid": uuid.UUID(int=5),
        "decimal": Decimal("1.5"),
        "range": range(3),
        "slice": slice(1, 2),
        "function": io.BytesIO,
        "bound": str.upper,
        "lambda": len,
        "type": Settings,
        "ellipsis": ...,
        "error": ValueError("x"),
    }


EXPECTED = {
    "point.0": 6, "settings.tensor": 2, "settings.inner.tensor": 2, "slotted.state.0": 7,
    "slots.tensor": 3, "slots.more": 4, "own tuple.state.0": 1, "reduced.0": 2, "reduced.2.w": 3,
    "mapping.w": 1, "mapping.more": 4, "ordered.w": 2, "sequence.0": 3,
    "sequence.more": 5, "pair.0.0": 6, "deque.0": 7, "user.data.w": 8, "partial.state.1.0": 9,
}  # fmt: skip


@each("form", [*FORMS, "pickle"])
@each("protocol", range(6))
def test_tensors_in_objects_of_any_class_are_read(tmp_path: Path, form: str, protocol: int) -> None:
    content, path = objects(), tmp_path / "objects.pt"
    for name in ("slotted", "slots", "keyed", "setter", "ellipsis"):
        if protocol < 2:
            content.pop(name)
    if form == "pickle":
        path.write_bytes(pickle.dumps(content, protocol))
        weights = open_weights(path)
    else:
        weights = saved(path, content, form, pickle_protocol=protocol)
    expected = {
        name: ONES[count] for name, count in EXPECTED.items() if name.partition(".")[0] in content
    }
    if protocol < 2:
        # In these protocols, the contents of a tuple subclass are not nested in an argument.
        expected["pair.0"] = expected.pop("pair.0.0")
    assert_same(weights, expected)
    assert look(weights, "enum")[0] == here(Color)
    assert weights.metadata["path"] == ("string", "/home/x/a.ckpt")
    assert weights.metadata["windows"] == ("string", "C:\\models\\a.ckpt")
    assert look(weights, "when")[0] == "datetime.datetime"
    assert look(weights, "type") == ("class", here(Settings))
    assert any("does not import" in note for note in weights.header.notes)


def test_one_object_in_many_places_is_reported_once(tmp_path: Path) -> None:
    """An object with a thousand references is not visited a thousand times."""
    shared = Settings(tensor=None, inner={str(n): n for n in range(1000)})
    weights = saved(
        tmp_path / "shared.pt", {str(n): Settings(0.1, ONES[1], shared) for n in range(1000)}
    )
    assert look(weights, "0.inner") == (here(Settings), "")
    assert look(weights, "999.inner") == (here(Settings), "same as `0.inner`")
    assert weights.metadata["0.inner.inner.77"].content == 77
    assert len(weights.header.aliases) == 999


def test_what_holds_no_tensors_is_not_told_in_full_in_a_thousand_places(tmp_path: Path) -> None:
    shared = {f"key {number}": number / 2 for number in range(100)}
    content = [{"id": number, "about": shared, "w": ONES[1]} for number in range(1000)]
    weights = saved(tmp_path / "shared.pt", content)
    assert weights.metadata["0.about.key 7"].content == 3.5
    assert weights.metadata["999.id"].content == 999
    assert look(weights, "999.about")[0] == "reference"
    assert len(weights.header.leaves) < 5000


def test_objects_that_refer_to_one_another_end(tmp_path: Path) -> None:
    one, other = Settings(), Settings(tensor=ONES[3])
    one.inner, other.inner = other, one
    weights = saved(tmp_path / "loop.pt", {"one": one, "other": other})
    assert_same(
        weights,
        {
            "one.tensor": ONES[2],
            "one.inner.tensor": ONES[3],
            "other.tensor": ONES[3],
            "other.inner.tensor": ONES[2],
        },
    )
    assert look(weights, "one.inner.inner")[0] == "reference"


# Tensor subclasses.


class Marked(torch.Tensor):
    pass


class Wrapper(torch.Tensor):
    """A tensor without a storage of its own, as in torchao and DTensor."""

    @staticmethod
    def __new__(cls: type[Self], inner: torch.Tensor, _scale: torch.Tensor) -> Self:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=torch.float32)

    def __init__(self, inner: torch.Tensor, scale: torch.Tensor) -> None:
        self.inner, self.scale = inner, scale

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("form", FORMS)
def test_a_tensor_of_a_subclass_is_a_tensor(tmp_path: Path, form: str) -> None:
    marked = torch.randn(3, 2).as_subclass(Marked)
    marked.origin = "here"
    weights = saved(tmp_path / "marked.pt", {"w": marked, "t": marked.t()}, form)
    assert_same(
        weights, {"w": marked.as_subclass(torch.Tensor), "t": marked.as_subclass(torch.Tensor).t()}
    )


@pytest.mark.parametrize("form", FORMS)
def test_the_parts_of_a_tensor_that_wraps_others_are_below_it(tmp_path: Path, form: str) -> None:
    wrapper = Wrapper(torch.ones(4, dtype=torch.int8), torch.ones(1))
    weights = saved(tmp_path / "wrapper.pt", {"w": wrapper}, form)
    assert_same(weights, {"w.inner": wrapper.inner, "w.scale": wrapper.scale})
    assert look(weights, "w") == (here(Wrapper), "")


def test_a_quantized_module_is_read(tmp_path: Path) -> None:
    """Its packed weights are tuples in the state dict."""
    state = OrderedDict()
    q = torch.quantize_per_tensor(torch.randn(2, 3), 0.5, 0, torch.qint8)
    state["fc._packed_params.dtype"] = torch.qint8
    state["fc._packed_params._packed_params"] = (q, torch.randn(2))
    weights = saved(tmp_path / "q.pt", state)
    assert weights["fc._packed_params._packed_params.0"].info.encoding.name == "QINT8"
    assert look(weights, "fc._packed_params.dtype") == ("torch.dtype", "torch.qint8")
