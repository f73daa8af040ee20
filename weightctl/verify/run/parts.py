"""Runs a model one part at a time, on one device or on the ranks of a sharded checkpoint."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.engine import InferenceSession
from weightctl.errors import ShardingError
from weightctl.families.matching import match
from weightctl.graph.graph import Graph
from weightctl.nn.across_ranks import parallel
from weightctl.nn.activation_squares import collected_squares, collecting_squares
from weightctl.nn.base_layer import under
from weightctl.nn.models.network import build_network
from weightctl.nn.weight_names import naming_of
from weightctl.schemes.dequantize import dequantize_weights
from weightctl.split import Grid
from weightctl.system.phases import begin_phase
from weightctl.weights.buffer import Buffer
from weightctl.weights.derived import Derived, DerivedTensor
from weightctl.weights.steps.sliced import Sliced
from weightctl.weights.tree import Checkpoint, source_of

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32
    from weightctl.device import DeviceRef
    from weightctl.dtype import Encoding
    from weightctl.engine.run import ProductObserver
    from weightctl.engine.session import LoadedGraph
    from weightctl.errors import WeightctlError
    from weightctl.families.checkpoint import RecognizedModel
    from weightctl.formats.sharded.gathered import GatheredSource
    from weightctl.graph.graph import Weight
    from weightctl.graph.types import TensorType
    from weightctl.nn.models.network import Network
    from weightctl.weights.derived import ReadableTensor


class Ranks:
    """A model that the ranks of a sharded checkpoint compute together, all on one device.

    The ranks of one pipeline stage compute a layer. Each rank's shards are read from its own file.
    Raises `ArchitectureError` if the checkpoint is not a whole model, and `ShardingError` if its
    layers cannot be cut for this number of ranks.
    """

    def __init__(
        self, checkpoint: RecognizedModel, gathered: GatheredSource, device: DeviceRef
    ) -> None:
        self.grid = gathered.manifest.grid
        grid = self.grid._replace(pp=1)
        network = build_network(checkpoint)
        network.to(device)
        self.network = parallel(network, [device] * grid.ranks, grid=grid)
        everywhere = range(self.grid.ranks)
        # One rank of each stage, since a layer is on one stage only.
        self._trees = [
            dequantize_weights(
                Checkpoint(gathered.view_for_ranks(everywhere[rank :: grid.ranks])), in_blocks=False
            )
            for rank in range(grid.ranks)
        ]
        self._tensors = [_list_tensors(checkpoint, tree) for tree in self._trees]

    def part(self, weight: Weight) -> Checkpoint:
        """Return the tensor of a weight that is one rank's shard, as a tree with one leaf."""
        whole, rank = weight.shard_of, weight.shard_idx
        if whole is None or rank is None or weight.part is None:
            raise ValueError(f"`{weight.name}` is not a shard")
        tensor = self._tensors[rank][whole.name]
        made = DerivedTensor(weight.name, Sliced(weight.part), [tensor])
        source = source_of(self._trees[rank])
        return Checkpoint(Derived(source, {weight.name: made}, {}))[weight.name]


def _list_tensors(checkpoint: RecognizedModel, tree: Checkpoint) -> Mapping[str, ReadableTensor]:
    """Map the names of weightctl's modules to the tensors of `tree`.

    `tree` holds the shards of some ranks of `checkpoint`, whose family and config it shares.
    """
    family, config = checkpoint.family, checkpoint.config
    return match(tree, family, checkpoint.convention, config, checkpoint.where).tensors


Replaced: TypeAlias = "Mapping[str, ReadableTensor | F32]"

EMBEDDING, OUTPUT = "embedding", "output"
# The name of the mask input, which encoders have, and of a network's first dimension.
_MASK, _BATCH = "mask", "batch"
_NOTHING: Replaced = MappingProxyType({})


def name_layer(number: int) -> str:
    """Return the name of a layer as figures and problems have it: `layers.3`."""
    return f"layers.{number}"


def explain_unbuilt(error: WeightctlError) -> str:
    """Describe in one line why the model of a checkpoint cannot be built."""
    return f"the model cannot be built: {error.headline} (see the check `names`)"


class Flow(NamedTuple):
    """The input of a layer.

    `x` is float32[windows, positions, hidden]; `beside` are further inputs that all layers share.
    """

    x: F32
    beside: tuple[Buffer, ...]


class LoadedLayer(NamedTuple):
    """A layer that is ready to run.

    The outputs of `graph` are those of the layer and, if its products are observed, the sums of
    squares for the weights `summed` (`weightctl.nn.activation_squares`).
    """

    graph: LoadedGraph
    summed: tuple[str, ...] = ()


