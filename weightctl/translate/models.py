"""A model in the other naming convention: its tree, and the documents beside it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import ArchitectureError, FormatError
from weightctl.families.common_keys import describe_foreign_classes
from weightctl.families.config_writing import check_loaded, model_type_of, to_gguf, to_hugging_face
from weightctl.families.index import is_added
from weightctl.families.llama_cpp import RuntimeDifference, describe_difference
from weightctl.families.matching import EMBEDDING_WEIGHT
from weightctl.families.model import ARCHITECTURE, SOURCE_TYPE
from weightctl.families.multimodal import is_multimodal
from weightctl.families.recognition import choose_family
from weightctl.families.towers import find_tower
from weightctl.formats.huggingface import CONFIG, config, json_document, model_directory
from weightctl.plan.file_types import file_type
from weightctl.plan.plan import Plan
from weightctl.schemes.settings import without_settings
from weightctl.storage.files import exists, open_reader
from weightctl.system.phases import begin_phase
from weightctl.text.untyped import is_list, is_object, object_of
from weightctl.text.wording import join_names, pluralize
from weightctl.translate import card, tokenizer
from weightctl.translate.copies import check_copies
from weightctl.translate.tensors import translate_tensors
from weightctl.weights.derived import Derived
from weightctl.weights.json_file import read_json
from weightctl.weights.metadata import MetadataValue, text
from weightctl.weights.steps.numbers import numbers_of
from weightctl.weights.tree import Checkpoint, header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from weightctl.families import RecognizedModel
    from weightctl.families.config_keys import Fields, NamingConvention
    from weightctl.weights.derived import ReadableTensor

# llama.cpp's `llama_pooling_type`, by keys in the config of a `Pooling` module.
_KINDS = {
    "pooling_mode_mean_tokens": 1,
    "pooling_mode_cls_token": 2,
    "pooling_mode_lasttoken": 3,
}
_MAX_SIZE = 1_000_000
_HINT = "move modules.json away to convert the model without its pooling"
_NO_TOKENIZER = "none"
_MOST_NAMED = 4
_POOLING = (
    "the pooling of sentence embeddings is not written: copy `modules.json` and the directory "
    "`1_Pooling` from the original model"
)
# Keys of a multimodal model that also its text model can have.
_OUTER_KEYS = ("bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype")
_YARN_BETAS = (32.0, 1.0)
_TITLES: dict[NamingConvention, str] = {"gguf": "GGUF", "hugging_face": "Hugging Face"}


class Translation(NamedTuple):
    """A model in a naming convention.

    - `weights`: its tensors and metadata.
    - `documents`: the files to be written beside the tensors, by name.
    - `notes`: notes for the user.
    - `text`: a description of the change, empty if there is none.
    - `tower`: the names of the tensors that are not of the text model.
    """

    weights: Checkpoint
    documents: Mapping[str, bytes]
    notes: tuple[str, ...] = ()
    text: str = ""
    tower: frozenset[str] = frozenset()

    def plan(self, format_name: str) -> Plan:
        """Return a plan to store the model in a container format, with its documents."""
        plan = Plan.copy(self.weights, format_name)
        notes = (*plan.notes, *self.notes)
        return replace(plan, documents=self.documents, translation=self.text, notes=notes)


# llama.cpp's number for pooling by a classifier head.
_BY_HEAD = 4


def translate(
    checkpoint: RecognizedModel, convention: NamingConvention, *, has_tower_file: bool = False
) -> Translation:
    """Return a whole model in a naming convention; unchanged if it has this convention.

    A model in the form of MLX becomes one in Hugging Face's form.

    `has_tower_file` states that the tower of a multimodal model is written to a file of its own.
    Only small tensors with settings, and copies of the embedding, are read. Raises
    `ArchitectureError` that lists all tensors that are missing, unexpected or of a wrong shape, or
    if the naming convention cannot express the config, and `TokenizerError` if it cannot express
    the tokenizer.
    """
    if convention not in _TITLES:
        raise ArchitectureError(
            f"`{convention}` is not a naming convention",
            hint=f"use one of {', '.join(_TITLES)}",
        )
    checkpoint.check()
    if convention == checkpoint.convention:
        if checkpoint.is_mlx:
            return _from_mlx(checkpoint)
        if convention == "hugging_face" and _is_restated(checkpoint):
            return _from_release(checkpoint)
        return Translation(checkpoint.tree, {})
    check_copies(checkpoint)
    _check_mtp(checkpoint, convention)
    tensors = translate_tensors(checkpoint, convention)
    made = (_to_gguf if convention == "gguf" else _to_hugging_face)(checkpoint, tensors)
    text = f"{checkpoint.family.name}, {_TITLES[checkpoint.convention]} -> {_TITLES[convention]}"
    left_out = _describe_left_out(checkpoint, convention, has_tower_file=has_tower_file)
    notes = (*made.notes, *left_out)
    return made._replace(text=text, notes=notes)


def _from_mlx(checkpoint: RecognizedModel) -> Translation:
    """Return a model in the form of MLX in Hugging Face's form, with the same files beside it."""
    family = checkpoint.family
    tensors = translate_tensors(checkpoint, "hugging_face")
    config = without_settings(checkpoint.document)
    if "text_config" in config:
        # MLX leaves out the encoders of a multimodal model.
        own = object_of(config, "text_config").get("model_type")
        kind = str(own)
        if kind not in family.model_types:
            kind = model_type_of(family, checkpoint.fields)
        kept = {key: config[key] for key in _OUTER_KEYS if key in config}
        config = {**kept, **family.completed(family.standard(config)), "model_type": kind}
        config["architectures"] = [family.model_types[kind].class_name]
    notes: list[str] = []
    if checkpoint.has_mlx_form:
        notes.append(
            f"{checkpoint.where}: tensors of this {family.name} model have the form of MLX; they "
            "are written in Hugging Face's form"
        )
    if checkpoint.lost_mtp and family.keys[0].hugging_face:
        config[family.keys[0].hugging_face] = 0
    if find_tower(checkpoint.document.get("model_type")) and checkpoint.beside:
        notes.append(
            f"not written: {pluralize(len(checkpoint.beside), 'tensor')} beside the text model, "
            f"whose form in MLX is not supported: {join_names(checkpoint.beside, _MOST_NAMED)}"
        )
    left_out = _describe_left_out(checkpoint, "hugging_face", has_tower_file=True)
    tree = _tree(checkpoint, tensors, {"format": text("pt")})
    return Translation(tree, {CONFIG: json_document(config)}, (*notes, *left_out))


