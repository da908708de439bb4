"""One buffer, two processes."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import onebuf as ob

N = 3 * 1024 + 5

CLIENT = """
import os, sys
import numpy as np
import onebuf as ob
hub = ob.discover(without=["gl", "vulkan"])
cl = next(device for device in hub.devices if "portable" in device.platform.lower())
peer = ob.attach(sys.argv[1], hub, dtype=np.uint32, share=[cl], trust_declared=True, timeout=30)
x = peer.buffer
step = cl.kernel("kernel void step(global uint *x) { x[get_global_id(0)] = x[get_global_id(0)] * 3 + 1; }")
"""


@pytest.fixture
def name():
    return f"python-test-{os.getpid()}"


def client(name, text):
    command = [sys.executable, "-c", CLIENT + textwrap.dedent(text), name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes_take_turns_on_the_same_pages(hub, cl, name):
    x = hub.empty(N, np.uint32)
    offer = ob.Offer(x, name)
    assert name in offer.path
    process = client(name, """
        for turn in range(4):
            peer.wait(30)
            step(x)
            peer.hand_over()
        peer.wait(30)
        print(int(x.read()[-1]), peer.round, peer.is_our_turn)
    """)
    peer = offer.accept(60)
    assert (peer.pid, peer.uid, peer.is_our_turn, peer.buffer) == (process.pid, os.getuid(), True, None)
    with pytest.raises(ob.Busy):
        offer.accept(0)
    for turn in range(4):
        start = np.arange(N, dtype=np.uint32) + turn
        x.write(start)
        peer.hand_over()
        with pytest.raises(ob.Busy):
            x.read()
        peer.wait(30)
        assert (x.read() == start * 3 + 1).all(), turn
        assert not (x.read() == start).any(), "the control"
    x.write(77)
    peer.hand_over()
    out, error = process.communicate(timeout=60)
    assert out.split()[0] == "77" and out.split()[2] == "True", error
    with pytest.raises(ob.PeerLost):
        peer.wait(30)
    assert peer.has_left and "process" in repr(peer)
    assert (x.read() == 77).all(), "the turn is the owner's again"
    peer.leave()
    with pytest.raises(ob.InvalidArgument, match="left"):
        peer.hand_over()
    offer.close()
    with pytest.raises(ob.InvalidArgument, match="withdrawn"):
        offer.accept(0)


def test_waits_have_timeouts_and_a_peer_that_dies_is_an_error(hub, cl, name):
    x = hub.empty(N, np.uint32)
    offer = ob.Offer(x, name)
    with pytest.raises(ob.Timeout):
        offer.accept(0.1)
    process = client(name, "peer.wait(30); print('waits', flush=True); os.kill(os.getpid(), 9)")
    peer = offer.accept(60)
    peer.wait(0)  # it is the owner's turn
    x.write(1)
    peer.hand_over()
    with pytest.raises(ob.PeerLost):
        peer.wait(30)
    process.wait(30)
    assert (x.read() == 1).all()
    process.stdout.close(), process.stderr.close()


def test_bad_input_is_an_exception(hub, cl, name):
    x = hub.empty(N, np.uint32)
    with pytest.raises(ob.InvalidArgument, match="part"):
        ob.Offer(x[:4], name)
    with pytest.raises(ob.Unavailable):
        ob.attach(name, hub, timeout=0.2)
    offer = ob.Offer(x, name)
    with pytest.raises(ob.Busy):
        ob.Offer(hub.empty(N, np.uint32), name)
    with pytest.raises(ob.Error):
        x.map().__enter__()
    del offer
    with pytest.raises(TypeError):
        ob.attach(name, hub, dtype="no type")
