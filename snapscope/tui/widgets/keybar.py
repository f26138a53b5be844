"""The bottom line: the keys that do something now, as many as fit."""

from __future__ import annotations

from textual import events
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

_LAST_ACTIONS = ("help", "quit")


class KeyBar(Static):
    """Keys of the focused pane and the screen; a click on one presses it."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)
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
        items: list[tuple[str, str, str, str]] = []
        for active in self.screen.active_bindings.values():
            binding = active.binding
            if binding.show and active.enabled and all(binding.action != item[3] for item in items):
                shown = binding.key_display or self.app.get_key_display(binding)
                items.append((shown, binding.description.split(":")[0], binding.key, binding.action))
        last = [item for item in items if item[3].rpartition(".")[2] in _LAST_ACTIONS]
        items = [item for item in items if item not in last]
        width = self.size.width - 1
        while items and _width([*items, *last]) > width:
            items.pop()
        content, position, self._keys = Content(""), 0, []
        for shown, name, key, _ in [*items, *last]:
            piece = Content.assemble(" ", (shown, "bold $text-accent"), f" {name} ")
            self._keys.append((range(position, position + piece.cell_length), key))
            position += piece.cell_length
            content += piece
        self.update(content)

    def on_click(self, event: events.Click) -> None:
        """Press the key under the mouse."""
        for cells, key in self._keys:
            if event.x in cells:
                self.app.simulate_key(key)
                return


def _width(items: list[tuple[str, str, str, str]]) -> int:
    return sum(len(shown) + len(name) + 3 for shown, name, _, _ in items)
