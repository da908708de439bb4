"""The doctor as a function."""

import contextlib
import io

import pytest

import onebuf as ob
import onebuf.__main__


@pytest.fixture
def program():
    import os

    from conftest import absent

    if not os.access(onebuf.__main__.program(), os.X_OK):
        absent("the `onebuf` program in the package")


def test_it_proves_a_pair_once_and_keeps_the_verdicts(program, hub, cl, tmp_path):
    shown = []
    told = ob.doctor([hub.host, cl], hub=hub, cache=tmp_path, progress=lambda *all: shown.append(all))
    assert told["experiments"] > 0 and told["saved"] and told["seconds"] > 0
    pairs = {(row["from"], row["to"]) for row in told["routes"]}
    assert pairs == {("host", cl.id), (cl.id, "host"), (cl.id, cl.id)}
    assert any(row["state"] == "proven" for row in told["routes"])
    assert shown[0] == (0, 3, f"host -> {cl.id}") and shown[-1][:2] == (3, 3)
    again = ob.doctor([hub.host, cl.id], hub=hub, cache=tmp_path)
    assert again["experiments"] == 0 and len(again["routes"]) == len(told["routes"])


def test_what_its_progress_raises_ends_it(program, hub, cl, tmp_path):
    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ob.doctor(hub=hub, cache=tmp_path, progress=stop)


def test_its_line_of_progress_ends(program, hub, cl, tmp_path):
    with contextlib.redirect_stderr(io.StringIO()) as file:
        ob.doctor([cl], hub=hub, cache=tmp_path, progress=True)
    assert file.getvalue() == "1 of 1 pairs\n"


def test_bad_input_is_an_exception(program, hub):
    with pytest.raises(ob.Error, match="no such"):
        ob.doctor(["no such device"], hub=hub)
    with pytest.raises(ob.InvalidArgument, match="reach"):
        ob.doctor(["host"], hub=hub, reach=-1)
