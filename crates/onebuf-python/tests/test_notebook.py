"""Notebooks: the one in the examples, executed in a kernel of Jupyter; progress and interrupts there."""

import base64
import io
import json
import os
import queue
import time
from pathlib import Path

import jupyter_client
import nbclient
import nbformat
import numpy as np
import pytest

NOTEBOOK = Path(os.environ.get("ONEBUF_EXAMPLES", "examples/python")) / "beams.ipynb"


@pytest.fixture(autouse=True)
def folders(monkeypatch, tmp_path):
    """Kernels write nothing outside of the test's folder."""
    for name in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "MPLCONFIGDIR", "TMPDIR"):
        folder = tmp_path / name
        folder.mkdir(mode=0o700)
        monkeypatch.setenv(name, str(folder))


# What the plots show, and the demonstration's beams as the file has them.
FACTS = """
import json
beams = np.load(saved)
wanted = 10 * np.log10(np.abs(beams.astype(complex)) ** 2 + 1e-20)
print(json.dumps({
    "error": float(np.abs(image - np.fft.fftshift(wanted - wanted.max(), axes=1)).max()),
    "tops": {str(at): int(image[:, np.abs(frequency - at).argmin()].argmax()) for at in (0.1875, 0.05, -0.31)},
    "levels": {str(at): float(image[:, np.abs(frequency - at).argmin()].max()) for at in (0.1875, 0.05, -0.31, -0.1)},
    "beams": BEAMS, "copied": report["bytes_copied"], "implied": hub.ledger.implied_bytes, "devices": [one["device"] for one in report["stages"]],
}))
"""


def outputs(cell, kind):
    """What a cell displays of a kind, such as "image/png"."""
    return [one["data"][kind] for one in cell["outputs"] if kind in one.get("data", {})]


def test_the_notebook_plots_the_demonstrations_beams(hub, proven, tmp_path):
    from matplotlib import image

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert all(not cell["outputs"] for cell in notebook.cells if cell.cell_type == "code"), "it is stored without outputs"
    notebook.cells.append(nbformat.v4.new_code_cell(FACTS))
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert "<table" in outputs(code[0], "text/html")[0], "the table of devices"
    plots = [image.imread(io.BytesIO(base64.b64decode(one))) for cell in code for one in outputs(cell, "image/png")]
    assert len(plots) == 2 and all(min(one.shape[:2]) > 100 and len(np.unique(one.reshape(-1, one.shape[2]), axis=0)) > 50 for one in plots)
    facts = json.loads(code[-1]["outputs"][0]["text"])
    assert facts["error"] < 1e-2, facts
    # Three waves, from the directions of the middle, the first and the last beam.
    last = facts["beams"] - 1
    assert facts["tops"] == {"0.1875": last // 2, "0.05": 0, "-0.31": last}, facts
    assert all(facts["levels"][at] > -20 for at in facts["tops"]) and facts["levels"]["-0.1"] < -30, "the control: no wave there"
    assert facts["implied"] == 0 and facts["copied"] == 0 and facts["devices"][:2] == ["opencl:0", "opencl:1"], facts


@pytest.fixture
def kernel(tmp_path):
    """Executes code in a kernel: the messages that come back. `then` is called with each of them."""
    manager, client = jupyter_client.manager.start_new_kernel(kernel_name="python3", cwd=str(tmp_path), startup_timeout=60)

    def execute(text, then=lambda message: None, timeout=60):
        sent, messages, end = client.execute(text), [], time.monotonic() + timeout
        while time.monotonic() < end:
            try:
                message = client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != sent:
                continue
            messages.append((message["msg_type"], message["content"]))
            if messages[-1] == ("status", {"execution_state": "idle"}):
                return messages
            then(messages[-1])
        raise AssertionError(f"the cell does not end: {messages[-3:]}")

    execute.interrupt = manager.interrupt_kernel
    yield execute
    client.stop_channels()
    manager.shutdown_kernel(now=True)


LINE = """
import time
import onebuf as ob
hub = ob.discover(without=["gl", "vulkan"])
line = ob.Pipeline(2, lambda: hub.empty(4), source=lambda slot, number: time.sleep(0.01) or number < FRAMES, sink=lambda *_: None)
"""


def test_progress_is_one_output_that_changes(kernel):
    messages = kernel(LINE.replace("FRAMES", "60") + "report = line.run(progress=True, total=60)")
    kinds = [kind for kind, _ in messages]
    assert kinds.count("display_data") == 1 and kinds.count("update_display_data") > 2 and "stream" not in kinds, messages
    shown = [content["data"] for kind, content in messages if kind in ("display_data", "update_display_data")]
    assert all("<progress" in one["text/html"] for one in shown)
    assert '<progress max="1" value="1.0000">' in shown[-1]["text/html"] and "60/60 frames [" in shown[-1]["text/plain"], shown[-1]


def test_a_bar_of_tqdm(kernel):
    messages = kernel(LINE.replace("FRAMES", "30") + "from tqdm import tqdm\nwith tqdm(total=30) as bar: report = line.run(progress=bar)\nprint(bar.n)")
    assert ("stream", {"name": "stdout", "text": "30\n"}) in messages, messages


def test_an_interrupt_stops_a_pipeline(kernel):
    interrupted = []

    def then(message):
        if message[0] == "update_display_data" and not interrupted:
            interrupted.append(kernel.interrupt())

    messages = kernel(LINE.replace("FRAMES", "1e9") + "line.run(progress=True)", then)
    assert interrupted and [content["ename"] for kind, content in messages if kind == "error"] == ["KeyboardInterrupt"], messages
    messages = kernel("x = hub.empty(8); x.write(2); print(line.pulse()['state'], float(x.read().sum()))")
    assert any(kind == "stream" and content["text"].endswith(" 16.0\n") for kind, content in messages), messages
