"""What Prometheus reads is what was counted, however much that is."""

import pytest

from potluck.serve.gateway import metrics
from potluck.serve.stats import BUCKETS_S, ServiceStats

parser = pytest.importorskip("prometheus_client.parser")


@pytest.mark.parametrize("n", [0, 999_999, 1_000_001, 1_234_567_891, 2**53 - 1])
def test_counts_are_exact(n):
    stats = ServiceStats(
        n_asked=n,
        n_answered=n,
        n_failed=n,
        refused={"timed out": n},
        by_device={"laptop": n},
        total_s=n / 3,
        buckets=(n,) * len(BUCKETS_S),
    )
    page = metrics.text({"birds": stats}, {"birds": {"laptop": 8}, "letters": {}})
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in parser.text_string_to_metric_families(page)
        for sample in family.samples
    }
    birds = ("service", "birds")
    assert found["potluck_requests_total", birds] == n
    assert found["potluck_refused_total", ("reason", "timed out"), birds] == n
    assert found["potluck_rows_total", ("device", "laptop"), birds] == n
    assert found["potluck_batch_rows", ("device", "laptop"), birds] == 8
    assert found["potluck_devices", ("service", "letters")] == 0
    assert found["potluck_latency_seconds_sum", birds] == n / 3
    assert found["potluck_latency_seconds_bucket", ("le", "0.005"), birds] == n
    assert found["potluck_latency_seconds_bucket", ("le", "+Inf"), birds] == n
