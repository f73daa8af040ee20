"""What the recipes of docs/architecture.md add takes as many lines as they state, and works."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

from arrays import stored
from extended_package import ExtendedPackage, Line

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


# A block type takes a codec, a name and a row: then tensors are converted to it and back.

# 32 numbers as bytes and one scale of float32.
CODEC_MODULE = '''
"""W8: 32 values as bytes and one scale."""

import numpy as np

from weightctl.codecs.base import BlockCodec


def _encode(x, importance, block):
    scale = np.abs(x).max(axis=2) / np.float32(127)
    block["scale"] = scale
    block["q"] = np.rint(x / np.where(scale > 0, scale, 1)[..., None])


def _decode(block, out):
    np.multiply(block["q"], block["scale"][..., None], out=out, dtype=np.float32)


W8 = BlockCodec(np.dtype([("scale", "<f4"), ("q", "i1", 32)]), 32, _encode, _decode)
'''
ROW = (
    '    Encoding("W8", 32, 36, "I32B", {"gguf": 190}, codec=_CODECS + "w8:W8", file_type=190,'
    ' scales=(BlockScale("scale", 0, "f32", is_positive=True),)),'
)
CODEC_LINES = {
    "dtype/types.py": [
        Line('    W8 = "W8"', before='    Q1_0 = "Q1_0"'),
        Line(ROW, before='Encoding("Q1_0", 128, 18, "H16B", {"gguf": 41},'),
    ],
}
CODEC_PROGRAM = """
import sys
import numpy as np
from weightctl import QuantizationEncoding, open_weights

blocks, numbers, source = map(open_weights, sys.argv[1:])
name = "model.layers.0.mlp.up_proj.weight"
stored = blocks["blk.0.ffn_up.weight"].data()
assert stored.quantization_encoding is QuantizationEncoding.W8
expected = np.asarray(source[name].data().astype("float32").to_numpy())
found = numbers[name].data().to_numpy()
assert np.array_equal(stored.astype("float32").to_numpy(), found)
assert 0 < np.abs(found - expected).max() <= np.abs(expected).max() / 254 * 1.001
"""


def test_a_block_type_is_a_codec_a_name_and_a_row(
    extended: ExtendedPackage, tiny_llama: Path, tmp_path: Path
) -> None:
    blocks, numbers = tmp_path / "blocks.gguf", tmp_path / "numbers"
    extended.command("convert", tiny_llama, blocks, "--quant", "w8")
    listed = json.loads(extended.command("ls", blocks, "--json"))
    assert set(listed["totals"]["bytes_by_encoding"]) == {"W8", "F32"}
    extended.command("convert", blocks, f"{numbers}/", "--dtype", "f32")
    extended.command("-c", CODEC_PROGRAM, blocks, numbers, tiny_llama)

    extended.command("convert", tiny_llama, tmp_path / "one.gguf", "--tensor-type", "ffn_up=w8")
    assert extended.command("ls", tmp_path / "one.gguf", "--flat").count("W8") == 3
    assert extended.command("verify", blocks, "--check", "structure", "--check", "finite")


# A command takes a module and a line: then it is run by its name, and listed by --help.

COMMAND_MODULE = '''
"""`weightctl count`: the number of tensors."""

from typing import Annotated

import typer

from weightctl.weights.tree import header_of

app = typer.Typer()


@app.command()
def count(path: Annotated[str, typer.Argument()]) -> None:
    """Print how many tensors a checkpoint has."""
    from weightctl import open_weights

    typer.echo(len(header_of(open_weights(path)).tensors))
'''
COMMAND_LINE = Line(
    '    "count": "weightctl.cli.count:app",', before='"diff": "weightctl.cli.diff:app",'
)


def test_a_command_is_a_module_and_a_line(extended: ExtendedPackage, tiny_llama: Path) -> None:
    assert extended.command("count", tiny_llama) == "30\n"
    assert "how many tensors" in extended.command("--help")


# A family takes one file: then its models are recognized, converted and run.

# A llama whose parts of the MLP are called w1, w2 and w3.
FAMILY_FILE = """
# Toy: a llama with other names.
base = "llama"
standard = "llama"
checked = ["decoder"]

[types.toy]
class = "ToyForCausalLM"

[tensors]
"mlp.gate" = "mlp.w1"
"mlp.up" = "mlp.w3"
"mlp.down" = "mlp.w2"
"""
IDLE_FAMILY = "runs = false\n" + FAMILY_FILE.replace("toy", "idle")
FAMILY_RULES = r"""
[rename]
'mlp\.gate_proj' = 'mlp.w1'
'mlp\.up_proj' = 'mlp.w3'
'mlp\.down_proj' = 'mlp.w2'
"""
FAMILY_PROGRAM = """
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


