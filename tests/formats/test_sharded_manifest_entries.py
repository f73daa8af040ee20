"""A manifest whose entries are wrong is refused, and the error names the entry."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest

from each import each
from sharded_files import (
    CUT,
    Q,
    W,
    at,
    both,
    document_of,
    refusal,
    twice,
    two_ranks,
    without,
    write_document,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Document = dict[str, Any]
    Change = Callable[[Document], object]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Document:
    return document_of(two_ranks(tmp_path_factory.mktemp("sound")))


def absurd(document: Document) -> None:
    document["grid"]["tp"] = 6000
    document["ranks"] += [{"path": f"{rank}", "tensors": []} for rank in range(2, 6000)]
    for number in range(3000):
        entry = {"name": f"t{number}", "shape": [], "encoding": "F32", "strategy": ""}
        document["tensors"].append(entry)
        piece = {"source": entry["name"], "cuts": []}
        document["ranks"][0]["tensors"].append({**entry, "pieces": [piece], "sha256": ""})


def many_ranges(document: Document) -> None:
    ranges = [[2 * number, 2 * number + 1] for number in range(150)]
    document["tensors"][1]["shape"] = [300, 300]
    cuts = [{"axis": axis, "ranges": ranges} for axis in (0, 1)]
    document["ranks"][0]["tensors"][1]["pieces"][0]["cuts"] = cuts


def across_rows(document: Document) -> None:
    for entry, rows in ((document["tensors"][1], 4), (document["ranks"][0]["tensors"][1], 2)):
        entry |= {"encoding": "F4", "shape": [rows, 3]}


REFUSED: dict[str, tuple[Change, str]] = {
    "another layout": (at("layout", to="rows"), "`layout` is `rows`; it must be ranks or vllm"),
    "no layout": (without("layout"), "`layout` is not a string"),
    "another format": (
        at("format", to="zip"),
        ("`format` is `zip`; it must be safetensors or gguf or pytorch"),
    ),
    "no grid": (without("grid"), "`grid` is not a JSON object"),
    "a grid without an axis": (without("grid", "pp"), "`pp` is not an integer of at least 0"),
    "an axis of none": (at("grid", "ep", to=0), "tp 2 x ep 0 x pp 1 is not a valid grid of ranks"),
    "an axis below 0": (at("grid", "ep", to=-2), "`ep` is not an integer of at least 0"),
    "an axis that is true": (at("grid", "ep", to=True), "`ep` is not an integer of at least 0"),
    "an axis that is a fraction": (
        at("grid", "tp", to=2.0),
        ("`tp` is not an integer of at least 0"),
    ),
    "more ranks than there can be": (
        at("grid", "pp", to=1 << 40),
        "tp 2 x ep 1 x pp 1099511627776 is not a valid grid of ranks",
    ),
    "a number beyond 63 bits": (
        at("grid", "pp", to=1 << 64),
        ("`pp` is not an integer of at least 0"),
    ),
    "fewer ranks than the grid": (
        without("ranks", 1),
        ("the manifest has 1 rank, but tp x ep x pp is 2"),
    ),
    "ranks that are not a list": (at("ranks", to={"0": {}}), "`ranks` is not a list"),
    "a rank that is not an object": (at("ranks", 1, to=7), "`ranks` is not a list of JSON objects"),
    "more tensors and ranks than bytes": (
        absurd,
        ("it lists 3003 tensors and 6000 ranks, but only "),
    ),
    "tensors that are not a list": (at("tensors", to=None), "`tensors` is not a list"),
    "a tensor not an object": (at("tensors", 0, to=[]), "`tensors` is not a list of JSON objects"),
    "a tensor twice": (twice("tensors"), "the manifest lists the tensor `norm` twice"),
    "a name that is not text": (at("tensors", 0, "name", to=3), "`name` is not a string"),
    "a name of half a character": (at("tensors", 0, "name", to="\ud800"), "is not UTF-8"),
    "no strategy": (without("tensors", 0, "strategy"), "`strategy` is not a string"),
    "an encoding that is none": (
        at("tensors", 0, "encoding", to="Q9_Z"),
        "the encoding of `norm` is not supported",
    ),
    "an encoding that is an object": (
        at("tensors", 0, "encoding", to={"block": 0}),
        "`encoding` is not a string",
    ),
    "a shape that is a number": (at("tensors", 0, "shape", to=4), "`shape` is not a list"),
    "a shape of fractions": (
        at("tensors", 0, "shape", to=[4.0]),
        ("the shape of `norm` has a size that is not an integer"),
    ),
    "a shape of truths": (
        at("tensors", 0, "shape", to=[True]),
        ("the shape of `norm` has a size that is not an integer"),
    ),
    "a shape below 0": (
        at("tensors", 0, "shape", to=[-4]),
        ("`norm` is stored as F32, which does not support the shape [-4]"),
    ),
    "a shape beyond memory": (
        at("tensors", 0, "shape", to=[1 << 32, 1 << 32]),
        "`norm` is stored as F32, which does not support the shape",
    ),
    "a shape of 65 axes": (
        at("tensors", 0, "shape", to=[1] * 65),
        ("`norm` is stored as F32, which does not support the shape"),
    ),
    "a shape of broken blocks": (
        at("tensors", 2, "shape", to=[2, 33]),
        "`q` is stored as Q8_0, which does not support the shape [2, 33]",
    ),
    "no path": (without("ranks", 1, "path"), "rank 1: `path` is not a string"),
    "a path out of the directory": (
        at("ranks", 1, "path", to="rank-1/../../x"),
        "the path of rank 1, `rank-1/../../x`, is not inside the directory",
    ),
    "a path from the root": (at("ranks", 1, "path", to="/etc/x"), "is not inside the directory"),
    "a path that is empty": (at("ranks", 1, "path", to=""), "is not inside the directory"),
    "a path of Windows": (at("ranks", 1, "path", to="a\\..\\b"), "is not inside the directory"),
    "a path with a zero": (at("ranks", 1, "path", to="a\0b"), "is not inside the directory"),
    "a path of two ranks": (
        at("ranks", 1, "path", to="rank-0/model.gguf"),
        "`rank-0/model.gguf` is the file of several ranks",
    ),
    "tensors of a rank that are not a list": (
        at("ranks", 1, "tensors", to=1),
        "rank 1: `tensors` is not a list",
    ),
    "a tensor of a rank twice": (
        twice("ranks", 1, "tensors"),
        "`norm` appears twice on rank 1",
    ),
    "a part of another encoding": (
        at(*W, "encoding", to="I32"),
        (
            "`w` on rank 0: its encoding differs from the encoding of the tensors that "
            "it is a part of"
        ),
    ),
    "a part of another shape": (
        at(*W, "shape", to=[3, 6]),
        (
            "`w` on rank 0: its shape [3, 6] differs from the shape of the part that "
            "`pieces` describes"
        ),
    ),
    "a part of nothing": (
        at(*W, "pieces", to=[]),
        (
            "`w` on rank 0: its shape [2, 6] differs from the shape of the part that "
            "`pieces` describes"
        ),
    ),
    "pieces not a list": (at(*W, "pieces", to={}), "`w` on rank 0: `pieces` is not a list"),
    "a digest that is none": (
        at(*W, "sha256", to="ab"),
        ("`w` on rank 0: `sha256` is not a SHA-256 digest"),
    ),
    "a digest in capitals": (
        at(*W, "sha256", to="AB" * 32),
        "`w` on rank 0: `sha256` is not a SHA-256 digest",
    ),
    "no digest": (without(*W, "sha256"), "`w` on rank 0: `sha256` is not a string"),
    "no strategy of a part": (without(*W, "strategy"), "`w` on rank 0: `strategy` is not a string"),
    "a piece of no tensor": (
        at(*W, "pieces", 0, "source", to="v"),
        "`w` on rank 0: its source `v` is not a tensor of the manifest",
    ),
    "cuts that are not objects": (
        at(*W, "pieces", 0, "cuts", to=[[0, 2]]),
        "`w` on rank 0: `cuts` is not a list of JSON objects",
    ),
    "a cut twice along an axis": (
        twice(*W, "pieces", 0, "cuts"),
        "`w` on rank 0: `w` is split twice along one axis",
    ),
    "a cut along no axis": (
        at(*CUT, "axis", to=2),
        "`w` of shape [4, 6] cannot be split along axis 2",
    ),
    "an axis counted from the end": (
        at(*CUT, "axis", to=-1),
        ("`axis` is not an integer of at least 0"),
    ),
    "ranges that are not a list": (at(*CUT, "ranges", to="02"), "`ranges` is not a list"),
    "a range of one": (at(*CUT, "ranges", 0, to=[0]), "a range is not a list of two integers"),
    "a range of texts": (
        at(*CUT, "ranges", 0, to=["0", "2"]),
        ("a range is not a list of two integers"),
    ),
    "a range of truths": (
        at(*CUT, "ranges", 0, to=[False, 2]),
        ("a range is not a list of two integers"),
    ),
    "a range that is empty": (
        at(*CUT, "ranges", to=[[2, 2]]),
        (
            "the range from 2 to 2 of axis 0 of `w` is empty, overlaps the range before it, or "
            "exceeds the 4 elements of"
        ),
    ),
    "a range that runs back": (
        at(*CUT, "ranges", to=[[2, 0]]),
        ("is empty, overlaps the range before it, or exceeds the"),
    ),
    "a range below 0": (
        at(*CUT, "ranges", to=[[-1, 2]]),
        ("is empty, overlaps the range before it, or exceeds the"),
    ),
    "a range past the end": (
        at(*CUT, "ranges", to=[[0, 5]]),
        ("is empty, overlaps the range before it, or exceeds the"),
    ),
    "a range past all numbers": (
        at(*CUT, "ranges", to=[[0, 10**30]]),
        ("is empty, overlaps the range before it, or exceeds the"),
    ),
    "ranges that overlap": (
        at(*CUT, "ranges", to=[[0, 2], [1, 3]]),
        ("is empty, overlaps the range before it, or exceeds the"),
    ),
    "ranges that are out of order": (
        at(*CUT, "ranges", to=[[2, 3], [0, 1]]),
        ("is empty, overlaps the range before it, or exceeds the"),
    ),
    "a cut of blocks that cross rows": (
        across_rows,
        "`w` of shape [4, 3] cannot be split along axis 0",
    ),
    "no ranges": (
        at(*CUT, "ranges", to=[]),
        "the list of ranges along axis 0 of `w` is empty",
    ),
    "a range that breaks blocks": (
        at(*Q, "pieces", 0, "cuts", to=[{"axis": 1, "ranges": [[0, 16]]}]),
        "`q` on rank 0: the range from 0 to 16 splits blocks of 32 elements",
    ),
    "more ranges than can be meant": (
        many_ranges,
        "`w` on rank 0: `w` is split into more than 16384 pieces",
    ),
    "a gap": (
        without("ranks", 1, "tensors", 1),
        "no rank has element [2, 0] of `w` of shape [4, 6]",
    ),
    "a tensor of nobody": (
        both(without("ranks", 0, "tensors", 0), without("ranks", 1, "tensors", 0)),
        "no rank has element [0] of `norm` of shape [4]",
    ),
    "aliases that are not an object": (at("aliases", to=[]), "`aliases` is not a JSON object"),
    "an alias of no tensor": (
        at("aliases", to={"a": "b"}),
        ("the alias `a` has the same name as a tensor, or refers to a missing tensor"),
    ),
    "an alias that is a tensor": (
        at("aliases", to={"w": "norm"}),
        ("the alias `w` has the same name as a tensor, or refers to a missing tensor"),
    ),
    "an alias of half a character": (at("aliases", to={"\ud800": "w"}), "is not UTF-8"),
    "an alias of a list": (
        at("aliases", to={"a": ["w"]}),
        ("the alias `a` has the same name as a tensor, or refers to a missing tensor"),
    ),
    "a source that is none": (at("source", to=None), "`source` is not a JSON object"),
    "a source without its header": (without("source", "header"), "`header` is not a string"),
    "a source of another digest": (
        at("source", "header", to="x"),
        "`header` of `source` is not a SHA-256",
    ),
    "a file of the source without a time": (
        at("source", "files", to=[{"name": "a", "size": 1}]),
        "a file of `source` has no name or no modification time",
    ),
    "a file of the source of any size": (
        at("source", "files", to=[{"name": "a", "size": -1, "modified": 0}]),
        "`size` is not an integer of at least 0",
    ),
}


@each("what", REFUSED)
def test_what_cannot_be_is_refused(what: str, document: Document, tmp_path: Path) -> None:
    change, expected = REFUSED[what]
    changed = deepcopy(document)
    change(changed)
    assert expected in refusal(write_document(changed, tmp_path))


def as_vllm(pieces: list[Document], rows: int) -> Change:
    """Return a change: the first rank stores pieces of `w` one after another, in `rows` rows."""
    return both(
        at("layout", to="vllm"), both(at(*W, "pieces", to=pieces), at(*W, "shape", to=[rows, 6]))
    )


def rows(*ranges: tuple[int, int]) -> Document:
    return {"source": "w", "cuts": [{"axis": 0, "ranges": ranges}]}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (as_vllm([rows((0, 2))], 1), "`w` on rank 0: it has fewer bytes than its pieces need"),
        (
            as_vllm([rows((0, 2)), rows((1, 2))], 3),
            ("the pieces of `w` on rank 0 overlap, or cannot be joined into one slice"),
        ),
        (
            as_vllm([rows((0, 2)), {"source": "w", "cuts": []}], 6),
            ("the pieces of `w` on rank 0 overlap, or cannot be joined into one slice"),
        ),
        (
            as_vllm([{"source": "w", "cuts": []}] * 2, 8),
            ("the pieces of `w` on rank 0 overlap, or cannot be joined into one slice"),
        ),
    ],
)
def test_pieces_that_do_not_fit_are_refused(
    change: Change, expected: str, document: Document, tmp_path: Path
) -> None:
    changed = deepcopy(document)
    change(changed)
    assert expected in refusal(write_document(changed, tmp_path))
