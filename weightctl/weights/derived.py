"""Tensors that steps compute from the tensors of a source, one byte range at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from weightctl.weights.info import Documents, Extent, Header, Origin, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.codecs.loss import Loss
    from weightctl.dtype import Encoding
    from weightctl.storage.base import FileRange, Reader
    from weightctl.weights.data import Source, WeightData
    from weightctl.weights.info import Leaf
    from weightctl.weights.metadata import MetadataValue


class ReadableTensor(Protocol):
    """A tensor whose bytes can be read."""

    @property
    def info(self) -> TensorInfo:
        """The name, logical shape and encoding."""
        ...

    @property
    def origin(self) -> Origin:
        """The stored tensors that it is computed from, and the steps."""
        ...

    def read_into(self, start: int, buffer: memoryview, /) -> Loss | None:
        """Fill `buffer` with the bytes from `start`; both ends are on block boundaries.

        Returns the rounding error of the values, if they are rounded here.
        """
        ...

    def file_range(self) -> FileRange | None:
        """The range of a file with the same bytes as `read_into` returns; None if there is none."""
        ...


class Step(Protocol):
    """The computation of a tensor from other tensors.

    A step reads little more than the requested byte range needs. Several threads call it at the
    same time, for ranges that begin and end on block boundaries. Its `str` describes it to users,
    such as `transposed`; it is empty if the encodings already show the change.
    """

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape and encoding of the result; raises `ConversionError` if impossible."""
        ...

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> Loss | None:
        """Fill `buffer` with the bytes of the result from `start`.

        Returns the rounding error of the values, if the step rounds.
        """
        ...


class StoredTensor(NamedTuple):
    """A tensor of a source, as the source has it."""

    source: Source
    name: str

    @property
    def info(self) -> TensorInfo:
        """The description in the source's header."""
        return self.source.header.tensors[self.name]

    @property
    def origin(self) -> Origin:
        """The origin that the source's header has; else the tensor itself."""
        return self.source.header.origins.get(self.name, Origin((self.info,), ()))

    def read_into(self, start: int, buffer: memoryview, /) -> Loss | None:
        """Fill `buffer` with the tensor's bytes from `start`."""
        return self.source.read_into(self.name, start, buffer)

    def file_range(self) -> FileRange | None:
        """Return the range of a file with the tensor's bytes; None if there is none."""
        return self.source.file_range(self.name)


class DerivedTensor:
    """A tensor that a step computes from other tensors.

    Raises `ConversionError` if the step does not support them.
    """

    __slots__ = ("_info", "_inputs", "_step")

    def __init__(self, name: str, step: Step, inputs: Sequence[ReadableTensor]) -> None:
        self._step = step
        self._inputs = tuple(inputs)
        self._info = TensorInfo(name, *step.infer([each.info for each in self._inputs]))

    @property
    def info(self) -> TensorInfo:
        """The name, and the shape and encoding from the step."""
        return self._info

    @property
    def step(self) -> Step:
        """The step that computes the tensor."""
        return self._step

    @property
    def inputs(self) -> tuple[ReadableTensor, ...]:
        """The tensors that the step computes it from."""
        return self._inputs

    @property
    def origin(self) -> Origin:
        """The stored tensors of all inputs, and all steps in order, each once."""
        below = [each.origin for each in self._inputs]
        sources = dict.fromkeys(info for origin in below for info in origin.sources)
        steps = dict.fromkeys(step for origin in below for step in origin.steps)
        return Origin(tuple(sources), (*steps, *filter(None, [str(self._step)])))

    def read_into(self, start: int, buffer: memoryview, /) -> Loss | None:
        """Compute the tensor's bytes from `start`; return the rounding error of the step."""
        return self._step.read_into(self._inputs, start, buffer) if buffer.nbytes else None

    def file_range(self) -> None:
        """Return None: the tensor is not in a file."""


