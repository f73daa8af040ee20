"""The files that a plan makes, and what stands in their way."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from weightctl.errors import ConversionError, OutputError
from weightctl.formats.base import is_text
from weightctl.formats.huggingface import companions, file_name, is_licence
from weightctl.formats.open.index import index_of
from weightctl.system.temporary import without_temporary
from weightctl.text.sizes import format_size
from weightctl.weights.readable import refuse_expanded
from weightctl.write.targets import (
    Target,
    check_place,
    refuse_inputs,
    refuse_what_is_there,
    stream_name,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.formats.base import Layout
    from weightctl.plan.plan import Plan
    from weightctl.weights.info import TensorInfo

__all__ = ["Outcome", "describe", "input_files"]


@dataclass(frozen=True, slots=True, repr=False)
class Outcome:
    """The files that a plan makes at a target, by name and known to the byte.

    `index` is the name and content of the file that lists the others, where there is one; `carried`
    are the paths, by name, of what stands beside the source and goes along, and `documents` the
    contents of what is made to stand beside the output. `inputs` are never written, nor are the
    files that the plan has `consulted`, by path what they are.
    """

    where: Target
    parts: Mapping[str, Layout]
    index: tuple[str, bytes] | None
    carried: Mapping[str, str]
    documents: Mapping[str, bytes]
    inputs: tuple[str, ...]
    consulted: Mapping[str, str]

    def __repr__(self) -> str:
        size = format_size(self.nbytes)
        return f"<Outcome at {self.where.path}: {len(self.parts)} files, {size}>"

    @property
    def nbytes(self) -> int:
        """The bytes of the checkpoint's files."""
        listed = len(self.index[1]) if self.index else 0
        return sum(layout.nbytes for layout in self.parts.values()) + listed

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """All tensors in the order of their bytes."""
        return tuple(chain.from_iterable(layout.tensors for layout in self.parts.values()))

    @property
    def names(self) -> list[str]:
        """The names of the checkpoint's files, that which leads to the others first."""
        return [*([self.index[0]] if self.index else ()), *self.parts]

    @property
    def files(self) -> list[str]:
        """The paths of the checkpoint's files in the order of `names`, links followed."""
        if self.where.is_stream:
            return [self.where.path]
        real = os.path.realpath(self.where.path)
        if self.where.file_name is None and len(self.parts) == 1:
            return [real]
        directory = os.path.dirname(real) if self.where.file_name is None else real
        return [os.path.join(directory, name) for name in self.names]

    @property
    def replaced(self) -> list[str]:
        """The files beside the output that readers would take for the same checkpoint.

        They are those of another number of parts; the input may stand there too, and is none.
        """
        real = os.path.realpath(self.where.path)
        directory = os.path.dirname(real)
        if self.where.is_stream or self.where.file_name or not os.path.isdir(directory):
            return []
        own = self.where.pattern()
        known = {*map(os.path.realpath, (*self.inputs, *self.consulted)), *self.files}
        there = (os.path.join(directory, name) for name in sorted(os.listdir(directory))
                 if own.fullmatch(name))  # fmt: skip
        return [path for path in there if os.path.realpath(path) not in known]

    def has_name(self, name: str) -> bool:
        """Whether an output into this directory has, or may have, a file of this name."""
        name = without_temporary(name)
        is_beside = name in self.carried or name in self.documents
        return is_beside or self.where.pattern().fullmatch(name) is not None

    def refuse(self, *, force: bool) -> None:
        """Refuse a target that must not or cannot be written.

        Raises `OutputError`, and `ConversionError` for several files into one pipe.
        """
        if self.where.is_stream:
            if len(self.parts) > 1:
                raise ConversionError(
                    f"{stream_name(self.where.path)} is one pipe, and this would be "
                    f"{len(self.parts)} files",
                    hint="leave out --max-shard-size, or name a file",
                )
            return
        real = os.path.realpath(self.where.path)
        new = self.files if self.where.file_name is None else [real]
        for path in new:
            refuse_inputs(path, self.inputs, self.consulted)
        refuse_what_is_there(new, force=force, is_ours=self.has_name)
        if not force and (rivals := self.replaced):
            raise OutputError(
                f"{rivals[0]} is of another checkpoint of this name, and readers would find both",
                hint="choose another name, or pass --force to replace it",
            )
        nbytes = self.nbytes + sum(os.path.getsize(each) for each in self.carried.values())
        nbytes += sum(map(len, self.documents.values()))
        check_place(os.path.dirname(real), real, nbytes)


def describe(plan: Plan, where: Target) -> Outcome:
    """Return the files that a plan makes, whether or not the target can be written.

    Raises `ConversionError` where the format cannot hold the plan, and `EncodingError` where its
    tensors are far larger than the files of the source.
    """
    sources = plan.source.header.files
    if where.file_name is not None:
        where = where._replace(file_name=file_name(sources, where.file_name))
    layouts = plan.layouts()
    refuse_expanded(plan.source, stored_tensors(plan))
    parts = dict(zip(where.names(len(layouts)), layouts, strict=True))
    index_name = where.index_name if len(parts) > 1 else None
    if index_name is not None and not is_text(index_name):
        raise ConversionError("an index cannot name files that are no UTF-8", hint="rename OUT")
    index = None if index_name is None else (index_name, index_of(parts, plan.tied))
    # What is made anew goes before what stands beside the source.
    is_model = where.file_name is not None
    documents: Mapping[str, bytes] = plan.documents if is_model else {}
    made = {*parts, *documents, index_name}
    beside: Mapping[str, str] = companions(sources) if is_model else {}
    carried = {
        name: path
        for name, path in beside.items()
        if name not in made and (not plan.translation or is_licence(name))
    }
    inputs = tuple(input_files(plan))
    return Outcome(where, parts, index, carried, documents, inputs, plan.consulted)


def stored_tensors(plan: Plan) -> list[TensorInfo]:
    """Return the tensors of the files that a plan reads, each once."""
    return list(dict.fromkeys(info for item in plan.items for info in item.sources))


def input_files(plan: Plan) -> list[str]:
    """Return the paths of the checkpoint that a plan reads, and of what belongs to it."""
    header = plan.source.header
    index = [header.listing] if header.listing else []
    read = [*header.files, *index]
    # Files that are to get their names, see `weightctl.write.replacing`, have or will have them.
    named = [path for path in map(without_temporary, read) if path not in read]
    return [*read, *named, *companions(header.files).values()]
