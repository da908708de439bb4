//! Launches of every kernel in the corpus.

use onebuf::Grid;
use onebuf::bytemuck::{self, Pod};
use onebuf_conformance::Random;

/// An argument that can be passed on both devices.
#[derive(Clone, Debug)]
pub enum Given {
    /// A buffer with these contents.
    Buffer(Vec<u8>),
    Value(Vec<u8>),
    /// Local memory with this number of bytes.
    Local(usize),
}

/// One launch.
#[derive(Clone, Debug)]
pub struct Case {
    pub file: &'static str,
    pub kernel: &'static str,
    pub grid: Grid,
    pub offset: bool,
    pub args: Vec<Given>,
}

fn case(file: &'static str, kernel: &'static str, grid: Grid, args: Vec<Given>) -> Case {
    Case { file, kernel, grid, offset: false, args }
}

fn value<T: Pod>(value: T) -> Given {
    Given::Value(bytemuck::bytes_of(&value).to_vec())
}

fn buffer<T: Pod>(contents: &[T]) -> Given {
    Given::Buffer(bytemuck::cast_slice(contents).to_vec())
}

/// Pseudo-random bytes.
fn bytes(n: usize) -> Given {
    let mut random = Random::new(n as u64);
    Given::Buffer((0..n).map(|_| random.word() as u8).collect())
}

/// Numbers between -50 and 50, none of them whole.
fn floats(n: usize) -> Vec<f32> {
    let mut random = Random::new(n as u64);
    (0..n).map(|_| random.below(1_000_000) as f32 / 10_000.0 - 50.0 + 0.003).collect()
}

fn doubles(n: usize) -> Vec<f64> {
    floats(n).into_iter().map(f64::from).collect()
}

fn small_words(n: usize) -> Vec<u32> {
    let mut random = Random::new(n as u64);
    (0..n).map(|_| random.below(5000) as u32).collect()
}

const N: usize = 4096;

fn line(group: usize) -> Grid {
    Grid::from([N]).local([group])
}

pub fn all() -> Vec<Case> {
    [
        index(),
        local(),
        values(),
        atomics(),
        numbers(),
        vectors(),
        constant(),
        calls(),
        groups(),
        rest(),
    ]
    .concat()
}

/// In 1 to 3 dimensions, with and without an offset.
fn index() -> Vec<Case> {
    let grids = [
        (Grid::from([96]).local([32]), [96, 1, 1]),
        (Grid::from([48, 6]).local([16, 3]), [48, 6, 1]),
        (Grid::from([8, 6, 10]).local([4, 2, 5]), [8, 6, 10]),
    ];
    let offsets = [
        (Grid::from([96]).local([32]).offset([1000]), [96, 1, 1]),
        (Grid::from([48, 6]).local([16, 3]).offset([7, 123_456]), [48, 6, 1]),
        (Grid::from([8, 6, 10]).local([4, 2, 5]).offset([3, 0, 70_000]), [8, 6, 10]),
    ];
    let with = |offset: bool, (grid, [x, y, z]): (Grid, [usize; 3])| {
        let (items, nx, ny) = (x * y * z, value(x as u32), value(y as u32));
        let mut cases = vec![case(
            "index",
            "index_all",
            grid,
            vec![bytes(items * 320), nx.clone(), ny.clone()],
        )];
        for d in [0u32, 1, 2, 3, 100] {
            let args = vec![bytes(items * 64), value(d), nx.clone(), ny.clone()];
            cases.push(case("index", "index_any", grid, args));
        }
        let linear = vec![bytes(items * 40), nx, ny];
        cases.push(case("index", "index_linear", grid, linear));
        if [y, z] == [1, 1] {
            cases.push(case("index", "index_plain", grid, vec![bytes(items * 4)]));
        }
        cases.into_iter().map(move |case| Case { offset, ..case })
    };
    let plain = grids.into_iter().flat_map(|grid| with(false, grid));
    plain.chain(offsets.into_iter().flat_map(|grid| with(true, grid))).collect()
}

