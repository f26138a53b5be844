"""The user's own rules: which frames make which category.

A TOML file of tables `[[rule]]` with `category` and at least one of `file` and `function`,
regular expressions that are searched in the normalised file and the function of every frame
of a stack; `fine` is optional. The first rule that matches any frame wins, and it overrules
everything else.

    [[rule]]
    file = "my_optim/.*"
    function = "init_state"
    category = "optimizer_state"
    fine = "momentum_buffer"
"""

from __future__ import annotations

import re
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from snapscope.classify.fine import FINE_LABELS
from snapscope.classify.material import CATEGORY_LABELS, Category
from snapscope.errors import UsageError
from snapscope.model import Int8Column, StackTable
from snapscope.sites import Sites

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_KEYS = frozenset(("file", "function", "category", "fine"))
# Columns of rule numbers are int8.
_MAX_RULES = 127
_MAX_FILE_BYTES = 1 << 20
_MAX_PATTERN = 2000
_MAX_SHOWN = 200


@dataclass(frozen=True, slots=True)
class UserRule:
    """One rule.

    Attributes:
        file, function: what a frame must match; None = anything.
        category: what its allocation then is.
        fine: number of its fine label; None = the category's most common one.
    """

    file: re.Pattern[str] | None
    function: re.Pattern[str] | None
    category: Category
    fine: int | None


def read_rules(path: str) -> tuple[UserRule, ...]:
    """Read a file of rules.

    Raises:
        UsageError: it can't be read, is no TOML, or a rule makes no sense.
    """
    if not path:
        raise UsageError("--rules needs the name of a file")
    try:
        with Path(path).open("rb") as file:
            text = file.read(_MAX_FILE_BYTES + 1)
        if len(text) > _MAX_FILE_BYTES:
            raise UsageError(f"{path} holds more than {_MAX_FILE_BYTES >> 10} KiB: that is no file of rules")
        # Editors on Windows begin a text with a mark.
        content = tomllib.loads(text.decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror}") from None
    except ValueError as error:
        # TOMLDecodeError and UnicodeDecodeError are ValueErrors; so is a number of too many digits.
        raise UsageError(f"{path} is no TOML: {str(error)[:_MAX_SHOWN]}") from None
    except RecursionError:
        raise UsageError(f"{path} is no TOML: it nests too deeply") from None
    rules = content.get("rule", [])
    if not isinstance(rules, list) or not rules or set(content) != {"rule"}:
        raise UsageError(f"{path} holds no rules: write tables [[rule]] with file, function, category")
    if len(rules) > _MAX_RULES:
        raise UsageError(f"{path} holds {len(rules)} rules, at most {_MAX_RULES} are read: join them with |")
    return tuple(_rule(rule, f"{path}, rule {number}") for number, rule in enumerate(rules, 1))


def _rule(rule: Any, where: str) -> UserRule:
    if not isinstance(rule, dict) or not all(isinstance(value, str) for value in rule.values()):
        raise UsageError(f"{where}: file, function, category and fine are texts")
    unknown = rule.keys() - _KEYS
    if unknown:
        raise UsageError(f"{where}: unknown key {sorted(unknown)[0]!r}")
    if "file" not in rule and "function" not in rule:
        raise UsageError(f"{where}: needs file or function")
    if rule.get("category") not in CATEGORY_LABELS:
        raise UsageError(f"{where}: category is one of {', '.join(CATEGORY_LABELS)}")
    if "fine" in rule and rule["fine"] not in FINE_LABELS:
        raise UsageError(f"{where}: fine is one of {', '.join(FINE_LABELS)}")
    return UserRule(
        file=_compile(rule, "file", where),
        function=_compile(rule, "function", where),
        category=Category(CATEGORY_LABELS.index(rule["category"])),
        fine=FINE_LABELS.index(rule["fine"]) if "fine" in rule else None,
    )


def _compile(rule: dict[str, str], key: str, where: str) -> re.Pattern[str] | None:
    if key not in rule:
        return None
    shown = repr(rule[key][:_MAX_SHOWN])
    if len(rule[key]) > _MAX_PATTERN:
        raise UsageError(f"{where}: {key} {shown}… is longer than {_MAX_PATTERN} characters")
    try:
        with warnings.catch_warnings():
            # They tell of later Pythons, to who writes programs.
            warnings.simplefilter("ignore")
            return re.compile(rule[key])
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"{where}: {key} {shown} is no regular expression: {error}") from None


def match_rules(rules: tuple[UserRule, ...], stacks: StackTable, sites: Sites) -> Int8Column:
    """Return, per stack, the number of the first rule that matches any of its frames; -1 none."""
    first = np.full(stacks.num_frames, len(rules), np.int64)
    for frame in range(stacks.num_frames):
        file, function = sites.file_of(frame), stacks.function_of(frame)
        for number, rule in enumerate(rules):
            fits = (rule.file is None or rule.file.search(file)) and (
                rule.function is None or rule.function.search(function)
            )
            if fits:
                first[frame] = number
                break
    out = np.full(stacks.num_stacks, -1, np.int8)
    for stack in range(stacks.num_stacks):
        frames = stacks.frames_of(stack)
        best = int(first[frames].min()) if len(frames) else len(rules)
        out[stack] = best if best < len(rules) else -1
    return out
