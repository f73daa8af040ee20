"""The check `proof`: each tensor is a quantization of the source's, shown by its codes."""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from math import ceil, prod
from typing import TYPE_CHECKING

from weightctl.codecs.feedback.parts import has_parts
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.formats.imatrix.entry import is_idle
from weightctl.plan.importance import LOOKED_UP
from weightctl.text.wording import percent, pluralize
from weightctl.verify.checks.values import (
    explain_skip,
    fold_problems,
    is_forgotten,
    list_unlike,
    report_forgotten,
    report_unpaired,
)
from weightctl.verify.compare.distance import (
    Measured,
    Piece,
    is_within,
    measure_pair,
    measure_pieces,
    stored_rows,
)
from weightctl.verify.compare.explaining import CauseSearch
from weightctl.verify.proof.codes import find_layout
from weightctl.verify.proof.making import find_making, find_parts, find_planned, plan_to_gguf
from weightctl.verify.proof.neighbors import find_neighbors
from weightctl.verify.proof.scaling import find_scaling, is_divided
from weightctl.verify.proof.tensors import (
    Claim,
    Counts,
    Differences,
    Proved,
    Route,
    can_judge,
    compare_scales,
    prove_claims,
)
from weightctl.verify.proof.verdicts import ProofFigures, TensorProof, Verdict
from weightctl.verify.results import Problem, Result
from weightctl.weights.derived import tensor_of
from weightctl.weights.tree import header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from weightctl.formats.imatrix import Importance
    from weightctl.formats.imatrix.curvatures import Curvatures
    from weightctl.plan.plan import Plan
    from weightctl.verify.compare.pairing import Pair, Pairing
    from weightctl.verify.proof.making import Part
    from weightctl.verify.proof.scaling import Scaling
    from weightctl.verify.request import Request
    from weightctl.verify.subject import Subject
    from weightctl.weights.derived import ReadableTensor

# The probability that a sample finds a matrix with more wrong rows than stated.
CONFIDENCE = 0.999
# Single rows are small: over a network, their reads take longer than their proof.
_REQUESTS = 16
# If at most this share of the blocks of all reproduced tensors differ, they were changed later.
# Builds of llama.cpp with other rounding differ in more blocks than that, and in more rows.
_FEW, _FEW_ROWS = 1e-4, 2
_TEMPLATE = "tokenizer.chat_template"
# Tools with error feedback choose more codes than this that are not the nearest ones.
_MANY = 1e-3
# More bytes of scales than this differ if a tool has changed values before; and bytes that are not
# equal by chance if a tool rounds scales in another way.
_FEW_BYTES, _MANY_BYTES = 64, 2000
_FP8 = "F8_"
# The ends of the names of scales of bitsandbytes, which has no error feedback.
_PLAIN = (".absmax", ".SCB")
# Matrices have more rows than this.
_USUAL_ROWS = 32


