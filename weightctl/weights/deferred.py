"""Data that is not loaded: read on first use, or only declared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from weightctl.dtype import Encoding
    from weightctl.weights.buffer import Buffer
    from weightctl.weights.source import Source


class Deferred:
    """A tensor of a source, read and converted to an encoding on first use."""

    __slots__ = ("_buffer", "_encoding", "_name", "_source")

    def __init__(self, source: Source, name: str, encoding: Encoding) -> None:
        self._source = source
        self._name = name
        self._encoding = encoding
        self._buffer: Buffer | None = None

    def to_buffer(self) -> Buffer:
        """Return the elements, or the bytes of blocks; each call returns the same `Buffer`.

        Raises `EncodingError` if the encoding cannot hold a value.
        """
        if self._buffer is None:
            self._buffer = self._make_buffer()
        return self._buffer

    def _make_buffer(self) -> Buffer:
        from weightctl.weights.conversion import convert_bytes, drops_fractions
        from weightctl.weights.data import WeightData  # imports this module

        data = self._source.data(self._name)
        if data.info.encoding == self._encoding:
            return data.to_buffer()
        whole = self._encoding.dtype
        if whole is not None and drops_fractions(data.info.encoding, self._encoding):
            return data.astype(whole).to_buffer()
        memory = convert_bytes(data.info, data.view(), self._encoding)
        info = data.info._replace(encoding=self._encoding)
        return WeightData.stored(info, memory).to_buffer()

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> NDArray[Any]:
        return self.to_buffer().__array__(dtype, copy)

    def __dlpack__(self, **options: Any) -> Any:
        return self.to_buffer().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        from weightctl.weights.dlpack import CPU

        return CPU


class Assembled(Deferred):
    """A tensor that no file stores in this form; its bytes are assembled on first use.

    Its source provides it only through `read_into`.
    """

    __slots__ = ()

    def __init__(self, source: Source, name: str) -> None:
        super().__init__(source, name, source.header.tensors[name].encoding)

    def _make_buffer(self) -> Buffer:
        from weightctl.weights.data import WeightData

        info = self._source.header.tensors[self._name]
        memory = memoryview(bytearray(info.nbytes))
        self._source.read_into(self._name, 0, memory)
        return WeightData.stored(info, memory).to_buffer()


class Absent:
    """The placeholder for the data of a declared tensor."""

    __slots__ = ()

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("this tensor was declared without data; load a checkpoint first")

    def __dlpack_device__(self) -> tuple[int, int]:
        from weightctl.weights.dlpack import CPU

        return CPU
