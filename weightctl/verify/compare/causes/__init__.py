"""The table of causes: what may have gone wrong with a checkpoint, and what to do about it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CAUSES", "Cause", "is_of_both"]


class Cause(NamedTuple):
    """A mistake that may explain a problem: a sentence about it, and a remedy.

    A cause that changes a tensor's values is detected in a pair of tensors. `detector` is `(pair,
    pairing, measured) -> Explanation | None`, and may return any of several causes. `guess` is
    `(pair, pairing) -> Iterator[Guess]`: it makes the mistake in the reference's tensor, and is
    right if the result equals the checkpoint's tensor. Both are empty for causes that a check
    detects itself.

    With a cause that `computes_the_same`, the model works as the reference does. One `of_the_file`
    is reported once, for all layers. One `of_both` is about both checkpoints as a whole, and comes
    first in a summary. With one that `takes_another`, a tensor is in the place of another tensor of
    the model, which a naming convention cannot explain.
    """

    sentence: str
    remedy: str
    detector: str = ""
    guess: str = ""
    computes_the_same: bool = False
    of_the_file: bool = False
    of_both: bool = False
    takes_another: bool = False


_HERE = "weightctl.verify.compare.causes"
_CONVERT = (
    "convert the original model again with `weightctl convert ORIGINAL OUT`, which makes "
    "all changes that the family needs"
)
_RENAME = (
    "the values are there under wrong names: correct the conversion, or rename the tensors "
    "with `weightctl convert IN OUT --rename FILE`"
)
_FETCH = (
    "values are lost: fetch or make the file again; `weightctl diff A B --hash` shows "
    "whether A has the published values"
)
_SET = (
    "correct the key in config.json; for a GGUF file, `weightctl convert IN OUT --set "
    "KEY=VALUE` writes a corrected copy"
)
_SAME = "nothing to do: the model computes the same; leave out --max-rmse if this is enough"

