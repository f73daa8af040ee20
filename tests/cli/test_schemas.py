"""The JSON of every command matches its schema in the package."""

from __future__ import annotations

import json
import re
import shutil
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

import small_checkpoints
from commands import run_command as weightctl
from weightctl.cli import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


# For each command, what it is asked for in a folder of checkpoints.
ASKED = {
    "ls": (
        "small awq mixture adapter tied split small.gguf big.gguf",
        "small awq small.gguf --hash",
        "small.gguf",
        "small.gguf --meta",
        "small.gguf tied --meta=format",
        "small.gguf --meta tokenizer.ggml.scores",
        "awq --include *.scales --sort size",
        "awq --exclude *",
        "training.pt small --hash",
        "training.pt --meta",
        "training.pt small --scan",
        "tiny-llama awq --fit 1GB --context 2048",
        "--families",
        "",
        "several",
    ),
    "stat": (
        "tiny-llama",
        "awq",
        "big.gguf --rank",
        "training.pt --include *weight*",
        "small --exclude *",
    ),
    "show": (
        "tiny-llama model.norm.weight",
        "big.gguf blk.0.ffn_up.weight 0,:4",
        "training.pt optimizer.state.0.step",
    ),
    "diff": (
        "small small",
        "small.gguf big.gguf --hash",
        "small awq",
        "awq mixture --include *layers*",
        "small small --values",
        "small.gguf small --values",
        "tiny-llama tiny-llama/model.safetensors --values",
        "tiny-llama tiny-llama/model.safetensors --patch tiny.patch",
    ),
    "apply": ("tiny-llama tiny.patch applied.safetensors",),
    "tasks": (
        "tiny-llama tasks.gguf --quant q8_0",
        "tiny-llama tasks --tp 2 --task-size 100kB --bandwidth 100MB",
        "small tasks --dtype bf16 --names keep",
    ),
    "convert": (
        "tiny-llama planned.gguf --dry-run",
        "tiny-llama out.gguf --quant q8_0",
        "out.gguf back --dtype bf16",
        "small kept.gguf --names keep",
        "small.gguf recipe.gguf --quant q4_0 --allow-requantize",
        "small.gguf out --dtype bf16 --names keep",
        "small parts --max-shard-size 1kB",
        "tied tied.safetensors --dtype f16",
        "training.pt training.safetensors --dtype bf16",
        "small blocks.gguf --quant q4_k --include *proj* --names keep",
        "tiny-llama found.gguf --bpw 4.5 --dry-run",
    ),
    "imatrix": (
        "tiny-llama -o imatrix.gguf --context 64 --chunks 2",
        "-o imatrix.dat --merge imatrix.gguf --context 64",
    ),
    "merge": (
        "tiny-llama tiny-adapter merged --dry-run",
        "tiny-llama tiny-adapter tuned --dtype f32",
        "tiny-llama tiny-adapter:0.5 merged.gguf --quant q8_0",
    ),
    "extract": ("tiny-llama tuned extracted --rank 2",),
    "shard": (
        "tiny-llama --tp auto",
        "tiny-llama halves --tp 2 --dry-run",
        "tiny-llama halves --tp 2",
        "tiny-llama stages --tp 2 --pp 3 --to gguf",
        "--gather halves whole --dry-run",
        "--gather halves whole",
    ),
    "edit": (
        "small.gguf --set general.name=new --dry-run",
        "small.gguf --set general.name=new --set my.list=[1,2]",
        "split --rename lm_head.weight=head.weight",
        "tiny-llama --rename model.norm.weight=norm.weight",
        "tiny-llama",
    ),
    "check": (
        "tiny-llama",
        "small",
        "faulty --fix --dry-run",
        "faulty --fix",
    ),
    "verify": (
        "tiny-llama --against tiny-llama --tokens 1,42,7",
        "awq --skip forward --skip structure",
        "tiny-llama --against small --compare",
        "tiny-llama --against tiny-llama --compare --skip forward",
    ),
}


