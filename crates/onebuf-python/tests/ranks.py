"""What the ranks of `test_mpi4py.py` do: `mpirun -n 3 python ranks.py NAME`.

What they say goes to files in the folder `ONEBUF_RANKS_SAID`: launchers mix the output of ranks within a line.
"""

import os
import sys
from pathlib import Path

import numpy as np

import onebuf as ob

GAIN = "kernel void gain(global float *x, float by) { x[get_global_id(0)] *= by; }"
PAGE = 4096


def values(rank, count, dtype=np.float32):
    """Other numbers for each rank and place."""
    return ((np.arange(count, dtype=np.uint64) * 2654435761 + (rank + 1) * 40503) % 65521).astype(dtype)


def say(text):
    folder = os.environ.get("ONEBUF_RANKS_SAID")
    if folder is None:
        print(text)
        return
    with open(Path(folder) / str(os.getpid()), "a") as file:
        file.write(f"{text}\n")


def around(world):
    return (world.rank + 1) % world.size, (world.rank - 1) % world.size


def raises(kind, says, call):
    try:
        call()
    except kind as error:
        assert says in str(error), error
        return
    raise AssertionError(f"no {kind.__name__} with {says!r}")


def messages():
    """Every page, after a kernel and before one."""
    from mpi4py import MPI

    hub = ob.discover(without=["gl", "vulkan"])
    cl = hub["portable"]
    gain = cl.kernel(GAIN)
    with ob.World(MPI.COMM_WORLD, timeout=60) as world:
        after, before = around(world)
        for count in (1, 1000, 3 * PAGE // 4 + 5, (2 << 20) // 4 + 77):
            x = hub.array(values(world.rank, count), share=[cl])
            y = hub.array(np.full(count, -1, np.float32), share=[cl])
            gain(x, 2.0)
            came = world.receive(y, before, 5)
            raises(ob.errors.ExportError, "busy", lambda: np.asarray(y))
            raises(ob.Busy, "in use", lambda: gain(y, 3.0))
            sent = world.send(x, after, 5)
            came.wait()
            sent.wait()
            assert came.done and repr(came) == "<onebuf.InFlight: done>"
            gain(y, 0.5)
            # Every element, so every page; the control is the other rank's numbers.
            assert (y.read() == values(before, count)).all()
            if world.size > 1 and count > 1:
                assert not (y.read() == values(world.rank, count)).all()
            assert (x.read() == 2 * values(world.rank, count)).all()
        if hub.zero_copy(cl, hub.host):
            assert hub.ledger.implied_bytes == 0, hub.ledger
        else:
            say("no proven route")
    assert not MPI.Is_finalized()


def parts():
    """Rows of a matrix are messages of their own, and two of them come at the same time."""
    hub = ob.discover(only=["host"])
    with ob.World(timeout=60) as world:
        after, before = around(world)
        for dtype in (np.complex64, np.int16, np.float64, np.bool_):
            x = hub.array(values(world.rank, 4 * PAGE).reshape(4, PAGE), dtype)
            y = hub.empty((4, PAGE), dtype)
            came = [world.receive(y[row], before, row) for row in (3, 1)]
            sent = [world.send(x[row], after, row) for row in (1, 3)]
            for flight in came + sent:
                flight.wait()
            expected = values(before, 4 * PAGE).reshape(4, PAGE).astype(dtype)
            got = y.read()
            assert (got[[1, 3]] == expected[[1, 3]]).all() and not got[[0, 2]].any()
        raises(ob.InvalidArgument, "contiguous", lambda: world.send(x[:, 1], after))


def calls():
    """Calls of all ranks, with even and uneven counts."""
    hub = ob.discover(only=["host"])
    with ob.World(timeout=60) as world:
        rank, ranks = world.rank, world.size
        x = hub.array(values(rank, 1000))
        world.broadcast(x, ranks - 1).wait()
        assert (x.read() == values(ranks - 1, 1000)).all()

        x = hub.array(values(rank, 100))
        into = hub.empty(100 * ranks, np.float32) if rank == 1 else None
        world.gather(x, 1, into).wait()
        if rank == 1:
            assert (into.read() == np.concatenate([values(of, 100) for of in range(ranks)])).all()
        counts = [of + 1 for of in range(ranks)]
        into = hub.empty(sum(counts), np.float32) if rank == 0 else None
        own = hub.array(values(rank, counts[rank]))
        world.gather(own, 0, into, counts if rank == 0 else None).wait()
        if rank == 0:
            assert (into.read() == np.concatenate([values(of, of + 1) for of in range(ranks)])).all()

        x, into = hub.array(values(rank, 7 * ranks)), hub.empty(7 * ranks, np.float32)
        world.all_to_all(x, into).wait()
        assert (into.read() == np.concatenate([values(of, 7 * ranks)[7 * rank :][:7] for of in range(ranks)])).all()
        # Rank a sends a + b + 1 elements to rank b.
        sends = [rank + of + 1 for of in range(ranks)]
        x, into = hub.array(values(rank, sum(sends))), hub.empty(sum(sends), np.float32)
        world.all_to_all(x, into, sends, sends).wait()
        expected = []
        for of in range(ranks):
            start = sum(of + other + 1 for other in range(rank))
            expected.append(values(of, start + of + rank + 1)[start:])
        assert (into.read() == np.concatenate(expected)).all()

        told = world.collect(bytes([rank]) * rank, 0)
        assert told == ([bytes([of]) * of for of in range(ranks)] if rank == 0 else None)
        world.barrier()
        small = hub.empty(ranks * 3 + 1, np.float32)
        raises(ob.InvalidArgument, "cannot be divided", lambda: world.all_to_all(small, small))
        raises(ob.InvalidArgument, "", lambda: world.all_to_all(small, small, [1], [1]))
        assert world.state_of(0) == "running" and world.ailing() == [] and not world.has_failed


def communicators():
    """A part of the ranks, in another order, beside messages of mpi4py's own; two worlds at a time."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    hub = ob.discover(only=["host"])
    few = comm.Split(comm.rank == 0, -comm.rank)
    all_of_them, part = ob.World(comm, timeout=60), ob.World(few, timeout=60)
    assert (all_of_them.rank, all_of_them.size) == (comm.rank, comm.size)
    assert (part.rank, part.size) == (few.rank, few.size)
    for world in (all_of_them, part):
        after, before = around(world)
        x, y = hub.array(values(comm.rank, 5000)), hub.empty(5000, np.float32)
        came, sent = world.receive(y, before), world.send(x, after)
        assert comm.allreduce(1) == comm.size
        came.wait()
        sent.wait()
        theirs = before if world is all_of_them else few.allgather(comm.rank)[before]
        assert (y.read() == values(theirs, 5000)).all()
    part.close()
    all_of_them.close()
    few.Free()
    assert comm.allreduce(1) == comm.size and not MPI.Is_finalized()


def refused():
    """Wrong arguments, and ranks that do not fit together."""
    from mpi4py import MPI

    for wrong in ("world", 7, MPI.COMM_NULL, MPI.INT):
        raises(ob.InvalidArgument, "mpi4py", lambda: ob.World(wrong))
    raises(ob.InvalidArgument, "timeout", lambda: ob.World(timeout=-1))
    raises(ob.InvalidArgument, "size: 10 (rank 0), 11 (rank", lambda: ob.World(timeout=30, agree={"size": 10 + min(MPI.COMM_WORLD.rank, 1)}))
    hub = ob.discover(only=["host"])
    x = hub.empty(8, np.float32)
    with ob.World(MPI.COMM_WORLD, timeout=60) as world:
        after, before = around(world)
        raises(ob.InvalidArgument, "rank 99", lambda: world.send(x, 99))
        raises(ob.InvalidArgument, "rank 99", lambda: world.state_of(99))
        raises(ob.InvalidArgument, "tag", lambda: world.send(x, after, 1 << 14))
        array = np.asarray(x)
        raises(ob.Busy, "lent to the host", lambda: world.receive(x, before))
        del array
        # Another length is an error with both, and the next message is whole again.
        y = hub.empty(7, np.float32)
        came, sent = world.receive(y, before), world.send(x, after)
        raises(ob.InvalidArgument, "28", came.wait)
        raises(ob.InvalidArgument, "28", came.wait)
        assert repr(came) == "<onebuf.InFlight: failed>"
        sent.wait()
        x.fill(world.rank)
        y = hub.empty(8, np.float32)
        came, sent = world.receive(y, before), world.send(x, after)
        came.wait()
        sent.wait()
        assert (y.read() == before).all()
    raises(ob.InvalidArgument, "closed", lambda: world.send(x, after))
    raises(ob.InvalidArgument, "closed", world.barrier)


def late():
    """A wait that times out names the rank; the message still comes."""
    import time

    hub = ob.discover(only=["host"])
    x, y = hub.array(values(1, 10)), hub.empty(10, np.float32)
    with ob.World(timeout=60) as world:
        if world.rank == 0:
            came = world.receive(y, 1)
            raises(ob.Timeout, "rank 1 (process", lambda: came.wait(0.3))
            raises(TimeoutError, "300 ms", lambda: came.wait(0.3))
            assert not came.done
            world.barrier()
            came.wait()
            assert (y.read() == values(1, 10)).all()
        else:
            time.sleep(1)
            world.barrier()
            if world.rank == 1:
                world.send(x, 0).wait()


def one_thread():
    """An MPI that is initialised for one thread is refused."""
    import mpi4py

    mpi4py.rc.thread_level = sys.argv[2]
    from mpi4py import MPI

    if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        say("this MPI gives every level")
        return
    raises(ob.Unsupported, "MPI_THREAD_MULTIPLE" if sys.argv[2] == "funneled" else "MPI_THREAD_FUNNELED", ob.World)
    assert MPI.COMM_WORLD.allreduce(1) == MPI.COMM_WORLD.size


def left_open():
    """Worlds and messages that are still there when the interpreter ends."""
    from mpi4py import MPI

    global world, x, sent, came
    hub = ob.discover(only=["host"])
    world = ob.World(MPI.COMM_WORLD, timeout=20)
    x = hub.empty(1 << 20, np.float32)
    came = world.receive(x, (world.rank + 1) % world.size, 9)


def without_mpi4py():
    """onebuf initialises MPI itself."""
    hub = ob.discover(only=["host"])
    with ob.World(timeout=60) as world:
        after, before = around(world)
        x, y = hub.array(values(world.rank, 999)), hub.empty(999, np.float32)
        came, sent = world.receive(y, before), world.send(x, after)
        came.wait()
        sent.wait()
        assert (y.read() == values(before, 999)).all()
        assert "mpi4py" not in sys.modules
        # Debian's libraries are built without support for devices, and say so where they have the function.
        cuda, hip = (world.gpu_claim[api] for api in ("cuda", "hip"))
        assert (cuda, hip) == (False if world.library else None, False if "MPICH" in world.library else None)
        say(f"{world.library.splitlines()[0] if world.library else 'no MPI'} {world.size}")


def interrupted():
    """A signal ends a wait; the message is still on its way."""
    import signal

    hub = ob.discover(only=["host"])
    x, y = hub.array(values(3, 8)), hub.empty(8, np.float32)
    with ob.World(timeout=60) as world:
        came = world.receive(y, 0, 9)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        raises(KeyboardInterrupt, "", lambda: came.wait(50))
        assert not came.done
        world.send(x, 0, 9).wait()
        came.wait()
    assert (y.read() == values(3, 8)).all()


def interrupted_calls():
    """A signal ends rank 0's part of calls for which the others have not come. They come later, and the calls are done for them."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    first = comm.rank == 0
    # The others wait for rank 0's word, so that no call can end before the signal. They do not wait for rank 0 at the end.
    world = ob.World(comm, timeout=60 if first else 2)
    ends_by_a_signal(comm, lambda: world.barrier(50))
    told = ends_by_a_signal(comm, lambda: world.collect(bytes([comm.rank]), 0, 50))
    assert told is None
    # Calls after those that were given up have their own numbers.
    world.barrier(50)
    told = world.collect(bytes([comm.rank]), 0, 50)
    assert told == ([bytes([of]) for of in range(comm.size)] if first else None)
    assert not world.has_failed
    ends_by_a_signal(comm, world.close)
    raises(ob.InvalidArgument, "closed", world.barrier)
    # Last: on rank 0 the communication goes on starting without a world. The others get one, in which rank 0 takes no part.
    other = ends_by_a_signal(comm, lambda: ob.World(comm, timeout=60 if first else 2))
    assert first or (other.rank, other.size) == (comm.rank, comm.size)


def left_by_an_exception():
    """A block that an exception ends does not wait for the others' end for long."""
    import time

    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    with ob.World(comm, timeout=60) as world:
        if comm.rank > 0:
            comm.recv(source=0)
        began = time.monotonic()

        def fails():
            with world:
                raise ValueError("of this rank")

        if comm.rank == 0:
            raises(ValueError, "of this rank", fails)
            assert 1 < time.monotonic() - began < 20, "the others do not come before this"
            for other in range(1, comm.size):
                comm.send("now", dest=other)
        else:
            # Rank 0 has left already.
            raises(ValueError, "of this rank", fails)
    assert time.monotonic() - began < 40


def remaining():
    """Rank 1 dies; the others go on without it, in a world of their own."""
    import signal

    hub = ob.discover(only=["host"])
    world = ob.World(timeout=60)
    assert world.size == 3
    world.barrier()
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    x, y = hub.array(values(world.rank, 999)), hub.empty(999, np.float32)
    came, never = world.receive(y, 1), world.receive(hub.empty(999, np.float32), 2 - world.rank)
    raises(ob.PeerLost, "rank 1 (process", came.wait)
    assert "rank 1 (process" in world.ailing()[0] and world.has_failed
    raises(ob.Busy, "drop them first", world.remaining)
    del never
    left = world.remaining()
    raises(ob.InvalidArgument, "closed", world.barrier)
    assert (left.rank, left.size) == (world.rank // 2, 2) and not left.has_failed
    other = 1 - left.rank
    came, sent = left.receive(y, other), left.send(x, other)
    came.wait()
    sent.wait()
    assert (y.read() == values(2 * other, 999)).all()
    told = left.collect(bytes([world.rank]))
    assert told == ([bytes([0]), bytes([2])] if left.rank == 0 else None)
    left.close()


def cannot_go_on():
    """Without ULFM."""
    world = ob.World(timeout=60)
    raises(ob.Unsupported, "MPIX_Comm_shrink", world.remaining)
    raises(ob.InvalidArgument, "closed", world.barrier)


def ends_by_a_signal(comm, call):
    """Makes a call of all ranks. Rank 0 is interrupted in it, and then the others make it."""
    import signal
    import time

    if comm.rank > 0:
        assert comm.bcast(None) == "now"
        return call()
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    began = time.monotonic()
    raises(KeyboardInterrupt, "", call)
    assert time.monotonic() - began < 5, "the others would come after this"
    return comm.bcast("now") and None


def forked():
    """A child has no communication thread: its calls are refused, and it ends."""
    hub = ob.discover(only=["host"])
    world, x = ob.World(timeout=60), hub.empty(8, np.float32)
    child = os.fork()
    if child == 0:
        raises(ob.DeviceLost, "forked", lambda: world.send(x, 0))
        raises(ob.DeviceLost, "forked", world.barrier)
        world.close()
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    came, sent = world.receive(hub.empty(8, np.float32), 0), world.send(x, 0)
    came.wait()
    sent.wait()


def page():
    """The programs of docs/python.md, one after the other."""
    from test_page import PROGRAMS

    first, second = PROGRAMS["Ranks of an MPI job"]
    hub = ob.discover(without=["gl", "vulkan"])
    names = {"ob": ob, "np": np, "hub": hub, "cl": hub["portable"]}
    exec(compile(first, "docs/python.md", "exec"), names)
    x, y, comm = names["x"], names["y"], names["comm"]
    y.fill(-1)
    x.write(values(comm.rank, 4096))
    exec(compile(second, "docs/python.md", "exec"), names)
    part = 4096 // comm.size
    expected = [values(of, 4096)[comm.rank * part :][:part] for of in range(comm.size)]
    assert (y.read() == np.concatenate(expected)).all()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    say(f"done {sys.argv[1]}")
