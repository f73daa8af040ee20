"""Figures of the package's structure: `python tests/support/structure.py [ROOT]` prints them.

They are files, lines, entries of the top level, modules with a single importer, class names that
several modules share, functions that are called by a bare participle, and how many modules of the
package some commands load.
"""

from __future__ import annotations

import ast
import gc
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# The modules of the package in `sys.modules` at the end of a command.
LOADED = """
import sys, tempfile, weightctl.cli
command = sys.argv[1:]
try:
    weightctl.cli.app([*command], prog_name="weightctl")
except SystemExit:
    pass
print(sum(name.startswith("weightctl") for name in sys.modules), file=sys.stderr)
"""
COMMANDS = {
    "ls": ["ls", "fixtures/tiny-llama"],
    "cast": ["convert", "fixtures/tiny-llama", "out", "--dtype", "f16", "--dry-run"],
    "verify": ["verify", "fixtures/tiny-llama", "--check", "structure"],
}
_IRREGULAR = {
    "told", "made", "found", "said", "known", "held", "kept", "given", "shown", "taken", "done",
    "met", "seen", "gone", "begun", "drawn", "written", "chosen", "sent", "built", "left", "lost",
    "meant",
}  # fmt: skip
_SHORT = 60


# Fields with what is not a node, or with one that has no content.
_PLAIN = {"ctx", "op", "ops", "id", "attr", "arg", "name", "module", "level", "asname", "kind"}


@cache
def parse_modules(package: Path) -> dict[str, tuple[Path, ast.Module]]:
    gc.disable()  # it would look at all trees again and again
    try:
        return {
            name_module(package, path): (path, ast.parse(path.read_text()))
            for path in sorted(package.rglob("*.py"))
        }
    finally:
        gc.freeze()
        gc.enable()


def name_module(package: Path, path: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def walk(tree: ast.AST) -> list[ast.AST]:
    """Return the nodes of a tree as `ast.walk` does, faster, without operators and contexts."""
    found, waiting = list[ast.AST](), [tree]
    while waiting:
        node = waiting.pop()
        found.append(node)
        for name in _list_fields(type(node)):
            value = getattr(node, name)
            if isinstance(value, list):
                waiting += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST):
                waiting.append(value)
    return found


@cache
def _list_fields(kind: type[ast.AST]) -> tuple[str, ...]:
    if kind is ast.Constant:
        return ()
    return tuple(name for name in kind._fields if name not in _PLAIN)


def list_statements(node: ast.AST) -> list[ast.AST]:
    """Return the statements directly in another one, and its handlers and cases."""
    below = ("body", "orelse", "finalbody", "handlers", "cases")
    return [each for name in below for each in getattr(node, name, ())]


def walk_statements(node: ast.AST) -> Iterator[ast.AST]:
    for each in list_statements(node):
        yield each
        yield from walk_statements(each)


