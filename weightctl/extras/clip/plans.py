"""The plan for a CLIP model with the names of OpenAI and OpenCLIP, or with those of transformers.

OpenAI's program and OpenCLIP have the same names. Queries, keys and values are one tensor there,
and the projections to embeddings are transposed.
"""

from __future__ import annotations

import os
from dataclasses import replace
from math import isqrt
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from weightctl.errors import ArchitectureError
from weightctl.extras.clip.names import IGNORED, JIT_SIZES, list_clip_pairs
from weightctl.formats.huggingface import CONFIG, OPEN_CLIP, config, is_config_of, json_document
from weightctl.plan.choices import Names
from weightctl.plan.plan import Plan
from weightctl.text.untyped import is_list, is_object
from weightctl.text.wording import join_names, pluralize
from weightctl.translate.layouts import find_layout
from weightctl.weights.derived import Derived, DerivedTensor, tensor_of
from weightctl.weights.metadata import text
from weightctl.weights.steps.rows import RowRange
from weightctl.weights.steps.stacked import Joined
from weightctl.weights.steps.transposed import Transposed
from weightctl.weights.tree import Checkpoint, header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.extras.clip.names import ClipPair
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import Header

_HEAD = 64
_EPSILON = 1e-5
_TEXT = {"context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio"}
_VISION = {"image_size", "layers", "width", "head_width", "patch_size", "mlp_ratio"}
# Settings that change no computation of embeddings.
_UNUSED = {"hf_tokenizer_name", "tokenizer_kwargs", "patch_dropout"}
# The tensors that show sizes.
_MATRICES = {
    "token_embedding.weight", "positional_embedding", "visual.conv1.weight",
    "visual.positional_embedding", "text_projection",
}  # fmt: skip
_READ = ("resblocks.0.ln_1.weight", "resblocks.0.mlp.c_fc.bias")
_WHOLE = "check that the checkpoint is a whole CLIP model with square images"
_MEAN = [0.48145466, 0.4578275, 0.40821073]
_DEVIATION = [0.26862954, 0.26130258, 0.27577711]
ClipConvention: TypeAlias = Literal["openai", "hugging_face"]

_TITLES: dict[ClipConvention, str] = {"openai": "OpenAI", "hugging_face": "Hugging Face"}
_MOST_NAMED = 4
_ASSUMED = (
    "the file states neither the number of heads nor the activation: heads of 64 elements and "
    "QuickGELU are assumed, as in OpenAI's models. For a model of OpenCLIP, put its "
    f"{OPEN_CLIP} beside the file"
)
_NO_TOKENIZER = "the tokenizer is not written: copy that of any CLIP model of transformers"
_UNSTATED = (
    "the file does not state the number of heads, the width of MLPs and the activation, and those "
    "of this model differ from what OpenAI's program assumes: OpenCLIP needs them in its config, "
    f"which a directory as output has ({OPEN_CLIP})"
)


def find_clip(header: Header) -> ClipConvention | None:
    """Return the naming convention of a CLIP model; None if a checkpoint is not one."""
    if find_layout(header) == "clip":
        return "openai"
    document = config(header)
    is_clip = document.get("model_type") == "clip" and is_config_of(document, header)
    return "hugging_face" if is_clip else None


def plan_layout(
    weights: Checkpoint, format_name: str, names: Names, *, is_model: bool
) -> Plan | None:
    """Return the plan for a CLIP model whose names change; None for any other plan."""
    is_openai = find_layout(header_of(weights)) == "clip"
    is_to_hugging_face = names is Names.HF or (names is Names.AUTO and is_model)
    if names is not Names.OPENAI and not (is_to_hugging_face and is_openai):
        return None
    wanted: ClipConvention = "openai" if names is Names.OPENAI else "hugging_face"
    return plan_clip(weights, format_name, wanted, is_model=is_model)


