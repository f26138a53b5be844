"""The outcome of checks to text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from snapscope.analyses.gates import FailedGate
from snapscope.analyses.profile import MemoryProfile
from snapscope.classify.material import Category
from snapscope.render.diff import device_name, failed_of, side_of, write_failed
from snapscope.render.jsonable import SCHEMA, device_of, dump, notice_of, safe_text
from snapscope.render.page import Page
from snapscope.units import count_of, format_bytes, format_share

_ROWS: Final = 5


def check_json(profile: MemoryProfile, failed: Sequence[FailedGate]) -> bytes:
    """Return the outcome as one JSON object."""
    return dump(
        {
            "schema": SCHEMA,
            "file": safe_text(profile.name),
            "device": device_of(profile.device),
            "notices": [notice_of(notice) for notice in profile.notices],
            "passed": not failed,
            "failed": [failed_of(gate) for gate in failed],
            "found": side_of(profile),
            "categories": {category.label: profile.categories[category] for category in Category},
            "rows": [
                {
                    "site": safe_text(entry.label),
                    "category": entry.category.label,
                    "bytes": entry.bytes,
                    "count": entry.count,
                }
                for entry in profile.sites[:_ROWS]
            ],
        }
    )


def check_text(profile: MemoryProfile, failed: Sequence[FailedGate], page: Page) -> str:
    """Return the outcome as a page: one reason a failed gate, then the rows that explain them."""
    verdict = f"FAILED: {count_of(len(failed), 'gate')}" if failed else "passed"
    page.line(
        f"{verdict}, with {format_bytes(profile.peak_bytes['requested'])} live at the peak and "
        f"{format_bytes(profile.peak_bytes['reserved'])} reserved at most",
        style="bold",
    )
    page.line(f"{profile.name}  {device_name(profile)}")
    write_failed(page, None, failed)
    page.title("who holds most at the peak")
    page.table(
        [
            (format_bytes(entry.bytes), format_share(entry.bytes, profile.requested_bytes),
             entry.category.label[0].upper(), entry.label)
            for entry in profile.sites[:_ROWS]
        ],
        align="rrlf",
    )  # fmt: skip
    page.notices(profile.notices)
    return page.text()
