"""Listing and choosing devices, on three simulated ones."""

import numpy as np
import pytest

import keras_unison as ku
from keras_unison.hardware.selection import choose_devices


def test_the_devices_of_the_active_backend_are_listed():
    found = ku.devices()
    assert [device.name for device in found] == ["cpu:0", "cpu:1", "cpu:2"]
    assert {device.kind for device in found} == {"cpu"}
    assert all(device.simulated for device in found)
    assert all(device.memory_bytes is None for device in found)


@pytest.mark.parametrize(
    ("choice", "positions"),
    [
        (None, [0, 1, 2]),
        (1, [0]),
        (2, [0, 1]),
        (np.int64(3), [0, 1, 2]),
        ([0, 2], [0, 2]),
        ((2, 0), [2, 0]),
        (range(2), [0, 1]),
        (np.array([1, 2]), [1, 2]),
        ({2}, [2]),
        ("cpu:1", [1]),
        (["cpu:0", "CPU:2"], [0, 2]),
        (["/device:CPU:1", 2], [1, 2]),
    ],
)
def test_devices_are_chosen_by_number_ids_and_names(choice, positions):
    assert choose_devices(choice) == positions


@pytest.mark.parametrize(
    ("choice", "what"),
    [
        (4, "asks for 4 devices. Received: devices=4"),
        (0, "must be at least 1. Received: devices=0"),
        (-1, "must be at least 1. Received: devices=-1"),
        (np.int32(-2), "must be at least 1. Received: devices=-2"),
        ([], "names no device"),
        ([0, 0], "names a device twice"),
        (["cpu:1", 1], "names a device twice"),
        ([3], "names device 3, which does not exist"),
        ([-1], "names device -1, which does not exist"),
        ("gpu:0", "names 'gpu:0', which does not exist"),
        (["cpu:0", "tpu:5"], "names 'tpu:5', which does not exist"),
        (True, "takes None, a number, ids or names"),
        (2.0, "takes None, a number, ids or names"),
        ([1.0], "takes ids (whole numbers) or names"),
        ([True], "takes ids (whole numbers) or names"),
        (object(), "takes None, a number, ids or names"),
    ],
)
def test_an_error_says_what_was_asked_what_exists_and_how_to_simulate(choice, what):
    with pytest.raises(ku.DeviceError) as raised:
        choose_devices(choice)
    text = str(raised.value)
    assert what in text
    assert "This machine has 3 device(s) for the active backend: cpu:0" in text
    assert "keras-unison run --simulate" in text
    assert isinstance(raised.value, ValueError)


def test_the_advice_simulates_as_many_devices_as_were_asked_for():
    with pytest.raises(ku.DeviceError, match=r"--simulate 8 script\.py"):
        choose_devices(8)


def test_an_environment_variable_says_what_all_devices_are(monkeypatch):
    monkeypatch.setenv("KERAS_UNISON_DEVICES", "0,cpu:2")
    assert choose_devices(None) == [0, 2]
    assert choose_devices(1) == [0]
    monkeypatch.setenv("KERAS_UNISON_DEVICES", "9")
    with pytest.raises(ku.DeviceError, match="KERAS_UNISON_DEVICES"):
        choose_devices(None)
    monkeypatch.setenv("KERAS_UNISON_DEVICES", "0,,1")
    with pytest.raises(ku.DeviceError, match="Received: '0,,1'"):
        choose_devices(None)


@pytest.mark.parametrize("n", [0, -1, 1.5, "2", True, None])
def test_simulate_takes_a_whole_number(n):
    with pytest.raises(ku.DeviceError, match=r"at least 1\. Received: n="):
        ku.simulate(n)


def test_simulating_what_is_there_already_is_fine_and_anything_else_too_late():
    ku.simulate(3)
    with pytest.raises(ku.SimulationError, match="comes too late") as raised:
        ku.simulate(2)
    assert "KERAS_UNISON_SIMULATE=2 python script.py" in str(raised.value)
    assert isinstance(raised.value, RuntimeError)
