"""NVIDIA graphics processors, through nvidia-ml-py (extra `nvidia`): the energy counter where there
is one.

The library is given in by tests; any object with the functions used here will do.
"""

import contextlib
from functools import partial
from types import ModuleType
from typing import Any

from potluck_agent.meters.records import CounterGauge, FoundMeters, Gauge, MeterFinding, PowerGauge
from potluck_wire.install_hints import install

COUNTER_RESOLUTION_W = 0.01  # millijoules, refreshed every 20-100 ms
POWER_RESOLUTION_W = 0.001  # milliwatts


def find(library: ModuleType | Any | None = None) -> FoundMeters:
    """All GPUs of this machine."""
    try:
        nvml = library if library is not None else _import()
    except ImportError:
        remedy = install("nvidia")
        reason = "nvidia-ml-py is not installed"
        return FoundMeters(
            finding=MeterFinding(meter="nvml", present=False, reason=reason, remedy=remedy)
        )
    try:
        nvml.nvmlInit()
        handles = [
            nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())
        ]
        gauges = tuple(_gauge(nvml, index, handle) for index, handle in enumerate(handles))
    except nvml.NVMLError as error:
        return FoundMeters(
            finding=MeterFinding(
                meter="nvml", present=False, reason=f"no NVIDIA driver answers: {error}"
            )
        )
    if not gauges:
        return FoundMeters(
            finding=MeterFinding(meter="nvml", present=False, reason="the driver shows no GPU")
        )
    reason = f"measures {len(gauges)} GPU" + ("s" if len(gauges) > 1 else "")
    return FoundMeters(
        finding=MeterFinding(meter="nvml", present=True, reason=reason), gauges=gauges
    )


def _import() -> ModuleType:
    import pynvml

    return pynvml  # type: ignore[no-any-return]


def _gauge(nvml: Any, index: int, handle: Any) -> Gauge:
    name = f"nvml gpu{index}"
    with contextlib.suppress(nvml.NVMLError):  # not supported: older than Volta, and most Jetsons
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        return CounterGauge(name, COUNTER_RESOLUTION_W, partial(_count_j, nvml, handle))
    nvml.nvmlDeviceGetPowerUsage(handle)
    return PowerGauge(name, POWER_RESOLUTION_W, partial(_power_w, nvml, handle))


def _count_j(nvml: Any, handle: Any) -> float:
    try:
        return nvml.nvmlDeviceGetTotalEnergyConsumption(handle) * 1e-3  # type: ignore[no-any-return]
    except nvml.NVMLError as error:
        raise OSError(f"the GPU's energy counter is gone: {error}") from error


def _power_w(nvml: Any, handle: Any) -> float:
    try:
        return nvml.nvmlDeviceGetPowerUsage(handle) * 1e-3  # type: ignore[no-any-return]
    except nvml.NVMLError as error:
        raise OSError(f"the GPU's power meter is gone: {error}") from error
