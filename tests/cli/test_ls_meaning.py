"""The roles of tensors in a listing: quantized weights, experts, ties, buffers, adapters."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import small_checkpoints

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


def listed(weightctl: Run, path: Path, *options: str) -> dict[str, Any]:
    done = weightctl("ls", path, "--json", *options)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_a_weight_in_three_tensors_is_one_line_with_its_bits(
    weightctl: Run, tmp_path: Path
) -> None:
    shown = weightctl("ls", small_checkpoints.awq(tmp_path)).stdout
    assert re.search(r"mlp\.up_proj\.weight +512x256 +AWQ 4-bit, 4\.16 bits +68\.1 kB", shown)
    assert "qweight" not in shown
    assert "7 tensors (stored as 15)" in shown
    assert "AWQ 4-bit 204 kB (85.8 %), F16 33.8 kB (14.2 %)" in shown


def test_parameters_are_counted_on_what_the_tensors_stand_for(
    weightctl: Run, tmp_path: Path
) -> None:
    totals = listed(weightctl, small_checkpoints.awq(tmp_path))["totals"]
    parameters = 64 * 256 + 2 * (512 * 256 + 256 * 256 + 256)
    assert totals["parameters"] == parameters
    assert totals["bits_per_weight"] == 8 * totals["bytes"] / parameters


def test_parts_say_in_flat_listings_what_they_are_part_of(weightctl: Run, tmp_path: Path) -> None:
    lines = weightctl("ls", small_checkpoints.awq(tmp_path), "--flat").stdout.splitlines()
    assert len(lines) == 15
    (line,) = [each for each in lines if "layers.1.mlp.up_proj.scales" in each]
    assert line.endswith("part of model.layers.1.mlp.up_proj.weight")


def test_json_has_the_weights_and_their_parts(weightctl: Run, tmp_path: Path) -> None:
    found = listed(weightctl, small_checkpoints.awq(tmp_path))
    assert found["logical"][0] == {
        "name": "model.layers.0.mlp.up_proj.weight",
        "shape": [512, 256],
        "scheme": "AWQ 4-bit",
        "bits_per_weight": 4.15625,
        "parts": [f"model.layers.0.mlp.up_proj.{part}" for part in ("qweight", "scales", "qzeros")],
    }
    roles = {tensor["name"]: tensor["role"] for tensor in found["tensors"]}
    assert roles["model.layers.0.mlp.up_proj.qzeros"] == "part"
    assert roles["model.embed_tokens.weight"] == "weight"


def test_experts_fold_like_layers_and_an_odd_one_is_shown_apart(
    weightctl: Run, tmp_path: Path
) -> None:
    shown = weightctl("ls", small_checkpoints.mixture(tmp_path)).stdout
    assert re.search(r"experts\.\[0-7\]  x8 +8 x 3 tensors", shown)
    assert re.search(r"\[0-4,6-7\]  x7 +7 x 3 tensors", shown)


def test_buffers_are_marked_and_are_not_parameters(weightctl: Run, tmp_path: Path) -> None:
    path = small_checkpoints.small(tmp_path)
    assert re.search(r"rotary_emb\.inv_freq +8 +F32 +32 B +buffer", weightctl("ls", path).stdout)
    found = listed(weightctl, path)
    assert found["totals"]["parameters"] == 32 * 16 + 2 * (16 + 16 * 16) + 16
    assert found["totals"]["bits_per_weight"] == 16
    (role,) = {each["role"] for each in found["tensors"] if each["name"].endswith("inv_freq")}
    assert role == "buffer"


def test_a_tied_name_is_marked_and_takes_nothing(weightctl: Run, tmp_path: Path) -> None:
    path = small_checkpoints.tied(tmp_path)
    lines = weightctl("ls", path, "--flat").stdout.splitlines()
    assert lines[1].split() == [
        "lm_head.weight", "8x4", "F32", "-", "tied", "to", "model.embed_tokens.weight",
    ]  # fmt: skip
    found = listed(weightctl, path)
    assert found["tied"] == {"lm_head.weight": "model.embed_tokens.weight"}
    assert (found["totals"]["tensors"], found["totals"]["parameters"]) == (1, 32)


def test_an_adapter_is_recognized(weightctl: Run, tmp_path: Path) -> None:
    path = small_checkpoints.adapter(tmp_path)
    shown = weightctl("ls", path).stdout
    assert "LoRA adapter: rank 8, alpha 16, 4 matrices, base model example/base\n" in shown
    assert listed(weightctl, path)["adapter"] == {
        "ranks": [8],
        "matrices": 4,
        "base": "example/base",
        "alpha": 16,
    }
