"""Devices of a session: checks that they exist, their precision, and the loading of torch."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from threading import Lock, Thread
from typing import Any, cast

from weightctl.device import CPU, DeviceRef, as_device
from weightctl.errors import ArgumentTypeError, EngineError
from weightctl.system.registry import name_install

_ON_THE_CPU = "InferenceSession() runs on the CPU"


def preload_torch() -> None:
    """Start to import torch on another thread; an error appears where torch is used."""

    def load() -> None:
        with suppress(Exception):
            import torch  # noqa: F401  # pyright: ignore[reportUnusedImport]

    Thread(target=load, name="weightctl-preload").start()


def devices_of(given: object) -> tuple[DeviceRef, ...]:
    """Return one device or several as a tuple; raises `EngineError` for any other value."""
    # A `DeviceRef` is a tuple and text is a sequence, but neither is a collection of devices.
    if isinstance(given, DeviceRef | str) or not isinstance(given, Iterable):
        several: list[object] = [given]
    else:
        several = list(cast("Iterable[object]", given))
    try:
        return tuple(map(as_device, several))
    except ArgumentTypeError as error:
        raise EngineError(error.message, hint=error.hint) from error


def require_devices(devices: Iterable[DeviceRef]) -> None:
    """Raise `EngineError` if this machine, or its build of torch, lacks one of the devices."""
    _require_torch()
    wanted = [device for device in devices if device.kind != "cpu"]
    if wanted:
        _require_gpus(max(wanted, key=lambda device: device.id))


def _require_torch() -> None:
    if find_spec("torch") is None:
        raise EngineError(
            "graphs need torch, which is not installed",
            hint=f"install it: {name_install('torch')}",
        )


def _require_gpus(last: DeviceRef) -> None:
    import torch

    # torch's builds for AMD use the names of CUDA too.
    if torch.version.cuda is None and torch.version.hip is None:
        raise EngineError(
            f"{last} is not available: torch {torch.__version__} was built without GPU support",
            hint=f"install a torch build with CUDA or ROCm, or leave out `devices`: {_ON_THE_CPU}",
        )
    count = torch.cuda.device_count()
    if count == 0:
        raise EngineError(
            f"{last} is not available: torch finds no GPU on this machine",
            hint="check that `nvidia-smi` lists a GPU; to run on the CPU, leave out `devices`",
        )
    if last.id >= count:
        found = "has only gpu:0" if count == 1 else f"has gpu:0 to gpu:{count - 1}"
        raise EngineError(
            f"{last} is not available: this machine {found}", hint="GPUs are numbered from 0"
        )


def require_placed(
    graph_name: str, used: Iterable[DeviceRef], devices: Iterable[DeviceRef]
) -> None:
    """Raise `EngineError` if a graph uses devices that a session does not have.

    The CPU is always available.
    """
    has = {CPU, *devices}
    lacking = sorted({*used} - has)
    if lacking:
        names = " and ".join(map(str, lacking))
        wanted = ", ".join(f"DeviceRef.{device.kind.upper()}({device.id})" for device in lacking)
        raise EngineError(
            f"graph `{graph_name}` is placed on {names}, but the session has "
            f"{' and '.join(sorted(map(str, has)))}",
            hint=f"pass the devices to the session: InferenceSession(devices=[{wanted}])",
        )


@contextmanager
def exact_products() -> Generator[None]:
    """Let torch compute products on GPUs as on the CPU, within this context.

    By default, torch rounds the parts of a sum of float16 or bfloat16 to that type, and rounds
    operands of convolutions to TF32, which has 10 bits. A graph says in which dtype it computes, so
    the engine allows neither. The settings are those of the whole process. They are restored when
    the last of the threads that need them is done.
    """
    with _PRECISION.lock:
        if not _PRECISION.users:
            _PRECISION.restore = _make_exact()
        _PRECISION.users += 1
    try:
        yield
    finally:
        with _PRECISION.lock:
            _PRECISION.users -= 1
            if not _PRECISION.users:
                _PRECISION.restore.close()


class _Precision:
    """How many threads need exact products now, and what restores the settings of before."""

    def __init__(self) -> None:
        self.lock, self.users, self.restore = Lock(), 0, ExitStack()


_PRECISION = _Precision()


def _make_exact() -> ExitStack:
    """Set torch's settings, and return what restores them; nothing is changed after an error."""
    import torch

    # torch has no annotations for some of the settings. Up to 2.8 it has only the older ones, and
    # from 2.9 on it refuses the older ones for TF32 if the newer ones have been used.
    matmul: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    settings: list[tuple[Any, str, bool | str]] = [
        (matmul, "allow_bf16_reduced_precision_reduction", False),
        (matmul, "allow_fp16_reduced_precision_reduction", False),
    ]
    if hasattr(matmul, "fp32_precision"):
        settings += [(matmul, "fp32_precision", "ieee"), (cudnn.conv, "fp32_precision", "ieee")]
    else:
        settings += [(matmul, "allow_tf32", False), (cudnn, "allow_tf32", False)]
    with ExitStack() as restored:
        for owner, name, value in settings:
            restored.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        return restored.pop_all()
