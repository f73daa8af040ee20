"""Bytes with a float32 step for each row: an element is (byte - 128) * step."""

from weightctl.schemes.cutting import cut_upright
from weightctl.schemes.layout import Packing, PartContent, StoredPart, WeightEncoding
from weightctl.schemes.naming import LogicalWeight, NameEndings
from weightctl.schemes.scheme import Scheme, WrittenScheme


def infer(candidate):
    """Return the weight that these tensors are; None if they do not fit together."""
    rows = candidate.numbers.shape[:-1]
    fits = len(rows) == 1 and candidate.scales.shape == (*rows, 1)
    return LogicalWeight(candidate.numbers.shape) if fits else None


def decode(stored):
    """Return how the elements are computed."""
    from weightctl.schemes.arrays.values import Decoding, Scaled  # they need NumPy

    steps = stored.per_block(1, stored.grid(stored.shape, stored.scales.shape))
    values = Scaled(numbers=stored.plain(0), scales=steps, zero=128)
    return Decoding(stored.shape, values)


SCHEME = Scheme(
    label="steps",
    summary="bytes, with a float32 step for each row",
    names=(NameEndings(".steps", ".bytes", ".weight", ("U8",)),),
    infer=infer,
    decode=decode,
    cut=cut_upright,
)


def encode(shape, options, scales):
    """Return how a weight is rounded and stored."""
    from weightctl.schemes.arrays.rounding import WHOLE_ROW, Symmetric

    del options, scales
    parts = (
        StoredPart(".bytes", PartContent.CODES, "U8", Packing(8, 8)),
        StoredPart(".steps", PartContent.SCALES, "F32"),
    )
    return WeightEncoding(parts, shape, Symmetric(8, WHOLE_ROW, "F32"))


def settings(options, ignored):
    """Return the quantization settings of config.json."""
    del options
    return {"quant_method": "steps", "modules_to_not_convert": [*ignored]}


STEPS = WrittenScheme(name="STEPS", summary=SCHEME.summary, encode=encode, settings=settings)
