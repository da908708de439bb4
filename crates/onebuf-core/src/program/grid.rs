//! The work-items of a launch, and their groups.

use onebuf_hal::{self as hal, Error, Result};

/// Work-items in 1 to 3 dimensions: `[n]`, `[w, h]` or `[w, h, d]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid(pub(super) hal::Grid);

impl Grid {
    #[inline]
    fn new(dims: usize, global: [usize; 3]) -> Self {
        Self(hal::Grid { dims, global, local: None, offset: [0; 3] })
    }

    /// Sets the work-group's size. By default the driver chooses it.
    pub fn local<const D: usize>(mut self, sizes: [usize; D]) -> Self {
        let mut local = [1; 3];
        for (to, from) in local.iter_mut().zip(sizes) {
            *to = from;
        }
        // A wrong number of dimensions is caught by the check at the launch.
        self.0.local = Some(if D == self.0.dims { local } else { [0; 3] });
        self
    }

    /// Sets the index of the first work-item; the default is zero.
    pub fn offset<const D: usize>(mut self, first: [usize; D]) -> Self {
        let mut offset = [0; 3];
        for (to, from) in offset.iter_mut().zip(first) {
            *to = from;
        }
        // A wrong number of dimensions is caught by the check at the launch.
        self.0.offset = if D == self.0.dims { offset } else { [usize::MAX; 3] };
        self
    }

    /// Checks the sizes, and that there is an offset only if the kernel allows one.
    #[inline]
    pub(super) fn check(&self, kernel: &str, offsets: bool) -> Result<()> {
        match self.0.is_plain() && self.0.local.is_none() {
            true => Ok(()),
            false => self.check_all(kernel, offsets),
        }
    }

    #[inline(never)]
    fn check_all(&self, kernel: &str, offsets: bool) -> Result<()> {
        let hal::Grid { dims, global, local, offset } = self.0;
        if global[..dims].contains(&0) {
            return Err(Error::invalid(format!("kernel `{kernel}`: a global size of zero")));
        }
        let end = |(size, first): (&usize, usize)| size.checked_add(first);
        if global[..dims].iter().zip(offset).map(end).any(|end| end.is_none()) {
            return Err(Error::invalid(format!(
                "kernel `{kernel}`: an offset past the largest index, or of another number of dimensions than the grid"
            )));
        }
        if local.is_some_and(|local| local[..dims].contains(&0)) {
            return Err(Error::invalid(format!(
                "kernel `{kernel}`: a work-group size of zero, or of another number of dimensions than the grid"
            )));
        }
        if offset != [0; 3] && !offsets {
            return Err(Error::invalid(format!(
                "kernel `{kernel}` is launched with an offset: declare it with `Signature::offsets`"
            )));
        }
        Ok(())
    }
}

impl From<[usize; 1]> for Grid {
    #[inline]
    fn from([x]: [usize; 1]) -> Self {
        Self::new(1, [x, 1, 1])
    }
}

impl From<[usize; 2]> for Grid {
    #[inline]
    fn from([x, y]: [usize; 2]) -> Self {
        Self::new(2, [x, y, 1])
    }
}

impl From<[usize; 3]> for Grid {
    #[inline]
    fn from(sizes: [usize; 3]) -> Self {
        Self::new(3, sizes)
    }
}
