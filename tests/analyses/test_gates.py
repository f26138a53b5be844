"""Gates: what a limit means, when it fails, and what can't be told."""

from __future__ import annotations

from typing import Any

import pytest

from snapscope.analyses.gates import (
    CheckLimits,
    Growth,
    failed_checks,
    failed_limits,
    parse_check_limit,
    parse_limit,
    rows_of,
)
from snapscope.classify.material import Category
from snapscope.errors import UsageError
from tests.analyses.profiles import compared, made, site
from tests.builders import GIB, MIB


@pytest.mark.parametrize(
    ("text", "what", "num_bytes", "millionths"),
    [
        ("200MiB", "peak", 200 * MIB, None),
        ("0", "peak", 0, None),
        ("1.5GiB", "peak", 3 * GIB // 2, None),
        ("5%", "peak", None, 50_000),
        ("0.25 %", "peak", None, 2500),
        ("0%", "peak", None, 0),
        ("250%", "peak", None, 2_500_000),
        ("gradient=1MiB", "gradient", MIB, None),
        (" reserved = 3%", "reserved", None, 30_000),
        ("site:gpt.py.*forward=1MiB", "site:gpt.py.*forward", MIB, None),
        ("site:a=b=1%", "site:a=b", None, 10_000),
    ],
)
def test_limits_are_parsed(text: str, what: str, num_bytes: int | None, millionths: int | None) -> None:
    limit = parse_limit(text)
    assert (limit.what, limit.num_bytes, limit.millionths) == (what, num_bytes, millionths)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no size"),
        ("%", "is no size"),
        ("-5%", "is no size"),
        ("-1MiB", "is no size"),
        ("nan%", "is no size"),
        ("1e3", "is no size"),
        ("=1MiB", "before the = stands one of peak"),
        ("weights=1MiB", "before the = stands one of peak"),
        ("site:(=1MiB", "is no regular expression"),
        ("gradient=", "is no size"),
    ],
)
def test_what_is_no_limit_is_said(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_limit(text)


def grown(**fields: Any) -> Any:
    """100 MiB that grow to 130: 40 of them, activations, to 60, and 10 MiB of gradients appear."""
    before = made(
        site("m.py f", (20 * MIB, 2)), site("w.py g", (60 * MIB, 1), category=Category.PARAMETER, fine="weight")
    )
    after = made(
        site("m.py f", (20 * MIB, 3)),
        site("w.py g", (60 * MIB, 1), category=Category.PARAMETER, fine="weight"),
        site("b.py h", (10 * MIB, 1), category=Category.GRADIENT, fine="grad"),
        **fields,
    )
    return compared(before, after)


@pytest.mark.parametrize(
    ("limit", "fails"),
    [
        ("29MiB", True),
        ("30MiB", False),
        ("30%", False),
        ("29.9999%", True),
        ("activation=19MiB", True),
        ("activation=20MiB", False),
        ("activation=50%", False),
        ("gradient=9MiB", True),
        # A share of nothing is nothing.
        ("gradient=1000%", True),
        ("parameter=0", False),
        ("site:m\\.py=19MiB", True),
        ("site:nowhere=0", False),
        ("reserved=30MiB", False),
        ("reserved=1MiB", True),
    ],
)
def test_growth_above_a_limit_fails(limit: str, fails: bool) -> None:
    failed = failed_limits(grown(), above=[parse_limit(limit)])
    assert bool(failed) == fails
    assert not failed_limits(grown(), below=[parse_limit(limit)])
    if failed:
        assert failed[0].gate == f"--fail-above {limit}"
        assert "grew by" in failed[0].reason


def test_shrinking_below_a_limit_fails() -> None:
    before, after = made(site("m.py f", (20 * MIB, 3))), made(site("m.py f", (20 * MIB, 1)))
    (gate,) = failed_limits(compared(before, after), below=[parse_limit("39MiB")])
    assert (gate.value_bytes, gate.limit_bytes) == (-40 * MIB, 39 * MIB)
    assert "shrank by 40.00 MiB (from 60.00 MiB to 20.00 MiB), more than 39MiB" in gate.reason
    assert not failed_limits(compared(before, after), below=[parse_limit("40MiB")], above=[parse_limit("0")])


def test_rows_that_explain_a_gate_are_about_it() -> None:
    diff = grown()
    assert [row.shown.label for row in rows_of(diff, "gradient")] == ["b.py:1 h"]
    assert [row.shown.label for row in rows_of(diff, "site:m.py")] == ["m.py:1 f"]
    assert len(rows_of(diff, "peak")) == 3
    assert not rows_of(diff, "holes")


def test_a_final_state_has_no_peak_to_judge() -> None:
    (gate,) = failed_limits(grown(has_history=False, name="state.pickle"), above=[parse_limit("1GiB")])
    assert gate.value_bytes is None
    assert gate.reason.startswith("cannot tell: state.pickle has no history")
    f = made(site("m.py f", (MIB, 1)), has_history=False, label="end")
    assert not failed_limits(compared(f, f), above=[parse_limit("0")])


def test_sites_without_stacks_cannot_be_judged() -> None:
    bare = made(site("(no stack)", (20 * MIB, 3)), name="bare.pickle")
    (gate,) = failed_limits(compared(bare, made(site("m.py f", (MIB, 1)))), above=[parse_limit("site:f=1GiB")])
    assert gate.reason == "cannot tell: bare.pickle has no stacks, so its sites aren't known"
    assert not failed_limits(compared(bare, bare), above=[parse_limit("activation=0")])


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_peak_bytes": 59 * MIB}, "peak is 60.00 MiB, +1.00 MiB over 59.00 MiB"),
        ({"max_peak_bytes": 60 * MIB}, None),
        ({"max_reserved_bytes": MIB}, "reserved peak is 60.00 MiB"),
        ({"max_categories": (parse_check_limit("activation=1MiB", is_category=True),)}, "activation is 60.00 MiB"),
        ({"max_categories": (parse_check_limit("gradient=0", is_category=True),)}, None),
        ({"max_fragmentation": parse_check_limit("10%")}, "holes at the peak is 30.00 MiB"),
        ({"max_fragmentation": parse_check_limit("50%")}, None),
        ({"no_oom": True}, "the history holds 2 oom events"),
        ({"max_growth_bytes": 0}, "cannot tell: too few steps"),
    ],
)
def test_checks_of_one_profile(limits: dict[str, Any], reason: str | None) -> None:
    profile = made(site("m.py f", (20 * MIB, 3)), num_ooms=2, holes_bytes=30 * MIB)
    growth = Growth(per_step_bytes=None, reason="too few steps")
    failed = failed_checks(profile, CheckLimits(**limits), growth=growth)
    assert [reason in gate.reason for gate in failed if reason] == [True] * bool(reason)
    assert bool(failed) == (reason is not None)


def test_growth_per_step_is_checked() -> None:
    profile = made(site("m.py f", (MIB, 1)))
    for per_step, fails in ((0, False), (8 * MIB, False), (9 * MIB, True)):
        growth = Growth(per_step_bytes=per_step, reason="")
        assert bool(failed_checks(profile, CheckLimits(max_growth_bytes=8 * MIB), growth=growth)) == fails
    assert failed_checks(profile, CheckLimits(max_growth_bytes=0), growth=None)[0].reason.startswith("cannot tell")
    assert CheckLimits().is_empty


@pytest.mark.parametrize(("text", "is_category"), [("gradient=1MiB", False), ("1MiB", True), ("reserved=1MiB", True)])
def test_limits_of_checks_are_of_their_kind(text: str, is_category: bool) -> None:
    with pytest.raises(UsageError, match="is no limit"):
        parse_check_limit(text, is_category=is_category)
