"""Measures an importance matrix: all chunks pass through one layer after the other."""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.calibrate.chunks import (
    LEAST_CONTEXT,
    cut_chunks,
    read_texts,
    require_tokenizer,
)
from weightctl.calibrate.state import hold_state
from weightctl.device import CPU
from weightctl.engine.products import ProductSums, SquaresObserver
from weightctl.errors import ConversionError, EngineError, OutputError
from weightctl.formats.imatrix import read_entries
from weightctl.formats.imatrix.sums import (
    ColumnSums,
    ImportanceSums,
    read_sums,
    refuse_long_names,
    write_dat,
    write_gguf,
)
from weightctl.formats.sharded.records import fingerprint_source
from weightctl.storage.location import is_remote
from weightctl.system.phases import begin_phase
from weightctl.text.wording import pluralize
from weightctl.verify.run.parts import Running
from weightctl.verify.subject import Subject
from weightctl.weights.tree import header_of, source_of
from weightctl.write.partial import write_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from weightctl.calibrate.state import RunState
    from weightctl.codecs.base import F32
    from weightctl.device import DeviceRef
    from weightctl.families.checkpoint import RecognizedModel
    from weightctl.weights.buffer import Buffer

    Advance = Callable[[str, float], object]
    from collections.abc import Mapping

    from weightctl.families.modules import TensorNames

_OUTPUT = "output.weight"
# llama.cpp multiplies other vectors with these matrices than our modules do: it computes attention
# with latent vectors in place of keys and values. The modules sum the squares of these vectors.
_ABSORBED = (".attn_k_b.weight", ".attn_v_b.weight")
# The positions that pass through a layer at a time. More of them need more memory, and fewer make
# the products slower.
_POSITIONS = 1024
# The weights of a layer that are kept in memory if they come over a network, in bytes.
_KEPT = 2**30
# An expert that was reached by less than this share of an even distribution is seldom reached.
_SELDOM = 0.1
# The positions whose logits are computed at a time.
_LOGITS = 128
_DAT = "dat"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeldomExperts:
    """A tensor some of whose experts were reached by few tokens.

    `unreached` experts were not reached at all, and `seldom` ones by less than a tenth of the
    tokens that each would get if all got equally many.
    """

    tensor: str
    experts: int
    unreached: int
    seldom: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredImportance:
    """An importance matrix that was written to `path`.

    `model` is the path of the model, None if only files were merged. `chunks` and `tokens` are
    those of this run, without those of merged files. `resumed` is the number of layers that an
    earlier, stopped run had done. `hessians` is the number of tensors with products of columns.
    """

    model: str | None
    path: str
    context: int
    format: str = "gguf"
    chunks: int = 0
    tokens: int = 0
    tensors: int = 0
    hessians: int = 0
    datasets: tuple[str, ...] = ()
    merged: tuple[str, ...] = ()
    resumed: int = 0
    seldom: tuple[SeldomExperts, ...] = ()
    notes: tuple[str, ...] = ()


