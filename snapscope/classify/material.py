"""What the classifier reads: one device's values, bundled."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from snapscope.lifetimes import Context, LifetimeTable
from snapscope.model import DeviceTables, Int64Column, Snapshot
from snapscope.sites import Sites


class Category(IntEnum):
    """The five ledger categories; every allocation is in exactly one."""

    PARAMETER = 0
    GRADIENT = 1
    OPTIMIZER_STATE = 2
    ACTIVATION = 3
    TEMPORARY = 4

    @property
    def label(self) -> str:
        """Name in JSON and on screen."""
        return self.name.lower()


CATEGORY_LABELS = tuple(category.label for category in Category)
"""Names of the categories, by number."""


class Confidence(IntEnum):
    """How sure a decision is, measured in bytes over recordings whose truth is known."""

    NONE = 0
    LOW = 1
    MEDIUM = 2
    HIGH = 3

    @property
    def label(self) -> str:
        """Name in JSON and on screen."""
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """Everything about one device that a decision may rest on.

    Attributes:
        snapshot: for stacks, strings and annotations.
        tables: the device.
        lifetimes: its allocations.
        context: what context was recorded.
        sites: the snapshot's sites.
        requested_bytes: requested bytes after every event (index 0: before the first).
    """

    snapshot: Snapshot
    tables: DeviceTables
    lifetimes: LifetimeTable
    context: Context
    sites: Sites
    requested_bytes: Int64Column