def _is_restated(checkpoint: RecognizedModel) -> bool:
    """Whether the names and the config are not those of the files."""
    return bool(checkpoint.document) and not config(header_of(checkpoint.tree))


def _from_release(checkpoint: RecognizedModel) -> Translation:
    """Return a model that was distributed in another form, with its config and tokenizer."""
    documents = {CONFIG: json_document(checkpoint.document)}
    directory, kind = _directory(checkpoint), str(checkpoint.document["model_type"])
    words = tokenizer.from_directory(directory, checkpoint.config.vocabulary, kind)
    notes: tuple[str, ...] = ()
    if words is None:
        notes += ("the checkpoint has no tokenizer, so no tokenizer files are written",)
    else:
        documents |= tokenizer.to_documents(words, kind, checkpoint.document)
    text = f"{checkpoint.family.name}, release -> {_TITLES['hugging_face']}"
    return Translation(checkpoint.tree, documents, notes, text)


def _check_mtp(checkpoint: RecognizedModel, convention: NamingConvention) -> None:
    """Raise `ArchitectureError` if GGUF has no place for a model's layers for MTP."""
    mtp, count = checkpoint.family.mtp, getattr(checkpoint.config, "mtp_layers", 0)
    if convention == "gguf" and count and mtp is not None and not mtp.in_gguf:
        raise ArchitectureError(
            f"llama.cpp has no place for layers for multi-token prediction (MTP) in the family "
            f"{checkpoint.family.name}, and this model has {pluralize(count, 'layer')} of them",
            hint='to leave them out, use --without mtp (without="mtp" in Python)',
        )


