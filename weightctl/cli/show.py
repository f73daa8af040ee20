"""`weightctl show`: the values of a tensor."""

from __future__ import annotations

import os
from functools import cache, partial
from io import BytesIO
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weightctl.cli import options
from weightctl.cli.costs import show_document
from weightctl.cli.render import columns, is_terminal, show_lines, show_notes, show_table, show_text
from weightctl.errors import WeightctlError
from weightctl.formats.open.opening import open_weights
from weightctl.inspection.contents import Contents
from weightctl.text.columns import Cell, make_shape_cells, shape_text
from weightctl.text.patterns import PATTERN, select_names
from weightctl.text.wording import pluralize
from weightctl.weights.nodes import natural
from weightctl.weights.tree import header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo
    from weightctl.weights.tree import Checkpoint

# The columns of a line if stdout is not a terminal.
_WIDTH = 100
# Arrays with more values are abbreviated.
_MOST_PRINTED = 128

app = typer.Typer(add_completion=False)


@app.command()
def show(
    *,
    path: options.Path,
    name: Annotated[str, typer.Argument(autocompletion=options.complete_tensor_names)],
    index: Annotated[str, typer.Argument(show_default=False)] = "",
    npy: options.OutputFile = None,
    force: options.Force = False,
    anonymous: options.Anonymous = False,
    as_json: options.Json = False,
    source_format: options.From = None,
    quiet: options.Quiet = False,
) -> None:
    """Print the values of a tensor as NumPy does, or of all tensors that a pattern matches.

    Quantized weights are decoded. Values of types that NumPy does not have, such as bfloat16, are
    printed as float32. Long arrays are abbreviated, except with --json and --npy.
    """
    del anonymous  # its callback has taken effect
    weights = open_weights(path, source_format)
    contents = Contents(weights)
    show_notes(header_of(weights).notes, quiet=quiet)
    if npy is not None:
        from weightctl.write.targets import check_new_file

        check_new_file(npy, "--npy", header_of(weights).files, force=force)
    from weightctl.values import parse_selection, read_selection

    names = _list_names(contents, name)
    decoded = cache(partial(_decode, contents))
    if npy is not None and len(names) > 1:
        raise WeightctlError(
            f"{len(names)} tensors match `{name}`, and --npy writes one",
            hint=f"`weightctl convert {path} tensors.npz --include '{name}'` writes several",
        )
    for each in names:
        tensor = _find_tensor(contents, each, decoded)
        values = read_selection(tensor, parse_selection(index, tensor.info.shape))
        if npy is not None:
            _write_npy(npy, values, force=force)
        if as_json:
            show_document(_document(path, tensor.info, values, with_values=npy is None))
        elif npy is None:
            if not quiet:
                show_table([[Cell(tensor.info.name, "bold"), *_describe(tensor.info)]])
            show_text(_format_values(values) + "\n")
        elif not quiet:
            show_lines([[Cell(f"{npy}: {shape_text(values.shape)} {values.dtype}")]])


def _list_names(contents: Contents, name: str) -> list[str]:
    """Return the tensors that a pattern matches; the text itself, if it is not a pattern."""
    known = {*contents.entries, *contents.tensors, *contents.aliases}
    if name in known or not PATTERN.intersection(name):
        return [name]
    found = select_names(contents.entries, [name]) or select_names(known, [name])
    if not found:
        raise WeightctlError(
            f"no tensor matches `{name}`", hint="`weightctl ls --flat` lists the names"
        )
    return sorted(found, key=natural)


def _describe(info: TensorInfo) -> tuple[Cell, Cell]:
    return make_shape_cells(info.shape, info.encoding.name)


def _decode(contents: Contents) -> Checkpoint:
    """Return a tree with the weights that schemes store in several tensors."""
    from weightctl.schemes.dequantize import dequantize_weights

    return dequantize_weights(contents.weights, in_blocks=False, keeps_shapes=True)


def _find_tensor(
    contents: Contents, name: str, decoded: Callable[[], Checkpoint]
) -> ReadableTensor:
    """Return a tensor, also if it is stored in several tensors or has several names.

    Raises `WeightctlError` if there is none of this name, or its encoding is not supported.
    """
    from weightctl.weights.derived import tensor_of
    from weightctl.weights.readable import refuse_unknown

    weights = contents.weights
    if name not in contents.tensors and name not in contents.aliases:
        weights = decoded()
    header = header_of(weights)
    found = header.aliases.get(name, name)
    if found not in header.tensors:
        from difflib import get_close_matches

        near = get_close_matches(name, [*contents.entries, *contents.tensors], 1)
        hint = f"did you mean `{near[0]}`? " if near else ""
        if within := [each for each in contents.entries if name in each]:
            hint = f"`*{name}*` matches {pluralize(len(within), 'tensor')}; "
        raise WeightctlError(
            f"there is no tensor `{name}`", hint=f"{hint}`weightctl ls --flat` lists the names"
        )
    refuse_unknown([header.tensors[found]])
    return tensor_of(source_of(weights), found)


def _write_npy(path: str, values: NDArray[Any], *, force: bool) -> None:
    import numpy as np

    from weightctl.write.partial import write_files

    content = BytesIO()
    np.save(content, values, allow_pickle=False)
    write_files({os.path.realpath(path): content.getvalue()}, force=force)


def _format_values(values: NDArray[Any]) -> str:
    import numpy as np

    room = columns() if is_terminal() else _WIDTH
    return np.array2string(values, max_line_width=room, threshold=_MOST_PRINTED)


def _document(
    path: str, info: TensorInfo, values: NDArray[Any], *, with_values: bool
) -> dict[str, Any]:
    """Return the selected values as JSON; those that are not finite are null."""
    return {
        "path": path,
        "name": info.name,
        "shape": info.shape,
        "encoding": info.encoding.name,
        "selected": values.shape,
        "values": _as_lists(values) if with_values else None,
    }


def _as_lists(values: NDArray[Any]) -> Any:
    import numpy as np

    if values.dtype.kind == "c":
        values = np.stack([np.real(values), np.imag(values)], axis=-1)
    return values.tolist()
