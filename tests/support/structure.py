"""Figures of the package's structure: `python tests/support/structure.py [ROOT]` prints them.

They are files, lines, entries of the top level, modules with a single importer, class names that
several modules share, functions that are called by a bare participle, and how many modules of the
package some commands load.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

# What is loaded by a command, as the modules of the package in `sys.modules` at its end.
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


def parse_modules(package: Path) -> dict[str, tuple[Path, ast.Module]]:
    """Return the modules of a package by their dotted names."""
    found: dict[str, tuple[Path, ast.Module]] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = (path, ast.parse(path.read_text()))
    return found


def list_importers(modules: dict[str, tuple[Path, ast.Module]]) -> dict[str, set[str]]:
    """Return which modules import each."""
    importers: dict[str, set[str]] = defaultdict(set)
    for name, (_, tree) in modules.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    importers[full if full in modules else node.module].add(name)
    return importers


def list_shared_class_names(modules: dict[str, tuple[Path, ast.Module]]) -> dict[str, int]:
    """Return the names that classes of several modules have, and how many have each."""
    names = Counter(
        node.name
        for _, tree in modules.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    )
    return {name: count for name, count in names.items() if count > 1}


def is_participle(name: str) -> bool:
    """Whether a function is called by a participle alone: `reported`, `_shortened`."""
    word = name.strip("_")
    is_one_word = word.isalpha() and word.islower()
    return is_one_word and (word in _IRREGULAR or (word.endswith("ed") and len(word) > 4))


def count_participles(modules: dict[str, tuple[Path, ast.Module]]) -> int:
    """Return how many functions are called by a bare participle; properties are nouns."""
    return sum(
        isinstance(node, ast.FunctionDef)
        and is_participle(node.name)
        and not any(ast.unparse(each).endswith("property") for each in node.decorator_list)
        for _, tree in modules.values()
        for node in ast.walk(tree)
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


def main(root: Path) -> None:
    """Print the figures of the package below a root."""
    package = root / "weightctl"
    modules = parse_modules(package)
    importers = list_importers(modules)
    lengths = {name: len(path.read_text().splitlines()) for name, (path, _) in modules.items()}
    single = [
        name
        for name, (path, _) in modules.items()
        if path.name != "__init__.py" and len(importers[name]) == 1
    ]
    entries = [
        each.name
        for each in package.iterdir()
        if not each.name.startswith("__") and each.name != "py.typed"
    ]
    print(f"files                            {len(modules)}")
    print(f"lines                            {sum(lengths.values())}")
    print(f"entries of the top level         {len(entries)}")
    print(f"modules with a single importer   {len(single)}")
    print(
        f"  of them under {_SHORT} lines         {sum(lengths[name] < _SHORT for name in single)}"
    )
    print(f"shared class names               {len(list_shared_class_names(modules))}")
    print(f"functions that are participles   {count_participles(modules)}")
    for name, command in COMMANDS.items():
        print(f"modules that `{name}` loads{' ' * (13 - len(name))}{count_loaded(root, command)}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
