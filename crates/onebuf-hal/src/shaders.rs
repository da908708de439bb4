//! Helpers for backends whose kernels are shaders: mapping arguments to bindings, and dividing work into groups.
//!
//! A buffer is the storage block whose binding is the argument's index. All values together form one uniform block in the
//! `std140` layout, whose binding is the index of the first value.

use crate::{Arg, Error, Grid, Result};

/// The values of a launch as the contents of their uniform block.
#[derive(Debug, PartialEq, Eq)]
pub struct Values {
    /// The block's binding.
    pub binding: u32,
    /// The contents, a multiple of 16 bytes as uniform blocks require.
    pub bytes: Vec<u8>,
}

impl Values {
    /// Packs the values of a launch; `None` if there are none. Each value is aligned to its size rounded up to a power of two,
    /// at most 16, like scalars and vectors in a shader.
    pub fn of(args: &[Arg<'_>]) -> Result<Option<Self>> {
        let mut packed: Option<Self> = None;
        for (index, arg) in args.iter().enumerate() {
            match arg {
                Arg::Memory(..) => {}
                Arg::Bytes(value) => {
                    let new = || Self { binding: index as u32, bytes: Vec::new() };
                    packed.get_or_insert_with(new).push(value);
                }
                Arg::Local(_) => return Err(no_local(index)),
            }
        }
        if let Some(values) = &mut packed {
            values.bytes.resize(values.bytes.len().next_multiple_of(16), 0);
        }
        Ok(packed)
    }

    fn push(&mut self, value: &[u8]) {
        let align = value.len().next_power_of_two().min(16);
        self.bytes.resize(self.bytes.len().next_multiple_of(align), 0);
        self.bytes.extend(value);
    }
}

fn no_local(index: usize) -> Error {
    Error::unsupported(
        format!("group-local memory as argument {index} of a shader"),
        "a `shared` array in the shader itself",
    )
}

/// The number of groups in a launch, in groups of the size that the shader declares.
pub fn groups(grid: &Grid, size: [usize; 3], most: [usize; 3]) -> Result<[u32; 3]> {
    if grid.offset != [0; 3] {
        return Err(Error::unsupported(
            "a shader's launch with an offset",
            "the offset as a value",
        ));
    }
    if let Some(local) = grid.local.filter(|local| *local != size) {
        return Err(Error::invalid(format!(
            "group size {local:?}, but the shader declares {size:?}: omit the group size"
        )));
    }
    let mut groups = [0; 3];
    for (d, n) in groups.iter_mut().enumerate() {
        *n = count(grid.global[d], size[d].max(1), most[d]).map_err(|why| {
            Error::invalid(format!("{} work-items in dimension {d}: {why}", grid.global[d]))
        })?;
    }
    Ok(groups)
}

fn count(items: usize, size: usize, most: usize) -> Result<u32, String> {
    if !items.is_multiple_of(size) {
        return Err(format!("the shader's groups of {size} do not divide them"));
    }
    let groups = items / size;
    if groups > most {
        return Err(format!("{groups} groups of {size}, and the device takes {most} at once"));
    }
    Ok(groups as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_lie_as_a_uniform_block_has_them() {
        let (word, pair, triple, double) = ([1; 4], [2; 8], [3; 12], [4; 8]);
        let of = |args: &[Arg<'_>]| Values::of(args).unwrap();
        assert_eq!(of(&[]), None);
        let values = [Arg::Bytes(&word), Arg::Bytes(&pair), Arg::Bytes(&triple), Arg::Bytes(&word)];
        let Values { binding, bytes } = of(&values).unwrap();
        assert_eq!((binding, bytes.len()), (0, 32));
        assert_eq!(
            [&bytes[..4], &bytes[8..16], &bytes[16..28], &bytes[28..]],
            [&word[..], &pair, &triple, &word]
        );
        assert_eq!(bytes[4..8], [0; 4]);
        assert_eq!(of(&[Arg::Bytes(&word), Arg::Bytes(&double)]).unwrap().bytes.len(), 16);
        let refused = Values::of(&[Arg::Bytes(&word), Arg::Local(64)]).unwrap_err();
        assert!(refused.to_string().contains("argument 1"), "{refused}");
    }

    #[test]
    fn groups_are_the_shaders_own() {
        let grid = |global, local, offset| Grid { dims: 3, global, local, offset };
        let most = [4, 4, 4];
        let plain = grid([128, 2, 1], None, [0; 3]);
        assert_eq!(groups(&plain, [64, 1, 1], most), Ok([2, 2, 1]));
        assert_eq!(
            groups(&Grid { local: Some([64, 1, 1]), ..plain }, [64, 1, 1], most),
            Ok([2, 2, 1])
        );
        for (wrong, says) in [
            (grid([100, 1, 1], None, [0; 3]), "100 work-items in dimension 0"),
            (grid([64, 5, 1], None, [0; 3]), "takes 4 at once"),
            (grid([64, 1, 1], Some([32, 1, 1]), [0; 3]), "[32, 1, 1]"),
            (grid([64, 1, 1], None, [1, 0, 0]), "offset"),
        ] {
            let refused = groups(&wrong, [64, 1, 1], most).unwrap_err();
            assert!(refused.to_string().contains(says), "{refused}");
        }
    }
}
