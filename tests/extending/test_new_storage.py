"""A storage takes a module and a line of the table: then checkpoints are opened in it by URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from extended_package import Line

if TYPE_CHECKING:
    from pathlib import Path

    from extended_package import ExtendedPackage

MODULE = '''
"""Files in memory."""

from weightctl.errors import MissingFileError
from weightctl.storage.base import Entry
from weightctl.storage.byte_range import FileRange

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
LINE = Line(
    '    "mem": StorageLine("weightctl.storage.mem:MemoryStore"),',
    before='"file": StorageLine("weightctl.storage.local"),',
)
PROGRAM = """
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
convert("mem://a/model.safetensors", out / "from-memory.gguf", dtype="f16")
convert(source, out / "from-file.gguf", dtype="f16")
"""


def test_a_storage_is_a_module_and_a_line(
    extended: ExtendedPackage, tiny_llama: Path, tmp_path: Path
) -> None:
    modules, lines = {"storage/mem.py": MODULE}, {"storage/location.py": [LINE]}
    assert extended.follow("a storage backend", "mem", modules, lines) == 1

    source = tmp_path / "alone" / "model.safetensors"
    source.parent.mkdir()
    source.write_bytes((tiny_llama / "model.safetensors").read_bytes())
    parts = tmp_path / "parts"
    extended.command("convert", source, f"{parts}/", "--max-shard-size", "2MB")
    extended.run("-c", PROGRAM, source, parts, tmp_path)
    made = [(tmp_path / f"from-{where}.gguf").read_bytes() for where in ("memory", "file")]
    assert made[0] == made[1]
