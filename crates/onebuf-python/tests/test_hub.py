"""Hubs, devices and the ledger."""

import subprocess
import sys

import numpy as np
import pytest

import onebuf as ob


def test_a_hub_lists_its_devices(hub, cl):
    assert hub.devices[0] == hub.host == hub["host"]
    assert hub["opencl:0"].api == "opencl"
    text = repr(hub)
    assert all(device.id in text for device in hub.devices)
    page = hub._repr_html_()
    assert page.startswith("<table>") and page.count("<tr>") == len(hub.devices) + 1
    assert cl in hub.devices and hash(cl) == hash(hub[cl.id]) and cl != hub.host
    assert str(cl) == cl.id and cl.name in repr(cl)
    assert cl.native_handles["cl_context"] > 0


def test_a_missing_device_is_an_error_that_lists_the_others(hub):
    with pytest.raises(ob.Unavailable, match="host") as caught:
        hub["cuda:77"]
    assert "cuda:77" in caught.value.what and isinstance(caught.value, ob.Error)


def test_a_missing_api_is_a_fact():
    hub = ob.discover(only=["cuda"])
    assert [device.api for device in hub.devices][:1] == ["host"]
    if len(hub.devices) == 1:
        assert "cuda" in [row["api"] for row in hub.unavailable]


def test_options_are_checked():
    with pytest.raises(ob.InvalidArgument, match="forbid"):
        ob.discover(copies="never")
    with pytest.raises(ob.InvalidArgument, match="seconds"):
        ob.discover(timeout=-1.0)
    assert ob.discover(only=["host"], timeout=2.5).timeout == 2.5


def test_two_hubs_live_side_by_side(hub, cl):
    second = ob.discover(only=["opencl"])
    assert second[cl.id] != cl
    buffer = second.empty(4, share=[cl.id])
    with pytest.raises(ob.Error):
        cl.kernel("kernel void f(global float *x) { x[0] = 1; }")(buffer)


def test_the_ledger_counts_what_was_asked_for():
    hub = ob.discover(only=["opencl"])
    x = hub.empty(1024, np.float32, share=["opencl:0"])
    x.write(1)
    x.read()
    assert hub.ledger.asked_bytes == 8192 and hub.ledger.implied_bytes == 0
    assert {row["cause"] for row in hub.ledger.entries} == {"asked"}
    assert "8192 bytes" in repr(hub.ledger)


def test_plans_are_dictionaries(hub, cl):
    plan = hub.plan(4096, share=[cl])
    assert plan["allocate_on"] == cl.id
    assert hub.zero_copy(cl) and isinstance(hub.zero_copy(cl, hub.host), bool)


def test_the_program_is_in_the_package():
    ran = subprocess.run([sys.executable, "-m", "onebuf", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[0] == f"onebuf {ob._onebuf.__version__}"