def make_toy(
    extended: ExtendedPackage, tiny_llama: Path, tmp_path: Path, model_type: str = "toy"
) -> Path:
    """Return tiny-llama as a model of the family."""
    toy = tmp_path / "toy"
    shutil.copytree(tiny_llama, toy)
    config = json.loads((toy / "config.json").read_text())
    config |= {"model_type": model_type, "architectures": ["ToyForCausalLM"]}
    (toy / "config.json").write_text(json.dumps(config))
    rules, tensors = tmp_path / "rules.toml", toy / "model.safetensors"
    rules.write_text(FAMILY_RULES)
    tensors.unlink()
    extended.command("convert", tiny_llama / "model.safetensors", tensors, "--rename", rules)
    return toy


def test_a_family_is_one_file(extended: ExtendedPackage, tiny_llama: Path, tmp_path: Path) -> None:
    toy = make_toy(extended, tiny_llama, tmp_path)
    gguf, back = tmp_path / "toy.gguf", tmp_path / "back"
    extended.command("convert", toy, gguf)
    names = extended.command("ls", gguf, "--flat")
    assert "blk.0.ffn_gate.weight" in names
    assert "w1" not in names
    extended.command("convert", gguf, f"{back}/", "--dtype", "bf16")
    assert json.loads((back / "config.json").read_text())["model_type"] == "toy"
    # A pattern leaves out config.json, in which all defaults are written.
    extended.command("diff", "--hash", "--include", "*", toy, back)
    assert extended.command("-c", FAMILY_PROGRAM, gguf, tiny_llama).split() == [
        "toy", "Decoder", "llama", "Decoder",
    ]  # fmt: skip


def test_a_family_without_a_module_is_converted_and_not_run(
    extended: ExtendedPackage, tiny_llama: Path, tmp_path: Path
) -> None:
    toy, gguf = make_toy(extended, tiny_llama, tmp_path, "idle"), tmp_path / "toy.gguf"
    extended.command("convert", toy, gguf)
    extended.command("shard", toy, tmp_path / "ranks", "--tp", "2")
    said = extended.command("verify", gguf, "--against", toy)
    assert "weightctl does not run idle models" in said
    assert "names" in said


# A format takes a module and a line of the table: then it is listed, read and written.

# A length, a JSON object of tensors and metadata, and the bytes of the tensors one after another.
FORMAT_MODULE = '''
"""tiny: a JSON object, then the tensors' bytes."""

import json

from weightctl.dtype import ENCODINGS
from weightctl.formats.base import Layout
from weightctl.weights.info import Extent, Header, TensorInfo
from weightctl.weights.metadata import from_json, to_json


def sniff(file):
    return file.read(0, 4) == b"TINY"


def read(file):
    length = int(file.read(4, 8))
    document = json.loads(file.read(12, length))
    infos = [
        TensorInfo(name, tuple(shape), ENCODINGS[encoding])
        for name, shape, encoding in document["tensors"]
    ]
    extents, offset = {}, 12 + length
    for info in infos:
        extents[info.name] = Extent(0, offset, info.nbytes)
        offset += info.nbytes
    return Header(
        format="tiny", files=(file.path,), tensors={info.name: info for info in infos},
        extents=extents, metadata=from_json(document["metadata"]), aliases={}, alignment=1,
    )


def unfit(tensors, metadata):
    return []


def layout(tensors, metadata, part=None):
    described = [(info.name, info.shape, info.encoding.name) for info in tensors]
    document = json.dumps({"tensors": described, "metadata": to_json(metadata)}).encode()
    header = b"TINY%08d%s" % (len(document), document)
    offsets, offset = [], len(header)
    for info in tensors:
        offsets.append(offset)
        offset += info.nbytes
    return Layout(header, tuple(tensors), tuple(offsets), offset)
'''
FORMAT_LINE = Line(
    '    "tiny": FormatLine("weightctl.formats.tiny", (".tiny",)),', before='"pytorch": FormatLine('
)


def test_a_format_is_a_module_and_a_line(
    extended: ExtendedPackage, tiny_llama: Path, tmp_path: Path
) -> None:
    source, tiny = tiny_llama / "model.safetensors", tmp_path / "m.tiny"
    back = tmp_path / "back.safetensors"
    extended.command("convert", source, tiny)
    assert tiny.read_bytes().startswith(b"TINY")
    listed = json.loads(extended.command("ls", tiny, "--json"))
    assert listed["format"] == "tiny"
    assert "tiny" in extended.command("help", "convert")

    extended.command("convert", tiny, back)
    extended.command("diff", "--hash", source, back)
    assert extended.command("verify", tiny, "--check", "structure")


