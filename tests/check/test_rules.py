"""Each rule has a fault that it finds, and sound models violate no rule."""

from __future__ import annotations

import json
import os
from pathlib import Path
from shutil import copyfile, copytree
from typing import TYPE_CHECKING, Any

import pytest

import weightctl
from build import F32, Gguf, Tensor
from check_files import FAULTS, INDEX, change, change_index, cut_file, make_models
from conftest import ROOT
from each import each
from lazy import load_file, save_file
from weightctl.check import RULES, CheckedModel, check
from weightctl.system.registry import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from weightctl.check import RuleFinding


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with sound models."""
    folder = tmp_path_factory.mktemp("models")
    make_models(folder)
    return folder


def find(rule: str, path: Path) -> list[RuleFinding]:
    """Return what one rule finds."""
    run: Callable[[CheckedModel], Iterable[RuleFinding]] = load(RULES[rule].find)
    return [*run(CheckedModel(path))]


def test_every_rule_has_a_fault() -> None:
    assert {fault.rule for fault in FAULTS} == {*RULES}


@pytest.mark.parametrize("name", ["model", "adapter", "awq", "model.gguf"])
def test_a_sound_model_violates_no_rule(name: str, models: Path) -> None:
    assert check(models / name).findings == ()


@each("fault", FAULTS, ids=lambda fault: f"{fault.rule}-{fault.make.__name__}")
def test_a_fault_is_found(fault: Any, models: Path, tmp_path: Path) -> None:
    path = copied(models / fault.model, tmp_path)
    fault.make(path)
    found = find(fault.rule, path)
    assert len(found) == 1, found
    assert fault.text in found[0].text
    assert bool(found[0].changes) == fault.has_fix
    for made in found[0].changes:
        assert os.path.isfile(made.path)


def test_a_key_that_tensors_contradict_is_found_in_the_config(models: Path, tmp_path: Path) -> None:
    path = copied(models / "model", tmp_path)
    change(path / "config.json", vocab_size=513)
    of_key, *of_tensors = find("weights-names", path)
    assert of_key.path.endswith("config.json")
    assert "`vocab_size` is 513; 512 would fit" in of_key.hint
    assert of_tensors
    assert not any(each.hint for each in of_tensors)


def test_all_ranks_of_the_matrices_of_an_adapter_are_named(models: Path, tmp_path: Path) -> None:
    path = copied(models / "adapter", tmp_path)
    matrices = load_file(path / "adapter_model.safetensors")
    pair = "base_model.model.model.layers.1.self_attn.q_proj.lora_{}.weight"
    matrices[pair.format("A")] = matrices[pair.format("A")][:2].clone()
    matrices[pair.format("B")] = matrices[pair.format("B")][:, :2].clone()
    save_file(matrices, path / "adapter_model.safetensors")
    (found,) = find("adapter-rank", path)
    assert found.text == "is 4, and the matrices have the rank 2, 4"
    assert not found.changes


def copied(path: Path, folder: Path) -> Path:
    if path.is_dir():
        return Path(copytree(path, folder / path.name))
    return Path(copyfile(path, folder / path.name))


def test_rules_that_are_said_to_have_a_fix_have_one() -> None:
    assert {fault.rule for fault in FAULTS if fault.has_fix} == {
        name for name, rule in RULES.items() if rule.fix
    }


def test_real_models_violate_no_rule(minilm: Path, tiny_llama: Path, smollm2: Path) -> None:
    for path in (minilm, tiny_llama, smollm2):
        assert check(path).findings == (), path


def test_a_model_can_be_named_by_its_index_or_a_part(models: Path, tmp_path: Path) -> None:
    path = copied(models / "model", tmp_path)
    change(path / "config.json", torch_dtype="float16")
    for name in ("", INDEX, "model-00002-of-00005.safetensors"):
        assert [each.rule for each in check(path / name).findings] == ["config-dtype"]


def test_a_distributed_checkpoint_has_no_index_of_parts() -> None:
    assert check(ROOT / "fixtures" / "distributed" / "two").findings == ()


def test_a_damaged_part_is_found_beside_a_fault_of_the_index(models: Path, tmp_path: Path) -> None:
    path = copied(models / "model", tmp_path)
    change_index(path, **{"model.norm.weight": ...})
    cut_file(path)
    assert {"weights-readable", "index-missing-entry"} <= {
        each.rule for each in check(path).findings
    }


def test_the_settings_of_a_text_model_inside_a_config_are_checked(
    models: Path, tmp_path: Path
) -> None:
    path = copied(models / "model", tmp_path)
    nested = {"torch_dtype": "float32", "eos_token_id": 9999}
    change(path / "config.json", text_config=nested)
    checked = check(path, fix=True)
    assert [each.where for each in checked.fixed] == [
        "text_config.torch_dtype",
        "text_config.eos_token_id",
    ]
    document = json.loads((path / "config.json").read_text())
    assert document["text_config"] == {"torch_dtype": "bfloat16", "eos_token_id": 1}


def test_a_rank_of_many_findings_is_that_of_the_table(models: Path, tmp_path: Path) -> None:
    path = copied(models / "model", tmp_path)
    change(path / "config.json", torch_dtype="float16", eos_token_id=9999)
    order = [*RULES]
    found = [order.index(each.rule) for each in check(path).findings]
    assert len(found) == 2
    assert found == sorted(found)


def test_a_wrong_path_is_an_error_and_not_a_finding(tmp_path: Path) -> None:
    with pytest.raises(weightctl.WeightctlError, match="nothing"):
        check(tmp_path / "nothing")


def test_a_template_of_transformers_is_valid(models: Path, tmp_path: Path) -> None:
    path = copied(models / "model", tmp_path)
    (path / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.x %}{% continue %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    )
    assert find("template-syntax", path) == []


def test_a_template_is_not_run(models: Path, tmp_path: Path) -> None:
    path = copied(models / "model", tmp_path)
    (path / "chat_template.jinja").write_text("{{ 10 ** 10 ** 10 }}{{ undefined.attribute() }}")
    assert find("template-syntax", path) == []


def test_a_template_that_is_too_long_to_parse_is_reported(models: Path, tmp_path: Path) -> None:
    path = copied(models / "model", tmp_path)
    (path / "chat_template.jinja").write_text("{{x}}" * 40_001)
    (found,) = find("template-syntax", path)
    assert found.text == "has 200,005 characters; at most 200,000 are parsed"


def test_a_template_in_a_gguf_is_checked(tmp_path: Path) -> None:
    metadata = {"tokenizer.chat_template": ("string", "{% if %}")}
    path = tmp_path / "model.gguf"
    path.write_bytes(Gguf().file([Tensor("a", (32,), F32, bytes(128))], metadata))
    (found,) = find("template-syntax", path)
    assert found.where == "tokenizer.chat_template"


def test_without_jinja_templates_are_noted(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from weightctl.translate.tokenizer import template_syntax

    path = copied(models / "model", tmp_path)
    template_syntax._make_environment.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    checked = check(path)
    assert checked.findings == ()
    assert any("pip install" in note and "'jinja2>=3.1'" in note for note in checked.notes)


@each(
    "content", ["[]", "{", "", "null", '{"a": ' * 100_000, "\xff", '{"bos_token_id": [[]]}'],
    ids=lambda content: content[:8],
)  # fmt: skip
@each("name", ["config.json", "tokenizer.json", "generation_config.json", "tokenizer_config.json"])
def test_damaged_documents_do_not_stop_the_check(
    name: str, content: str, models: Path, tmp_path: Path
) -> None:
    path = copied(models / "adapter", tmp_path)
    (path / name).write_text(content, encoding="latin-1")
    for rule in RULES:
        if not rule.startswith("weights-"):
            find(rule, path)


def test_odd_values_do_not_stop_the_check(models: Path, tmp_path: Path) -> None:
    path = copied(models / "model", tmp_path)
    for odd in (None, True, [], [None], {}, "x", -1, 1e400, [[1]]):
        for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
            document = json.loads((models / "model" / name).read_text())
            document = dict.fromkeys(document, odd) | {"text_config": odd}
            (path / name).write_text(json.dumps(document))
        (path / "tokenizer.json").write_text(json.dumps({"model": odd, "added_tokens": odd}))
        for rule in RULES:
            if not rule.startswith("weights-"):
                find(rule, path)
