"""The command `shard` without the time that a process takes to start."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from conftest import ROOT
from weightctl.cli.shard import app
from weightctl.errors import WeightctlError

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result


TINY = ROOT / "fixtures" / "tiny-llama"
O_PROJ = "model.layers.0.self_attn.o_proj.weight"


def asked(*arguments: str | Path) -> Result:
    """Return what becomes of the command, without the time that a process takes to start."""
    return CliRunner().invoke(app, list(map(str, arguments)))


def document(*arguments: str | Path) -> dict[str, Any]:
    done = asked(*arguments, "--json")
    assert done.exit_code == 0, done.exception
    message: dict[str, Any] = json.loads(done.stdout)
    return message


def refusal(*arguments: str | Path) -> str:
    """Return what the command says where it refuses something: the error and its hint."""
    error = asked(*arguments).exception
    assert isinstance(error, WeightctlError)
    return str(error)