def _describe_left_out(
    checkpoint: RecognizedModel, convention: NamingConvention, *, has_tower_file: bool
) -> Iterator[str]:
    if checkpoint.lost_mtp:
        yield (
            f"{checkpoint.where} states {pluralize(checkpoint.lost_mtp, 'layer')} for multi-token "
            "prediction (MTP), but the checkpoint has none of their tensors: the output states 0"
        )
    if foreign := describe_foreign_classes(checkpoint.family, checkpoint.document):
        yield f"{checkpoint.where}: {foreign}"
    if checkpoint.document and is_added(checkpoint.family):
        # The keys of other families were compared with those of transformers.
        from weightctl.families.nearest import describe_unread_keys

        if unread := describe_unread_keys(checkpoint.family, checkpoint.document):
            yield f"{checkpoint.where}: {unread}"
    beside = checkpoint.beside
    tower = find_tower(checkpoint.document.get("model_type")) if beside else None
    if tower is not None:
        if not has_tower_file:
            kind = "image" if tower.mean else "audio"
            yield (
                f"not written: {pluralize(len(beside), 'tensor')} of the {kind} encoder and its "
                "projection (the tower), which GGUF stores in a file of its own: to write it, use "
                "--mmproj FILE (mmproj=FILE in Python)"
            )
    elif beside:
        shown = join_names(beside, _MOST_NAMED)
        yield (
            f"not written, because {_TITLES[convention]} models do not have these tensors: {shown}"
        )
    if (tensor := checkpoint.tensors.get(EMBEDDING_WEIGHT)) is None:  # of a draft model
        return
    embedding = tensor.origin.sources[0]
    padding = embedding.shape[0] - checkpoint.config.vocabulary
    if padding > 0 and embedding.name in header_of(checkpoint.tree).tensors:
        yield (
            f"not written: the last {padding} rows of {embedding.name}, because the "
            f"config has only {checkpoint.config.vocabulary} tokens"
        )


def _to_gguf(checkpoint: RecognizedModel, tensors: Mapping[str, ReadableTensor]) -> Translation:
    family, directory = checkpoint.family, _directory(checkpoint)
    if family.copied is not None:
        copies = family.copied(checkpoint.config)
        tensors = {**tensors, **{name: tensors[source] for name, source in copies.items()}}
    metadata = {
        ARCHITECTURE: MetadataValue("string", family.gguf_name),
        "general.type": _string("model"),
    }
    notes: list[str] = []
    metadata |= _read_card(checkpoint, directory, notes)
    metadata |= to_gguf(family, _add_tensor_fields(checkpoint))
    check_loaded(family, metadata, tensors.keys())
    metadata |= pooling_keys(directory, family.gguf_name, notes.append)
    if getattr(checkpoint.config, "labels", 0):
        metadata |= {f"{family.gguf_name}.pooling_type": MetadataValue("u32", _BY_HEAD)}
    kind = str(checkpoint.document.get("model_type", family.name))
    name = metadata.get("general.name", _string("")).content
    begin_phase("converting the tokenizer")
    ids = tokenizer.read_token_ids(directory, checkpoint.document)
    of_tokens = header_of(checkpoint.tree).documents.tokenizer or directory
    rows = checkpoint.config.vocabulary
    words = tokenizer.from_directory(of_tokens, rows, kind, str(name), ids)
    notes += _caveats(checkpoint)
    if words is None:
        metadata["tokenizer.ggml.model"] = _string(_NO_TOKENIZER)
        notes.append(
            "the checkpoint has no tokenizer: the GGUF only accepts token ids, and "
            "llama.cpp does not detect the end of generation"
        )
    else:
        words = tokenizer.with_ends(words, directory)
        metadata |= tokenizer.to_metadata(words)
        notes += words.notes
        notes += filter(None, [tokenizer.describe_assumed_end(words)])
    metadata |= ids.to_metadata(metadata)
    metadata["general.file_type"] = MetadataValue(
        "u32", file_type(each.info for each in tensors.values())
    )
    metadata |= _source_type(checkpoint, metadata, tensors.keys())
    return Translation(_tree(checkpoint, tensors, metadata), {}, tuple(notes))