def plan_clip(
    weights: Checkpoint, format_name: str, wanted: ClipConvention, *, is_model: bool
) -> Plan | None:
    """Plan to store a CLIP model with the names of a convention.

    `is_model` states that the output is a model directory. Returns None if the checkpoint is not a
    CLIP model; one that has these names already is copied. Raises `ArchitectureError` if tensors
    are missing, unknown or of a wrong shape, or for a model that does not exist in the other
    convention.
    """
    header = header_of(weights)
    own = find_clip(header)
    if own is None:
        return None
    if own == wanted:
        return Plan.copy(weights, format_name)
    where = header.files[0] if header.files else "the checkpoint"
    names = [name for name in (*header.tensors, *header.aliases) if name not in IGNORED]
    pairs = list_clip_pairs(names)
    _check_names(names, pairs, own, where)
    source = source_of(weights)
    stored = {name: tensor_of(source, name) for name in names}
    in_openai = stored if own == "openai" else _to_openai(stored, pairs)
    model = read_tower_sizes({name: each.info.shape for name, each in in_openai.items()}, where)
    model, notes = _complete(model, header, own)
    documents: dict[str, bytes] = {}
    if wanted == "openai":
        tensors: Mapping[str, ReadableTensor] = in_openai
        if is_model:
            documents[OPEN_CLIP] = json_document(make_open_clip_config(model))
        elif not is_as_openai(model):
            notes.append(_UNSTATED)
    else:
        tensors = _to_hugging_face(stored, pairs, model)
        if is_model:
            dtype = _dtype(tensors.values())
            documents[CONFIG] = json_document(make_clip_config(model, dtype))
            documents["preprocessor_config.json"] = json_document(make_image_config(model))
            notes.append(_NO_TOKENIZER)
    tree = Checkpoint(Derived(source, tensors, {"format": text("pt")}, leaves={}))
    return replace(
        Plan.copy(tree, format_name),
        documents=documents,
        notes=tuple(notes),
        translation=f"clip, {_TITLES[own]} -> {_TITLES[wanted]}",
    )


def _check_names(
    names: Sequence[str], pairs: Sequence[ClipPair], own: ClipConvention, where: str
) -> None:
    expected = [
        name
        for pair in pairs
        for name in ((pair.openai,) if own == "openai" else pair.hugging_face)
    ]
    problems: list[str] = []
    present, known = set(names), set(expected)
    missing = [name for name in expected if name not in present]
    unknown = [name for name in names if name not in known]
    for what, each in (("missing", missing), ("unknown", unknown)):
        if each:
            are = "is" if len(each) == 1 else "are"
            listed = join_names(each, _MOST_NAMED)
            problems.append(f"{pluralize(len(each), 'tensor')} {are} {what}: {listed}")
    if problems:
        message = f"{where}: the tensors are not those of a CLIP model with two transformers:"
        raise ArchitectureError(
            "\n  ".join([message, *problems]),
            hint="check that the checkpoint is complete; transformers' CLIP has no ResNet, no "
            "layer scale and no text decoder",
        )


def _complete(model: ClipModel, header: Header, own: ClipConvention) -> tuple[ClipModel, list[str]]:
    """Return a model with its heads and activation, and notes about what is assumed."""
    directory = os.path.dirname(header.files[0]) if header.files else ""
    if own == "hugging_face":
        where = os.path.join(directory, CONFIG)
        return read_clip_config(model, config(header), where), []
    where = os.path.join(directory, OPEN_CLIP)
    stated = read_open_clip_config(model, config(header, OPEN_CLIP), where)
    if stated is not None:
        return stated, []
    if not is_as_openai(model):
        raise ArchitectureError(
            f"the widths {model.text.width} and {model.vision.width} of the encoders do not divide "
            "into the heads of OpenAI's models, or their MLPs have other widths",
            hint=f"put the {OPEN_CLIP} of the model beside the file",
        )
    return model, [] if header.tensors.keys() >= JIT_SIZES else [_ASSUMED]


def _to_openai(
    stored: Mapping[str, ReadableTensor], pairs: Sequence[ClipPair]
) -> dict[str, ReadableTensor]:
    made: dict[str, ReadableTensor] = {}
    for name, parts, form in pairs:
        tensors = [stored[part] for part in parts]
        made[name] = tensors[0]
        if form == "joined":
            made[name] = DerivedTensor(name, Joined(len(tensors)), tensors)
        elif form == "transposed":
            made[name] = DerivedTensor(name, Transposed(), tensors)
    return made


