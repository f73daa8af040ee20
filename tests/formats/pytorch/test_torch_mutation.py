"""Any changed PyTorch file gives a tree or an error of weightctl, within a short time."""

from __future__ import annotations

import io
import pickle
import struct
import sys
import time
import tracemalloc
import warnings
import zipfile
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from audited import forget_peak, opened, peak
from hypothesis import given, settings
from hypothesis import strategies as st

from each import few_or_many
from lazy import torch
from payloads import (
    Entry,
    bytewise,
    call,
    changed,
    changes,
    data,
    integer,
    many,
    mapping,
    named,
    opcodes,
    sequences,
    storage,
    stream,
    tensor,
    text,
    torch_zip,
    whole,
    zip_of,
)
from weightctl.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EXAMPLES = settings(deadline=None, derandomize=True, database=None)


def _state() -> dict[str, Any]:
    shared = torch.arange(6.0).reshape(2, 3)
    layer = torch.nn.Linear(2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has deprecated them
        quantized = torch.quantize_per_tensor(torch.ones(2), 0.5, 1, torch.qint8)
    return {
        "model": {"a.weight": shared, "tied": shared, "turned": shared.t(), "half": shared.half()},
        "layer": layer.state_dict(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "quantized": quantized,
        "sparse": torch.eye(2).to_sparse(),
        "array": np.arange(4, dtype=">f4"),
        "scalar": np.float64(0.5),
        "size": shared.shape,
        "dtype": torch.bfloat16,
        "steps": [1, 2.5, "text", None, True, (1, 2), {3}, 1 << 70],
    }


def _saved(content: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, **options)
    return stream.getvalue()


def _tar() -> bytes:
    entry = many(text("7"), text("cpu"), named("torch.FloatStorage"))
    members = {
        "storages": whole(integer(1)) + whole(entry) + struct.pack("<q4f", 4, 1, 2, 3, 4)
        + whole(b"]"),
        "tensors": whole(integer(1))
        + whole(many(text("9"), text("7"), named("torch.FloatTensor")))
        + struct.pack("<ii2q2q1q", 2, 0, 2, 2, 2, 1, 0),
        "pickle": whole(mapping(text("a") + text("9") + b"Q")),
    }  # fmt: skip
    made = b""
    for name, raw in members.items():
        head = name.encode().ljust(124, b"\0") + b"%011o\0" % len(raw)
        head = bytearray(head.ljust(257, b"\0") + b"ustar\0".ljust(255, b"\0"))
        head[148:156] = b"%06o\0 " % (sum(head) + 8 * ord(" "))
        made += bytes(head) + raw + bytes(-len(raw) % 512)
    return made + bytes(1024)


@pytest.fixture(scope="session")
def seeds() -> dict[str, bytes]:
    """Valid files of every form and protocol."""
    plain = {"a": np.arange(3.0), "b": {"c": [1, "d", 2.5, None], "e": b"bytes" * 60}, "f": 1 << 80}
    return {
        "zip": _saved(_state()),
        "zip of a module": _saved(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())),
        "stream": _saved(_state(), _use_new_zipfile_serialization=False),
        "tar": _tar(),
        **{f"pickle of protocol {n}": pickle.dumps(plain, n) for n in range(6)},
    }


SEEDS = ["zip", "zip of a module", "stream", "tar", *(f"pickle of protocol {n}" for n in range(6))]


@pytest.fixture(autouse=True)
def cheaply() -> Iterator[None]:
    """Assert that a test takes at most 100 MB."""
    forget_peak()
    before = peak()
    yield
    assert peak() - before < 100 << 20


def use(path: Path, raw: bytes) -> str:
    """Open and list a file, within a second; return the result."""
    path.write_bytes(raw)
    started = time.process_time()
    message = opened(str(path))
    assert time.process_time() - started < 1
    return message


def test_every_seed_is_listed(seeds: dict[str, bytes], tmp_path: Path) -> None:
    assert list(seeds) == SEEDS
    for name, raw in seeds.items():
        assert use(tmp_path / "seed", raw).startswith("listed: "), name


@pytest.mark.parametrize("name", SEEDS)
@few_or_many("count", 15, 80)
def test_changed_bytes(name: str, count: int, seeds: dict[str, bytes], tmp_path: Path) -> None:
    @settings(EXAMPLES, max_examples=count)
    @given(changes)
    def holds(drawn: Any) -> None:
        use(tmp_path / "changed", bytewise(seeds[name], drawn))

    holds()


@pytest.mark.parametrize("name", SEEDS)
@few_or_many("count", 60, 300)
def test_a_file_that_is_cut(name: str, count: int, seeds: dict[str, bytes], tmp_path: Path) -> None:
    raw = seeds[name]
    for length in range(0, len(raw), max(len(raw) // count, 1)):
        use(tmp_path / "cut", raw[:length])


@pytest.mark.parametrize("name", [name for name in SEEDS if name != "tar"])
@few_or_many("count", 15, 80)
def test_changed_opcodes(name: str, count: int, seeds: dict[str, bytes], tmp_path: Path) -> None:
    raw = seeds[name]
    head, members, pickled = b"", {}, raw
    if name.startswith("zip"):
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            members = {each: archive.read(each) for each in archive.namelist()}
        first = next(iter(members))
        pickled = members.pop(first)
    elif name == "stream":
        # The object follows a magic number, a version, and a description of the machine.
        rest = io.BytesIO(raw)
        for _ in range(3):
            pickle.load(rest)
        head, pickled = raw[: rest.tell()], raw[rest.tell() :]
    pieces = opcodes(pickled)
    behind = pickled[sum(map(len, pieces)) :]

    @settings(EXAMPLES, max_examples=count)
    @given(changes)
    def holds(drawn: Any) -> None:
        made = changed(pieces, drawn)
        if members:
            made = zip_of(Entry(first, made), *(Entry(*each) for each in members.items()))
        use(tmp_path / "changed", head + made + behind)

    holds()


@pytest.mark.parametrize("form", ["pickle", "zip", "stream", "protocol 0"])
@few_or_many("count", 60, 600)
def test_opcodes_in_any_order(form: str, count: int, tmp_path: Path) -> None:
    @settings(EXAMPLES, max_examples=count)
    @given(sequences)
    def holds(drawn: bytes) -> None:
        made = whole(drawn, protocol=4)
        if form == "zip":
            made = torch_zip(made, data(), data("1", bytes(4)))
        elif form == "stream":
            made = stream(made)
        use(tmp_path / "any", b"(" + drawn + b"l." if form == "protocol 0" else made)

    holds()


@pytest.mark.parametrize(
    "head", [b"", b"\x80\2", b"\x80\4\x95", b"PK\3\4", b"PK\5\6", b"(", b"]", stream(b"")[:20]]
)
@few_or_many("count", 15, 80)
def test_any_bytes(head: bytes, count: int, tmp_path: Path) -> None:
    @settings(EXAMPLES, max_examples=count)
    @given(st.binary(max_size=200))
    def holds(rest: bytes) -> None:
        use(tmp_path / "any", head + rest)

    holds()


# Numbers in zip files and tensors: valid, too large, and at the limits.
numbers = st.one_of(
    st.integers(0, 9), st.integers(0, 600),
    st.sampled_from([0xFFFF, 0xFFFFFFFE, 0xFFFFFFFF, 0x7FFFFFFF]),
)  # fmt: skip


@few_or_many("count", 60, 400)
def test_zips_that_say_anything(count: int, tmp_path: Path) -> None:
    good = whole(mapping(text("a") + tensor(storage())))

    @settings(EXAMPLES, max_examples=count)
    @given(st.data())
    def holds(drawn: st.DataObject) -> None:
        some = st.none() | numbers
        entry = data(
            content=bytes(drawn.draw(st.integers(0, 20))), at=drawn.draw(some),
            size=drawn.draw(some), packed=drawn.draw(some),
            extra=drawn.draw(st.binary(max_size=40)),
            method=drawn.draw(st.sampled_from([0, 0, 8])), flags=drawn.draw(st.integers(0, 9)),
            local_name=drawn.draw(st.none() | st.binary(max_size=9)),
            is_there=drawn.draw(st.booleans()),
        )  # fmt: skip
        lies = {
            "count": min(drawn.draw(some) or 3, 0xFFFF), "size": drawn.draw(some),
            "place": drawn.draw(some), "comment": drawn.draw(st.binary(max_size=30)),
            "between": drawn.draw(st.binary(max_size=9)),
            "large": drawn.draw(st.binary(max_size=80)),
        }  # fmt: skip
        use(tmp_path / "zip", torch_zip(good, entry, **lies))

    holds()


sizes = st.one_of(
    st.integers(0, 5), st.sampled_from([-1, 1 << 20, 1 << 31, 1 << 59, 1 << 60, 1 << 63, 1 << 64])
)


@few_or_many("count", 100, 400)
def test_tensors_that_say_anything(count: int, tmp_path: Path) -> None:
    listed = 0

    @settings(EXAMPLES, max_examples=count)
    @given(st.lists(st.tuples(sizes, st.just(0) | sizes), max_size=4), sizes, sizes)
    def holds(drawn: list[tuple[int, int]], offset: int, count: int) -> None:
        nonlocal listed
        shape, strides = (
            many(*(integer(pair[i]) for pair in drawn)) if drawn else b")" for i in (0, 1)
        )
        made = named("torch._utils._rebuild_tensor_v2") + many(
            storage(count=count), integer(offset), shape, strides, b"\x89", call("a.b")
        )
        listed += use(tmp_path / "zip", torch_zip(whole(made + b"R"), data())).startswith("listed")

    holds()
    assert listed > count // 20


def test_a_tensor_of_a_single_number_is_listed_however_large_it_is(tmp_path: Path) -> None:
    shape, strides = many(integer(1 << 30), integer((1 << 30) - 1)), many(integer(0), integer(0))
    made = whole(mapping(text("a") + tensor(storage(), shape, strides)))
    assert use(tmp_path / "large", torch_zip(made, data())) == "listed: ['a'] {}"


def test_many_dimensions_of_few_elements_are_listed(tmp_path: Path) -> None:
    shape = many(*[integer(2)] * 12)
    strides = many(*(integer(1 << n) for n in reversed(range(12))))
    made = torch_zip(
        whole(mapping(text("a") + tensor(storage(count=4096), shape, strides))),
        data(content=bytes(4 * 4096)),
    )
    assert use(tmp_path / "many", made) == "listed: ['a'] {}"


def test_a_pickle_costs_what_its_own_length_allows_however_long_the_file_is(tmp_path: Path) -> None:
    # An array, so that it cannot be a simple value at all these places.
    array = pickle.dumps(np.arange(2), 2)[2:-1]
    pushed = array + b"".join(b"q%c(h%cNh%cl" % (n, n, n) for n in range(100, 160))
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.write(whole(pushed, protocol=4))
        file.truncate(1 << 40)
    started = time.process_time()
    assert opened(str(path)).startswith("refused: ")
    assert time.process_time() - started < 1


@pytest.mark.parametrize("line", [b"cos", b"I", b"L", b"S'", b"V", b"P", b"ios", b"F", b"Np", b"g"])
def test_a_line_that_never_ends_takes_no_memory(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "line"
    with path.open("wb") as file:
        file.write(b"\x80\2" + line)
        file.truncate(50 << 20)
    tracemalloc.start()
    try:
        assert "the pickle is incomplete" in opened(str(path))
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def command(*arguments: str) -> tuple[int, str]:
    """Run weightctl in this process; return its exit code and output."""
    message, argv = io.StringIO(), sys.argv
    sys.argv = ["weightctl", *arguments]
    try:
        with redirect_stdout(message), redirect_stderr(message):
            main()
    except SystemExit as ended:
        return int(ended.code or 0), message.getvalue()
    finally:
        sys.argv = argv
    return 0, message.getvalue()


@few_or_many("count", 30, 200)
def test_the_command_says_of_each_what_it_is(
    count: int, tmp_path: Path, seeds: dict[str, bytes]
) -> None:
    path = tmp_path / "said.pt"

    @settings(EXAMPLES, max_examples=count)
    @given(st.sampled_from(SEEDS), changes, sequences)
    def holds(name: str, drawn: Any, other: bytes) -> None:
        raw = bytewise(seeds[name], drawn) if len(drawn) % 2 else whole(other)
        path.write_bytes(raw)
        code, message = command("ls", str(path))
        assert code in {0, 2}
        assert message.replace("\n", "").isprintable()

    holds()
