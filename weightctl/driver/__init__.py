"""Devices and arrays, under the documented names of `driver`."""

from __future__ import annotations

from weightctl.device import DeviceRef
from weightctl.weights.buffer import Buffer
from weightctl.weights.dlpack import DLPackArray

__all__ = ["CPU", "Accelerator", "Buffer", "DLPackArray", "Device", "Tensor"]

Device = DeviceRef
Tensor = Buffer
CPU = DeviceRef.CPU
Accelerator = DeviceRef.GPU