fn local() -> Vec<Case> {
    let local = |kernel, grid, args| case("local", kernel, grid, args);
    let mut cases = Vec::new();
    for group in [1usize, 31, 32, 64] {
        let n = 64 * group;
        let grid = Grid::from([n]).local([group]);
        let out = || bytes(n * 4);
        let words = |factor| Given::Local(group * factor);
        cases.extend([
            local("local_one", grid, vec![buffer(&floats(n)), out(), words(4)]),
            local(
                "local_many",
                grid,
                vec![out(), words(1), words(8), words(1), words(16), words(24)],
            ),
            local(
                "local_mixed",
                grid,
                vec![buffer(&small_words(n)), out(), words(4), value(77u32), words(4)],
            ),
            local("local_chosen", grid, vec![out(), value(1u32), words(4), words(4)]),
            local("local_called", grid, vec![out(), words(4)]),
            local("local_address", grid, vec![out(), words(1), words(64), words(1)]),
        ]);
    }
    cases
}

/// `outer` in the C compiler's layout: 96 bytes.
fn outer(n: u8) -> Vec<u8> {
    let mut bytes = vec![0; 96];
    bytes[0] = n.wrapping_mul(37) | 1;
    for part in 0..2usize {
        let at = 8 + part * 24;
        bytes[at] = n + part as u8;
        bytes[at + 8..at + 16].copy_from_slice(&(f64::from(n) * 1.25 + part as f64).to_le_bytes());
        for i in 0..3 {
            let few = u16::from(n) * 100 + (part * 3 + i) as u16;
            bytes[at + 16 + 2 * i..at + 18 + 2 * i].copy_from_slice(&few.to_le_bytes());
        }
    }
    for i in 0..4 {
        let shift = f32::from(n) + i as f32 * 0.5;
        bytes[64 + 4 * i..68 + 4 * i].copy_from_slice(&shift.to_le_bytes());
    }
    bytes[80..88].copy_from_slice(&(u64::from(n) << 40 | 99).to_le_bytes());
    bytes
}

fn values() -> Vec<Case> {
    let values = |kernel, args| case("values", kernel, Grid::from([64]).local([32]), args);
    let sixteen: [f32; 16] = std::array::from_fn(|i| i as f32 * 1.5 - 4.0);
    let structs: Vec<u8> = (0..64).flat_map(outer).collect();
    vec![
        values(
            "values_scalars",
            vec![
                bytes(64 * 80),
                value(-5i8),
                value(250u8),
                value(-30_000i16),
                value(60_000u16),
                value(-2_000_000_000i32),
                value(4_000_000_000u32),
                value(-9_007_199_254_740_991i64),
                value(1u64 << 60),
                value(1.5f32),
                value(-0.1f64),
            ],
        ),
        values(
            "values_vectors",
            vec![
                value([-3i8, 4]),
                bytes(64 * 160),
                value([1.25f32, -2.5]),
                value(200u8),
                value([3.0f32, 4.0, 5.0, 0.0]),
                value(-77i16),
                value([6.5f32, 7.5, 8.5, 9.5]),
                value([0.25f64, -0.75]),
                value([1u8, 2, 3, 4]),
                value(sixteen),
                value([-10i32, 20, -30, 0]),
            ],
        ),
        values("values_struct", vec![bytes(64 * 64), Given::Value(outer(9)), value(123u8)]),
        values("values_indexed", vec![bytes(64 * 4), Given::Value(outer(11)), value(1u32)]),
        values("values_null", vec![bytes(64 * 4), buffer(&small_words(64))]),
        values("values_structs_in_buffers", vec![Given::Buffer(structs), value(3u32)]),
        values("values_none", vec![]),
    ]
}

fn atomics() -> Vec<Case> {
    let words = || buffer(&small_words(N));
    let mut start = [0u32; 10];
    (start[4], start[6]) = (u32::MAX, u32::MAX);
    let mut wide = [0u64; 6];
    (wide[2], wide[5]) = (u64::MAX, u64::MAX);
    vec![
        case(
            "atomics",
            "atomics_global",
            line(128),
            vec![buffer(&start), buffer(&[0i32; 2]), words()],
        ),
        case(
            "atomics",
            "atomics_local",
            line(64),
            vec![buffer(&[0u32; 38]), words(), Given::Local(37 * 4), value(37u32)],
        ),
        case("atomics", "atomics_wide", line(256), vec![buffer(&wide), words()]),
        case(
            "atomics",
            "atomics_float",
            line(32),
            vec![bytes(N * 4), buffer(&floats(N)), buffer(&floats(N + 1)[1..])],
        ),
    ]
}

