"""Other checkpoints than whole models of supported families are converted only on request."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from arrays import stored
from weightctl import DType, open_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]

RULES = r"""
[rename]
'^net\.(\d+)\.(.*norm)' = 'model.layers.\1.\2'
'^net\.(\d+)\.([qkvo])_' = 'model.layers.\1.self_attn.\2_'
'^net\.(\d+)\.' = 'model.layers.\1.mlp.'
"""


def names(path: Path) -> set[str]:
    return set(open_weights(path).header.tensors)


def changed(tiny_llama: Path, folder: Path, **config: object) -> dict[str, Any]:
    """Copy the shipped model, with another config; return its tensors, in float32."""
    folder.mkdir()
    for path in tiny_llama.glob("*.json"):
        shutil.copy(path, folder)
    document = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(document))
    return {
        name: node.data().astype(DType.float32).to_numpy()
        for name, node in open_weights(tiny_llama).items()
    }


def refused(done: Completed, folder: Path) -> str:
    """Return what a refusal says, which must come before anything is written."""
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert os.listdir(folder) == ["in"]
    return done.stderr


def test_what_is_of_no_part_of_a_model_is_refused_until_it_is_excluded(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    tensors = changed(tiny_llama, tmp_path / "in")
    more = {
        "model.extra.weight": np.ones((2, 2), np.float32),
        "value_head": tensors["lm_head.weight"],
    }
    save_file(tensors | more, tmp_path / "in" / "model.safetensors")
    asked = "convert", tmp_path / "in", tmp_path / "out.gguf"
    says = refused(weightctl(*asked), tmp_path)
    assert "`model.extra.weight` is not a part of llama" in says
    assert "`value_head` is not a part of llama" in says
    assert (
        "to leave out tensors that are not part of the model, use --exclude (exclude in Python)"
    ) in says
    says = refused(weightctl(*asked, "--exclude", "model.extra.*"), tmp_path)
    assert "model.extra" not in says
    assert "value_head" in says
    done = weightctl(*asked, "--exclude", "model.extra.*", "--exclude", "value_head")
    assert done.returncode == 0, done.stderr
    assert len(names(tmp_path / "out.gguf")) == len(tensors)


def test_a_pattern_for_both_what_is_and_what_is_not_a_part_leaves_both_out(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    tensors = changed(tiny_llama, tmp_path / "in")
    tensors["extra_norm"] = tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "in" / "model.safetensors")
    out = tmp_path / "out.gguf"
    assert weightctl("convert", tmp_path / "in", out, "--exclude", "*norm*").returncode == 0
    assert len(names(out)) == 23
    assert not [name for name in names(out) if "norm" in name]


def test_a_pattern_for_nothing_is_refused_beside_one_for_what_is_not_a_part(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    tensors = changed(tiny_llama, tmp_path / "in")
    tensors["extra"] = tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "in" / "model.safetensors")
    done = weightctl("convert", tmp_path / "in", tmp_path / "out.gguf", "--exclude", "extra",
                     "--exclude", "no.such.*")  # fmt: skip
    assert "no tensor matches `no.such.*`" in refused(done, tmp_path)


def test_an_unknown_family_is_refused_with_what_is_known_and_can_be_kept(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    tensors = changed(tiny_llama, tmp_path / "in", model_type="lama")
    save_file(tensors, tmp_path / "in" / "model.safetensors")
    asked = "convert", tmp_path / "in", tmp_path / "out.gguf"
    says = refused(weightctl(*asked), tmp_path)
    assert "`model_type` is `'lama'`, a model family that weightctl does not support" in says
    assert (
        'to convert the tensors under their present names, use --names keep (names="keep" in '
        "Python), but other programs cannot load such a file as a model"
    ) in says
    assert "the closest is llama, which has 12 of the 12" in says
    assert weightctl(*asked, "--names", "keep").returncode == 0
    assert names(tmp_path / "out.gguf") == names(tiny_llama)


def test_an_unknown_family_is_copied_into_a_directory(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    tensors = changed(tiny_llama, tmp_path / "in", model_type="lama")
    save_file(tensors, tmp_path / "in" / "model.safetensors")
    assert weightctl("convert", tmp_path / "in", tmp_path / "out").returncode == 0
    assert sorted(os.listdir(tmp_path / "out")) == sorted(os.listdir(tmp_path / "in"))


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("model.layers.1.mlp.up_proj.weight", None,
         "`model.layers.1.mlp.up_proj.weight` is missing"),
        ("model.layers.2.mlp.up_proj.weight", (500, 256),
         "`model.layers.2.mlp.up_proj.weight` has shape [500, 256] instead of [512, 256]"),
        ("model.layers.0.self_attn.q_proj.weight", (255, 256),
         ("`model.layers.0.self_attn.q_proj.weight` has shape [255, 256] instead of [256, "
             "256]")),
        ("model.layers.0.self_attn.q_norm.weight", (32,),
         "`model.layers.0.self_attn.q_norm.weight` is not a part of llama"),
    ],
    ids=["missing", "of another shape", "of another number of heads", "unexpected"],
)  # fmt: skip
def test_what_is_not_a_whole_model_is_refused_with_the_tensors_name(
    weightctl: Run, tiny_llama: Path, tmp_path: Path, name: str, shape: tuple[int, ...] | None,
    says: str,
) -> None:  # fmt: skip
    tensors = changed(tiny_llama, tmp_path / "in")
    tensors.pop(name, None)
    if shape:
        tensors[name] = np.ones(shape, np.float32)
    save_file(tensors, tmp_path / "in" / "model.safetensors")
    for more in ((), ("--quant", "Q8_0"), ("--dry-run",)):
        found = refused(weightctl("convert", tmp_path / "in", tmp_path / "o.gguf", *more), tmp_path)
        assert says in found
        assert "--names keep" in found


# By a person's own rules


def test_renamed_tensors_are_known_as_a_models(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    folder, plain = tmp_path / "in", tmp_path / "plain.gguf"
    assert weightctl("convert", tiny_llama, plain).returncode == 0
    tensors = {
        name.replace("model.layers.", "net.").replace("self_attn.", "").replace("mlp.", ""): array
        for name, array in changed(tiny_llama, folder).items()
    }
    assert "net.0.q_proj.weight" in tensors
    save_file(tensors, folder / "model.safetensors")
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    out = tmp_path / "out.gguf"
    done = weightctl("convert", folder, out, "--rename", rules, "--dtype", "bf16")
    assert done.returncode == 0, done.stderr
    assert "llama, Hugging Face -> GGUF" in done.stdout
    same = weightctl("diff", plain, out, "--hash")
    assert same.stdout.splitlines()[-1] == "30 tensors, no difference"


def test_a_rule_renames_what_keeps_its_names_otherwise(weightctl: Run, tmp_path: Path) -> None:
    source = stored(tmp_path / "in.safetensors", a=np.ones(2, np.float32), b=np.ones(2, np.float32))
    (tmp_path / "rules.toml").write_text("[rename]\n'^a$' = 'first'\n")
    asked = "convert", source, tmp_path / "out.safetensors", "--rename", tmp_path / "rules.toml"
    assert weightctl(*asked).returncode == 0
    assert names(tmp_path / "out.safetensors") == {"first", "b"}


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ("[rename]\nnothing = 'b'", "no tensor's name matches `nothing`"),
        (
            "[rename]\n'k_proj' = 'v_proj'",
            "would have the same name",
        ),
        ("[rename]\n'layers' = '\\1'", "invalid group reference 1"),
        ("rename", "is not valid TOML"),
    ],
    ids=["unmatched", "collision", "no such capture", "no TOML"],
)
def test_rules_that_cannot_be_followed_are_refused(
    weightctl: Run, tiny_llama: Path, tmp_path: Path, rules: str, says: str
) -> None:
    (tmp_path / "in").write_text(rules)
    asked = "convert", tiny_llama, tmp_path / "out.gguf", "--rename", tmp_path / "in"
    assert says in refused(weightctl(*asked), tmp_path)


def test_a_file_of_rules_is_never_the_output(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("[rename]\n'^model' = 'net'\n")
    done = weightctl("convert", tiny_llama, rules, "--to", "gguf", "--rename", rules, "--force",
                     "--names", "keep")  # fmt: skip
    assert done.returncode == 2
    assert f"{rules} is the file of naming rules" in done.stderr
    assert rules.read_text().startswith("[rename]")
