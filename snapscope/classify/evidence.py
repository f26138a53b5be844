"""What a decision rests on: one code per kind of evidence, with its words and confidence.

The confidence of a kind is measured (see docs/accuracy.md): *high* where at least 99.5 % of
the bytes that it decided were right over all recordings with truth, *medium* from 95 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from snapscope.classify.material import Confidence


class Evidence(IntEnum):
    """Kinds of evidence."""

    DEFAULT = 0
    USER_RULE = 1
    USER_LABEL = 2
    CONSTRUCTED = 3
    CONSTRUCTED_BRIEFLY = 4
    FREED_IN_ITS_BACKWARD = 5
    RECOMPUTED = 6
    OUTLIVES_BACKWARD = 7
    FREED_BY_LATER_BACKWARD = 8
    HOOK_STATE = 9
    FREED_BY_HOOK = 10
    FREED_BY_REDUCTION = 11
    ALIVE_IN_BACKWARD = 12
    ALIVE_IN_BACKWARD_PARAMETER_SIZE = 13
    WORKSPACE = 14
    FREED_IN_ITS_STEP = 15
    OUTLIVES_STEP = 16
    ALIVE_IN_STEP = 17
    STATE_INIT = 18
    FREED_BEFORE_BACKWARD = 19
    FREED_BY_BACKWARD = 20
    HELD_BESIDE_SAVED = 21
    HELD_NOTHING_ELSE_SAVED = 22
    GRAPH_KEPT = 23
    KV_CACHE = 24
    INPUT_HELD = 25
    KEPT_FOR_LONG = 26
    RESULT_HELD = 27
    USER_PARAMETER = 28
    USER_COPY = 29
    USER_STATE = 30
    MASTER_WEIGHT = 31
    USER_BUFFER = 32
    UPDATE_TEMPORARY = 33
    UPDATE_STATE = 34
    UPDATE_KEPT = 35
    REPLACES = 36
    AS_BEFORE = 37
    AS_SITE = 38
    ALIVE_IN_FORWARD = 39
    BEHIND_FRONTIER = 40
    COMMUNICATION = 41
    UNSHARDED = 42
    BEFORE_OWN_FRAMES = 43
    BEFORE_FREED_BY = 44
    BEFORE_BY_SIZE = 45
    BEFORE_DEFAULT = 46
    POSITION_ONLY = 47
    OUTLIVES_BACKWARD_PARAMETER_SIZE = 48
    FREED_BY_ZERO_GRAD = 49
    ACCUMULATED = 50
    FLAT = 51
    CACHE_SET = 52
    DRAWN_SET = 53


@dataclass(frozen=True, slots=True)
class Words:
    """How sure a kind is, and how to say it."""

    confidence: Confidence
    text: str


_H, _M, _L, _N = Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW, Confidence.NONE

WORDS: Final = {
    Evidence.DEFAULT: Words(_N, "nothing decided it: the default"),
    Evidence.USER_RULE: Words(_H, "a rule of --rules"),
    Evidence.USER_LABEL: Words(_H, "a label that the program gave it"),
    Evidence.CONSTRUCTED: Words(_H, "allocated while a module was built, moved or loaded, and kept"),
    Evidence.CONSTRUCTED_BRIEFLY: Words(_L, "allocated while a module was built, freed before the work began"),
    Evidence.FREED_IN_ITS_BACKWARD: Words(_M, "allocated in a backward and freed in the same"),
    Evidence.RECOMPUTED: Words(_M, "allocated while checkpointed activations were recomputed"),
    Evidence.OUTLIVES_BACKWARD: Words(_M, "allocated in a backward and outlives it"),
    Evidence.OUTLIVES_BACKWARD_PARAMETER_SIZE: Words(
        _H, "allocated in a backward, outlives it, and has the size of a parameter that was built"
    ),
    Evidence.FREED_BY_LATER_BACKWARD: Words(_L, "allocated in a backward, saved for a later one that freed it"),
    Evidence.HOOK_STATE: Words(_M, "allocated in a backward hook, of a parameter's size, and kept over steps"),
    Evidence.FREED_BY_HOOK: Words(_M, "of a parameter's size, freed by a backward hook"),
    Evidence.FREED_BY_REDUCTION: Words(_H, "allocated in a backward and freed when gradients were reduced"),
    Evidence.ALIVE_IN_BACKWARD: Words(_L, "allocated in a backward that the history doesn't see the end of"),
    Evidence.ALIVE_IN_BACKWARD_PARAMETER_SIZE: Words(_M, "allocated in an unfinished backward, of a parameter's size"),
    Evidence.WORKSPACE: Words(_H, "a library's workspace, by name or exact size"),
    Evidence.FREED_IN_ITS_STEP: Words(_H, "allocated in an optimizer step and freed in the same"),
    Evidence.OUTLIVES_STEP: Words(_M, "allocated in an optimizer step and outlives it"),
    Evidence.ALIVE_IN_STEP: Words(_L, "allocated in an optimizer step that the history doesn't see the end of"),
    Evidence.STATE_INIT: Words(_H, "allocated where the optimizer sets up its state"),
    Evidence.FREED_BEFORE_BACKWARD: Words(_M, "allocated in forward and freed before any backward"),
    Evidence.FREED_BY_BACKWARD: Words(_H, "allocated before a backward that freed it"),
    Evidence.HELD_BESIDE_SAVED: Words(_M, "held past the backward; the loss saved a block of its own"),
    Evidence.HELD_NOTHING_ELSE_SAVED: Words(_L, "held past the backward, and nothing else of its size was saved"),
    Evidence.GRAPH_KEPT: Words(_M, "one of many that the graph keeps past the backward"),
    Evidence.KV_CACHE: Words(_M, "a cache that grows or is replaced from call to call"),
    Evidence.INPUT_HELD: Words(_L, "made by the user's code before forward and held past the backward"),
    Evidence.KEPT_FOR_LONG: Words(_L, "made by the user's code and kept over several steps"),
    Evidence.RESULT_HELD: Words(_L, "computed by the user's code after forward and held"),
    Evidence.USER_PARAMETER: Words(_L, "made before the work began, of a gradient's size, and kept"),
    Evidence.USER_COPY: Words(_L, "a second set of the parameters' sizes, beside an optimizer's state"),
    Evidence.USER_STATE: Words(_L, "a set of the parameters' sizes made before the work began"),
    Evidence.MASTER_WEIGHT: Words(_L, "a set of twice the parameters' sizes, made before the work began"),
    Evidence.USER_BUFFER: Words(_L, "made by the user's own __init__ and kept"),
    Evidence.UPDATE_TEMPORARY: Words(_M, "made by the user's code between backward and forward, freed before forward"),
    Evidence.UPDATE_STATE: Words(_L, "made by the user's update, of a parameter's size, and kept"),
    Evidence.UPDATE_KEPT: Words(_L, "made by the user's code after a backward and kept, of no parameter's size"),
    Evidence.REPLACES: Words(_M, "replaces a block of the same size at the same line"),
    Evidence.AS_BEFORE: Words(_M, "what the same line in the same place of the step before became"),
    Evidence.AS_SITE: Words(_L, "what the same line always became before"),
    Evidence.ALIVE_IN_FORWARD: Words(_L, "allocated in forward and alive where the history ends"),
    Evidence.BEHIND_FRONTIER: Words(_M, "alive though the unfinished backward has passed it"),
    Evidence.COMMUNICATION: Words(_L, "a buffer for communication between ranks"),
    Evidence.UNSHARDED: Words(_H, "a parameter gathered from its shards"),
    Evidence.BEFORE_OWN_FRAMES: Words(_M, "older than the history; by its own frames"),
    Evidence.BEFORE_FREED_BY: Words(_L, "older than the history; by what freed it"),
    Evidence.BEFORE_BY_SIZE: Words(_M, "older than the history; by pairing its size with the gradients'"),
    Evidence.BEFORE_DEFAULT: Words(_L, "older than the history and never freed"),
    Evidence.FREED_BY_ZERO_GRAD: Words(_M, "made by the user's code and freed by `zero_grad`"),
    Evidence.ACCUMULATED: Words(_L, "a set of the parameters' sizes in which gradients are added up"),
    Evidence.FLAT: Words(_L, "one block as large as all parameters together, by the order in which such were made"),
    Evidence.CACHE_SET: Words(_L, "made full of zeros before inference, in as many equal blocks as there are layers"),
    Evidence.DRAWN_SET: Words(_L, "drawn at random before the work began, and kept, in a program without modules"),
    Evidence.POSITION_ONLY: Words(_L, "by when it was born and freed alone: there are no stacks"),
}
"""Confidence and words of every kind of evidence."""
