"""Code outside of pickles is found in every file that programs load it from."""

from __future__ import annotations

import base64
import io
import json
import marshal
import os
import sqlite3
import tarfile
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from build import Gguf
from each import each
from lazy import torch
from weightctl.formats.scanning import scan_file
from weightctl.storage.files import open_reader

if TYPE_CHECKING:
    from collections.abc import Callable

    from commands import Completed

FIXTURES = Path(__file__).parents[3] / "fixtures"
TEMPLATE = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
TEMPLATES = "a chat template that reaches for "


def lambda_layer(source: str) -> dict[str, Any]:
    """Return the config that Keras 3 writes for a Lambda layer."""
    code = base64.b64encode(marshal.dumps(eval(source).__code__)).decode()
    function = {"class_name": "__lambda__", "config": {"code": code, "defaults": None}}
    return {"module": "keras.layers", "class_name": "Lambda", "config": {"function": function}}


def model_of(layer: dict[str, Any]) -> dict[str, Any]:
    return {"module": "keras", "class_name": "Sequential", "config": {"layers": [layer]}}


HARMFUL = lambda_layer("lambda x: __import__('os').system('id')")
HARMLESS = lambda_layer("lambda x: x / 255.0")
DENSE = {"module": "keras.layers", "class_name": "Dense", "registered_name": None}


