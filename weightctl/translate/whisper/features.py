"""The input of Whisper models: the mel filter bank, which files of whisper.cpp contain.

The scale and the normalization are those of M. Slaney's Auditory Toolbox (1998), which librosa
uses by default: linear below 1000 Hz, logarithmic above, and each triangle has the area of its
width in Hz. OpenAI computed the filters of its checkpoints with librosa.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SAMPLE_RATE, _WINDOW = 16_000, 400
# The seconds that a model hears at once, and the samples between two frames.
_SECONDS, _HOP = 30, 160
# Below this frequency, a mel has the same width everywhere.
_KNEE_HZ, _HZ_PER_MEL = 1000.0, 200.0 / 3
# Above it, 27 mels are a factor of 6.4.
_LOG_STEP = math.log(6.4) / 27
_KNEE_MEL = _KNEE_HZ / _HZ_PER_MEL


def compute_mel_filters(count: int) -> NDArray[np.float32]:
    """Return the filters from 0 Hz to half the sample rate: shape `(count, 201)`."""
    import numpy as np

    highest = _SAMPLE_RATE / 2
    top = _KNEE_MEL + math.log(highest / _KNEE_HZ) / _LOG_STEP
    mels = np.linspace(0.0, top, count + 2)
    linear = mels * _HZ_PER_MEL
    logarithmic = _KNEE_HZ * np.exp(_LOG_STEP * (mels - _KNEE_MEL))
    corners = np.where(mels < _KNEE_MEL, linear, logarithmic)
    bins = np.linspace(0.0, highest, _WINDOW // 2 + 1)
    distances = corners[:, None] - bins
    widths = np.diff(corners)[:, None]
    rising = -distances[:-2] / widths[:-1]
    falling = distances[2:] / widths[1:]
    triangles = np.maximum(0.0, np.minimum(rising, falling)).astype(np.float32)
    areas = 2.0 / (corners[2:] - corners[:-2])
    # The first value is -0, as in OpenAI's file `mel_filters.npz`.
    return (triangles * areas[:, None]).astype(np.float32)


def make_preprocessor_config(count: int) -> dict[str, Any]:
    """Return the content of preprocessor_config.json for a model with `count` mel filters."""
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "feature_size": count,
        "sampling_rate": _SAMPLE_RATE,
        "n_fft": _WINDOW,
        "hop_length": _HOP,
        "chunk_length": _SECONDS,
        "n_samples": _SECONDS * _SAMPLE_RATE,
        "nb_max_frames": _SECONDS * _SAMPLE_RATE // _HOP,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
    }
