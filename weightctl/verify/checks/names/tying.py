"""Checks whether the output and the embedding are one tensor, as the config states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.errors import ArchitectureError
from weightctl.families.matching import EMBEDDING_WEIGHT, OUTPUT_WEIGHT
from weightctl.translate.copies import check_copies, is_same
from weightctl.verify.results import Explanation, Problem
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from weightctl.families import RecognizedModel

__all__ = ["blame_forgotten_output", "check_tied", "note_tying"]


def check_tied(checkpoint: RecognizedModel) -> list[Problem]:
    """Return a problem if a separate output differs from the embedding it should be tied to."""
    if EMBEDDING_WEIGHT not in checkpoint.tensors:
        return []
    try:
        check_copies(checkpoint)
    except ArchitectureError as error:
        _, name, text = error.message.split("`", 2)
        cause = Explanation(
            "tied", f"{checkpoint.where} ties the output to the embedding: {error.hint}"
        )
        return [Problem(where=name, text=text.strip(), cause=cause)]
    return []


def blame_forgotten_output(checkpoint: RecognizedModel) -> Explanation:
    """Return the cause of a missing output that is not tied to the embedding."""
    return Explanation(
        "output_forgotten",
        f"{checkpoint.where} does not tie the output to the embedding, so that the model "
        "needs its own output, which was not written; if the model is tied, set "
        "`tie_word_embeddings` to true there",
    )


def note_tying(checkpoint: RecognizedModel) -> list[str]:
    """Return notes on an output that is tied to the embedding or equal to it."""
    family, convention = checkpoint.family, checkpoint.convention
    names = (each.name(convention) for each in family.copies(checkpoint.config))
    tied = [name for name in names if name is not None]
    embedding, output = (checkpoint.tensors.get(name) for name in (EMBEDDING_WEIGHT, OUTPUT_WEIGHT))
    if output is not None and embedding is not None and is_same(output, embedding):
        name = output.info.name
        return [f"`{name}` is equal to the embedding; if the model is tied, it need not be stored"]
    if convention == "gguf" and tied:
        return [
            f"there is no `{tied[0]}`: the embedding is also the output matrix (tied embeddings)"
        ]
    plain = {family.plain(name) for name in tied}
    stored = [name for name in header_of(checkpoint.tree).tensors if family.plain(name) in plain]
    return [f"`{name}` is stored although it is tied to the embedding" for name in stored]
