"""From evidence to a category for every allocation of a device.

Passes in order; a later one overrules an earlier one where it knows better. Names decide
phases, the shape of a life decides within a phase, sizes decide where both are missing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from snapscope.classify.draft import Draft, begin
from snapscope.classify.elders import decide_elders, decide_user_tensors
from snapscope.classify.evidence import WORDS, Evidence
from snapscope.classify.fine import label_fine
from snapscope.classify.held import (
    decide_cuts,
    decide_held,
    decide_updates,
    mark_updates,
    tell_copies_from_states,
)
from snapscope.classify.inference import decide_inference
from snapscope.classify.labels import apply_labels
from snapscope.classify.material import Category, Confidence, Material
from snapscope.classify.phases import (
    decide_backward,
    decide_construction,
    decide_forward,
    decide_forward_members,
    decide_optimizer,
)
from snapscope.classify.rules import Role
from snapscope.classify.sets import decide_accumulators, decide_copies, decide_flat, decide_replaced
from snapscope.classify.spans import Spans, find_spans
from snapscope.classify.stacks import StackFacts, read_stacks
from snapscope.classify.user_rules import UserRule, match_rules
from snapscope.model import BoolColumn, Int8Column, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification(Table):
    """Categories of one device's allocations, row by row of the lifetime table.

    Attributes:
        category: `Category`.
        evidence: `Evidence`, what decided it.
        confidence: `Confidence` of that evidence.
        fine: number in `FINE_LABELS`.
    """

    category: Int8Column
    fine: Int8Column
    evidence: Int8Column
    confidence: Int8Column


def classify(
    material: Material,
    facts: StackFacts | None = None,
    spans: Spans | None = None,
    rules: tuple[UserRule, ...] = (),
) -> Classification:
    """Give every allocation of a device a category, and say what decided it.

    Args:
        material: the device.
        facts, spans: of the same, if they are known already.
        rules: the user's own rules.
    """
    facts = facts if facts is not None else read_stacks(material.snapshot.stacks, material.sites)
    draft = begin(material, facts, spans if spans is not None else find_spans(material, facts))
    decide_forward_members(draft)
    decide_construction(draft)
    decide_backward(draft)
    decide_optimizer(draft)
    decide_forward(draft)
    mark_updates(draft)
    decide_held(draft)
    decide_user_tensors(draft)
    decide_updates(draft)
    tell_copies_from_states(draft)
    decide_copies(draft)
    decide_replaced(draft)
    decide_accumulators(draft)
    decide_flat(draft)
    decide_cuts(draft)
    decide_inference(draft)
    _decide_purposes(draft)
    decide_elders(draft)
    apply_labels(draft)
    rule_of = _rule_of(draft, rules)
    for number, rule in enumerate(rules):
        draft.put(rule_of == number, rule.category, Evidence.USER_RULE)
    fine = label_fine(draft)
    for number, rule in enumerate(rules):
        if rule.fine is not None:
            fine[rule_of == number] = rule.fine
    return Classification(
        category=draft.category,
        fine=fine,
        evidence=draft.evidence,
        confidence=_confidence(draft),
    )


def _decide_purposes(draft: Draft) -> None:
    """What frames name outright: workspaces, buffers of communication, gathered parameters."""
    members = draft.forward | draft.user
    draft.put(members & draft.workspace, Category.TEMPORARY, Evidence.WORKSPACE)
    draft.put(draft.has_role(Role.GRAD_BUCKET) & draft.is_born, Category.TEMPORARY, Evidence.COMMUNICATION)
    draft.put(draft.has_role(Role.UNSHARD) & draft.is_born, Category.PARAMETER, Evidence.UNSHARDED)
    moved = draft.has_role(Role.COMMUNICATION) & draft.is_born & (draft.category == Category.ACTIVATION)
    draft.put(moved, Category.TEMPORARY, Evidence.COMMUNICATION)


def _rule_of(draft: Draft, rules: tuple[UserRule, ...]) -> Int8Column:
    """Return the number of each row's user rule; −1 none."""
    found = np.full(len(draft.stack), -1, np.int8)
    if not rules:
        return found
    by_stack = match_rules(rules, draft.material.snapshot.stacks, draft.material.sites)
    found[draft.has_stack] = by_stack[draft.stack[draft.has_stack]]
    return found


def _confidence(draft: Draft) -> Int8Column:
    """Look the confidence of each kind of evidence up; without stacks all of it is low."""
    levels = np.zeros(max(Evidence) + 1, np.int8)
    for evidence, words in WORDS.items():
        levels[evidence] = words.confidence
    confidence = levels[draft.evidence]
    if draft.spans.is_positional:
        unsure: BoolColumn = ~draft.has_stack & (draft.evidence != Evidence.USER_LABEL)
        confidence[unsure] = np.minimum(confidence[unsure], Confidence.LOW)
    return confidence
