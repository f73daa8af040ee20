"""Every global that pickles name is listed; the exit code is 1 for unknown or dangerous ones."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import re
import zipfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft4Validator

from commands import TINY
from commands import run_command as weightctl
from conftest import ROOT
from lazy import torch
from payloads import call, stream, text, whole
from weightctl.formats.replacement_record import switch_bytes, switch_path
from weightctl.inspection import scan as scanning
from weightctl.system.temporary import temporary_name

ATTACK = whole(call("os.system", "exit 0"))


def zipped(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"archive/{name}.pkl", content)
    return file.getvalue()


HARMLESS = pickle.dumps({"a": Namespace(b=1)})
EVIL = {
    "alone": ATTACK,
    "in a stream": stream(ATTACK),
    "behind a stream's object": stream(HARMLESS, ATTACK),
    "in a zip": zipped(data=ATTACK),
    "in another member of a zip": zipped(data=HARMLESS, other=ATTACK),
}


@pytest.mark.parametrize("kind", EVIL)
def test_what_is_outside_the_list_is_exit_1(kind: str, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(EVIL[kind])
    done = weightctl("ls", "--scan", tmp_path / "a.bin")
    assert done.returncode == 1, done.stderr
    found, summary = done.stdout.splitlines()
    assert found.startswith(f"{tmp_path / 'a.bin'}: os.system  dangerous  (byte ")
    assert re.fullmatch(
        r"1 file, \d+ pickles?, no code in templates or configs: 1 dangerous, 0 unknown, \d+ known",
        summary,
    )


@pytest.mark.parametrize("legacy", [False, True])
def test_what_torch_writes_of_tensors_is_all_known(tmp_path: Path, *, legacy: bool) -> None:
    root = {"w": torch.ones(2, dtype=torch.bfloat16), "args": Namespace(size=torch.Size([2]))}
    torch.save(root, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    done = weightctl("ls", "--scan", tmp_path / "a.pt")
    assert done.returncode == 0, done.stdout
    (summary,) = done.stdout.splitlines()
    assert "0 dangerous, 0 unknown" in summary
    assert "argparse.Namespace  known" in weightctl("ls", "--scan", "-v", tmp_path / "a.pt").stdout


def test_every_file_of_a_directory_is_scanned(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((TINY / "model.safetensors").read_bytes())
    (tmp_path / "config.json").write_text("{}")
    assert (
        weightctl("ls", "--scan", tmp_path).stdout
        == "2 files, no pickles, no code in templates or configs\n"
    )
    (tmp_path / "training_args.bin").write_bytes(EVIL["in a zip"])
    done = weightctl("ls", "--scan", tmp_path, "--json")
    assert done.returncode == 1
    files = json.loads(done.stdout)["files"]
    assert [len(file["pickles"]) for file in files] == [0, 0, 1]
    (found,) = files[2]["pickles"]
    assert found["member"] == "archive/data.pkl"
    assert [(each["name"], each["known"]) for each in found["globals"]] == [("os.system", False)]
    raw = EVIL["in a zip"]
    (named,) = found["globals"]
    assert raw[named["offset"] :].startswith(b"cos\nsystem\n")


def test_a_pickle_that_cannot_be_read_to_its_end_is_exit_1(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(HARMLESS[:-3])
    done = weightctl("ls", "--scan", tmp_path / "a.bin")
    assert done.returncode == 1
    assert f"{tmp_path / 'a.bin'}: cannot be judged: " in done.stdout
    assert "  unread  (byte 0)\n" in done.stdout
    assert done.stdout.endswith("0 dangerous, 0 unknown, 1 known, 1 unread\n")


def test_a_pickle_that_is_compressed_is_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", ATTACK * 10)
    done = weightctl("ls", "--scan", tmp_path / "a.pt")
    assert done.returncode == 1
    assert "a.pt: os.system  dangerous" in done.stdout


def test_each_global_has_a_severity(tmp_path: Path) -> None:
    pushed = (
        call("a.B") + b"0" + call("builtins.eval", "1") + b"0" + call("collections.OrderedDict")
    )
    (tmp_path / "a.pkl").write_bytes(whole(pushed))
    done = weightctl("ls", "--scan", "--json", tmp_path / "a.pkl")
    (pickled,) = json.loads(done.stdout)["files"][0]["pickles"]
    assert [(each["name"], each["severity"], each["known"]) for each in pickled["globals"]] == [
        ("a.B", "unknown", False),
        ("builtins.eval", "dangerous", False),
        ("collections.OrderedDict", "known", True),
    ]
    path = tmp_path / "a.pkl"
    shown = weightctl("ls", "--scan", "-v", path).stdout.splitlines()
    assert [line.partition("  (")[0] for line in shown] == [
        f"{path}: builtins.eval  dangerous",
        f"{path}: a.B  unknown",
        f"{path}: collections.OrderedDict  known",
        "1 file, 1 pickle, no code in templates or configs: 1 dangerous, 1 unknown, 1 known",
    ]


@pytest.mark.parametrize(
    ("name", "severity"),
    [
        ("posix.system", "dangerous"),
        ("torch.nn.modules.linear.Linear", "known"),
        ("torch.nn.Linear", "unknown"),
        ("torch.nn.modules.os.system", "dangerous"),
        ("torch._utils._rebuild_tensor_v2", "known"),
    ],
)
def test_a_severity_says_what_a_global_can_do(name: str, severity: str, tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(whole(call(name)))
    done = weightctl("ls", "--scan", "-q", "-v", tmp_path / "a.pkl")
    assert done.stdout == f"{tmp_path / 'a.pkl'}: {name}  {severity}  (byte 2)\n"


def test_a_quiet_scan_prints_a_line_with_the_file_for_each_finding(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(ATTACK)
    (tmp_path / "b.pkl").write_bytes(whole(call("a.B")))
    (tmp_path / "c.pkl").write_bytes(HARMLESS)
    done = weightctl("ls", "--scan", "-q", ".", cwd=tmp_path)
    assert done.stdout.splitlines() == [
        "./a.pkl: os.system  dangerous  (byte 2)",
        "./b.pkl: a.B  unknown  (byte 2)",
    ]


def test_one_summary_ends_the_scan_of_several_paths(tmp_path: Path) -> None:
    for name, content in {"a": ATTACK, "b": ATTACK, "c": HARMLESS}.items():
        (tmp_path / f"{name}.pkl").write_bytes(content)
    done = weightctl("ls", "--scan", "a.pkl", "b.pkl", "c.pkl", cwd=tmp_path)
    assert done.stdout.splitlines()[2:] == [
        "3 files, 3 pickles, no code in templates or configs: 2 dangerous, 0 unknown, 1 known"
    ]


def test_a_compressed_npz_without_pickles_is_clean(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", a=np.arange(100_000.0), b=np.array(["x"]))
    done = weightctl("ls", "--scan", tmp_path / "a.npz")
    assert (done.returncode, done.stdout) == (
        0,
        "1 file, no pickles, no code in templates or configs\n",
    )


@pytest.mark.parametrize("kind", ["alone", "in a stream", "in a zip"])
@pytest.mark.parametrize("options", [(), ("--flat",), ("--json",), ("-q",)])
def test_ls_warns_of_a_dangerous_global(
    kind: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "a.bin").write_bytes(EVIL[kind])
    done = weightctl("ls", *options, tmp_path / "a.bin")
    assert done.returncode == 0, done.stderr
    assert (
        f"warning: {tmp_path / 'a.bin'}: loading this file in other programs can run code"
        in done.stderr
    )
    assert (
        "loading this file in other programs can run code, because its pickle names "
        "os.system; weightctl does not run this code, and `weightctl ls --scan` lists all that "
        "the pickle names"
    ) in done.stderr


def test_ls_does_not_warn_of_what_is_harmless(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2), "args": Namespace(a=1)}, tmp_path / "a.pt")
    (tmp_path / "b.pkl").write_bytes(whole(call("a.B")))
    assert "warning" not in weightctl("ls", tmp_path / "a.pt").stderr
    assert "warning" not in weightctl("ls", tmp_path / "b.pkl").stderr


def test_scan_goes_with_no_other_question() -> None:
    done = weightctl("ls", "--scan", "--flat", TINY)
    assert done.returncode == 2
    assert "--scan lists the globals of pickles, not tensors" in done.stderr


NESTED = "torch.nn.torch.load"


@pytest.mark.parametrize(
    ("name", "pattern", "code"),
    [
        ("mylib.nets.Net", "mylib.*", 0),
        ("mylib.nets.Net", "mylib.nets.Net", 0),
        ("mylib.nets.Net", "mylib.Net", 1),
        ("mylib.nets.Net", "mylib", 1),
        ("os.system", "os.system", 0),
        ("os.system", "os.*", 1),
        ("os.system", "*", 1),
        (NESTED, "torch.nn.*", 1),
        (NESTED, NESTED, 0),
    ],
)
def test_an_allowed_global_counts_as_known(
    name: str, pattern: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "a.pkl").write_bytes(whole(call(name)))
    assert weightctl("ls", "--scan", "a.pkl", cwd=tmp_path).returncode == 1
    done = weightctl("ls", "--scan", "-v", "a.pkl", "--allow", pattern, cwd=tmp_path)
    assert done.returncode == code
    assert (f"a.pkl: {name}  known" in done.stdout) is not bool(code)
    (tmp_path / "allow.txt").write_text(f"# what we trust\n\nother.*\n  {pattern}  # and why\n")
    listed = weightctl("ls", "--scan", "a.pkl", "--allow-file", "allow.txt", cwd=tmp_path)
    assert listed.returncode == code


def test_allow_is_repeatable_and_counts_in_json(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(whole(call("a.B") + b"0" + call("c.D")))
    allowed = ("--allow", "a.*", "--allow", "c.?")
    done = weightctl("ls", "--scan", "--json", "a.pkl", *allowed, cwd=tmp_path)
    assert done.returncode == 0
    (pickled,) = json.loads(done.stdout)["files"][0]["pickles"]
    assert [(each["severity"], each["known"]) for each in pickled["globals"]] == [
        ("known", True),
        ("known", True),
    ]


def test_a_name_that_is_put_together_while_it_loads_is_never_allowed(tmp_path: Path) -> None:
    made_up = whole(call("builtins.str", "os") + text("system") + b"\x93")
    (tmp_path / "a.pkl").write_bytes(made_up)
    done = weightctl("ls", "--scan", "-q", "a.pkl", "--allow", "*", cwd=tmp_path)
    assert done.returncode == 1
    assert "a.pkl: a name that is computed while the pickle loads  unknown  " in done.stdout


def test_what_cannot_be_judged_is_never_allowed(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(HARMLESS[:-3])
    done = weightctl("ls", "--scan", "a.pkl", "--allow", "*", cwd=tmp_path)
    assert done.returncode == 1


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_an_allow_file_that_cannot_be_read_is_an_error(
    content: bytes | None, tmp_path: Path
) -> None:
    (tmp_path / "a.pkl").write_bytes(HARMLESS)
    if content is not None:
        (tmp_path / "allow.txt").write_bytes(content)
    done = weightctl("ls", "--scan", "a.pkl", "--allow-file", "allow.txt", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: allow.txt" in done.stderr


@pytest.mark.parametrize(
    "options",
    [("-v",), ("--allow", "a"), ("--allow-file", "a"), ("--sarif", "a"), ("--force",)],
)
def test_options_of_a_scan_need_it(options: tuple[str, ...]) -> None:
    done = weightctl("ls", TINY, *options)
    assert done.returncode == 2
    assert "can only be used with --scan" in done.stderr


# `ls --scan --sarif FILE` writes a SARIF 2.1.0 log, and only replaces its own file.


UNKNOWN = whole(call("a.B"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "evil.pkl").write_bytes(ATTACK)
    (tmp_path / "odd name.pkl").write_bytes(UNKNOWN)
    (tmp_path / "cut.pkl").write_bytes(UNKNOWN[:-1])
    (tmp_path / "harmless.pkl").write_bytes(whole(call("collections.OrderedDict")))
    return tmp_path


def report(folder: Path) -> Any:
    """Return the log `out.sarif` after it was compared with the schema of SARIF 2.1.0."""
    log = json.loads((folder / "out.sarif").read_text())
    schema = json.loads((ROOT / "fixtures" / "sarif-2.1.0.json").read_text())
    Draft4Validator(schema, format_checker=Draft4Validator.FORMAT_CHECKER).validate(log)
    return log


def test_the_schema_refuses_what_is_not_sarif() -> None:
    schema = json.loads((ROOT / "fixtures" / "sarif-2.1.0.json").read_text())
    Draft4Validator.check_schema(schema)
    assert not Draft4Validator(schema).is_valid({"version": "2.1.0"})
    assert not Draft4Validator(schema).is_valid({"version": "2.1.0", "runs": [{"results": []}]})


def test_each_finding_is_a_result(folder: Path) -> None:
    done = weightctl("ls", "--scan", ".", "--sarif", "out.sarif", cwd=folder)
    assert done.returncode == 1, done.stderr
    (run,) = report(folder)["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "weightctl"
    found = [
        (
            each["locations"][0]["physicalLocation"]["artifactLocation"]["uri"],
            each["ruleId"],
            each["level"],
        )
        for each in run["results"]
    ]
    assert found == [
        ("./cut.pkl", "unread-pickle", "error"),
        ("./cut.pkl", "unknown-global", "warning"),
        ("./evil.pkl", "dangerous-global", "error"),
        ("./odd%20name.pkl", "unknown-global", "warning"),
    ]
    for each in run["results"]:
        assert driver["rules"][each["ruleIndex"]]["id"] == each["ruleId"]
    evil = run["results"][2]
    assert evil["message"]["text"] == "a pickle names os.system (byte 2)"
    assert evil["locations"][0]["physicalLocation"]["region"] == {"byteOffset": 2}
    assert run["invocations"][0]["exitCode"] == 1


def test_a_member_of_an_archive_is_a_logical_location(tmp_path: Path) -> None:
    attack = ROOT / "fixtures" / "attack.pt"
    weightctl("ls", "--scan", attack, "--sarif", "out.sarif", cwd=tmp_path)
    (result,) = report(tmp_path)["runs"][0]["results"]
    (location,) = result["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == attack.as_uri()
    assert location["logicalLocations"] == [{"fullyQualifiedName": "attack/data.pkl"}]


def test_a_clean_scan_has_no_results(folder: Path) -> None:
    done = weightctl("ls", "--scan", "-v", "harmless.pkl", "--sarif", "out.sarif", cwd=folder)
    assert done.returncode == 0
    assert report(folder)["runs"][0]["results"] == []


def test_what_is_allowed_is_not_a_result(folder: Path) -> None:
    options = ("--allow", "a.*", "--sarif", "out.sarif")
    done = weightctl("ls", "--scan", "odd name.pkl", *options, cwd=folder)
    assert done.returncode == 0
    assert report(folder)["runs"][0]["results"] == []


def test_a_path_that_cannot_be_read_is_a_notification(folder: Path) -> None:
    done = weightctl("ls", "--scan", "evil.pkl", "nope", "--sarif", "out.sarif", cwd=folder)
    assert done.returncode == 2
    (run,) = report(folder)["runs"]
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    (notification,) = invocation["toolExecutionNotifications"]
    assert "nope" in notification["message"]["text"]
    assert len(run["results"]) == 1


def test_the_findings_are_printed_as_well(folder: Path) -> None:
    without = weightctl("ls", "--scan", "evil.pkl", cwd=folder)
    done = weightctl("ls", "--scan", "evil.pkl", "--sarif", "out.sarif", cwd=folder)
    assert done.stdout == without.stdout
    as_json = weightctl("ls", "--scan", "evil.pkl", "--json", "--sarif", "b.sarif", cwd=folder)
    assert json.loads(as_json.stdout)["path"] == "evil.pkl"


def test_a_report_that_exists_is_replaced_with_force_only(folder: Path) -> None:
    (folder / "out.sarif").write_text("mine")
    command = ("ls", "--scan", ".", "--sarif", "out.sarif")
    done = weightctl(*command, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "out.sarif exists" in done.stderr
    assert (folder / "out.sarif").read_text() == "mine"
    assert weightctl(*command, "--force", cwd=folder).returncode == 1
    assert report(folder)["version"] == "2.1.0"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("evil.pkl", "--sarif", "evil.pkl"), "evil.pkl is the input itself"),
        ((".", "--sarif", "evil.pkl"), "evil.pkl is the input itself"),
        (("evil.pkl", "--sarif", "."), ". is a directory"),
        (("evil.pkl", "--sarif", "no/out.sarif"), "does not exist"),
        (("evil.pkl", "--sarif", "-"), "--sarif cannot write to stdout"),
        (
            ("evil.pkl", "--sarif", "allow.txt", "--allow-file", "allow.txt"),
            "allow.txt is the allow-list",
        ),
    ],
)
def test_a_report_that_would_do_harm_is_refused(
    options: tuple[str, ...], message: str, folder: Path
) -> None:
    (folder / "allow.txt").write_text("a.B\n")
    done = weightctl("ls", "--scan", "--force", *options, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert (folder / "evil.pkl").read_bytes() == ATTACK


# What is left out is reported, and a fault in one file does not end the scan of the others.


def test_a_link_to_a_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.pkl").write_bytes(ATTACK)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "inner").symlink_to(tmp_path / "elsewhere")
    done = weightctl("ls", "--scan", "model", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == (
        "model/inner: cannot be judged: a symbolic link to a directory; its files were not scanned"
        "  unread  (byte 0)"
    )


def test_a_directory_that_cannot_be_read_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model" / "inner").mkdir(parents=True)
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if os.path.basename(path) == "inner":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    done = weightctl("ls", "--scan", "model", cwd=tmp_path)
    assert done.returncode == 1
    assert "model/inner: cannot be judged: a directory that cannot be read: " in done.stdout


def test_a_file_with_a_temporary_name_is_scanned(tmp_path: Path) -> None:
    (tmp_path / "a.weightctl-00000000.partial").write_bytes(ATTACK)
    assert "dangerous" in weightctl("ls", "--scan", tmp_path).stdout


def test_a_zip_with_an_empty_directory_is_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "empty.pt", "w"):
        pass
    done = weightctl("ls", "--scan", tmp_path / "empty.pt")
    assert (done.returncode, done.stderr) == (0, "")
    for command in ("ls", "stat", "check", "verify"):
        done = weightctl(command, tmp_path / "empty.pt")
        assert done.returncode in {1, 2}
        assert "Traceback" not in done.stderr


def test_a_fault_in_one_file_does_not_end_the_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.pkl").write_bytes(b"")
    (tmp_path / "b.pkl").write_bytes(ATTACK)
    scan = scanning.scan_file

    def fail(file: Any) -> Any:
        if file.path.endswith("a.pkl"):
            raise ZeroDivisionError("division by zero")
        return scan(file)

    monkeypatch.setattr(scanning, "scan_file", fail)
    done = weightctl("ls", "--scan", ".", cwd=tmp_path)
    assert done.returncode == 1
    assert "a fault of weightctl, which should be reported (ZeroDivisionError: " in done.stdout
    assert "dangerous" in done.stdout


def test_a_journal_of_a_replacement_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(HARMLESS)
    assert weightctl("ls", "--scan", "a.pt", cwd=tmp_path).returncode == 0
    other = os.path.basename(temporary_name("a.pt"))
    (tmp_path / other).write_bytes(HARMLESS)
    record = Path(switch_path(str(tmp_path / "a.pt")))
    record.write_bytes(switch_bytes({"a.pt": other}, ("a.pt",)))
    done = weightctl("ls", "--scan", "a.pt", cwd=tmp_path)
    assert done.returncode == 1
    assert f"{record.name}: cannot be judged: the journal of a replacement" in done.stdout
