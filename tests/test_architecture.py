"""Rules of the package's structure that an edit could break unnoticed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import weightctl
from each import each
from structure import (
    count_participles,
    is_for_checkers,
    list_cycles,
    list_fragments,
    list_loaded,
    list_shared_class_names,
    name_module,
    parse_modules,
    walk,
)
from weightctl.cli import COMMANDS
from weightctl.dtype import ENCODINGS
from weightctl.families import FAMILIES
from weightctl.formats import added_formats, list_formats
from weightctl.schemes import SCHEMES

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
    ("schemes", "values"),
    ("families",),
    ("graph",),
    ("nn",),
    ("nn.models", "pipelines"),
    ("engine",),
    ("plan",),
    ("translate", "sharding"),
    ("adapters",),
    ("write",),
    ("editing",),
    ("deltas",),
    ("verify",),
    ("check",),
    ("calibrate",),
    ("budget",),
    ("inspection",),
    ("cli", "__main__", "__init__"),
    # It is found by its entry points.
    ("extras",),
)
LAYER_OF = {name: number for number, names in enumerate(LAYERS) for name in names}
# Pairs within one layer that may import each other; others may not.
NEIGHBORS = {("__main__", "cli")}
# Imports that point down but are forbidden: code for plans does not depend on code that runs
# models.
FORBIDDEN = {
    (above, below)
    for above in ("plan", "translate", "sharding", "adapters", "write")
    for below in ("graph", "nn", "nn.models", "engine")
}
# Imports that point up, because `Weights.allocate` returns a graph's Weight. Only type checkers
# read them.
UPWARD = {
    ("weights/protocol.py", "weightctl.graph.graph"),
    ("weights/tree.py", "weightctl.graph.graph"),
    ("weights/allocation.py", "weightctl.graph.graph"),
}

# Pairs of modules that import each other on use, because they are two halves of one concept.
MUTUAL = {
    # The operators of a value are operations, which take and return values.
    ("weightctl.graph.graph", "weightctl.graph.ops"),
    # A graph can be shown as text, which few programs need.
    ("weightctl.graph.graph", "weightctl.graph.dump"),
}


def package_of(module: Path) -> str:
    return package_of_name(".".join(module.relative_to(PACKAGE.parent).with_suffix("").parts))


def package_of_name(name: str) -> str:
    parts = name.split(".")[1:]
    return "nn.models" if parts[:2] == ["nn", "models"] else parts[0]


class Facts(NamedTuple):
    """What a module imports, and the names of what it defines and of its variables."""

    imports: set[str]
    defined: set[str]
    variables: set[str]


@cache
def list_trees() -> dict[Path, ast.Module]:
    return dict(parse_modules(PACKAGE).values())


@cache
def read_facts(module: Path) -> Facts:
    defined, variables = {module.stem}, set[str]()
    nodes = walk(list_trees()[module])
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                defined.add(name)
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                variables.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()):
                variables.add(name)
            case _:
                pass
    return Facts(imports_in(nodes), defined, variables)


def imports_of(module: Path) -> set[str]:
    return read_facts(module).imports


def imports_in(nodes: Iterable[ast.AST]) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "weightctl":
            found |= {f"weightctl.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@each("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(module: Path) -> None:
    package = package_of(module)
    if package == "__init__":
        return
    for name in imports_of(module):
        if not name.startswith("weightctl.") or name == "weightctl.__version__":
            continue
        other = package_of_name(name)
        if other == package or (module.relative_to(PACKAGE).as_posix(), name) in UPWARD:
            continue
        points_down = LAYER_OF[other] < LAYER_OF[package] and (package, other) not in FORBIDDEN
        assert (package, other) in NEIGHBORS or points_down, f"{module.name} imports {name}"


def test_the_listed_imports_alone_close_cycles() -> None:
    """Imports for type checkers count, and those on use."""
    modules = parse_modules(PACKAGE)
    loaded = list_loaded(modules, on_use=True, for_checkers=True)
    at_once = list_loaded(modules, on_use=False)
    for module, other in UPWARD:
        loaded[name_module(PACKAGE, PACKAGE / module)].remove(other)
    for name, other in MUTUAL:
        assert other not in at_once[name]
        loaded[name].remove(other)
    assert list_cycles(loaded) == []
    for name, other in MUTUAL:
        assert list_cycles({**loaded, name: loaded[name] | {other}}), f"{name} may import {other}"


def test_what_points_up_is_for_type_checkers() -> None:
    for module, name in UPWARD:
        tree = list_trees()[PACKAGE / module]
        unchecked = [node for node in tree.body if not is_for_checkers(node)]
        assert name in imports_of(PACKAGE / module)
        assert name not in imports_in(node for top in unchecked for node in ast.walk(top))


@each("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_entry_points_refer_to_extras(module: Path) -> None:
    if package_of(module) == "extras":
        return
    assert not any(name.startswith("weightctl.extras") for name in imports_of(module))
    texts = [node.value for node in walk(list_trees()[module]) if isinstance(node, ast.Constant)]
    assert not any(str(text).startswith("weightctl.extras") for text in texts)


@each("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_typer_and_rich_stay_in_the_command_line(module: Path) -> None:
    outside = {name.split(".")[0] for name in imports_of(module)}
    assert package_of(module) == "cli" or not outside & {"typer", "rich"}


@each("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_torch_stays_in_the_engine_and_in_what_ops_do_on_it(module: Path) -> None:
    outside = {name.split(".")[0] for name in imports_of(module)}
    computes = package_of(module) == "engine" or module.parent == PACKAGE / "graph" / "ops"
    assert computes or "torch" not in outside


def test_every_package_has_a_layer() -> None:
    assert {package_of(module) for module in MODULES} == set(LAYER_OF)


LOOKING = (
    "ls", "ls --depth 1", "ls --flat", "ls -l --sort size", "ls --include *norm*", "ls --hash",
    "ls --meta", "ls --meta format", "ls --json --hash --meta", "diff --hash fixtures/tiny-llama",
)  # fmt: skip


def test_looking_loads_neither_numpy_nor_torch(tiny_llama: Path) -> None:
    program = (
        "import sys, weightctl.cli\n"
        "for command in sys.argv[2:]:\n"
        "    words = [*command.split(), sys.argv[1]]\n"
        "    try: weightctl.cli.app(words, prog_name='weightctl')\n"
        "    except SystemExit as done: assert not done.code\n"
        "    heavy = {'numpy', 'torch', 'gguf', 'safetensors', 'ml_dtypes', 'rich'}\n"
        "    heavy &= set(sys.modules)\n"
        "    if heavy: sys.exit(f'`{command}` loaded {heavy}')\n"
    )
    arguments = [sys.executable, "-c", program, str(tiny_llama), *LOOKING]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_a_conversion_loads_nothing_that_runs_models(tiny_llama: Path, tmp_path: Path) -> None:
    program = (
        "import sys, weightctl.cli\n"
        "try: weightctl.cli.app(sys.argv[1:], prog_name='weightctl')\n"
        "except SystemExit as done: assert not done.code\n"
        "above = ('weightctl.graph', 'weightctl.nn', 'weightctl.engine', 'torch')\n"
        "found = sorted(name for name in sys.modules if name.startswith(above))\n"
        "sys.exit(f'loaded {found}' if found else 0)"
    )
    in_gguf, back = str(tmp_path / "out.gguf"), str(tmp_path / "back")
    for source, target in ((str(tiny_llama), in_gguf), (in_gguf, back)):
        arguments = [sys.executable, "-c", program, "convert", source, target]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert Path(target).exists()


@pytest.mark.parametrize(
    ("command", "unneeded"),
    [
        ("ls", "weightctl.formats.sharded.reading weightctl.split weightctl.families.index"),
        ("ls", "weightctl.cli.usage weightctl.extras importlib.metadata"),
        ("convert --dtype bf16 --names keep", "weightctl.families.family"),
        ("convert --dtype bf16", "weightctl.formats.imatrix.entry concurrent.futures"),
    ],
)
def test_a_command_loads_what_its_arguments_need(
    command: str, unneeded: str, tiny_llama: Path, tmp_path: Path
) -> None:
    name, *options = command.split()
    program = (
        "import sys, weightctl.cli\n"
        "try: weightctl.cli.app(sys.argv[2:], prog_name='weightctl')\n"
        "except SystemExit as done: assert not done.code\n"
        "found = {*sys.argv[1].split()} & set(sys.modules)\n"
        "sys.exit(f'loaded {found}' if found else 0)"
    )
    places = [str(tiny_llama)] + [str(tmp_path / "out")] * (name == "convert")
    done = subprocess.run(
        [sys.executable, "-c", program, unneeded, name, *places, *options],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_command_loads_few_modules(tiny_llama: Path, tmp_path: Path) -> None:
    program = (
        "import sys, weightctl.cli\n"
        "try: weightctl.cli.app(sys.argv[1:], prog_name='weightctl')\n"
        "except SystemExit as done: assert not done.code\n"
        "names = [name for name in sys.modules if name.startswith('weightctl')]\n"
        "assert not {'weightctl.extras', 'importlib.metadata'} & {*sys.modules}, names\n"
        "print(len(names), file=sys.stderr)"
    )
    model, gguf = str(tiny_llama), str(tmp_path / "out.gguf")
    most = {
        ("convert", model, gguf): 190,
        ("convert", model, str(tmp_path / "cast"), "--dtype", "f16"): 170,
        ("ls", gguf): 85,
    }
    for command, limit in most.items():
        arguments = [sys.executable, "-c", program, *command]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert int(done.stderr.split()[-1]) <= limit, command[0]


LIGHT = (
    "weightctl", "weightctl.graph.graph", "weightctl.graph.ops", "weightctl.nn.attention",
    "weightctl.nn.module", "weightctl.engine.session", "weightctl.families.checkpoint",
    "weightctl.nn.models.decoder",
)  # fmt: skip


def test_importing_loads_nothing_heavy() -> None:
    program = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    heavy = {'numpy', 'torch', 'typer'} & set(sys.modules)\n"
        "    if heavy: sys.exit(f'{name} loads {heavy}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *LIGHT], capture_output=True, text=True, check=False
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
            # Importing such a module would hide the object of the same name.
            assert not (module.parent / f"{name}.py").exists(), f"{package.__name__}.{name}"


def test_an_extension_is_one_module_with_the_name_that_users_type() -> None:
    for name, line in list_formats().items():
        module = name.replace(".", "_")
        package = "extras" if name in added_formats() else "formats"
        assert line.module == f"weightctl.{package}.{module}"
    for name, reference in COMMANDS.items():
        assert reference == f"weightctl.cli.{name}:app"


# Words that the glossary replaced: modules, classes and functions do not have these names.
REPLACED = {
    "told", "said", "unsaid", "tellings", "stranger", "strangers", "weigh", "weighs", "weighed",
    "weigh_rows", "weigh_by_importance", "weigh_by_magnitude", "dialect", "dialects",
    "convert_dialect", "is_of_dialect", "mixture", "mixtures", "listed", "tokens_listed", "counted",
    "chosen", "known", "spelled", "planted", "hashed", "packed", "unmeasured",
    "uninterrupted", "delegated", "renamed", "is_again",
}  # fmt: skip
# The modules of these folders are listed in tables.
LARGE = {"cli", "families", "schemes"}


def test_no_short_module_has_a_single_importer() -> None:
    tables = [
        *(line.module for line in list_formats().values()),
        *(line.record for line in SCHEMES.values()),
        *(encoding.codec for encoding in ENCODINGS.values()),
        *(line.source for line in FAMILIES.values()),
    ]
    by_tables = {reference.partition(":")[0] for reference in tables}
    assert set(list_fragments(parse_modules(PACKAGE))) - by_tables == set()


def test_names_are_those_of_the_glossary() -> None:
    for module in MODULES:
        for name in read_facts(module).defined:
            assert name.strip("_").lower() not in REPLACED, f"{module}: {name}"


# Arguments, variables and fields do not have these names either.
PRIVATE_WORDS = {
    "told", "said", "unsaid", "stranger", "strangers", "weigh", "weighed", "dialect", "dialects",
    "mixture", "mixtures",
}  # fmt: skip


def test_variables_are_in_the_words_of_the_glossary() -> None:
    for module in MODULES:
        for name in read_facts(module).variables:
            assert name.strip("_").lower() not in PRIVATE_WORDS, f"{module}: {name}"


def test_class_names_are_unique_in_the_package() -> None:
    assert list_shared_class_names(parse_modules(PACKAGE)) == {}


def test_few_functions_are_called_by_a_bare_participle() -> None:
    # The exceptions are strategies, schemes and documented methods: `ShardingStrategy.segmented`.
    assert count_participles(parse_modules(PACKAGE)) <= 6


def test_the_top_level_has_the_vocabulary_and_packages_only() -> None:
    entries = {each.name for each in PACKAGE.iterdir() if not each.name.startswith("__")}
    # `pipelines` has only the specified place of names of `nn`, and `extras` is apart.
    assert len(entries - {"py.typed", "pipelines", "extras"}) <= 34


# How much more than its budget a package may have before its budget is looked at again.
_SLACK = 1.03


def test_packages_keep_to_their_budgets() -> None:
    budgets = tomllib.loads((ROOT / "tests" / "budgets.toml").read_text())
    lines, files = Counter[str](), Counter[str]()
    for module in MODULES:
        first, *below = module.relative_to(PACKAGE).parts
        name = first if below else "modules"
        lines[name] += len(module.read_text().splitlines())
        files[name] += 1
    assert lines.keys() == budgets.keys()
    over = [
        f"{name}: {lines[name]} lines in {files[name]} files; the budget is {budget}"
        for name, budget in budgets.items()
        if lines[name] > _SLACK * budget["lines"] or files[name] > _SLACK * budget["files"]
    ]
    assert over == []


def test_no_folder_has_over_25_modules() -> None:
    folders = {module.parent for module in MODULES}
    for folder in folders:
        modules = [each for each in folder.glob("*.py") if each.name != "__init__.py"]
        name = folder.relative_to(PACKAGE).as_posix()
        assert len(modules) <= 25 or name in LARGE, f"{name}: {len(modules)}"


# What only some operating systems have.
OF_SYSTEMS = re.compile(
    r"\bfcntl\b|\bimport (?:msvcrt|resource)\b|\bWinDLL\b|\bCDLL\(None|\bsysconf\b|"
    r"[\"']/(?:proc|dev)/|"
    r"\bos\.(?:preadv?|pwritev?|f(?:data)?sync|fchmod|sendfile|copy_file_range|posix_\w+|"
    r"O_(?:CLOEXEC|NOFOLLOW|NONBLOCK|NOCTTY|BINARY))\b"
)


def test_what_differs_between_systems_is_in_one_package() -> None:
    offenders = [
        f"{module.relative_to(ROOT)}:{number}: {line.strip()}"
        for module in MODULES
        if module.parent != PACKAGE / "system"
        for number, line in enumerate(module.read_text().splitlines(), 1)
        if OF_SYSTEMS.search(line)
    ]
    assert not offenders, "\n".join(offenders)


def test_no_module_is_named_for_nothing() -> None:
    empty = {"utils", "util", "helpers", "helper", "common", "core", "manager", "misc", "handler"}
    assert not {module.stem for module in MODULES} & empty


def test_the_page_on_the_architecture_names_what_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    paths = re.findall(r"`(\w+/[\w/]+\.\w+)`", page)
    names = re.findall(r"`([a-z_]+(?:\.\w+)+)`", page)
    missing = [path for path in paths if not re.search("[A-Z]{2}", path) and not exists(path)]
    missing += [name for name in names if not is_name(name)]
    assert missing == []


def exists(path: str) -> bool:
    return (PACKAGE / path).exists() or (ROOT / path).exists()


def is_name(name: str) -> bool:
    """Whether a name that begins with a package is a module, or in a module."""
    *parts, last = name.split(".")
    folder = PACKAGE.joinpath(*parts)
    if not (PACKAGE / parts[0]).is_dir() or (folder / f"{last}.py").exists():
        return True
    modules = (folder.with_suffix(".py"), folder / "__init__.py")
    texts = [each.read_text("utf-8") for each in modules if each.exists()]
    return (folder / last).is_dir() or any(re.search(rf"\b{last}\b", text) for text in texts)
