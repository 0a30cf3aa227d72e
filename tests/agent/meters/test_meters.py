"""Meters over invented trees of /sys: exact watts and joules, wrap-around, and why a meter is
missing.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from potluck_agent import meters
from potluck_agent.meters import battery, ina, nvml, pi5, rapl
from potluck_agent.meters.power_model import PowerModel
from potluck_agent.meters.records import CounterGauge, PowerGauge

RAPL = "sys/class/powercap/intel-rapl:0"
BATTERY = "sys/class/power_supply/BAT0"


@pytest.fixture(autouse=True)
def no_gpu_of_this_machine(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)


def plant(root, files):
    """Write a tree of files: {path: content}."""
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{content}\n")
    return root


def package(count_uj, zone=RAPL, name="package-0", range_uj=1_000_000):
    return {
        f"{zone}/name": name,
        f"{zone}/energy_uj": count_uj,
        f"{zone}/max_energy_range_uj": range_uj,
    }


# --- counting ---


def test_power_is_integrated_by_trapezoids():
    watts = iter([4.0, 8.0, 2.0])
    gauge = PowerGauge("g", 0.1, lambda: next(watts))
    assert [gauge.advance(now_s) for now_s in (10.0, 12.0, 13.0)] == [
        (4.0, None),
        (8.0, 12.0),
        (2.0, 5.0),
    ]


def test_a_counter_wraps_at_its_range():
    counts = iter([90.0, 97.0, 3.0, 3.0])
    gauge = CounterGauge("g", 0.1, lambda: next(counts), 100.0)
    assert [gauge.advance(now_s) for now_s in (0.0, 1.0, 3.0, 4.0)] == [
        (None, None),
        (7.0, 7.0),
        (3.0, 6.0),
        (0.0, 0.0),
    ]


def test_a_counter_without_range_that_falls_has_begun_again_and_what_was_before_is_not_known():
    counts = iter([90.0, 5.0, 8.0])
    gauge = CounterGauge("g", 0.1, lambda: next(counts))
    assert [gauge.advance(now_s) for now_s in (0.0, 1.0, 2.0)] == [
        (None, None),
        (None, None),
        (3.0, 3.0),
    ]


def test_the_same_moment_twice_divides_by_nothing():
    counts = iter([1.0, 3.0, 4.0])
    gauge = CounterGauge("g", 0.1, lambda: next(counts), 100.0)
    assert [gauge.advance(now_s) for now_s in (0.0, 1.0, 1.0)] == [
        (None, None),
        (2.0, 2.0),
        (2.0, 1.0),
    ]


# --- the model ---


@pytest.mark.parametrize(
    ("busy_s", "radio_s", "watts"),
    [(0.0, 0.0, 2.0), (10.0, 0.0, 10.0), (5.0, 0.0, 6.0), (5.0, 10.0, 7.0), (99.0, 99.0, 11.0)],
)
def test_the_model_adds_idle_busy_and_radio(busy_s, radio_s, watts):
    model = PowerModel(2.0, 10.0, 1.0)
    assert model.advance(100.0, 0.0, 0.0) == (2.0, 0.0)
    assert model.advance(110.0, busy_s, radio_s) == (watts, 10 * watts)


@pytest.mark.parametrize(
    "power", [(3.0, 2.0, 0.0), (-1.0, 2.0, 0.0), (1.0, 2.0, -1.0), (1.0, float("nan"), 0.0)]
)
def test_impossible_powers_are_refused(power):
    with pytest.raises(ValueError, match="expected 0 <= idle <= max"):
        PowerModel(*power)


def test_an_emulated_device_is_simulated_even_where_a_meter_is(tmp_path):
    plant(tmp_path, package(0))
    meter = meters.open_meter(power=(1.0, 5.0, 2.0), emulated=True, root=tmp_path)
    meter.read(0.0, 0.0, 0.0)
    sample = meter.read(2.0, 1.0, 0.0)
    expected = {
        "watts": 3.0,
        "joules": 6.0,
        "source": "simulated",
        "meter": "model",
        "resolution_w": 0.0,
    }
    assert sample == meters.MeterSample(**expected)


def test_a_real_device_without_a_meter_is_estimated(tmp_path):
    meter = meters.open_meter(power=(1.0, 5.0, 2.0), root=tmp_path)
    assert meter.read(0.0, 0.0, 0.0).source == "estimated"
    assert meters.open_meter(root=tmp_path).read(0.0, 0.0, 0.0).watts > 0


# --- RAPL ---


def test_rapl_adds_packages_and_memory_and_nothing_twice(tmp_path):
    base = "sys/class/powercap"
    plant(tmp_path, package(100_000) | package(500_000, f"{base}/intel-rapl:1", "package-1"))
    plant(
        tmp_path,
        package(0, f"{base}/intel-rapl:0:0", "core") | package(0, f"{base}/intel-rapl:2", "psys"),
    )
    plant(tmp_path, package(0, f"{base}/intel-rapl:0:1", "dram"))
    meter = meters.open_meter(root=tmp_path)
    assert meter.read(0.0, 0.0, 0.0).joules == 0.0
    # the second has wrapped
    plant(tmp_path, package(900_000) | package(250_000, f"{base}/intel-rapl:1", "package-1"))
    plant(tmp_path, package(50_000, f"{base}/intel-rapl:0:1", "dram"))
    sample = meter.read(2.0, 0.0, 0.0)
    assert sample.joules == pytest.approx(0.8 + 0.75 + 0.05)
    assert sample.watts == pytest.approx(0.8)
    assert sample.source == "measured"
    assert sample.meter == "rapl package-0+rapl dram+rapl package-1"


def test_rapl_that_only_root_may_read_names_the_udev_rule(tmp_path, monkeypatch):
    plant(tmp_path, package(0))
    read_text = Path.read_text

    def guarded(path, *args, **kwargs):
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read_text(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", guarded)
    finding = rapl.find(tmp_path).finding
    assert not finding.present
    assert "energy_uj may be read by root only" in finding.reason
    assert 'SUBSYSTEM=="powercap"' in finding.remedy
    assert meters.open_meter(root=tmp_path).read(0.0, 0.0, 0.0).source == "estimated"


# --- INA ---

OLD = "sys/bus/i2c/drivers/ina3221x/1-0040/iio:device0"
NEW = "sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon3"


@pytest.mark.parametrize(
    ("files", "names", "watts", "resolution_w"),
    [
        (  # Jetson Nano: the rail of the whole board is chosen
            {
                f"{OLD}/rail_name_0": "POM_5V_IN",
                f"{OLD}/in_power0_input": 3456,
                f"{OLD}/rail_name_1": "POM_5V_GPU",
                f"{OLD}/in_power1_input": 900,
            },
            ["ina POM_5V_IN"],
            3.456,
            0.05,
        ),
        (  # Orin Nano: volts times amperes; 40 uV / 5 mOhm x 5 V
            {
                f"{NEW}/in1_label": "VDD_IN",
                f"{NEW}/in1_input": 5000,
                f"{NEW}/curr1_input": 1200,
                f"{NEW}/in2_label": "VDD_CPU_GPU_CV",
                f"{NEW}/in2_input": 5000,
                f"{NEW}/curr2_input": 300,
                f"{NEW}/shunt1_resistor": 5000,
                f"{NEW}/in7_label": "sum of shunt voltages",
            },
            ["ina VDD_IN"],
            6.0,
            0.04,
        ),
        (  # one folder deeper, no rail for all: everything is added
            {
                f"{NEW}/x/in1_label": "VDD_GPU_SOC",
                f"{NEW}/x/in1_input": 19000,
                f"{NEW}/x/curr1_input": 100,
                f"{NEW}/x/in2_label": "VDD_CPU_CV",
                f"{NEW}/x/in2_input": 19000,
                f"{NEW}/x/curr2_input": 200,
            },
            ["ina VDD_GPU_SOC", "ina VDD_CPU_CV"],
            5.7,
            0.304,
        ),
        (  # Thor
            {
                "sys/bus/i2c/drivers/ina238/2-0044/hwmon/hwmon5/power1_input": 42_000_000,
                "sys/bus/i2c/drivers/ina238/2-0044/hwmon/hwmon5/label": "VIN",
            },
            ["ina VIN"],
            42.0,
            0.05,
        ),
    ],
    ids=["ina3221x", "ina3221", "deeper", "ina238"],
)
def test_ina_layouts(tmp_path, files, names, watts, resolution_w):
    found = ina.find(plant(tmp_path, files))
    assert [gauge.name for gauge in found.gauges] == names
    meter = meters.open_meter(root=tmp_path)
    meter.read(0.0, 0.0, 0.0)
    sample = meter.read(10.0, 0.0, 0.0)
    assert sample.watts == pytest.approx(watts)
    assert sample.joules == pytest.approx(10 * watts)
    assert sample.resolution_w == pytest.approx(resolution_w)


def test_a_monitor_that_tells_no_number_is_explained(tmp_path):
    plant(tmp_path, {f"{OLD}/rail_name_0": "VDD_IN", f"{OLD}/in_power0_input": "busy"})
    finding = ina.find(tmp_path).finding
    assert not finding.present
    assert "expected a number" in finding.reason


# --- battery ---


@pytest.mark.parametrize(
    "files",
    [
        {"power_now": 7_500_000},
        {"current_now": 1_500_000, "voltage_now": 5_000_000},
        {"power_now": -7_500_000},
    ],
)
def test_a_discharging_battery_is_the_whole_device(tmp_path, files):
    files = {"type": "Battery", "status": "Discharging"} | files
    plant(tmp_path, {f"{BATTERY}/{name}": value for name, value in files.items()} | package(0))
    sample = meters.open_meter(root=tmp_path).read(0.0, 0.0, 0.0)
    assert (sample.watts, sample.meter) == (pytest.approx(7.5), "battery")


def test_a_charger_silences_the_battery_and_the_model_speaks_until_it_is_gone(tmp_path):
    files = {"type": "Battery", "status": "Discharging", "power_now": 8_000_000}
    plant(tmp_path, {f"{BATTERY}/{name}": value for name, value in files.items()})
    meter = meters.open_meter(power=(2.0, 4.0, 0.0), root=tmp_path)
    sources, joules = [], []
    for now_s, status in enumerate(
        ("Discharging", "Discharging", "Charging", "Discharging", "Discharging")
    ):
        plant(tmp_path, {f"{BATTERY}/status": status})
        sample = meter.read(float(now_s), 0.0, 0.0)
        sources.append((sample.source, sample.meter))
        joules.append(sample.joules)
    measured = ("measured", "battery")
    modelled = ("estimated", "model")
    mixed = ("estimated", "battery")
    assert sources == [measured, measured, modelled, mixed, mixed]
    assert joules == [0.0, 8.0, 10.0, 12.0, 20.0]


def test_a_plugged_in_battery_and_a_mouse_are_explained(tmp_path):
    mouse = {"type": "Battery", "scope": "Device", "status": "Discharging", "power_now": 1}
    plant(tmp_path, {f"sys/class/power_supply/hid/{name}": value for name, value in mouse.items()})
    assert battery.find(tmp_path).finding.reason == "this device has no battery"
    plant(tmp_path, {f"{BATTERY}/type": "Battery", f"{BATTERY}/status": "Full"})
    assert battery.find(tmp_path).finding.remedy == "unplug the charger while you profile"


# --- Raspberry Pi ---

PMIC = """ 3V7_WL_SW_A current(0)=0.10000000A
   3V3_SYS_A current(1)=0.20000000A
   3V7_WL_SW_V volt(8)=3.70000000V
   3V3_SYS_V volt(9)=3.30000000V
      EXT5V_V volt(24)=5.15000000V
