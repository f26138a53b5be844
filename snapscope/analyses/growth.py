"""What grew since the same phase of the step before."""

from __future__ import annotations

from dataclasses import dataclass

from snapscope.analyses.ledger import LedgerRow, group_rows
from snapscope.analyses.step_match import StepMatch
from snapscope.classify.material import Category
from snapscope.history import DeviceHistory


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthRow:
    """One site's live bytes now and then."""

    site: str
    category: Category | None
    before_bytes: int
    after_bytes: int
    before_count: int
    after_count: int

    @property
    def delta_bytes(self) -> int:
        """What it grew by; negative if it shrank."""
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Live bytes compared with the same place of an earlier step; the rows sum to the delta.

    Attributes:
        step: name of the earlier step.
        event: after which it is looked at.
        delta_bytes: requested bytes now, less those then.
        rows: the sites that changed, most bytes of change first.
    """

    step: str
    event: int
    delta_bytes: int
    rows: tuple[GrowthRow, ...]


def grown_since(history: DeviceHistory, event: int, match: StepMatch) -> Growth:
    """Compare what is live after `event` with what was before the corresponding request."""
    then = match.event - 1
    before = _by_site(history, then)
    after = _by_site(history, event)
    rows = []
    for site in before.keys() | after.keys():
        old, new = before.get(site), after.get(site)
        newest = new or old
        rows.append(
            GrowthRow(
                site=newest.key if newest is not None else "",
                category=newest.category if newest is not None else None,
                before_bytes=old.bytes if old is not None else 0,
                after_bytes=new.bytes if new is not None else 0,
                before_count=old.num_allocations if old is not None else 0,
                after_count=new.num_allocations if new is not None else 0,
            )
        )
    changed = [row for row in rows if row.delta_bytes]
    return Growth(
        step=match.earlier.name,
        event=then,
        delta_bytes=sum(row.delta_bytes for row in changed),
        rows=tuple(sorted(changed, key=lambda row: (-abs(row.delta_bytes), row.site))),
    )


def _by_site(history: DeviceHistory, event: int) -> dict[object, LedgerRow]:
    """Return the rows of a moment by the site's number, which stays the same."""
    out: dict[object, LedgerRow] = {}
    for row in group_rows(history, history.lifetimes.live_at(event)):
        site = history.sites.of_stack(row.stack) if row.stack is not None else None
        # Sites without a file go by their label: whether they are older than the history.
        out[site.number if site is not None and site.file else row.key] = row
    return out
