"""The devices of this machine, and one clear error for those that it lacks."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import cast

from weightctl.device import CPU, DeviceRef
from weightctl.errors import EngineError

__all__ = ["devices_of", "require_devices", "require_placed"]

_ON_THE_CPU = "InferenceSession() runs on the CPU"


def devices_of(given: object) -> tuple[DeviceRef, ...]:
    """Return the devices that are given: one, or several; `EngineError` for what are none."""
    # One is a record of two, and text is of letters: neither is a collection of devices.
    if isinstance(given, DeviceRef | str) or not isinstance(given, Iterable):
        several: list[object] = [given]
    else:
        several = list(cast("Iterable[object]", given))
    found: list[DeviceRef] = []
    for device in several:
        if not isinstance(device, DeviceRef):
            raise EngineError(
                f"{device!r} is not a device", hint="DeviceRef.CPU() and DeviceRef.GPU(0) are"
            )
        found.append(device)
    return tuple(found)


def require_devices(devices: Iterable[DeviceRef]) -> None:
    """Raise `EngineError` where this machine, or its torch, lacks one of the devices."""
    _require_torch()
    wanted = [device for device in devices if device.kind != "cpu"]
    if wanted:
        _require_gpus(max(wanted, key=lambda device: device.id))


def _require_torch() -> None:
    if find_spec("torch") is None:
        raise EngineError(
            "graphs run on torch, which is not installed",
            hint="pip install 'weightctl[torch]'",
        )


def _require_gpus(last: DeviceRef) -> None:
    import torch

    # The builds for AMD have CUDA's names too.
    if torch.version.cuda is None and torch.version.hip is None:
        raise EngineError(
            f"{last} was asked for, and torch {torch.__version__} is built without CUDA",
            hint=f"install a torch with CUDA, or leave the devices out: {_ON_THE_CPU}",
        )
    count = torch.cuda.device_count()
    if count == 0:
        raise EngineError(
            f"{last} was asked for, and torch finds no GPU on this machine",
            hint=f"does `nvidia-smi` list one? without one {_ON_THE_CPU}",
        )
    if last.id >= count:
        found = "is one, gpu:0" if count == 1 else f"are {count}, gpu:0 to gpu:{count - 1}"
        raise EngineError(f"{last} was asked for, and there {found}", hint="they count from 0")


def require_placed(
    graph_name: str, used: Iterable[DeviceRef], devices: Iterable[DeviceRef]
) -> None:
    """Raise `EngineError` where a graph is placed on devices that a session does not have.

    The processor that the program runs on is always there.
    """
    has = {CPU, *devices}
    lacking = sorted({*used} - has)
    if lacking:
        names = " and ".join(map(str, lacking))
        wanted = ", ".join(f"DeviceRef.{device.kind.upper()}({device.id})" for device in lacking)
        raise EngineError(
            f"graph `{graph_name}` is placed on {names}; the session has "
            f"{' and '.join(sorted(map(str, has)))}",
            hint=f"name them to the session: InferenceSession(devices=[{wanted}])",
        )
