"""Child processes import nothing from the current directory, and untrusted ones get no secrets."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import weightctl
from weightctl.system.children import start_python

PACKAGE = Path(weightctl.__file__).parent
KERAS = Path(__file__).parents[1] / "fixtures" / "keras"
# Each command that starts a child, and some that do not; {} is a model, and out a new place.
COMMANDS = ["verify tiny --skip forward"]
# Those that start other children; the first one also runs with other paths.
MORE_COMMANDS = [
    "ls model.h5",
    "check model.h5",
    "convert tiny out.gguf --on processes:2",
    "ls model.keras --scan",
    "convert model.h5 out.safetensors",
    "edit tiny/model.safetensors --set a=b",
    "stat model.h5",
    "diff model.h5 model.h5",
    "shard tiny out --tp 2 --on processes:2",
    "imatrix tiny -o out.gguf --chunks 1 --context 64",
]
# Modules that children import early, those of libraries, and that of weightctl itself.
POISON = ["json.py", "pickle.py", "struct.py", "numpy/__init__.py", "weightctl/__init__.py"]


@pytest.fixture(scope="module")
def poisoned(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with models, and modules that leave a mark when they are imported."""
    place = tmp_path_factory.mktemp("poisoned")
    for name in POISON:
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(f"open({str(place / 'mark')!r}, 'a').write({name!r})\n")
    for name in ("model.h5", "model.keras"):
        shutil.copy(KERAS / name, place)
    shutil.copytree(tiny_llama, place / "tiny")
    return place


@pytest.mark.parametrize(
    ("command", "path"),
    [
        *((command, None) for command in COMMANDS),
        ("convert model.h5 out.safetensors", f".{os.pathsep}{os.pathsep}relative"),
        *(pytest.param(MORE_COMMANDS[0], path, marks=pytest.mark.long) for path in ("", ".")),
        *(pytest.param(command, None, marks=pytest.mark.long) for command in MORE_COMMANDS),
    ],
)
def test_no_command_imports_from_the_current_directory(
    command: str, path: str | None, poisoned: Path
) -> None:
    for name in ("mark", "out", "out.gguf", "out.safetensors"):
        shutil.rmtree(poisoned / name, ignore_errors=True)
        (poisoned / name).unlink(missing_ok=True)
    program = (
        "import sys; sys.path[:] = {!r} + sys.path; from weightctl.__main__ import main; main()"
    )
    # As the installed command does, the parent imports weightctl from where it is installed.
    done = subprocess.run(
        [sys.executable, "-P", "-c", program.format([str(PACKAGE.parent)]), *command.split()],
        capture_output=True,
        text=True,
        check=False,
        cwd=poisoned,
        env=os.environ | ({} if path is None else {"PYTHONPATH": path}),
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode in (0, 1), done.stderr
    assert not (poisoned / "mark").exists(), (poisoned / "mark").read_text()


def test_one_module_starts_processes() -> None:
    starts = {"Popen", "run", "call", "check_call", "check_output", "system", "popen", "spawnv"}
    found: set[str] = set()
    for module in PACKAGE.rglob("*.py"):
        text = module.read_text()
        if not re.search(rf"\b(?:{'|'.join(starts)})\b", text):
            continue
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name("subprocess" | "os"), attr=name)):
                    found |= {module.relative_to(PACKAGE).as_posix()} if name in starts else set()
                case ast.Call(func=ast.Name("Popen")):
                    found.add(module.relative_to(PACKAGE).as_posix())
                case _:
                    pass
    assert found == {"system/children.py"}


def ask_child(program: str, *, is_untrusted: bool) -> str:
    with start_python(
        "-c", program, stdin=None, stdout=subprocess.PIPE, stderr=None, is_untrusted=is_untrusted
    ) as child:
        return child.communicate()[0].decode()


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_KEY", "MY_PASSWORD"]
)
def test_a_child_that_reads_untrusted_files_gets_no_credentials(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "secret")
    program = f"import os; print(os.environ.get({name!r}))"
    assert ask_child(program, is_untrusted=True) == "None\n"
    assert ask_child(program, is_untrusted=False) == "secret\n"


def test_a_child_has_the_places_of_its_parent_without_relative_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", ["", "relative", str(tmp_path), *sys.path])
    shown = ask_child("import sys; print(*sys.path, sep='\\n')", is_untrusted=False).splitlines()
    assert shown[0] == str(tmp_path)
    assert not {"", "relative", os.getcwd()} & {*shown} - {str(PACKAGE.parent)}


def test_a_child_imports_the_weightctl_that_started_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "weightctl").mkdir()
    (tmp_path / "weightctl" / "__init__.py").write_text("")
    elsewhere = [place for place in sys.path if place != str(PACKAGE.parent)]
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *elsewhere])
    found = ask_child("import weightctl; print(weightctl.__file__)", is_untrusted=False)
    assert found.strip() == str(PACKAGE / "__init__.py")
