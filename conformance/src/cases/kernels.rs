//! Kernels: grids of every dimension, arguments of every kind, elements of every type.

use crate::{
    Element, GROUP, Random, Sample, Trial, assert_same, axpy_source, kernels, like_cuda, two_texts,
};
use bytemuck::Pod;
use onebuf::{
    Access, Arg, Complex32, Complex64, Device, Error, Grid, IntoArg, Result, Signature, args,
    half::f16,
};

const N: usize = 20 * GROUP;

fn axpy<T: Element + for<'b> IntoArg<'b>>(t: &Trial<'_>, device: &Device) -> Result<()> {
    let signature = Signature::new().each::<T>(Access::Read).each::<T>(Access::ReadWrite);
    let signature = signature.value::<T>();
    // SAFETY: each work-item reads and writes its own element.
    let kernel = unsafe { device.program(&axpy_source::<T>())?.kernel("axpy", signature)? };
    let mut random = Random::new(1);
    let mut some = || (0..N).map(|_| T::random(&mut random)).collect::<Vec<T>>();
    let (x, mut y) = (some(), some());
    let a = x[7];
    let buffer = |data: &[T]| t.hub().buffer(N).shared_with([device]).init(data.to_vec()).build();
    let (bx, by) = (buffer(&x)?, buffer(&y)?);
    let queue = device.queue()?;
    for _ in 0..2 {
        let grid = Grid::from([N]).local([GROUP]);
        queue.launch(&kernel, grid, args![bx.read_on(&queue)?, by.write_on(&queue)?, a])?;
        y.iter_mut().zip(&x).for_each(|(y, x)| *y = T::axpy(a, *x, *y));
    }
    assert_same(&by.to_vec()?, &y, &format!("{} on {device}", std::any::type_name::<T>()));
    assert_same(&bx.to_vec()?, &x, "what is only read");
    Ok(())
}

pub fn elements_of_every_type(t: &Trial<'_>) {
    fn on<T: Element + for<'b> IntoArg<'b>>(t: &Trial<'_>, device: &Device) {
        let name = std::any::type_name::<T>();
        if T::is_on(device) {
            axpy::<T>(t, device).unwrap_or_else(|e| panic!("{name} on {device}: {e}"));
        }
    }
    t.each_device(|side| {
        let device = &side.device;
        on::<f32>(t, device);
        on::<f64>(t, device);
        on::<i32>(t, device);
        on::<u8>(t, device);
        on::<Complex32>(t, device);
        on::<Sample>(t, device);
    });
}

pub fn grids_have_one_to_three_dimensions(t: &Trial<'_>) {
    const TEXT: &str = "
kernel void where_am_i(global uint *p) {
    size_t w = get_global_size(0), h = get_global_size(1);
    size_t i = get_global_id(0) + w * (get_global_id(1) + h * get_global_id(2));
    p[i] = get_global_id(0) + 100 * get_global_id(1) + 10000 * get_global_id(2);
}
";
    let source = kernels(TEXT).with_native("where_am_i", |args| {
        let [w, h, d] = args.global();
        let to = args.slice_mut::<u32>(0)?;
        let all = (0..d).flat_map(|z| (0..h).flat_map(move |y| (0..w).map(move |x| (x, y, z))));
        all.zip(to).for_each(|((x, y, z), to)| *to = (x + 100 * y + 10_000 * z) as u32);
        Ok(())
    });
    t.each_device(|side| {
        let fits = Signature::new().each::<u32>(Access::Write);
        let program = side.device.program(&source).unwrap();
        // SAFETY: each work-item writes the element with its own number.
        let kernel = unsafe { program.kernel("where_am_i", fits).unwrap() };
        let grids: [(Grid, [usize; 3]); 5] = [
            ([77].into(), [77, 1, 1]),
            ([8, 9].into(), [8, 9, 1]),
            ([4, 3, 5].into(), [4, 3, 5]),
            (Grid::from([8, 8]).local([4, 2]), [8, 8, 1]),
            (Grid::from([4, 4, 4]).local([2, 2, 2]), [4, 4, 4]),
        ];
        for (grid, [w, h, d]) in grids {
            let buffer = t.hub().buffer::<u32>(w * h * d).shared_with([&side.device]);
            let buffer = buffer.build().unwrap();
            let view = buffer.write_on(&side.queue).unwrap();
            side.queue.launch(&kernel, grid, args![view]).unwrap();
            let of = |i: usize| i % w + 100 * (i / w % h) + 10_000 * (i / w / h);
            let model: Vec<u32> = (0..w * h * d).map(|i| of(i) as u32).collect();
            let what = format!("{} over {grid:?}", side.device);
            assert_same(&buffer.to_vec().unwrap(), &model, &what);
        }
    });
}

