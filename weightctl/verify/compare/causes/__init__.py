"""The table of causes: what may have gone wrong with a checkpoint, and what to do about it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CAUSES", "Cause", "is_of_both"]


class Cause(NamedTuple):
    """A mistake that may explain a problem: a sentence about it, and a remedy.

    A cause that changes a tensor's values is searched for in a pair of tensors. `detector` names a
    function `(pair, pairing, measured) -> Explanation | None`, which may return any of several
    causes. `guess` names a function `(pair, pairing) -> Iterator[Guess]`, which makes the mistake
    in the reference's tensor; a guess is right if its result equals the checkpoint's tensor. Both
    are empty for causes that a check detects itself.

    `computes_the_same` is set if the model gives the same results as the reference. `of_both` is
    set if the cause is about both checkpoints as a whole; such a cause comes first in a summary.
    `takes_another` is set if a tensor is in the place of another tensor of the model, which does
    not depend on the naming convention.
    """

    sentence: str
    remedy: str
    detector: str = ""
    guess: str = ""
    computes_the_same: bool = False
    of_both: bool = False
    takes_another: bool = False


_HERE = "weightctl.verify.compare.causes"
_CONVERT = (
    "convert the original model again: `weightctl convert ORIGINAL OUT` makes all changes that "
    "the model family needs"
)
_RENAME = (
    "the values are present, but under the wrong names: correct the conversion, or rename the "
    "tensors with `weightctl convert MODEL OUT --rename FILE`"
)
_FETCH = (
    "values are lost: download the file again, or convert the original model again; to compare "
    "the file with a fresh download: `weightctl diff MODEL DOWNLOAD --hash`"
)
_SET = (
    "correct the key in config.json; for a GGUF file, `weightctl convert MODEL OUT --set "
    "KEY=VALUE` writes a corrected copy"
)
_SAME = (
    "no action is needed: the model computes the same results; this is a problem only with "
    "--max-rmse"
)

# The keys are stable names for scripts. Detectors and guesses are tried in this order: fast and
# specific ones first, guesses that examine all layers last.
CAUSES: dict[str, Cause] = {
    "zeroed": Cause(
        "all values of a tensor are 0: they were never written, or were erased",
        _FETCH,
        detector=f"{_HERE}.damage:find_zeroed",
    ),
    "scale": Cause(
        "a block scale is damaged; the report gives the factor",
        _FETCH,
        detector=f"{_HERE}.damage:find_damaged_scale",
    ),
    "rows_lost": Cause(
        "rows of a tensor, or parts of rows, were never written, or were erased; the report lists "
        "them",
        _FETCH,
        detector=f"{_HERE}.damage:find_lost_rows",
    ),
    "scaled": Cause(
        "all values of a tensor are multiplied by the same factor; the report gives it",
        _CONVERT,
        detector=f"{_HERE}.damage:find_scaled",
    ),
    "byte_order": Cause(
        "the bytes of each value are in reverse order",
        "download the file again, or convert the original model again with a tool that respects "
        "its byte order",
        detector=f"{_HERE}.misread:find_misread",
    ),
    "wrong_dtype": Cause(
        "bfloat16 values were read as float16, or float16 values as bfloat16",
        "the bits are intact: correct the dtype in the header, or convert the original model again",
        detector=f"{_HERE}.misread:find_misread",
    ),
    "dequantized": Cause(
        "the values were quantized at an earlier time; the report gives the encoding",
        "if you need full-precision values, use the original model: a dequantized file is larger, "
        "but not more accurate",
        detector=f"{_HERE}.dequantized:find_dequantized",
    ),
    "units_permuted": Cause(
        "the hidden units of an MLP are in another order, consistently in all projections; the "
        "model computes the same results",
        _SAME,
        detector=f"{_HERE}.heads:find_equivalent_units",
        computes_the_same=True,
    ),
    "heads_permuted": Cause(
        "attention heads are in another order, consistently in all projections; the model "
        "computes the same results",
        _SAME,
        detector=f"{_HERE}.heads:find_equivalent_heads",
        computes_the_same=True,
    ),
    "experts_permuted": Cause(
        "experts are in another order, consistently with the router; the model computes the same "
        "results",
        _SAME,
        detector=f"{_HERE}.mistakes:find_equivalent_experts",
        computes_the_same=True,
    ),
    "rope_rows": Cause(
        "rows of the query or key projection are in the order of the other format (Hugging Face or "
        "GGUF)",
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
        "the key and value projections are swapped, as separate matrices or in a fused matrix",
        _RENAME,
        guess=f"{_HERE}.mistakes:guess_other_projection",
        takes_another=True,
    ),
    "gate_and_up_swapped": Cause(
        "the gate and up projections are swapped, as separate matrices or in a fused matrix",
        _RENAME,
        guess=f"{_HERE}.mistakes:guess_other_projection",
        takes_another=True,
    ),
    "parts_exchanged": Cause(
        "the parts of a fused projection are in the wrong order",
        _CONVERT,
        guess=f"{_HERE}.mistakes:guess_fused_order",
    ),
    "gate_and_up_interleaved": Cause(
        "the rows of the gate and up projections alternate where the model has them in two halves, "
        "or the other way round",
        _CONVERT,
        guess=f"{_HERE}.mistakes:guess_interleaved",
    ),
    "transposed": Cause(
        "rows and columns are swapped",
        _CONVERT,
        guess=f"{_HERE}.mistakes:guess_transposed",
    ),
    "norm_offset": Cause(
        "the 1 that GGUF adds to the weights of Gemma's norms is missing, or was added twice",
        _CONVERT,
        guess=f"{_HERE}.mistakes:guess_norm_offset",
    ),
    "tied": Cause(
        "the output matrix is a copy of the embedding although the model is not tied, or it "
        "differs from the embedding although the config ties them",
        _CONVERT,
        guess=f"{_HERE}.mistakes:guess_copied_embedding",
        takes_another=True,
    ),
    "norms_exchanged": Cause(
        "a norm is stored in the place of another norm",
        _RENAME,
        guess=f"{_HERE}.mistakes:guess_other_norm",
        takes_another=True,
    ),
    "expert_order": Cause(
        "the experts of a layer are in another order, but the rows of its router are not",
        _RENAME,
        guess=f"{_HERE}.mistakes:guess_other_expert",
        takes_another=True,
    ),
    "expert_copied": Cause(
        "an expert is a copy of another expert; the report names the other one",
        _FETCH,
        guess=f"{_HERE}.mistakes:guess_other_expert",
        takes_another=True,
    ),
    "layers_exchanged": Cause(
        "a tensor is stored in the place of the same tensor of another layer; the report says "
        "which",
        _RENAME,
        guess=f"{_HERE}.mistakes:guess_other_layer",
        takes_another=True,
    ),
    "shifted": Cause(
        "the rows are shifted by one position",
        _FETCH,
        guess=f"{_HERE}.mistakes:guess_shifted",
    ),
    "heads_exchanged": Cause(
        "attention heads are in the wrong order; the report gives the order",
        _CONVERT,
        detector=f"{_HERE}.heads:find_exchanged_heads",
    ),
    "rolled": Cause(
        "rows or columns are cyclically shifted; the report gives the number of positions",
        _CONVERT,
        detector=f"{_HERE}.orders:find_permuted",
    ),
    "permuted": Cause(
        "rows or columns are in the wrong order; the report gives the order",
        _CONVERT,
        detector=f"{_HERE}.orders:find_permuted",
    ),
    "clipped": Cause(
        "values were clipped to a range; the report gives the range and the number of clipped "
        "values",
        "clipped values are lost: use the original model, or convert it again without clipping",
        detector=f"{_HERE}.damage:find_clipped",
    ),
    "low_rank": Cause(
        "a matrix of low rank was added, as by merging a LoRA adapter; the report gives the rank",
        "the difference is an adapter, not damage: compare with the model that the adapter was "
        "merged into, or use the model without the adapter",
        detector=f"{_HERE}.low_rank:find_low_rank",
    ),
    "flipped": Cause("a bit of the file has changed", _FETCH),
    "config": Cause(
        "a key of the config differs; the report gives both values, or the values that would fit",
        _SET,
    ),
    "bias_dropped": Cause("biases are missing, in all layers or in some of them", _CONVERT),
    "output_forgotten": Cause(
        "the output matrix is missing, and the embedding cannot replace it", _CONVERT
    ),
    "mtp_lost": Cause(
        "the layers for multi-token prediction (MTP) are missing; the model computes the same "
        "without them, but speculative decoding with them is not possible",
        "copy their tensors from the original model, or convert with `--without mtp`, so that the "
        "config states 0 of these layers",
    ),
    "different_models": Cause(
        "MODEL and OTHER are different models: their families or sizes differ, or their values are "
        "unrelated",
        "check that `--against` is the path of the original of this model",
        of_both=True,
    ),
    "renamed": Cause(
        "the tensors of MODEL and OTHER have different names",
        "rename the tensors: `weightctl convert MODEL OUT --rename 'REGEX=NEW'`",
        of_both=True,
    ),
    "one_rank": Cause(
        "MODEL or OTHER is the file of a single rank of a sharded checkpoint",
        "verify the directory of the sharded checkpoint, which contains manifest.json, or merge "
        "its files first: `weightctl shard --gather DIR OUT`",
        of_both=True,
    ),
    "training_steps": Cause(
        "nearly all tensors differ by similar small amounts, as they do after more training steps",
        "to list the differences without reporting problems, use `--compare`; if MODEL should be "
        "identical to OTHER, download it again",
        of_both=True,
    ),
}


def is_of_both(name: str) -> bool:
    """Whether the cause is about both checkpoints as a whole; false for names not in `CAUSES`."""
    return name in CAUSES and CAUSES[name].of_both
