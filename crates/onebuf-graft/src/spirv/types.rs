//! Types of parameters, and the value sizes that the runtime computes for them.

use std::collections::{HashMap, HashSet};

mod op {
    pub const INT: u32 = 21;
    pub const FLOAT: u32 = 22;
    pub const VECTOR: u32 = 23;
    pub const IMAGE: u32 = 25;
    pub const SAMPLER: u32 = 26;
    pub const ARRAY: u32 = 28;
    pub const STRUCT: u32 = 30;
    pub const POINTER: u32 = 32;
    pub const PIPE: u32 = 38;
}
/// Maximum nesting of types.
const DEEPEST: usize = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Number {
        bytes: usize,
        is_float: bool,
    },
    Vector(u32, usize),
    /// The element type, and the id of the length.
    Array(u32, u32),
    Struct(Vec<u32>),
    /// The storage class, and the type pointed to.
    Pointer(u32, u32),
    /// A type that is not a value in HIP.
    Other(&'static str),
}

/// Size and alignment in bytes.
type Layout = (usize, usize);

/// Layouts computed so far, for all parameters of all kernels of a module.
#[derive(Debug, Default)]
pub(super) struct Sizes(HashMap<u32, Layout>);

#[derive(Debug, Default)]
pub(super) struct Types {
    known: HashMap<u32, Type>,
    lengths: HashMap<u32, usize>,
    packed: HashSet<u32>,
}

impl Types {
    /// Records a type.
    pub fn note(&mut self, code: u32, operands: &[u32]) {
        let (id, kind) = match (code, operands) {
            (op::INT | op::FLOAT, [id, bits, ..]) => {
                (id, Type::Number { bytes: *bits as usize / 8, is_float: code == op::FLOAT })
            }
            (op::VECTOR, [id, of, count]) => (id, Type::Vector(*of, *count as usize)),
            (op::ARRAY, [id, of, count]) => (id, Type::Array(*of, *count)),
            (op::STRUCT, [id, members @ ..]) => (id, Type::Struct(members.to_vec())),
            (op::POINTER, [id, storage, to]) => (id, Type::Pointer(*storage, *to)),
            (op::IMAGE, [id, ..]) => (id, Type::Other("an image")),
            (op::SAMPLER, [id, ..]) => (id, Type::Other("a sampler")),
            (op::PIPE, [id, ..]) => (id, Type::Other("a pipe")),
            _ => return,
        };
        self.known.insert(*id, kind);
    }

    /// Records a constant that may be an array's length.
    pub fn constant(&mut self, id: u32, value: u32, rest: &[u32]) {
        if rest.iter().all(|word| *word == 0) {
            self.lengths.insert(id, value as usize);
        }
    }

    /// Records a packed structure.
    pub fn pack(&mut self, id: u32) {
        self.packed.insert(id);
    }

    pub fn get(&self, id: u32) -> &Type {
        self.known.get(&id).unwrap_or(&Type::Other("of an unknown type"))
    }

    /// Returns the size of a value if the runtime computes the same.
    pub fn value_bytes(&self, id: u32, sizes: &mut Sizes) -> Result<usize, String> {
        match self.layout(id, 0, sizes)? {
            (0, _) => Err("a value of no bytes".into()),
            (bytes, _) => Ok(bytes),
        }
    }

    /// Returns the layout of a type. Each type is computed once, however many other types and parameters use it.
    fn layout(&self, id: u32, depth: usize, sizes: &mut Sizes) -> Result<Layout, String> {
        if let Some(layout) = sizes.0.get(&id) {
            return Ok(*layout);
        }
        let layout = self.lay_out(id, depth, sizes)?;
        sizes.0.insert(id, layout);
        Ok(layout)
    }

    fn lay_out(&self, id: u32, depth: usize, sizes: &mut Sizes) -> Result<Layout, String> {
        let wrong = |why: &str| Err(format!("{why}, whose size the runtime computes wrongly"));
        match self.get(id) {
            _ if depth > DEEPEST => Err("types in types without an end".into()),
            Type::Number { bytes, .. } => Ok((*bytes, *bytes)),
            Type::Vector(_, 3) => wrong("a vector of 3"),
            Type::Vector(of, count) => {
                let bytes = times(self.layout(*of, depth + 1, sizes)?.0, *count)?;
                Ok((bytes, bytes))
            }
            Type::Array(of, count) => {
                let (bytes, align) = self.layout(*of, depth + 1, sizes)?;
                let count = self.lengths.get(count).ok_or("an array of unknown length")?;
                Ok((times(bytes, *count)?, align))
            }
            Type::Struct(_) if self.packed.contains(&id) => wrong("a packed structure"),
            Type::Struct(members) => match self.members(members, depth + 1, sizes)? {
                (bytes, align) if !bytes.is_multiple_of(align) => {
                    wrong("a structure with padding at its end")
                }
                layout => Ok(layout),
            },
            Type::Pointer(..) => Err("a pointer in a value".into()),
            Type::Other(what) => Err((*what).into()),
        }
    }

    fn members(&self, members: &[u32], depth: usize, sizes: &mut Sizes) -> Result<Layout, String> {
        let mut whole = (0usize, 1usize);
        for member in members {
            let (bytes, align) = self.layout(*member, depth, sizes)?;
            let start = whole.0.checked_next_multiple_of(align.max(1)).ok_or_else(too_large)?;
            whole = (start.checked_add(bytes).ok_or_else(too_large)?, whole.1.max(align));
        }
        Ok(whole)
    }
}

fn times(bytes: usize, count: usize) -> Result<usize, String> {
    bytes.checked_mul(count).ok_or_else(too_large)
}

fn too_large() -> String {
    "a value larger than memory".into()
}
