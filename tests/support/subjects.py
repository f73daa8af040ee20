"""Small models on disk, as transformers saves them, ready to be verified."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file

import small_models
from weightctl.verify import Request, Result, Subject, verify
from weightctl.verify.figures import ForwardFigures

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Arrays = small_models.Arrays


def saved(
    directory: Path,
    model: Any,
    tokenizer: Any = None,
    change: Callable[[Arrays], object] | None = None,
    **config: Any,
) -> Subject:
    """Write a model, its tensors changed, and its config, and its tokenizer where there is one."""
    arrays = {name: array.copy() for name, array in small_models.arrays(model).items()}
    if change is not None:
        change(arrays)
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    save_file(contiguous, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(model.config.to_dict() | config))
    if tokenizer is not None:
        tokenizer.save_pretrained(directory)
    return Subject(directory)


def forward(subject: Subject, **request: Any) -> tuple[Result, ForwardFigures]:
    """Return what the check `forward` finds, and its figures."""
    report = verify(Request(subject=subject, **request), ["forward"])
    figures = report.figures(ForwardFigures)
    assert figures is not None
    return report.results["forward"], figures
