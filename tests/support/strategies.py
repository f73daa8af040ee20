"""Strategies of hypothesis: names, shapes, tensors and metadata of any checkpoint."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from weightctl.dtype import ENCODINGS
from weightctl.weights.metadata import INTEGERS, TEXT, MetadataValue

if TYPE_CHECKING:
    from weightctl.dtype import Encoding

_SEGMENTS = st.one_of(
    st.sampled_from(["model", "layers", "0", "1", "10", "weight", "bias", "blk"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
)
# Names that every format can store: GGUF allows 63 bytes.
names = (
    st.lists(_SEGMENTS, min_size=1, max_size=4)
    .map(".".join)
    .filter(lambda name: len(name.encode()) < 64 and name != "__metadata__")
)
keys = st.one_of(
    st.sampled_from(["format", "gguf", "general.name", "tokenizer.ggml.tokens"]),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12),
).filter(
    lambda key: key != "general.alignment" and not key.startswith("split.")
)  # say how, not what
# In GGUF, strings can be bytes that are not UTF-8.
_strings = st.binary(max_size=12).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    **{kind: st.integers(low, high) for kind, (low, high) in INTEGERS.items()},
    "f32": st.floats(width=32),
    "f64": st.floats(),
    "bool": st.booleans(),
    "string": _strings,
}


def _arrays(
    kind: str, content: st.SearchStrategy[Any], depth: int
) -> st.SearchStrategy[MetadataValue]:
    for level in range(depth):
        # GGUF does not store the element type of an empty array of arrays.
        kind, content = f"array[{kind}]", st.lists(content, min_size=1 if level else 0, max_size=3)
    return content.map(lambda drawn: MetadataValue(kind, drawn))


def typed_values() -> st.SearchStrategy[MetadataValue]:
    """Metadata values of every type, single and in nested arrays."""
    return st.one_of(
        [_arrays(kind, content, depth) for kind, content in _SCALARS.items() for depth in (0, 1, 3)]
    )


def metadata() -> st.SearchStrategy[dict[str, MetadataValue]]:
    """GGUF's values and safetensors' strings with any keys."""
    texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    plain = texts.map(lambda text: MetadataValue(TEXT, text))
    return st.dictionaries(keys, typed_values() | plain, max_size=6)


@st.composite
def shapes(draw: st.DrawFn, encoding: Encoding) -> tuple[int, ...]:
    """Shapes of up to four dimensions, including scalar and empty ones, in whole blocks."""
    if encoding.block == 1:
        return tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    outer = draw(st.lists(st.integers(0, 3), max_size=3))
    return (*outer, draw(st.integers(0, 2)) * encoding.block)


@st.composite
def tensors(
    draw: st.DrawFn, encodings: list[Encoding]
) -> dict[str, tuple[Encoding, tuple[int, ...], bytes]]:
    """Named tensors with any bytes in some of these encodings."""
    drawn: dict[str, tuple[Encoding, tuple[int, ...], bytes]] = {}
    for name in draw(st.lists(names, max_size=5, unique=True)):
        encoding = draw(st.sampled_from(encodings))
        shape = draw(shapes(encoding))
        seed = draw(st.binary(min_size=1, max_size=7))
        length = prod(shape) // encoding.block * encoding.size
        drawn[name] = (encoding, shape, (seed * (length // len(seed) + 1))[:length])
    return drawn


INTERPRETED = [e for e in ENCODINGS.values() if e.dtype is not None or e.quantization is not None]
