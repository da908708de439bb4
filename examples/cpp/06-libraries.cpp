// 6. Beamforming of an antenna array: a Fourier transform of every channel, then a matrix product, in place.
//
// c++ -std=c++17 06-libraries.cpp $(pkg-config --cflags --libs onebuf) -o beams && ./beams

#include <onebuf.hpp>

#include <cstdio>

using Sample = std::complex<float>;

int main() {
    constexpr std::size_t n = 256, channels = 8, beams = 2;
    auto hub = onebuf::Hub::discover();
    auto device = hub.device("host"); // or "cuda", "hip"
    auto queue = device.queue();

    // Channel c holds a tone in frequency bin c + 1; beam b selects channel b.
    std::vector<Sample> tones(n * channels), weights(channels * beams);
    for (std::size_t i = 0; i < tones.size(); i++)
        tones[i] = std::polar(1.0f, 6.2831853f * static_cast<float>((i / n + 1) * (i % n)) / n);
    for (std::size_t b = 0; b < beams; b++) weights[b * channels + b] = 1.0f / n;
    auto signal = hub.buffer<Sample>(tones, {device});
    auto weight = hub.buffer<Sample>(weights, {device});
    auto beam = hub.buffer<Sample>(n * beams, {device});

    onebuf::fft(queue, signal, n, channels);
    onebuf::Gemm product{n, beams, channels}; // [n x channels] times [channels x beams]
    onebuf::gemm(queue, product, signal, weight, beam);

    auto found = beam.to_vector(); // waits for both
    bool right = std::abs(found[1] - 1.0f) < 1e-3f && std::abs(found[n + 2] - 1.0f) < 1e-3f;
    std::printf("beam 0 hears %.2f in line 1, beam 1 hears %.2f in line 2\n", std::abs(found[1]), std::abs(found[n + 2]));

    auto matrix = hub.buffer<double>({2, 1, 0, 4}, {device});
    auto sides = hub.buffer<double>({2, 9}, {device});
    auto lu = onebuf::Lu<double>::factor(queue, 2, matrix);
    lu.solve(queue, matrix, sides);
    std::printf("and the solution is %g, %g\n", sides.to_vector()[0], sides.to_vector()[1]);
    return right ? 0 : 1;
}