# An operation takes its functions and three lines: then graphs have it, and it runs.

OPERATION_FUNCTIONS = '''

def cube(x):
    """Return the third powers of the elements."""
    return apply(CUBE, x)


def infer_cube(x):
    """Return the operand's own type."""
    require_float(x)
    return x


def lower_cube(x):
    """Return a copy."""
    return x * x * x


CUBE = Op("cube", infer_cube, lower_cube)
'''
OPERATION_LINES = [
    Line("from weightctl.graph.ops.unary import CUBE, cube", before="ops.unary import ("),
    Line('    "cube",', before='"dequantize",'),
    Line("    CUBE,", before="    ROPE,"),
]
OPERATION_PROGRAM = """
import numpy as np
from weightctl import DType, Graph, InferenceSession, TensorType, ops

with Graph("g", [TensorType(DType.float32, ["n"])]) as graph:
    graph.output(ops.cube(graph.inputs[0]))
(result,) = InferenceSession().load(graph).execute(np.array([1, 2, 3], np.float32))
assert result.to_numpy().tolist() == [1, 8, 27]
"""


def test_an_operation_is_its_functions_and_three_lines(extended: ExtendedPackage) -> None:
    extended.command("-c", OPERATION_PROGRAM)


# A scheme takes a module and a line in the table: then it is listed, dequantized and cut.

SCHEME_MODULE = '''
"""Tiny: bytes, and float32 steps of their blocks."""

from weightctl.schemes.cutting import cut_upright
from weightctl.schemes.naming import LogicalWeight, NameEndings
from weightctl.schemes.scheme import Scheme


def infer(candidate):
    return LogicalWeight(candidate.numbers.shape, bits=8)


def decode(stored):
    from weightctl.schemes.arrays.values import Decoding, Scaled

    grid = stored.grid(stored.shape, stored.scales.shape)
    values = Scaled(numbers=stored.plain(0), scales=stored.per_block(1, grid))
    return Decoding(stored.shape, values)


SCHEME = Scheme(
    label="Tiny {bits}-bit",
    summary="bytes, with steps",
    names=(NameEndings(".tiny_steps", ".tiny", ".weight", ("I8",)),),
    infer=infer, decode=decode, cut=cut_upright,
)
'''
SCHEME_LINE = Line(
    '    "tiny": SchemeLine("weightctl.schemes.tiny:SCHEME", (".tiny_steps",)),',
    before='"gptq": SchemeLine("weightctl.schemes.gptq:SCHEME", (".scales",)),',
)
SCHEME_PROGRAM = """
import sys
import numpy as np
from weightctl import open_weights
from weightctl.schemes.dequantize import dequantize_weights
from weightctl.sharding.properties import stored_weights
from weightctl.inspection.contents import Contents

weights = open_weights(sys.argv[1])
entry = Contents(weights).entries["l.weight"]
assert (entry.label, entry.shape) == ("Tiny 8-bit", (4, 8))
values = dequantize_weights(weights, in_blocks=False)["l.weight"].data()
assert np.array_equal(np.from_dlpack(values), np.full((4, 8), 6, np.float32))
footprint = stored_weights(weights.source)["l.weight"]
assert (footprint.blocks, footprint.refusal) == ((1, 4), "")
"""


def test_a_scheme_is_a_module_and_a_line(extended: ExtendedPackage, tmp_path: Path) -> None:
    tensors = {
        "l.tiny": np.full((4, 8), 3, np.int8),
        "l.tiny_steps": np.full((4, 2), 2, np.float32),
    }
    stored(tmp_path / "m.safetensors", **tensors)
    extended.command("-c", SCHEME_PROGRAM, tmp_path / "m.safetensors")


# A storage takes a module and a line of the table: then checkpoints are opened in it by URL.