def make_imatrix(
    model: str | os.PathLike[str] | None,
    out: str | os.PathLike[str],
    *,
    text_files: Sequence[str] = (),
    chunks: int | None = None,
    context: int = 512,
    merge: Sequence[str] = (),
    process_output: bool = False,
    hessian: bool = False,
    device: DeviceRef = CPU,
    force: bool = False,
    source_format: str | None = None,
    progress: Advance | None = None,
) -> MeasuredImportance:
    """Run a model on texts, and write the sums of what its weights are multiplied with.

    The output is in GGUF, or with the suffix `.dat` in the older format. `merge` are importance
    matrices whose sums are added; without a model, only these are added. `chunks` is the largest
    number of chunks, each of `context` tokens. With `process_output`, the output matrix is measured
    too. With `hessian`, the products of the inputs of two columns are summed too, for tensors with
    one matrix. `progress` is called with the current stage and the fraction done.

    If the run is stopped, the same call continues it after the last complete layer. Raises
    `OutputError` if the output exists and `force` is not set, `TokenizerError` if the model has no
    tokenizer, `ArchitectureError` if it cannot be built, `ConversionError` if the text is too
    short, and `FormatError` if a file is damaged.
    """
    shown: str = os.fspath(out)
    target = os.path.realpath(shown)
    _refuse_output(target, shown, force=force)
    _refuse_numbers(context, chunks)
    if hessian:
        _refuse_products(target, merge)
    merged = [read_sums(path, context) for path in merge]
    notes = [*_note_left_out(merge)]
    if model is None:
        sums = ImportanceSums(context)
        made = MeasuredImportance(model=None, path=shown, context=context)
        _write(sums, merge, merged, target, force=force)
    else:
        texts = read_texts(text_files)
        subject = Subject(model, source_format)
        recognized = _recognize(subject)
        encoder = require_tokenizer(subject.encoder, recognized.where)
        ids = cut_chunks(encoder, texts, context, chunks)
        running = Running(recognized, device)
        passing = _Passing(running, ids, progress, process_output=process_output, hessian=hessian)
        identity = _identify(
            recognized, ids, device, process_output=process_output, hessian=hessian
        )
        with hold_state(target, identity) as (state, was_other):
            resumed = state.layer
            entries = passing.run(state)
            source_of(recognized.tree).refuse_change()
            datasets = tuple(text.name for text in texts)
            sums = ImportanceSums(context, entries, datasets, state.products)
            seldom = tuple(_list_seldom(sums))
            notes = [*_notes(resumed, was_other=was_other), *_describe_seldom(seldom), *notes]
            if hessian:
                notes += _describe_absent(sums)
            _write(sums, merge, merged, target, force=force)
        made = MeasuredImportance(
            model=os.fspath(model),
            path=shown,
            context=context,
            chunks=len(ids),
            tokens=ids.size,
            hessians=len(sums.products),
            resumed=resumed,
            seldom=seldom,
        )
    return replace(
        made,
        format=_format_of(target),
        tensors=len(sums.entries),
        datasets=sums.datasets,
        merged=tuple(merge),
        notes=tuple(notes),
    )


def _write(
    sums: ImportanceSums,
    merge: Sequence[str],
    merged: Sequence[ImportanceSums],
    target: str,
    *,
    force: bool,
) -> None:
    """Write the sums after adding those of the files `merge`, which are `merged`."""
    for path, other in zip(merge, merged, strict=True):
        sums.add(other, path)
    if not sums.entries:
        raise ConversionError(
            "there is nothing to write", hint="name a model, or files with --merge (merge)"
        )
    content = write_dat(sums) if _format_of(target) == _DAT else write_gguf(sums)
    write_files({target: content}, force=force)


def _format_of(target: str) -> str:
    return _DAT if target.endswith(f".{_DAT}") else "gguf"


def _refuse_products(target: str, merge: Sequence[str]) -> None:
    """Raise `ConversionError` if products of columns cannot be written."""
    if merge:
        raise ConversionError(
            "products of columns are not merged",
            hint="measure with --hessian (hessian) on all texts at once: repeat --text-file "
            "(text_files) in place of --merge (merge)",
        )
    if _format_of(target) == _DAT:
        raise ConversionError(
            "the older format cannot have products of columns (--hessian)",
            hint="write GGUF: use another suffix than .dat",
        )


def _note_left_out(merge: Sequence[str]) -> Iterator[str]:
    for path in merge:
        if count := len(read_entries(path).hessians):
            yield (
                f"{path}: the products of {pluralize(count, 'tensor')} are left out, since only "
                "sums of squares are merged"
            )


