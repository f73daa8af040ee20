"""docs/api-names.md has every name of the documents, and leads to ours, with their signatures."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch

from documented import IMPORTS, PATHS, SIGNATURES
from each import each
from lazy import torch
from weightctl import DType, nn

PAGE = Path(__file__).parent.parent.parent / "docs" / "api-names.md"


class Line(NamedTuple):
    """A line of a table of the page."""

    documented: str
    ours: str
    signature: str


def lines_of_page() -> list[Line]:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    cells = [[cell.strip().strip("`") for cell in row.strip("|").split(" | ")] for row in rows]
    return [Line(row[0].strip("` "), row[1], row[2] if len(row) > 3 else "") for row in cells]


LINES = lines_of_page()


def found(path: str) -> Any:
    """Import the longest module of a path, and take the attributes behind it."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            target: Any = import_module(".".join(parts[:count]))
        except ImportError:
            continue
        if len(parts) - count == 0 and parts[count - 2] == "ops":
            # Each op is a function of a module that has its name.
            return getattr(import_module("weightctl.graph.ops"), parts[-1])
        for name in parts[count:]:
            target = inspect.getattr_static(target, name) if isinstance(target, type) else getattr(
                target, name
            )  # fmt: skip
        return target
    raise AssertionError(path)


def parameters(path: str) -> list[str]:
    """Return our parameters as the documents write them, without `self` and annotations."""
    target = found(path)
    function = target.__func__ if isinstance(target, classmethod) else target
    signature = inspect.signature(function)
    written: list[str] = []
    is_keyword_only = False
    for name, parameter in signature.parameters.items():
        if name in {"self", "cls"}:
            continue
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not is_keyword_only:
            is_keyword_only = True
            if not any(text.startswith("*") for text in written):
                written.append("*")
        star = "*" if parameter.kind is inspect.Parameter.VAR_POSITIONAL else ""
        default = (
            "" if parameter.default is inspect.Parameter.empty else f"={_shown(parameter.default)}"
        )
        written.append(f"{star}{name}{default}")
    return written


def _shown(default: object) -> str:
    return repr(default) if isinstance(default, str) else str(default)


def split(signature: str) -> list[str]:
    """Return the parameters of a signature; a star alone is one too."""
    return re.findall(r"[^,()\s][^,()]*", signature)


BY_NAME = {line.documented: line for line in LINES}


def test_a_name_has_one_line() -> None:
    assert len(LINES) == len(BY_NAME)


@each("name", [*SIGNATURES, *(f"max.{path}" for path in PATHS)])
def test_the_page_has_a_name_of_the_documents(name: str) -> None:
    assert name in BY_NAME


@each("name", [name for name, signature in SIGNATURES.items() if signature is not None])
def test_a_signature_on_the_page_is_that_of_the_documents(name: str) -> None:
    assert split(BY_NAME[name].signature) == split(SIGNATURES[name] or "")


@each("name", [name for name, signature in SIGNATURES.items() if signature is not None])
def test_our_signature_is_that_of_the_documents(name: str) -> None:
    require_signature(name, SIGNATURES[name] or "")


@each("path", PATHS)
def test_a_documented_path_is_ours_or_the_page_says_where_it_is(path: str) -> None:
    ours = BY_NAME[f"max.{path}"].ours
    assert ours == f"weightctl.{path}"
    assert found(f"weightctl.{path}") is not None


@pytest.mark.parametrize("lines", IMPORTS)
def test_the_imports_of_the_examples_run(lines: str) -> None:
    names: dict[str, object] = {}
    exec(lines, names)  # they are import lines of this folder
    assert names["DType"] is DType


def test_layers_are_the_same_in_both_places() -> None:
    ours, specified = map(import_module, ("weightctl.nn.layer", "weightctl.pipelines.nn.layer"))
    for name in specified.__all__:
        assert getattr(ours, name) is getattr(specified, name)


def test_the_lines_that_export_a_state_run_as_they_are_written(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            self.embed = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10)
            self.head.set_shared_weight("weight", self.embed.weight)

    class Theirs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(10, 4)
            self.head = torch.nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight

    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    numbers = np.arange(40, dtype=np.float32).reshape(10, 4)
    for values in (None, {"embed.weight": numbers}, {"embed.weight": torch.from_numpy(numbers)}):
        module, theirs = Tied(), Theirs()
        if values is not None:
            module.load_state_dict(values)
        assert [value.shape for value in module.state_dict().values()] == [(10, 4)]
        names: dict[str, Any] = {"module": module, "torch": torch, "np": np}
        exec(block, names)  # it is our own page
        expected = numbers if values else np.zeros((10, 4))
        safetensors.torch.save_file(names["tensors"], tmp_path / "torch.safetensors")
        safetensors.numpy.save_file(names["arrays"], tmp_path / "numpy.safetensors")
        for name in ("torch", "numpy"):
            read = safetensors.numpy.load_file(tmp_path / f"{name}.safetensors")
            assert np.array_equal(read["embed.weight"], expected)
        theirs.load_state_dict(names["tensors"], strict=False)
        assert np.array_equal(theirs.head.weight.detach(), expected)
        assert all(f"    {{name: {line}" in str(nn.Module.state_dict.__doc__) for line in _EXPORTS)


_EXPORTS = ("torch.from_dlpack(value) for", "np.asarray(value) for")


@each("line", LINES, ids=lambda line: line.documented)
def test_a_name_leads_to_ours(line: Line) -> None:
    assert found(line.ours) is not None


@each("line", [line for line in LINES if line.signature], ids=lambda line: line.documented)
def test_a_signature_of_the_page_is_ours(line: Line) -> None:
    require_signature(line.documented, line.signature)


def require_signature(name: str, signature: str) -> None:
    """Compare ours, which may have more: parameters with defaults behind those of the documents."""
    documented = split(signature)
    ours = parameters(BY_NAME[name].ours)
    if name == "LayerList":
        documented = ["layers=()"]
    assert ours[: len(documented)] == documented
    assert all("=" in extra or extra == "*" for extra in ours[len(documented) :])