def _source_type(
    checkpoint: RecognizedModel, metadata: Mapping[str, MetadataValue], names: Collection[str]
) -> dict[str, MetadataValue]:
    """Return the `model_type` of the source if the GGUF would come back as one of another class.

    A text model of a multimodal one comes back as a text model.
    """
    family, kind = checkpoint.family, str(checkpoint.document.get("model_type"))
    is_text = not is_multimodal(checkpoint.document) and find_tower(kind) is None
    if kind not in family.model_types or not is_text:
        return {}
    found = choose_family(metadata, names)
    usual = family.model_types[model_type_of(family, checkpoint.fields)]
    is_same = usual.class_name == family.model_types[kind].class_name
    if found is not None and found.name == family.name and is_same:
        return {}
    return {SOURCE_TYPE: _string(kind)}


def _read_card(
    checkpoint: RecognizedModel, directory: str, notes: list[str]
) -> dict[str, MetadataValue]:
    """Return the facts of the model card, and the numbers of parameters."""
    sizes = {name: tensor.info.size for name, tensor in checkpoint.tensors.items()}
    of_experts = sum(
        sizes[names.module]
        for names in checkpoint.family.tensors(checkpoint.config)
        if names.is_stacked("gguf")
    )
    experts = getattr(checkpoint.config, "experts", 0)
    return card.from_directory(
        directory, sum(sizes.values()), notes.append, experts=experts, of_experts=of_experts
    )


def _caveats(checkpoint: RecognizedModel) -> Iterator[str]:
    """Yield notes on what llama.cpp computes differently from transformers."""
    family, config = checkpoint.family, checkpoint.config
    if not family.in_llama_cpp:
        yield RuntimeDifference(f"llama.cpp does not run {family.name} models")
        return
    window = getattr(config, "sliding_window", None)
    if window and window < config.context and not family.keeps_window:
        yield describe_difference(
            f"it does not apply the sliding window, so texts longer than {window} tokens differ"
        )
    if reason := family.find_difference(_add_tensor_fields(checkpoint)):
        yield describe_difference(reason)
    scaling = getattr(config, "rope_scaling", None)
    if scaling is not None and scaling.kind == "yarn":
        fast, slow = scaling.beta_fast, scaling.beta_slow
        if (fast, slow) != _YARN_BETAS:
            yield describe_difference(
                f"it does not read the YaRN values `beta_fast` {fast:g} and `beta_slow` {slow:g} "
                "from a GGUF and uses 32 and 1; to set them, run it with "
                f"`--yarn-beta-fast {fast:g} --yarn-beta-slow {slow:g}`"
            )


