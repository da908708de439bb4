//! The element types that the libraries support.

use bytemuck::Pod;
use onebuf_core::{Complex32, Complex64};
use std::{
    fmt::Debug,
    ops::{AddAssign, Div, Mul, Neg, Sub, SubAssign},
};

/// BLAS's letters for the element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    S,
    D,
    C,
    Z,
}

/// An element type of matrices: `f32`, `f64`, [`Complex32`] or [`Complex64`].
pub trait Number: Pod + Debug + PartialEq + sealed::SealedNumber {}

/// An element type of transforms: [`Complex32`] or [`Complex64`].
pub trait Sample: Number + sealed::SealedSample {}

pub(super) mod sealed {
    use super::*;

    pub trait Arithmetic:
        Sized
        + Mul<Output = Self>
        + Sub<Output = Self>
        + Div<Output = Self>
        + Neg<Output = Self>
        + AddAssign
        + SubAssign
        + Send
        + Sync
    {
    }

    pub trait SealedNumber: Arithmetic {
        const KIND: Kind;
        const ZERO: Self;
        const ONE: Self;
        fn conjugate(self) -> Self;
        /// A cheap magnitude: the sum of the parts' absolute values, by which LAPACK chooses pivots.
        fn size(self) -> f64;
    }

    pub trait SealedSample {
        const IS_DOUBLE: bool;
    }
}

macro_rules! number {
    ($type:ty, $kind:ident, $zero:expr, $one:expr, $conjugate:expr, $size:expr) => {
        impl sealed::Arithmetic for $type {}
        impl sealed::SealedNumber for $type {
            const KIND: Kind = Kind::$kind;
            const ZERO: Self = $zero;
            const ONE: Self = $one;
            #[inline]
            fn conjugate(self) -> Self {
                let conjugate: fn(Self) -> Self = $conjugate;
                conjugate(self)
            }
            #[inline]
            fn size(self) -> f64 {
                let size: fn(Self) -> f64 = $size;
                size(self)
            }
        }
        impl Number for $type {}
    };
}

number!(f32, S, 0.0, 1.0, |x| x, |x| f64::from(x.abs()));
number!(f64, D, 0.0, 1.0, |x| x, |x| x.abs());
number!(Complex32, C, Self::ZERO, Self::ONE, |x| x.conj(), |x| {
    f64::from(x.re.abs()) + f64::from(x.im.abs())
});
number!(Complex64, Z, Self::ZERO, Self::ONE, |x| x.conj(), |x| x.re.abs() + x.im.abs());

macro_rules! sample {
    ($type:ty, $double:literal) => {
        impl sealed::SealedSample for $type {
            const IS_DOUBLE: bool = $double;
        }
        impl Sample for $type {}
    };
}

sample!(Complex32, false);
sample!(Complex64, true);