def _refuse_output(target: str, shown: str, *, force: bool) -> None:
    """Raise `OutputError` if the output must not be written."""
    if is_remote(shown):
        raise OutputError(f"{shown} is a URL", hint="write to a local file")
    if os.path.isdir(target):
        raise OutputError(f"{shown} is a directory", hint="use the path of a file")
    if os.path.lexists(target) and not force:
        raise OutputError(f"{shown} exists", hint="to replace it, use --force (force=True)")
    if not os.path.isdir(os.path.dirname(target)):
        raise OutputError(f"the directory of {shown} does not exist", hint="create it first")


def _refuse_numbers(context: int, chunks: int | None) -> None:
    if context < LEAST_CONTEXT:
        raise ConversionError(
            f"a chunk of {pluralize(context, 'token')} is too short",
            hint=f"use --context {LEAST_CONTEXT} (context) or more",
        )
    if chunks is not None and chunks < 1:
        raise ConversionError(f"the number of chunks is {chunks}", hint="use 1 or more")


def _recognize(subject: Subject) -> RecognizedModel:
    if subject.checkpoint is None:
        if subject.refusal is not None:
            raise subject.refusal
        raise ConversionError(f"{subject.path} is not a model")
    return subject.checkpoint


def _identify(
    model: RecognizedModel,
    ids: NDArray[np.int64],
    device: DeviceRef,
    *,
    process_output: bool,
    hessian: bool,
) -> str:
    """Return the hexadecimal identity of a run; only a run with the same can continue it."""
    from weightctl.system import __version__

    source = repr(fingerprint_source(source_of(model.tree)))
    options = [process_output, hessian]
    about = [__version__, source, str(device), options, ids.shape, repr(model.config)]
    found = hashlib.sha256(json.dumps(about, default=repr).encode("utf-8", "surrogatepass"))
    found.update(ids.tobytes())
    return found.hexdigest()


