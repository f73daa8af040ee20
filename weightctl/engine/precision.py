"""The precision of products on GPUs: float32 is exact, and sums of short floats are in float32."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["exact_products"]


@contextmanager
def exact_products() -> Generator[None]:
    """Let torch compute products on GPUs as on the CPU, within this context.

    By default, torch rounds the parts of a sum of float16 or bfloat16 to that type, and rounds
    operands of convolutions to TF32, which has 10 bits. A graph says in which dtype it computes, so
    the engine allows neither. The settings are those of the whole process, and are restored.
    """
    import torch

    # torch has no annotations for some of the settings. Up to 2.8 it has only the older ones, and
    # from 2.9 on it refuses the older ones for TF32 if the newer ones have been used.
    matmul: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    settings = [
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
        yield
