"""Files that run code in a program do not pass a scan; each is tested with its program.

Every payload does run here, where its program is installed: an attack only counts if it works.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from typing import TYPE_CHECKING

import pytest
from dangerous_files import CASES, SLOW, members_of, zipped

import payloads
from each import each
from payloads import NOTHING, PAYLOAD, call, ran, whole
from weightctl.cli.scanned import ScanChoices, scan_paths

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.filterwarnings("ignore")
@each("name", CASES)
def test_a_file_that_runs_something_does_not_pass(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    path = tmp_path / case.file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(case.raw)
    if case.load is not None and case.load not in SLOW:
        assert ran(lambda: case.load and case.load(path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert scan_paths([str(path)], ScanChoices()) == 1
    said = capsys.readouterr().out
    found = {*re.findall("  (dangerous|unknown|unread)  ", said)}
    if case.text:
        (severity,) = case.verdict
        assert re.search(f"code: {re.escape(case.text)}.*  {severity}  ", said), said
        assert severity == "dangerous" or "dangerous" not in found, said
    else:
        assert {"unread" if each == "unread" else "named" for each in found} == case.verdict, said
    assert not payloads.RAN


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@each("name", [name for name, case in CASES.items() if case.load in SLOW])
def test_a_file_beside_the_file_that_names_it_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    for module in ("transformers.dynamic_module_utils", "diffusers.utils.dynamic_modules_utils"):
        monkeypatch.setattr(f"{module}.HF_MODULES_CACHE", str(tmp_path / "modules"))
    (tmp_path / case.file).write_bytes(case.raw)
    assert ran(lambda: case.load and case.load(tmp_path / case.file))


def test_there_are_more_than_120_cases() -> None:
    assert len({case.raw for case in CASES.values()}) > 120


def test_an_encrypted_member_does_not_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = bytearray(zipped("a", NOTHING))
    for magic, place in ((b"PK\1\2", 8), (b"PK\3\4", 6)):
        at = raw.rindex(magic) + place
        raw[at] |= 1
    (tmp_path / "a.zip").write_bytes(raw)
    assert scan_paths([str(tmp_path / "a.zip")], ScanChoices()) == 1
    assert "it is encrypted: decrypt it first" in capsys.readouterr().out


def test_the_output_of_a_scan_can_be_dropped(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(PAYLOAD)
    with contextlib.redirect_stdout(io.StringIO()):
        assert scan_paths([str(tmp_path / "a.pkl")], ScanChoices(as_json=True, quiet=True)) == 1


def test_a_class_of_torchscript_is_known_in_its_archive_alone(tmp_path: Path) -> None:
    named = whole(call("__torch__.model.Model"))
    (tmp_path / "script.pt").write_bytes(
        members_of(**{"a/data.pkl": named, "a/constants.pkl": NOTHING})
    )
    (tmp_path / "a.pt").write_bytes(members_of(**{"a/data.pkl": named}))
    assert scan_paths([str(tmp_path / "script.pt")], ScanChoices(quiet=True)) == 0
    assert scan_paths([str(tmp_path / "a.pt")], ScanChoices(quiet=True)) == 1


def test_what_is_below_a_directory_or_missing_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    below = tmp_path / "model" / "below"
    below.mkdir(parents=True)
    (below / "a.bin").write_bytes(PAYLOAD)
    assert scan_paths([str(tmp_path / "model")], ScanChoices(quiet=True)) == 1
    (tmp_path / "m-00001-of-00002.bin").write_bytes(members_of(**{"a/data.pkl": NOTHING}))
    capsys.readouterr()
    assert scan_paths([str(tmp_path / "m-00001-of-00002.bin")], ScanChoices(quiet=True)) == 1
    assert "No such file or directory; the file was not scanned" in capsys.readouterr().out
