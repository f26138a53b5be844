"""The bottom line: the keys that do something now, as many as fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from textual import events
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

_LAST_ACTIONS = ("help", "leave")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """A key, its name, what to press for it, and the act behind it."""

    shown: str
    name: str
    key: str
    action: str

    @property
    def width(self) -> int:
        return len(self.shown) + len(self.name) + 2


class KeyBar(Static):
    """Keys of the focused pane and the screen; a click on one presses it.

    Args:
        key_order: returns names of acts, the most useful first.
        key_names: returns names of acts that depend on the state.
        id: of the widget.
    """

    def __init__(
        self,
        *,
        key_order: Callable[[], tuple[str, ...]],
        key_names: Callable[[], dict[str, str]],
        id: str | None = None,
    ) -> None:
        super().__init__("", id=id, markup=False)
        self._key_order = key_order
        self._key_names = key_names
        self._keys: list[tuple[range, str]] = []

    def on_mount(self) -> None:
        """Follow the focus and what works."""
        self.screen.bindings_updated_signal.subscribe(self, self._follow)
        self._write()

    def on_resize(self) -> None:
        """Fit."""
        self._write()

    def _follow(self, _screen: Screen[object]) -> None:
        self._write()

    def _write(self) -> None:
        items = self._items()
        last = [item for item in items if item.action in _LAST_ACTIONS]
        items = [item for item in items if item not in last]
        width = self.size.width
        while items and sum(item.width for item in (*items, *last)) > width:
            items.pop()
        shown = [*items, *last]
        gap = 2 if sum(item.width + 1 for item in shown) <= width else 1
        content, position, self._keys = Content(""), 0, []
        for item in shown:
            end = position + item.width + gap - 1
            self._keys.append((range(position, end), item.key))
            position = end
            pad = " " * (gap - 1)
            content += Content.assemble(" ", (item.shown, "bold $text-accent"), f" {item.name}{pad}")
        self.update(content)

    def _items(self) -> list[_Item]:
        """Return what works now, in the screen's order of use."""
        items: dict[str, _Item] = {}
        names = self._key_names()
        for active in self.screen.active_bindings.values():
            binding = active.binding
            action = binding.action.rpartition(".")[2].partition("(")[0]
            if binding.show and active.enabled and action not in items:
                shown = binding.key_display or self.app.get_key_display(binding)
                name = names.get(action, binding.description.partition(":")[0])
                items[action] = _Item(shown=shown, name=name, key=binding.key, action=action)
        places = {action: place for place, action in reversed(list(enumerate(self._key_order())))}
        return sorted(items.values(), key=lambda item: places.get(item.action, len(places)))

    def on_click(self, event: events.Click) -> None:
        """Press the key under the mouse."""
        for cells, key in self._keys:
            if event.x in cells:
                self.app.simulate_key(key)
                return