def check(request: Request) -> Result:
    """Compare each block with those that encoders make of the source's values.

    A tensor is a problem if it has values that no quantization of the source has, or if only one
    side has it. Metadata that do not follow from the source are listed.
    """
    if why := explain_skip(request):
        return Result(skipped=why)
    mismatch = request.mismatch
    if mismatch is not None:
        return Result(problems=(mismatch.problem,))
    pairing = request.pairing
    pairs = [pair for pair in pairing.pairs if request.has_layer(pair.layer)]
    source = None if request.reference is None else request.reference.stored
    find_plan = cache(lambda: None if source is None else plan_to_gguf(source))
    seen = [_see_as_stored(request, pair, find_plan) for pair in pairs if pair.is_comparable]
    alone = [] if request.layers is not None else list(report_unpaired(pairing))
    problems = list(list_unlike(pairs))
    # Nobody can know the rows before, and the reported seed repeats the sample.
    seed = random.SystemRandom().getrandbits(48)
    claims = list(_make_claims(request, seen, random.Random(seed)))  # noqa: S311
    coded = {each.pair.module: each.pair.tensor for each in claims if each.neighbors is not None}
    # A sample does not read whole tensors.
    parts = {} if request.sample or source is None else find_parts(coded, source)
    others = compare_scales(parts)
    same = {module for module, each in others.items() if each == Differences()}
    left = [each for each in claims if each.pair.module not in same]
    threads = _REQUESTS if request.sample else None
    with closing(prove_claims(left, partial(request.tell, "proof"), threads=threads)) as made:
        found = [
            (each, _count_same(each) if each.pair.module in same else next(made)) for each in claims
        ]
    are_few = _are_few([proved for _, proved in found])
    search = CauseSearch(pairing)
    proofs: dict[str, TensorProof] = {}
    for claim, proved in found:
        if is_forgotten(claim.pair, pairing) and proved.counts.wrong:
            alone.append(report_forgotten(claim.pair, pairing))
            continue
        proofs[claim.pair.module] = _judge(claim, proved, are_few=are_few)
    _find_exceptions(proofs)
    _explain_scaling({claim.pair.module: claim for claim in claims}, proofs)
    _find_other_scales(proofs, others, same, parts)
    for claim in claims:
        proof = proofs.get(claim.pair.module)
        if proof is not None and proof.verdict is Verdict.OTHER:
            problems.append(_describe(claim, proof, search, pairing))
    tensors = tuple(proofs.values())
    order = {pair.module: place for place, pair in enumerate(pairs)}
    problems.sort(key=lambda each: order[each[0].module])
    figures = ProofFigures(
        tensors=tensors,
        most_wrong=request.sample or 0.0,
        confidence=CONFIDENCE if request.sample else 1.0,
        seed=seed if request.sample else 0,
    )
    header = header_of(request.subject.stored)
    is_weighted = any(proved.route.is_weighted for _, proved in found)
    making = find_making(header, tensors, find_plan, is_weighted=is_weighted)
    feeds_back = any(proved.route.feeds_back for _, proved in found)
    figures = replace(figures, **making._asdict(), feeds_back=feeds_back)
    alone += [
        Problem(where=key, text="it does not follow from the source, and programs execute it")
        for key in figures.additions
        if key.startswith(_TEMPLATE)
    ]
    return Result(
        problems=(*alone, *fold_problems(problems)),
        figures=figures,
        notes=tuple(figures.list_reasons()),
    )