/// Loops of a work-item run to their end, up to the known limit of the device. Beyond that limit they must not; this test
/// shows when a driver is fixed.
pub fn loops_end_where_the_device_says(t: &Trial<'_>) {
    const TEXT: &str = "
kernel void count(global uint *out, global const uint *step, uint n) {
    uint sum = 0;
    for (uint i = 0; i < n; i++) sum += step[i & 1];
    out[get_global_id(0)] = sum;
}
";
    const SHADER: &str = "#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Out { uint to[]; };
layout(std430, binding = 1) readonly buffer Steps { uint by[]; };
layout(std140, binding = 2) uniform Values { uint n; };
void main() {
    uint sum = 0;
    for (uint i = 0; i < n; i++) sum += by[i & 1];
    to[gl_GlobalInvocationID.x] = sum;
}
";
    let source = kernels(TEXT).with_glsl("count", SHADER).with_native("count", |args| {
        let (n, by) = (args.value::<u32>(2)?, args.slice::<u32>(1)?.to_vec());
        let sum = (0..n).map(|i| by[(i & 1) as usize]).sum::<u32>();
        args.slice_mut(0)?.fill(sum);
        Ok(())
    });
    t.each_device(|side| {
        let signature = Signature::new().each::<u32>(Access::Write).buffer::<u32>(Access::Read);
        let signature = signature.value::<u32>().require(|call| {
            if call.len(1) >= 2 { Ok(()) } else { Err("fewer than two elements".into()) }
        });
        let program = side.device.program(&source).unwrap();
        // SAFETY: each work-item writes its own element and reads two, which the requirement bounds.
        let kernel = unsafe { program.kernel("count", signature).unwrap() };
        let buffer = |data: &[u32]| {
            let buffer = t.hub().buffer(data.len()).shared_with([&side.device]);
            buffer.init(data.to_vec()).build().unwrap()
        };
        let (out, steps) = (buffer(&[0; GROUP]), buffer(&[1, 1]));
        let counted = |n: u32| {
            let views = (out.write_on(&side.queue).unwrap(), steps.read_on(&side.queue).unwrap());
            let grid = Grid::from([GROUP]).local([GROUP]);
            side.queue.launch(&kernel, grid, args![views.0, views.1, n]).unwrap();
            out.to_vec().unwrap()
        };
        let most = side.device.info().caps.max_loop_iterations;
        let right = most.unwrap_or(200_000);
        assert_same(&counted(right), &[right; GROUP], &format!("loops on {}", side.device));
        if most.is_some() {
            assert_same(&counted(right + 1), &[right; GROUP], "the known limit");
        }
    });
}

