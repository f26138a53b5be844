#!/usr/bin/env python3
"""Write a synthetic, structurally faithful PyTorch CUDA memory snapshot.

The file has the layout of torch.cuda.memory._dump_snapshot: the same keys in the
same order, pickled with protocol 4, and the same objects shared by identity:

* one dict per distinct frame, shared by every stack that passes through it;
* one frames list per captured traceback: an alloc event, the segment_alloc it
  caused and the live block share one list; free_requested and free_completed
  share another; inactive blocks and segments share one empty list;
* key and action strings shared, but a new 'N/A' compile_context per event and
  unshared name/filename strings in each frame dict.

The events come from a caching-allocator simulation (512-byte rounding, 2 MiB and
20 MiB segments, best fit, split, coalesce) driven by a transformer training loop
(parameters, activations freed in reverse order, gradients, Adam state, scratch),
so a replay is consistent and ends in the state that 'segments' describes.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import gc
import pickle
import random
import sys
from collections.abc import Sequence
from typing import Any

KIB, MIB = 1 << 10, 1 << 20
Frames = list[dict[str, Any]]
PARAM_NAMES = ("qkv", "proj", "fc1", "fc2", "ln1", "ln2")


class WindowFull(Exception):
    """The trace holds the events asked for."""


class Block:
    __slots__ = ("addr", "ctx", "free", "next", "pending", "prev", "req", "seg", "size", "stream")

    def __init__(self, addr: int, size: int, seg: Segment, prev: Block | None = None, nxt: Block | None = None) -> None:
        self.addr, self.size, self.seg, self.prev, self.next = addr, size, seg, prev, nxt
        self.req, self.free, self.stream, self.pending = 0, True, 0, False
        self.ctx: Frames | None = None


class Segment:
    __slots__ = ("addr", "head", "kind", "size", "stream")

    def __init__(self, addr: int, size: int, kind: str, stream: int) -> None:
        self.addr, self.size, self.kind, self.stream = addr, size, kind, stream
        self.head = Block(addr, size, self)


class Allocator:
    """One device: the block pools and the trace of what was done to them."""

    def __init__(self, rng: random.Random, limit: int, metadata: bool, base: int) -> None:
        self.rng, self.limit, self.metadata = rng, limit, metadata
        self.next_addr = base
        self.segments: list[Segment] = []
        self.pools: dict[tuple[str, int], list[tuple[int, int, Block]]] = {}
        self.trace: list[dict[str, Any]] = []
        self.time_us = 1_776_479_641_000_000
        self.deferred: list[tuple[int, Block, Frames]] = []

    def full(self) -> bool:
        return len(self.trace) >= self.limit

    def record(self, action: str, addr: int, size: int, stream: int, frames: Frames) -> None:
        if self.full():
            return
        self.time_us += self.rng.randrange(1, 40)
        event: dict[str, Any] = {
            "action": action,
            "addr": addr,
            "size": size,
            "stream": stream,
            "time_us": self.time_us,
        }
        if self.metadata:
            event["compile_context"] = b"N/A".decode()  # a new str per event, as pybind11 makes
            event["user_metadata"] = ""
        event["frames"] = frames
        self.trace.append(event)

    def alloc(self, req: int, frames: Frames, stream: int = 0) -> Block:
        if self.full():
            raise WindowFull
        size = max(512, (req + 511) & ~511)
        kind = "small" if size <= MIB else "large"
        pool = self.pools.setdefault((kind, stream), [])
        at = bisect.bisect_left(pool, (size, 0))
        if at < len(pool):
            block = pool.pop(at)[2]
        else:
            if kind == "small":
                seg_size = 2 * MIB
            elif size < 10 * MIB:
                seg_size = 20 * MIB
            else:
                seg_size = (size + 2 * MIB - 1) & ~(2 * MIB - 1)
            segment = Segment(self.next_addr, seg_size, kind, stream)
            self.next_addr += seg_size + (2 * MIB if self.rng.random() < 0.1 else 0)
            self.segments.append(segment)
            self.record("segment_alloc", segment.addr, seg_size, stream, frames)
            block = segment.head
            if self.full():
                raise WindowFull
        rest = block.size - size
        if rest >= (512 if kind == "small" else MIB + 1):
            tail = Block(block.addr + size, rest, block.seg, block, block.next)
            if block.next is not None:
                block.next.prev = tail
            block.next, block.size = tail, size
            bisect.insort(pool, (rest, tail.addr, tail))
        block.free, block.req, block.ctx, block.stream = False, req, frames, stream
        self.record("alloc", block.addr, req, stream, frames)
        return block

    def free(self, block: Block, frames: Frames, delay: int = 0) -> None:
        if self.full():
            raise WindowFull
        self.record("free_requested", block.addr, block.req, block.stream, frames)
        if delay:
            block.pending = True
            self.deferred.append((len(self.trace) + delay, block, frames))
        else:
            self.complete(block, frames)
        while self.deferred and self.deferred[0][0] <= len(self.trace) and not self.full():
            self.complete(*self.deferred.pop(0)[1:])

    def complete(self, block: Block, frames: Frames) -> None:
        if self.full():
            block.pending = True
            return
        self.record("free_completed", block.addr, block.req, block.stream, frames)
        pool = self.pools[(block.seg.kind, block.stream)]
        block.free, block.pending, block.ctx, block.req = True, False, None, 0
        for other in (block.prev, block.next):
            if other is not None and other.free:
                del pool[bisect.bisect_left(pool, (other.size, other.addr))]
                if other is block.prev:
                    other.size += block.size
                    other.next = block.next
                    if block.next is not None:
                        block.next.prev = other
                    block = other
                else:
                    block.size += other.size
                    block.next = other.next
                    if other.next is not None:
                        other.next.prev = block
        bisect.insort(pool, (block.size, block.addr, block))


class Stacks:
    """Stack templates: lists of frame dicts shared between templates."""

    def __init__(self, rng: random.Random, mode: str, depth: int) -> None:
        self.rng, self.mode, self.depth = rng, mode, depth
        self.frames: dict[tuple[str, str, int], dict[str, Any]] = {}
        self.templates: dict[tuple[str, str, int, int], Frames] = {}
        self.cpp = [(f"at::native::op_{i}(at::Tensor const&, long, c10::ScalarType)", "??", 0) for i in range(400)]

    def frame(self, name: str, filename: str, line: int) -> dict[str, Any]:
        key = (name, filename, line)
        if key not in self.frames:
            self.frames[key] = {
                "name": name.encode().decode(),
                "filename": filename.encode().decode(),
                "line": line,
            }
        return self.frames[key]

    def site(self, phase: str, op: str, variant: int = 0, group: int = 0) -> Frames:
        """A new list (one captured traceback) for the call site."""
        key = (phase, op, variant, group)
        if key not in self.templates:
            self.templates[key] = self.build(*key)
        return list(self.templates[key])

    def build(self, phase: str, op: str, variant: int, group: int) -> Frames:
        # a stable hash (str hashes are salted), so that a seed gives one file
        h = 0
        for ch in f"{phase}/{op}/{variant}/{group}":
            h = (h * 131 + ord(ch)) & 0x7FFFFFFF
        local = random.Random(h)
        frames: Frames = []
        if self.mode == "mixed":  # C++ frames come first, as unwind gathers them
            start = local.randrange(300)
            frames += [self.frame(*self.cpp[(start + i) % 400]) for i in range(local.randrange(18, 46))]
        if phase == "backward" and op != "root":
            if self.mode == "mixed":  # the autograd thread has no Python frames
                frames += [
                    self.frame(f"torch::autograd::Engine::{n}", "??", 0)
                    for n in ("evaluate_function", "thread_main", "thread_init")
                ]
            return frames
        site = "/usr/lib/python3.11/site-packages/torch"
        if phase == "forward":
            frames.append(self.frame("forward", f"{site}/nn/modules/{op}.py", 100 + h % 60))
            for level in range((self.depth - 8) // 3):
                frames.append(self.frame("_call_impl", f"{site}/nn/modules/module.py", 1784))
                frames.append(self.frame("_wrapped_call_impl", f"{site}/nn/modules/module.py", 1773))
                frames.append(self.frame("forward", f"/home/user/model/part_{level}.py", 40 + (h >> level) % 12))
        elif phase == "step":
            frames.append(self.frame(op, f"{site}/optim/adamw.py", 120 + h % 50))
            for name, line in (("_use_grad", 81), ("wrapper", 493), ("step", 232), ("_fn", 1044)):
                frames.append(self.frame(name, f"{site}/optim/optimizer.py", line))
        elif phase == "root" or op == "root":
            frames.append(self.frame("backward", f"{site}/autograd/__init__.py", 354))
            frames.append(self.frame("backward", f"{site}/_tensor.py", 648))
        else:
            frames.append(self.frame(op, "/home/user/model/init.py", 10 + h % 400))
            for level in range(4):
                frames.append(self.frame("__init__", f"/home/user/model/part_{level}.py", 12 + (h >> level) % 20))
        for name, line in (
            ("training_step", 88),
            ("run_epoch", 140),
            ("fit", 61),
            ("inner", 30),
            ("main", 212),
            ("wrapper", 355),
            ("<module>", 231),
        ):
            frames.append(self.frame(name, "/home/user/train.py", line))
        return frames


FORWARD_OPS = (
    "layernorm",
    "linear",
    "view",
    "attention",
    "softmax",
    "dropout",
    "linear_proj",
    "add",
    "layernorm_2",
    "linear_fc1",
    "gelu",
    "linear_fc2",
    "dropout_2",
    "add_2",
)


def train(
    alloc: Allocator,
    stacks: Stacks,
    rng: random.Random,
    layers: int,
    extra_blocks: int,
    variants: int,
    hidden: int = 1024,
) -> None:
    def keep(req: int, phase: str, op: str, variant: int = 0, group: int = 0) -> Block:
        return alloc.alloc(req, stacks.site(phase, op, variant, group % variants))

    def drop(block: Block, phase: str, op: str, variant: int = 0, group: int = 0) -> None:
        alloc.free(
            block,
            stacks.site(phase, op, variant, group % variants),
            delay=rng.randrange(20, 60) if rng.random() < 0.01 else 0,
        )

    for i in range(extra_blocks):
        keep(512 * rng.randrange(1, 64) - rng.randrange(64), "init", f"buffer_{i % 97}")
    shapes = {
        "qkv": 3 * hidden * hidden,
        "proj": hidden * hidden,
        "fc1": 4 * hidden * hidden,
        "fc2": 4 * hidden * hidden,
        "ln1": hidden,
        "ln2": hidden,
    }
    weights = []
    for _ in range(layers):
        for name in PARAM_NAMES:
            weights.append((name, keep(4 * shapes[name], "init", name)))
    state: list[Block] | None = None
    while True:
        tokens = rng.choice((512, 768, 1024, 1536, 2048)) * 2
        saved = []
        for layer in range(layers):
            for op in FORWARD_OPS:
                width = 4 * hidden if "fc1" in op or op == "gelu" else hidden
                block = keep(2 * tokens * width + (rng.randrange(4096) & ~3), "forward", op, 0, layer)
                if rng.random() < 0.45:
                    scratch = keep(2 * tokens * hidden // rng.choice((1, 2, 8, 64, 1024)), "forward", op, 1, layer)
                    drop(scratch, "forward", op, 2, layer)
                saved.append((op, block))
        grads = []
        for layer in reversed(range(layers)):
            for name in reversed(PARAM_NAMES):
                grads.append(keep(4 * shapes[name], "backward", name, 0, layer))
            for _ in FORWARD_OPS:
                op, block = saved.pop()
                grad = keep(block.req, "backward", op, 0, layer)
                drop(block, "backward", op, 1, layer)
                drop(grad, "backward", op, 2, layer)
        if state is None:
            state = [keep(4 * shapes[n], "step", "_init_group", k) for n, _ in weights for k in (0, 1)]
        for block in grads:
            temp = keep(block.req, "step", "_single_tensor_adamw")
            drop(temp, "step", "_single_tensor_adamw", 1)
        for block in grads:
            drop(block, "step", "zero_grad")


def segments_of(alloc: Allocator, device: int, empty: Frames) -> list[dict[str, Any]]:
    out = []
    for segment in sorted(alloc.segments, key=lambda s: s.addr):
        blocks: list[dict[str, Any]] = []
        active, allocated, requested = 0, 0, 0
        block: Block | None = segment.head
        while block is not None:
            state = "inactive" if block.free else "active_pending_free" if block.pending else "active_allocated"
            if not block.free:
                active += block.size
                requested += block.req
                allocated += 0 if block.pending else block.size
            blocks.append(
                {
                    "address": block.addr,
                    "size": block.size,
                    "requested_size": block.req,
                    "state": state,
                    "frames": block.ctx if block.ctx is not None else empty,
                }
            )
            block = block.next
        out.append(
            {
                "device": device,
                "address": segment.addr,
                "total_size": segment.size,
                "allocated_size": allocated,
                "active_size": active,
                "requested_size": requested,
                "stream": segment.stream,
                "segment_type": segment.kind,
                "segment_pool_id": (0, 0),
                "is_expandable": False,
                "frames": empty,
                "blocks": blocks,
            }
        )
    return out


def build(
    events: int,
    seed: int = 0,
    layers: int = 24,
    depth: int = 32,
    mode: str = "python",
    blocks: int = 0,
    devices: int = 1,
    window: int = 0,
    metadata: bool = True,
    variants: int = 8,
) -> dict[str, Any]:
    rng = random.Random(seed)
    empty: Frames = []
    segments: list[dict[str, Any]] = []
    traces: list[list[dict[str, Any]]] = []
    annotations: list[dict[str, Any]] = []
    for device in range(devices):
        alloc = Allocator(rng, events // devices + window, metadata, 0x7F00_0000_0000 + (device << 40))
        with contextlib.suppress(WindowFull):
            train(alloc, Stacks(rng, mode, depth), rng, layers, blocks, variants)
        segments += segments_of(alloc, device, empty)
        traces.append(alloc.trace[window:])
        annotations += [
            {
                "stage": s,
                "name": "Optimizer.step#AdamW.step",
                "device": device,
                "time_us": traces[-1][i]["time_us"],
            }
            for s, i in (("START", len(traces[-1]) // 2), ("END", len(traces[-1]) * 2 // 3))
        ]
    settings = {
        "PYTORCH_CUDA_ALLOC_CONF": "",
        "max_split_size": -1,
        "garbage_collection_threshold": 0.0,
        "expandable_segments": False,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "graph_capture_record_stream_reuse": False,
        "roundup_power2_divisions": {str(1 << i): 0 for i in range(16)},
    }
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": settings,
        "external_annotations": annotations,
    }


def main(argv: Sequence[str] | None = None) -> None:
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("--events", type=int, required=True, help="trace events to write, over all devices")
    p.add_argument("--out", required=True)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--layers", type=int, default=24)
    p.add_argument("--depth", type=int, default=32, help="frames in a forward stack (Python part)")
    p.add_argument(
        "--mode", choices=("python", "mixed"), default="python", help="mixed adds 18-45 C++ frames per stack"
    )
    p.add_argument(
        "--variants",
        type=int,
        default=8,
        help="distinct copies of each layer's call sites (more gives more distinct stacks)",
    )
    p.add_argument("--blocks", type=int, default=0, help="extra long-lived small blocks per device")
    p.add_argument("--devices", type=int, default=1)
    p.add_argument("--window", type=int, default=0, help="drop the first K events, as a full ring buffer does")
    p.add_argument(
        "--no-metadata",
        action="store_true",
        help="omit compile_context and user_metadata, as older torch releases do",
    )
    a = p.parse_args(argv)
    gc.disable()
    snapshot = build(
        a.events,
        a.seed,
        a.layers,
        a.depth,
        a.mode,
        a.blocks,
        a.devices,
        a.window,
        not a.no_metadata,
        a.variants,
    )
    with open(a.out, "wb") as f:
        pickle.dump(snapshot, f, protocol=4)
    print(
        a.out,
        sum(map(len, snapshot["device_traces"])),
        "events",
        sum(len(s["blocks"]) for s in snapshot["segments"]),
        "blocks",
        len(snapshot["segments"]),
        "segments",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
