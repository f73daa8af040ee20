"""The rules of the house that a reader could break without noticing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import weightctl
from weightctl.cli import COMMANDS
from weightctl.formats import FORMATS

ROOT = Path(__file__).parent.parent
PACKAGE = Path(weightctl.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

# A module imports only from layers below its own, and from its own package.
LAYERS = (
    (
        "errors",
        "sizes",
        "registry",
        "untyped",
        "patterns",
        "temporary",
        "interrupts",
        "shape",
        "dtype",
        "device",
        "disk",
        "kernels",
    ),
    ("codecs",),
    ("weights",),
    ("pickles",),
    ("logical", "formats"),
    ("archs",),
    ("plan", "transforms"),
    ("output_file", "pieces"),
    ("targets", "outcome", "output", "worker", "execute", "digests", "store"),
    ("cli", "__main__", "__init__"),
)
LAYER_OF = {name: number for number, names in enumerate(LAYERS) for name in names}
# Inside a layer these modules know each other; all others there do not.
NEIGHBOURS = {
    ("dtype", "errors"), ("sizes", "errors"), ("patterns", "errors"), ("plan", "formats"),
    ("transforms", "plan"), ("outcome", "targets"), ("output", "targets"),
    ("store", "outcome"), ("store", "targets"), ("store", "output"),
    ("store", "execute"), ("execute", "worker"), ("__main__", "cli"),
}  # fmt: skip


def room_of(module: Path) -> str:
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(module: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(module: Path) -> None:
    room = room_of(module)
    if room == "__init__":
        return
    for name in imports_of(module):
        if not name.startswith("weightctl."):
            continue
        other = name.split(".")[1]
        if other == room:
            continue
        assert (room, other) in NEIGHBOURS or LAYER_OF[other] < LAYER_OF[room], (
            f"{module.name} imports {name}"
        )


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_typer_and_rich_stay_in_the_command_line_and_torch_out_of_everything(module: Path) -> None:
    outside = {name.split(".")[0] for name in imports_of(module)}
    assert room_of(module) == "cli" or not outside & {"typer", "rich"}
    assert "torch" not in outside


def test_every_room_has_a_layer() -> None:
    assert {room_of(module) for module in MODULES} == set(LAYER_OF)


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_is_over_400_lines(module: Path) -> None:
    assert len(module.read_text().splitlines()) <= 400


def test_most_files_are_under_200_lines() -> None:
    lengths = [len(module.read_text().splitlines()) for module in MODULES]
    assert sum(length <= 200 for length in lengths) > 0.7 * len(lengths)


@pytest.mark.parametrize(
    "command",
    [
        "ls", "ls --depth 1", "ls --flat", "ls -l --sort size", "ls --include *norm*", "ls --hash",
        "ls --meta", "ls --meta format", "ls --json --hash --meta",
        "diff --hash fixtures/tiny-llama",
    ],
)  # fmt: skip
def test_looking_loads_neither_numpy_nor_torch(command: str, tiny_llama: Path) -> None:
    program = (
        "import sys, weightctl.cli\n"
        "try: weightctl.cli.app(sys.argv[1:], prog_name='weightctl')\n"
        "except SystemExit as done: assert not done.code\n"
        "heavy = {'numpy', 'torch', 'gguf', 'safetensors', 'ml_dtypes', 'rich'}\n"
        "heavy &= set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    arguments = [sys.executable, "-c", program, *command.split(), str(tiny_llama)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_importing_the_package_loads_nothing_heavy() -> None:
    program = "import sys, weightctl; sys.exit('numpy' in sys.modules or 'typer' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_every_public_name_can_be_loaded() -> None:
    for name in weightctl.__all__:
        assert getattr(weightctl, name) is not None


def test_an_extension_is_one_module_with_the_name_that_users_type() -> None:
    for name, line in FORMATS.items():
        assert line.module == f"weightctl.formats.{name}"
    for name, reference in COMMANDS.items():
        assert reference == f"weightctl.cli.{name}:app"


def test_no_module_is_named_for_nothing() -> None:
    empty = {"utils", "util", "helpers", "helper", "common", "core", "manager", "misc", "handler"}
    assert not {module.stem for module in MODULES} & empty
