"""Files of families: what is wrong in one is an error with its line and its entry."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from each import each
from weightctl import families
from weightctl.errors import FormatError
from weightctl.families import FAMILIES
from weightctl.families.family_files import read_family

if TYPE_CHECKING:
    from weightctl.families.family import Family

VALID = """\
tensors_from = "decoder"
keys_from = ["decoder"]
standard = "rope"
checked = ["decoder"]
[types.toy]
class = "ToyForCausalLM"
defaults = {layers = 2}
[tensors]
"mlp.up" = "mlp.w1"
[keys]
rope_base = {default = 5e5}
"""
# The text that is replaced, the text in its place, and the line and the entry that the error names.
FAULTS = [
    ("[types.toy]", "colour = 1\n[types.toy]", 5, "colour"),
    ("checked", "checks", 4, "checks"),
    ('"rope"', '"ropes"', 3, "standard"),
    ('"rope"', "3", 3, "standard"),
    ('"rope"', '"os:system"', 3, "standard"),
    ('"rope"', '["rope"]', 3, "standard"),
    ('["decoder"]\n[types', '"decoder"\n[types', 4, "checked"),
    ('["decoder"]\n[types', '["weights"]\n[types', 4, "checked"),
    ('["decoder"]\n[types', '["decoder", "windows"]\n[types', 4, "checked"),
    ('keys_from = ["decoder"]', 'keys_from = ["encoder"]', 2, "keys_from"),
    ('keys_from = ["decoder"]', "keys_from = [1]", 2, "keys_from"),
    ('tensors_from = "decoder"', 'tensors_from = "encoders"', 1, "tensors_from"),
    ('tensors_from = "decoder"', 'base = "no such family"', 1, "base"),
    ('class = "ToyForCausalLM"', "", 5, "types.toy"),
    ('class = "ToyForCausalLM"', "class = false", 6, "types.toy.class"),
    ("defaults =", "default =", 7, "types.toy.default"),
    ("{layers = 2}", "2", 7, "types.toy.defaults"),
    ("[types.toy]", "[types]\ntoy = 3\n[types.other]", 6, "types.toy"),
    ('"mlp.up" = "mlp.w1"', '"mlp.upp" = {}', 9, 'tensors."mlp.upp"'),
    ('"mlp.up" = "mlp.w1"', '"mlp.up" = 3', 9, 'tensors."mlp.up"'),
    ('"mlp.w1"', "{hf = 3}", 9, 'tensors."mlp.up".hf'),
    ('"mlp.w1"', "{hf = true}", 9, 'tensors."mlp.up".hf'),
    ('"mlp.w1"', '{name = "w1"}', 9, 'tensors."mlp.up".name'),
    ('"mlp.w1"', '{step = "twist"}', 9, 'tensors."mlp.up".step'),
    ('"mlp.w1"', '{step = "plus_one 3"}', 9, 'tensors."mlp.up".step'),
    ('"mlp.w1"', '{step = "rope_rows"}', 9, 'tensors."mlp.up".step'),
    ('"mlp.w1"', "{step = []}", 9, 'tensors."mlp.up".step'),
    ('"mlp.w1"', '{made = "os.system"}', 9, 'tensors."mlp.up".made'),
    ('"mlp.w1"', '{when = "tied"}', 9, 'tensors."mlp.up".when'),
    ('"mlp.w1"', '{ends = {hf = "", pt = ""}}', 9, 'tensors."mlp.up".ends.pt'),
    ("{default = 5e5}", "5e5", 11, "keys.rope_base"),
    ("{default = 5e5}", "{value = 5e5}", 11, "keys.rope_base.value"),
    ("{default = 5e5}", '{kind = "text"}', 11, "keys.rope_base.kind"),
    ("{default = 5e5}", "{kind = {integer = [1]}}", 11, "keys.rope_base.kind.integer"),
    ("{default = 5e5}", "{kind = {}}", 11, "keys.rope_base.kind"),
    ("{default = 5e5}", "{only = 3}", 11, "keys.rope_base"),
    ("{default = 5e5}", '{default = "= 3 ** heads"}', 11, "keys.rope_base.default"),
    ("{default = 5e5}", "{default = \"= __import__('os')\"}", 11, "keys.rope_base.default"),
    ("{default = 5e5}", '{written = "yes"}', 11, "keys.rope_base.written"),
    ("{default = 5e5}", "{seen = {}}", 11, "keys.rope_base.seen"),
    ("rope_base", "rope_bases", 11, "keys.rope_bases"),
    ("rope_base = {default = 5e5}", '"scaling.kind" = {}', 11, 'keys."scaling.kind"'),
    ("[keys]", '[experts]\ncount = "n"\nexperts = 2\n[keys]', 10, "experts"),
    ("[keys]", "[experts]\nparts = ['']\n[keys]", 11, "experts.parts"),
    ("[types.toy]", 'fusions = ["qk"]\n[types.toy]', 5, "fusions"),
    ("[types.toy]", 'model = "os:system"\n[types.toy]', 5, "model"),
    ("[types.toy]", 'runs = "no"\n[types.toy]', 5, "runs"),
    ("[types.toy]", "fusions = [{parts = []}]\n[types.toy]", 5, "fusions"),
]  # fmt: skip


TABLES = Path(families.__file__).parent / "tables"
PAGE = Path(__file__).parents[2] / "docs" / "contributing.md"


def read(path: Path, text: str) -> Family:
    path.write_text(text)
    return read_family(path, lambda name: FAMILIES[name].load())


@each("old, new, line, entry", FAULTS)
def test_a_fault_is_named_with_its_line_and_its_entry(
    old: str, new: str, line: int, entry: str, tmp_path: Path
) -> None:
    assert VALID.count(old) == 1
    path = tmp_path / "toy.toml"
    with pytest.raises(FormatError) as caught:
        read(path, VALID.replace(old, new))
    assert re.search(rf"line {line}: `{re.escape(entry)}` ", str(caught.value)), caught.value
    assert "contributing.md" in caught.value.hint


@each("text", ["a = ", "a = 1\na = 2", "[" * 5000, "\0"])
def test_what_is_not_toml_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="is not TOML"):
        read(tmp_path / "toy.toml", text)


def test_a_file_says_what_differs_from_the_usual(tmp_path: Path) -> None:
    family = read(tmp_path / "toy.toml", VALID)
    assert family.name == family.gguf_name == "toy"
    assert family.model_types["toy"].defaults == {"layers": 2}
    names = {line.module: line.hugging_face for line in family.names}
    assert names["layers.{}.mlp.up"] == "model.layers.{}.mlp.w1"
    assert names["layers.{}.mlp.down"] == "model.layers.{}.mlp.down_proj"
    (base,) = (key for key in family.keys if key.field == "rope_base")
    assert (base.default, base.gguf_default) == (5e5, 10000.0)


def test_a_base_gives_tensors_keys_and_blocks_and_no_rules(tmp_path: Path) -> None:
    text = 'base = "olmoe"\nblocks = {gated = false}\n[types.toy]\nclass = "ToyForCausalLM"\n'
    family, base = read(tmp_path / "toy.toml", text), FAMILIES["olmoe"].load()
    assert (family.names, family.keys, family.fusions) == (base.names, base.keys, base.fusions)
    assert family.blocks == {**base.blocks, "gated": False}
    assert base.unloaded is not None
    assert family.unloaded is None


def test_the_page_has_a_file_that_is_read_and_explains_each_entry(tmp_path: Path) -> None:
    page = PAGE.read_text()
    found = re.search(r"```toml\n(.+?)```", page, re.DOTALL)
    assert found
    assert read(tmp_path / "toy.toml", found[1]).blocks == {"norm": "layer"}
    used: set[str] = set()
    for path in (*TABLES.glob("*.toml"), tmp_path / "toy.toml"):
        file = tomllib.loads(path.read_text())
        used |= file.keys() | file.get("experts", {}).keys()
        for rows in (file["types"], file.get("tensors", {}), file.get("keys", {})):
            for row in rows.values():
                used |= row.keys() if isinstance(row, dict) else set()
    assert {name for name in used - {"tensors", "keys"} if f"`{name}`" not in page} == set()
