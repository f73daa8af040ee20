"""Code outside of pickles is found in every file that programs load it from."""

from __future__ import annotations

import os
import re
import sqlite3
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dangerous_files import DENSE, HARMFUL, hdf5_of, json_of, keras_of, model_of

from build import Gguf
from each import each
from lazy import torch
from payloads import ran
from weightctl.formats.scanning import scan_file
from weightctl.storage.files import open_reader

if TYPE_CHECKING:
    from collections.abc import Callable

    from commands import Completed

FIXTURES = Path(__file__).parents[3] / "fixtures"
DANGEROUS, UNKNOWN = "dangerous", "unknown"


def find(path: Path) -> list[tuple[str, str]]:
    """Return the severity and the text of the code in a file."""
    found = scan_file(open_reader(str(path)))
    assert not any(each.names.problem for each in found)
    return [(each.code.severity.value, each.code.text) for each in found if each.code]


HARMLESS_FILES = {
    "config.json": json_of(model_of(DENSE)),
    "tokenizer_config.json": json_of({"chat_template": "{{ messages[0]['content'] }}"}),
    "modules.json": json_of([{"idx": 0, "type": "sentence_transformers.models.Pooling"}]),
    "model_index.json": json_of({"_class_name": "Pipe", "unet": ["diffusers", "UNet"]}),
    "adapter_config.json": json_of({"auto_mapping": {"parent_library": "transformers.models.a"}}),
    "a.yaml": b"layers: 3\nname: python\n",
    "model.keras": keras_of(json_of(model_of(DENSE))),
    "model.h5": hdf5_of(model_of(DENSE)),
    "model.gguf": Gguf().file(values={"tokenizer.chat_template": ("string", "{{ messages }}")}),
}


def test_a_file_of_hdf5_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"\x89HDF\r\n\x1a\n" + bytes(10 << 20)
    (tmp_path / "a.h5").write_bytes(content)
    file, lengths = open_reader(str(tmp_path / "a.h5")), list[int]()
    read = type(file).read

    def count(self: object, offset: int, nbytes: int) -> bytes:
        found = read(self, offset, nbytes)
        lengths.append(len(found))
        return found

    monkeypatch.setattr(type(file), "read", count)
    assert scan_file(file) == []
    assert sum(lengths) < 1.1 * len(content)


@each("name", HARMLESS_FILES)
def test_files_without_code_have_no_findings(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(HARMLESS_FILES[name])
    assert find(tmp_path / name) == []


def test_no_fixture_has_dangerous_code() -> None:
    paths = [
        path for path in sorted(FIXTURES.rglob("*.*")) if path.is_file() and path.suffix != ".py"
    ]
    offenders = [
        f"{path}: {each.code.text}"
        for path in paths
        for each in scan_file(open_reader(str(path)))
        if each.code is not None and each.code.is_dangerous
    ]
    assert not offenders, "\n".join(offenders)


@each("body", [
    b'{"a":!' * 200_000, b'{"a":' * 200_000, (b'{"a":' * 900 + b"!") * 200, b'{"a":"' * 150_000,
])  # fmt: skip
def test_objects_in_hdf5_that_never_end_take_no_time(body: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + body)
    before = time.process_time()
    (found,) = scan_file(open_reader(str(tmp_path / "a.h5")))
    assert "too many objects of JSON" in found.names.problem
    # To try each object against the rest of the file took hours.
    assert time.process_time() - before < 10


def test_an_object_that_is_longer_than_a_window_is_read(tmp_path: Path) -> None:
    layers = [DENSE | {"name": "x" * 100_000} for _ in range(60)]
    config = {"class_name": "Sequential", "config": {"layers": [*layers, HARMFUL]}}
    (tmp_path / "a.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(5000) + json_of(config))
    assert (DANGEROUS, "a Lambda layer of Keras") in find(tmp_path / "a.h5")


@pytest.mark.filterwarnings("ignore:`torch.jit", "ignore::DeprecationWarning")
def test_torchscript_is_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "a.pt")
    assert {*find(tmp_path / "a.pt")} == {(UNKNOWN, "TorchScript, which torch.jit.load runs")}
    net = torch.jit.ScriptModule()
    net.define("def forward(self, x):\n    torch.save(x, 'file')\n    return x\n")
    torch.jit.save(net, tmp_path / "b.pt")
    assert (DANGEROUS, "TorchScript, which torch.jit.load runs") in find(tmp_path / "b.pt")
    torch.jit.load("b.pt")(torch.ones(1))
    assert (tmp_path / "file").exists()


def test_a_program_of_torch_export_is_code(tmp_path: Path) -> None:
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    torch.export.save(program, tmp_path / "a.pt2")
    assert {*find(tmp_path / "a.pt2")} == {(UNKNOWN, "a graph of torch.export")}


@pytest.mark.long
def test_an_expression_of_torch_export_runs(tmp_path: Path) -> None:
    sizes = {"input": {0: torch.export.Dim("rows", min=2, max=9)}}
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(3, 2),), dynamic_shapes=sizes)
    torch.export.save(program, tmp_path / "a.pt2")
    payload = b'"expr_str": "__import__(\'payloads\').run()"'
    with (
        zipfile.ZipFile(tmp_path / "a.pt2") as old, zipfile.ZipFile(tmp_path / "b.pt2", "w") as new
    ):  # fmt: skip
        for name in old.namelist():
            new.writestr(name, re.sub(rb'"expr_str": ?"[^"]*"', payload, old.read(name)))
    assert ran(lambda: torch.export.load(tmp_path / "b.pt2"))
    assert DANGEROUS in {severity for severity, _ in find(tmp_path / "b.pt2")}


def test_a_database_is_not_looked_at(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "a.db")
    database.execute("create table t (a blob)")
    database.commit()
    database.close()
    (found,) = scan_file(open_reader(str(tmp_path / "a.db")))
    assert "an SQLite database can contain pickles" in found.names.problem


def test_source_counts_where_a_file_names_code(
    weightctl: Callable[..., Completed], tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text("import os\nos.system('id')\n")
    (tmp_path / "config.json").write_text("{}")
    done = weightctl("ls", "--scan", tmp_path)
    assert (done.returncode, done.stdout) == (
        0,
        "2 files, no pickles, no code in templates or configs\n",
    )
    (tmp_path / "config.json").write_bytes(json_of({"auto_map": {"AutoModel": "net.Net"}}))
    done = weightctl("ls", "--scan", ".", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f".{os.sep}config.json: code: net.Net, which auto_map names  unknown  (byte 0)",
        f".{os.sep}net.py: code: Python source  dangerous  (byte 0)",
        "2 files, no pickles, other code in 2 places: 1 dangerous, 1 unknown, 0 known",
    ]
    # A file that is named is always looked at.
    assert weightctl("ls", "--scan", tmp_path / "net.py").returncode == 1
    allowed = ("--allow", "code: net.*", "--allow", "code: Python source")
    assert weightctl("ls", "--scan", tmp_path, *allowed).returncode == 0
    wild = ("--allow", "code: *")
    assert weightctl("ls", "--scan", tmp_path, *wild).returncode == 1
