"""A scan names all globals that CPython's unpicklers in C and Python look up in any pickle."""

from __future__ import annotations

import io
import pickle
import warnings
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from each import each
from payloads import TRICKS, call, frame, named, stacked, text
from weightctl.formats.pickles.dangers import is_dangerous
from weightctl.formats.pickles.scan import MADE_UP, names
from weightctl.storage.base import HeldRange


class Stub:
    """A stand-in for any global: it can be called, and accepts any state."""

    def __init__(self, *_: object, **__: object) -> None:
        self.items: list[object] = []

    def __call__(self, *_: object, **__: object) -> Stub:
        return Stub()

    def __setstate__(self, state: object) -> None:
        pass

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def append(self, element: object) -> None:
        pass


class InC(pickle.Unpickler):
    def __init__(self, raw: bytes) -> None:
        super().__init__(io.BytesIO(raw))
        self.found: list[str] = []

    def find_class(self, module: str, name: str) -> Any:
        if not module or not name:
            raise ImportError  # as Python does
        self.found.append(f"{module}.{name}")
        return Stub

    def persistent_load(self, pid: object) -> object:
        return pid


class InPython(pickle._Unpickler):  # type: ignore[name-defined,misc]
    def __init__(self, raw: bytes) -> None:
        super().__init__(io.BytesIO(raw))
        self.found: list[str] = []

    find_class = InC.find_class
    persistent_load = InC.persistent_load


def looked_up(unpickler: Any) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            unpickler.load()
        except Exception:  # noqa: BLE001  # how it fails is not asked
            return unpickler.found
    return unpickler.found


def assert_all_named(raw: bytes) -> None:
    # LONG_BINPUT makes C's memo as large as its argument states: many gigabytes.
    raw = raw.replace(b"r", b"s")
    found = {each.path for each in names(HeldRange(memoryview(raw))).named}
    for unpickler in (InC(raw), InPython(raw)):
        for path in looked_up(unpickler):
            known = path.replace("__builtin__.", "builtins.").replace("copy_reg.", "copyreg.")
            assert known in found or MADE_UP in found, (path, raw)


OBJECT = OrderedDict(a=[1, 2.5, None, "text", b"raw", (1, 2)], b={"c": OrderedDict(x=1 << 17)})
SEEDS = [
    *(pickle.dumps(OBJECT, protocol) for protocol in (0, 2, 4)),
    *TRICKS.values(),
    b"\x80\x04" + frame(30) + call(stacked("os", "system"), text("a")) + b".",
]
OPCODES = [bytes([each.code.encode("latin-1")[0]]) for each in __import__("pickletools").opcodes]
PIECES = st.one_of(
    st.sampled_from(OPCODES),
    st.binary(max_size=4),
    st.sampled_from([
        named("a.b"), stacked("c", "d"), text("e"), b"p1\0x\n", b"g1\n", b"S'\\q'\n", b"I1\0\n",
        b"q\0", b"h\0", b"\x94", b"(", b"\n", b".", frame(0), frame(9), frame(20), b"S'f'\n",
        b"Vg\n", b"(ih\ni\n", b"\x8c\1j", b"U\1k", b"0", b"2", b"1", b"\x85", b"R", b")", b"N",
    ]),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES, max_size=30))
@example([b"\x80\x04", frame(3), b"cxx", named("a.b")])
def test_any_opcodes_are_followed_as_far_as_cpython_does(pieces: list[bytes]) -> None:
    assert_all_named(b"".join(pieces))


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 2), PIECES), min_size=1, max_size=4),
)
def test_damaged_pickles_are_followed_as_far_as_cpython_does(
    raw: bytes, changes: list[tuple[int, int, bytes]]
) -> None:
    for at, dropped, piece in changes:
        place = at % (len(raw) + 1)
        raw = raw[:place] + piece + raw[place + dropped :]
    assert_all_named(raw)


DANGEROUS = (
    "os.system", "posix.system", "nt.system", "subprocess.Popen", "builtins.eval",
    "__builtin__.exec", "builtins.getattr", "builtins.__import__", "importlib.import_module",
    "runpy._run_code", "operator.attrgetter", "_operator.attrgetter", "commands.getoutput",
    "logging.os.system", "torch.load", "torch.storage._load_from_bytes", "pickle.loads",
    "a.b.__globals__", "builtins.str.format",
)  # fmt: skip
OTHERS = (
    "collections.OrderedDict", "sklearn.tree._tree.Tree", "__main__.Net", "a.code.Model",
    "torch._utils._rebuild_tensor_v2", "joblib.numpy_pickle.NumpyArrayWrapper", "builtins.set",
)  # fmt: skip


@each("path", DANGEROUS)
def test_what_runs_code_is_dangerous(path: str) -> None:
    assert is_dangerous(path)


@pytest.mark.parametrize("path", OTHERS)
def test_a_class_is_not_dangerous_for_its_name(path: str) -> None:
    assert not is_dangerous(path)