def is_for_checkers(node: ast.AST) -> bool:
    """Whether a statement is only for type checkers."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def list_loaded(
    modules: dict[str, tuple[Path, ast.Module]], *, on_use: bool, for_checkers: bool = False
) -> dict[str, set[str]]:
    """Return the modules that each module imports when it is loaded, or `on_use` also later.

    Imports for type checkers are included if `for_checkers` is set; the packages of a module are
    not.
    """
    loaded: dict[str, set[str]] = {}
    for name, (_, tree) in modules.items():
        found: set[str] = set()
        for node in _walk(tree, on_use=on_use, for_checkers=for_checkers):
            if isinstance(node, ast.ImportFrom) and node.module:
                full = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= {each if each in modules else node.module for each in full}
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
        loaded[name] = found & modules.keys() - {name}
    return loaded


def _walk(node: ast.AST, *, on_use: bool, for_checkers: bool) -> Iterator[ast.AST]:
    for child in list_statements(node):
        if isinstance(child, ast.FunctionDef) and not on_use:
            continue
        if for_checkers or not is_for_checkers(child):
            yield child
            yield from _walk(child, on_use=on_use, for_checkers=for_checkers)


def list_cycles(loaded: dict[str, set[str]]) -> list[tuple[str, ...]]:
    """Return the groups of modules that all import each other, directly or not."""
    # What imports nothing that is left is not in a cycle, nor is what only it imports.
    left = {name: set(others) for name, others in loaded.items()}
    while ends := {name for name, others in left.items() if not others & left.keys()}:
        left = {name: others - ends for name, others in left.items() if name not in ends}
    loaded = {name: others & left.keys() for name, others in left.items()}
    reached: dict[str, set[str]] = {}
    for name, first in loaded.items():
        found, waiting = set[str](), first
        while waiting:
            found |= waiting
            waiting = {other for each in waiting for other in loaded[each]} - found
        reached[name] = found
    in_cycles = [name for name in loaded if name in reached[name]]
    groups = {
        tuple(other for other in in_cycles if other in reached[name] and name in reached[other])
        for name in in_cycles
    }
    return sorted(groups)


def list_importers(modules: dict[str, tuple[Path, ast.Module]]) -> dict[str, set[str]]:
    importers: dict[str, set[str]] = defaultdict(set)
    for name, (_, tree) in modules.items():
        for node in walk_statements(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    importers[full if full in modules else node.module].add(name)
    return importers


def list_shared_class_names(modules: dict[str, tuple[Path, ast.Module]]) -> dict[str, int]:
    """Return the names that classes of several modules have, with their number."""
    names = Counter(
        node.name
        for _, tree in modules.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    )
    return {name: count for name, count in names.items() if count > 1}


def is_participle(name: str) -> bool:
    """Whether the name of a function is a bare participle: `reported`, `_shortened`."""
    word = name.strip("_")
    is_one_word = word.isalpha() and word.islower()
    return is_one_word and (word in _IRREGULAR or (word.endswith("ed") and len(word) > 4))


def count_participles(modules: dict[str, tuple[Path, ast.Module]]) -> int:
    """Return the number of functions named by a bare participle; properties are nouns."""
    return sum(
        isinstance(node, ast.FunctionDef)
        and is_participle(node.name)
        and not any(ast.unparse(each).endswith("property") for each in node.decorator_list)
        for _, tree in modules.values()
        for node in walk_statements(tree)
    )


def count_loaded(root: Path, command: list[str]) -> str:
    """Return how many modules of the package a command loads."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *command],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr.strip().splitlines()[-1]


def list_single(modules: dict[str, tuple[Path, ast.Module]]) -> dict[str, int]:
    """Return the modules with a single importer, and their numbers of lines."""
    importers = list_importers(modules)
    return {
        name: len(path.read_text().splitlines())
        for name, (path, _) in modules.items()
        if path.name != "__init__.py" and len(importers[name]) == 1
    }


def list_fragments(modules: dict[str, tuple[Path, ast.Module]]) -> list[str]:
    """Return the short modules with a single importer, which could be merged into it."""
    return [name for name, lines in list_single(modules).items() if lines < _SHORT]


def list_table_lines(modules: dict[str, tuple[Path, ast.Module]]) -> list[int]:
    """Return the number of lines of each model family's table."""
    return [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for _, tree in modules.values()
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(isinstance(each, ast.Name) and each.id == "FAMILY" for each in node.targets)
    ]


def main(root: Path) -> None:
    """Print the figures of the package below a root."""
    package = root / "weightctl"
    modules = parse_modules(package)
    lengths = [len(path.read_text().splitlines()) for path, _ in modules.values()]
    single = list_single(modules)
    entries = [
        each.name
        for each in package.iterdir()
        if not each.name.startswith("__") and each.name != "py.typed"
    ]
    print(f"files                            {len(modules)}")
    print(f"lines                            {sum(lengths)}")
    print(f"entries of the top level         {len(entries)}")
    print(f"modules with a single importer   {len(single)}")
    print(f"  of them under {_SHORT} lines         {len(list_fragments(modules))}")
    print(f"shared class names               {len(list_shared_class_names(modules))}")
    print(f"functions that are participles   {count_participles(modules)}")
    if lines := list_table_lines(modules):
        print(f"lines of a family's table        {statistics.median(lines):.0f} (median)")
    for name, command in COMMANDS.items():
        print(f"modules that `{name}` loads{' ' * (13 - len(name))}{count_loaded(root, command)}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
