"""A family takes one module and a line: then its models are recognized, converted and run."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from extended_package import Line

if TYPE_CHECKING:
    from pathlib import Path

    from extended_package import ExtendedPackage

# A llama whose parts of the MLP are called w1, w2 and w3.
FAMILY = '''
"""Toy: a llama with other names."""

from dataclasses import replace

from weightctl.families.family import ModelType
from weightctl.families.llama import FAMILY as LLAMA

_NAMES = {"mlp.gate_proj": "mlp.w1", "mlp.up_proj": "mlp.w3", "mlp.down_proj": "mlp.w2"}


def _rename(line):
    name = line.hugging_face
    for old, new in _NAMES.items():
        name = name and name.replace(old, new)
    return replace(line, hugging_face=name)


FAMILY = replace(
    LLAMA,
    name="toy",
    model_types={"toy": ModelType(class_name="ToyForCausalLM")},
    names=tuple(map(_rename, LLAMA.names)),
)
'''
LINE = Line(
    '    "toy": FamilyLine("weightctl.families.toy", "toy", ("toy",)),',
    before='"bert", ("bert",)),',
)
RULES = r"""
[rename]
'mlp\.gate_proj' = 'mlp.w1'
'mlp\.up_proj' = 'mlp.w3'
'mlp\.down_proj' = 'mlp.w2'
"""
PROGRAM = """
import sys
import numpy as np
from weightctl import InferenceSession, open_weights, recognize
from weightctl.nn.models import build_network

logits = []
for path in sys.argv[1:]:
    model = recognize(open_weights(path))
    network = build_network(model)
    print(model.family.name, type(network).__name__)
    loaded = InferenceSession().load(network.graph(), model.weights)
    logits.append(loaded.execute(np.arange(8)[None])[0].to_numpy())
assert np.abs(logits[0] - logits[1]).max() < 1e-4
"""


def make_toy(extended: ExtendedPackage, tiny_llama: Path, tmp_path: Path) -> Path:
    """Return tiny-llama as a model of the family."""
    toy = tmp_path / "toy"
    shutil.copytree(tiny_llama, toy)
    config = json.loads((toy / "config.json").read_text())
    config |= {"model_type": "toy", "architectures": ["ToyForCausalLM"]}
    (toy / "config.json").write_text(json.dumps(config))
    rules, tensors = tmp_path / "rules.toml", toy / "model.safetensors"
    rules.write_text(RULES)
    tensors.unlink()
    extended.command("convert", tiny_llama / "model.safetensors", tensors, "--rename", rules)
    return toy


def test_a_family_is_one_module_and_a_line(
    extended: ExtendedPackage, tiny_llama: Path, tmp_path: Path
) -> None:
    modules = {"families/toy.py": FAMILY}
    assert extended.follow("a family", "toy", modules, {"families/__init__.py": [LINE]}) == 1

    toy = make_toy(extended, tiny_llama, tmp_path)
    gguf, back = tmp_path / "toy.gguf", tmp_path / "back"
    extended.command("convert", toy, gguf)
    names = extended.command("ls", gguf, "--flat")
    assert "blk.0.ffn_gate.weight" in names
    assert "w1" not in names
    extended.command("convert", gguf, f"{back}/", "--dtype", "bf16")
    assert json.loads((back / "config.json").read_text())["model_type"] == "toy"
    extended.command("diff", "--hash", toy, back)
    assert extended.run("-c", PROGRAM, gguf, tiny_llama).split() == [
        "toy", "Decoder", "llama", "Decoder",
    ]  # fmt: skip


def test_a_family_without_a_module_is_converted_and_not_run(
    extended: ExtendedPackage, tiny_llama: Path, tmp_path: Path
) -> None:
    modules = {
        "families/toy.py": FAMILY.replace("    names=tuple", '    module="",\n    names=tuple')
    }
    extended.follow("a family", "toy", modules, {"families/__init__.py": [LINE]})
    toy, gguf = make_toy(extended, tiny_llama, tmp_path), tmp_path / "toy.gguf"
    extended.command("convert", toy, gguf)
    extended.command("shard", toy, tmp_path / "ranks", "--tp", "2")
    said = extended.command("verify", gguf, "--against", toy)
    assert "weightctl does not run toy models" in said
    assert "names" in said