def _to_hugging_face(
    stored: Mapping[str, ReadableTensor], pairs: Sequence[ClipPair], model: ClipModel
) -> dict[str, ReadableTensor]:
    made: dict[str, ReadableTensor] = {}
    for name, parts, form in pairs:
        whole = stored[name]
        made[parts[0]] = whole
        if form == "transposed":
            made[parts[0]] = DerivedTensor(parts[0], Transposed(), [whole])
        elif form == "joined":
            width = (model.vision if name.startswith("visual.") else model.text).width
            for number, part in enumerate(parts):
                rows = RowRange(number * width, (number + 1) * width)
                made[part] = DerivedTensor(part, rows, [whole])
    return made


def _dtype(tensors: Any) -> str:
    """Return the dtype of the tensors; float32 if they have several."""
    found = {each.info.encoding.dtype for each in tensors}
    dtype = found.pop() if len(found) == 1 else None
    return "float32" if dtype is None else str(dtype.value)


# The sizes of CLIP models, and their configs for transformers and for OpenCLIP.


class ClipTower(NamedTuple):
    """The sizes of one of the two encoders; `inner` is the width of its MLP."""

    layers: int
    width: int
    inner: int
    heads: int = 0


class ClipModel(NamedTuple):
    """The sizes of a CLIP model.

    `positions` and `vocabulary` are those of texts, `patch` and `grid` those of images: the width
    of a patch in pixels, and the number of patches along a side. `projected` is the size of an
    embedding. `preprocessing` has the mean and deviation of pixels.
    """

    text: ClipTower
    vision: ClipTower
    positions: int
    vocabulary: int
    patch: int
    grid: int
    projected: int
    quick_gelu: bool = True
    preprocessing: tuple[list[Any], list[Any]] = (_MEAN, _DEVIATION)


def read_tower_sizes(shapes: Mapping[str, tuple[int, ...]], where: str) -> ClipModel:
    """Return the sizes that the shapes of OpenAI's tensors show, with heads as in OpenAI's models.

    Raises `ArchitectureError` if the shapes contradict each other.
    """
    for name, shape in shapes.items():
        rank = 4 if name == "visual.conv1.weight" else 2 if name in _MATRICES else 1
        is_read = name in _MATRICES or name.endswith(_READ)
        if is_read and (len(shape) != rank or 0 in shape):
            raise ArchitectureError(
                f"{where}: `{name}` has shape {list(shape)}, expected {rank} sizes above 0",
                hint=_WHOLE,
            )
    text, vision = (_read_tower(shapes, prefix) for prefix in ("", "visual."))
    vocabulary, positions = shapes["token_embedding.weight"][0], shapes["positional_embedding"][0]
    kernel, patches = shapes["visual.conv1.weight"], shapes["visual.positional_embedding"][0] - 1
    patch, grid = kernel[-1], isqrt(max(patches, 0))
    model = ClipModel(
        text, vision, positions, vocabulary, patch, grid, shapes["text_projection"][-1]
    )
    expected = _list_shapes(model, set(shapes))
    if grid * grid != patches:
        del expected["visual.positional_embedding"]
    wrong = [name for name, shape in expected.items() if shapes[name] != shape]
    if wrong or grid * grid != patches:
        name = wrong[0] if wrong else "visual.positional_embedding"
        raise ArchitectureError(
            f"{where}: `{name}` has shape {list(shapes[name])}, expected "
            + (str(list(expected[name])) if wrong else "a row for the class, and for each patch"),
            hint=_WHOLE,
        )
    return model


