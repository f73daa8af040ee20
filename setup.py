"""The part of the build that pyproject.toml has no settled words for: the compiled kernels."""

from glob import glob

from setuptools import Extension, setup

KERNELS = "weightctl/kernels"

setup(
    ext_modules=[
        Extension(
            "weightctl.kernels._native",
            sources=sorted(glob(f"{KERNELS}/*.c")),
            depends=sorted(glob(f"{KERNELS}/*.h")),
            # The bytes are those of float32 arithmetic as it is written: no fused multiply-add, and
            # no shortcuts.
            extra_compile_args=[
                "-std=gnu11", "-O3", "-ffp-contract=off", "-fno-fast-math", "-fno-math-errno",
                "-fno-trapping-math", "-fvisibility=hidden", "-Wall", "-Wextra", "-g0",
            ],
            py_limited_api=True,
            optional=True,  # without a C compiler NumPy serves
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)  # fmt: skip