"""


def test_the_pi5_rails_are_added(tmp_path):
    plant(tmp_path, {"proc/device-tree/model": "Raspberry Pi 5 Model B Rev 1.0\0"})
    (gauge,) = pi5.find(tmp_path, lambda: PMIC).gauges
    assert gauge.advance(0.0)[0] == pytest.approx(0.37 + 0.66)


def test_a_pi5_without_the_command_and_other_pis_are_explained(tmp_path):
    def missing():
        raise FileNotFoundError("vcgencmd is not installed")

    plant(tmp_path, {"proc/device-tree/model": "Raspberry Pi 5 Model B"})
    assert "install vcgencmd" in pi5.find(tmp_path, missing).finding.remedy
    assert "told no rails" in pi5.find(tmp_path, lambda: "error=1").finding.reason
    odd = "3V3_SYS_A current(1)=0.5.0A\n3V3_SYS_V volt(9)=3.30V"
    assert "told no numbers" in pi5.find(tmp_path, lambda: odd).finding.reason
    plant(tmp_path, {"proc/device-tree/model": "Raspberry Pi 4 Model B"})
    assert "has no power meter" in pi5.find(tmp_path).finding.reason


# --- NVIDIA ---


class NVMLError(Exception):
    """As the library's."""


def library(energies_mj=None, powers_mw=(), init=None):
    """What nvidia-ml-py offers, for invented GPUs; `energies_mj` None: no counter."""

    def energy(handle):
        if energies_mj is None:
            raise NVMLError("Not Supported")
        return next(energies_mj[handle])

    def start():
        if init is not None:
            raise init

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=start,
        nvmlDeviceGetCount=lambda: len(energies_mj or powers_mw),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetTotalEnergyConsumption=energy,
        nvmlDeviceGetPowerUsage=lambda handle: next(powers_mw[handle]),
    )


