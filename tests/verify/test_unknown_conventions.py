"""Of a family that is not supported, GGUF's names and Hugging Face's cannot be paired."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from weightctl import convert
from weightctl.verify.checking import verify
from weightctl.verify.request import Request, Subject

if TYPE_CHECKING:
    from pathlib import Path


def test_nothing_is_said_to_be_renamed_or_missing(tiny_llama: Path, tmp_path: Path) -> None:
    source, gguf = tmp_path / "in", tmp_path / "x.gguf"
    shutil.copytree(tiny_llama, source)
    convert(source, gguf)
    raw = gguf.read_bytes().replace(b"llama.", b"lyama.")
    gguf.write_bytes(raw.replace(b"\x05" + bytes(7) + b"llama", b"\x05" + bytes(7) + b"lyama"))
    document = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(document | {"model_type": "lyama"}))

    report = verify(Request(subject=Subject(gguf), reference=Subject(source)))
    assert report.results["values"].skipped == (
        "A has the names of GGUF and B those of Hugging Face: weightctl does not support the "
        "family, so the tensors cannot be paired"
    )
    assert report.problems == []
