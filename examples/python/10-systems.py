"""Linear systems on buffers in place: the weights of a beam that hears one direction, and as little as possible of the others."""

import numpy as np

import onebuf as ob

SENSORS, SAMPLES = 8, 4096
hub = ob.discover(trace=True)

# Two waves: the wanted one from 10 degrees, a loud one from -35.
sensor, time = np.arange(SENSORS)[:, None], np.arange(SAMPLES)[None, :]
arrival = lambda degrees: np.exp(1j * np.pi * np.sin(np.radians(degrees)) * sensor)  # noqa: E731
noise = np.random.default_rng(3).standard_normal((2, SENSORS, SAMPLES)) * 0.1
signal = arrival(10) * np.exp(0.3j * time) + 20 * arrival(-35) * np.exp(1.1j * time) + noise[0] + 1j * noise[1]

x = hub.array(signal, np.complex128, name="signal")
covariance = hub.empty((SENSORS, SENSORS), np.complex128, name="covariance")
weights = hub.array(arrival(10)[:, 0], np.complex128, name="weights")
ob.matmul(x, x, covariance, op_b="adjoint", alpha=1 / SAMPLES)
ob.solve(covariance, weights)  # covariance w = arrival(10); both are replaced

w = weights.read()
w /= w.conj() @ arrival(10)[:, 0]
gains = {degrees: abs(w.conj() @ arrival(degrees)[:, 0]) for degrees in (10, -35)}
print({degrees: f"{20 * np.log10(gain):.1f} dB" for degrees, gain in gains.items()})
hub.trace.save("systems.json")
print(f"{len(hub.trace.events())} events in systems.json, for https://ui.perfetto.dev")
assert abs(gains[10] - 1) < 1e-9 and gains[-35] < 1e-2 and hub.ledger.implied_bytes == 0
