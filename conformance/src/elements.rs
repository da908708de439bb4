//! Element types with one kernel each: `y = a * x + y`, in OpenCL C, CUDA C and Rust.
//!
//! Values are small whole numbers, so that rounding and fused multiply-add do not matter.

use crate::{Random, two_texts};
use bytemuck::{Pod, Zeroable};
use onebuf::{Complex32, Device, IntoArg, Source};
use std::fmt::Debug;

/// A type that buffers hold and kernels take by value.
pub trait Element: Pod + PartialEq + Debug {
    /// The type's definition in OpenCL C; in CUDA C, with `DEVICE` before its function.
    const TEXT: &'static str;
    /// Returns a random value.
    fn random(random: &mut Random) -> Self;
    /// Computes one element of the kernel.
    fn axpy(a: Self, x: Self, y: Self) -> Self;

    /// Whether the device supports the type.
    fn is_on(_device: &Device) -> bool {
        true
    }
}

/// A user-defined struct with C layout.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Sample {
    /// A position.
    pub at: [f32; 2],
    /// A number.
    pub id: u32,
    /// Flags.
    pub flags: [u8; 4],
}

impl<'b> IntoArg<'b> for Sample {
    fn into_arg(self) -> onebuf::Arg<'b> {
        onebuf::Arg::value(self)
    }
}

macro_rules! numbers {
    ($($type:ty as $name:literal, $axpy:expr $(, if $extension:literal)?;)*) => {$(
        impl Element for $type {
            const TEXT: &'static str = concat!(
                $("#pragma OPENCL EXTENSION ", $extension, " : enable\n",)?
                "typedef ", $name, " T;\n",
                "DEVICE T axpy_of(T a, T x, T y) { return (T)(a * x + y); }\n"
            );

            fn random(random: &mut Random) -> Self {
                random.below(100) as $type
            }

            fn axpy(a: Self, x: Self, y: Self) -> Self {
                let axpy: fn(Self, Self, Self) -> Self = $axpy;
                axpy(a, x, y)
            }

            $(fn is_on(device: &Device) -> bool {
                device.info().api.0 != "opencl" || device.info().declares($extension)
            })?
        }
    )*};
}
numbers! {
    f32 as "float", |a, x, y| a * x + y;
    f64 as "double", |a, x, y| a * x + y, if "cl_khr_fp64";
    i32 as "int", |a, x, y| a.wrapping_mul(x).wrapping_add(y);
    u8 as "uchar", |a, x, y| a.wrapping_mul(x).wrapping_add(y);
}

impl Element for Complex32 {
    const TEXT: &'static str = "
typedef float2 T;
DEVICE T axpy_of(T a, T x, T y) {
    T sum = y;
    sum.x += a.x * x.x - a.y * x.y;
    sum.y += a.x * x.y + a.y * x.x;
    return sum;
}
";

    fn random(random: &mut Random) -> Self {
        Complex32::new(f32::random(random), f32::random(random))
    }

    fn axpy(a: Self, x: Self, y: Self) -> Self {
        a * x + y
    }
}

impl Element for Sample {
    const TEXT: &'static str = "
typedef struct { float at[2]; uint id; uchar flags[4]; } T;
DEVICE T axpy_of(T a, T x, T y) {
    y.at[0] += a.at[0] * x.at[0];
    y.at[1] += a.at[1] * x.at[1];
    y.id += a.id * x.id;
    y.flags[0] ^= a.flags[0] & x.flags[0];
    y.flags[1] ^= a.flags[1] & x.flags[1];
    y.flags[2] ^= a.flags[2] & x.flags[2];
    y.flags[3] ^= a.flags[3] & x.flags[3];
    return y;
}
";

    fn random(random: &mut Random) -> Self {
        let at = [f32::random(random), f32::random(random)];
        Sample { at, id: random.word(), flags: random.word().to_ne_bytes() }
    }

    fn axpy(a: Self, x: Self, y: Self) -> Self {
        Sample {
            at: [0, 1].map(|i| a.at[i] * x.at[i] + y.at[i]),
            id: a.id.wrapping_mul(x.id).wrapping_add(y.id),
            flags: [0, 1, 2, 3].map(|i| y.flags[i] ^ (a.flags[i] & x.flags[i])),
        }
    }
}

/// `kernel void axpy(global const T *x, global T *y, T a)`, one work-item per element.
pub fn axpy_source<T: Element>() -> Source {
    const KERNEL: &str = "
kernel void axpy(global const T *x, global T *y, T a) {
    size_t i = get_global_id(0);
    y[i] = axpy_of(a, x[i], y[i]);
}
";
    let with = |device: &str| [device, T::TEXT, KERNEL].concat();
    let source = two_texts(&with("#define DEVICE\n"), &with("#define DEVICE __device__\n"));
    source.with_native("axpy", |args| {
        let a = args.value::<T>(2)?;
        let (x, y) = args.pair::<T, T>(0, 1)?;
        y.iter_mut().zip(x).for_each(|(y, x)| *y = T::axpy(a, *x, *y));
        Ok(())
    })
}
