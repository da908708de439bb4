"""PyTorch on the CPU, both ways."""

import gc
import threading

import numpy as np
import pytest
import torch

import onebuf as ob

from conftest import GAIN

PAIRS = [
    (torch.float16, "float16"), (torch.float32, "float32"), (torch.float64, "float64"), (torch.int8, "int8"),
    (torch.uint8, "uint8"), (torch.int16, "int16"), (torch.int32, "int32"), (torch.int64, "int64"),
    (torch.complex64, "complex64"), (torch.complex128, "complex128"),
]  # fmt: skip


@pytest.mark.parametrize("torch_type, name", PAIRS, ids=[name for _, name in PAIRS])
def test_every_type_both_ways(hub, torch_type, name):
    x = hub.array(np.arange(12).astype(name).reshape(3, 4))
    tensor = torch.from_dlpack(x)
    assert tensor.dtype == torch_type and tensor.shape == (3, 4)
    tensor[1] = 7
    assert (x.read()[1] == 7).all()
    del tensor
    own = torch.ones(5, 6, dtype=torch_type)
    y = hub.from_dlpack(own)
    assert y.dtype == name and y.shape == (5, 6)
    with y.map() as a:
        a[2] = 3
    assert (own[2] == 3).all() and (own[1] == 1).all()


def test_torch_works_in_place_between_kernels(hub, cl, gain):
    x = hub.array(np.ones((16, 1024), np.float32), share=[cl])
    before = hub.ledger.implied_bytes
    expected = 1.0
    for turn in range(50):
        gain(x, 2.0)
        with x.on("host") as view:
            torch.from_dlpack(view).add_(turn).mul_(0.5)
        expected = (expected * 2 + turn) * 0.5
    np.testing.assert_array_equal(x.read(), np.full((16, 1024), np.float32(expected)))
    assert hub.ledger.implied_bytes == before
    copied = torch.from_dlpack(x).clone()
    gain(x, 2.0)
    assert not bool((copied == torch.from_dlpack(x)).any()), "the control: a copy is not the buffer"


def test_a_tensor_lends_the_buffer_until_it_is_gone(hub, cl, gain):
    x = hub.array(np.ones(64, np.float32), share=[cl])
    tensor = torch.from_dlpack(x)
    part = tensor[3:5]
    del tensor
    with pytest.raises(ob.Busy, match="lent to the host"):
        gain(x, 2.0)
    thread = threading.Thread(target=lambda holder: holder.clear(), args=([part],))
    del part
    thread.start()
    thread.join()
    gc.collect()
    del thread
    gain(x, 2.0)
    assert (x.read() == 2).all()


def test_strided_tensors_see_slices(hub):
    x = hub.array(np.arange(64, dtype=np.float32).reshape(8, 8))
    tensor = torch.from_dlpack(x[::2, 1::3])
    np.testing.assert_array_equal(tensor.numpy(), x.read()[::2, 1::3])
    tensor.zero_()
    assert not x.read()[::2, 1::3].any() and x.read()[1].any()


def test_opencl_kernels_on_tensors(hub):
    gain = ob.kernel(GAIN)
    for size in (1, 17, 100_003):
        tensor = torch.arange(size, dtype=torch.float32)
        gain(tensor, 3.0)
        assert torch.equal(tensor, 3 * torch.arange(size, dtype=torch.float32))
    with pytest.raises(Exception, match="gradient"):
        gain(torch.ones(4, requires_grad=True), 1.0)
    with pytest.raises(ob.InvalidArgument, match="not contiguous"):
        gain(torch.ones(4, 4).T, 1.0)
    with pytest.raises(ob.InvalidArgument, match="float64 elements"):
        gain(torch.ones(4, dtype=torch.float64), 1.0)


def test_buffers_are_written_from_tensors(hub):
    x = hub.empty(4)
    x.write(torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True))
    np.testing.assert_array_equal(x.read(), [1, 2, 3, 4])
