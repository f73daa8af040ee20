"""A changed manifest is refused, or gives the same tree."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sharded_files import document_of, write_document
from weightctl import open_weights
from weightctl.errors import FormatError
from weightctl.formats.sharded.opening import MANIFEST

if TYPE_CHECKING:
    from pathlib import Path

Document = dict[str, Any]

JUNK = st.one_of(
    st.sampled_from(
        [None, True, -1, 0, 1, 2, 3, 1 << 40, 1 << 70, 1e308, 0.5, "", "a", "\ud800", "F16", "w",
         "q", "norm", "gguf", "vllm", "../x", "rank-0/model.gguf", [], {}, [0, 1], [[0, 4]],
         [{"axis": 1, "ranges": [[0, 3]]}], "0" * 64]
    ),
    st.integers(-5, 70),
)  # fmt: skip
CHANGES = st.lists(
    st.tuples(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(0, 3), JUNK),
    min_size=1,
    max_size=3,
)


def disturbed(document: Document, changes: list[tuple[list[int], int, Any]]) -> Document:
    """Change, remove or repeat values at some places of the document."""
    made = deepcopy(document)
    for steps, kind, junk in changes:
        here: Any = made
        for step in steps[:-1]:
            keys = list(here) if isinstance(here, dict) else range(len(here))
            below = here[keys[step % len(keys)]] if keys else None
            if not isinstance(below, dict | list) or not below:
                break
            here = below
        keys = list(here) if isinstance(here, dict) else range(len(here))
        key = keys[steps[-1] % len(keys)]
        if kind == 0:
            del here[key]
        elif kind == 1 and isinstance(here, list):
            here.append(deepcopy(here[key]))
        else:
            here[key] = deepcopy(junk)
        if not made:
            break
    return made


@given(changes=CHANGES)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_manifest_that_is_changed_anywhere_is_refused_or_tells_the_same_tree(
    changes: list[tuple[list[int], int, Any]], two_ranks: Path, parts: Path
) -> None:
    write_document(disturbed(document_of(two_ranks), changes), parts)
    try:
        weights = open_weights(parts)
    except FormatError:
        return
    assert weights.header.tensors == open_weights(two_ranks).header.tensors
    for node in weights.items():
        node[1].data().view()


@given(
    place=st.integers(0, 1 << 20),
    raw=st.sampled_from([b"", b"\0", b"0", b"9", b'"', b"[", b"}", b"\xff", b",", b"-", b"null"]),
    length=st.integers(0, 3),
)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_manifest_with_other_bytes_anywhere_is_refused_or_tells_the_same_tree(
    place: int, raw: bytes, length: int, two_ranks: Path, parts: Path
) -> None:
    whole = (two_ranks / MANIFEST).read_bytes()
    place %= len(whole)
    (parts / MANIFEST).write_bytes(whole[:place] + raw + whole[place + length :])
    try:
        weights = open_weights(parts / MANIFEST)
    except FormatError:
        return
    assert {*weights.header.tensors.values()} == {*open_weights(two_ranks).header.tensors.values()}
