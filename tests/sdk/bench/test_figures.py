"""Each bench really measures: small settings, every promised figure there and a number."""

import math

import pytest

from potluck.bench import BENCHES, harness

SMALL = {
    "stream": {"repeats": 1},
    "interpreter": {"rows": 2, "repeats": 1},
    "processors": {"rows": 2, "width": 16, "blocks": 1, "repeats": 1, "rounds": 1, "threads": 2},
    "agent": {"repeats": 1, "settle_s": 0},
    "generate": {"layers": 1, "max_length": 64, "prompt": 8, "tokens": 3, "repeats": 1},
    "digits": {"most_agents": 1, "steps": 3, "tries": 1, "lab_plans": 1},
    "pipeline": {
        "rounds": 1,
        "alone_rounds": 1,
        "small_steps": 1,
        "micro_batches": 2,
        "large": 0,
        "most_stages": 2,
    },
    "fidelity": {
        "batch": 16,
        "micro_batch": 8,
        "steps": 3,
        "requests": 2,
        "repeats": 1,
        "every": 15,
        "measured": 1,
    },
    "network_schedule": {"pipelines": 2, "lab": 0, "exact_s": 1},
    "recovery": {"kills": 1, "homes": 0, "models": 1, "steps_before": 2, "overhead_steps": 2},
    "adapt": {
        "homes": 1,
        "devices": 2,
        "layers": 4,
        "stretches": 3,
        "steps": 16,
        "deadlines": 1,
        "lab_evenings": 0,
    },
    "stage_sizes": {"batch": 16, "losses": 1, "homes": 8},
    "switch": {"delta_mb": 1, "width": 64, "steps_before": 3},
    "planners": {"judged": 2, "candidates": 20, "every": 1000, "first": 3},
    "regions": {"judged": 1, "candidates": 20, "every": 8, "scaling": 0, "processes": 1}
    | {"lab_steps": 2, "lab_batch": 16},
    "slow_links": {"channels": 4, "most_steps": 8, "seeds": 1, "rates": 1, "target": 9},
    "papers": {"judged": 2, "candidates": 20, "every": 32, "processes": 1},
    "formats": {"every": 24},
    "optimality": {
        "problems": 2,
        "devices": 2,
        "layers": 4,
        "judged": 50,
        "candidates": 50,
        "processes": 1,
    },
    "tomography": {"homes": 1, "namespaces": 0},
    "planning_time": {"repeats": 1, "cases": 1, "large": 3, "baseline_s": 0.2, "certified": 1},
    "split": {
        "models": 1,
        "step_mb_per_s": 25,
        "table_step_mb_per_s": 25,
        "de_s": 1,
        "lab_pixels": 48,
        "requests": 1,
        "turns": 0,
    },
    "simulator": {"micro_batches": 4, "repeats": 1},
    "zero_bubble": {"rounds": 1, "steps": 1, "repeats": 1, "parts_rows": 2, "exact": 0},
    "tensor_parallel": {
        "rounds": 1,
        "steps": 1,
        "width": 64,
        "rows": 2,
        "length": 4,
        "most_devices": 2,
        "billion": 0,
    },
    "takeover": {"repeats": 1, "steps_before": 20},
    "gateway": {"width": 64, "layers": 1, "clients": 2, "seconds": 1, "rounds": 1, "calls": 5},
    "cockpit": {
        "devices": 2,
        "width": 32,
        "rounds": 1,
        "round_s": 1,
        "browser_s": 2,
        "hour_s": 60,
        "crowd_s": 2,
    },
    "serve": {"servers": 2, "duration_s": 2, "large_servers": 4, "large_duration_s": 1},
    "serve_overload": {"seconds": 1, "rounds": 1, "first_per_s": 300},
    "serve_scale": {"requests": 1000},
    "coverage": {"every": 100, "most": 1},
}
PROMISED = {
    "stream": {"ratio_to_curve_16mib", "ratio_to_plain_16mib"},
    "interpreter": {"ratio_to_eager_train", "ratio_to_eager_forward"},
    "processors": {"torch_rate_frac", "onnxruntime_rate_frac", "torch_scaling_frac"},
    "agent": {"import_ms", "help_ms", "agent_help_ms", "ready_s", "idle_mib"},
    "generate": {"ratio_to_transformers", "ratio_two_to_one", "texts_that_differ"},
    "digits": {"plain_step_ms", "agents_1_step_ms", "prediction_error_frac"},
    "pipeline": {"ratio_step_time", "overhead_frac", "loss_difference"},
    "fidelity": {
        "time_error_median_frac",
        "time_error_max_frac",
        "energy_error_median_frac",
        "peak_memory_violations",
    },
    "network_schedule": {"predicted_speedup_median", "scheduling_max_s"},
    "recovery": {"recovery_s_median", "prediction_error_median_frac", "steps_lost"},
    "adapt": {
        "regret_to_oracle_median_frac",
        "n_needless_switches",
        "mix_energy_saved_median_frac",
    },
    "stage_sizes": {"worst_ratio_to_staying", "speedup_gpt2_4", "uniform_homes", "anew_homes"},
    "switch": {"train_stall_beyond_a_step_s", "requests_late", "request_stall_s"}
    | {"deploy_first_ratio", "deploy_again_s", "deploy_again_bytes_frac"},
    "planners": {"worst_ratio_to_best_baseline"},
    "regions": {"worst_ratio_to_best_baseline", "median_search_s", "speedup_fsdp_deepcee-1"}
    | {"lab_speedup_deepcee_cnn", "lab_prediction_error_median_frac"},
    "slow_links": {"sync_s_10", "local_4_s_10", "speedup_4_10", "accuracy_sync", "apart_4"}
    | {"late_s_10", "late_speedup_bert-small_10"}
    | {"rounded_s_10", "rounded_speedup_bert-small_10"},
    "tomography": {"media_found_frac", "plan_regret_frac_median"},
    "papers": {
        "asteroid_table_4_efficientnet-b1-cifar_a-100_by_device_ours",
        "dora_speedup_train_max",
        "dora_energy_saving_train_max_printed",
    },
    "formats": {"graph_txt_time_error_max_frac", "judged_worse_max_ratio"},
    "optimality": {
        "gap_median_frac",
        "gap_p95_frac",
        "worst_ratio_to_best_baseline_tight",
        "false_infeasible",
    },
    "planning_time": {
        "dora_cases_max_s",
        "b1_213_layers_s",
        "devices_24_s",
        "devices_64_s",
        "certified_gap_24_median_frac",
        "worst_ratio_to_best_baseline_large",
    },
    "split": {
        "latency_saving_vs_best_single",
        "latency_ratio_to_layer_cut_median",
        "never_worse_than_baselines_frac",
        "energy_saving_max",
        "loss_solve_s_per_bandwidth",
        "ratio_to_de",
        "prediction_error_median_frac",
        "split_overhead_frac",
    },
    "simulator": {"actions_per_s", "actions_per_s_fair"},
    "zero_bubble": {"ratio_step_time", "ratio_parts_to_whole", "loss_difference"},
    "tensor_parallel": {"ratio_step_time", "prediction_error", "2_loss_difference"}
    | {"sequence_2_kept_frac"},
    "takeover": {"takeover_s_median", "takeover_s_max"},
    "gateway": {"ratio_throughput", "p99_ratio"},
    "cockpit": {"training_slowdown_frac", "first_sign_ms", "widget_kb"},
    "serve": {"served_below_capacity_frac", "ours_over_epara_worst"},
    "serve_overload": {"goodput_above_capacity_frac_of_peak", "served_below_capacity_frac"},
    "serve_scale": {"handling_ms_p99_10000"},
    "coverage": {"exported_frac", "equal_frac", "trained_frac"},
}


