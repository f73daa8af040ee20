"""`check(fix=True)` corrects JSON files, keeps their layout, and leaves other files alone."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree
from typing import TYPE_CHECKING, Any

import pytest

from check_files import FAULTS, INDEX, change, change_index, make_models
from weightctl.check import JsonChange, check
from weightctl.check.checking import change_text

if TYPE_CHECKING:
    from check_files import CheckFault


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_models(folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    "fault", [each for each in FAULTS if each.has_fix], ids=lambda fault: fault.make.__name__
)
def test_a_fault_is_corrected(fault: CheckFault, models: Path, tmp_path: Path) -> None:
    path = Path(copytree(models / fault.model, tmp_path / "model"))
    fault.make(path)
    before = contents(path)
    planned = check(path, fix=True, dry_run=True)
    assert contents(path) == before
    checked = check(path, fix=True)
    assert checked.findings == ()
    assert fault.rule in {each.rule for each in checked.fixed}
    assert {each.rule for each in planned.fixed} <= {each.rule for each in checked.fixed}
    after = contents(path)
    assert after.keys() == before.keys()
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {Path(name).name for name in checked.written}
    assert all(name.endswith(".json") for name in changed)


def test_a_corrected_config_is_the_original_one(models: Path, tmp_path: Path) -> None:
    path = Path(copytree(models / "model", tmp_path / "model"))
    original = (path / "config.json").read_text()
    faulty = original.replace('"bfloat16"', '"float16"')
    assert faulty != original
    (path / "config.json").write_text(faulty)
    assert check(path, fix=True).findings == ()
    assert (path / "config.json").read_text() == original


def test_an_index_with_several_faults_is_corrected_at_once(models: Path, tmp_path: Path) -> None:
    path = Path(copytree(models / "model", tmp_path / "model"))
    original = json.loads((path / INDEX).read_text())
    change_index(path, other="model-00001-of-00005.safetensors", **{"model.norm.weight": ...})
    change(path / INDEX, metadata={"total_size": 3})
    parts = sorted(each.name for each in path.glob("*.safetensors"))
    change_index(path, other=parts[0])
    checked = check(path, fix=True)
    assert checked.findings == ()
    assert len(checked.fixed) == 3
    assert json.loads((path / INDEX).read_text()) == original


def test_findings_without_a_correction_are_left(models: Path, tmp_path: Path) -> None:
    path = Path(copytree(models / "model", tmp_path / "model"))
    change(path / "config.json", torch_dtype="float16")
    (path / "chat_template.jinja").write_text("{% if %}")
    checked = check(path, fix=True)
    assert [each.rule for each in checked.findings] == ["template-syntax"]
    assert [each.rule for each in checked.fixed] == ["config-dtype"]


def test_a_sound_model_is_not_written(models: Path) -> None:
    times = {path: path.stat().st_mtime_ns for path in (models / "model").iterdir()}
    assert check(models / "model", fix=True).written == ()
    assert times == {path: path.stat().st_mtime_ns for path in (models / "model").iterdir()}


def test_the_mode_of_a_file_is_kept(models: Path, tmp_path: Path) -> None:
    path = Path(copytree(models / "model", tmp_path / "model"))
    change(path / "config.json", torch_dtype="float16")
    (path / "config.json").chmod(0o640)
    check(path, fix=True)
    assert (path / "config.json").stat().st_mode & 0o777 == 0o640


def test_a_link_to_a_file_stays_a_link(models: Path, tmp_path: Path) -> None:
    path = Path(copytree(models / "model", tmp_path / "model"))
    change(path / "config.json", torch_dtype="float16")
    (path / "config.json").rename(tmp_path / "blob")
    (path / "config.json").symlink_to(tmp_path / "blob")
    check(path, fix=True)
    assert (path / "config.json").is_symlink()
    assert '"bfloat16"' in (tmp_path / "blob").read_text()


def changed(text: str, *keys: str, value: Any = None, removes: bool = False) -> str:
    return change_text(text, [JsonChange("", keys, value, removes)])


@pytest.mark.parametrize(
    ("text", "keys", "value", "expected"),
    [
        ('{"a": 1, "b": 2}', ("a",), 3, '{"a": 3, "b": 2}'),
        ('{"a":1,"b":2}', ("c",), 3, '{"a":1,"b":2,"c":3}'),
        ('{"a": 1}', ("c",), 3, '{"a": 1, "c": 3}'),
        ("{}", ("c",), 3, '{"c": 3}'),
        ("{ }\n", ("c",), 3, '{"c": 3}\n'),
        ('{\n\t"a": 1\n}\n', ("c",), [1, 2], '{\n\t"a": 1,\n\t"c": [\n\t\t1,\n\t\t2\n\t]\n}\n'),
        ('{\r\n  "a": 1\r\n}', ("c",), 3, '{\r\n  "a": 1,\r\n  "c": 3\r\n}'),
        ('{"a": {"x": 1}}', ("a", "y"), 2, '{"a": {"x": 1, "y": 2}}'),
        ('{"a": 1}', ("b", "y"), 2, '{"a": 1, "b": {"y": 2}}'),
        ('{"a": 1}', ("a", "y"), 2, '{"a": {"y": 2}}'),
        ('{"a": 1, "a": 2}', ("a",), 3, '{"a": 1, "a": 3}'),
        ('{"ü": "\\u00fc"}', ("ö",), "ä", '{"ü": "\\u00fc", "ö": "ä"}'),
        ('{"a\\"}": "{,}"}', ('a"}',), "é", '{"a\\"}": "\\u00e9"}'),
    ],
)
def test_an_entry_is_set_in_the_layout_of_the_file(
    text: str, keys: tuple[str, ...], value: Any, expected: str
) -> None:
    assert changed(text, *keys, value=value) == expected
    json.loads(expected)


@pytest.mark.parametrize(
    ("text", "keys", "expected"),
    [
        ('{"a": 1, "b": 2}', ("a",), '{"b": 2}'),
        ('{"a": 1, "b": 2}', ("b",), '{"a": 1}'),
        ('{"a": 1}', ("a",), "{}"),
        ('{\n  "a": 1,\n  "b": 2,\n  "c": 3\n}', ("b",), '{\n  "a": 1,\n  "c": 3\n}'),
        ('{"a": {"b": 2}}', ("a", "b"), '{"a": {}}'),
        ('{"a": 1}', ("b",), '{"a": 1}'),
        ('{"a": 1}', ("a", "b"), '{"a": 1}'),
        ('{"a": 1, "b": 2, "a": 3, "a": 4}', ("a",), '{"b": 2}'),
    ],
)
def test_an_entry_is_removed(text: str, keys: tuple[str, ...], expected: str) -> None:
    assert changed(text, *keys, removes=True) == expected
