"""Snapshots by hand, small enough that a test can write its sums out.

Every builder returns plain dicts and lists, as `pickle.load` gives them. A field of an event that is
None is left out, as the version of PyTorch that doesn't know it does.

    a = alloc(0x1000, 700, frames=[frame("forward", "model.py", 9)])
    raw = snapshot(
        traces=[[segment_alloc(0x1000, 2 * MIB), a, free(0x1000, 700), alloc(0x1000, 100)]],
        segments=[segment(0x1000, [block(512, requested=100), block(2 * MIB - 512, state=INACTIVE)])],
    )
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

Raw: TypeAlias = dict[str, Any]
"""A dict of a snapshot: nothing is known of it yet."""

Events: TypeAlias = Raw | Sequence["Events"]
"""One event, or several, nested at will."""

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

ALLOCATED: Final = "active_allocated"
PENDING: Final = "active_pending_free"
INACTIVE: Final = "inactive"

DEFAULT_POOL: Final = (0, 0)


def frame(name: str = "f", file: str = "train.py", line: int = 1) -> Raw:
    """Make a frame. PyTorch shares one dict between all stacks with the frame: reuse what this returns."""
    return {"name": name, "filename": file, "line": line}


def event(
    action: str,
    size: int = 0,
    *,
    addr: int | None = None,
    frames: Sequence[Raw] | None = None,
    stream: int = 0,
    pool: tuple[int, int] | None = None,
    time_us: int | None = None,
    **fields: Any,
) -> Raw:
    """Make any event; `frames=[]` is C++ backward, `frames=None` was recorded without a context."""
    made = {
        "action": action,
        "addr": addr,
        "size": size,
        "stream": stream,
        "frames": frames,
        "pool_id": pool,
        "time_us": time_us,
        **fields,
    }
    return {key: value for key, value in made.items() if value is not None}


def alloc(addr: int, size: int, **fields: Any) -> Raw:
    """Make an `alloc` of `size` requested bytes; `fields` as in `event`, as for all that follow."""
    return event("alloc", size, addr=addr, **fields)


def free_requested(addr: int, size: int, **fields: Any) -> Raw:
    """Make the event of a storage that died."""
    return event("free_requested", size, addr=addr, **fields)


def free_completed(addr: int, size: int, **fields: Any) -> Raw:
    """Make the event of a block that went back to its pool."""
    return event("free_completed", size, addr=addr, **fields)


def free(addr: int, size: int, **fields: Any) -> list[Raw]:
    """Make both events of an ordinary free, one right after the other."""
    return [free_requested(addr, size, **fields), free_completed(addr, size, **fields)]


def segment_alloc(addr: int, size: int, **fields: Any) -> Raw:
    """Make the event of a cudaMalloc of `size` bytes."""
    return event("segment_alloc", size, addr=addr, **fields)


def segment_free(addr: int, size: int, **fields: Any) -> Raw:
    """Make the event of a cudaFree."""
    return event("segment_free", size, addr=addr, **fields)


def segment_map(addr: int, size: int, **fields: Any) -> Raw:
    """Make the event of an expandable segment that grows."""
    return event("segment_map", size, addr=addr, **fields)


def segment_unmap(addr: int, size: int, **fields: Any) -> Raw:
    """Make the event of an expandable segment that shrinks."""
    return event("segment_unmap", size, addr=addr, **fields)


def oom(size: int, device_free: int, **fields: Any) -> Raw:
    """Make the event of a request of `size` rounded bytes that failed. It has no address."""
    return event("oom", size, device_free=device_free, **fields)


def block(
    size: int,
    *,
    state: str = ALLOCATED,
    requested: int | None = None,
    frames: Sequence[Raw] = (),
    addr: int | None = None,
    **fields: Any,
) -> Raw:
    """Make a block of `size` bytes.

    `requested` is `size` if not given, 0 for an inactive block. `segment` fills in the address.
    """
    if requested is None:
        requested = 0 if state == INACTIVE else size
    made = {
        "address": addr,
        "size": size,
        "requested_size": requested,
        "state": state,
        "frames": list(frames),
    }
    return {**made, **fields}


def segment(
    addr: int,
    blocks: Sequence[Raw],
    *,
    device: int = 0,
    stream: int = 0,
    kind: str | None = None,
    pool: tuple[int, int] = DEFAULT_POOL,
    is_expandable: bool = False,
    frames: Sequence[Raw] = (),
    **fields: Any,
) -> Raw:
    """Make a segment that its blocks fill without gaps; sizes and addresses are summed up.

    `kind` is `small` for segments of 2 MiB unless given. What `fields` names replaces what was
    computed, to make a segment that contradicts itself.
    """
    placed: list[Raw] = []
    cursor = addr
    for made in blocks:
        placed.append({**made, "address": cursor if made["address"] is None else made["address"]})
        cursor += made["size"]
    active = [made for made in blocks if made["state"] != INACTIVE]
    return {
        "device": device,
        "address": addr,
        "total_size": cursor - addr,
        "allocated_size": sum(made["size"] for made in blocks if made["state"] == ALLOCATED),
        "active_size": sum(made["size"] for made in active),
        "requested_size": sum(made["requested_size"] for made in active),
        "stream": stream,
        "segment_type": kind or ("small" if cursor - addr == 2 * MIB else "large"),
        "segment_pool_id": pool,
        "is_expandable": is_expandable,
        "frames": list(frames),
        "blocks": placed,
        **fields,
    }


def annotation(name: str, stage: str, time_us: int, *, device: int = 0) -> Raw:
    """Make one end (`START` or `END`) of a `record_function` range."""
    return {"name": name, "stage": stage, "device": device, "time_us": time_us}


def settings(conf: str = "", **fields: Any) -> Raw:
    """Make `allocator_settings` with PyTorch's defaults."""
    return {
        "PYTORCH_CUDA_ALLOC_CONF": conf,
        "max_split_size": -1,
        "garbage_collection_threshold": 0.0,
        "expandable_segments": False,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "roundup_power2_divisions": {str(1 << power): 0 for power in range(16)},
        **fields,
    }


def snapshot(traces: Sequence[Events] = ((),), segments: Sequence[Raw] = (), **extra: Any) -> Raw:
    """Make a whole snapshot: one trace per device, and the segments of all devices.

    Events may be nested (`free` gives two): they are flattened. `extra` adds or replaces top-level
    keys, such as `allocator_settings=settings()` or `external_annotations=[…]`.
    """
    return {
        "segments": list(segments),
        "device_traces": [list(_flat(trace)) for trace in traces],
        **extra,
    }


def _flat(events: Events) -> Iterator[Raw]:
    if isinstance(events, dict):
        yield events
    else:
        for some in events:
            yield from _flat(some)
