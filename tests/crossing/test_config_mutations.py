"""A changed key of config.json changes the logits of a converted model as in transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from config_mutations import mutate_keys
from family_cases import CASES, make_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

# One case of each family. The files of T5 models are of no use to this test's models.
FIRST = {case.family: name for name, case in reversed(CASES.items()) if case.model_type != "t5"}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(FIRST.values()))
def test_a_changed_key_changes_the_logits_alike_or_is_refused(
    name: str, crossed: Path, tmp_path: Path
) -> None:
    found = mutate_keys(make_checkpoint(name, crossed), tmp_path)
    assert found.alike or found.refused
    assert not found.otherwise, "\n".join(found.otherwise)
