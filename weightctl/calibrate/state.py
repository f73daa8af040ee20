"""The state of an unfinished run, in a directory beside the output.

It has the hidden states of all chunks before the next layer, and the sums of the layers so far:
squares, and in a file for each, products.
After each layer, its files are synchronized and then `state.json` is replaced, so a run that is
killed at any time continues with the layer that it was at.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import numpy as np

from weightctl.errors import OutputError
from weightctl.formats.imatrix.sums import ColumnSums
from weightctl.storage.base import cannot_write
from weightctl.system.files import open_file, read_into_at, sync, sync_directory, write_all_at
from weightctl.system.processes import defer_signals
from weightctl.system.temporary import temporary_name, token_of
from weightctl.text.untyped import is_object
from weightctl.write.locks import (
    clear_leftovers,
    entrance,
    find_leftovers,
    lock_path,
    refuse_other_runs,
    remove_path,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    from weightctl.codecs.base import F32

_STATE, _NEW = "state.json", "state.json.new"


class RunState:
    """The directory of a run: how many layers are done, and their results.

    `layer` is the number of the next layer. `shape` is that of the hidden states of one chunk.
    `products` has the path of the file with the products of each tensor; tensors can share one.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.layer = 0
        self.shape: tuple[int, ...] = ()
        self._products: dict[str, int] = {}
        self._read_from = self._write_to = -1
        self._load()

    def _load(self) -> None:
        try:
            with open(os.path.join(self.path, _STATE), "rb") as file:
                content = json.load(file)
            if is_object(content):
                self.layer, self.shape = int(content["layer"]), tuple(content["shape"])
                products = content["products"]
                self._products = {name: int(products[name]) for name in products}
        except (OSError, ValueError, KeyError, TypeError):
            self.layer, self.shape, self._products = 0, (), {}

    def begin(self) -> None:
        """Open the files for the next layer: hidden states are read from one and written to one."""
        self.close()
        self._read_from = self._open(self.layer)
        self._write_to = self._open(self.layer + 1)

    def _open(self, layer: int) -> int:
        # Two files take turns, so that the input of a layer stays until the layer is done.
        path = os.path.join(self.path, f"hidden-{layer % 2}")
        try:
            return open_file(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise cannot_write(path, error) from error

    def put_first(self, chunk: int, x: F32) -> None:
        """Write the input of the first layer for the chunks from `chunk` on."""
        self.shape = x.shape[1:]
        self._write(self._read_from, chunk, x)

    def put(self, chunk: int, x: F32) -> None:
        """Write the output of the current layer for the chunks from `chunk` on."""
        self._write(self._write_to, chunk, x)

    def _write(self, descriptor: int, chunk: int, x: F32) -> None:
        if x.shape[1:] != self.shape:
            raise ValueError(f"the layer changes the shape {self.shape} to {x.shape[1:]}")
        raw = np.ascontiguousarray(x, np.float32).reshape(-1).view(np.uint8).data
        offset = chunk * self._chunk_bytes
        try:
            write_all_at(descriptor, raw, offset)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def get(self, chunk: int, count: int) -> F32:
        """Return the input of the current layer, [count, ...]."""
        made = np.empty((count, *self.shape), np.float32)
        raw, offset = made.reshape(-1).view(np.uint8).data, chunk * self._chunk_bytes
        while raw:
            taken = read_into_at(self._read_from, raw, offset)
            if not taken:
                raise OutputError(f"{self.path} was changed during the run", hint="run it again")
            raw, offset = raw[taken:], offset + taken
        return made

    @property
    def _chunk_bytes(self) -> int:
        return 4 * int(np.prod(self.shape))

    @property
    def products(self) -> dict[str, str]:
        return {name: self._products_path(number) for name, number in self._products.items()}

    def _products_path(self, number: int) -> str:
        return os.path.join(self.path, f"products-{number}")

    def put_products(self, names: Iterable[str], parts: Iterable[F32]) -> None:
        """Write the products of tensors; they are recorded with the current layer."""
        number = max(self._products.values(), default=-1) + 1
        path = self._products_path(number)
        try:
            with open(path, "wb") as file:
                file.writelines(np.asarray(part, "<f4").data for part in parts)
                file.flush()
                sync(file.fileno())
        except OSError as error:
            raise cannot_write(path, error) from error
        self._products |= dict.fromkeys(names, number)

    def finish_layer(self, sums: Mapping[str, ColumnSums]) -> None:
        """Record that the current layer is done, with its sums, and open the next one's files."""
        arrays = {
            f"{name}/{part}": array
            for name, each in sums.items()
            for part, array in zip(("squares", "counts"), each, strict=True)
        }
        path = os.path.join(self.path, f"sums-{self.layer}.npz")
        try:
            with open(path, "wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]  # names cannot be its options
                file.flush()
                sync(file.fileno())
            sync(self._write_to)
            with open(os.path.join(self.path, _NEW), "w", encoding="utf-8") as text:
                done = {"layer": self.layer + 1, "shape": self.shape, "products": self._products}
                json.dump(done, text)
                text.flush()
                sync(text.fileno())
            os.replace(os.path.join(self.path, _NEW), os.path.join(self.path, _STATE))
        except OSError as error:
            raise cannot_write(path, error) from error
        sync_directory(self.path)
        self.layer += 1
        self.begin()

    def sums(self) -> dict[str, ColumnSums]:
        """Return the sums of all layers that are done."""
        made: dict[str, ColumnSums] = {}
        for layer in range(self.layer):
            with np.load(os.path.join(self.path, f"sums-{layer}.npz")) as stored:
                for key in stored.files:
                    name, part = key.rsplit("/", 1)
                    if part == "squares":
                        made[name] = ColumnSums(stored[key], stored[f"{name}/counts"])
        return made

    def close(self) -> None:
        for descriptor in (self._read_from, self._write_to):
            if descriptor >= 0:
                os.close(descriptor)
        self._read_from = self._write_to = -1


@contextmanager
def hold_state(out: str, identity: str) -> Generator[tuple[RunState, bool], None, None]:
    """Lock the state of runs that write `out`, and yield it.

    `identity` is hexadecimal, and differs for runs with another input. The second value is whether
    the state of such a run was removed. The directory is removed at the end. After an error or
    Ctrl-C, it stays if a layer is done. Raises `OutputError` if another run writes the output, or
    if the directory cannot be written.
    """
    token = identity[:8]
    path, lock = temporary_name(out, token), -1
    state: RunState | None = None
    try:
        with entrance(os.path.dirname(out)):
            refuse_other_runs(out)
            left = [each for each in find_leftovers(out) if token_of(each) != token]
            was_other = any(os.path.exists(os.path.join(each, _STATE)) for each in left)
            clear_leftovers(out, None, {token})
            try:
                with suppress(FileExistsError):
                    os.mkdir(path)
                lock = lock_path(path)
            except OSError as error:
                raise cannot_write(path, error) from error
        state = RunState(path)
        state.begin()
        yield state, was_other
    except BaseException:
        with defer_signals():
            if lock >= 0 and (state is None or not state.layer):
                _remove(path)
        raise
    else:
        with defer_signals():
            _remove(path)
    finally:
        with defer_signals():
            if state is not None:
                state.close()
            if lock >= 0:
                os.close(lock)


def _remove(path: str) -> None:
    with suppress(OSError):
        remove_path(path)