pub fn launches_begin_where_they_are_told_to(t: &Trial<'_>) {
    const TEXT: &str =
        "kernel void here(global uint *p) { p[get_global_id(0)] += 1 + get_global_id(0); }";
    let source = kernels(TEXT).with_native("here", |args| {
        let (first, n) = (args.offset()[0], args.global()[0]);
        let to = &mut args.slice_mut::<u32>(0)?[first..first + n];
        (first as u32..).zip(to).for_each(|(i, to)| *to += 1 + i);
        Ok(())
    });
    let fits = |signature: Signature| signature.each::<u32>(Access::ReadWrite);
    t.each_device(|side| {
        let (id, program) = (side.device.id(), side.device.program(&source).unwrap());
        // SAFETY: each work-item uses the element with its own number.
        let here = unsafe { program.kernel("here", fits(Signature::new().offsets())).unwrap() };
        // SAFETY: as above.
        let fixed = unsafe { program.kernel("here", fits(Signature::new())).unwrap() };
        let buffer = t.hub().buffer::<u32>(N).shared_with([&side.device]).build().unwrap();
        let mut model = vec![0; N];
        let queue = &side.queue;
        if ["cuda", "hip"].contains(&side.device.info().api.0) {
            let grid = Grid::from([GROUP]).local([GROUP]).offset([GROUP]);
            let refused = queue.launch(&here, grid, args![buffer.write_on(queue).unwrap()]);
            let Err(Error::Unsupported { needs, .. }) = refused else {
                panic!("{id}: {refused:?}")
            };
            assert!(needs.contains("pass it as an argument"), "{id}: {needs}");
            assert_same(&buffer.to_vec().unwrap(), &model, id);
            return;
        }
        for (first, n) in [(0, GROUP), (GROUP, 3 * GROUP), (2 * GROUP, N - 2 * GROUP)] {
            let grid = Grid::from([n]).local([GROUP]).offset([first]);
            queue.launch(&here, grid, args![buffer.write_on(queue).unwrap()]).unwrap();
            (first as u32..).zip(&mut model[first..first + n]).for_each(|(i, x)| *x += 1 + i);
        }
        assert_same(&buffer.to_vec().unwrap(), &model, id);
        let grid = Grid::from([GROUP]).local([GROUP]);
        let refused = [
            (&fixed, grid.offset([GROUP]), "Signature::offsets"),
            (&here, grid.offset([N]), "work-items"),
            (&here, grid.offset([usize::MAX]), "past the largest index"),
            (&here, grid.offset([1, 1]), "dimensions"),
        ];
        for (kernel, grid, why) in refused {
            let launched = queue.launch(kernel, grid, args![buffer.write_on(queue).unwrap()]);
            let Err(Error::InvalidArgument(text)) = launched else { panic!("{id}: {launched:?}") };
            assert!(text.contains(why), "{id}: {text}");
        }
        assert_same(&buffer.to_vec().unwrap(), &model, id);
    });
}

/// Passes one value and has the kernel write its bytes, so that one test covers any type.
fn echo<T: Pod + for<'b> IntoArg<'b>>(t: &Trial<'_>, device: &Device, text: &str, value: T) {
    let declared = text.rsplit_once(' ').map_or((text, ""), |(head, name)| (head, name));
    let kernel = format!(
        "{}\nkernel void echo(global uchar *to, {} v) {{
            {} copy = v;
            for (uint i = 0; i < sizeof(v); i++) to[i] = ((private uchar *)&copy)[i];
        }}",
        declared.0, declared.1, declared.1
    );
    let source = kernels(&kernel).with_native("echo", |args| {
        let value = args.value::<T>(1)?;
        args.slice_mut::<u8>(0)?.copy_from_slice(bytemuck::bytes_of(&value));
        Ok(())
    });
    let run = || -> Result<Vec<u8>> {
        let bytes = size_of::<T>();
        let fits = Signature::new().buffer::<u8>(Access::Write).value::<T>().require(move |call| {
            if call.len(0) == bytes { Ok(()) } else { Err("another length".into()) }
        });
        // SAFETY: the kernel writes as many bytes as the type has, which is the buffer's length.
        let kernel = unsafe { device.program(&source)?.kernel("echo", fits)? };
        let to = t.hub().buffer::<u8>(bytes).shared_with([device]).build()?;
        let queue = device.queue()?;
        queue.launch(&kernel, [1], args![to.write_on(&queue)?, value])?;
        to.to_vec()
    };
    let seen = run().unwrap_or_else(|e| panic!("{text} on {device}: {e}"));
    assert_eq!(seen, bytemuck::bytes_of(&value), "{text} on {device}");
}

