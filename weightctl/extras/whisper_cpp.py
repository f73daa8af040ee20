"""The files of whisper.cpp, `ggml-NAME.bin`: a Whisper model with its mel filters and vocabulary.

Sources: whisper.cpp's `src/whisper.cpp` (`whisper_model_load`), and `examples/quantize` with
`common-ggml.cpp`, which state the types that the tensors can have. Tensors have OpenAI's names.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from weightctl.dtype import ENCODINGS, encoding_by_id
from weightctl.errors import ConversionError, FormatError
from weightctl.formats.base import NO_METADATA, Layout, is_possible, is_text
from weightctl.formats.gguf_values import Cursor
from weightctl.formats.truncation import past_end, rest_of
from weightctl.text.byte_level import from_byte_level, to_byte_level
from weightctl.text.untyped import is_sequence
from weightctl.weights.info import Extent, Header, TensorInfo
from weightctl.weights.metadata import TEXT, MetadataValue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.dtype import Encoding
    from weightctl.formats.base import Part
    from weightctl.storage.base import Reader

WHISPER_CPP = "whisper.cpp"
MAGIC = 0x67676D6C
# The sizes of a model in the order of the file, by their keys in OpenAI's checkpoints.
DIMENSIONS = tuple(
    f"dims.{name}"
    for name in (
        "n_vocab", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer", "n_text_ctx",
        "n_text_state", "n_text_head", "n_text_layer", "n_mels",
    )
)  # fmt: skip
# The rows of the mel filter bank, one after the other.
FILTERS = "whisper.mel_filters"
# The bytes of each token, spelled as byte-level tokenizers do.
TOKENS = "tokenizer.ggml.tokens"
# Biases of convolutions, which the file has as matrices with one column.
BIASES = ("encoder.conv1.bias", "encoder.conv2.bias")

_KEPT = (*BIASES, "encoder.positional_embedding", "decoder.positional_embedding")
_EMBEDDING = "decoder.token_embedding.weight"
_HEAD = struct.Struct("<I11i")
_TENSOR = struct.Struct("<3i")
# ggml's numbers for the main type of a file (ggml.h, `ggml_ftype`).
_FILE_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10,
    "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14,
}  # fmt: skip
# The number of a quantized file also has the version of the block types.
_FACTOR, _VERSION = 1000, 2
_MOST_DIMENSIONS = 4
_MOST_MELS, _MOST_COLUMNS = 1 << 10, 1 << 12
_LONGEST_NAME = 256
_FAULTY = "the file is damaged or a faulty tool wrote it"


def sniff(file: Reader) -> bool:
    """Whether a file begins like a Whisper model of ggml, and not like another model of ggml."""
    head = file.read(0, _HEAD.size + 8)
    if len(head) < _HEAD.size + 8:
        return False
    magic, *_, mels, _ = _HEAD.unpack_from(head)
    rows, columns = struct.unpack_from("<2i", head, _HEAD.size)
    is_possible_bank = 0 < mels == rows <= _MOST_MELS and 0 < columns <= _MOST_COLUMNS
    return bool(magic == MAGIC and is_possible_bank)


def read(file: Reader) -> Header:
    """Parse the header of a file of whisper.cpp; raises `FormatError` if it is invalid."""
    _, *sizes, file_type = _HEAD.unpack(file.read(0, _HEAD.size))
    metadata = {
        key: MetadataValue("i64", size) for key, size in zip(DIMENSIONS, sizes, strict=True)
    }
    cursor = Cursor(file, 1, "<", _HEAD.size)
    rows, columns = cursor.number("i32"), cursor.number("i32")
    metadata[FILTERS] = MetadataValue("array[f32]", cursor.elements("f32", rows * columns))
    metadata[TOKENS] = MetadataValue("array[string]", _read_tokens(cursor))
    tensors: dict[str, TensorInfo] = {}
    extents: dict[str, Extent] = {}
    at = cursor.offset
    while at < file.size:
        info, start = _read_tensor(file, at)
        if info.name in tensors:
            raise FormatError(file.path, at, f"two tensors are named `{info.name}`", hint=_FAULTY)
        tensors[info.name], extents[info.name] = info, Extent(0, start, info.nbytes)
        at = start + info.nbytes
        if at > file.size:
            raise past_end(file.path, start, info.name, at, file.size)
    is_quantized = any(info.encoding.quantization for info in tensors.values())
    if is_quantized and file_type // _FACTOR != _VERSION:
        raise FormatError(
            file.path,
            _HEAD.size - 4,
            f"the file has blocks of version {file_type // _FACTOR} of ggml, but only version "
            f"{_VERSION} is supported",
            hint="quantize the original model again",
        )
    return Header(
        format=WHISPER_CPP,
        files=(file.path,),
        tensors=tensors,
        extents=extents,
        metadata=metadata,
    )


def _read_tokens(cursor: Cursor) -> list[str]:
    count, left = cursor.count(), cursor.file.size - cursor.offset
    if count * 4 > left:
        raise cursor.fail(f"the vocabulary has {count} tokens, but only {left} bytes follow")
    spelled: list[str] = []
    for _ in range(count):
        raw = cursor.string("a token").encode("utf-8", "surrogateescape")
        spelled.append(to_byte_level(raw))
    return spelled


def _read_tensor(file: Reader, at: int) -> tuple[TensorInfo, int]:
    """Return a tensor whose record is at an offset, and the offset of its bytes."""
    head = file.read(at, _TENSOR.size + 4 * _MOST_DIMENSIONS + _LONGEST_NAME)
    if len(head) < _TENSOR.size:
        raise FormatError(
            file.path, at, "the file ends inside the record of a tensor", hint=rest_of(file.path)
        )
    rank, length, kind = _TENSOR.unpack_from(head)
    if not (0 <= rank <= _MOST_DIMENSIONS and 0 < length <= _LONGEST_NAME):
        raise FormatError(
            file.path,
            at,
            f"the record of a tensor states {rank} dimensions and a name of {length} bytes",
            hint=_FAULTY,
        )
    start = _TENSOR.size + 4 * rank + length
    if len(head) < start:
        raise FormatError(
            file.path, at, "the file ends inside the record of a tensor", hint=rest_of(file.path)
        )
    shape = struct.unpack_from(f"<{rank}i", head, _TENSOR.size)[::-1]
    name = str(head[start - length : start], "utf-8", "surrogateescape")
    encoding = encoding_by_id(WHISPER_CPP, kind)
    problem = (
        f"the tensor name {name!r} is not UTF-8"
        if not is_text(name)
        else f"`{name}` has type {kind}, which whisper.cpp does not read"
        if encoding is None
        else f"`{name}` has an impossible shape: {list(shape)}"
        if not is_possible(shape)
        else f"`{name}` has shape {list(shape)}: a row is not a whole number of {encoding} blocks"
        if not encoding.fits(shape)
        else ""
    )
    if problem or encoding is None:
        raise FormatError(file.path, at, problem, hint=_FAULTY)
    return TensorInfo(name, shape, encoding), at + start


def is_matrix(info: TensorInfo) -> bool:
    """Whether a tensor has the type of all matrices, which positions and kernels do not have."""
    return len(info.shape) == 2 and info.name not in _KEPT


def matrix_encoding(tensors: Sequence[TensorInfo]) -> Encoding:
    """Return the encoding that all matrices must have: that of the token embedding."""
    matrices = list(filter(is_matrix, tensors))
    usual = matrices[0].encoding if matrices else ENCODINGS["F32"]
    return next((info.encoding for info in matrices if info.name == _EMBEDDING), usual)


def expected_encoding(info: TensorInfo, matrices: Encoding) -> Encoding:
    """Return the encoding in which whisper.cpp reads a tensor, if matrices have this encoding."""
    if is_matrix(info):
        return matrices
    if len(info.shape) < 2 or info.name in _KEPT:
        return ENCODINGS["F32"]
    return ENCODINGS["F32" if matrices.name == "F32" else "F16"]


def unfit(tensors: Sequence[TensorInfo], _: Mapping[str, MetadataValue] = NO_METADATA) -> list[str]:
    """Return a sentence for each tensor that whisper.cpp cannot read."""
    matrices = matrix_encoding(tensors)
    problems = [
        f"the tensor name {info.name!r} is not UTF-8, or longer than {_LONGEST_NAME} bytes"
        for info in tensors
        if not is_text(info.name) or not 0 < len(info.name.encode()) <= _LONGEST_NAME
    ]
    for info in tensors:
        wanted = expected_encoding(info, matrices)
        if WHISPER_CPP not in info.encoding.ids:
            problems.append(f"`{info.name}` is {info.encoding}, which whisper.cpp does not read")
        elif len(info.shape) > _MOST_DIMENSIONS:
            problems.append(f"`{info.name}` has {len(info.shape)} dimensions; the limit is 4")
        elif info.encoding != wanted:
            problems.append(
                f"`{info.name}` is {info.encoding}, but whisper.cpp reads it as {wanted} where "
                f"`{_EMBEDDING}` is {matrices}"
            )
    return problems


def layout(
    tensors: Sequence[TensorInfo], metadata: Mapping[str, MetadataValue], part: Part | None = None
) -> Layout:
    """Describe a file of whisper.cpp; the record of each tensor is before its bytes.

    `metadata` has the sizes of the model, the mel filters and the tokens. Raises `ConversionError`
    if one of them is missing or invalid, for other metadata, and for a file of several.
    """
    if part is not None:
        raise ConversionError(
            "whisper.cpp reads a model from one file, which cannot be split",
            hint="leave out --max-shard-size (max_shard_size in Python)",
        )
    records = [_pack_record(info) for info in tensors]
    header = _pack_header(metadata, matrix_encoding(tensors))
    offsets: list[int] = []
    position = len(header)
    for info, record in zip(tensors, records, strict=True):
        offsets.append(position + len(record))
        position = offsets[-1] + info.nbytes

    def between(checks: Sequence[int]) -> bytes:
        return records[len(checks)] if len(checks) < len(records) else b""

    return Layout(header, tuple(tensors), tuple(offsets), position, between)


def _pack_record(info: TensorInfo) -> bytes:
    name = info.name.encode()
    number = info.encoding.ids[WHISPER_CPP]
    try:
        sizes = struct.pack(f"<{len(info.shape)}i", *info.shape[::-1])
    except struct.error as error:
        raise ConversionError(f"`{info.name}` has a dimension of more than 2^31 - 1") from error
    return _TENSOR.pack(len(info.shape), len(name), number) + sizes + name


def _pack_header(metadata: Mapping[str, MetadataValue], matrices: Encoding) -> bytes:
    known = {*DIMENSIONS, FILTERS, TOKENS}
    strange = [key for key, value in metadata.items() if key not in known and value.type != TEXT]
    if strange:
        raise ConversionError(
            f"a file of whisper.cpp has no place for the metadata key `{strange[0]}`",
            hint="to leave it out, use --unset (unset in Python)",
        )
    sizes = [_content(metadata, key) for key in DIMENSIONS]
    filters, tokens = _content(metadata, FILTERS), _content(metadata, TOKENS)
    number = _FILE_TYPES[matrices.name]
    if matrices.quantization:
        number += _VERSION * _FACTOR
    mels = sizes[-1]
    try:
        head = _HEAD.pack(MAGIC, *sizes, number)
        columns = len(filters) // mels
        raw = struct.pack(f"<2i{mels * columns}f", mels, columns, *filters)
        words = [from_byte_level(token) for token in tokens]
    except (struct.error, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ConversionError(f"the metadata of the Whisper model is invalid: {error}") from error
    packed = b"".join(struct.pack("<I", len(word)) + word for word in words)
    return head + raw + struct.pack("<I", len(words)) + packed


def _content(metadata: Mapping[str, MetadataValue], key: str) -> Any:
    value = metadata.get(key)
    is_list = value is not None and is_sequence(value.content)
    if value is None or is_list != (key in {FILTERS, TOKENS}):
        raise ConversionError(
            f"a file of whisper.cpp needs the metadata key `{key}`, which is "
            f"{'missing' if value is None else 'invalid'}",
            hint="only Whisper models can be stored in this format: start from the directory of "
            "the model in Hugging Face's format, or from OpenAI's .pt file",
        )
    return value.content
