"""Files of families: what is wrong in one is an error with its line and its entry."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from commands import run_command
from each import each
from installed import importing_from, install
from lazy import load_file, save_file, torch
from multimodal import make_multimodal
from weightctl import families, open_weights, recognize
from weightctl.errors import FormatError
from weightctl.families import FAMILIES, add_family
from weightctl.families.added import with_families
from weightctl.families.configs import from_hugging_face
from weightctl.families.family_files import read_family
from weightctl.families.towers import TOWER_TABLES, TOWERS
from weightctl.families.towers.tower_files import USUAL, read_tower
from weightctl.weights.tree import header_of

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
    ("{default = 5e5}", '{default = "= 3 * heads / hidden"}', 11, "keys.rope_base.default"),
    ("{default = 5e5}", "{default = \"= __import__('os')\"}", 11, "keys.rope_base.default"),
    ("{default = 5e5}", '{written = "yes"}', 11, "keys.rope_base.written"),
    ("{default = 5e5}", "{seen = {}}", 11, "keys.rope_base.seen"),
    ("rope_base", "rope_bases", 11, "keys.rope_bases"),
    ("{default = 5e5}", '{gguf = "{}.rope"}', 11, "keys.rope_base.gguf"),
    ("{default = 5e5}", '{gguf = "{architecture}.rope"}', 11, "keys.rope_base.gguf"),
    ("{default = 5e5}", '{gguf = "{arch.x}"}', 11, "keys.rope_base.gguf"),
    ("{default = 5e5}", '{gguf = "rope_base"}', 11, "keys.rope_base.gguf"),
    ('"mlp.up" = "mlp.w1"', '"mlp.correction" = false', 9, 'tensors."mlp.correction"'),
    ('"mlp.up" = "mlp.w1"', '"attention.q_norm" = false', 9, 'tensors."attention.q_norm"'),
    ("rope_base = {default = 5e5}", '"scaling.kind" = {}', 11, 'keys."scaling.kind"'),
    ("[keys]", '[experts]\ncount = "n"\nexperts = 2\n[keys]', 10, "experts"),
    ("[keys]", "[experts]\nparts = ['']\n[keys]", 11, "experts.parts"),
    ("[types.toy]", 'fusions = ["qk"]\n[types.toy]', 5, "fusions"),
    ("[types.toy]", 'model = "os:system"\n[types.toy]', 5, "model"),
    ("[types.toy]", 'beside = ["("]\n[types.toy]', 5, "beside"),
    ("[types.toy]", 'layers = "{0.real}"\n[types.toy]', 5, "layers"),
    ('"mlp.w1"', '"mlp.{name}"', 9, 'tensors."mlp.up"'),
    ('"mlp.w1"', '{gguf = "ffn_{"}', 9, 'tensors."mlp.up".gguf'),
    ("[types.toy]", "blocks = {colour = 1}\n[types.toy]", 5, "blocks.colour"),
    ("[types.toy]", "blocks = {norm_epsilon = 1e-5}\n[types.toy]", 5, "blocks.norm_epsilon"),
    ("{layers = 2}", "{layer = 2}", 7, "types.toy.defaults.layer"),
    ('"mlp.w1"', '{when = ["colour"]}', 9, 'tensors."mlp.up"'),
    ('"mlp.w1"', '{bias = "mlp_biases"}', 9, 'tensors."mlp.up"'),
    ("[types.toy]", 'runs = "no"\n[types.toy]', 5, "runs"),
    ("[types.toy]", "fusions = [{parts = []}]\n[types.toy]", 5, "fusions"),
    ("[types.toy]", 'fusions = [{name = "a", order = "b"}]\n[types.toy]', 5, "fusions.order"),
    ('"rope"', '["rope", "os:system"]', 3, "standard"),
    ('"rope"', "[[]]", 3, "standard"),
    ('standard = "rope"', "rename = {new = 3}", 3, "rename.new"),
    ("[types.toy]", 'is_of = {key = "k", is_nt = 3}\n[types.toy]', 5, "is_of.is_nt"),
    ("[types.toy]", "is_of = {is = 3}\n[types.toy]", 5, "is_of"),
    ("[types.toy]", 'differs = {rule = "os:system"}\n[types.toy]', 5, "differs.rule"),
    ("[types.toy]", 'last_keys = [{kind = "size"}]\n[types.toy]', 5, "last_keys"),
    ("[types.toy]", 'last_keys = [{field = "f"}]\n[types.toy]', 5, "last_keys"),
    ("[types.toy]", 'last_keys = [{field="f",only=1, why="", x=1}]\n[types.toy]', 5, "last_keys.x"),
    ('["decoder"]\nstandard', '[{field = "f"}]\nstandard', 2, "keys_from"),
    ("[types.toy]", "rope_by_layer = {full = 3}\n[types.toy]", 5, "rope_by_layer.full"),
    ('keys_from = ["decoder"]', 'keys_from = ["factors no_factor"]', 2, "keys_from"),
    ("[keys]", '[experts]\ntensors_from = "decoder"\n[keys]', 11, "experts.tensors_from"),
    ("[types.toy]", "first_keys = [3]\n[types.toy]", 5, "first_keys"),
    ("[types.toy]", 'first_keys = ["encoder"]\n[types.toy]', 5, "first_keys"),
    ("[types.toy]", 'head = {dense = "d", out = "o"}\n[types.toy]', 5, "head"),
    ("[types.toy]", 'hybrid = {other = "b", keys = [3]}\n[types.toy]', 5, "hybrid.keys"),
    ("[types.toy]", "hybrid = {tensors = {mlp = 3}}\n[types.toy]", 5, "hybrid.tensors.mlp"),
    ("[types.toy]", 'is_of = {lacks = "k", is = 3}\n[types.toy]', 5, "is_of.is"),
    ("[types.toy]", 'hybrid = {others = "b"}\n[types.toy]', 5, "hybrid.others"),
    ('["decoder"]\nstandard', '[[{field = "f"}]]\nstandard', 2, "keys_from"),
    ("[types.toy]", "mtp = {most = 1}\n[types.toy]", 5, "mtp"),
    ("[types.toy]", 'mtp = {count = "n", tensors = {fc = ""}}\n[types.toy]', 5, "mtp.tensors.fc"),
    ('keys_from = ["decoder"]', 'keys_from = ["decoder 3"]', 2, "keys_from"),
    ('keys_from = ["decoder"]', 'keys_from = ["rope_sections 3"]', 2, "keys_from"),
    ('keys_from = ["decoder"]', 'keys_from = [""]', 2, "keys_from"),
    ("defaults = {layers = 2}", 'like = "llama"', 7, "types.toy.like"),
    ("{layers = 2}", '{layers = "= 3 ** heads"}', 7, "types.toy.defaults.layers"),
    ("{default = 5e5}", '{kind = {or_none = "word"}}', 11, "keys.rope_base.kind.or_none"),
    ("{default = 5e5}", '{kind = {layer = "a"}}', 11, "keys.rope_base.kind"),
    ("{default = 5e5}", "{kind = {choice = 3}}", 11, "keys.rope_base.kind.choice"),
    ("{default = 5e5}", "{kind = {uniform = [1, 2, 3]}}", 11, "keys.rope_base.kind.uniform"),
    ("{default = 5e5}", '{default = "= all layers but every"}', 11, "keys.rope_base.default"),
    ("{default = 5e5}", '{default = "= colour"}', 11, "keys.rope_base.default"),
    ("{default = 5e5}", '{default = "= all layers but the first"}', 11, "keys.rope_base.default"),
    ("[types.toy]", "rope_if_missing = 3\n[types.toy]", 5, "rope_if_missing"),
    ("[types.toy]", "beside = ['a', '(a+)+b']\n[types.toy]", 5, "beside"),
    ("[types.toy]", "beside = ['(?:a|aa)*b']\n[types.toy]", 5, "beside"),
    ("[types.toy]", "beside = ['((a[)]*)b){2,9}']\n[types.toy]", 5, "beside"),
    ("{default = 5e5}", '{default = "= hidden / scaling.factor"}', 11, "keys.rope_base.default"),
]  # fmt: skip


VALID_TOWER = """\
name = "the image encoder of toy"
bases = ["images"]
texts = ["llama"]
encoder = "vision"
checked = ["merged"]
defaults = {hidden = 32, layers = 2}
layers = {hf = ".layers.{}.", bias = true}
[types.toy]
class = "ToyForConditionalGeneration"
[processor]
size = {height = "= hidden"}
[tensors]
ln1 = "norm1"
projector = {hf = "projector", gguf = "mm.fc", outputs = ["text_hidden"], inputs = ["hidden"]}
[keys]
merge = {kind = "size", default = 2, hf = "merge"}
rope_base = true
"""
FAULTS_OF_TOWERS = [
    ("texts", "colour = 1\ntexts", 3, "colour"),
    ('["images"]', '["pictures"]', 2, "bases"),
    ('["merged"]', '["decoder"]', 5, "checked"),
    ('encoder = "vision"', 'standard = "os:system"', 4, "standard"),
    ('encoder = "vision"', "mean = [0, 1, 2]", 4, "mean"),
    ('encoder = "vision"', 'text_types = {llama = ["toy"]}', 4, "text_types.llama"),
    ('encoder = "vision"', 'break_token = {gguf = "v.break"}', 4, "break_token"),
    ("texts = ", 'added_tensors = "limit"\ntexts = ', 3, "added_tensors"),
    ('encoder = "vision"', 'config = "video"', 4, "config"),
    ("{hidden = 32", "{width = 32", 6, "defaults.width"),
    ("bias = true", 'biases = "no"', 7, "layers.biases"),
    ('"= hidden"', '"= colour"', 11, "processor.size.height"),
    ("ln1", "ln3", 13, "tensors.ln3"),
    ('"norm1"', '{hf = "norm1", when = ["colour"]}', 13, "tensors.ln1"),
    ("gguf = ", "gguff = ", 14, "tensors.projector.gguff"),
    ('kind = "size"', 'kind = "sizes"', 16, "keys.merge.kind"),
    ("rope_base = true", "merge_base = true", 17, "keys.merge_base"),
    ("rope_base = true", 'activation = "activation hidden_act relu"', 17, "keys.activation"),
    ("[types.toy]", 'fusions = [{name = "a", parts = ["b"]}]\n[types.toy]', 8, "fusions.parts"),
]

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


@each("old, new, line, entry", FAULTS_OF_TOWERS)
def test_a_fault_in_a_tower_is_named_with_its_line_and_its_entry(
    old: str, new: str, line: int, entry: str, tmp_path: Path
) -> None:
    assert VALID_TOWER.count(old) == 1
    path = tmp_path / "toy.toml"
    path.write_text(VALID_TOWER)
    assert read_tower(path).family.name == "the image encoder of toy"
    path.write_text(VALID_TOWER.replace(old, new))
    with pytest.raises(FormatError) as caught:
        read_tower(path)
    assert re.search(rf"line {line}: `{re.escape(entry)}` ", str(caught.value)), caught.value


@each("entry", ["name", "texts", "encoder"])
def test_a_tower_without_an_entry_that_it_needs_is_refused(entry: str, tmp_path: Path) -> None:
    path = tmp_path / "toy.toml"
    path.write_text(re.sub(rf"^{entry} .*$", "", VALID_TOWER, flags=re.MULTILINE))
    with pytest.raises(FormatError, match=r"toy.toml: has no `\w+`"):
        read_tower(path)


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


@each("pattern", [r"(a|b)\.c+", r"a\(\+\)*", "[(+]*", "(?:a+)?b", "(ab)+", r"(?P<a>b[|])+"])
def test_a_pattern_without_repeated_choices_is_valid(pattern: str, tmp_path: Path) -> None:
    text = VALID.replace("[types.toy]", f"beside = ['{pattern}']\n[types.toy]", 1)
    assert read(tmp_path / "toy.toml", text).beside == (pattern,)


def test_layers_and_rope_that_are_not_stated_follow_from_the_file() -> None:
    document = {"model_type": "cwm", "num_hidden_layers": 6}
    made = from_hugging_face(FAMILIES["cwm"].load(), document, "here").fields
    assert made["windowed_layers"] == (False, True, True, True, False, True)
    assert (made["scaling.kind"], made["scaling.factor"], made["rope_base"]) == ("llama3", 16, 1e6)
    for stated in ({"rope_theta": 5e5}, {"rope_parameters": {"rope_theta": 5e5}}):
        made = from_hugging_face(FAMILIES["cwm"].load(), document | stated, "here").fields
        assert made["rope_base"] == 5e5
        assert made["scaling.kind"] == (None if "rope_parameters" in stated else "llama3")


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
    bases: list[dict[str, Any]] = [*tomllib.loads(USUAL.read_text())["bases"].values()]
    paths = (*TABLES.glob("*.toml"), *TOWER_TABLES.glob("*.toml"), tmp_path / "toy.toml")
    for file in (*bases, *(tomllib.loads(path.read_text()) for path in paths)):
        for table in (file, *(file.get(part, {}) for part in ("experts", "hybrid", "mtp", "head"))):
            used |= table.keys()
        for rows in (file.get(part, {}) for part in ("types", "tensors", "keys")):
            for row in rows.values():
                used |= row.keys() if isinstance(row, dict) else set()
    assert {name for name in used - {"tensors", "keys"} if f"`{name}`" not in page} == set()


# A family of the user's

# The example of the page on families.
(OWN,) = re.findall(r"```toml\n(.+?)```", (PAGE.parent / "families.md").read_text(), re.DOTALL)
NAMES = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
# Every command that recognizes families; {} is the model, its file, and a new place.
COMMANDS = [
    "ls model",
    "stat model",
    "diff model model",
    "convert model out.gguf --quant Q8_0",
    "convert model out.gguf --on processes:2",
    "shard model out --tp 2",
    "check model",
    "verify model --skip forward",
    "tasks model out.gguf",
    pytest.param("imatrix model -o out.gguf --chunks 1 --context 64", marks=pytest.mark.long),
]


@pytest.fixture(scope="module")
def place(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model of a new family, and the file that describes the family."""
    place = tmp_path_factory.mktemp("own")
    shutil.copytree(tiny_llama, place / "model")
    tensors = {
        re.sub("|".join(NAMES), lambda found: NAMES[found[0]], name): tensor
        for name, tensor in load_file(place / "model" / "model.safetensors").items()
    }
    save_file(tensors, place / "model" / "model.safetensors", {"format": "pt"})
    config = json.loads((place / "model" / "config.json").read_text())
    config |= {"model_type": "toy", "architectures": ["ToyForCausalLM"]}
    (place / "model" / "config.json").write_text(json.dumps(config))
    (place / "toy.toml").write_text(OWN)
    return place


