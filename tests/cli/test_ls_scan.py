"""Every global that pickles name is listed, and one that is not known to be harmless is exit 1."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from argparse import Namespace
from typing import TYPE_CHECKING

import pytest
import torch

from assembly import call, stream, whole

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]

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
def test_what_is_outside_the_list_is_exit_1(weightctl: Run, kind: str, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(EVIL[kind])
    done = weightctl("ls", "--scan", tmp_path / "a.bin")
    assert done.returncode == 1, done.stderr
    assert "1 outside the list" in done.stdout
    assert "\n  os.system" in done.stdout
    assert "dangerous" in done.stdout.partition("os.system")[2].splitlines()[0]


@pytest.mark.parametrize("legacy", [False, True])
def test_what_torch_writes_of_tensors_is_all_known(
    weightctl: Run, tmp_path: Path, *, legacy: bool
) -> None:
    root = {"w": torch.ones(2, dtype=torch.bfloat16), "args": Namespace(size=torch.Size([2]))}
    torch.save(root, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    done = weightctl("ls", "--scan", tmp_path / "a.pt")
    assert done.returncode == 0, done.stdout
    assert "all in the list" in done.stdout
    assert "argparse.Namespace" in done.stdout


def test_every_file_of_a_directory_is_scanned(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").write_bytes((tiny_llama / "model.safetensors").read_bytes())
    (tmp_path / "config.json").write_text("{}")
    assert "no pickle in its 2 files" in weightctl("ls", "--scan", tmp_path).stdout
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


def test_a_pickle_that_cannot_be_read_to_its_end_is_exit_1(weightctl: Run, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(HARMLESS[:-3])
    done = weightctl("ls", "--scan", tmp_path / "a.bin")
    assert done.returncode == 1
    assert "not all of it can be read" in done.stdout
    assert "unread" in done.stdout


def test_a_pickle_that_is_compressed_is_read(weightctl: Run, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", ATTACK * 10)
    done = weightctl("ls", "--scan", tmp_path / "a.pt")
    assert done.returncode == 1
    assert "\n  os.system  dangerous" in done.stdout


def test_each_global_has_a_severity(weightctl: Run, tmp_path: Path) -> None:
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
    shown = weightctl("ls", "--scan", tmp_path / "a.pkl").stdout.splitlines()
    assert [line.split()[:2] for line in shown[1:]] == [
        ["builtins.eval", "dangerous"],
        ["a.B", "outside"],
        ["collections.OrderedDict", "known"],
    ]


@pytest.mark.parametrize("kind", ["alone", "in a stream", "in a zip"])
@pytest.mark.parametrize("options", [(), ("--flat",), ("--json",), ("-q",)])
def test_ls_warns_of_a_dangerous_global(
    weightctl: Run, kind: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "a.bin").write_bytes(EVIL[kind])
    done = weightctl("ls", *options, tmp_path / "a.bin")
    assert done.returncode == 0, done.stderr
    assert f"warning: {tmp_path / 'a.bin'}: its pickle names os.system" in done.stderr


def test_ls_does_not_warn_of_what_is_harmless(weightctl: Run, tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2), "args": Namespace(a=1)}, tmp_path / "a.pt")
    (tmp_path / "b.pkl").write_bytes(whole(call("a.B")))
    assert "warning" not in weightctl("ls", tmp_path / "a.pt").stderr
    assert "warning" not in weightctl("ls", tmp_path / "b.pkl").stderr


def test_scan_goes_with_no_other_question(weightctl: Run, tiny_llama: Path) -> None:
    done = weightctl("ls", "--scan", "--flat", tiny_llama)
    assert done.returncode == 2
    assert "--scan reads pickles, and no tensors" in done.stderr
