"""Execution of a schedule: each value and each weight is dropped after its last use."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from weightctl.engine.arrays import describe_tensor
from weightctl.engine.inputs import resolve_attributes, size_of, sizes_of
from weightctl.engine.products import EncodedMatrix
from weightctl.engine.weight_forms import WeightForm
from weightctl.errors import EngineError, WeightctlError
from weightctl.graph.ops.create import CONSTANT, RANGE
from weightctl.graph.ops.lowering import torch_device, torch_dtype
from weightctl.graph.ops.product import MATMUL
from weightctl.graph.ops.value_checks import DelayedCheck, delaying_checks, raise_first
from weightctl.text.untyped import is_tuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from weightctl.device import DeviceRef
    from weightctl.dtype import DType
    from weightctl.engine.bound_weights import BoundWeights
    from weightctl.engine.inputs import Size
    from weightctl.engine.schedule import EmptyRegion, Operation, Place, Schedule

    # Takes the name of a weight that is a right operand of a product, and the left operand.
    ProductObserver = Callable[[str, Tensor], None]


def run(
    plan: Schedule,
    weights: BoundWeights,
    inputs: Sequence[Tensor],
    sizes: Mapping[str, int],
    constants: dict[int, Tensor],
    *,
    observe: ProductObserver | None = None,
) -> list[Tensor]:
    """Return the outputs of a schedule, each contiguous and in memory of its own.

    `constants` are the constants on their devices by the number of the operation; those that are
    missing are added. `observe` is called after each product of a value with a weight. Raises
    `EngineError` if an operation fails or its results differ from the graph's types.
    """
    import torch

    with torch.inference_mode(), delaying_checks() as checks:
        running = _Running(plan, weights, sizes, constants, checks=checks, observe=observe)
        running.begin(inputs)
        del inputs
        number = 0
        try:
            while number < len(plan.operations):
                number = running.carry_out(number)
            outputs = running.outputs()
        finally:
            weights.stop_reading()
        raise_first(checks)
        return outputs


class _Running:
    """A run in progress: the live values by slot, and the weights kept for the next operation."""

    def __init__(
        self,
        plan: Schedule,
        weights: BoundWeights,
        sizes: Mapping[str, int],
        constants: dict[int, Tensor],
        *,
        checks: list[DelayedCheck],
        observe: ProductObserver | None,
    ) -> None:
        self._plan = plan
        self._constants = constants
        self._checks = checks
        self._observe = observe
        self._weights = weights
        self._values: dict[int, Tensor] = {}
        # Weights by their base forms: those kept from the last operation, those of the current one.
        self._kept: dict[WeightForm, Tensor] = {}
        self._loaded: dict[WeightForm, Tensor] = {}
        # The sizes of named dimensions by call, computed when the call is reached.
        self._sizes: list[dict[str, int] | None] = [dict(sizes), *[None] * (len(plan.calls) - 1)]
        # The sizes of dimensions that are expressions, by call and identity: a schedule has each
        # of them once.
        self._computed: dict[tuple[int, int], int] = {}
        # Addresses of memory that other code uses: outputs must not share it.
        self._borrowed: set[int] = set()
        # Resident weights that were used: outputs must not share their memory either.
        self._lent: list[Tensor] = []

    def begin(self, inputs: Sequence[Tensor]) -> None:
        """Store the inputs in their slots."""
        self._values = dict(zip(self._plan.inputs, inputs, strict=True))
        self._borrowed |= {_memory(tensor) for tensor in inputs}

    def carry_out(self, number: int) -> int:
        """Run one operation and free the values that are no longer used.

        Returns the number of the operation to continue with.
        """
        operation = self._plan.operations[number]
        if (region := self._find_empty(operation)) is not None:
            return self._skip(region, operation.call)
        try:
            given = self._gather_inputs(operation)
        except WeightctlError:
            raise
        except Exception as error:
            raise self._failure(operation, (), error) from error
        if operation.forms:
            self._keep_loaded(operation)
            self._expect_after(number)
        results = self._compute(number, given)
        if not self._are_of_types(operation, results, self._sizes_of(operation.call)):
            self._refuse(operation, given, results, self._sizes_of(operation.call))
        if self._observe is not None:
            self._show(self._observe, operation, given)
        self._values.update(zip(operation.outputs, results, strict=True))
        if not given:
            self._borrowed |= {_memory(tensor) for tensor in results}
        for slot in operation.frees:
            self._values.pop(slot, None)
        return number + 1

    def _compute(self, number: int, given: Sequence[Tensor | EncodedMatrix]) -> Sequence[Tensor]:
        """Return the results of an operation; constants and fixed ranges are made only once."""
        if number in self._constants:
            return (self._constants[number],)
        operation = self._plan.operations[number]
        first = len(self._checks)
        try:
            sizes = self._sizes_of(operation.call)
            attributes = operation.attributes
            if not operation.is_resolved:
                attributes = resolve_attributes(attributes, sizes)
            lower: Callable[..., Any] = operation.lower
            operands = given
            if given and isinstance(given[-1], EncodedMatrix):
                lower, operands = given[-1].multiply, given[:-1]
            found = lower(*operands, **attributes)
        except Exception as error:
            raise self._failure(operation, given, error) from error
        for place in range(first, len(self._checks)):
            check = self._checks[place]
            failure = self._failure(operation, given, check.error)
            self._checks[place] = DelayedCheck(check.is_wrong, failure)
        if operation.op is CONSTANT or (operation.op is RANGE and operation.is_resolved):
            self._constants[number] = found
        results: Sequence[Tensor] = found if is_tuple(found) else (found,)
        return results

    def _show(
        self,
        observe: ProductObserver,
        operation: Operation,
        given: Sequence[Tensor | EncodedMatrix],
    ) -> None:
        """Call the observer if the operation is a product of a value with a weight."""
        if operation.op is not MATMUL:
            return
        left, right = given[0], operation.inputs[1]
        if isinstance(right, WeightForm) and not isinstance(left, EncodedMatrix):
            observe(right.name, left)

    def _skip(self, region: EmptyRegion, call: int) -> int:
        """Give the results of a region in which they are all empty, and return where it ends."""
        self._kept = {}
        made = region.made
        if made is None:
            sizes = self._sizes_of(call)
            made = [
                (slot, _empty(kind.dtype, kind.device, sizes_of(dims, sizes)))
                for slot, kind, dims in region.outputs
            ]
            if region.is_fixed:
                region.made = made
        self._values.update(made)
        for slot in region.frees:
            self._values.pop(slot, None)
        return region.end

    def outputs(self) -> list[Tensor]:
        """Return the outputs of the graph; those that share memory are copied."""
        found: list[Tensor] = []
        for place in self._plan.outputs:
            tensor = self._tensor(place).contiguous()
            self._borrowed |= {_memory(weight) for weight in self._lent}
            self._lent = []
            memory = _memory(tensor)
            is_part = tensor.untyped_storage().nbytes() != tensor.nbytes
            if is_part or memory in self._borrowed:
                tensor = tensor.clone()
            self._borrowed.add(memory)
            found.append(tensor)
        return found

    def _gather_inputs(self, operation: Operation) -> list[Tensor | EncodedMatrix]:
        given = operation.inputs
        if not operation.forms:
            values = self._values
            return [values[slot] for slot in operation.slots]
        table = operation.table
        if table is not None and not {table.base} & (operation.keeps | self._kept.keys()):
            picked = self._weights.pick_rows(table, self._tensor(given[1]))
            if picked is not None:
                return list(picked)
        if (
            operation.op is MATMUL
            and isinstance(right := given[1], WeightForm)
            and self._weights.ready(right) is None
            and not (self._kept and right.base in self._kept)
        ):
            matrix = self._weights.matrix(right)
            if matrix is not None:
                return [self._tensor(given[0]), matrix]
        return [self._tensor(place) for place in given]

    def _tensor(self, place: Place) -> Tensor:
        if not isinstance(place, WeightForm):
            return self._values[place]
        if (ready := self._weights.ready(place)) is not None:
            self._lent.append(ready)
            return ready
        tensor = self._kept.get(place.base)
        if tensor is None:
            tensor = self._weights.tensor(place.base)
            if self._weights.is_borrowed(place):
                self._borrowed.add(_memory(tensor))
        self._loaded[place.base] = tensor
        return place.view(tensor)

    def _keep_loaded(self, operation: Operation) -> None:
        """Keep the weights of an operation that the next one uses."""
        if self._loaded or self._kept:
            self._kept = {
                form: tensor for form, tensor in self._loaded.items() if form in operation.keeps
            }
            self._loaded = {}

    def _expect_after(self, number: int) -> None:
        """Start reading ahead the weights of the next operation that uses weights."""
        if self._weights.is_resident:
            return
        keeps = self._plan.operations[number].keeps
        number += 1
        while number < len(self._plan.operations):
            operation = self._plan.operations[number]
            if (region := self._find_empty(operation)) is not None:
                number = region.end
                continue
            number += 1
            if forms := operation.forms:
                is_table = operation.table is not None
                self._weights.expect([] if is_table else [f for f in forms if f not in keeps])
                return

    def _find_empty(self, operation: Operation) -> EmptyRegion | None:
        """Return the region that an operation begins, if all results in it are empty."""
        region = operation.region
        if region is None or self._sizes_of(operation.call).get(region.name) != 0:
            return None
        return region

    def _sizes_of(self, number: int) -> dict[str, int]:
        found = self._sizes[number]
        if found is None:
            call = self._plan.calls[number]
            outer = self._sizes_of(call.caller)
            known = {name: dim for name, dim in call.names.items() if dim.symbols <= outer.keys()}
            found = {name: size_of(dim, outer) for name, dim in known.items()}
            self._sizes[number] = found
        return found

    def _are_of_types(
        self, operation: Operation, results: Sequence[Tensor], sizes: dict[str, int]
    ) -> bool:
        """Whether results are of the types in the graph; False also if a size is not known.

        A name without a size yet takes the size of a result for the rest of the call.
        """
        types = operation.torch_types
        if types is None:
            types = operation.torch_types = tuple(
                (torch_dtype(kind.dtype), torch_device(kind.device), kind.device.kind == "cpu")
                for kind in operation.types
            )
        if len(results) != len(types):
            return False
        for (dtype, device, is_cpu), dims, result in zip(
            types, operation.shapes, results, strict=True
        ):
            # To compare devices takes more time.
            if result.dtype is not dtype or not (
                (is_cpu and result.is_cpu) or result.device == device
            ):
                return False
            shape = result.shape
            if shape != dims and not self._is_of_shape(operation.call, dims, shape, sizes):
                return False
        return True

    def _is_of_shape(
        self, call: int, dims: Sequence[Size], shape: Sequence[int], sizes: dict[str, int]
    ) -> bool:
        if len(dims) != len(shape):
            return False
        for dim, size in zip(dims, shape, strict=True):
            if isinstance(dim, int):
                wanted: int | None = dim
            elif isinstance(dim, str):
                wanted = sizes.setdefault(dim, size)
            else:
                wanted = self._computed.get((call, id(dim)))
                if wanted is None:
                    try:
                        wanted = size_of(dim, sizes)
                    except EngineError:
                        return False
                    self._computed[call, id(dim)] = wanted
            if size != wanted:
                return False
        return True

    def _refuse(
        self,
        operation: Operation,
        given: Sequence[Tensor | EncodedMatrix],
        results: Sequence[Tensor],
        sizes: dict[str, int],
    ) -> None:
        """Raise `EngineError` that says how results differ from the types in the graph."""
        if len(results) != len(operation.types):
            count = f"the operation gave {len(results)} results instead of {len(operation.types)}"
            raise self._failure(operation, given, EngineError(count))
        for kind, dims, result in zip(operation.types, operation.shapes, results, strict=True):
            if len(dims) == result.ndim:
                for dim, size in zip(dims, result.shape, strict=True):
                    if isinstance(dim, str):
                        sizes.setdefault(dim, size)
            try:
                shape = sizes_of(dims, sizes)
            except EngineError as error:
                raise self._failure(operation, given, error) from error
            same_place = result.device == torch_device(kind.device)
            if (
                result.dtype is not torch_dtype(kind.dtype)
                or result.shape != shape
                or not same_place
            ):
                wrong = (
                    f"the operation gave {describe_tensor(result)} instead of {kind} with "
                    f"shape {list(shape)}"
                )
                raise self._failure(
                    operation,
                    given,
                    EngineError(wrong, hint="`infer` and `lower` of the operation do not match"),
                )

    def _failure(
        self, operation: Operation, given: Sequence[Tensor | EncodedMatrix], error: Exception
    ) -> EngineError:
        name = operation.attributes.get("function", operation.op.name)
        operands = " and ".join(map(_describe, given))
        call = self._plan.calls[operation.call]
        places = [f"in {operation.path}"] if operation.path else []
        if operation.call:
            prefix = f" for `{call.prefix}`" if call.prefix else ""
            places.append(f"called as {call.name}{prefix}")
        where = f" ({', '.join(places)})" if places else ""
        reason = error.message if isinstance(error, WeightctlError) else str(error).strip()
        subject = f"{name}{f' of {operands}' if operands else ''}{where}"
        return EngineError(
            f"{subject}: {reason or type(error).__name__}", hint=getattr(error, "hint", "")
        )


@lru_cache(maxsize=64)
def _empty(dtype: DType, device: DeviceRef, shape: tuple[int, ...]) -> Tensor:
    import torch

    return torch.empty(shape, dtype=torch_dtype(dtype), device=torch_device(device))


def _describe(given: Tensor | EncodedMatrix) -> str:
    return str(given) if isinstance(given, EncodedMatrix) else describe_tensor(given)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
