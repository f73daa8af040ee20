"""Tables of non-checkpoint files that are identified by their first bytes or their names."""

from __future__ import annotations

import re
from typing import NamedTuple

from weightctl.formats import list_formats
from weightctl.storage.pending_edits import MARKER
from weightctl.system.temporary import EDIT


class NonCheckpointFile(NamedTuple):
    """The kind of a non-checkpoint file, a hint on what to do, and details of this file."""

    what: str
    hint: str
    more: str = ""

    @property
    def message(self) -> str:
        """What the file is, with the details, as the end of a sentence."""
        return f"it is {self.what}{self.more}"


FORMATS_HINT = f"supported formats: {', '.join(list_formats())}"
AGAIN = "download it again"
LOGIN = (
    "the server sent an error page instead of the file; check whether the download needs a login"
)
UNPACK = "unpack it first"
ELSEWHERE = (
    "look for safetensors or GGUF files in its repository; otherwise load it with its own "
    "library and save its weights as safetensors"
)
_OLD_GGML = (
    "convert LLaMA models to GGUF with llama.cpp's convert_llama_ggml_to_gguf.py; files "
    "of whisper.cpp cannot be converted"
)
_STATE = "use the model instead"
NO_MODEL = "use a checkpoint, or the directory that contains it"
NUMPY = "convert it with numpy.load and safetensors.numpy.save_file"
_ENGINE = "it is built for one GPU and has no plain weights; use the model that it was built from"

# Offset, bytes at the offset, what the file is, and what to do. The bytes are from the database of
# `file` and from the specifications of the formats. ggml's magics are integers, so their letters
# are in reverse order.
STARTS: tuple[tuple[int, bytes, str, str], ...] = (
    (0, MARKER, "a file that `weightctl edit` was changing when it was stopped",
     f"move it back beside {EDIT}, from which `weightctl edit` completes it"),
    (0, b"lmgg", "a ggml file, a format older than GGUF", _OLD_GGML),
    (0, b"fmgg", "a ggml file (ggmf), a format older than GGUF", _OLD_GGML),
    (0, b"tjgg", "a ggml file (ggjt), a format older than GGUF", _OLD_GGML),
    (0, b"algg", "a ggml LoRA adapter, a format older than GGUF",
     "convert the original adapter to GGUF with llama.cpp's convert_lora_to_gguf.py"),
    (0, b"nsgg", "a saved state of llama.cpp, not a model", _STATE),
    (0, b"qsgg", "a saved state of llama.cpp, not a model", _STATE),
    (0, b"\x93NUMPY", "a NumPy array (.npy)", NUMPY),
    (4, b"TFL3", "a TensorFlow Lite model", ELSEWHERE),
    (4, b"ORTM", "an ONNX Runtime model (.ort)", ELSEWHERE),
    (4, b"ET12", "an ExecuTorch program (.pte)", ELSEWHERE),
    (0, b"ftrt", "a TensorRT engine", _ENGINE),
    (0, b"\x0a\x0e\x0a\x05<unk>", "a SentencePiece tokenizer, not weights", NO_MODEL),
    (0, b"\x1f\x8b", "compressed with gzip", f"{UNPACK}: gunzip, or tar -xzf"),
    (0, b"\xfd7zXZ\0", "compressed with xz", f"{UNPACK}: unxz, or tar -xJf"),
    (0, b"\x28\xb5\x2f\xfd", "compressed with Zstandard", f"{UNPACK}: unzstd"),
    (0, b"\x04\x22\x4d\x18", "compressed with LZ4", f"{UNPACK}: unlz4"),
    (0, b"BZh", "compressed with bzip2", f"{UNPACK}: bunzip2, or tar -xjf"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", f"{UNPACK}: 7z x"),
    (0, b"Rar!\x1a\x07", "a RAR archive", f"{UNPACK}: unrar x"),
    (0, b"MZqFpD", "a program for several systems, such as a llamafile", f"{UNPACK}: unzip"),
    (0, b"\x7fELF", "a program or a library, not weights", NO_MODEL),
    (0, b"MZ", "a Windows program or library, not weights", NO_MODEL),
    (0, b"%PDF-", "a PDF document", NO_MODEL),
    (0, b"\x89PNG\r\n\x1a\n", "an image (PNG)", NO_MODEL),
    (0, b"\xff\xd8\xff", "an image (JPEG)", NO_MODEL),
    (0, b"GIF8", "an image (GIF)", NO_MODEL),
    (8, b"WEBPVP8", "an image (WebP)", NO_MODEL),
    (8, b"WAVEfmt ", "a sound (WAV)", NO_MODEL),
    (0, b"PAR1", "a Parquet table", NO_MODEL),
    (0, b"SQLite format 3\0", "an SQLite database", NO_MODEL),
)  # fmt: skip

# Files that only the name identifies: a pattern of the name, what it is, and what to do.
NAMES: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (re.compile(r"group\d+-shard\d+of\d+(\.bin)?"), "a shard of a TensorFlow.js model", ELSEWHERE),
    (re.compile(r".+\.data-\d{5}-of-\d{5}"), "a part of a TensorFlow checkpoint", ELSEWHERE),
    (re.compile(r".+[._]onnx[._]data|.+\.onnx\.data"), "the weights of an ONNX model", ELSEWHERE),
    (re.compile(r".+\.msgpack"), "a Flax checkpoint (msgpack), according to its name", ELSEWHERE),
)