# What other commands make of the checkpoints, for those that read it.
MADE_BY = {
    "apply": "diff tiny-llama tiny-llama/model.safetensors --patch tiny.patch --force",
    "extract": "merge tiny-llama tiny-adapter tuned --dtype f32 --force",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made_in = tmp_path_factory.mktemp("checkpoints")
    small_checkpoints.write_all(made_in)
    small_checkpoints.gguf(made_in, "big.gguf", ">")
    (made_in / "several").mkdir()
    for name in ("a", "b"):
        shutil.copy(made_in / "small.gguf", made_in / "several" / f"{name}.gguf")
    return made_in


def schema(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(
        (files("weightctl") / "schemas" / f"{name}.json").read_text()
    )
    return loaded


def objects(node: Any) -> Iterator[dict[str, Any]]:
    """Yield every schema of an object with properties inside a schema."""
    if isinstance(node, dict):
        if isinstance(node.get("properties"), dict):
            yield node
        for below in node.values():
            yield from objects(below)
    elif isinstance(node, list):
        for below in node:
            yield from objects(below)


def test_every_schema_states_its_version() -> None:
    schemas = files("weightctl").joinpath("schemas").iterdir()
    versions = {path.name: json.loads(path.read_text("utf-8"))["version"] for path in schemas}
    assert [name for name, each in versions.items() if not re.fullmatch(r"\d+\.\d+", each)] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_schema_of_its_name(name: str) -> None:
    Draft202012Validator.check_schema(schema(name))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_schema_describes_every_property_and_allows_no_other(name: str) -> None:
    found = schema(name)
    for described in objects(found):
        assert described["additionalProperties"] is False
        # Network traffic, a pull request, workers, a budget, a memory and the file of a tower are
        # described only if there were any.
        optional = {"budget", "fit", "mmproj", "network", "pull_request", "workers"}
        assert set(described["required"]) == set(described["properties"]) - optional
        for property_schema in described["properties"].values():
            reference = property_schema.get("$ref", "#").rpartition("/")[2]
            assert "description" in property_schema | found.get("$defs", {}).get(reference, {})


@pytest.mark.usefixtures("short_texts")
@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_command_prints_is_as_its_schema_says(name: str, folder: Path) -> None:
    validator = Draft202012Validator(schema(name))
    if name in MADE_BY:
        weightctl(*MADE_BY[name].split(), cwd=folder)
    for arguments in ASKED[name]:
        done = weightctl(name, *arguments.split(), "--json", cwd=folder)
        lines = done.stdout.splitlines()
        assert lines
        for line in lines:
            validator.validate(json.loads(line))


def test_a_document_with_more_or_less_is_refused(folder: Path) -> None:
    validator = Draft202012Validator(schema("ls"))
    document = json.loads(weightctl("ls", "small", "--json", cwd=folder).stdout)
    assert not validator.is_valid(document | {"surplus": 1})
    assert not validator.is_valid({key: document[key] for key in document if key != "totals"})
    assert not validator.is_valid(document | {"tensors": [{"name": "a"}]})


def test_an_error_is_a_document_too(folder: Path) -> None:
    validator = Draft202012Validator(schema("error"))
    failing = {
        "ls missing.gguf": "missing.gguf",
        "stat small --include nothing-*/": None,
        "convert small out.gguf --quant Q9": None,
        "verify small --check nmaes": None,
        "diff small missing": "missing",
        "check small --dry-run": None,
        "ls small --sort age": None,
        "convert small": None,
        "ls missing.gguf --scan": "missing.gguf",
    }
    paths: dict[str, Any] = {}
    for command in failing:
        done = weightctl(*command.split(), "--json", cwd=folder)
        if done.returncode == 0:
            continue
        assert done.returncode == 2, command
        (line,) = done.stdout.splitlines()
        document = json.loads(line)
        validator.validate(document)
        assert f"error: {document['error']}".splitlines()[0] in done.stderr
        paths[command] = document["path"]
    assert len(paths) >= len(failing) - 1
    assert {name: failing[name] for name in paths} == paths


def test_several_paths_give_a_document_each(folder: Path) -> None:
    done = weightctl("ls", "small", "missing.gguf", "awq", "--json", cwd=folder)
    assert done.returncode == 2
    documents = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["path"] for each in documents] == ["small", "missing.gguf", "awq"]
    assert [("error" in each) for each in documents] == [False, True, False]


def test_json_behind_a_double_dash_is_a_path(folder: Path) -> None:
    done = weightctl("ls", "--", "--json", cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
