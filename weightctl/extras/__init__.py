"""What few users need: packages that weightctl finds by their entry points, as any other package.

Nothing else in weightctl imports them. pyproject.toml lists the entry points.
"""

from __future__ import annotations

from weightctl.formats import FormatLine

FORMATS = {
    "whisper.cpp": FormatLine(
        "weightctl.extras.whisper_cpp",
        (".bin",),
        prefix="ggml-",
        cast="weightctl.extras.whisper.types:cast_to_one_type",
    ),
    "npz": FormatLine("weightctl.extras.npz", (".npz",), is_written=False),
    "keras": FormatLine(
        "weightctl.extras.keras",
        (".h5", ".keras", ".hdf5"),
        is_written=False,
        list_suffix=".weights.json",
        list_parts="weightctl.extras.keras.weight_index:list_keras_parts",
    ),
}
