"""A `file://` URL means the same as its path, wherever a path is taken."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

from importances import imatrix_gguf
from weightctl import convert, gather, open_weights, save, shard
from weightctl.errors import FormatError
from weightctl.plan.plan import Plan
from weightctl.storage.location import parse_location
from weightctl.verify import Request, Subject, verify
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]

# HERE is a directory, and `~` a space.
COMMANDS = [
    "ls HERE/a~b/model",
    "ls HERE/a~b/model/model.safetensors --long",
    "ls HERE/a~b/model --scan --sarif HERE/new/a~b.sarif --allow-file HERE/allow.txt",
    "diff HERE/a~b/model HERE/a~b/model/model.safetensors --values",
    "convert HERE/a~b/model HERE/new/a~b.gguf --report HERE/new/report.json --quant Q8_0",
    "convert HERE/a~b/model HERE/new/directory/ --dtype f16",
    "convert HERE/a~b/model HERE/new/recipe.gguf --quant HERE/recipe.toml",
    "convert HERE/a~b/model HERE/new/matrix.gguf --quant Q4_K --imatrix HERE/matrix.gguf",
    "convert HERE/a~b/model HERE/new/out.safetensors --rename HERE/a=b.toml",
    "convert HERE/a~b/model HERE/new/out.safetensors --set license=@HERE/text.txt",
    "convert HERE/a~b/model HERE/new/out.safetensors --dtype f16 --on processes:1",
    "shard HERE/a~b/model HERE/new/ranks --tp 2 --plan HERE/plan.toml",
    "shard HERE/a~b/model HERE/new/ranks --tp 2 --on processes:1",
    "shard HERE/a~b/model --tp auto --plan HERE/plan.toml",
    "shard HERE/ranks HERE/new/whole --gather",
    "verify HERE/a~b/model --skip forward --report HERE/new/a~b.html --report HERE/new/b.md",
    "verify HERE/a~b/model --skip forward --against HERE/a~b/model",
    "verify HERE/a~b/model --check forward --text-file HERE/text.txt",
]
_TIMES = re.compile(r"\d+\.\d+\S*|\b\d+ (m?s|[kMG]?B/s)\b|\b[\d-]+[T ]\d\d:\d\d\S*")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Path:
    """A directory with a model, its shards, and files that options take."""
    tmp_path = tmp_path_factory.mktemp("here")
    (tmp_path / "new").mkdir()
    model = tmp_path / "a b" / "model"
    model.mkdir(parents=True)
    for path in tiny_llama.iterdir():
        (model / path.name).write_bytes(path.read_bytes())
    shard(model, tmp_path / "ranks", tp=2)
    (tmp_path / "plan.toml").write_text("[tensors]\n'o_proj' = 'replicate'\n")
    (tmp_path / "recipe.toml").write_text("default = 'Q8_0'\n")
    (tmp_path / "a=b.toml").write_text("[rename]\n'^model' = 'decoder'\n")
    (tmp_path / "text.txt").write_text("a text of some words\n")
    (tmp_path / "allow.txt").write_text("torch.nn.*\n")
    entry = (np.ones((1, 512), np.float32), np.ones(1, np.float32))
    imatrix_gguf(tmp_path / "matrix.gguf", {"blk.0.ffn_down.weight": entry})
    return tmp_path


def run(weightctl: Run, words: str, place: str, space: str, here: Path) -> tuple[object, ...]:
    """Run a command; return what it prints and writes, without times, and remove what it wrote."""
    named = (word.replace("HERE", place).replace("~", space) for word in words.split())
    done = weightctl(*named, cwd=here)
    new = here / "new"
    files = {str(path.relative_to(new)): path for path in new.rglob("*") if path.is_file()}
    written = {name: _TIMES.sub("", path.read_text("latin-1")) for name, path in files.items()}
    for path in sorted(new.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert "file://" not in done.stdout + done.stderr
    return done.returncode, _TIMES.sub("", done.stdout), _TIMES.sub("", done.stderr), written


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_does_the_same_with_a_file_url(words: str, weightctl: Run, here: Path) -> None:
    by_path = run(weightctl, words, str(here), " ", here)
    assert by_path[0] == 0, by_path[2]
    assert bool(by_path[-1]) == ("HERE/new" in words)
    assert run(weightctl, words, f"file://{here}", "%20", here) == by_path


@pytest.mark.parametrize(
    "words",
    [
        "verify HERE/ranks --report URL/a.html",
        "convert HERE/ranks HERE/new/a.gguf --report URL/a.json",
        "ls HERE/ranks --scan --sarif URL/a.sarif",
    ],
)
def test_a_report_is_not_written_to_another_url(words: str, weightctl: Run, here: Path) -> None:
    done = weightctl(*words.replace("HERE", str(here)).replace("URL", "s3://bucket").split())
    assert done.returncode == 2
    assert "is a URL; this file can only be written to a local path" in done.stderr
    assert not [*(here / "new").iterdir()]


@pytest.mark.parametrize("url", ["file://host/a", "file://", "file://a"])
def test_a_url_of_another_machine_is_an_error(url: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_location(url)
    assert caught.value.hint == "use file:///PATH, with three slashes and the whole path"


def test_a_url_may_name_this_machine() -> None:
    assert parse_location("file://localhost/a%20b") == ("file", "/a b")


def test_functions_take_file_urls(here: Path) -> None:
    model, new = f"file://{here}/a%20b/model", f"file://{here}/new"
    save(Plan.copy(open_weights(model), "safetensors"), f"{new}/saved.safetensors")
    convert(model, f"{new}/a.gguf", quant=f"file://{here}/recipe.toml")
    shard(model, f"{new}/ranks", tp=2, rules=f"file://{here}/plan.toml")
    gather(f"{new}/ranks", f"{new}/whole.safetensors")
    tensors = header_of(open_weights(here / "a b" / "model")).tensors.keys()
    for name in ("saved.safetensors", "whole.safetensors"):
        assert header_of(open_weights(here / "new" / name)).tensors.keys() == tensors
    found = verify(Request(subject=Subject(f"{new}/a.gguf"), reference=Subject(model)), ["values"])
    assert not found.problems
    assert not found.results["values"].skipped
