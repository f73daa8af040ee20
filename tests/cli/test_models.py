"""`weightctl ls` lists models on this machine, and commands find them by their names."""

from __future__ import annotations

import hashlib
import json
import shutil
from typing import TYPE_CHECKING

import pytest

import weightctl as api
from commands import TINY, list_completions
from commands import run_command as weightctl
from weightctl.errors import FormatError
from weightctl.inspection import models
from weightctl.storage.files import locate_model

if TYPE_CHECKING:
    from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MANIFEST = "manifests/registry.ollama.ai/library/tiny/1b"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home with a model in the Hub's cache, in Ollama and in LM Studio."""
    for name in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copytree(TINY, tmp_path / "tiny-llama")
    api.convert(tmp_path / "tiny-llama", tmp_path / "tiny.gguf", quant="Q8_0")
    repository = tmp_path / ".cache/huggingface/hub/models--org--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text(COMMIT)
    (repository / "snapshots").mkdir()
    shutil.move(tmp_path / "tiny-llama", repository / "snapshots" / COMMIT)
    raw = (tmp_path / "tiny.gguf").read_bytes()
    digest = hashlib.sha256(raw).hexdigest()
    store = tmp_path / ".ollama/models"
    (store / "blobs").mkdir(parents=True)
    (store / "blobs" / f"sha256-{digest}").write_bytes(raw)
    (store / MANIFEST).parent.mkdir(parents=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:00"},
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"},
    ]
    (store / MANIFEST).write_text(json.dumps({"layers": layers}))
    folder = tmp_path / ".lmstudio/models/publisher/Tiny-GGUF"
    folder.mkdir(parents=True)
    shutil.move(tmp_path / "tiny.gguf", folder / "tiny-Q8_0.gguf")
    (tmp_path / "here").mkdir()
    return tmp_path


def test_models_of_all_places_are_listed(home: Path) -> None:
    shutil.copytree(home / ".lmstudio/models/publisher/Tiny-GGUF", home / "here/quantized")
    done = weightctl("ls", "--json", cwd=home / "here")
    found = {each["name"]: each for each in json.loads(done.stdout)["models"]}
    assert [(name, each["place"]) for name, each in found.items()] == [
        ("org/tiny", "Hugging Face"),
        ("tiny:1b", "Ollama"),
        ("publisher/Tiny-GGUF/tiny-Q8_0.gguf", "LM Studio"),
        ("quantized/tiny-Q8_0.gguf", "this directory"),
    ]
    assert {each["quantization"] for each in found.values()} == {"BF16", "Q8_0"}
    assert {each["parameters"] for each in found.values()} == {1_935_104}
    assert all(each["fits"] for each in found.values())
    table = weightctl("ls", cwd=home / "here").stdout
    assert "4 models" in table
    assert "in this machine's memory of" in table


def test_every_listed_name_is_a_model(home: Path) -> None:
    shutil.copy(home / ".lmstudio/models/publisher/Tiny-GGUF/tiny-Q8_0.gguf", home / "here")
    listed = json.loads(weightctl("ls", "--json", cwd=home / "here").stdout)["models"]
    assert len(listed) == 4
    for each in listed:
        done = weightctl("ls", each["name"], "--json", cwd=home / "here")
        assert json.loads(done.stdout)["totals"]["parameters"] == each["parameters"]


def test_models_are_sorted_by_size_and_measured_against_a_memory(home: Path) -> None:
    arguments = ("ls", "--sort", "size", "--fit", "1MB", "--context", "64", "--json")
    found = json.loads(weightctl(*arguments, cwd=home / "here").stdout)
    sizes = [each["bytes"] for each in found["models"]]
    assert sizes == sorted(sizes, reverse=True)
    assert (found["memory"], found["context"]) == (1_000_000, 64)
    assert not any(each["fits"] for each in found["models"])


def test_a_directory_with_several_models_is_a_table(home: Path) -> None:
    folder = home / ".lmstudio/models/publisher/Tiny-GGUF"
    shutil.copy(folder / "tiny-Q8_0.gguf", folder / "other.gguf")
    (folder / "broken.gguf").write_bytes(b"GGUF")
    done = weightctl("ls", folder, cwd=home)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == [
        "model", "broken.gguf", "other.gguf", "tiny-Q8_0.gguf",
    ]  # fmt: skip
    assert lines[2].split(maxsplit=1)[1].strip() == "cannot be read"
    assert lines[-2].startswith("2 models, ")
    assert "note: broken.gguf cannot be read: " in done.stderr
    done = weightctl("ls", folder, "--flat", cwd=home)
    assert done.returncode == 2
    assert "a list of models only has the options" in done.stderr