def zip_of(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, raw in members.items():
            archive.writestr(name.replace("__", "/").replace("_json", ".json"), raw)
    return file.getvalue()


def hdf5_of(config: Any, **attributes: Any) -> bytes:
    import h5py

    file = io.BytesIO()
    with h5py.File(file, "w") as made:
        made.attrs["model_config"] = json.dumps(config)
        for name, value in attributes.items():
            made.attrs[name] = value
    return file.getvalue()


def tar_of(name: str, raw: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(raw)
        archive.addfile(member, io.BytesIO(raw))
    return file.getvalue()


def json_of(document: Any) -> bytes:
    return json.dumps(document).encode()


def escaped(raw: bytes, word: bytes) -> bytes:
    """Return JSON in which the letters of a word are escapes."""
    return raw.replace(word, b"".join(b"\\u%04x" % letter for letter in word))


# A file name, its bytes, and what is found: the severity and the start of the text.
DANGEROUS, UNKNOWN = "dangerous", "unknown"
FOUND: dict[str, tuple[str, bytes, str, str]] = {
    "a Lambda layer": ("model.keras", zip_of(config_json=json_of(model_of(HARMFUL))),
        DANGEROUS, "a Lambda layer of Keras"),
    "a Lambda layer with escapes": ("model.keras",
        zip_of(config_json=escaped(json_of(model_of(HARMFUL)), b"class_name")),
        DANGEROUS, "a Lambda layer of Keras"),
    "a harmless Lambda layer": ("model.keras", zip_of(config_json=json_of(model_of(HARMLESS))),
        UNKNOWN, "a Lambda layer of Keras"),
    "a Lambda layer in HDF5": ("model.h5", hdf5_of(model_of(HARMFUL)),
        DANGEROUS, "a Lambda layer of Keras"),
    "a class of another module": ("config.json",
        json_of(model_of({"module": "mylib.layers", "class_name": "Attention"})),
        UNKNOWN, "mylib.layers.Attention, which Keras imports"),
    "a function of os": ("model.keras",
        zip_of(config_json=json_of({"module": "os", "class_name": "system", "config": "id"})),
        DANGEROUS, "os.system, which Keras imports"),
    "a repeated key": ("config.json",
        b'{"class_name": "Dense", "module": "os", "class_name": "system", "module": "keras"}',
        DANGEROUS, "os.system, which Keras imports"),
    "a class of Python in UTF-16": ("config.json",
        json.dumps({"module": "builtins", "class_name": "eval"}).encode("utf-16"),
        DANGEROUS, "builtins.eval, which Keras imports"),
    "objects of PyTables": ("data.h5", hdf5_of({}, PYTABLES_FORMAT_VERSION="2.1"),
        UNKNOWN, "objects that PyTables unpickles"),
    "a pickle in PyTables": ("data.h5",
        hdf5_of({}, PYTABLES_FORMAT_VERSION="2.1", x=b"cos\nsystem\n(S'id'\ntR."),
        DANGEROUS, "a pickle in HDF5"),
    "chunks of zarr": (".zarray", json_of({"dtype": "|O", "filters": [{"id": "pickle"}]}),
        UNKNOWN, "chunks that zarr unpickles"),
    "auto_map": ("config.json", json_of({"auto_map": {"AutoConfig": "evil/repo--conf.Conf"}}),
        UNKNOWN, "evil/repo--conf.Conf, which auto_map names"),
    "auto_map of a tokenizer": ("tokenizer_config.json",
        json_of({"auto_map": {"AutoTokenizer": ["slow.Slow", None]}}),
        UNKNOWN, "slow.Slow, which auto_map names"),
    "a custom pipeline": ("config.json",
        json_of({"custom_pipelines": {"pairs": {"impl": "pairs.Pairs", "pt": ["AutoModel"]}}}),
        UNKNOWN, "pairs.Pairs, which a custom pipeline names"),
    "a pipeline of diffusers": ("model_index.json", json_of({"_class_name": ["mine", "Mine"]}),
        UNKNOWN, "mine, which a custom pipeline names"),
    "a module of sentence-transformers": ("modules.json",
        json_of([{"idx": 0, "name": "0", "path": "", "type": "custom_st.Transformer"}]),
        UNKNOWN, "custom_st.Transformer, which sentence-transformers imports"),
    "a library of PEFT": ("adapter_config.json",
        json_of({"auto_mapping": {"base_model_class": "Net", "parent_library": "os.net"}}),
        DANGEROUS, "os.net, which PEFT imports"),
    "a target of Hydra": ("model_config.yaml", b"model:\n  _target_: os.system\n",
        DANGEROUS, "os.system, which Hydra imports"),
    "a target of Hydra in a tar": ("model.nemo", tar_of("model_config.yaml", b"_target_: a.B\n"),
        UNKNOWN, "a.B, which Hydra imports"),
    "a tag of YAML": ("a.yml", b"a: !!python/object/apply:os.system [id]\n",
        DANGEROUS, "a YAML tag that creates Python objects"),
    "an escaped tag of YAML": ("a.yml", b"a: !!%70ython/object/apply:os.system [id]\n",
        DANGEROUS, "a YAML tag that creates Python objects"),
    "a tag of YAML with a prefix": ("a.yml",
        b"%TAG !e! tag:yaml.org,2002:pyth\n---\na: !e!on/object/apply:os.system [id]\n",
        DANGEROUS, "a YAML tag that creates Python objects"),
    "a chat template": ("chat_template.jinja", TEMPLATE.encode(),
        DANGEROUS, f"{TEMPLATES}__class__, __mro__, __subclasses__"),
    "a chat template in JSON": ("tokenizer_config.json",
        json_of({"chat_template": [{"name": "default", "template": TEMPLATE}]}),
        DANGEROUS, f"{TEMPLATES}__class__, __mro__, __subclasses__"),
    "a chat template in GGUF": ("model.gguf",
        Gguf().file(values={"tokenizer.chat_template": ("string", TEMPLATE)}),
        DANGEROUS, f"{TEMPLATES}__class__, __mro__, __subclasses__"),
    "a computed name in a template": ("chat_template.jinja",
        b"{{ ''|attr('_' + '_class_' + '_') }}",
        UNKNOWN, "a chat template that computes the names of attributes"),
    "an expression of torch.export": ("models/model.json",
        json_of({"graph_module": {}, "range": {"expr_str": "__import__('os').system('id')"}}),
        DANGEROUS, "the expression"),
    "native code": ("model.pt2", zip_of(**{"m__data__a.so": b"\x7fELF"}), DANGEROUS, "native code"),
    "source in an archive": ("package.pt", zip_of(**{"m__net.py": b"class Net: ...\n"}),
        UNKNOWN, "Python source"),
    "operations of TensorFlow": ("saved_model.pb", b"\n\x0f\x12\x08\n\x08ReadFile",
        DANGEROUS, "a TensorFlow operation on files"),
}  # fmt: skip


def find(path: Path) -> list[tuple[str, str]]:
    """Return the severity and the text of the code in a file."""
    found = scan_file(open_reader(str(path)))
    assert not any(each.names.problem for each in found)
    return [(each.code.severity.value, each.code.text) for each in found if each.code]


@each("case", FOUND)
def test_code_is_found(case: str, tmp_path: Path) -> None:
    name, raw, severity, text = FOUND[case]
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(raw)
    found = find(path)
    assert any(kind == severity and each.startswith(text) for kind, each in found), found
    assert severity == DANGEROUS or all(kind == UNKNOWN for kind, _ in found), found


HARMLESS_FILES = {
    "config.json": json_of(model_of(DENSE)),
    "tokenizer_config.json": json_of({"chat_template": "{{ messages[0]['content'] }}"}),
    "modules.json": json_of([{"idx": 0, "type": "sentence_transformers.models.Pooling"}]),
    "model_index.json": json_of({"_class_name": "Pipe", "unet": ["diffusers", "UNet"]}),
    "adapter_config.json": json_of({"auto_mapping": {"parent_library": "transformers.models.a"}}),
    "a.yaml": b"layers: 3\nname: python\n",
    "model.keras": zip_of(config_json=json_of(model_of(DENSE))),
    "model.h5": hdf5_of(model_of(DENSE)),
    "model.gguf": Gguf().file(values={"tokenizer.chat_template": ("string", "{{ messages }}")}),
}


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
def test_torchscript_is_code(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "a.pt")
    assert {*find(tmp_path / "a.pt")} == {(UNKNOWN, "TorchScript, which torch.jit.load runs")}
    net = torch.jit.ScriptModule()
    net.define("def forward(self, x):\n    torch.save(x, 'file')\n    return x\n")
    torch.jit.save(net, tmp_path / "b.pt")
    assert (DANGEROUS, "TorchScript, which torch.jit.load runs") in find(tmp_path / "b.pt")


def test_a_program_of_torch_export_is_code(tmp_path: Path) -> None:
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    torch.export.save(program, tmp_path / "a.pt2")
    assert {*find(tmp_path / "a.pt2")} == {(UNKNOWN, "a graph of torch.export")}


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
    assert (done.returncode, done.stdout) == (0, "2 files, no pickles, no other code\n")
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
