//! Shapes, strides and slices.

use crate::error::{Fault, Result};
use pyo3::{
    prelude::*,
    types::{PyEllipsis, PySlice, PyTuple},
};

/// Where the elements of an array lie in a buffer. Strides are in bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layout {
    pub offset: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<isize>,
    pub item: usize,
}

impl Layout {
    /// A whole buffer in C order.
    pub fn dense(shape: Vec<usize>, item: usize) -> Result<Self> {
        let mut strides = vec![0; shape.len()];
        let mut bytes = item;
        for (stride, size) in strides.iter_mut().zip(&shape).rev() {
            *stride = isize::try_from(bytes).map_err(|_| too_large(&shape))?;
            bytes = bytes.checked_mul(*size).ok_or_else(|| too_large(&shape))?;
        }
        if bytes == 0 {
            return Err(Fault::invalid(format!("a buffer of shape {shape:?}: it has no element")));
        }
        isize::try_from(bytes).map_err(|_| too_large(&shape))?;
        Ok(Self { offset: 0, shape, strides, item })
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of all elements.
    pub fn bytes(&self) -> usize {
        self.len() * self.item
    }

    /// Whether the elements lie one after another in C order.
    pub fn is_dense(&self) -> bool {
        let mut expected = self.item as isize;
        self.shape.iter().zip(&self.strides).rev().all(|(size, stride)| {
            let fits = *size <= 1 || *stride == expected;
            expected *= *size as isize;
            fits
        })
    }

    /// The first byte that an element uses, and the byte after the last one.
    pub fn span(&self) -> std::ops::Range<usize> {
        let (mut first, mut last) = (self.offset as isize, self.offset as isize);
        for (size, stride) in self.shape.iter().zip(&self.strides) {
            let reach = (*size as isize - 1) * stride;
            if reach < 0 { first += reach } else { last += reach }
        }
        first as usize..last as usize + self.item
    }

    /// Strides in elements, if they are whole.
    pub fn element_strides(&self) -> Vec<i64> {
        self.strides.iter().map(|stride| (*stride / self.item as isize) as i64).collect()
    }

    /// The part that an index selects: integers, slices and an ellipsis.
    pub fn index(&self, key: &Bound<'_, PyAny>) -> Result<Self> {
        let keys: Vec<Bound<'_, PyAny>> = match key.cast::<PyTuple>() {
            Ok(tuple) => tuple.iter().collect(),
            Err(_) => vec![key.clone()],
        };
        let is_ellipsis = |key: &Bound<'_, PyAny>| key.is_instance_of::<PyEllipsis>();
        let named = keys.iter().filter(|key| !is_ellipsis(key)).count();
        if keys.len() - named > 1 || named > self.shape.len() {
            let (have, dims) = (keys.len(), self.shape.len());
            return Err(Fault::invalid(format!("{have} indices for {dims} dimensions")));
        }
        let mut part = Self { shape: Vec::new(), strides: Vec::new(), ..*self };
        let mut dim = 0;
        for key in &keys {
            if is_ellipsis(key) {
                let skipped = self.shape.len() - named;
                (0..skipped).for_each(|at| part.keep(self.shape[dim + at], self.strides[dim + at]));
                dim += skipped;
                continue;
            }
            part.select(key, self.shape[dim], self.strides[dim])?;
            dim += 1;
        }
        (dim..self.shape.len()).for_each(|at| part.keep(self.shape[at], self.strides[at]));
        if part.len() == 0 {
            return Err(Fault::invalid("the slice has no element"));
        }
        Ok(part)
    }

    fn keep(&mut self, size: usize, stride: isize) {
        self.shape.push(size);
        self.strides.push(stride);
    }

    /// Applies the index of one dimension.
    fn select(&mut self, key: &Bound<'_, PyAny>, size: usize, stride: isize) -> Result<()> {
        if let Ok(slice) = key.cast::<PySlice>() {
            let found = slice.indices(size as isize)?;
            self.offset = (self.offset as isize + found.start * stride) as usize;
            self.keep(found.slicelength, found.step * stride);
            // An empty slice may begin at the end: it is refused by the caller, before anything uses the offset.
            return Ok(());
        }
        let given: isize = key.extract().map_err(|_| {
            Fault::invalid("an index is an integer, a slice or `...`; other selections copy: read the buffer first")
        })?;
        let at = if given < 0 { given + size as isize } else { given };
        if at < 0 || at >= size as isize {
            let what = format!("index {given} is out of bounds for a dimension of {size}");
            return Err(pyo3::exceptions::PyIndexError::new_err(what).into());
        }
        self.offset = (self.offset as isize + at * stride) as usize;
        Ok(())
    }

    /// The dimensions in reverse order.
    pub fn transposed(&self) -> Self {
        let mut turned = self.clone();
        turned.shape.reverse();
        turned.strides.reverse();
        turned
    }

    /// The same elements in another shape.
    pub fn reshape(&self, shape: Vec<usize>) -> Result<Self> {
        if !self.is_dense() {
            return Err(Fault::invalid(
                "a buffer that is not contiguous cannot be reshaped without a copy",
            ));
        }
        let made = Self { offset: self.offset, ..Self::dense(shape, self.item)? };
        if made.len() != self.len() {
            let (have, want) = (self.len(), &made.shape);
            return Err(Fault::invalid(format!("{have} elements do not have the shape {want:?}")));
        }
        Ok(made)
    }
}

fn too_large(shape: &[usize]) -> Fault {
    Fault::invalid(format!("a buffer of shape {shape:?} is larger than any memory"))
}

/// A shape as Python states it: an integer, or a sequence of integers.
pub(crate) fn shape(given: &Bound<'_, PyAny>) -> Result<Vec<usize>> {
    if let Ok(one) = given.extract::<usize>() {
        return Ok(vec![one]);
    }
    given.extract::<Vec<usize>>().map_err(|_| {
        Fault::invalid("a shape is an integer, or a tuple of integers that are not negative")
    })
}

/// A shape in which one size may be -1: what is left of so many elements.
pub(crate) fn open_shape(given: &Bound<'_, PyAny>, elements: usize) -> Result<Vec<usize>> {
    let sizes = match given.extract::<isize>() {
        Ok(one) => vec![one],
        Err(_) => given.extract::<Vec<isize>>().unwrap_or_default(),
    };
    if sizes.iter().filter(|size| **size == -1).count() != 1 {
        return shape(given);
    }
    let known: usize =
        sizes.iter().filter(|size| **size != -1).map(|size| size.unsigned_abs()).product();
    let rest = elements.checked_div(known).unwrap_or(0) as isize;
    let size = |size: isize| usize::try_from(if size == -1 { rest } else { size });
    sizes.into_iter().map(|one| size(one).map_err(|_| Fault::invalid("a negative size"))).collect()
}
