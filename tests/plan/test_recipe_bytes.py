"""In every recipe, the bytes of each tensor are those that llama.cpp's quantize writes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from recipe_models import MODELS, RECIPES
from weightctl import Plan, Weights, open_weights
from weightctl.formats.imatrix import Importance
from weightctl.plan.cast import cast
from weightctl.plan.importance import apply_importance
from weightctl.plan.recipe_lines import LLAMA_RECIPES
from weightctl.write.save import save

if TYPE_CHECKING:
    from collections.abc import Callable

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "recipe-goldens.json").read_text()
)["models"]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Weights]:
    folder = tmp_path_factory.mktemp("models")
    for name, model in MODELS.items():
        (folder / f"{name}.gguf").write_bytes(model.file())
    return lambda name: open_weights(folder / f"{name}.gguf")


def hashes(path: Path) -> dict[str, tuple[str, str]]:
    """Return the type and the hash of every tensor of a file."""
    return {
        name: (
            node.info.encoding.name,
            hashlib.sha256(bytes(node.data().view())).hexdigest()[:16],
        )
        for name, node in open_weights(path).items()
    }


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", MODELS)
def test_a_recipe_gives_the_types_and_bytes_of_llama_quantize(
    opened: Callable[[str], Weights], tmp_path: Path, name: str, recipe: str, weighted: bool
) -> None:
    golden = GOLDEN[f"{name}, weighted" if weighted else name]
    if recipe not in golden["types"]:
        # Q1_0 has no substitute for rows of incomplete blocks.
        assert LLAMA_RECIPES[recipe].wants_importance or recipe == "Q1_0"
        return
    model = MODELS[name]
    plan = cast(Plan.copy(opened(name), "gguf"), LLAMA_RECIPES[recipe], weighted=weighted)
    if weighted:
        values = {matrix: each.ravel() for matrix, each in model.importance().items()}
        plan = apply_importance(plan, Importance("", values))
    assert plan.metadata["general.file_type"].content == RECIPES[recipe]
    kinds = dict(zip(model.shapes, golden["types"][recipe].split(), strict=True))
    planned = {item.info.name: item.info.encoding.name for item in plan.items}
    assert planned.items() >= kinds.items()
    # Only the first and the last tensor of each type: all of them take NumPy a minute.
    shown = {kind: matrix for matrix, kind in reversed(kinds.items())}
    sample = {*shown.values(), *{kind: matrix for matrix, kind in kinds.items()}.values()}
    save(plan.only(sample), tmp_path / "out.gguf")
    assert hashes(tmp_path / "out.gguf") == {
        matrix: (kinds[matrix], golden["hashes"][matrix][kinds[matrix]]) for matrix in sample
    }
