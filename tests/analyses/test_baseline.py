"""Baselines: what is written is read again; nothing in one is trusted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

import orjson
import pytest

from snapscope.analyses.baseline import FORM, MARK, read_baseline, write_baseline
from snapscope.analyses.profile import MemoryProfile
from snapscope.errors import MalformedError
from snapscope.load.unwrap import describe_other
from tests.analyses.profiles import compared, made, profile_of_fixture, site
from tests.builders import MIB

Document = dict[str, Any]
NAME: Final = "base.json"


def written(profile: MemoryProfile) -> Document:
    document = orjson.loads(write_baseline(profile))
    assert isinstance(document, dict)
    return document


def example() -> MemoryProfile:
    return made(
        site("a.py f", (MIB, 2), stack=["a.py f", "main.py main"]),
        site("(no stack)", (3 * MIB, 1)),
        step_peaks=(("step 0", 4), ("step 1", 5)),
        num_steps=2,
        settings={"expandable_segments": "True"},
    )


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("torch-2.14/adamw_fp32", "peak"),
        ("torch-2.14/two_gpu", "step:1"),
        ("torch-2.0/adamw_fp32", "end"),
        ("torch-2.14/no_context", "peak"),
        ("cases/15_odd_files/no_traces.pickle", "peak"),
        ("cases/05_history_starts_late/a.pickle", "start"),
    ],
)
def test_a_baseline_stands_in_for_its_snapshot(name: str, at: str) -> None:
    profile = profile_of_fixture(name, at)
    read = read_baseline(written(profile), profile.name)
    diff = compared(profile, read)
    assert diff.is_empty
    assert not diff.settings
    assert all(row.delta_bytes == 0 for row in diff.rows)
    for field in MemoryProfile.__dataclass_fields__:
        if field not in ("sites", "notices"):
            assert getattr(read, field) == getattr(profile, field), field
    assert sorted(read.sites, key=repr) == sorted(profile.sites, key=repr)


def test_a_site_is_one_line_and_their_order_is_stable() -> None:
    text = write_baseline(profile_of_fixture("torch-2.14/adamw_fp32")).decode()
    sites = re.findall(r"^  \{.*\},?$", text, re.MULTILINE)
    assert len(sites) == len(json.loads(text)["sites"])
    names = [line for line in sites if '"site"' in line]
    assert [line.rstrip(",") for line in names] == sorted(line.rstrip(",") for line in names)
    assert write_baseline(profile_of_fixture("torch-2.14/adamw_fp32")).decode() == text


def test_a_baseline_names_no_folder_of_the_machine() -> None:
    assert written(made(site("a.py f", (MIB, 1)), name="/home/me/x.pickle"))["file"] == "x.pickle"
    assert written(made(site("a.py f", (MIB, 1)), name="C:\\me\\x.pickle"))["file"] == "x.pickle"


def test_text_that_is_no_text_survives_as_escapes() -> None:
    odd = made(site("a\udc80.py f\x1b", (MIB, 1)), settings={"\udc80": "\udfff"}, label="event:3")
    assert read_baseline(written(odd), NAME).sites[0].label == "a\\udc80.py:1 f\x1b"


def test_the_message_about_a_baseline_names_its_mark() -> None:
    assert "is a baseline" in describe_other({MARK: FORM})


def put(*path: str | int) -> Callable[[Any], Callable[[Document], None]]:
    def with_value(value: Any) -> Callable[[Document], None]:
        def change(document: Document) -> None:
            target: Any = document
            for step in path[:-1]:
                target = target[step]
            target[path[-1]] = value

        return change

    return with_value


def without(key: str) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        del document[key]

    return change


BROKEN: Final[dict[str, tuple[Callable[[Document], None], str]]] = {
    "another form": (put(MARK)(2), "this version reads 1"),
    "form is true": (put(MARK)("1"), "this version reads 1"),
    "sites is a dict": (put("sites")({}), "sites is no list"),
    "a site is a list": (put("sites", 0)([]), "a site is no object"),
    "bytes is text": (put("sites", 0, "bytes")("1"), "bytes is no number"),
    "bytes is a float": (put("sites", 0, "bytes")(1.0), "bytes is no number"),
    "bytes is true": (put("sites", 0, "bytes")(True), "bytes is no number"),
    "bytes is negative": (put("sites", 0, "bytes")(-1), "bytes is no number"),
    "bytes is huge": (put("requested_bytes")(1 << 63), "requested_bytes is no number"),
    "null": (put("allocated_bytes")(None), "allocated_bytes is no number"),
    "frame is a number": (put("frames")([1]), "a frame is no text"),
    "frame that isn't there": (put("sites", 1, "stack")([99]), "names a frame that isn't listed"),
    "frame before the first": (put("sites", 1, "stack")([-1]), "stack is no number"),
    "category": (put("sites", 0, "category")("weights"), "category is unknown"),
    "category is a list": (put("sites", 0, "category")([]), "category is unknown"),
    "confidence": (put("sites", 0, "confidence")("sure"), "confidence is unknown"),
    "fine label": (put("sites", 0, "fine")("?"), "a fine label is unknown"),
    "fine label of the whole": (put("fine")({"activation/x": 1}), "a fine label is unknown"),
    "fine labels that don't sum": (put("fine")({"activation/saved_tensor": 1}), "fine labels don't sum"),
    "categories that don't sum": (put("categories", "gradient")(1), "don't sum to requested_bytes"),
    "sites that don't sum": (put("sites", 0, "bytes")(7 * MIB), "don't sum"),
    "sizes that don't sum": (put("sites", 0, "sizes")([[MIB, 99]]), "sizes of a site sum to more"),
    "a count that is too small": (put("sites", 0, "count")(0), "count of a site is less than its blocks"),
    "sites without a stack": (
        lambda document: document["sites"].extend(
            [{**document["sites"][0], "stack": [], "bytes": 0, "sizes": []}] * 101
        ),
        "more sites without a stack",
    ),
    "a size is one number": (put("sites", 0, "sizes")([[MIB]]), "a pair is expected"),
    "a step without its peak": (put("step_peaks")([["step 0"]]), "a pair is expected"),
    "a setting is a number": (put("settings")({"a": 1}), "a setting is no text"),
    "a moment is a number": (put("at")(3), "at is no text"),
    "a peak is missing": (put("peaks")({}), "requested is no number"),
    "history": (put("has_history")(1), "has_history is neither"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_is_refused_in_one_line(case: str) -> None:
    change, message = BROKEN[case]
    document = written(example())
    change(document)
    with pytest.raises(MalformedError) as caught:
        read_baseline(document, NAME)
    assert str(caught.value).startswith(f"{NAME}: no valid baseline: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("key", sorted(written(example()).keys() - {"file", "phase", "num_steps"}))
def test_a_missing_key_is_refused(key: str) -> None:
    document = written(example())
    without(key)(document)
    with pytest.raises(MalformedError, match="no valid baseline"):
        read_baseline(document, NAME)


@pytest.mark.parametrize("document", [[], "x", 1, None, {}])
def test_what_is_no_object_is_refused(document: Any) -> None:
    with pytest.raises(MalformedError, match="no valid baseline"):
        read_baseline(document, NAME)


def test_what_later_versions_add_is_left_alone() -> None:
    document = {**written(example()), "later": [1, {}]}
    assert read_baseline(document, example().name) == read_baseline(written(example()), example().name)