@each("command", COMMANDS)
def test_each_command_takes_a_family(command: str, place: Path) -> None:
    for name in ("out", "out.gguf"):
        shutil.rmtree(place / name, ignore_errors=True)
        (place / name).unlink(missing_ok=True)
    done = run_command(*command.split(), "--family", "toy.toml", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "toy" not in FAMILIES


def test_a_model_of_it_comes_back_from_gguf(place: Path, tmp_path: Path) -> None:
    own = ("--family", place / "toy.toml")
    model, gguf, back = place / "model", tmp_path / "out.gguf", tmp_path / "back"
    assert "does not support" in run_command("convert", model, gguf).stderr
    assert run_command("convert", model, gguf, *own).returncode == 0
    assert run_command("convert", gguf, back, *own).returncode == 0
    assert run_command("diff", model, back, "--values").returncode == 0
    assert json.loads((back / "config.json").read_text())["model_type"] == "toy"
    assert run_command("ls", *own, "--families").stdout.count("toy") > 1


def test_a_tensor_that_no_layer_reads_is_an_error(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "model", tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    for layer in range(3):
        name = f"model.layers.{layer}.self_attn.q_norm.weight"
        tensors[name] = torch.ones(32, dtype=torch.bfloat16)
    save_file(tensors, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    row = '"attention.q_norm" = {}'
    (tmp_path / "toy.toml").write_text(OWN.replace("[tensors]", f"[tensors]\n{row}"))
    done = run_command("verify", "model", "--family", "toy.toml", cwd=tmp_path)
    assert done.returncode == 1
    printed = " ".join(done.stdout.split())
    first = "`layers.0.attention.q_norm.weight`"
    assert f"toy.toml: no layer of the family reads {first}" in printed


# A multimodal model whose text model and tower are files of the user's.
OWN_TEXT = """\
base = "gemma3"
standard = ["text", "gemma3"]
checked = ["gemma3"]
beside = ['vision_tower\\..+', 'toy_projector\\..+']
[types.toy_text]
class = "ToyForCausalLM"
like = "gemma3_text"
[types.toy]
class = "ToyForConditionalGeneration"
like = "gemma3_text"
"""
OWN_TOWER = (
    (TOWER_TABLES / "gemma3.toml")
    .read_text()
    .replace('["gemma3"]', '["toy"]', 1)
    .replace("[types.gemma3]", "[types.toy]")
    .replace("multi_modal_projector.", "toy_projector.")
)


def test_a_tower_of_the_user_is_converted_in_both_directions(tmp_path: Path) -> None:
    model, back = tmp_path / "model", tmp_path / "back"
    text, tower, again = (tmp_path / f"{name}.gguf" for name in ("text", "mmproj", "again"))
    make_multimodal("gemma3", model)
    before = {
        name.replace("multi_modal_projector.", "toy_projector."): tensor
        for name, tensor in load_file(model / "model.safetensors").items()
    }
    save_file(before, model / "model.safetensors", {"format": "pt"})
    config = json.loads((model / "config.json").read_text())
    config |= {"model_type": "toy", "architectures": ["ToyForConditionalGeneration"]}
    (model / "config.json").write_text(json.dumps(config))
    (tmp_path / "toy.toml").write_text(OWN_TEXT)
    (tmp_path / "toyv.toml").write_text(OWN_TOWER)
    own = ("--family", tmp_path / "toy.toml", "--family", tmp_path / "toyv.toml")
    assert run_command("convert", model, text, "--mmproj", tower, *own[:2]).returncode == 2
    for arguments in (
        (model, text, "--mmproj", tower),
        (model, tmp_path / "text2.gguf", "--mmproj", again, "--on", "processes:2"),
        (text, back, "--mmproj", tower),
    ):
        done = run_command("convert", *arguments, *own)
        assert done.returncode == 0, done.stderr
    assert tower.read_bytes() == again.read_bytes()
    assert header_of(open_weights(tower)).metadata["clip.projector_type"].content == "toyv"
    assert json.loads((back / "config.json").read_text())["model_type"] == "toy"
    after = load_file(back / "model.safetensors")
    assert after["toy_projector.mm_soft_emb_norm.weight"].equal(
        before["toy_projector.mm_soft_emb_norm.weight"]
    )
    assert len(after) == len(before)
    assert "toyv" not in TOWERS
    code = (
        f"FILES = [{str(tmp_path)!r} + '/toy.toml', {str(tmp_path)!r} + '/toyv.toml']\nA, B = FILES"
    )
    site = tmp_path / "site"
    site.mkdir()
    install(site, "own", code, "[weightctl.families]", "a = own:A", "b = own:B")
    mapped = ("convert", text, tmp_path / "back2", "--mmproj", tower)
    assert run_command(*mapped).returncode == 2
    with importing_from(site):
        done = run_command("convert", model, tmp_path / "t.gguf", "--mmproj", tmp_path / "v.gguf")
        assert done.returncode == 0, done.stderr
    with importing_from(site):
        done = run_command(*mapped)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "v.gguf").read_bytes() == tower.read_bytes()
    assert "toyv" not in TOWERS


def test_a_tower_that_cannot_be_added_is_refused(tmp_path: Path) -> None:
    for name, text, match in (
        ("gemma3", OWN_TOWER, "the name `gemma3` belongs to the tower gemma3"),
        ("toyv", OWN_TOWER.replace("[types.toy]", "[types.llava]"), "`llava` belongs to the tower"),
    ):
        path = tmp_path / f"{name}.toml"
        path.write_text(text)
        with pytest.raises(FormatError, match=match):
            add_family(path)
    assert "toyv" not in TOWERS


def test_a_key_that_no_row_of_it_reads_is_a_note(place: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(place / "model", model)
    config = json.loads((model / "config.json").read_text())
    # A row reads the first, a rule the second, and nothing the others; the last says nothing.
    config |= {"rms_norm_eps": 1e-5, "size_of_heads": 32, "logit_cap": 30.0, "gates": None}
    config.pop("head_dim", None)
    (model / "config.json").write_text(json.dumps(config))
    (tmp_path / "toy.toml").write_text(f'rename = {{head_dim = "size_of_heads"}}\n{OWN}')
    own = ("--family", tmp_path / "toy.toml")
    done = run_command("convert", model, tmp_path / "out.gguf", *own)
    assert done.returncode == 0, done.stderr
    assert "the family toy does not read `logit_cap`, so the model may compute" in done.stderr
    done = run_command("convert", place / "model", tmp_path / "2.gguf", *own)
    assert "does not read" not in done.stderr


@each(
    "name, text, match",
    [
        ("llama", OWN, "the name `llama` belongs to the family llama"),
        ("toy", OWN.replace("[types.toy]", "[types.qwen3]"), "`qwen3` belongs to the family qwen3"),
        ("toy", 'base = "llama"', "has no `types`"),
        ("toy", OWN.replace("llama", "other", 1), "line 1: `base` is `other`"),
    ],
)
def test_a_family_that_cannot_be_added_is_refused(
    name: str, text: str, match: str, tmp_path: Path
) -> None:
    (tmp_path / f"{name}.toml").write_text(text)
    before = dict(FAMILIES)
    with pytest.raises(FormatError, match=match):
        add_family(tmp_path / f"{name}.toml")
    assert before == FAMILIES


def test_a_file_that_is_added_again_is_read_again(place: Path, tmp_path: Path) -> None:
    path = tmp_path / "toy.toml"
    path.write_text(OWN)
    with with_families([str(path)]):
        for class_name in ("First", "Second"):
            path.write_text(OWN.replace("ToyForCausalLM", class_name))
            assert add_family(path) == "toy"
            assert FAMILIES["toy"].load().model_types["toy"].class_name == class_name
        assert recognize(open_weights(place / "model")).family.name == "toy"
    assert "toy" not in FAMILIES


def test_installed_packages_add_families(place: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    code = f"from pathlib import Path\nTOY = Path({str(place / 'toy.toml')!r})"
    install(site, "a_package", code, "[weightctl.families]", "toy = a_package:TOY")
    with importing_from(site):
        with with_families([]):
            assert recognize(open_weights(place / "model")).family.name == "toy"
        # They stay when the families of a command are taken away.
        assert recognize(open_weights(place / "model")).family.name == "toy"


def test_a_draft_says_what_is_not_decided(place: Path) -> None:
    done = run_command("ls", place / "model", "--draft-family")
    assert done.returncode == 0, done.stderr
    draft = tomllib.loads(done.stdout)
    assert draft["base"] == "llama"
    assert draft["types"] == {"toy": {"class": "ToyForCausalLM"}}
    assert draft["tensors"] == {"mlp.gate": False, "mlp.up": False, "mlp.down": False}
    assert re.findall(r'# undecided: "(\S+)" ', done.stdout) == [
        f"model.layers.N.mlp.w{number}" for number in (1, 2, 3)
    ]
    assert "Complete it" in done.stdout


def test_a_draft_of_a_model_with_other_names_is_read(tiny_llama: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_llama, model)
    tensors = load_file(model / "model.safetensors")
    renamed = {name.replace("self_attn.", "attention."): each for name, each in tensors.items()}
    renamed = {re.sub(r"attention\.([qkv])_proj", r"attention.w\1", name).replace(
        "attention.o_proj", "attention.wo"): each for name, each in renamed.items()}  # fmt: skip
    save_file(renamed, model / "model.safetensors", {"format": "pt"})
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"model_type": "renamed"}))
    done = run_command("ls", model, "--draft-family")
    assert "weightctl reads the model with it" in done.stdout
    (tmp_path / "renamed.toml").write_text(done.stdout)
    own = ("--family", tmp_path / "renamed.toml")
    assert run_command("convert", model, tmp_path / "a.gguf", *own).returncode == 0
    assert run_command("convert", tiny_llama, tmp_path / "b.gguf").returncode == 0
    done = run_command("diff", tmp_path / "a.gguf", tmp_path / "b.gguf", "--hash")
    assert "30 tensors, no difference" in done.stdout


@each(
    "model_type, default, missing",
    [("diffllama", "layers = 16", "mlp_bias"), ("cohere2_moe", "layers = 40", "mlp_bias")],
)
def test_a_draft_has_what_the_source_of_transformers_states(
    model_type: str, default: str, missing: str, tiny_llama: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_llama, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"model_type": model_type}))
    done = run_command("ls", model, "--draft-family")
    assert done.returncode == 0, done.stderr
    table = re.search(rf'\[types."{model_type}".defaults\]\n(.+?)\n\n', done.stdout, re.DOTALL)
    assert table
    assert default in table[1].replace('"', "").split("\n")
    assert re.search(f"# undecided: transformers.*{missing}", done.stdout)
    assert tomllib.loads(done.stdout)["base"] == "llama"
    assert ("neighboring" in done.stdout) == (model_type == "cohere2_moe")


def test_a_hostile_name_does_not_end_a_comment(place: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(place / "model", model)
    tensors = load_file(model / "model.safetensors")
    tensors['x\n[types.evil]\nclass = "Evil".weight'] = tensors.pop("lm_head.weight")
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    config = json.loads((model / "config.json").read_text())
    config |= {"model_type": "../evil\nbase = 1", "key\n[types.evil]": 1}
    (model / "config.json").write_text(json.dumps(config))
    done = run_command("ls", model, "--draft-family")
    assert tomllib.loads(done.stdout)["types"].keys() == {config["model_type"]}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@each("options", [["--json"], ["--flat"], ["--scan"], ["--meta"]])
def test_a_draft_is_one_file(options: list[str], place: Path) -> None:
    done = run_command("ls", place / "model", "--draft-family", *options)
    assert done.returncode == 2
    assert "--draft-family" in done.stderr
