"""Advice on what to do next about what is wrong with a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weightctl.verify.results import Report

__all__ = ["list_remedies"]

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

# By the name of the cause.
_REMEDIES = {
    "rope_rows": _CONVERT,
    "transposed": _CONVERT,
    "norm_offset": _CONVERT,
    "bias_dropped": _CONVERT,
    "output_forgotten": _CONVERT,
    "tied": _CONVERT,
    "scaled": _CONVERT,
    "parts_exchanged": _CONVERT,
    "byte_order": (
        "fetch the file again, or convert the original again with a reader that knows its byte "
        "order"
    ),
    "wrong_dtype": (
        "convert the original model again, or correct the dtype that the header says: the bits are "
        "all there"
    ),
    "rolled": _CONVERT,
    "permuted": _CONVERT,
    "heads_exchanged": _CONVERT,
    "gate_and_up_interleaved": _CONVERT,
    "clipped": (
        "take the original: numbers that were clipped do not come back; leave the clipping out of "
        "the conversion"
    ),
    "low_rank": (
        "compare with the model that the adapter was merged into, or leave the merge out: the "
        "difference is an adapter, and is not damage"
    ),
    "units_permuted": _SAME,
    "heads_permuted": _SAME,
    "experts_permuted": _SAME,
    "gate_and_up_swapped": _RENAME,
    "key_and_value_swapped": _RENAME,
    "query_and_key_swapped": _RENAME,
    "query_and_output_swapped": _RENAME,
    "layers_exchanged": _RENAME,
    "expert_order": _RENAME,
    "norms_exchanged": _RENAME,
    "expert_copied": _FETCH,
    "zeroed": _FETCH,
    "rows_lost": _FETCH,
    "shifted": _FETCH,
    "flipped": _FETCH,
    "scale": _FETCH,
    "config": _SET,
    "dequantized": (
        "take the original for the numbers of full precision: what was made of a quantized file is "
        "as good as that one, and larger"
    ),
    "different_models": (
        "compare with the original of this model: is `--against` the right path? Two models that "
        "differ cannot be told from a damaged one"
    ),
}
_AGAIN = (
    "fetch the file again, or convert the original again; `weightctl diff A B --hash` says whether "
    "it is the one that was published"
)
# By the check, of problems without a cause that is known.
_OF_CHECKS = {
    "structure": (
        "fetch or make the file anew; where its numbers can be read, `weightctl convert IN OUT` "
        "writes them as other readers take them"
    ),
    "finite": _AGAIN,
    "names": (
        "compare the names with those of the original, `weightctl diff ORIGINAL A`; `weightctl "
        "convert IN OUT --rename FILE` corrects them, or the config is that of another model"
    ),
    "metadata": (
        "take the tokenizer's files and the config from the original, or convert it again: "
        "`weightctl convert ORIGINAL OUT`; in a GGUF, `--set KEY=VALUE` corrects a single key"
    ),
    "values": _AGAIN,
}
_COMPARE = (
    "`--against ORIGINAL` compares with a checkpoint that is known to be good, and names the "
    "tensor that is wrong, and often why"
)


def list_remedies(report: Report) -> list[str]:
    """Return what to do next, each piece of advice once, in the order of the problems."""
    found: list[str] = []
    for problem in report.problems:
        if problem.cause is not None:
            found.append(_REMEDIES.get(problem.cause.name, ""))
        elif not problem.hint:
            found.append(_OF_CHECKS.get(problem.check, ""))
    advice = [each for each in dict.fromkeys(found) if each]
    # Where the model does not work, and nothing that was found says why.
    if report.reference is None and not advice and any(not each.hint for each in report.problems):
        advice.append(_COMPARE)
    return advice