class _Passing:
    """Chunks that pass through one layer of a model after the other, with the weights read once."""

    def __init__(
        self,
        running: Running,
        ids: NDArray[np.int64],
        advance: Advance | None,
        *,
        process_output: bool,
        hessian: bool,
    ) -> None:
        self._running = running
        self._ids = ids
        self._advance = advance
        model = running.checkpoint
        self._has_output = process_output and running.has_logits
        measured = list_measured_weights(model, has_output=self._has_output)
        self._collector = SumsCollector(measured, list_absorbed(model), hessian=hessian)
        self._step = max(1, _POSITIONS // ids.shape[1])
        self._memory = _KEPT if any(map(is_remote, header_of(model.tree).files)) else 0
        self._beside: tuple[Buffer, ...] | None = None

    def run(self, state: RunState) -> dict[str, ColumnSums]:
        """Run all layers that the state does not have yet, and return the sums of all layers."""
        layers = self._running.layers
        if not state.layer:
            self._begin(state)
        for number in range(state.layer, layers):
            self._say(f"layer {number + 1} of {layers}", number / layers)
            observe = self._collector.observe
            loaded = self._running.load_layer(number, memory=self._memory, observe=observe)
            for start, ids in self._batches():
                x = state.get(start, len(ids))
                made, *sums = loaded.graph.execute(x, *self._inputs_beside(ids))
                state.put(start, made.to_numpy())
                for name, each in zip(loaded.summed, sums, strict=True):
                    squares = each.to_numpy().astype(np.float64).reshape(-1)
                    self._collector.add(name, squares, ids.size)
            self._put_products(state)
            state.finish_layer(self._collector.take())
        if self._has_output:
            self._say("output", 1.0)
            output = self._running.load_output(observe=self._collector.observe)
            for start, ids in self._batches():
                for x in state.get(start, len(ids)):
                    for first in range(0, len(x), _LOGITS):
                        output.execute(x[None, first : first + _LOGITS])
            self._put_products(state)
        return state.sums() | self._collector.take()

    def _put_products(self, state: RunState) -> None:
        for tensors, parts in self._collector.take_products():
            state.put_products(tensors, parts)

    def _begin(self, state: RunState) -> None:
        self._say("embedding", 0.0)
        for start, ids in self._batches():
            state.put_first(start, self._running.begin(ids, np.ones(ids.shape, np.bool_)).x)

    def _batches(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        for start in range(0, len(self._ids), self._step):
            yield start, self._ids[start : start + self._step]

    def _inputs_beside(self, ids: NDArray[np.int64]) -> tuple[Buffer, ...]:
        """Return the inputs that all layers share; they may depend on the tokens."""
        if self._beside is None or self._running.shares_by_window:
            self._beside = self._running.begin(ids, np.ones(ids.shape, np.bool_)).beside
        return self._beside

    def _say(self, stage: str, done: float) -> None:
        if self._advance is not None:
            self._advance(stage, done)
        else:
            begin_phase(stage)


def _list_seldom(sums: ImportanceSums) -> Iterator[SeldomExperts]:
    for name, (_, counts) in sorted(sums.entries.items()):
        if len(counts) == 1:
            continue
        unreached = int((counts == 0).sum())
        seldom = int((counts < _SELDOM * counts.mean()).sum()) - unreached
        if unreached or seldom:
            yield SeldomExperts(
                tensor=name, experts=len(counts), unreached=unreached, seldom=seldom
            )


def _notes(resumed: int, *, was_other: bool) -> Iterator[str]:
    if resumed:
        yield f"continued after {pluralize(resumed, 'layer')} of a stopped run"
    if was_other:
        yield "the state of a stopped run with another input was removed"


def _describe_seldom(found: Sequence[SeldomExperts]) -> Iterator[str]:
    """Yield a note about the experts that few tokens reached."""
    if not found:
        return
    worst = max(found, key=lambda each: (each.unreached, each.seldom))
    what = (
        f"no token reached {worst.unreached} of the {worst.experts} experts of `{worst.tensor}`"
        if worst.unreached
        else f"few tokens reached {worst.seldom} of the {worst.experts} experts of `{worst.tensor}`"
    )
    more = len(found) - 1
    others = f", and {more} more tensors have such experts" if more else ""
    yield f"{what}{others}: use a longer text"


def _describe_absent(sums: ImportanceSums) -> Iterator[str]:
    """Yield a note about the tensors that have squares, but no products of columns."""
    absent = sorted(sums.entries.keys() - sums.products.keys())
    if absent:
        yield (
            f"{pluralize(len(absent), 'tensor')} such as `{absent[0]}` got no products of columns: "
            "tensors of several matrices, one for each expert or head, would need too many"
        )


# Which weights of a model get an entry in an importance matrix, under which names, and the sums.


class MeasuredWeight(NamedTuple):
    """The place of a weight in an importance matrix.

    `tensor` is the name of its tensor in GGUF, which consists of `matrices`, and `matrix` is the
    number of the weight among them. `order` has the column of our module for each column in GGUF;
    None if they are in the same order.
    """

    tensor: str
    matrix: int
    matrices: int
    order: Sequence[int] | None = None


def list_measured_weights(
    model: RecognizedModel, *, has_output: bool = False
) -> dict[str, MeasuredWeight]:
    """Return the place of each measured weight, by the names of the weights in our modules.

    Of several weights that are parts of one tensor, and so read the same values, only the first has
    a place. `list_absorbed` has those of latent attention.
    """
    of_tensor: Mapping[str, dict[int, TensorNames]] = defaultdict(dict)
    for tensor, names in _list_named(model, has_output=has_output):
        if not tensor.endswith(_ABSORBED):
            of_tensor[tensor].setdefault(names.expert, names)
    return {
        names.module: MeasuredWeight(tensor, number, max(experts) + 1, _order(names, model))
        for tensor, experts in of_tensor.items()
        for number, names in experts.items()
    }


def list_absorbed(model: RecognizedModel) -> dict[str, MeasuredWeight]:
    """Return the places of the weights of latent attention whose modules sum the squares.

    As in llama-imatrix, the matrices of all heads have one count.
    """
    return {
        names.module: MeasuredWeight(tensor, 0, 1)
        for tensor, names in _list_named(model)
        if tensor.endswith(_ABSORBED)
    }


def _list_named(
    model: RecognizedModel, *, has_output: bool = False
) -> Iterator[tuple[str, TensorNames]]:
    for names in model.family.tensors(model.config):
        is_of_model = names.module == _OUTPUT and has_output
        is_of_layer = names.line.is_of_layers and names.layer < model.config.layers
        if names.kind != "weight" or not (is_of_layer or is_of_model):
            continue
        # A GGUF file may have other fused tensors than weightctl writes.
        is_gguf = model.convention == "gguf"
        tensor = model.stored.get(names.module) if is_gguf else names.gguf
        if tensor is not None:
            yield tensor, names


def _order(names: TensorNames, model: RecognizedModel) -> Sequence[int] | None:
    """Return the order of the columns in GGUF, None if it is that of the model."""
    change = names.change
    if change is None or change.order is None or change.is_of_rows:
        return None
    return change.order(model.config)


class SumsCollector:
    """Adds the squares of the left operands of products, for the weights that are measured.

    `observe` is for `InferenceSession.load`, and `entries` has the sums by the names of the tensors
    in GGUF. `absorbed` are the weights of latent attention, whose sums are added with `add`. With
    `hessian`, products of columns are summed for the tensors of one matrix, outside of `absorbed`.
    """

    def __init__(
        self,
        measured: Mapping[str, MeasuredWeight],
        absorbed: Mapping[str, MeasuredWeight],
        *,
        hessian: bool = False,
    ) -> None:
        self._absorbed = absorbed
        self._measured = measured
        self.entries: dict[str, ColumnSums] = {}

        def add(name: str, squares: NDArray[np.float64], rows: int) -> None:
            self._add(measured[name], squares, rows)

        wanted = {name: each for name, each in measured.items() if hessian and each.matrices == 1}
        refuse_long_names([each.tensor for each in wanted.values()])
        self._products = ProductSums({name: each.order for name, each in wanted.items()})
        self.observe = SquaresObserver(measured, add, self._products)

    def add(self, name: str, squares: NDArray[np.float64], rows: int) -> None:
        """Add the sums of squares that a module of latent attention computes for `rows` positions.

        Weights that are not in `absorbed` are ignored: llama.cpp does not absorb them.
        """
        if (weight := self._absorbed.get(name)) is not None:
            self._add(weight, squares, rows)

    def _add(self, weight: MeasuredWeight, squares: NDArray[np.float64], rows: int) -> None:
        """Add the sums of squares of `rows` vectors that a weight is multiplied with.

        Raises `EngineError` if they are not finite.
        """
        if weight.order is not None:
            squares = squares[list(weight.order)]
        if not np.isfinite(squares).all():
            raise EngineError(
                f"`{weight.tensor}` is multiplied with values that are NaN or too large",
                hint="the model or the file is damaged; check it with `weightctl verify`",
            )
        entry = self.entries.get(weight.tensor)
        if entry is None:
            shape = (weight.matrices, len(squares))
            entry = ColumnSums(np.zeros(shape), np.zeros(weight.matrices, np.int64))
            self.entries[weight.tensor] = entry
        entry.squares[weight.matrix] += squares
        entry.counts[weight.matrix] += rows

    def take(self) -> dict[str, ColumnSums]:
        """Return the sums so far, and begin with none."""
        taken, self.entries = self.entries, {}
        return taken

    def take_products(self) -> Iterator[tuple[list[str], Iterator[F32]]]:
        """Yield tensors that share products of columns, with the parts of the upper triangle."""
        for names, parts in self._products.take():
            yield [self._measured[name].tensor for name in names], parts
