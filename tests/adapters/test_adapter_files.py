"""Adapters as GGUF files: llama.cpp computes with them what the merged model computes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

import weightctl
from llama_cpp import ask
from lora_models import adapt, make_llama
from weightctl.errors import ConversionError

if TYPE_CHECKING:
    from pathlib import Path

TOKENS = [3, 17, 42, 9, 80, 33, 5]


@pytest.mark.long
@pytest.mark.parametrize(
    "targets",
    [["embed_tokens", "v_proj"], ["q_proj", "k_proj", "down_proj"]],
)
def test_llama_cpp_gives_the_logits_of_the_merged_model(targets: list[str], tmp_path: Path) -> None:
    model = adapt(
        tmp_path, make_llama(), r=4, lora_alpha=6, target_modules=targets, use_rslora=True,
        alpha_pattern={targets[0]: 3},
    )  # fmt: skip
    base, merged, adapter = (tmp_path / f"{name}.gguf" for name in ("base", "merged", "adapter"))
    weightctl.convert(model.base, base)
    weightctl.convert(model.base, merged, adapters=[model.adapter])
    made = weightctl.convert(model.adapter, adapter, base=model.base)
    assert "not written: 1 copy" in " ".join(made.notes) or "embed_tokens" not in targets
    (plain,) = ask(base, ("logits", TOKENS))
    (wanted,) = ask(merged, ("logits", TOKENS))
    (found,) = ask(base, ("logits", TOKENS), adapter=str(adapter))
    assert np.abs(plain - wanted).max() > 0.1
    assert np.abs(found - wanted).max() < 2e-2
    again = tmp_path / "again.gguf"
    weightctl.convert(base, again, adapters=[adapter])
    both = [weightctl.open_weights(path) for path in (again, merged)]
    for name, node in both[0].items():
        assert np.allclose(np.asarray(node), np.asarray(both[1][name]), rtol=0, atol=1e-6)


def test_the_base_is_read_from_the_settings_or_given(tmp_path: Path) -> None:
    model = adapt(tmp_path, make_llama(), r=2, target_modules=["q_proj"])
    path = model.adapter / "adapter_config.json"
    settings = json.loads(path.read_text())
    for named in (str(model.base), "owner/name"):
        path.write_text(json.dumps(settings | {"base_model_name_or_path": named}))
        base = None if named == str(model.base) else model.base
        made = weightctl.convert(model.adapter, tmp_path / "out.gguf", base=base, force=True)
        assert made.plan.metadata["general.base_model.0.name"].content == named
    with pytest.raises(ConversionError, match="which is not known here"):
        weightctl.convert(model.adapter, tmp_path / "other.gguf")
    with pytest.raises(ConversionError, match="applies only to LoRA adapters"):
        weightctl.convert(model.base, tmp_path / "other.gguf", base=model.base)


@pytest.mark.parametrize(
    "settings", [{"use_dora": True}, {"modules_to_save": ["lm_head"]}], ids=["dora", "replaced"]
)
def test_what_llama_cpp_does_not_apply_is_refused(
    settings: dict[str, object], tmp_path: Path
) -> None:
    model = adapt(tmp_path, make_llama(), r=2, target_modules=["q_proj"], **settings)
    with pytest.raises(ConversionError, match=r"which llama\.cpp does not"):
        weightctl.convert(model.adapter, tmp_path / "out.gguf", base=model.base)
