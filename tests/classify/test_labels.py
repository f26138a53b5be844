"""Labels of the program itself: what the profiler called a tensor, `user_metadata`, `_annotate_tensor`."""

from __future__ import annotations

import pytest

from snapscope.classify.evidence import Evidence
from snapscope.classify.labels import annotated_rows
from snapscope.classify.material import CATEGORY_LABELS, Confidence
from snapscope.history import DeviceHistory
from tests import builders as b
from tests.builders import MIB
from tests.replay.test_properties import history_of

A = 0x7F0000000000


def _history(*events: b.Raw) -> DeviceHistory:
    return history_of(b.snapshot(traces=[[b.segment_alloc(A, 20 * MIB), *events]], segments=[]))


def _labelled(history: DeviceHistory) -> list[str | None]:
    kinds = history.classification
    return [
        CATEGORY_LABELS[category] if evidence == Evidence.USER_LABEL else None
        for category, evidence in zip(kinds.category.tolist(), kinds.evidence.tolist(), strict=True)
    ]


def test_category_of_the_profiler() -> None:
    named = (
        "parameter",
        "gradient",
        "optimizer_state",
        "activation",
        "temporary",
        "autograd_detail",
        "input",
        "unknown",
    )
    events = [b.alloc(A + n * MIB, 512) | {"category": name} for n, name in enumerate(named)]
    history = _history(*events)
    assert _labelled(history) == [*CATEGORY_LABELS, "temporary", None, None]
    assert set(history.classification.confidence[:6].tolist()) == {Confidence.HIGH}


def test_a_free_labels_what_is_older_than_the_history() -> None:
    history = _history(b.free_requested(A, 512) | {"category": "parameter"}, b.free_completed(A, 512))
    assert _labelled(history) == ["parameter"]


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("optimizer_state", "optimizer_state"),
        ("Optimizer State", "optimizer_state"),
        ("step=3;category=gradient", "gradient"),
        ("category=gradient name=w", "gradient"),
        ('{"category": "activation", "layer": 3}', "activation"),
        ({"category": "temporary", "step": 1}, "temporary"),
        ("gradient of loss", None),
        ("subcategory=gradient", None),
        ("step=3;phase=optimizer", None),
        ("category=unheard_of", None),
        ("", None),
    ],
)
def test_only_outright_names_count(text: object, category: str | None) -> None:
    assert _labelled(_history(b.alloc(A, 512, user_metadata=text))) == [category]


def test_annotations_label_who_lives_there() -> None:
    note = {"action": "annotate", "addr": A, "size": 0, "stream": 0, "user_metadata": "category=parameter"}
    history = _history(
        b.alloc(A, 512),
        b.free_requested(A, 512),
        b.free_completed(A, 512),
        note | {"user_metadata": "category=gradient"},
        b.alloc(A, 1024),
        note,
        note | {"addr": A + 4 * MIB},
    )
    assert list(annotated_rows(history.tables.events, history.lifetimes)) == [(6, 1)]
    assert _labelled(history) == [None, "parameter"]
