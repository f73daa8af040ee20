"""A command takes a module and a line: then it is run by its name, and listed by --help."""

from __future__ import annotations

from typing import TYPE_CHECKING

from extended_package import Line

if TYPE_CHECKING:
    from pathlib import Path

    from extended_package import ExtendedPackage

MODULE = '''
"""`weightctl count`: the number of tensors."""

from typing import Annotated

import typer

from weightctl.weights.tree import header_of

app = typer.Typer()


@app.command()
def count(path: Annotated[str, typer.Argument()]) -> None:
    """Print how many tensors a checkpoint has."""
    from weightctl import open_weights

    typer.echo(len(header_of(open_weights(path)).tensors))
'''
LINE = Line('    "count": "weightctl.cli.count:app",', before='"diff": "weightctl.cli.diff:app",')


def test_a_command_is_a_module_and_a_line(extended: ExtendedPackage, tiny_llama: Path) -> None:
    modules, lines = {"cli/count.py": MODULE}, {"cli/__init__.py": [LINE]}
    assert extended.follow("a command", "count", modules, lines) == 1
    assert extended.command("count", tiny_llama) == "30\n"
    assert "how many tensors" in extended.command("--help")
