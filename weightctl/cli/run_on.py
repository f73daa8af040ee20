"""Parses the options for running a model: device, text, tokens and layers."""

from __future__ import annotations

import codecs
import re

from weightctl.device import CPU, DeviceRef, as_device
from weightctl.errors import ArgumentTypeError, ConversionError, EngineError
from weightctl.storage.files import read_start

# A model runs on a few thousand tokens, so only this number of bytes of a text file is read.
_TEXT_BYTES = 1 << 20
_STDIN = "-"


def device_named(name: str) -> DeviceRef:
    """Return the device with a name such as `cpu`, `cuda` or `cuda:1`.

    Raises `ConversionError` if the name is invalid, or if this machine does not have the device.
    """
    wrong = ConversionError(f"`{name}` is not a device", hint="devices are cpu, cuda, cuda:1 ...")
    try:
        device = as_device(name.strip())
    except ArgumentTypeError:
        raise wrong from None
    if device.kind == "cpu":
        if device != CPU:
            raise wrong
        return device
    from weightctl.engine.devices import require_devices  # loads torch

    try:
        require_devices([device])
    except EngineError as error:
        message = error.message.replace(str(device), name.strip())
        raise ConversionError(message, hint="use --device cpu") from error
    return device


def layers_named(written: str) -> range:
    """Return the range of layers for a text such as `3` or `0-3`, which includes layer 3.

    Raises `ConversionError` if the text is not a range of layers.
    """
    match = re.fullmatch(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?", written, re.ASCII)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise ConversionError(
            f"`--layers {written}` is not a range of layers", hint="write 0-3, or 5; the first is 0"
        )
    return range(int(match[1]), int(match[2] or match[1]) + 1)


def parse_tokens(written: str) -> tuple[int, ...]:
    """Return the token ids in a text such as `1,2,3`.

    Raises `ConversionError` if the text is not a list of token ids.
    """
    numbers = [number for number in re.split(r"[,\s]+", written.strip()) if number]
    if not numbers or not all(re.fullmatch(r"\d{1,9}", each, re.ASCII) for each in numbers):
        raise ConversionError(
            f"`--tokens {written}` is not a list of token ids",
            hint="write numbers with commas: --tokens 1,42,7",
        )
    return tuple(map(int, numbers))


def text_of(path: str) -> str:
    """Return the first megabyte of the text in a file; `-` means stdin.

    Raises `OSError` or `FormatError` if the file cannot be read, and `ConversionError` if it is not
    text.
    """
    if path == _STDIN:
        with open(0, "rb", closefd=False) as file:
            raw = file.read(_TEXT_BYTES)
    else:
        raw = read_start(path, _TEXT_BYTES)
    try:
        # A character that is cut at the end of the first megabyte is left out.
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(raw, len(raw) < _TEXT_BYTES)
    except UnicodeDecodeError as error:
        raise ConversionError(
            f"{path}, byte {error.start}: the file is not UTF-8 text",
            hint="--text-file needs plain text, such as a page of a book",
        ) from error
    if not text.strip():
        raise ConversionError(
            f"{path}: the file contains no text", hint="use a file with a paragraph of text"
        )
    return text
