"""The page that `stat --html` writes: heat maps, and a table that can be sorted."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import save_file

from reports import of_class, parsed, text_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from xml.etree.ElementTree import Element

    from conftest import Completed

    Run = Callable[..., Completed]


def make(path: Path, **more: np.ndarray) -> Path:
    random = np.random.default_rng(1)
    tensors = {
        f"model.layers.{layer}.mlp.up.weight": random.standard_normal((8, 16), np.float32)
        for layer in range(4)
    }
    tensors["model.layers.2.mlp.up.weight"] *= 5
    tensors["model.norm.weight"] = np.array([1, np.nan, 0, np.inf], np.float32)
    save_file(tensors | more, path / "model.safetensors")
    return path / "model.safetensors"


def page(weightctl: Run, model: Path, *options: str) -> Element:
    target = model.with_suffix(".html")
    done = weightctl("stat", model, "--html", target, *options)
    assert done.returncode == 0, done.stderr
    return parsed(target.read_text())


def cells(picture: Element) -> dict[str, str]:
    return {text_of(rect): rect.get("class", "") for rect in picture.iter("rect") if text_of(rect)}


def test_a_page_has_a_row_for_each_tensor(weightctl: Run, tmp_path: Path) -> None:
    root = page(weightctl, make(tmp_path))
    names = [code.text for body in root.iter("tbody") for code in body.iter("code")]
    assert names == [*(f"model.layers.{n}.mlp.up.weight" for n in range(4)), "model.norm.weight"]
    assert len(of_class(root, "spark")) == 5
    (bad,) = [row for row in root.iter("tr") if row.get("class") == "bad"]
    assert text_of(bad).startswith("model.norm.weight4F32")
    assert text_of(bad).endswith("25 %2")


def test_a_heat_map_shows_the_layer_that_differs(weightctl: Run, tmp_path: Path) -> None:
    root = page(weightctl, make(tmp_path))
    titled = {svg.get("aria-label", ""): svg for svg in root.iter("svg")}
    (title,) = [each for each in titled if each.startswith("Standard deviation")]
    found = {text.split("\n")[0]: color for text, color in cells(titled[title]).items()}
    assert found["model.layers.0.mlp.up.weight"] == "r2"
    assert found["model.layers.2.mlp.up.weight"] == "r5"
    assert "bad" in found["model.norm.weight"]
    assert "mlp.up" in [text_of(label) for label in titled[title].iter("text")]


def test_ranks_are_on_the_page_if_they_were_estimated(weightctl: Run, tmp_path: Path) -> None:
    model = make(tmp_path, thin=np.ones((6, 4), np.float32))
    assert "Effective rank" not in text_of(page(weightctl, model))
    root = page(weightctl, model, "--rank", "--force")
    assert "Effective rank" in text_of(root)
    row = next(row for row in root.iter("tr") if text_of(row).startswith("thin"))
    assert text_of(row[-1]) == "1"


def test_a_browser_runs_only_the_script_of_the_page(weightctl: Run, tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>"
    root = page(weightctl, make(tmp_path, **{hostile: np.ones(4, np.float32)}))
    (script,) = root.iter("script")
    digest = b64encode(hashlib.sha256((script.text or "").encode()).digest()).decode()
    (policy,) = [meta.get("content", "") for meta in root.iter("meta") if meta.get("http-equiv")]
    assert policy.endswith(f"script-src 'sha256-{digest}'")
    assert hostile in [code.text for code in root.iter("code")]


def test_a_page_that_exists_is_kept(weightctl: Run, tmp_path: Path) -> None:
    model = make(tmp_path)
    (tmp_path / "model.html").write_text("mine")
    done = weightctl("stat", model, "--html", tmp_path / "model.html")
    assert done.returncode == 2
    assert "--force" in done.stderr
    assert (tmp_path / "model.html").read_text() == "mine"


def test_a_checkpoint_without_real_values_has_a_page(weightctl: Run, tmp_path: Path) -> None:
    path = tmp_path / "steps.safetensors"
    save_file({"steps": np.array([1])}, path)
    assert "1 not measured" in text_of(page(weightctl, path))