fn numbers() -> Vec<Case> {
    let numbers = |kernel, args| case("numbers", kernel, line(64), args);
    let integers: Vec<u64> = small_words(N).iter().map(|n| u64::from(*n).pow(5) ^ 0x55).collect();
    let halves: Vec<u16> = (0..N).map(|i| (i * 13 % 0x7bff) as u16).collect();
    vec![
        numbers("numbers_double", vec![bytes(N * 96), buffer(&doubles(N))]),
        numbers("numbers_single", vec![bytes(N * 56), buffer(&floats(N))]),
        numbers("numbers_narrow", vec![bytes(N), bytes(N), bytes(2 * N), bytes(2 * N)]),
        numbers("numbers_integers", vec![bytes(N * 80), buffer(&integers)]),
        numbers("numbers_half", vec![buffer(&halves), bytes(N * 4)]),
    ]
}

fn vectors() -> Vec<Case> {
    let vectors = |kernel, args| case("vectors", kernel, line(64), args);
    vec![
        vectors(
            "vectors_maths",
            vec![buffer(&floats(4 * N)), buffer(&floats(4 * N)), bytes(4 * N)],
        ),
        vectors("vectors_wide", vec![buffer(&floats(8 * N)), bytes(32 * N), bytes(16 * N)]),
        vectors("vectors_threes", vec![buffer(&floats(3 * N)), bytes(3 * N)]),
        vectors("vectors_bytes", vec![bytes(16 * N), bytes(16 * N)]),
    ]
}

fn constant() -> Vec<Case> {
    let constant = |kernel, args| case("constant", kernel, line(64), args);
    let shorts: Vec<i16> = (0..64).map(|i| i * 300 - 9000).collect();
    vec![
        constant("constant_argument", vec![bytes(N * 4), buffer(&floats(100)), value(100u32)]),
        constant("constant_table", vec![bytes(N * 4)]),
        constant(
            "constant_both",
            vec![bytes(N * 4), buffer(&floats(64)), Given::Local(256), buffer(&shorts)],
        ),
    ]
}

fn calls() -> Vec<Case> {
    let calls = |kernel, args| case("calls", kernel, line(64), args);
    vec![
        calls("calls_functions", vec![bytes(N * 16), buffer(&floats(50)), value(50u32)]),
        calls("calls_private", vec![bytes(N * 4), value(12_345u32)]),
        calls("calls_switch", vec![bytes(N * 4)]),
        calls("calls_inner", vec![bytes(N * 4), value(5u32)]),
        calls("calls_kernel", vec![bytes(N * 4), value(7u32)]),
    ]
}

fn groups() -> Vec<Case> {
    let groups = |kernel, grid, args| case("groups", kernel, grid, args);
    vec![
        groups("groups_required", Grid::from([128, 16]).local([32, 2]), vec![bytes(128 * 16 * 4)]),
        // The group size comes from the kernel.
        groups("groups_required", Grid::from([128, 16]), vec![bytes(128 * 16 * 4)]),
        groups("groups_hinted", line(64), vec![buffer(&floats(4 * N))]),
        groups(
            "groups_copies",
            line(64),
            vec![buffer(&floats(N)), bytes(N * 4), Given::Local(256), value(64u32)],
        ),
        groups(
            "groups_scan",
            line(256),
            vec![buffer(&small_words(N)), bytes(N * 4), Given::Local(1024)],
        ),
        groups("groups_fences", line(64), vec![bytes(N * 4), bytes(N * 4)]),
    ]
}

fn rest() -> Vec<Case> {
    let channels = 32;
    let turns: Vec<f32> = (0..256)
        .flat_map(|i| {
            let angle = -std::f32::consts::TAU * i as f32 / 256.0;
            [angle.cos(), angle.sin()]
        })
        .collect();
    let grid = Grid::from([channels * 32]).local([32]);
    let signal = buffer(&floats(channels * 512));
    vec![
        case("fft", "fft", grid, vec![signal, buffer(&turns)]),
        case("scope", "scope_variable", line(64), vec![bytes(N * 4)]),
    ]
}