class Running:
    """A model in float32 that runs part by part, with the weights of one part in memory.

    The parts are `embedding`, `layers.0` and so on, and `output`. `replaced` arguments map names of
    weightctl's modules to tensors that are used instead of the checkpoint's. `cut` is the source of
    a sharded checkpoint: its ranks compute each part together, except parts with replaced tensors.
    `grid` gives the ranks that are used. If the ranks cannot compute the model, one device does,
    and `notes` say why. Threads may run different layers at the same time.

    Raises `ArchitectureError` if the checkpoint is not a whole model, and `EngineError` if torch or
    the device is missing.
    """

    def __init__(
        self,
        checkpoint: RecognizedModel,
        device: DeviceRef = CPU,
        cut: GatheredSource | None = None,
    ) -> None:
        begin_phase("building the model")
        self.checkpoint = checkpoint
        self.notes: tuple[str, ...] = ()
        self.is_on_cpu = device.kind == "cpu"
        self._session = InferenceSession([device])
        self._network = build_network(checkpoint)
        self._network.to(device)
        self._weights = self._network.raw_state_dict()
        self._ranks: Ranks | None = None
        if cut is not None and cut.manifest.grid.ranks > 1:
            try:
                self._ranks = Ranks(checkpoint, cut, device)
            except ShardingError as error:
                self.notes = (f"the model did not run on its ranks: {error.headline}",)
        self._types = [value.type for value in self._begin(self._network).outputs]

    @property
    def grid(self) -> Grid:
        """The ranks that compute the model together; one rank if it is not sharded."""
        return Grid() if self._ranks is None else self._ranks.grid

    @property
    def layers(self) -> int:
        return len(self._network.layers)

    @property
    def has_logits(self) -> bool:
        """Whether the model predicts tokens; if not, it is an encoder, and returns states."""
        return hasattr(self._network, OUTPUT)

    @property
    def vocabulary(self) -> int:
        _, shape = self._network.embedding.weight.original_dtype_and_shape
        return shape.sizes[0]

    @property
    def width(self) -> int:
        """The number of values that the embedding of a token has."""
        _, shape = self._network.embedding.weight.original_dtype_and_shape
        return shape.sizes[-1]

    def begin(
        self, ids: NDArray[np.int64], mask: NDArray[np.bool_], replaced: Replaced = _NOTHING
    ) -> Flow:
        """Run the part before the layers on tokens and their mask, both [windows, positions].

        Raises `EngineError` for tokens that are not in the vocabulary.
        """
        given = [mask.astype(np.int64) if name == _MASK else ids for name in self._network.INPUTS]
        with self._hold_replaced(replaced):
            graph = self._begin(self._choose_network(replaced))
        x, *beside = self._run(graph, given, replaced)
        return Flow(x.to_numpy(), tuple(beside))

    def layer(
        self, number: int, x: F32, beside: Sequence[Buffer], replaced: Replaced = _NOTHING
    ) -> F32:
        """Run a layer on `x`, [windows, positions, hidden], and return its output.

        The number of windows is a multiple of the number of windows in `beside`.
        """
        with self._hold_replaced(replaced):
            graph, _ = self._through(self._choose_network(replaced), number)
        given = [
            _repeat(each, kind, len(x)) for each, kind in zip(beside, self._types[1:], strict=True)
        ]
        return self._run(graph, [x, *given], replaced)[0].to_numpy()

    def end(self, x: F32, replaced: Replaced = _NOTHING) -> F32:
        """Return the logits, [windows, positions, vocabulary], or the states of an encoder.

        Positions are computed independently, so `x` may have any subset of the positions of the
        last layer's output.
        """
        with self._hold_replaced(replaced):
            graph = self._end(self._choose_network(replaced))
        return self._run(graph, [x], replaced)[0].to_numpy()

    def load_layer(
        self, number: int, *, memory: int = 0, observe: ProductObserver | None = None
    ) -> LoadedLayer:
        """Return a layer that runs on many inputs: `x`, then the inputs that all layers share.

        `memory` and `observe` are those of `InferenceSession.load`. A graph that is observed rounds
        vectors to bfloat16 where the weights are in bfloat16, as llama.cpp does.
        """
        with nullcontext() if observe is None else collecting_squares():
            graph, summed = self._through(self._network, number)
        return LoadedLayer(self._load(graph, memory, observe), summed)

    def load_output(
        self, *, memory: int = 0, observe: ProductObserver | None = None
    ) -> LoadedGraph:
        """Return the part after the layers, which runs on many inputs `x`, as `load_layer` does."""
        return self._load(self._end(self._network), memory, observe)

    def _load(self, graph: Graph, memory: int, observe: ProductObserver | None) -> LoadedGraph:
        registry = self._registry(graph, _NOTHING)
        return self._session.load(
            graph, registry, memory=memory, observe=observe, rounds_bf16=observe is not None
        )

    @property
    def shares_by_window(self) -> bool:
        """Whether an input that all layers share depends on the tokens."""
        return any(str(kind.shape[0]) == _BATCH for kind in self._types[1:])

    def weights_of(self, part: str) -> list[str]:
        """Return the names, in weightctl's modules, of the weights that a part needs.

        The part `output` of a tied model needs the embedding's weight.
        """
        if part == EMBEDDING:
            return list(self._begin(self._network).weights_by_name)
        if part == OUTPUT:
            return list(self._end(self._network).weights_by_name)
        return [name for name in self._weights if name.startswith(f"{part}.")]

    def _choose_network(self, replaced: Replaced) -> Network:
        """Return the network that runs a part: that of the ranks, unless weights are replaced."""
        return self._network if replaced or self._ranks is None else self._ranks.network

    def _begin(self, network: Network) -> Graph:
        with _build(network, EMBEDDING, network.input_types()) as graph:
            x, beside = network.begin(*graph.inputs)
            graph.output(x, *beside)
        return graph

    def _through(self, network: Network, number: int) -> tuple[Graph, tuple[str, ...]]:
        """Return the graph of a layer, and the weights whose sums of squares are outputs of it."""
        with _build(network, name_layer(number), self._types) as graph:
            first, *others = graph.inputs
            x = network.through(network.layers[number], first, tuple(others))
            squares = collected_squares()
            graph.output(x, *squares.values())
        return graph, tuple(squares)

    def _end(self, network: Network) -> Graph:
        with _build(network, OUTPUT, self._types[:1]) as graph:
            graph.output(network.end(graph.inputs[0]))
        return graph

    def _run(self, graph: Graph, given: Sequence[Any], replaced: Replaced) -> list[Buffer]:
        return self._session.load(graph, self._registry(graph, replaced)).execute(*given)

    def _registry(self, graph: Graph, replaced: Replaced) -> dict[str, Any]:
        registry: dict[str, Any] = {}
        for name, weight in graph.weights_by_name.items():
            if name in replaced:
                registry[name] = self._stand_in(name, replaced[name])
            elif self._ranks is not None and weight.shard_of is not None:
                registry[name] = self._ranks.part(weight)
            else:
                registry[name] = self.checkpoint.weights[name]
        return registry

    def _stand_in(self, name: str, given: ReadableTensor | F32) -> Checkpoint | F32:
        if isinstance(given, np.ndarray):
            return given
        return Checkpoint(Derived(source_of(self.checkpoint.tree), {name: given}, {}))[name]

    @contextmanager
    def _hold_replaced(self, replaced: Replaced) -> Generator[None]:
        """Give replaced weights the shape and encoding of their replacements, within this context.

        Graphs must be built within this context to accept the replacements.
        """
        changed = {name: self._weights[name] for name in replaced}
        before = {
            name: (*weight.original_dtype_and_shape, weight.quantization_encoding)
            for name, weight in changed.items()
        }
        try:
            for name, weight in changed.items():
                shape, encoding = _find_storage(replaced[name])
                dtype = DType.float32 if encoding.dtype is None else encoding.dtype
                weight.configure(dtype, shape, encoding.quantization)
            yield
        finally:
            for name, weight in changed.items():
                weight.configure(*before[name])


@contextmanager
def _build(network: Network, name: str, types: Sequence[TensorType]) -> Generator[Graph]:
    # The weights already have names, which are reused: naming them again for each layer takes a
    # third of the model's time.
    with Graph(name, types) as graph, under(naming_of(network)):
        yield graph


def _find_storage(given: ReadableTensor | F32) -> tuple[tuple[int, ...], Encoding]:
    if isinstance(given, np.ndarray):
        return given.shape, DType(given.dtype.name).encoding
    return given.info.shape, given.info.encoding


def _repeat(given: Buffer, kind: TensorType, windows: int) -> Buffer:
    """Repeat an input that has a row per window up to `windows` windows; return others as is."""
    if str(kind.shape[0]) != _BATCH or given.shape[0] == windows:
        return given
    array = given.to_numpy()
    return Buffer.from_numpy(np.concatenate([array] * (windows // len(array))))
