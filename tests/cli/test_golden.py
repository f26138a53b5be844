"""What every verb prints, to the byte. Files are named cli_VERB_WHAT.txt, .json or .csv."""

from __future__ import annotations

from typing import Final

import pytest

from tests.cli.goldens import GOLDEN, check_golden
from tests.cli.running import VERBS, fixture, load_json, succeed
from tests.cli.test_ranks import GOLDENS as RANK_GOLDENS

FRAGMENTATION: Final = "cases/02_fragmentation_oom/a.pickle"
STARTS_LATE: Final = "cases/05_history_starts_late/a.pickle"
STEP_PEAK: Final = "cases/06_step_peak_reconciles/a.pickle"
NO_TRACES: Final = "cases/15_odd_files/no_traces.pickle"
HIGH_ADDRESS: Final = "cases/15_odd_files/addr_above_2_63.pickle"
OOM_FORWARD: Final = "torch-2.14/oom_forward"
MULTI_STREAM: Final = "torch-2.14/multi_stream"
CUDA_GRAPH: Final = "torch-2.14/cuda_graph"
TWO_GPU: Final = "torch-2.14/two_gpu"
CAPTURE: Final = "runs/oom/pend_in_capture"
CAPACITY: Final = "cases/01_capacity_oom/a.pickle"
OOM_OPTIMIZER: Final = "torch-2.14/oom_optimizer_step"
DYNAMIC_BANK: Final = "runs/oom/frag_dynamic_bank"
TWO_OOMS: Final = "runs/oom/two_ooms"
FRACTION: Final = "runs/oom/limit_fraction"
OTHER_STREAM: Final = "runs/oom/other_stream_hole"
MEMPOOL: Final = "runs/oom/priv_mempool"
FITTING_HOLE: Final = "runs/oom/hole_max_split_expandable"
EXPANDABLE: Final = "runs/oom/exp_checkerboard"
AMP: Final = "torch-2.14/amp_bf16"
ACCUMULATION: Final = "torch-2.14/grad_accum"
LEAK: Final = "cases/07_leak_per_step/a.pickle"
LOSSES: Final = "runs/leak/losses_with_graph"
DYNAMIC_RESERVED: Final = "runs/leak/dynamic_reserved_grows"
WORKSPACES: Final = "runs/leak/cublas_workspaces"
KV_CACHE: Final = "torch-2.14/kv_cache"
NO_CONTEXT: Final = "torch-2.14/no_context"
RING: Final = "torch-2.14/ring_overflow"

MOVED_LINE: Final = "cases/11_diff_and_gate/a.pickle cases/11_diff_and_gate/b.pickle"
TO_BF16: Final = "torch-2.14/adamw_fp32 torch-2.14/amp_bf16"
TO_LATE: Final = "torch-2.14/adamw_fp32 torch-2.14/late_start"
TO_SGD: Final = "torch-2.14/adamw_fp32 torch-2.14/sgd_momentum"
NO_CHANGE: Final = "torch-2.14/adamw_fp32 torch-2.14/adamw_fp32_pystacks"

