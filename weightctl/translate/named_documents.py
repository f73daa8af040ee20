"""A config and a tokenizer that are named, for tensors that have none beside them."""

from __future__ import annotations

import os
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

from weightctl.errors import ArchitectureError, ArgumentTypeError, ConversionError
from weightctl.families.model import ARCHITECTURE
from weightctl.formats.huggingface import CONFIG
from weightctl.plan.rename import rename_all
from weightctl.storage.files import is_directory, is_file, locate_model
from weightctl.system.files import SEPARATORS
from weightctl.text.wording import join_names
from weightctl.weights.derived import Derived, tensor_of
from weightctl.weights.info import TOKENIZER_FILES, Documents
from weightctl.weights.tree import Checkpoint, header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Sequence

# The names of modules that torch puts around others: `torch.compile`, FSDP, and checkpoints of
# activations.
_OF_TORCH = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
# The number of outer names that are removed at most, such as `module` and `model`.
_MOST_OUTER = 3


def name_documents(
    weights: Checkpoint,
    config: str | os.PathLike[str] | None,
    tokenizer: str | os.PathLike[str] | None,
) -> Checkpoint:
    """Return a tree that is described by the config and the tokenizer in other directories.

    Each is the path of a directory, or of a file in it. Raises `ArgumentTypeError` if it is not,
    and `ConversionError` if a directory does not have them, or if the tree is a GGUF file, which
    states them itself.
    """
    if config is None and tokenizer is None:
        return weights
    _require_path("config", config)
    _require_path("tokenizer", tokenizer)
    header = header_of(weights)
    if weights.name:
        raise ConversionError(
            f"config and tokenizer need a whole checkpoint, but `{weights.name}` is a part of one",
            hint="convert the root of the tree, with include",
        )
    if ARCHITECTURE in header.metadata:
        raise ConversionError(
            "--config and --tokenizer (config and tokenizer in Python) apply to tensors with "
            "Hugging Face's names, but the input states its own config and tokenizer",
            hint="leave them out; to change single keys, use --set (metadata in Python)",
        )
    documents = Documents(
        "" if config is None else find_directory(os.fspath(config), [CONFIG], "config"),
        "" if tokenizer is None
        else find_directory(os.fspath(tokenizer), TOKENIZER_FILES, "tokenizer"),
    )  # fmt: skip
    return describe_by(documents, weights)


def describe_by(documents: Documents, weights: Checkpoint) -> Checkpoint:
    """Return a tree that is described by the documents in these directories."""
    source, header = source_of(weights), header_of(weights)
    tensors = {name: tensor_of(source, name) for name in header.tensors}
    made = Derived(source, tensors, header.metadata, header.aliases, documents=documents)
    return Checkpoint(made)


def _require_path(name: str, given: object) -> None:
    if not isinstance(given, str | os.PathLike | None):
        raise ArgumentTypeError(
            f"{name} is a path, not a {type(given).__name__}",
            hint="`weightctl.to_gguf(model, OUT, tokenizer=...)` and `to_directory` take a "
            "model of transformers with its tokenizer",
        )


def find_directory(given: str, names: Sequence[str], what: str) -> str:
    """Return the directory with one of the files `names`, or that of such a file."""
    path = locate_model(given).rstrip(SEPARATORS) or "/"
    if is_file(path) and os.path.basename(path) in names:
        return os.path.dirname(path) or "."
    if is_directory(path) and any(is_file(os.path.join(path, name)) for name in names):
        return path
    raise ConversionError(
        f"{given} is not a directory with {join_names(names, 3)}, or such a file",
        hint=f"--{what} ({what} in Python) takes a model directory of Hugging Face, or the file in "
        "it",
    )


def remove_wrappers(weights: Checkpoint) -> Checkpoint:
    """Return a tree without the prefixes that training programs add to a model's names.

    These are what most names begin with, such as `module.` or `model.`, if more tensors are then
    those that the config describes, and the names of torch's wrappers anywhere. A note states what
    is removed.
    """
    header = header_of(weights)
    names = [*header.tensors, *header.aliases]
    parts_of = {name: name.split(".") for name in names}
    wrappers = sorted(_OF_TORCH.intersection(chain.from_iterable(parts_of.values())))
    plain = {
        name: tuple(each for each in parts if each not in _OF_TORCH)
        for name, parts in parts_of.items()
    }
    best, fewest = weights, None
    for depth in range(_MOST_OUTER + 1):
        begins = Counter(parts[:depth] for parts in plain.values() if len(parts) > depth)
        outer, count = begins.most_common(1)[0] if begins else ((), 0)
        made = {
            name: ".".join(parts[depth:] if parts[:depth] == outer else parts)
            for name, parts in plain.items()
        }
        if count <= len(names) / 2 or len({*made.values()}) < len(made):
            break
        removed = [f"`{each}.`" for each in (*([".".join(outer)] if outer else ()), *wrappers)]
        note = f"removed from the names of tensors: {', '.join(removed)}"
        tree = rename_all(weights, made, (note,)) if removed else weights
        problems = _count_problems(tree)
        if problems is None:
            return weights  # the conversion reports the error in the config
        if fewest is None or problems < fewest:
            best, fewest = tree, problems
    return best


def _count_problems(weights: Checkpoint) -> int | None:
    """Return the number of missing and unexpected tensors; None if the config is not supported."""
    from weightctl.families import recognize

    try:
        found = recognize(weights)
    except ArchitectureError:
        return None
    return len(found.missing) + len(found.unexpected)
