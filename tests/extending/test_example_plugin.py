"""The example plug-in is built, installed and used: weightctl stays as it is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from extended_package import ROOT, PackageProcess
from test_new_parts import FAMILY_PROGRAM, FAMILY_RULES

if TYPE_CHECKING:
    from collections.abc import Generator

EXAMPLE = Path(__file__).parent / "example_plugin"
WHEEL = "weightctl_example-1.0-py3-none-any.whl"
PAGE = ROOT / "docs" / "api.md"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the wheel of the example is installed."""
    folder = tmp_path_factory.mktemp("plugin")
    # The build writes into the folder of the source.
    shutil.copytree(EXAMPLE, folder / "source")
    pip = [sys.executable, "-m", "pip", "-q", "--no-input", "--disable-pip-version-check"]
    only = ["--no-deps", "--no-index"]
    for words in (
        ["wheel", "--no-build-isolation", *only, "-w", folder, folder / "source"],
        ["install", *only, "--target", folder / "site", folder / WHEEL],
    ):  # fmt: skip
        done = subprocess.run([*pip, *map(str, words)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def plugin(
    site: Path, tmp_path_factory: pytest.TempPathFactory
) -> Generator[PackageProcess, None, None]:
    """A process of weightctl beside which the example is installed."""
    shelf = tmp_path_factory.mktemp("shelf")
    process = PackageProcess(shelf, site, ROOT, SHELF=str(shelf))
    yield process
    process.end()


@pytest.fixture(scope="module")
def toy(plugin: PackageProcess, tiny_llama: Path) -> Path:
    """tiny-llama as a model of the family."""
    toy = plugin.folder / "toy"
    shutil.copytree(tiny_llama, toy)
    config = json.loads((toy / "config.json").read_text())
    config |= {"model_type": "toy", "architectures": ["ToyForCausalLM"]}
    (toy / "config.json").write_text(json.dumps(config))
    rules, tensors = plugin.folder / "rules.toml", toy / "model.safetensors"
    rules.write_text(FAMILY_RULES)
    tensors.unlink()
    plugin.command("convert", tiny_llama / "model.safetensors", tensors, "--rename", rules)
    return toy


def test_the_format_is_listed_read_and_written(
    plugin: PackageProcess, tiny_llama: Path, tmp_path: Path
) -> None:
    raw, back = tmp_path / "model.raw", tmp_path / "back.safetensors"
    plugin.command("convert", tiny_llama, raw, "--dtype", "f32", "--names", "keep")
    assert json.loads(plugin.command("ls", raw, "--json"))["format"] == "raw"
    assert "BF16" not in plugin.command("show", raw, "model.norm.weight")
    plugin.command("verify", raw, "--check", "structure")
    plugin.command("convert", raw, back)
    plugin.command("diff", "--values", raw, back)
    code, _, says = plugin.answer("convert", tiny_llama, tmp_path / "other.raw")
    assert code == 2
    assert "is not F32" in says


@pytest.mark.parametrize(
    "stated",
    [b"[1]", b"{", b'[["a", [-1]]]', b'[["a", [9]]]', b"[" * 50000, b"\xff", b'[["a", 3]]'],
)
def test_a_damaged_file_of_the_format_is_an_error(
    plugin: PackageProcess, stated: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "model.raw"
    path.write_bytes(b"RAW1" + len(stated).to_bytes(4, "little") + stated)
    code, _, says = plugin.answer("ls", path)
    assert code == 2
    assert str(path) in says


def test_the_family_is_listed_converted_and_run(
    plugin: PackageProcess, toy: Path, tiny_llama: Path, tmp_path: Path
) -> None:
    assert re.search(r"^toy +toy +toy +yes", plugin.command("ls", "--families"), re.MULTILINE)
    gguf, back = tmp_path / "toy.gguf", tmp_path / "back"
    plugin.command("convert", toy, gguf)
    assert "blk.0.ffn_gate.weight" in plugin.command("ls", gguf, "--flat")
    plugin.command("check", toy)
    plugin.command("convert", gguf, f"{back}/", "--dtype", "bf16")
    plugin.command("diff", "--hash", "--include", "*", toy, back)
    plugin.command("verify", gguf, "--against", toy)
    assert plugin.command("-c", FAMILY_PROGRAM, gguf, tiny_llama).split()[:2] == ["toy", "Decoder"]
    plugin.command("shard", toy, tmp_path / "ranks", "--tp", "2")


def test_the_scheme_is_written_listed_decoded_and_cut(
    plugin: PackageProcess, tiny_llama: Path, tmp_path: Path
) -> None:
    packed, gguf = tmp_path / "packed", tmp_path / "packed.gguf"
    plugin.command("convert", tiny_llama, f"{packed}/", "--quant", "steps")
    config = json.loads((packed / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "steps"
    listed = plugin.command("ls", packed)
    assert re.search(r"up_proj\.weight +512x256 +steps", listed), listed
    plugin.command("check", packed)
    plugin.command("verify", packed, "--against", tiny_llama, "--max-rmse", "0.01")
    plugin.command("convert", packed, gguf, "--quant", "Q8_0")
    plugin.command("verify", gguf, "--against", packed, "--check", "names", "--check", "structure")
    plugin.command("shard", packed, tmp_path / "ranks", "--tp", "2")
    plugin.command("diff", "--values", tmp_path / "ranks", packed)


def test_the_store_is_read_by_url(plugin: PackageProcess, toy: Path, tmp_path: Path) -> None:
    plugin.command("convert", toy, tmp_path / "file.gguf", "--quant", "Q8_0")
    listed = plugin.command("ls", "shelf://toy")
    assert listed.startswith("shelf://toy")
    assert "30 tensors" in listed
    for name, url, *options in (
        ("url", "shelf://toy"), ("workers", "SHELF://toy/model.safetensors", "--on", "processes:2"),
    ):  # fmt: skip
        plugin.command("convert", url, tmp_path / f"{name}.gguf", "--quant", "Q8_0", *options)
        made, expected = (tmp_path / f"{each}.gguf" for each in (name, "file"))
        assert made.read_bytes() == expected.read_bytes()
    plugin.command("verify", "shelf://toy", "--check", "structure")
    plugin.command("convert", toy, plugin.folder / "toy.raw", "--dtype", "f32", "--names", "keep")
    assert "30 tensors" in plugin.command("ls", "shelf://toy.raw")
    for says, *words in (
        ("shelf://nowhere", "ls", "shelf://nowhere"),
        ("not on the shelf", "ls", "shelf://../nowhere"),
        ("cannot write to shelf:// URLs", "convert", toy, "shelf://out.gguf"),
    ):
        code, _, errors = plugin.answer(*words)
        assert (code, says in errors) == (2, True), errors


def test_help_and_completion_list_what_the_example_adds(plugin: PackageProcess) -> None:
    page = " ".join(plugin.command("convert", "--help").split())
    page += " ".join(plugin.command("help", "convert").split())
    assert ", raw or dcp" in page
    assert ", STEPS" in page
    code, _, says = plugin.answer("convert", "toy", "out/", "--quant", "STEP")
    assert code == 2
    assert "did you mean STEPS?" in says


def test_the_page_shows_the_whole_example() -> None:
    page = PAGE.read_text("utf-8")
    shown = re.findall(r"^```(?:py|toml)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    files = [EXAMPLE / "pyproject.toml", *EXAMPLE.glob("weightctl_example/*.*")]
    assert [path.name for path in files if path.read_text("utf-8") not in shown] == []


@pytest.mark.usefixtures("toy")
def test_the_page_shows_what_commands_print(plugin: PackageProcess, tiny_llama: Path) -> None:
    page = PAGE.read_text("utf-8")
    shutil.copytree(tiny_llama, plugin.folder / "model")
    sessions = re.findall(r"^```text\n(\$ .*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len(sessions) == 5
    for session in sessions:
        command, _, expected = session.partition("\n")
        code, out, errors = plugin.answer(*command.removeprefix("$ weightctl ").split())
        assert (code, out) == (0, expected), errors