def test_directories_that_cannot_be_read_are_left_out(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home / ".lmstudio/models/publisher/Tiny-GGUF"
    for name in ("good", "denied"):
        shutil.copytree(folder, home / "here" / name)
    listed = models.list_names

    def refuse(path: str) -> list[str]:
        if path.endswith("denied"):
            raise PermissionError(13, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr(models, "list_names", refuse)
    done = weightctl("ls", cwd=home / "here")
    assert (done.returncode, done.stderr) == (0, "")
    assert "good/tiny-Q8_0.gguf" in done.stdout
    assert "denied" not in done.stdout


def test_an_empty_machine_has_no_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "none"))
    done = weightctl("ls", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "no models found" in done.stderr


def test_names_of_models_are_found(home: Path) -> None:
    repository = home / ".cache/huggingface/hub/models--org--tiny"
    snapshot = str(repository / "snapshots" / COMMIT)
    (blob,) = (home / ".ollama/models/blobs").iterdir()
    expected = {
        "org/tiny": snapshot,
        "org/tiny/model.safetensors": f"{snapshot}/model.safetensors",
        str(repository): snapshot,
        "tiny:1b": str(blob),
        "library/tiny:1b": str(blob),
        "registry.ollama.ai/library/tiny:1b": str(blob),
        str(home / ".ollama/models" / MANIFEST): str(blob),
        "publisher/Tiny-GGUF": str(home / ".lmstudio/models/publisher/Tiny-GGUF"),
        "https://huggingface.co/org/name": "hf://org/name",
        "https://huggingface.co/org/name/tree/main": "hf://org/name",
        "https://huggingface.co/org/name/blob/v2/a/b.gguf?show=1": "hf://org/name@v2/a/b.gguf",
        "hf.co/none": "hf.co/none",
        "org/other": "org/other",
        "tiny:2b": "tiny:2b",
        "https://huggingface.co/datasets/name": "https://huggingface.co/datasets/name",
    }
    assert {name: locate_model(name) for name in expected} == expected


def test_a_file_hides_the_name_of_a_model(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "here/org").mkdir()
    (home / "here/org/tiny").write_bytes(b"")
    monkeypatch.chdir(home / "here")
    assert locate_model("org/tiny") == "org/tiny"


def test_manifests_that_name_no_file_are_left_out(home: Path) -> None:
    manifest = home / ".ollama/models" / MANIFEST
    for content in ("", "[]", '{"layers": 7}', '{"layers": [{"mediaType": "x"}]}', "{" * 9999):
        manifest.write_text(content)
        assert locate_model("tiny:1b") == "tiny:1b"
        assert "tiny:1b" not in weightctl("ls", cwd=home / "here").stdout
    outside = {"mediaType": "application/vnd.ollama.image.model", "digest": "../../../.profile"}
    (home / ".profile").write_text("")
    manifest.write_text(json.dumps({"layers": [outside]}))
    assert locate_model("tiny:1b") == "tiny:1b"


def test_modelscope_is_named_as_unsupported() -> None:
    with pytest.raises(FormatError, match="modelscope:// is not supported") as caught:
        api.open_weights("modelscope://org/name")
    assert "modelscope download" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("org", ["org/tiny"]),
        ("tiny:", ["tiny:1b"]),
        ("pub", ["publisher/Tiny-GGUF"]),
        ("", ["org/tiny", "tiny:1b", "publisher/Tiny-GGUF"]),
        ("here/", []),
    ],
)
def test_a_shell_offers_the_names_of_models(home: Path, typed: str, offered: list[str]) -> None:
    (home / "here/here").mkdir()
    (home / "here/here/model.gguf").touch()
    if not typed:
        shutil.rmtree(home / "here/here")
    assert list_completions(home / "here", f"weightctl convert {typed}") == offered


def test_a_path_comes_before_the_name_of_a_model(home: Path) -> None:
    (home / "here/organs.gguf").touch()
    assert list_completions(home / "here", "weightctl ls org") == []
