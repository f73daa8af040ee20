"""The table of causes: what may have gone wrong with a checkpoint, and what to do about it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CAUSES", "Cause"]


class Cause(NamedTuple):
    """A thing that may have gone wrong: a sentence about it, and a remedy, both for people.

    A cause that makes a tensor another than its reference is found in a pair of them. `detector` is
    `(pair, pairing, measured) -> Explanation | None`, and may find several causes of the table.
    `guess` is `(pair, pairing) -> Iterator[Guess]`: it makes the mistake to the reference, which
    counts where the result is the tensor. Both are empty for what a check finds without that.

    With one that `computes_the_same` the model works as the reference does. One `of_the_file` is
    reported once, whatever layers have it. One `of_both` is about both checkpoints as a whole, and
    comes first in a summary. With one that `takes_another` a tensor is in the place of another
    tensor of the model, which no naming convention changes.
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
    "convert the original model again: `weightctl convert ORIGINAL OUT` does every step that its "
    "family needs"
)
_RENAME = (
    "the numbers are there under wrong names: correct the conversion, or `weightctl convert IN OUT "
    "--rename FILE` with rules that give them the right ones"
)
_FETCH = (
    "numbers are lost: fetch or make the file anew; `weightctl diff A B --hash` says whether it is "
    "the one that was published"
)
_SET = (
    "correct the key in config.json; of a GGUF, `weightctl convert IN OUT --set KEY=VALUE` makes a "
    "copy with another value"
)
_SAME = "nothing, for a model that computes the same; leave out --max-rmse where that is enough"

# By the names that scripts know them by, in the order in which detectors are tried and guesses
# made: what is quick and specific first, and guesses that look at all layers last.
CAUSES: dict[str, Cause] = {
    "zeroed": Cause(
        "all numbers of a tensor are 0: they were never written, or were wiped",
        _FETCH,
        detector=f"{_HERE}.damage:find_zeroed",
    ),
    "scale": Cause(
        "the scale of a block is damaged: by which factor",
        _FETCH,
        detector=f"{_HERE}.damage:find_damaged_scale",
    ),
    "rows_lost": Cause(
        "rows of a tensor, or parts of some, were never written, or were wiped: which ones",
        _FETCH,
        detector=f"{_HERE}.damage:find_lost_rows",
    ),
    "scaled": Cause(
        "all numbers of a tensor are a multiple of what they should be: by which factor",
        _CONVERT,
        detector=f"{_HERE}.damage:find_scaled",
    ),
    "byte_order": Cause(
        "the bytes of each number are in reverse",
        "fetch the file again, or convert the original again with a reader that knows its byte "
        "order",
        detector=f"{_HERE}.misread:find_misread",
    ),
    "wrong_dtype": Cause(
        "bits of bfloat16 were read as float16, or the reverse",
        "convert the original model again, or correct the dtype that the header says: the bits are "
        "all there",
        detector=f"{_HERE}.misread:find_misread",
    ),
    "dequantized": Cause(
        "numbers went through an encoding: which one",
        "take the original for the numbers of full precision: what was made of a quantized file is "
        "as good as that one, and larger",
        detector=f"{_HERE}.dequantized:find_dequantized",
        of_the_file=True,
    ),
    "units_permuted": Cause(
        "inner units of an MLP are in another order, the same in all projections, so the model "
        "computes the same",
        _SAME,
        detector=f"{_HERE}.units:find_equivalent_units",
        computes_the_same=True,
    ),
    "heads_permuted": Cause(
        "attention heads are in another order, the same in all projections, so the model computes "
        "the same",
        _SAME,
        detector=f"{_HERE}.heads:find_equivalent_heads",
        computes_the_same=True,
    ),
    "experts_permuted": Cause(
        "experts are in another order, the same in the router, so the model computes the same",
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
        "rows of gate and up are by turns, or were taken apart as if they were",
        _CONVERT,
        guess=f"{_HERE}.interleaved:guess_interleaved",
    ),
    "transposed": Cause(
        "rows and columns are exchanged",
        _CONVERT,
        guess=f"{_HERE}.mistakes:guess_transposed",
    ),
    "norm_offset": Cause(
        "the `1 + w` of Gemma's norms is missing, or was added twice",
        _CONVERT,
        guess=f"{_HERE}.mistakes:guess_norm_offset",
    ),
    "tied": Cause(
        "the output is a copy of the embedding, or is tied to it and differs",
        _CONVERT,
        guess=f"{_HERE}.mistakes:guess_copied_embedding",
        takes_another=True,
    ),
    "norms_exchanged": Cause(
        "a norm is in the place of another",
        _RENAME,
        guess=f"{_HERE}.misplaced:guess_other_norm",
        takes_another=True,
    ),
    "expert_order": Cause(
        "the experts of a layer are in another order, and its router is not",
        _RENAME,
        guess=f"{_HERE}.misplaced:guess_other_expert",
        takes_another=True,
    ),
    "expert_copied": Cause(
        "an expert is a copy of another: of which one",
        _FETCH,
        guess=f"{_HERE}.misplaced:guess_other_expert",
        takes_another=True,
    ),
    "layers_exchanged": Cause(
        "a tensor of another layer is in the place of one: of which layer",
        _RENAME,
        guess=f"{_HERE}.mistakes:guess_other_layer",
        takes_another=True,
    ),
    "shifted": Cause(
        "each row is one place further on, or back",
        _FETCH,
        guess=f"{_HERE}.mistakes:guess_shifted",
    ),
    "heads_exchanged": Cause(
        "attention heads are in another order: which ones",
        _CONVERT,
        detector=f"{_HERE}.heads:find_exchanged_heads",
    ),
    "rolled": Cause(
        "rows or columns are rolled: by how many",
        _CONVERT,
        detector=f"{_HERE}.orders:find_permuted",
    ),
    "permuted": Cause(
        "rows or columns are in another order: which ones",
        _CONVERT,
        detector=f"{_HERE}.orders:find_permuted",
    ),
    "clipped": Cause(
        "numbers were limited to a range: which one, and how many numbers",
        "take the original: numbers that were clipped do not come back; leave the clipping out of "
        "the conversion",
        detector=f"{_HERE}.clipped:find_clipped",
    ),
    "low_rank": Cause(
        "a change of low rank was added, as a LoRA adapter is: which rank",
        "compare with the model that the adapter was merged into, or leave the merge out: the "
        "difference is an adapter, and is not damage",
        detector=f"{_HERE}.low_rank:find_low_rank",
    ),
    "flipped": Cause("a bit of the file has changed", _FETCH),
    "config": Cause("a key of the config differs: both values, or what would fit", _SET),
    "bias_dropped": Cause("biases were left out, or other layers have none", _CONVERT),
    "output_forgotten": Cause("the output was left out, and is not the embedding", _CONVERT),
    "different_models": Cause(
        "A and B are different models: other families, sizes, or values without relation",
        "compare A with its original: check the path that was given to `--against`",
        of_both=True,
    ),
    "renamed": Cause(
        "the tensors of A have other names than those of B",
        "rename the tensors: `weightctl convert A OUT --rename FILE`, with a rule in FILE for each "
        "change",
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
