"""How categories, and steps of the run, are shown: letters, colours, words."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Final

import numpy as np

from snapscope.analyses.ledger import CategoryRow, sum_categories
from snapscope.classify.evidence import WORDS, Evidence
from snapscope.classify.fine import FINE_LABELS
from snapscope.classify.material import Category, Confidence
from snapscope.escaping import escape
from snapscope.history import DeviceHistory
from snapscope.model import Int64Column

_THEME_COLORS: Final = {
    Category.PARAMETER: "text-primary",
    Category.GRADIENT: "text-error",
    Category.OPTIMIZER_STATE: "text-success",
    Category.ACTIVATION: "text-warning",
    Category.TEMPORARY: "text-muted",
}
_INFERRED: Final = "inferred"
_NAME_LIMIT: Final = 40


def category_variables(theme: Mapping[str, str]) -> dict[str, str]:
    """Return the theme's variables of category colours, `$category-activation` and so on."""
    return {f"category-{category.label}": theme[name] for category, name in _THEME_COLORS.items()}


def style_of(category: Category) -> str:
    """Return the style of a category's letter."""
    return f"bold $category-{category.label}"


def letter_of(category: Category, confidence: Confidence) -> str:
    """Return a category's letter, with a question mark where it is a guess (as in text reports)."""
    return category.label[0].upper() + ("?" if confidence <= Confidence.LOW else "")


def main_category(history: DeviceHistory, lifetimes: Int64Column) -> CategoryRow:
    """Return the category of most bytes of some allocations."""
    return max(sum_categories(history, lifetimes), key=lambda row: row.bytes)


def doubt_of(row: CategoryRow) -> str:
    """Return how sure a row is, unless it is beyond doubt."""
    return row.confidence.label if row.bytes and row.confidence < Confidence.HIGH else ""


def why_category(history: DeviceHistory, lifetime: int) -> tuple[Category, str]:
    """Return an allocation's category, and the words for its label, confidence and evidence."""
    kinds = history.classification
    category, confidence = Category(int(kinds.category[lifetime])), Confidence(int(kinds.confidence[lifetime]))
    fine, evidence = FINE_LABELS[int(kinds.fine[lifetime])], Evidence(int(kinds.evidence[lifetime]))
    return category, f"{category.label}/{fine}, confidence {confidence.label}: {WORDS[evidence].text}"


def place_in_run(history: DeviceHistory, event: int) -> str:
    """Name the step and the phase of an event: `step 2 · backward`; empty where none is known."""
    steps = history.steps.steps
    number = int(history.steps.index_of(np.array([event]))[0]) if steps and event >= 0 else -1
    if number < 0:
        return ""
    step = steps[number]
    phase = bisect_right([phase.start_event for phase in step.phases], event) - 1
    name = escape(step.name, limit=_NAME_LIMIT)
    if phase < 0 or step.phases[phase].name == step.name:
        return name
    return f"{name} · {step.phases[phase].name}"


def is_inferred(history: DeviceHistory) -> bool:
    """Tell whether the steps are inferred, not annotated by the program."""
    return history.steps.source == _INFERRED