# Name, fixture (two for `diff`), options, and which forms are kept.
CASES: Final = (
    ("summary_02", FRAGMENTATION, "", "txt json"),
    ("summary_02_capacity", FRAGMENTATION, "--capacity 2GiB", "txt"),
    ("summary_05", STARTS_LATE, "", "txt json"),
    ("summary_06", STEP_PEAK, "", "txt"),
    ("summary_no_traces", NO_TRACES, "", "txt json"),
    ("summary_oom_forward", OOM_FORWARD, "", "txt"),
    ("summary_capture", CAPTURE, "", "txt"),
    ("summary_multi_stream_top_5", MULTI_STREAM, "--top 5", "txt"),
    ("summary_cuda_graph_focus", CUDA_GRAPH, "--focus gpt", "txt json"),
    ("summary_two_gpu_top_3", TWO_GPU, "--top 3", "txt"),
    ("summary_ring_overflow_top_3", RING, "--top 3", "txt"),
    ("ledger_02_oom_capacity", FRAGMENTATION, "--at oom --capacity 2GiB", "txt json"),
    ("ledger_05", STARTS_LATE, "", "txt"),
    ("ledger_05_end", STARTS_LATE, "--at end", "txt json csv"),
    ("ledger_06_by_file", STEP_PEAK, "--by file", "txt json csv"),
    ("ledger_no_traces", NO_TRACES, "", "txt json"),
    ("ledger_oom_forward_oom_top_5", OOM_FORWARD, "--at oom --top 5", "txt csv"),
    ("ledger_oom_forward_ignore", OOM_FORWARD, "--ignore make --top 4", "txt"),
    ("ledger_capture_oom", CAPTURE, "--at oom --by pool", "txt json"),
    ("ledger_multi_stream_399_by_stream", MULTI_STREAM, "--at event:399 --by stream", "txt json csv"),
    ("ledger_cuda_graph_by_pool", CUDA_GRAPH, "--by pool", "txt json csv"),
    ("ledger_two_gpu_device_0_top_3", TWO_GPU, "--device 0 --top 3", "txt"),
    ("ledger_06_step_by_step", STEP_PEAK, "--at step:1 --by step", "txt json csv"),
    ("ledger_amp_by_category", AMP, "--by category", "txt json csv"),
    ("ledger_amp_by_fine", AMP, "--by fine", "txt csv"),
    ("ledger_amp_by_module_top_8", AMP, "--by module --top 8", "txt"),
    ("ledger_no_context_by_step", NO_CONTEXT, "--at step:1 --by step", "txt"),
    ("oom_01_capacity", CAPACITY, "--capacity 40GiB", "txt json"),
    ("oom_02", FRAGMENTATION, "", "txt json"),
    ("oom_optimizer_step", OOM_OPTIMIZER, "--capacity 1200MiB", "txt"),
    ("oom_dynamic_bank", DYNAMIC_BANK, "--top 5", "txt"),
    ("oom_two_top_3", TWO_OOMS, "--top 3", "txt"),
    ("oom_capture", CAPTURE, "", "txt json"),
    ("oom_fraction", FRACTION, "--top 3", "txt"),
    ("oom_other_stream", OTHER_STREAM, "", "txt"),
    ("oom_mempool", MEMPOOL, "", "txt"),
    ("oom_fitting_hole", FITTING_HOLE, "", "txt"),
    ("oom_05_without", STARTS_LATE, "--capacity 8GiB", "txt json"),
    ("oom_no_traces", NO_TRACES, "", "txt"),
    ("fragmentation_02_oom_segments", FRAGMENTATION, "--at oom --segments", "txt json csv"),
    ("fragmentation_05", STARTS_LATE, "", "txt"),
    ("fragmentation_dynamic_bank_segments_top_5", DYNAMIC_BANK, "--at oom --segments --top 5", "txt csv"),
    ("fragmentation_expandable_oom", EXPANDABLE, "--at oom", "txt"),
    ("fragmentation_capture_oom", CAPTURE, "--at oom --segments", "txt json"),
    ("fragmentation_cuda_graph_top_5", CUDA_GRAPH, "--top 5", "txt"),
    ("fragmentation_no_traces", NO_TRACES, "", "txt"),
    ("timeline_02", FRAGMENTATION, "", "txt json csv"),
    ("timeline_05", STARTS_LATE, "", "txt json csv"),
    ("timeline_no_traces", NO_TRACES, "", "txt json csv"),
    ("timeline_oom_forward_capacity", OOM_FORWARD, "--capacity 1200MiB", "txt"),
    ("timeline_multi_stream_points_20", MULTI_STREAM, "--points 20", "txt json csv"),
    ("timeline_cuda_graph_focus", CUDA_GRAPH, "--focus gpt --points 10", "txt csv"),
    ("timeline_two_gpu_device_0", TWO_GPU, "--device 0", "txt"),
    ("lifetimes_05", STARTS_LATE, "", "txt json csv"),
    ("lifetimes_06", STEP_PEAK, "", "txt json csv"),
    ("lifetimes_no_traces", NO_TRACES, "", "txt csv"),
    ("lifetimes_high_address", HIGH_ADDRESS, "", "txt csv"),
    ("lifetimes_capture", CAPTURE, "", "txt json csv"),
    ("lifetimes_oom_forward_focus", OOM_FORWARD, "--focus attention|gpt.py:3", "txt csv"),
    ("lifetimes_multi_stream_top_5", MULTI_STREAM, "--top 5", "txt"),
    ("lifetimes_cuda_graph_top_5", CUDA_GRAPH, "--top 5", "txt"),
    ("lifetimes_two_gpu_device_0_top_3", TWO_GPU, "--device 0 --top 3", "txt"),
    ("steps_06", STEP_PEAK, "", "txt json csv"),
    ("steps_amp", AMP, "", "txt csv"),
    ("steps_grad_accum", ACCUMULATION, "", "txt json"),
    ("steps_no_context_top_2", NO_CONTEXT, "--top 2", "txt"),
    ("steps_no_traces", NO_TRACES, "", "txt json csv"),
    ("steps_two_gpu_device_0", TWO_GPU, "--device 0", "txt"),
    ("leaks_07", LEAK, "--capacity 1GiB", "txt json csv"),
    ("leaks_losses_top_4", LOSSES, "--top 4", "txt csv"),
    ("leaks_losses_focus", LOSSES, "--focus nets.py:90", "txt"),
    ("leaks_dynamic_reserved", DYNAMIC_RESERVED, "", "txt json"),
    ("leaks_workspaces", WORKSPACES, "", "txt"),
    ("leaks_kv_cache_top_6", KV_CACHE, "--top 6", "txt csv"),
    ("leaks_amp", AMP, "", "txt"),
    ("leaks_no_context", NO_CONTEXT, "", "txt"),
    ("leaks_no_traces", NO_TRACES, "", "txt json csv"),
    ("explain_05", STARTS_LATE, "", "txt"),
    ("explain_05_address_start", STARTS_LATE, "0x7f00c0000000 --at start", "txt json"),
    ("explain_oom_forward_event_151", OOM_FORWARD, "event:151", "txt json"),
    ("explain_oom_forward_event_151_top_3", OOM_FORWARD, "event:151 --top 3", "txt"),
    ("explain_capture", CAPTURE, "", "txt"),
    ("explain_no_traces", NO_TRACES, "", "txt"),
    ("graph_02", FRAGMENTATION, "", "txt json"),
    ("graph_05_lifetime_start", STARTS_LATE, "--level lifetime --at start", "txt json"),
    ("graph_oom_forward_top_5", OOM_FORWARD, "--top 5", "txt"),
    ("graph_oom_forward_around_event_151", OOM_FORWARD, "--around event:151 --hops 2", "txt"),
    ("graph_cuda_graph_focus_top_5", CUDA_GRAPH, "--focus gpt --top 5", "txt"),
    ("graph_two_gpu_device_0_lifetime_top_3", TWO_GPU, "--device 0 --level lifetime --top 3", "txt"),
    ("graph_no_traces", NO_TRACES, "", "txt"),
    ("diff_11", MOVED_LINE, "", "txt json csv md"),
    ("diff_amp_top_4", TO_BF16, "--top 4", "txt md"),
    ("diff_sgd", TO_SGD, "", "txt"),
    ("diff_late", TO_LATE, "", "txt"),
    ("diff_nothing", NO_CHANGE, "", "txt json csv md"),
    ("baseline_11", "cases/11_diff_and_gate/a.pickle", "", "json"),
    ("baseline_adamw_end", "torch-2.14/adamw_fp32", "--at end", "json"),
)
FORM_OPTIONS: Final = {"txt": (), "json": ("--json",), "csv": ("--csv",), "md": ("--markdown",)}
PARAMETERS: Final = [
    pytest.param(name, path, options, form, id=f"{name}.{form}")
    for name, path, options, forms in CASES
    for form in forms.split()
]


@pytest.mark.parametrize(("name", "path", "options", "form"), PARAMETERS)
def test_output_is_golden(name: str, path: str, options: str, form: str) -> None:
    verb = name.partition("_")[0]
    ran = succeed(verb, *map(fixture, path.split()), *options.split(), *FORM_OPTIONS[form])
    if form == "json":
        load_json(ran.stdout)
    check_golden(f"cli_{name}.{form}", ran.stdout)


def test_no_golden_file_is_left_over() -> None:
    kept = [(name, forms) for name, _, _, forms in CASES] + [(name, forms) for name, _, forms in RANK_GOLDENS]
    used = {f"cli_{name}.{form}" for name, forms in kept for form in forms.split()}
    stored = {path.name for verb in VERBS for path in GOLDEN.glob(f"cli_{verb}_*")}
    assert stored == used


def test_golden_files_stay_small() -> None:
    assert sum(path.stat().st_size for path in GOLDEN.glob("cli_*")) < 420_000