def test_nvml_counts_energy_where_there_is_a_counter():
    (gauge,) = nvml.find(library(energies_mj=[iter([0, 1_000, 61_000])])).gauges
    assert [gauge.advance(now_s) for now_s in (0.0, 2.0)] == [(None, None), (30.0, 60.0)]


def test_nvml_integrates_power_where_there_is_none():
    first, second = nvml.find(
        library(powers_mw=[iter([0, 10_000, 30_000]), iter([0, 5_000, 5_000])])
    ).gauges
    assert [first.advance(now_s) for now_s in (0.0, 2.0)] == [(10.0, None), (30.0, 40.0)]
    assert [second.advance(now_s) for now_s in (0.0, 2.0)] == [(5.0, None), (5.0, 10.0)]


def test_nvml_without_driver_or_gpu_is_explained():
    assert (
        "no NVIDIA driver answers"
        in nvml.find(library(init=NVMLError("Driver Not Loaded"))).finding.reason
    )
    assert nvml.find(library()).finding.reason == "the driver shows no GPU"


# --- all together ---


def test_every_family_explains_itself(tmp_path):
    findings = meters.explain(tmp_path)
    assert [finding.meter for finding in findings] == ["ina", "pi5", "battery", "rapl", "nvml"]
    assert not any(finding.present for finding in findings[:4])
    assert all(finding.reason for finding in findings)


def test_a_meter_of_the_whole_device_goes_before_those_of_its_parts(tmp_path):
    plant(tmp_path, package(0) | {f"{OLD}/rail_name_0": "VDD_IN", f"{OLD}/in_power0_input": 1000})
    assert meters.open_meter(root=tmp_path).read(0.0, 0.0, 0.0).meter == "ina VDD_IN"
