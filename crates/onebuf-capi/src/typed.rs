//! Sources and sinks of typed elements, over the byte buffers of C.

use crate::fault::Fault;
use onebuf::{
    Error,
    bytemuck::{self, PodCastError},
    pipeline::{Filled, NpyElement, sink::Sink, source::FrameSource},
};
use std::marker::PhantomData;

/// Adapts a source or sink of `T` to bytes.
pub(crate) struct Typed<S, T> {
    inner: S,
    element: PhantomData<fn() -> T>,
}

impl<S, T> Typed<S, T> {
    pub fn new(inner: S) -> Self {
        Self { inner, element: PhantomData }
    }
}

fn no_elements<T: NpyElement>(bytes: usize, why: PodCastError) -> Error {
    Error::invalid(format!(
        "a frame of {bytes} bytes does not divide into {} elements: {why}",
        T::DESCR
    ))
}

impl<S: FrameSource<T>, T: NpyElement> FrameSource<u8> for Typed<S, T> {
    fn fill(&mut self, frame: &mut [u8]) -> onebuf::Result<Filled> {
        let bytes = frame.len();
        let elements = bytemuck::try_cast_slice_mut(frame);
        self.inner.fill(elements.map_err(|why| no_elements::<T>(bytes, why))?)
    }
}

impl<S: Sink<T>, T: NpyElement> Sink<u8> for Typed<S, T> {
    fn take(&mut self, frame: &[u8], number: u64) -> onebuf::Result<()> {
        let elements = bytemuck::try_cast_slice(frame);
        self.inner.take(elements.map_err(|why| no_elements::<T>(frame.len(), why))?, number)
    }
}

/// Runs code for the element type of that name.
macro_rules! with_element {
    ($descr:expr, $element:ident => $body:expr) => {
        $crate::typed::with_element!(
            $descr, $element => $body, u8, i8, u16, i16, u32, i32, u64, i64, onebuf::half::f16, f32, f64,
            onebuf::Complex32, onebuf::Complex64
        )
    };
    ($descr:expr, $element:ident => $body:expr, $($type:ty),*) => {
        match $descr {
            $(descr if descr == <$type as onebuf::pipeline::NpyElement>::DESCR => {
                type $element = $type;
                $body
            })*
            other => Err($crate::typed::unknown(other)),
        }
    };
}
pub(crate) use with_element;

#[cold]
pub(crate) fn unknown(descr: &str) -> Fault {
    Fault::invalid(format!(
        "`{descr}` is no element: |u1, |i1, <u2, <i2, <u4, <i4, <u8, <i8, <f2, <f4, <f8, <c8 and <c16 are"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Result;

    fn bytes_of(descr: &str) -> Result<usize> {
        with_element!(descr, Element => Ok(size_of::<Element>()))
    }

    #[test]
    fn elements_are_known_by_their_names() {
        assert_eq!(bytes_of("<c8").ok(), Some(8));
        assert_eq!(bytes_of("|u1").ok(), Some(1));
        assert!(bytes_of("f4").is_err_and(|why| why.to_string().contains("<f4")));
    }

    #[test]
    fn a_frame_is_whole_elements() {
        let mut seen = Vec::new();
        let mut sink = Typed::new(|frame: &[u32], _: u64| {
            seen.extend_from_slice(frame);
            Ok(())
        });
        let words = [1u32, 2, 3];
        let bytes: &[u8] = bytemuck::cast_slice(&words);
        sink.take(bytes, 0).unwrap();
        assert!(sink.take(&bytes[..7], 1).is_err_and(|why| why.to_string().contains("7 bytes")));
        assert!(sink.take(&bytes[1..5], 1).is_err(), "not aligned");
        assert_eq!(seen, words);
    }
}