def _to_hugging_face(
    checkpoint: RecognizedModel, tensors: Mapping[str, ReadableTensor]
) -> Translation:
    family, metadata = checkpoint.family, header_of(checkpoint.tree).metadata
    fields = _add_tensor_fields(checkpoint)
    source = metadata[SOURCE_TYPE].content if SOURCE_TYPE in metadata else None
    kind = model_type_of(family, fields, source)
    # The correct value is set when the types of the tensors are known.
    config = {**to_hugging_face(family, fields, kind), "torch_dtype": "float32"}
    begin_phase("converting the tokenizer")
    words = tokenizer.from_metadata(metadata, checkpoint.where)
    ids = tokenizer.ids_of(metadata, words)
    config |= ids.config
    documents: dict[str, bytes] = {}
    notes: tuple[str, ...] = ()
    if f"{family.gguf_name}.pooling_type" in metadata and not fields.get("labels"):
        notes += (_POOLING,)
    if words is None:
        notes += ("the GGUF has no tokenizer, so no tokenizer files are written",)
    else:
        documents |= tokenizer.to_documents(words, kind, config)
    if ids.generation is not None:
        documents["generation_config.json"] = json_document(ids.generation)
    documents[CONFIG] = json_document(config)
    about = card.to_readme(metadata)
    if about is not None:
        documents["README.md"] = about
    return Translation(_tree(checkpoint, tensors, {"format": text("pt")}), documents, notes)


def _add_tensor_fields(checkpoint: RecognizedModel) -> Fields:
    """Return the fields with the values of small tensors that the output states as config keys."""
    fields: Fields = checkpoint.fields
    for names in checkpoint.family.tensors(checkpoint.config):
        tensor = checkpoint.tensors.get(names.module)
        if names.line.add_fields is not None and tensor is not None:
            fields = names.line.add_fields(fields, numbers_of(tensor))
    return fields


def _tree(
    checkpoint: RecognizedModel,
    tensors: Mapping[str, ReadableTensor],
    metadata: Mapping[str, MetadataValue],
) -> Checkpoint:
    return Checkpoint(Derived(source_of(checkpoint.tree), tensors, metadata))


def _directory(checkpoint: RecognizedModel) -> str:
    return model_directory(header_of(checkpoint.tree)) or ""


def _string(content: str) -> MetadataValue:
    return MetadataValue("string", content)


def pooling_keys(
    directory: str, architecture: str, tell: Callable[[str], object]
) -> dict[str, MetadataValue]:
    """Return the metadata key of GGUF for a directory's pooling; empty if it has none.

    If the config of the pooling is missing, `tell` is called with a sentence. Raises
    `ArchitectureError` if it cannot be read, or if llama.cpp does not support the pooling.
    """
    modules = _content(os.path.join(directory, "modules.json"))
    if not is_list(modules):
        return {}
    for module in modules:
        if not is_object(module) or not str(module.get("type")).endswith(".Pooling"):
            continue
        path = os.path.join(directory, _below(module.get("path"), directory), "config.json")
        config = _content(path)
        key = f"{architecture}.pooling_type"
        if is_object(config):
            return {key: MetadataValue("u32", _kind(config, path))}
        tell(
            f"{path} is missing, so the GGUF does not define the pooling of sentence "
            f"embeddings: download the file, or use --set {key}:u32=1 (metadata in "
            "Python) for mean pooling"
        )
    return {}


def _below(path: object, directory: str) -> str:
    """Return the path of a module; raises `ArchitectureError` if it is outside of the directory."""
    if (
        not isinstance(path, str)
        or os.path.isabs(path)
        or ".." in path.replace("\\", "/").split("/")
    ):
        raise ArchitectureError(
            f"{os.path.join(directory, 'modules.json')}: the pooling path {path!r:.200} "
            "is not inside the directory",
            hint=_HINT,
        )
    return path


def _kind(config: Mapping[str, Any], path: str) -> int:
    chosen = [kind for key, kind in _KINDS.items() if config.get(key) is True]
    if len(chosen) != 1:
        raise ArchitectureError(
            f"{path}: llama.cpp supports only pooling by mean, first token or last token, but the "
            "config selects none of these",
            hint=_HINT,
        )
    return chosen[0]


def _content(path: str) -> object:
    if not exists(path):
        return None
    try:
        return read_json(open_reader(path), _MAX_SIZE)
    except FormatError as error:
        raise ArchitectureError(f"{path}: {error.reason}", hint=_HINT) from error
