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
    with pytest.raises(ob.InvalidArgument, match="trace"):
        ob.discover(only=["host"], trace_devices=True)
    with pytest.raises(ob.InvalidArgument, match="nonsense"):
        ob.discover(libraries={"nonsense": "none"})
    made = ob.discover(only=["host"], timeout=2.5, copies="forbid")
    assert (made.timeout, made.copies) == (2.5, "forbid") and ob.discover(only=["host"]).copies == "allow"


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


def test_libraries_are_chosen():
    hub = ob.discover(only=["opencl"], libraries={"opencl": "none", "cublas": "none"})
    assert len(hub.devices) == 1
    (row,) = [row for row in hub.unavailable if row["api"] == "opencl"]
    assert "none" in row["reason"]
    assert len(ob.discover(only=["opencl"]).devices) > 1, "the control"


def test_facts_about_devices(hub, cl):
    assert cl.version and "OpenCL" in cl.version
    assert set(cl.limits) == {
        "align_bytes", "compute_units", "local_memory_bytes", "max_buffer_bytes", "max_group_size", "max_group_sizes", "max_loop_iterations",
    }  # fmt: skip
    assert cl.limits["align_bytes"] == 128 and len(cl.limits["max_group_sizes"]) == 3 and cl.limits["max_buffer_bytes"] > 1 << 20
    assert "host_pointer" in cl.features and "cl_khr_fp64" in cl.features
    assert cl.uuid is None or len(cl.uuid) == 36
    assert cl.pci is None or cl.pci.count(":") == 2
    assert hub.select("opencl") == [device for device in hub.devices if device.api == "opencl"]
    assert hub.select(cl.id) == [cl] and hub.select("nothing of the kind") == []
    assert isinstance(hub.notes, list)


def test_options_of_buffers_are_the_librarys(hub, cl, other):
    for name, value, seen in [
        ("memory_kind", "device", lambda x: x.plan()["memory_kind"]),
        ("access", "read", lambda x: x.access),
        ("cl_flags", 1 << 2, lambda x: x.access),
        # Which device has the memory, and the route `same`, depends on what was measured.
        ("route", "staged", lambda x: " ".join({route["kind"] for route in x.plan()["routes"]} - {"same"})),
    ]:
        share = [cl, other] if name == "route" else [cl]
        expected = "read" if name == "cl_flags" else value
        assert seen(hub.empty(4096, share=share, **{name: value})) == expected, name
        assert seen(hub.empty(4096, share=share, **{name: None})) != expected, f"the control of {name}"
        if name != "access" and name != "cl_flags":
            assert hub.plan(4096, share=share, **{name: value}) is not None
    assert hub.empty(64, share=[cl], allocate_on=other.id, route="staged").plan()["allocate_on"] == other.id
    aligned = hub.empty(64, align=1 << 16)
    with aligned.on(hub.host) as v:
        assert v.address % (1 << 16) == 0
    for name in ("hint", "sync", "memory_kind", "route", "copies", "access", "host_access"):
        with pytest.raises(ob.InvalidArgument, match=f"{name}=.nonsense.: unknown variant"):
            hub.empty(4, **{name: "nonsense"})
    hub.empty(64, share=[cl], hint="streaming", name="frame", raw_addresses=True, sync="host_wait", trust_declared=True)
    with pytest.raises(ob.InvalidArgument, match="alignment"):
        hub.empty(4, align=3)
    with pytest.raises(ob.InvalidArgument, match="exclude"):
        hub.empty(4, cl_flags=(1 << 1) | (1 << 2))


def test_buffers_for_less_are_used_for_less(hub, cl, gain):
    x = hub.empty((2, 4096), share=[cl], access="read")
    x.write(2)
    y = hub.empty(4096, share=[cl])
    cl.kernel("kernel void f(global const float *x, global float *y) { y[get_global_id(0)] = x[get_global_id(0)]; }")[4096](x[1], y)
    assert (y.read() == 2).all()
    with pytest.raises(ob.Error, match="read"):
        gain(x, 2.0)
    assert (x.read() == 2).all()
    unseen = hub.empty(4096, share=[cl], host_access="none")
    gain(unseen, 1.0)
    with pytest.raises(ob.Error):
        unseen.read()


def test_routes_are_what_is_known(hub, cl, other, proven):
    found = [row for row in hub.routes() if (row["from"], row["to"]) == (cl.id, other.id)]
    assert {row["kind"] for row in found} >= {"host_pointer", "staged"}
    assert any(row["state"] == "proven" and row["zero_copy"] for row in found)
    blank = ob.discover(only=["opencl"], verdicts=False)
    assert not any(row["state"] == "proven" for row in blank.routes() if row["from"] != row["to"]), "the control"
    assert hub.graft_verdict(cl, other) is None


def test_the_folder_of_verdicts(tmp_path, proven):
    assert ob.cache.contents()["verdicts"] > 0 and ob.cache.folder().is_dir()
    folder = tmp_path / "mine"
    assert ob.cache.contents(folder) == {"verdicts": 0, "programs": 0, "bytes": 0}
    assert ob.doctor(["host", "opencl:0"], cache=folder)["saved"]
    kept = ob.cache.contents(folder)
    assert kept["verdicts"] > 0 and kept["bytes"] > 0
    pair = {"host", "opencl:0"}
    proofs = lambda hub: [row for row in hub.routes() if {row["from"], row["to"]} == pair and row["state"] == "proven"]  # noqa: E731
    assert proofs(ob.discover(only=["opencl"], cache=folder))
    assert ob.cache.clear(folder) == kept and ob.cache.contents(folder)["verdicts"] == 0
    assert not proofs(ob.discover(only=["opencl"], cache=folder)), "the control"


def test_plans_are_dictionaries(hub, cl):
    plan = hub.plan(4096, share=[cl])
    assert plan["allocate_on"] == cl.id
    assert hub.zero_copy(cl) and isinstance(hub.zero_copy(cl, hub.host), bool)


def test_the_program_is_in_the_package():
    ran = subprocess.run([sys.executable, "-m", "onebuf", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[0] == f"onebuf {ob._onebuf.__version__}" and not ran.stderr
