"""The files of whisper.cpp: what is written, what is read back, and what is refused."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from once import once, shared
from weightctl import convert, open_weights
from weightctl.errors import ConversionError, FormatError
from whisper_models import WORDS, make_whisper

if TYPE_CHECKING:
    from pathlib import Path

# The head, the filters of 80 mels and 201 bins, and the number of tokens.
TOKENS_AT = 48 + 8 + 4 * 80 * 201


@pytest.fixture(scope="session")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(shared(tmp_path_factory) / "whisper", make_whisper)


@pytest.fixture(scope="session")
def file(whisper: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whisper_cpp") / "ggml-tiny.bin"
    convert(whisper, path)
    return path


def test_the_head_states_the_sizes_the_filters_and_the_tokens(file: Path) -> None:
    raw = file.read_bytes()
    head = struct.unpack_from("<I11i2i", raw)
    assert head == (0x67676D6C, 51865, 256, 64, 2, 2, 32, 64, 2, 1, 80, 1, 80, 201)
    assert struct.unpack_from("<IIc", raw, TOKENS_AT) == (len(WORDS), 1, b"\0")
    weights = open_weights(file)
    assert weights.header.format == "whisper.cpp"
    assert list(weights.metadata["tokenizer.ggml.tokens"].content) == WORDS


def test_kernels_are_f16_and_vectors_positions_and_their_biases_f32(file: Path) -> None:
    tensors = open_weights(file).header.tensors
    shown = {name: (info.encoding.name, info.shape) for name, info in tensors.items()}
    assert shown["encoder.conv1.weight"] == ("F16", (64, 80, 3))
    assert shown["encoder.conv1.bias"] == ("F32", (64, 1))
    assert shown["encoder.positional_embedding"] == ("F32", (256, 64))
    assert shown["decoder.positional_embedding"] == ("F32", (32, 64))
    assert shown["decoder.token_embedding.weight"] == ("F16", (51865, 64))
    assert shown["decoder.blocks.0.cross_attn.key.weight"] == ("F16", (64, 64))
    assert shown["decoder.blocks.0.mlp_ln.bias"] == ("F32", (64,))


@pytest.mark.parametrize(("quant", "file_type"), [("Q4_0", 2002), ("Q5_1", 2009), ("Q8_0", 2007)])
def test_a_quantized_file_has_one_type_of_blocks(
    quant: str, file_type: int, file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "ggml-quantized.bin"
    convert(file, path, quant=quant)
    assert struct.unpack_from("<i", path.read_bytes(), 44) == (file_type,)
    tensors = open_weights(path).header.tensors
    matrices = {
        info.encoding.name
        for name, info in tensors.items()
        if len(info.shape) == 2 and "positional" not in name and "conv" not in name
    }
    assert matrices == {quant}
    assert tensors["encoder.conv2.weight"].encoding.name == "F16"


def test_a_way_through_safetensors_gives_the_same_file(file: Path, tmp_path: Path) -> None:
    convert(file, tmp_path / "between.safetensors")
    convert(tmp_path / "between.safetensors", tmp_path / "back.bin", to="whisper.cpp")
    assert (tmp_path / "back.bin").read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quant": "Q4_K"}, "the rows of `.*` have 64 values"),
        ({"quant": "Q4_K_M"}, "Q4_K_M is not one of them"),
        ({"quant": "IQ4_NL"}, "IQ4_NL is not one of them"),
        ({"tensor_types": {"mlp.0": "Q8_0"}}, "whisper.cpp reads it as F16"),
        ({"max_shard_size": "1MB"}, "cannot be split"),
        ({"align": 64}, "no place for the metadata key `general.alignment`"),
        ({"metadata": {"made.by": 3}}, "no place for the metadata key `made.by`"),
        ({"unset": "whisper.mel_filters"}, "needs the metadata key `whisper.mel_filters`"),
        ({"exclude": "encoder.*", "names": "keep", "unset": "*"}, "needs the metadata key"),
    ],
)
def test_what_whisper_cpp_cannot_read_is_refused(
    options: dict[str, object], message: str, file: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConversionError, match=message):
        convert(file, tmp_path / "ggml-new.bin", **options)  # type: ignore[arg-type]  # drawn options
    assert not list(tmp_path.iterdir())


def changed(file: Path, at: int, values: bytes) -> bytes:
    raw = bytearray(file.read_bytes())
    raw[at : at + len(values)] = values
    return bytes(raw)


def record_at(file: Path) -> int:
    """Return the offset of the record of the first tensor."""
    header = open_weights(file).header
    name, info = next(iter(header.tensors.items()))
    return header.extents[name].offset - 12 - 4 * len(info.shape) - len(name)


def test_damaged_files_are_refused_with_the_offset(file: Path, tmp_path: Path) -> None:
    path, at, raw = tmp_path / "damaged.bin", record_at(file), file.read_bytes()
    many = struct.pack("<I", 1 << 31)
    for content, message in (
        (changed(file, TOKENS_AT, many), "has 2147483648 tokens"),
        (changed(file, TOKENS_AT + 4, many), "a token has a stated length"),
        (changed(file, at, many), "the record of a tensor states"),
        (changed(file, at + 4, struct.pack("<i", -1)), "a name of -1 bytes"),
        (changed(file, at + 8, struct.pack("<i", 77)), "has type 77"),
        (changed(file, at + 12, struct.pack("<i", -5)), "an impossible shape"),
        (changed(file, at + 12, struct.pack("<i", 1 << 30)), "after the end of the file"),
        (raw[:-1], "1 bytes after the end of the file"),
        (raw[: at + 5], "ends inside the record"),
        (raw[: at + 14], "ends inside the record"),
        (raw + raw[at:], "two tensors are named"),
        (raw[: TOKENS_AT + 30], "tokens, but only"),
        (raw[:2000], "the file ends where 16080 elements"),
    ):
        path.write_bytes(content)
        with pytest.raises(FormatError, match=message) as caught:
            open_weights(path)
        assert caught.value.hint


def test_blocks_of_another_version_are_refused(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "ggml-quantized.bin"
    convert(file, path, quant="Q8_0")
    path.write_bytes(changed(path, 44, struct.pack("<i", 1007)))
    with pytest.raises(FormatError, match="blocks of version 1"):
        open_weights(path)


def test_other_models_of_ggml_are_not_taken_for_whisper(tmp_path: Path) -> None:
    path = tmp_path / "ggml-model.bin"
    path.write_bytes(struct.pack("<I40i", 0x67676D6C, *range(40)))
    with pytest.raises(FormatError, match="a format older than GGUF"):
        open_weights(path)