# The keys are stable names for scripts. Detectors and guesses are tried in this order: fast and
# specific ones first, guesses that examine all layers last.
CAUSES: dict[str, Cause] = {
    "zeroed": Cause(
        "all values of a tensor are 0: it was never written, or was erased",
        _FETCH,
        detector=f"{_HERE}.damage:find_zeroed",
    ),
    "scale": Cause(
        "the scale of a block is damaged; the factor is reported",
        _FETCH,
        detector=f"{_HERE}.damage:find_damaged_scale",
    ),
    "rows_lost": Cause(
        "rows of a tensor, or parts of rows, were never written, or were erased; they are listed",
        _FETCH,
        detector=f"{_HERE}.damage:find_lost_rows",
    ),
    "scaled": Cause(
        "all values of a tensor are multiplied by one factor, which is reported",
        _CONVERT,
        detector=f"{_HERE}.damage:find_scaled",
    ),
    "byte_order": Cause(
        "the bytes of each value are in reverse order",
        "fetch the file again, or convert the original again with a tool that respects its "
        "byte order",
        detector=f"{_HERE}.misread:find_misread",
    ),
    "wrong_dtype": Cause(
        "bfloat16 values were read as float16, or float16 values as bfloat16",
        "convert the original model again, or correct the dtype in the header: no bits are lost",
        detector=f"{_HERE}.misread:find_misread",
    ),
    "dequantized": Cause(
        "values were quantized before; the encoding is reported",
        "use the original for full-precision values: a file made from a quantized one is "
        "larger and no better",
        detector=f"{_HERE}.dequantized:find_dequantized",
        of_the_file=True,
    ),
    "units_permuted": Cause(
        "inner units of an MLP are in another order in all projections, so that the model "
        "computes the same",
        _SAME,
        detector=f"{_HERE}.units:find_equivalent_units",
        computes_the_same=True,
    ),
    "heads_permuted": Cause(
        "attention heads are in another order in all projections, so that the model "
        "computes the same",
        _SAME,
        detector=f"{_HERE}.heads:find_equivalent_heads",
        computes_the_same=True,
    ),
    "experts_permuted": Cause(
        "experts are in another order, also in the router, so that the model computes the same",
        _SAME,
        detector=f"{_HERE}.misplaced:find_equivalent_experts",
        computes_the_same=True,
    ),
    "rope_rows": Cause(
        "rows of queries or keys are in the order of the other naming convention",
        _CONVERT,
        guess=f"{_HERE}.mistakes:guess_rope_rows",
    ),
    "query_and_key_swapped": Cause(
        "the query and key projections are swapped",
        _RENAME,
        guess=f"{_HERE}.mistakes:guess_other_projection",
        takes_another=True,
    ),
    "query_and_output_swapped": Cause(
        "the query and output projections are swapped",
        _RENAME,
        guess=f"{_HERE}.mistakes:guess_other_projection",
        takes_another=True,
    ),
    "key_and_value_swapped": Cause(
        "the key and value projections, or these parts of a fused one, are swapped",
        _RENAME,
        guess=f"{_HERE}.mistakes:guess_other_projection",
        takes_another=True,
    ),
    "gate_and_up_swapped": Cause(
        "the gate and up projections, or these parts of a fused one, are swapped",
        _RENAME,
        guess=f"{_HERE}.mistakes:guess_other_projection",
        takes_another=True,
    ),
    "parts_exchanged": Cause(
        "the parts of a fused projection are in another order",
        _CONVERT,
        guess=f"{_HERE}.mistakes:guess_fused_order",
    ),
    "gate_and_up_interleaved": Cause(
        "rows of gate and up are interleaved, or were separated as if they were interleaved",
        _CONVERT,
        guess=f"{_HERE}.interleaved:guess_interleaved",
    ),
    "transposed": Cause(
        "rows and columns are swapped",
        _CONVERT,
        guess=f"{_HERE}.mistakes:guess_transposed",
    ),
    "norm_offset": Cause(
        "the `1 + w` of Gemma's norms is missing, or was applied twice",
        _CONVERT,
        guess=f"{_HERE}.mistakes:guess_norm_offset",
    ),
    "tied": Cause(
        "the output is a copy of the embedding, or is tied to the embedding and differs from it",
        _CONVERT,
        guess=f"{_HERE}.mistakes:guess_copied_embedding",
        takes_another=True,
    ),
    "norms_exchanged": Cause(
        "a norm is in the place of another norm",
        _RENAME,
        guess=f"{_HERE}.misplaced:guess_other_norm",
        takes_another=True,
    ),
    "expert_order": Cause(
        "the experts of a layer are in another order, but its router is not",
        _RENAME,
        guess=f"{_HERE}.misplaced:guess_other_expert",
        takes_another=True,
    ),
    "expert_copied": Cause(
        "an expert is a copy of another one, which is reported",
        _FETCH,
        guess=f"{_HERE}.misplaced:guess_other_expert",
        takes_another=True,
    ),
    "layers_exchanged": Cause(
        "a tensor is in the place of the same tensor of another layer, which is reported",
        _RENAME,
        guess=f"{_HERE}.mistakes:guess_other_layer",
        takes_another=True,
    ),
    "shifted": Cause(
        "the values of each row are shifted by one position",
        _FETCH,
        guess=f"{_HERE}.mistakes:guess_shifted",
    ),
    "heads_exchanged": Cause(
        "attention heads are in another order, which is reported",
        _CONVERT,
        detector=f"{_HERE}.heads:find_exchanged_heads",
    ),
    "rolled": Cause(
        "rows or columns are rotated by some positions; the number is reported",
        _CONVERT,
        detector=f"{_HERE}.orders:find_permuted",
    ),
    "permuted": Cause(
        "rows or columns are in another order, which is reported",
        _CONVERT,
        detector=f"{_HERE}.orders:find_permuted",
    ),
    "clipped": Cause(
        "values were clipped to a range; the range and the number of clipped values are reported",
        "use the original: clipped values are lost; convert it without clipping",
        detector=f"{_HERE}.clipped:find_clipped",
    ),
    "low_rank": Cause(
        "a change of low rank was added, as by a LoRA adapter; the rank is reported",
        "compare with the model that the adapter was merged into, or undo the merge: the "
        "difference is an adapter, not damage",
        detector=f"{_HERE}.low_rank:find_low_rank",
    ),
    "flipped": Cause("a bit of the file has changed", _FETCH),
    "config": Cause(
        "a key of the config differs; both values are reported, or the values that would fit", _SET
    ),
    "bias_dropped": Cause("biases were left out, or other layers have none", _CONVERT),
    "output_forgotten": Cause("the output was left out, and differs from the embedding", _CONVERT),
    "different_models": Cause(
        "A and B are different models: other families, other sizes, or unrelated values",
        "compare A with its original: check the path that was given to `--against`",
        of_both=True,
    ),
    "renamed": Cause(
        "the tensors of A have other names than those of B",
        "rename the tensors: `weightctl convert A OUT --rename 'REGEX=NEW'`",
        of_both=True,
    ),
    "one_rank": Cause(
        "A or B is one rank's file of a sharded checkpoint",
        "verify the directory of the sharded checkpoint, which has manifest.json, or join its "
        "files first: `weightctl shard --gather DIR OUT`",
        of_both=True,
    ),
    "training_steps": Cause(
        "nearly all tensors differ by similar small amounts, as after more training",
        "`--compare` lists differences from B without judging them; where A should equal B, fetch "
        "it again",
        of_both=True,
    ),
}


def is_of_both(name: str) -> bool:
    """Whether a cause is about both checkpoints as a whole; false for unlisted causes."""
    return name in CAUSES and CAUSES[name].of_both