# These may be below zero.
DIFFERENCES = (
    "kept_",
    "overhead_frac",
    "train_stall_beyond_a_step",
    "train_time_lost",
    "request_stall",
    "table_loss",
    "gap_",
    "training_slowdown_frac",
    "growth_mb",
)

# Long. What they do has tests of its own: tests/sdk/run/test_comparison.py compares, sdk/planning
# has baselines (test_small_homes.py) and homes of 24 and 64 devices (test_large.py); plans run on
# real agents in tests/sdk/run/test_faults.py and in tests/sdk/lab; switches are judged in
# tests/sdk/run (test_switching.py, test_every_way.py), what tomography finds in
# sdk/profile/test_tomography.py; workers, their interpreter and their processors in agent, streams
# in agent/net and wire; schedules in sdk/schedule, DDP and FSDP in test_collectives.py beside this,
# takeovers in sdk/coordinate, services in sdk/serve, operators in sdk/graph, the cockpit in
# sdk/display, sizes of stages in sdk/planning.
IN_LONG = (
    *("split", "fidelity", "planning_time", "planners", "papers"),
    *("pipeline", "switch", "tomography", "digits", "recovery", "zero_bubble", "takeover"),
    *(
        "gateway",
        "cockpit",
        "serve",
        "serve_overload",
        "serve_scale",
        "coverage",
        "regions",
        "slow_links",
    ),
    *("tensor_parallel", "stage_sizes", "generate"),
    *("stream", "interpreter", "processors", "optimality"),
)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in IN_LONG)) for name in BENCHES]
)
def test_gives_every_promised_figure(name):
    pytest.importorskip("torch")
    result = harness.run(name, SMALL[name])
    assert result.name == name
    assert PROMISED[name] <= set(result.figures)
    assert set(result.goals) <= set(result.figures)
    assert all(math.isfinite(value) for value in result.figures.values())
    assert all(
        value >= 0
        for key, value in result.figures.items()
        if not any(word in key for word in DIFFERENCES)
    )
