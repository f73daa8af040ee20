"""A manifest is read as it was written, and a file that is not a manifest is refused."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharded_files import Drawn, document_of, drawn_sets, manifest_of, refusal
from weightctl import open_weights
from weightctl.formats.sharded.manifest import manifest_bytes, read_manifest
from weightctl.formats.sharded.opening import MANIFEST
from weightctl.formats.sharded.records import RankFile, SourceFingerprint

if TYPE_CHECKING:
    from pathlib import Path

    Document = dict[str, Any]

SHA256 = "0123456789abcdef" * 4


@pytest.fixture(scope="module")
def document(two_ranks: Path) -> Document:
    return document_of(two_ranks)


@given(drawn=drawn_sets(), data=st.data())
@settings(max_examples=25)
def test_what_is_written_is_read_again(
    drawn: Drawn, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("manifest")
    plan = drawn.plan(directory)
    names = st.text(max_size=4)
    files = st.tuples(names, st.integers(0, 1 << 60), st.integers(-(1 << 60), 1 << 60))
    identity = SourceFingerprint(tuple(data.draw(st.lists(files, max_size=2))), SHA256)
    aliases = {f"{name} again": name for name in drawn.contents}
    ranks = [RankFile(f"rank-{rank}/ä.gguf", shards) for rank, shards in enumerate(plan.ranks)]
    manifest = manifest_of(plan, ranks)._replace(source=identity, aliases=aliases)
    (directory / MANIFEST).write_bytes(manifest_bytes(manifest))
    assert read_manifest(str(directory / MANIFEST)) == manifest


def test_a_sound_manifest_is_no_matter_how_it_is_laid_out(
    document: Document, two_ranks: Path, tmp_path: Path
) -> None:
    path = tmp_path / MANIFEST
    path.write_text(json.dumps(dict(reversed(document.items())), indent=3))
    assert read_manifest(str(path)) == read_manifest(str(two_ranks / MANIFEST))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "the file is not valid JSON"),
        (b"[]", "the file is not a manifest of a sharded checkpoint"),
        (b"null", "the file is not a manifest of a sharded checkpoint"),
        (b'{"weight_map": {}}', "the file is not a manifest of a sharded checkpoint"),
        (b'{"weightctl_shards": "1"}', "the file is not a manifest of a sharded checkpoint"),
        (b'{"weightctl_shards": true}', "the file is not a manifest of a sharded checkpoint"),
        (b'{"weightctl_shards": 2}', "the manifest has version 2; this weightctl reads version 1"),
        (b'{"weightctl_shards": 0}', "the manifest has version 0; this weightctl reads version 1"),
        (b'{"weightctl_shards": 1}', "`layout` is not a string"),
        (
            b'{"weightctl_shards": 1, "layout": "a", "layout": "b"}',
            ("the key 'layout' appears twice in one JSON object"),
        ),
        (b'{"weightctl_shards": ' + b"[" * 100_000, "the file is not valid JSON"),
        (b'{"weightctl_shards": ' + b"9" * 5000 + b"}", "the file is not valid JSON"),
        (b'{"weightctl_shards": NaN}', "the file is not a manifest of a sharded checkpoint"),
        (b'{"weightctl_shards": 1, "layout": "\xff"}', "the file is not valid JSON"),
        (b'\xef\xbb\xbf{"weightctl_shards": 1}', "the file is not valid JSON"),
    ],
)
def test_what_is_not_a_manifest_is_refused(raw: bytes, expected: str, tmp_path: Path) -> None:
    path = tmp_path / MANIFEST
    path.write_bytes(raw)
    assert expected in refusal(path)


def test_a_manifest_that_is_cut_off_anywhere_is_refused(two_ranks: Path, tmp_path: Path) -> None:
    raw = (two_ranks / MANIFEST).read_bytes().rstrip()
    path = tmp_path / MANIFEST
    for end in range(0, len(raw), 37):
        path.write_bytes(raw[:end])
        assert "the file is not valid JSON" in refusal(path)


def test_a_directory_without_a_manifest_of_ours_is_one_like_any(
    two_ranks: Path, tmp_path: Path
) -> None:
    shutil.copy(two_ranks / "rank-0" / "model.gguf", tmp_path)
    for raw in (b"", b"{}", b'{"files": []}', b"\0" * 300, b'["weightctl_shards"]'):
        (tmp_path / MANIFEST).write_bytes(raw)
        assert open_weights(tmp_path).header.files == (str(tmp_path / "model.gguf"),)
