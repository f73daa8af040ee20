"""Generation of tokens, with a cache of what layers keep of the tokens so far."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from weightctl.device import CPU
from weightctl.dim import Dim
from weightctl.dtype import DType
from weightctl.engine.session import InferenceSession
from weightctl.errors import ArchitectureError, EngineError
from weightctl.families.recognition import recognize
from weightctl.graph.graph import Graph
from weightctl.nn.across_ranks import parallel
from weightctl.nn.models.network import build_network
from weightctl.nn.positions import KeyValueCache, use_cache
from weightctl.shape import Shape
from weightctl.text.untyped import is_list, is_tuple
from weightctl.weights.buffer import Buffer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from weightctl.device import DeviceRef
    from weightctl.graph.types import TensorType
    from weightctl.nn.models.network import Network
    from weightctl.weights.tree import Checkpoint

    F32 = NDArray[np.float32]
    Ids = NDArray[np.int64]

_BATCH, _SEQ, _PAST = "batch", "seq", "past"


def generate(
    checkpoint: Checkpoint,
    tokens: Any,
    count: int,
    *,
    choose: Callable[[F32], Any] | None = None,
    dtype: DType = DType.float32,
    devices: Sequence[DeviceRef] = (CPU,),
    resident: bool = True,
    memory: int | str = 0,
) -> Ids:
    """Return `count` tokens that continue each text: int64[batch, count], or [count] for one text.

    `tokens` are ids, [batch, positions] or [positions]. `choose` takes the logits of the next
    token, float32[batch, vocabulary], and returns the ids of the tokens, [batch]; by default, these
    are the most likely ones. The other arguments are those of `Generation`. Raises `EngineError` if
    the tokens are not ids in that shape or if `count` is negative, and the errors of `Generation`.
    """
    ids = _read_tokens(tokens)
    if count < 0:
        raise EngineError(f"the number of tokens to generate is {count}", hint="use 0 or more")
    pick = _most_likely if choose is None else choose
    texts = ids if ids.ndim > 1 else ids[None]
    running = Generation(checkpoint, dtype=dtype, devices=devices, resident=resident, memory=memory)
    made: list[Ids] = []
    given = texts
    for _ in range(count):
        chosen = np.asarray(pick(running.read(given)), np.int64)
        if chosen.shape != (len(texts),):
            raise EngineError(
                f"`choose` returned an array of shape {list(chosen.shape)}",
                hint=f"return one token for each text: [{len(texts)}]",
            )
        made.append(chosen)
        given = chosen[:, None]
    found = np.stack(made, 1) if made else np.zeros((len(texts), 0), np.int64)
    return found if ids.ndim > 1 else found[0]


class Generation:
    """A model that reads texts piece by piece, and keeps keys, values and states of what it read.

    `dtype` is that of the activations. With several `devices`, each layer is divided among them
    (tensor parallelism). With `resident`, weights stay in memory; otherwise they are read for each
    piece, except those that fit into `memory`, as in `InferenceSession.load`. Raises
    `ArchitectureError` if the checkpoint is not the whole model of a known family, or if the model
    does not predict the next token.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        dtype: DType = DType.float32,
        devices: Sequence[DeviceRef] = (CPU,),
        resident: bool = True,
        memory: int | str = 0,
    ) -> None:
        model = recognize(checkpoint)
        network = build_network(model, dtype)
        sees_ahead = not getattr(model.config, "causal", True)
        if network.INPUTS != ("tokens",) or not hasattr(network, "output") or sees_ahead:
            raise ArchitectureError(
                f"{model.where}: models of the family {model.family.name} do not continue a text"
            )
        if len(devices) > 1:
            network = parallel(network, devices)
        else:
            network.to(devices[0])
        network.name_weights()
        _, self._kinds = _build(network, [])
        graph, _ = _build(network, self._kinds)
        session = InferenceSession({CPU, *devices})
        self._model = session.load(graph, model.weights, resident=resident, memory=memory)
        self._cache: Sequence[Any] = ()
        # The number of tokens that were read of each text.
        self.length = 0

    def forget(self) -> None:
        """Forget what was read, so that the next tokens begin new texts."""
        self._cache, self.length = (), 0

    def read(self, tokens: Ids) -> F32:
        """Read the next tokens of each text, [batch, positions], and return the logits after them.

        The logits are [batch, vocabulary], of the token after the last. Raises `EngineError` if
        there are no tokens, or not as many texts as before.
        """
        if not tokens.size:
            raise EngineError("there are no tokens to read", hint="give at least one per text")
        cache = self._cache or [_make_empty(kind, len(tokens)) for kind in self._kinds]
        logits, *made = self._model.execute(tokens, *cache)
        self._cache = made
        self.length += tokens.shape[1]
        return logits.to_numpy()[:, 0]


def _build(network: Network, kinds: Sequence[TensorType]) -> tuple[Graph, list[TensorType]]:
    """Return a graph that reads tokens after earlier ones, and the types of its caches.

    `kinds` are the types of the caches; without them, the graph has no earlier tokens.
    """
    with Graph("generate", [*network.input_types(), *kinds]) as graph:
        tokens, *given = graph.inputs
        cache = KeyValueCache(given, Dim(_PAST) if given else None)
        with use_cache(cache):
            x, beside = network.begin(tokens)
            for layer in network.layers:
                x = network.through(layer, x, beside)
            logits = network.end(x[:, -1:]).cast(DType.float32)
        graph.output(logits, *cache.made)
    return graph, [_with_past(value.type) for value in cache.made]


def _with_past(kind: TensorType) -> TensorType:
    shape = [Dim(_PAST) if dim == Dim(_SEQ) else dim for dim in kind.shape]
    return replace(kind, shape=Shape(shape))


def _make_empty(kind: TensorType, batch: int) -> Buffer:
    """Return what is kept of no tokens: no keys and values, and states of zeros."""
    sizes = {_BATCH: batch, _PAST: 0}
    shape = tuple(dim.at(sizes) for dim in kind.shape)
    memory = memoryview(bytearray(kind.dtype.encoding.size * prod(shape)))
    return Buffer(memory, kind.dtype, shape)


def _most_likely(logits: F32) -> Ids:
    made: Ids = logits.argmax(-1)
    return made


def _read_tokens(given: Any) -> Ids:
    array = np.asarray(given if not (is_list(given) or is_tuple(given)) else list(given))
    if array.ndim not in {1, 2} or not array.size or array.dtype.kind not in "iu":
        raise EngineError(
            f"tokens must be integers in one or two dimensions, not {array.dtype} of shape "
            f"{list(array.shape)}",
            hint="use a list of ids, or one list for each text, all of the same length",
        )
    return array.astype(np.int64)