pub fn values_of_every_kind_arrive(t: &Trial<'_>) {
    const STRUCT: &str = "typedef struct { float at[2]; uint id; uchar flags[4]; } S; S";
    let sample = Sample { at: [1.5, -2.5], id: 0xdead_beef, flags: [1, 2, 3, 4] };
    t.each_device(|side| {
        let d = &side.device;
        echo(t, d, " uchar", 0xabu8);
        echo(t, d, " char", -5i8);
        echo(t, d, " ushort", 0xabcdu16);
        echo(t, d, " short", -1234i16);
        echo(t, d, " uint", 0xdead_beefu32);
        echo(t, d, " int", -123_456i32);
        echo(t, d, " ulong", 0xdead_beef_0123_4567u64);
        echo(t, d, " long", i64::MIN + 3);
        echo(t, d, " float", 1.5f32);
        echo(t, d, " ushort", f16::from_f32(0.5).to_bits());
        echo(t, d, " float2", Complex32::new(1.0, -2.0));
        echo(t, d, " float4", [1.0f32, 2.0, 3.0, 4.0]);
        echo(t, d, " uint2", [7u32, 8]);
        echo(t, d, " uchar16", *b"sixteen bytes ok");
        echo(t, d, " float16", [0.5f32; 16]);
        echo(t, d, STRUCT, sample);
        if f64::is_on(d) {
            echo(t, d, "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n double", 2.5f64);
            echo(t, d, "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n double2", Complex64::I);
        }
    });
}

pub fn local_memory_is_given_per_launch(t: &Trial<'_>) {
    const TEXT: &str = "
kernel void turn(global uint *p, local uint *group) {
    size_t i = get_local_id(0), n = get_local_size(0);
    group[i] = p[get_global_id(0)];
    barrier(CLK_LOCAL_MEM_FENCE);
    p[get_global_id(0)] = group[n - 1 - i];
}
";
    // In CUDA and HIP the launch's local memory is not a parameter.
    let like_cuda = TEXT.replace(", local uint *group) {", ") { extern __shared__ uint group[];");
    let like_cuda = like_cuda.replace("barrier(CLK_LOCAL_MEM_FENCE)", "__syncthreads()");
    let source = two_texts(TEXT, &like_cuda).with_native("turn", |_| Ok(()));
    let signature = || Signature::new().each::<u32>(Access::ReadWrite).each_local::<u32>();
    t.each_device(|side| {
        let program = side.device.program(&source).unwrap();
        // SAFETY: each work-item has its own element in both.
        let kernel = unsafe { program.kernel("turn", signature()).unwrap() };
        let model: Vec<u32> = (0..N as u32).collect();
        let buffer = t.hub().buffer(N).shared_with([&side.device]).init(&model[..]);
        let buffer = buffer.build().unwrap();
        let view = buffer.write_on(&side.queue).unwrap();
        let grid = Grid::from([N]).local([GROUP]);
        match side.queue.launch(&kernel, grid, args![view, Arg::local::<u32>(GROUP)]) {
            Ok(()) => {
                let turned = model.chunks(GROUP).flat_map(|g| g.iter().rev().copied());
                let turned: Vec<u32> = turned.collect();
                assert_same(&buffer.to_vec().unwrap(), &turned, side.device.id());
            }
            // Native kernels have no work-groups, and return an error.
            Err(Error::Unsupported { .. }) => {
                assert_eq!(side.device.info().caps.local_memory_bytes, 0, "{}", side.device);
                assert_same(&buffer.to_vec().unwrap(), &model, side.device.id());
            }
            Err(error) => panic!("{}: {error}", side.device),
        }
    });
}

pub fn address_spaces_go_and_the_rest_stays(t: &Trial<'_>) {
    t.together(|| {
        let text = "kernel void f(global const uint *x) { uchar *p = (private uchar *)x; }";
        let plain = "kernel void f(const uint *x) { uchar *p = (uchar *)x; }";
        let translated = like_cuda(text);
        assert!(translated.ends_with(plain), "{translated}");
        assert!(translated.contains("#define kernel extern"), "{translated}");
    });
}