class Derived:
    """A source whose tensors are taken or computed from another source.

    `tensors` are by their new names, `aliases` are further names of these, and `metadata` replaces
    that of the other source. `notes` are added to the other's. `leaves` and `documents` replace the
    other's if given. The rest of the header, such as the files, is that of the other source.
    """

    def __init__(
        self,
        base: Source,
        tensors: Mapping[str, ReadableTensor],
        metadata: Mapping[str, MetadataValue],
        aliases: Mapping[str, str] | None = None,
        notes: tuple[str, ...] = (),
        *,
        leaves: Mapping[str, Leaf] | None = None,
        documents: Documents | None = None,
    ) -> None:
        self._base = base
        self._tensors = tensors
        infos = {name: each.info._replace(name=name) for name, each in tensors.items()}
        self._header = base.header._replace(
            tensors=infos,
            extents={name: Extent(0, 0, info.nbytes) for name, info in infos.items()},
            metadata=metadata,
            aliases=dict(aliases or {}),
            leaves=base.header.leaves if leaves is None else leaves,
            alignment=1,
            big_endian=False,
            notes=(*base.header.notes, *notes),
            origins={name: each.origin for name, each in tensors.items()},
            shardings={},
            documents=documents or base.header.documents,
        )

    @property
    def header(self) -> Header:
        """The header; its files are those of the other source."""
        return self._header

    @property
    def files(self) -> Sequence[Reader]:
        """The open files of the other source."""
        return self._base.files

    def data(self, name: str) -> WeightData:
        """Return a tensor's data, which is computed on first use."""
        from weightctl.weights.data import Assembled, WeightData

        return WeightData.of(self._header.tensors[name], Assembled(self, name))

    def read_into(self, name: str, start: int, buffer: memoryview) -> Loss | None:
        """Compute a tensor's bytes from `start`; return the rounding error of its last step."""
        return self._tensors[name].read_into(start, buffer)

    def file_range(self, name: str, /) -> FileRange | None:
        """Return the range of a file with the tensor's bytes; None if the tensor is computed."""
        return self._tensors[name].file_range()

    def tensor(self, name: str) -> ReadableTensor:
        """Return a tensor as it is taken from, or computed from, the other source."""
        return self._tensors[name]

    def find_derived(self, name: str) -> DerivedTensor | None:
        """Return a tensor with the step that computes it; None if the other source has it."""
        found = self._tensors[name]
        return found if isinstance(found, DerivedTensor) else None

    def refuse_change(self) -> None:
        """Raise `FormatError` if a file was changed after it was opened."""
        self._base.refuse_change()


class Combined:
    """The tensors and files of two sources; the rest of the header is that of the first one.

    A name that both have is that of the first one's tensor.
    """

    def __init__(self, first: Source, second: Source) -> None:
        self._first, self._second = first, second
        one, other = first.header, second.header
        self._header = one._replace(
            files=(*one.files, *other.files),
            tensors={**other.tensors, **one.tensors},
            extents={
                name: extent._replace(file=extent.file + len(one.files))
                for name, extent in other.extents.items()
            }
            | dict(one.extents),
            origins={**other.origins, **one.origins},
            notes=(*one.notes, *other.notes),
            warnings=(*one.warnings, *other.warnings),
        )

    @property
    def header(self) -> Header:
        """The header, with the files and tensors of both sources."""
        return self._header

    @property
    def files(self) -> Sequence[Reader]:
        """The open files of both sources."""
        return (*self._first.files, *self._second.files)

    def data(self, name: str) -> WeightData:
        return self._source(name).data(name)

    def read_into(self, name: str, start: int, buffer: memoryview) -> Loss | None:
        """Fill `buffer` with a tensor's bytes from `start`."""
        return self._source(name).read_into(name, start, buffer)

    def file_range(self, name: str, /) -> FileRange | None:
        """Return the range of a file with the tensor's bytes; None if there is none."""
        return self._source(name).file_range(name)

    def refuse_change(self) -> None:
        """Raise `FormatError` if a file was changed after it was opened."""
        self._first.refuse_change()
        self._second.refuse_change()

    def _source(self, name: str) -> Source:
        return self._first if name in self._first.header.tensors else self._second


def tensor_of(source: Source, name: str) -> ReadableTensor:
    """Return a tensor of a source; `name` can also be that of a tied tensor."""
    return StoredTensor(source, source.header.aliases.get(name, name))