STORAGE_MODULE = '''
"""Files in memory."""

from weightctl.errors import MissingFileError
from weightctl.storage.base import Entry
from weightctl.storage.base import FileRange

FILES = {}


class MemoryReader:
    """A file in memory."""

    def __init__(self, path):
        self.path = path
        if path not in FILES:
            raise MissingFileError(path, None, "No such file or directory")
        self._content = FILES[path]
        self.size, self.written = len(self._content), 0

    def read(self, offset, nbytes):
        return self._content[offset : offset + max(nbytes, 0)]

    def read_end(self, nbytes):
        return self._content[-nbytes:]

    def read_into(self, offset, buffer):
        buffer[:] = self.read(offset, len(buffer))

    def range(self, start=0, stop=None):
        return FileRange(self, 0, self.size).part(start, self.size if stop is None else stop)

    def private(self, offset, nbytes):
        return memoryview(bytearray(self.read(offset, nbytes)))

    def copy_into(self, offset, nbytes, descriptor, at=None):
        return 0

    def expect(self, offset, nbytes):
        return True

    def refuse_change(self):
        pass

    def close(self):
        pass


class MemoryStore:
    """All of the files."""

    def open(self, path):
        return MemoryReader(path)

    def find(self, path):
        if path in FILES:
            return Entry(False, len(FILES[path]))
        return Entry(True) if any(name.startswith(path + "/") for name in FILES) else None

    def list_names(self, directory):
        directory += "/"
        below = [name[len(directory):] for name in FILES if name.startswith(directory)]
        return {name.split("/")[0]: Entry("/" in name) for name in below}

    def prepare(self, paths):
        pass

    def refresh(self, path):
        pass
'''
STORAGE_LINE = Line(
    '    "mem": StorageLine("weightctl.storage.mem:MemoryStore"),',
    before='"file": StorageLine("weightctl.storage.local"),',
)
STORAGE_PROGRAM = """
import sys
from pathlib import Path

import numpy as np

from weightctl import convert, open_weights
from weightctl.errors import MissingFileError
from weightctl.storage.mem import FILES

source, parts, out = map(Path, sys.argv[1:])
FILES["mem://a/model.safetensors"] = source.read_bytes()
weights, expected = open_weights("mem://a/model.safetensors"), open_weights(source)
assert weights.header.files == ("mem://a/model.safetensors",)
for name, info in expected.header.tensors.items():
    found = weights[name].data()
    assert found.info == info
    assert bytes(found.view()) == bytes(expected[name].data().view())
FILES.update((f"mem://parts/{path.name}", path.read_bytes()) for path in parts.iterdir())
for name in ("/model-00001-of-00002.safetensors", "/model.safetensors.index.json", "", "/"):
    found = open_weights(f"mem://parts{name}")
    assert found.header.tensors.keys() == expected.header.tensors.keys()
    assert len(found.header.files) == 2
try:
    open_weights("mem://a/other.safetensors")
except MissingFileError as error:
    assert "mem://a/other.safetensors" in str(error)
else:
    sys.exit("a file that is not there was opened")
convert("mem://a/model.safetensors", out / "from-memory.gguf", dtype="f16", names="keep")
convert(source, out / "from-file.gguf", dtype="f16", names="keep")
"""


def test_a_storage_is_a_module_and_a_line(
    extended: ExtendedPackage, tiny_llama: Path, tmp_path: Path
) -> None:
    source = tmp_path / "alone" / "model.safetensors"
    source.parent.mkdir()
    source.write_bytes((tiny_llama / "model.safetensors").read_bytes())
    parts = tmp_path / "parts"
    extended.command("convert", source, f"{parts}/", "--max-shard-size", "2MB")
    extended.command("-c", STORAGE_PROGRAM, source, parts, tmp_path)
    made = [(tmp_path / f"from-{where}.gguf").read_bytes() for where in ("memory", "file")]
    assert made[0] == made[1]


# The recipe, the name, the modules, the lines that are added to files, and their number.
RECIPES = (
    ("a codec", "w8", {"codecs/w8.py": CODEC_MODULE}, CODEC_LINES, 2),
    ("a command", "count", {"cli/count.py": COMMAND_MODULE},
     {"cli/__init__.py": [COMMAND_LINE]}, 1),
    ("a family", "toy", {"families/tables/toy.toml": FAMILY_FILE}, {}, 0),
    ("a family", "idle", {"families/tables/idle.toml": IDLE_FAMILY}, {}, 0),
    ("a format", "tiny", {"formats/tiny.py": FORMAT_MODULE},
     {"formats/__init__.py": [FORMAT_LINE]}, 1),
    ("an operation", "unary", {"graph/ops/unary.py": OPERATION_FUNCTIONS},
     {"graph/ops/__init__.py": OPERATION_LINES}, 3),
    ("a scheme", "tiny", {"schemes/tiny.py": SCHEME_MODULE},
     {"schemes/__init__.py": [SCHEME_LINE]}, 1),
    ("a storage backend", "mem", {"storage/mem.py": STORAGE_MODULE},
     {"storage/location.py": [STORAGE_LINE]}, 1),
)  # fmt: skip


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Generator[ExtendedPackage, None, None]:
    """One copy of the package, in which all recipes are followed."""
    package = ExtendedPackage(tmp_path_factory.mktemp("extended"))
    for recipe, name, modules, lines, count in RECIPES:
        assert package.follow(recipe, name, modules, lines) == count, recipe
    yield package
    package.end()