def _read_tower(shapes: Mapping[str, tuple[int, ...]], prefix: str) -> ClipTower:
    end = ".ln_1.weight"
    start = f"{prefix}transformer.resblocks."
    layers = [name for name in shapes if name.startswith(start) and name.endswith(end)]
    width = shapes[f"{start}0.ln_1.weight"][0]
    return ClipTower(len(layers), width, shapes[f"{start}0.mlp.c_fc.bias"][0], width // _HEAD)


def _list_shapes(model: ClipModel, names: set[str]) -> dict[str, tuple[int, ...]]:
    """Return the shape that each tensor must have, by OpenAI's names."""
    text, vision = model.text, model.vision
    shapes: dict[str, tuple[int, ...]] = {
        "logit_scale": (),
        "token_embedding.weight": (model.vocabulary, text.width),
        "positional_embedding": (model.positions, text.width),
        "text_projection": (text.width, model.projected),
        "visual.class_embedding": (vision.width,),
        "visual.positional_embedding": (model.grid**2 + 1, vision.width),
        "visual.conv1.weight": (vision.width, 3, model.patch, model.patch),
        "visual.proj": (vision.width, model.projected),
    }
    for name in names - shapes.keys():
        tower = vision if name.startswith("visual.") else text
        rows, columns = tower.width, tower.width
        if ".in_proj_" in name:
            rows = 3 * tower.width
        elif ".c_fc." in name:
            rows = tower.inner
        elif ".c_proj." in name:
            columns = tower.inner
        is_matrix = name.endswith("weight") and ".ln_" not in f".{name}"
        shapes[name] = (rows, columns) if is_matrix else (rows,)
    return {name: shape for name, shape in shapes.items() if name in names}


def is_as_openai(model: ClipModel) -> bool:
    """Whether a model has the heads and the activation that OpenAI's program assumes."""
    towers = (model.text, model.vision)
    return model.quick_gelu and all(
        each.heads * _HEAD == each.width and each.inner == 4 * each.width for each in towers
    )


def read_clip_config(model: ClipModel, document: Mapping[str, Any], where: str) -> ClipModel:
    """Return a model with the heads and the activation that transformers' config.json states.

    Raises `ArchitectureError` for what OpenAI's and OpenCLIP's programs do not have.
    """
    configs = [
        {**_object(document, f"{part}_config"), **_object(document, f"{part}_config_dict")}
        for part in ("text", "vision")
    ]
    towers = [
        each._replace(heads=_heads(stated.get("num_attention_heads", usual), each, where))
        for each, stated, usual in zip((model.text, model.vision), configs, (8, 12), strict=True)
    ]
    activations = {str(stated.get("hidden_act", "quick_gelu")) for stated in configs}
    epsilons = {str(stated.get("layer_norm_eps", _EPSILON)) for stated in configs}
    is_usual = epsilons == {str(_EPSILON)} and activations in ({"quick_gelu"}, {"gelu"})
    if not is_usual:
        raise ArchitectureError(
            f"{where}: OpenCLIP has one activation, `quick_gelu` or `gelu`, and the epsilon "
            f"{_EPSILON} of norms, but the config states {sorted(activations)} and "
            f"{sorted(epsilons)}",
            hint="models with other values exist only in transformers",
        )
    quick_gelu = activations == {"quick_gelu"}
    return model._replace(text=towers[0], vision=towers[1], quick_gelu=quick_gelu)


def read_open_clip_config(
    model: ClipModel, document: Mapping[str, Any], where: str
) -> ClipModel | None:
    """Return a model with what open_clip_config.json states; None if it is of another model.

    Raises `ArchitectureError` for settings that transformers' CLIP does not have.
    """
    stated = _object(document, "model_cfg")
    text, vision = _object(stated, "text_cfg"), _object(stated, "vision_cfg")
    widths = (text.get("width", 512), vision.get("width", 768), stated.get("embed_dim"))
    if widths != (model.text.width, model.vision.width, model.projected):
        return None
    unknown = [
        *sorted(stated.keys() - {"embed_dim", "quick_gelu", "text_cfg", "vision_cfg"}),
        *sorted(text.keys() - _TEXT - _UNUSED),
        *sorted(vision.keys() - _VISION - _UNUSED),
    ]
    if unknown:
        raise ArchitectureError(
            f"{where} states `{unknown[0]}`, which CLIP models of transformers do not have",
            hint="only the usual text and image transformers of OpenCLIP are converted",
        )
    head = _positive(vision.get("head_width", _HEAD), where)
    heads = (text.get("heads", 8), model.vision.width // head)
    towers = [
        each._replace(heads=_heads(count, each, where))
        for each, count in zip((model.text, model.vision), heads, strict=True)
    ]
    pixels = _object(document, "preprocess_cfg")
    mean, deviation = pixels.get("mean", _MEAN), pixels.get("std", _DEVIATION)
    if not (is_list(mean) and is_list(deviation)):
        mean, deviation = _MEAN, _DEVIATION
    return model._replace(
        text=towers[0],
        vision=towers[1],
        quick_gelu=stated.get("quick_gelu", False) is True,
        preprocessing=([*mean], [*deviation]),
    )


def _object(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = document.get(key)
    return found if is_object(found) else {}


def _positive(value: object, where: str) -> int:
    if type(value) is not int or value <= 0:
        raise ArchitectureError(
            f"{where} states the size {value!r:.80}", hint="sizes are positive whole numbers"
        )
    return value


def _heads(value: object, tower: ClipTower, where: str) -> int:
    heads = _positive(value, where)
    if tower.width % heads:
        raise ArchitectureError(
            f"{where} states {heads} heads, which do not divide the width {tower.width}",
            hint="check that the config belongs to this checkpoint",
        )
    return heads


def make_clip_config(model: ClipModel, dtype: str) -> dict[str, Any]:
    """Return the config.json of a model for transformers."""
    activation = "quick_gelu" if model.quick_gelu else "gelu"
    text, vision = (
        {
            "model_type": f"clip_{kind}_model",
            "hidden_size": tower.width,
            "intermediate_size": tower.inner,
            "num_hidden_layers": tower.layers,
            "num_attention_heads": tower.heads,
            "hidden_act": activation,
            "layer_norm_eps": _EPSILON,
            "projection_dim": model.projected,
        }
        for kind, tower in (("text", model.text), ("vision", model.vision))
    )
    # With this id of the end, transformers takes the position of the highest token, as OpenAI does.
    text |= {
        "vocab_size": model.vocabulary,
        "max_position_embeddings": model.positions,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    vision |= {"image_size": model.patch * model.grid, "patch_size": model.patch}
    return {
        "architectures": ["CLIPModel"],
        "model_type": "clip",
        "projection_dim": model.projected,
        "text_config": text,
        "vision_config": vision,
        "torch_dtype": dtype,
    }


def make_image_config(model: ClipModel) -> dict[str, Any]:
    """Return the preprocessor_config.json of a model for transformers."""
    side, (mean, deviation) = model.patch * model.grid, model.preprocessing
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": side},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": {"height": side, "width": side},
        "do_normalize": True,
        "image_mean": mean,
        "image_std": deviation,
        "do_convert_rgb": True,
    }


def make_open_clip_config(model: ClipModel) -> dict[str, Any]:
    """Return the open_clip_config.json of a model."""
    text, vision, (mean, deviation) = model.text, model.vision, model.preprocessing
    return {
        "model_cfg": {
            "embed_dim": model.projected,
            "quick_gelu": model.quick_gelu,
            "vision_cfg": {
                "image_size": model.patch * model.grid,
                "layers": vision.layers,
                "width": vision.width,
                "head_width": vision.width // vision.heads,
                "patch_size": model.patch,
                "mlp_ratio": _ratio(vision),
            },
            "text_cfg": {
                "context_length": model.positions,
                "vocab_size": model.vocabulary,
                "width": text.width,
                "heads": text.heads,
                "layers": text.layers,
                "mlp_ratio": _ratio(text),
            },
        },
        "preprocess_cfg": {"mean": mean, "std": deviation},
    }


def _ratio(tower: ClipTower) -> float:
    """Return a number that, times the width and rounded down, is the width of the MLP."""
    ratio = tower.inner / tower.width
    return ratio if int(tower.width * ratio) == tower.inner else (tower.inner + 0.5) / tower.width
