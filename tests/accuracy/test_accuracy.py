"""Floors under what the classifier gets right; `report.py` says where it stands."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np
import pytest

from snapscope.classify.decide import Classification
from snapscope.classify.material import CATEGORY_LABELS, Confidence
from snapscope.history import DeviceHistory
from snapscope.load import RawSnapshot, read_snapshot
from snapscope.model import Action, Int8Column
from snapscope.normalise import normalise
from tests.accuracy.report import AS_RECORDED, Result, page, score_recording
from tests.accuracy.score import add_up, peak_event, score
from tests.accuracy.strip import VARIANTS, conflicts_of, strip
from tests.accuracy.truth import UNKNOWN, Recording, carry_over, categories_of, find_recordings, read_truth_file
from tests.conftest import FIXTURES

MEAN_AT_PEAK: Final = 0.985
LEAST_AT_PEAK: Final = 0.95
HIGH_IS_RIGHT: Final = 0.99


def _folders() -> Iterator[tuple[str, Path]]:
    yield "fixtures", FIXTURES
    shared = os.environ.get("SNAPSCOPE_SHARED")
    if shared:
        for name in ("allocator", "models"):
            for root in (Path(shared), Path(shared) / "snapshots"):
                if (root / name).is_dir():
                    yield name, root / name


RECORDINGS: Final = {
    f"{label}/{found.name}": found for label, folder in _folders() for found in find_recordings(folder)
}
ADAMW: Final = "fixtures/allocator/torch-2.14/adamw_fp32"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _opened(recording: Recording) -> tuple[RawSnapshot, DeviceHistory, Int8Column]:
    raw, truth = read_snapshot(recording.snapshot), read_truth_file(recording.truth)
    history = DeviceHistory(normalise(raw), truth["device"])
    return raw, history, categories_of(truth, history.lifetimes)


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return [result for name, found in RECORDINGS.items() for result in score_recording(found, name.partition("/")[0])]


# -- floors ---------------------------------------------------------------------------------------


def test_mean_at_peak(results: list[Result]) -> None:
    at_peak = [result.score.share.at_peak for result in results]
    over_time = [result.score.share.over_time for result in results]
    _say(f"{len(results)} recordings: peak {fmean(at_peak):.4f}, bytes × events {fmean(over_time):.4f}")
    assert fmean(at_peak) >= MEAN_AT_PEAK


def test_each_with_stacks(results: list[Result]) -> None:
    low = {
        result.title: round(result.score.share.at_peak, 4)
        for result in results
        if result.score.has_stacks and result.score.share.at_peak < LEAST_AT_PEAK
    }
    assert not low


def test_high_confidence_is_earned(results: list[Result]) -> None:
    total = add_up(result.score for result in results)
    for level, share in sorted(total.by_confidence.items(), reverse=True):
        text = f"{Confidence(level).label}: {share.total_at_peak / 1e6:,.0f} MB at the peak"
        _say(f"{text}, right {share.at_peak:.4f}, over bytes × events {share.over_time:.4f}")
    high = total.by_confidence[Confidence.HIGH]
    assert high.at_peak >= HIGH_IS_RIGHT
    assert high.over_time >= HIGH_IS_RIGHT


def test_truth_is_complete(results: list[Result]) -> None:
    assert {result.title: result.score.unknown_bytes for result in results if result.score.unknown_bytes} == {}


@pytest.mark.parametrize("name", RECORDINGS)
def test_rows_sum_to_requested(name: str) -> None:
    _, history, _ = _opened(RECORDINGS[name])
    decided, size = history.classification, history.lifetimes.requested_bytes
    assert len(decided.category) == len(history.lifetimes)
    for event in {-1, 0, peak_event(history), *range(0, history.num_events, max(history.num_events // 7, 1))}:
        live = history.lifetimes.live_at(event)
        rows = [int(size[live[decided.category[live] == number]].sum()) for number in range(len(CATEGORY_LABELS))]
        assert sum(rows) == history.totals.requested_bytes[event + 1], event


# -- the harness itself ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in RECORDINGS if name.startswith("fixtures/")])
def test_stripped_replay(name: str) -> None:
    raw, whole, truth = _opened(RECORDINGS[name])
    for variant in VARIANTS:
        stripped = strip(raw, whole, variant)
        if stripped is None:
            continue
        assert conflicts_of(whole, stripped) == [], variant
        part = stripped.history.lifetimes
        known, rows = carry_over(truth, whole.lifetimes, part, num_lost=stripped.first_event)
        assert (rows >= 0).all(), variant
        np.testing.assert_array_equal(part.requested_bytes, whole.lifetimes.requested_bytes[rows])
        np.testing.assert_array_equal(known, truth[rows])


def test_variants_lack_what_they_should() -> None:
    raw, whole, _ = _opened(RECORDINGS[ADAMW])
    made = {variant: strip(raw, whole, variant) for variant in VARIANTS}
    histories = {variant: stripped.history for variant, stripped in made.items() if stripped is not None}
    assert histories.keys() == VARIANTS.keys()
    for variant, history in histories.items():
        if variant not in ("cut", "peak"):
            assert history.num_events == whole.num_events, variant
    files = {
        histories["python"].snapshot.stacks.file_of(frame)
        for frame in range(histories["python"].snapshot.stacks.num_frames)
    }
    assert files
    assert all(file.endswith(".py") for file in files)
    assert histories["alloc"].context.value == "alloc"
    assert histories["none"].context.value == "none"
    assert not (histories["none"].tables.blocks.stack > 0).any()
    assert histories["state"].context.value == "state"
    assert peak_event(histories["peak"]) == peak_event(whole) == histories["peak"].num_events - 1
    assert histories["cut"].num_events == whole.num_events - whole.num_events // 2
    # What was read is as it was.
    assert (DeviceHistory(normalise(raw)).tables.events.stack == whole.tables.events.stack).all()


def test_score_of_known_answers() -> None:
    _, history, truth = _opened(RECORDINGS[ADAMW])
    ones = np.ones(len(truth), np.int8)

    def decided(category: Int8Column) -> Classification:
        return _with_category(history.classification, category, ones)

    perfect = score(history, truth, decided(truth.copy()))
    assert (perfect.share.at_peak, perfect.share.over_time) == (1, 1)
    assert not perfect.losses
    assert perfect.confusion.sum() == perfect.confusion.trace() == history.totals.requested_bytes.max()

    live = history.lifetimes.live_at(peak_event(history))
    largest = live[np.argmax(history.lifetimes.requested_bytes[live])]
    wrong = truth.copy()
    wrong[largest] = (truth[largest] + 1) % len(CATEGORY_LABELS)
    size = int(history.lifetimes.requested_bytes[largest])
    share = score(history, truth, decided(wrong)).share
    assert share.total_at_peak - share.right_at_peak == size
    # From birth to death, or to the end of the history.
    death = int(history.lifetimes.free_requested_event[largest])
    age = (death if death >= 0 else history.num_events) - int(history.lifetimes.birth_event[largest])
    assert share.total_over_time - share.right_over_time == size * age

    hidden = truth.copy()
    hidden[largest] = UNKNOWN
    unknown = score(history, hidden, decided(wrong))
    assert unknown.unknown_bytes == size
    assert unknown.share.at_peak == 1


def _with_category(like: Classification, category: Int8Column, ones: Int8Column) -> Classification:
    changed = {"category": category, "evidence": ones.copy(), "confidence": ones.copy()}
    columns = {name: changed.get(name, getattr(like, name)) for name in like.__dataclass_fields__}
    return Classification(**columns)


def test_truth_covers_every_alloc() -> None:
    _, history, truth = _opened(RECORDINGS[ADAMW])
    assert np.count_nonzero(history.tables.events.action == Action.ALLOC) == len(truth)
    assert (truth != UNKNOWN).all()


def test_page() -> None:
    recording = RECORDINGS[ADAMW]
    found = list(score_recording(recording, "fixtures", VARIANTS))
    assert [result.variant for result in found] == [AS_RECORDED, *VARIANTS]
    text = page(found)
    assert "| recorded | fixtures | with | 1 |" in text
    assert str(FIXTURES) not in text
    assert max(map(len, (line for line in text.split("\n") if not line.startswith("|")))) <= 120
