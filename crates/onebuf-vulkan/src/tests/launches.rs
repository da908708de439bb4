//! Launches: values at the bindings of the convention, and refused launches.

use super::*;

#[test]
fn many_launches_fill_many_batches() {
    each(|rig| {
        let (queue, kernel) = (rig.queue(), rig.step());
        for memory_kind in rig.memory_kinds() {
            let memory = rig.memory(memory_kind, &numbers(4096));
            let mut model = words(&numbers(4096));
            for round in 0..200 {
                step(&*queue, &*kernel, &*memory, 1024, 2 * round + 1).unwrap();
                step_model(&mut model, 2 * round + 1);
            }
            assert_eq!(words(&look(&*queue, &*memory)), model, "{memory_kind}");
        }
    });
}

/// Buffers before, between and after the values; values of several sizes.
#[test]
fn arguments_come_in_any_order() {
    const TEXT: &str = "#version 450
layout(local_size_x = 32, local_size_y = 2) in;
layout(std140, binding = 0) uniform Values { float a; vec2 b; vec3 c; uint d; };
layout(std430, binding = 1) readonly buffer In { float x[]; };
layout(std430, binding = 5) buffer Out { float y[]; };
shared float sums[64];
void main() {
    uint i = gl_GlobalInvocationID.y * 64u + gl_GlobalInvocationID.x;
    sums[gl_LocalInvocationIndex] = x[i] * a + b.x * b.y;
    barrier();
    y[i] = sums[gl_LocalInvocationIndex ^ 1u] + c.x + c.y * c.z + float(d);
}";
    each(|rig| {
        let queue = rig.queue();
        let kernel = rig.device.build(&glsl("mix", TEXT)).unwrap().kernel("mix", 6).unwrap();
        let x: Vec<f32> = (0..256).map(|i| i as f32).collect();
        let bytes = |all: &[f32]| all.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let (from, to) = (
            rig.memory(MemoryKind::Device, &bytes(&x)),
            rig.memory(MemoryKind::Device, &[0; 1024]),
        );
        let (a, b, c) = (bytes(&[2.0]), bytes(&[3.0, 5.0]), bytes(&[1.0, 10.0, 4.0]));
        let args = [
            Arg::Bytes(&a),
            Arg::Memory(&*from, Access::Read, 1024),
            Arg::Bytes(&b),
            Arg::Bytes(&c),
            Arg::Bytes(&[7, 0, 0, 0]),
            Arg::Memory(&*to, Access::Write, 1024),
        ];
        let grid = Grid { dims: 2, global: [64, 4, 1], local: Some([32, 2, 1]), offset: [0; 3] };
        // SAFETY: 256 elements of each.
        unsafe { queue.launch(&*kernel, &grid, &args, &[], false) }.unwrap();
        let model: Vec<f32> = (0..256usize).map(|i| x[i ^ 1] * 2.0 + 15.0 + 41.0 + 7.0).collect();
        assert_eq!(look(&*queue, &*to), bytes(&model));
    });
}

/// A buffer whose size is not a multiple of four: the shader sees the last word, without harm.
#[test]
fn odd_bytes_are_seen_in_whole_words() {
    each(|rig| {
        let (queue, kernel) = (rig.queue(), rig.step());
        let memory = rig.memory(MemoryKind::Device, &numbers(4097));
        step(&*queue, &*kernel, &*memory, 1025, 3).unwrap();
        let mut model = words(&[numbers(4097), vec![0; 3]].concat());
        step_model(&mut model, 3);
        let seen = look(&*queue, &*memory);
        assert_eq!(words(&seen), model[..1024]);
        assert_eq!(seen[4096], model[1024] as u8);
    });
}

#[test]
fn wrong_launches_are_refused() {
    each(|rig| {
        let (queue, kernel) = (rig.queue(), rig.step());
        let memory = rig.memory(MemoryKind::Device, &[0; 4096]);
        let buffer = Arg::Memory(&*memory, Access::ReadWrite, 4096);
        let word = Arg::Bytes(&[1, 0, 0, 0]);
        let refused = |grid: &Grid, args: &[Arg<'_>]| {
            // SAFETY: refused, or with one work-group that touches at most one element.
            let launched = unsafe { queue.launch(&*kernel, grid, args, &[], false) };
            launched.expect_err("a wrong launch").to_string()
        };
        let good = line(64);
        let cases: [(Grid, &[Arg<'_>], &str); 7] = [
            (good, &[buffer, word], "takes 3 arguments, 2 given"),
            (line(65), &[buffer, word, word], "do not divide"),
            (Grid { local: Some([32, 1, 1]), ..good }, &[buffer, word, word], "shader declares"),
            (Grid { offset: [1, 0, 0], ..good }, &[buffer, word, word], "offset"),
            (good, &[buffer, word, Arg::Local(64)], "group-local"),
            (good, &[word, word, word], "argument 0 is a value"),
            (good, &[buffer, buffer, word], "block of values"),
        ];
        for (grid, args, says) in cases {
            let said = refused(&grid, args);
            assert!(said.contains(says), "{said}");
        }
        let most = rig.device.info();
        let too_many = Grid { global: [64, 1 << 20, 1 << 20], dims: 3, ..good };
        let said = refused(&too_many, &[buffer, word, word]);
        assert!(said.contains("at once"), "{said} on {}", most.name);
        let narrow = rig.memory(MemoryKind::Device, &[0; 64]);
        let narrow = narrow.region(0, 64, Access::Read).unwrap();
        let said = refused(&good, &[Arg::Memory(&*narrow, Access::ReadWrite, 64), word, word]);
        assert!(said.contains("made for read"), "{said}");
    });
}
