"""The rules of the house that a reader could break without noticing."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import weightctl
from weightctl.cli import COMMANDS
from weightctl.formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parent.parent
PACKAGE = Path(weightctl.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

# A module imports only from layers below its own, and from its own package.
LAYERS = (
    ("errors",),
    ("text", "dim"),
    ("shape", "dtype", "device", "split"),
    ("system", "kernels"),
    ("codecs", "storage"),
    ("weights",),
    ("driver", "formats"),
    ("schemes",),
    ("families",),
    ("graph",),
    ("nn",),
    ("nn.models", "engine"),
    ("plan",),
    ("translate", "sharding"),
    ("write",),
    ("verify",),
    ("cli", "__main__", "__init__"),
)
LAYER_OF = {name: number for number, names in enumerate(LAYERS) for name in names}
# Inside a layer these know each other; all others there do not.
NEIGHBOURS = {("__main__", "cli")}
# Though one is below the other: what makes and writes plans knows nothing of what runs models.
STRANGERS = {
    (above, below)
    for above in ("plan", "translate", "sharding", "write")
    for below in ("graph", "nn", "nn.models", "engine")
}
# `Weights.allocate` gives a graph's Weight: and a recognized model its module: the steps
# up, for the checkers' eyes only.
UPWARD = {
    ("families/checkpoint.py", "weightctl.graph.weight"),
    ("families/checkpoint.py", "weightctl.nn.models.network"),
    ("families/__init__.py", "weightctl.nn.models.network"),
    ("weights/protocol.py", "weightctl.graph.weight"),
    ("weights/tree.py", "weightctl.graph.weight"),
    ("weights/allocation.py", "weightctl.graph.weight"),
}


def room_of(module: Path) -> str:
    return room_of_name(".".join(module.relative_to(PACKAGE.parent).with_suffix("").parts))


def room_of_name(name: str) -> str:
    parts = name.split(".")[1:]
    return "nn.models" if parts[:2] == ["nn", "models"] else parts[0]


def imports_of(module: Path) -> set[str]:
    return imports_in(ast.walk(ast.parse(module.read_text())))


def imports_in(nodes: Iterable[ast.AST]) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def is_for_checkers(node: ast.stmt) -> bool:
    """Whether only type checkers read a statement."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(module: Path) -> None:
    room = room_of(module)
    if room == "__init__":
        return
    for name in imports_of(module):
        if not name.startswith("weightctl."):
            continue
        other = room_of_name(name)
        if other == room or (module.relative_to(PACKAGE).as_posix(), name) in UPWARD:
            continue
        points_down = LAYER_OF[other] < LAYER_OF[room] and (room, other) not in STRANGERS
        assert (room, other) in NEIGHBOURS or points_down, f"{module.name} imports {name}"


def test_what_points_up_is_for_type_checkers() -> None:
    for module, name in UPWARD:
        tree = ast.parse((PACKAGE / module).read_text())
        unchecked = [node for node in tree.body if not is_for_checkers(node)]
        assert name in imports_of(PACKAGE / module)
        assert name not in imports_in(node for top in unchecked for node in ast.walk(top))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_typer_and_rich_stay_in_the_command_line(module: Path) -> None:
    outside = {name.split(".")[0] for name in imports_of(module)}
    assert room_of(module) == "cli" or not outside & {"typer", "rich"}


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_torch_stays_in_the_engine_and_in_what_ops_do_on_it(module: Path) -> None:
    outside = {name.split(".")[0] for name in imports_of(module)}
    computes = room_of(module) == "engine" or module.parent == PACKAGE / "graph" / "ops"
    assert computes or "torch" not in outside


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


@pytest.mark.parametrize(
    "names",
    [
        "weightctl",
        "weightctl.graph.graph, weightctl.graph.ops",
        "weightctl.nn.attention, weightctl.nn.module",
        "weightctl.engine.session",
        "weightctl.families.checkpoint, weightctl.nn.models.llama",
    ],
)
def test_importing_loads_nothing_heavy(names: str) -> None:
    heavy = "{'numpy', 'torch', 'typer'} & set(sys.modules)"
    program = f"import sys, {names}; sys.exit(str({heavy}) if {heavy} else 0)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_trees_load_no_graphs_before_one_is_asked_for_a_weight() -> None:
    program = (
        "import sys, weightctl.weights.tree, weightctl.weights.allocation\n"
        "sys.exit('weightctl.graph' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_every_public_name_can_be_loaded() -> None:
    for name in weightctl.__all__:
        assert getattr(weightctl, name) is not None


def test_a_name_of_a_package_is_not_that_of_a_module_in_it() -> None:
    lazy = [module for module in MODULES if module.name == "__init__.py"]
    lazy = [module for module in lazy if "load_on_use(__name__" in module.read_text()]
    assert len(lazy) > 5
    for module in lazy:
        package = import_module(".".join(module.relative_to(ROOT).parts[:-1]))
        for name in package.__all__:
            # Importing the module would hide what has its name.
            assert not (module.parent / f"{name}.py").exists(), f"{package.__name__}.{name}"


def test_an_extension_is_one_module_with_the_name_that_users_type() -> None:
    for name, line in FORMATS.items():
        assert line.module == f"weightctl.formats.{name}"
    for name, reference in COMMANDS.items():
        assert reference == f"weightctl.cli.{name}:app"


def test_no_module_is_named_for_nothing() -> None:
    empty = {"utils", "util", "helpers", "helper", "common", "core", "manager", "misc", "handler"}
    assert not {module.stem for module in MODULES} & empty