def _count_same(claim: Claim) -> Proved:
    """Return the proof of a weight whose stored tensors are those of a conversion."""
    size = claim.pair.tensor.info.size
    counts = Counts(rows=size // claim.width, blocks=size, same=size)
    return Proved(Route(None, reproduces=True), counts)


def _see_as_stored(request: Request, pair: Pair, find_plan: Callable[[], Plan | None]) -> Pair:
    """Return a pair in the naming convention of the checkpoint, whose bytes are then as stored."""
    pairing = request.pairing
    own, other = pairing.checkpoint, pairing.reference
    view = (pairing.seen_in(own.convention, pair) if own is not None else pair) or pair
    stored = _find_stored(request.subject, pair.name)
    is_stored = stored is None or stored.info.encoding == view.tensor.info.encoding
    if is_stored or own is None or other is None:
        return view
    # The modules of the family have the tensor in another form, which a conversion computes.
    source = _find_stored(request.reference, pair.reference_name)
    if own.convention != other.convention:
        plan = find_plan()
        source = None if plan is None else find_planned(plan, pair.name)
    if stored is None or source is None or source.info.shape != stored.info.shape:
        return view
    return view._replace(tensor=stored, reference=source)


def _find_stored(subject: Subject | None, name: str) -> ReadableTensor | None:
    if subject is None or name not in header_of(subject.weights).tensors:
        return None
    return tensor_of(source_of(subject.weights), name)


def _make_claims(request: Request, pairs: Sequence[Pair], chance: random.Random) -> Iterator[Claim]:
    importance = curvatures = None
    if request.imatrix is not None:
        from weightctl.formats.imatrix import read_importance
        from weightctl.formats.imatrix.curvatures import Curvatures

        importance, curvatures = read_importance(request.imatrix), Curvatures()
    for pair in pairs:
        info = pair.tensor.info
        neighbors = find_neighbors(pair.tensor) if pair.sides[0].is_apart else None
        claim = Claim(pair, [range(prod(info.shape[:-1]))], neighbors=neighbors)
        if request.sample:
            claim = claim._replace(ranges=_draw_rows(claim, request.sample, chance))
        if importance is not None and curvatures is not None:
            claim = _use_importance(claim, importance, curvatures)
        if pair.is_fed_back and claim.find_curvature is None:
            claim = claim._replace(is_fed_back=True)
        yield claim


def _use_importance(claim: Claim, importance: Importance, curvatures: Curvatures) -> Claim:
    """Return a claim with the importance of its columns; refuse that of another model."""
    name, path = claim.pair.name, importance.path
    values, hessian = importance.values.get(name), importance.hessians.get(name)
    if values is None:
        return claim
    first, width = claim.pair.expert or 0, claim.width
    count, rest = divmod(values.size, width)
    if rest or count < first + prod(claim.pair.tensor.info.shape[:-2]):
        if name in LOOKED_UP:
            return claim  # as in a conversion
        raise ConversionError(
            f"{path} has {values.size} values for `{name}`, whose rows have {width}",
            hint="use the importance matrix that was made with this model, or no --imatrix",
        )
    weights = values.reshape(count, width)
    claim = claim._replace(importance=weights, matrix=first)
    if (
        hessian is not None
        and hessian.columns == width
        and has_parts(claim.pair.tensor.info.encoding)
        and not is_idle(weights[first])
    ):
        claim = claim._replace(find_curvature=partial(curvatures.find_for, hessian))
    return claim


def _draw_rows(claim: Claim, most_wrong: float, chance: random.Random) -> list[range]:
    """Draw rows, so that more than `most_wrong` of the rows of a matrix can hardly be wrong.

    The rows are drawn without replacement: of `n` rows with `k` wrong ones, all `m` drawn rows are
    right with a probability below `(1 - m / n) ** k`.
    """
    found: list[range] = []
    for first in range(0, claim.ranges[0].stop, claim.height):
        wrong = max(1, ceil(claim.height * most_wrong))
        share = 1 - (1 - CONFIDENCE) ** (1 / wrong)
        count = min(claim.height, ceil(claim.height * share))
        rows = sorted(chance.sample(range(first, first + claim.height), count))
        found += [range(row, row + 1) for row in rows]
    return found


def _are_few(found: Sequence[Proved]) -> bool:
    """Whether nearly all blocks of the reproduced tensors are those that the encoder gives."""
    counts = [each.counts for each in found if each.route.reproduces]
    if sum(len(each.other_rows) for each in counts) <= _FEW_ROWS:
        return True
    return sum(each.blocks - each.same for each in counts) <= _FEW * sum(
        each.blocks for each in counts
    )


def _judge(claim: Claim, proved: Proved, *, are_few: bool) -> TensorProof:
    counts, pair = proved.counts, claim.pair
    verdict, reason, details = _decide(claim, proved, are_few=are_few)
    through = proved.route.through
    route = counts.through if through is None else through.name
    if claim.is_fed_back and verdict is Verdict.BOUNDED:
        route = ""  # codes that need not be the nearest ones do not tell
    rows = counts.wrong_rows or (counts.other_rows if verdict is Verdict.OTHER else [])
    return TensorProof(
        name=pair.name,
        reference=pair.reference_name,
        encoding=str(pair.tensor.origin.sources[0].encoding if claim.neighbors else
                     pair.tensor.info.encoding),
        reference_encoding=str(pair.reference.info.encoding),
        verdict=verdict,
        rows=prod(pair.tensor.info.shape[:-1]),
        checked=counts.rows,
        blocks=counts.blocks,
        same=counts.same,
        wrong=counts.wrong,
        unusual=counts.unusual,
        wrong_rows=tuple(stored_rows(pair, rows)),
        unusual_rows=tuple(stored_rows(pair, counts.unusual_rows)),
        through=route,
        reason=reason,
        details=details,
    )  # fmt: skip


def _decide(claim: Claim, proved: Proved, *, are_few: bool) -> tuple[Verdict, str, str]:
    """Return the verdict, the reason, and details; the last two are empty for a proof."""
    counts, encoding = proved.counts, claim.pair.tensor.info.encoding
    left = counts.blocks - counts.same
    if not left:
        return Verdict.REPRODUCED, "", ""
    of = f"{{}} of {counts.blocks:,}"
    if proved.route.reproduces and are_few and encoding.dtype is None:
        reason = "blocks differ from those that the encoder gives, and all others are equal"
        return Verdict.OTHER, reason, of.format(pluralize(left, "block"))
    is_judged = encoding.dtype is not None or can_judge(encoding)
    has_nearest = claim.neighbors is None and not (claim.is_fed_back and counts.wrong)
    if has_nearest and is_judged and counts.wrong:
        reason = "it has values that no quantization of the source has"
        return Verdict.OTHER, reason, of.format(pluralize(counts.wrong, "block"))
    if has_nearest and (find_layout(encoding) or encoding.dtype is not None):
        if not counts.unusual:
            return Verdict.PROVED, "", ""
        reason = (
            "the values are not rounded to the nearest ones"
            if encoding.dtype is not None
            else "all codes are the nearest ones, but some scales are unusual"
        )
        return Verdict.BOUNDED, reason, of.format(pluralize(counts.unusual, "block"))
    return _decide_by_distance(claim, proved)


def _decide_by_distance(claim: Claim, proved: Proved) -> tuple[Verdict, str, str]:
    """Judge a tensor whose codes need not be the nearest ones, by its distance."""
    counts = proved.counts
    # The rounding of quotients or scales moves values in many rows.
    are_alone = 0 < len(counts.other_rows) <= _FEW_ROWS and counts.rows >= _USUAL_ROWS
    are_few = 0 < counts.wrong <= _MANY * counts.blocks
    is_plain = any(each.name.endswith(_PLAIN) for each in claim.pair.tensor.origin.sources)
    if claim.neighbors is not None and (are_few or are_alone or (is_plain and counts.wrong)):
        reason = "some values are not the nearest ones to the source, and all others are"
        few = pluralize(counts.wrong or counts.unusual, "value")
        return Verdict.OTHER, reason, f"{few} of {counts.blocks:,}"
    measured = _measure(claim)
    details = (
        f"relative RMSE {percent(measured.relative_rmse)}, expected {percent(measured.expected)}"
    )
    if not is_within(claim.pair, measured):
        return Verdict.OTHER, "it is further from the source than its type explains", details
    if claim.neighbors is not None and not counts.wrong:
        return Verdict.PROVED, "", ""
    reason = (
        "values were rounded with error feedback; to reproduce them, give the importance matrix "
        "that has the products of columns (--imatrix)"
        if claim.is_fed_back
        else "codes of this type need not be the nearest ones"
    )
    return Verdict.BOUNDED, reason, details


def _measure(claim: Claim) -> Measured:
    """Return the distance of a pair; that of the drawn rows if only a sample is read."""
    if len(claim.ranges) == 1:
        return measure_pair(claim.pair)
    measured, width = Measured(), claim.width
    pieces = (Piece(claim.pair, each.start * width, each.stop * width) for each in claim.ranges)
    with measure_pieces(pieces) as made:
        for part in made:
            measured.add(part)
    return measured


def _find_exceptions(proofs: dict[str, TensorProof]) -> None:
    """Replace the verdicts on tensors that the encoder does not give, though most others it does.

    This matters for types whose codes cannot be judged one by one: without an importance matrix,
    the encoder gives all of them. Types that use no such matrix are counted apart. In FP8, the
    codes of most others are the nearest ones, as those of all tensors usually are.
    """
    alike: dict[str, dict[str, TensorProof]] = {}
    for module, each in proofs.items():
        kind = ENCODINGS[each.encoding]
        if each.blocks and (kind.quantization is not None or kind.name.startswith(_FP8)):
            of = _FP8 if kind.quantization is None else str(kind.takes_importance)
            alike.setdefault(of, {})[module] = each
    for of, same in alike.items():
        fine = {Verdict.REPRODUCED, Verdict.PROVED} if of == _FP8 else {Verdict.REPRODUCED}
        left = {module: proof for module, proof in same.items() if proof.verdict not in fine}
        for module, proof in left.items() if 2 * len(left) <= len(same) else ():
            if proof.verdict is Verdict.BOUNDED:
                reason = "the encoder gives other blocks, though not in most other tensors"
                proofs[module] = replace(proof, verdict=Verdict.OTHER, reason=reason)


def _find_other_scales(
    proofs: dict[str, TensorProof],
    others: Mapping[str, Differences],
    same: set[str],
    parts: Mapping[str, Sequence[Part]],
) -> None:
    """Replace the verdicts on weights of schemes with other scales, though most have the source's.

    Tools with another rounding have them in most weights, if there are many scales. Tools with
    error feedback (GPTQ) have them in many columns, but not in the first ones.
    """
    scaled = {module for module, each in others.items() if each.scales}
    first = {module for module in scaled if others[module].first}
    few = {module for module in scaled if sum(others[module].scales.values()) <= _FEW_BYTES}
    for found, other in ((few, scaled), (first, first)):
        alike = others.keys() - other
        size = sum(own.info.nbytes for module in alike for own, _ in parts[module][1:])
        are_same = 2 * len(same) >= len(others)
        if 2 * len(other) > len(others) or not (are_same or size >= _MANY_BYTES):
            continue
        for module in found:
            bytes_of = others[module].scales.items()
            reason = "scales are not those of the source, though most other weights have these"
            details = "; ".join(f"{pluralize(n, 'byte')} of `{name}`" for name, n in bytes_of)
            proof = proofs.get(module)
            if proof is not None and proof.verdict is not Verdict.OTHER:
                verdict = Verdict.OTHER
                proofs[module] = replace(proof, verdict=verdict, reason=reason, details=details)


def _explain_scaling(claims: Mapping[str, Claim], proofs: dict[str, TensorProof]) -> None:
    """Replace the verdicts on matrices that were scaled by columns, and on the norms before them.

    Whether another matrix undoes the factors is not checked.
    """
    others = [module for module, each in proofs.items() if each.verdict is Verdict.OTHER]
    scalings: list[Scaling] = []
    for module, proof in proofs.items() if others else ():
        if claims[module].neighbors is None or proof.verdict is Verdict.PROVED:
            continue
        scaling = find_scaling(claims[module].pair)
        if scaling is not None:
            scalings.append(scaling)
            reason = "its columns or rows were multiplied by factors, as AWQ does"
            proofs[module] = replace(proof, verdict=Verdict.UNDECIDED, reason=reason)
    for module in others:
        pair = claims[module].pair
        if len(pair.tensor.info.shape) == 1 and is_divided(pair, scalings):
            reason = "it is divided by the factors of the columns of a matrix, as AWQ does"
            proofs[module] = replace(proofs[module], verdict=Verdict.BOUNDED, reason=reason)


def _describe(
    claim: Claim, proof: TensorProof, search: CauseSearch, pairing: Pairing
) -> tuple[Pair, Problem]:
    """Return a problem of a tensor that is not a quantization of the source's, with its cause."""
    pair = pairing.by_module[claim.pair.module]
    text = f"{proof.reason}: {proof.details}"
    if rows := proof.wrong_rows:
        text += f", in row {rows[0]}" if len(rows) == 1 else f", the first in row {rows[0]}"
    if pair.expert is not None:
        text = f"expert {pair.expert}: {text}"
    return pair, Problem(where=pair.name, text=text, cause=search.explain(pair))
