//! The types of kernel parameters.

use bytemuck::Pod;
use onebuf_hal::Access;
use std::{any::TypeId, fmt};

/// One declared parameter.
#[derive(Clone, Copy)]
pub(super) enum Param {
    Buffer { element: Element, access: Access },
    Value(Element),
    Local(Element),
}

impl fmt::Display for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Param::Buffer { element, access } => write!(f, "a {access} view of {element:?}"),
            Param::Value(element) => {
                write!(f, "a value of type {element:?} ({} bytes)", element.bytes())
            }
            Param::Local(element) => write!(f, "local memory of {element:?}"),
        }
    }
}

/// An element type at run time. Small, since every argument of every launch has one.
#[derive(Clone, Copy)]
pub(crate) struct Element {
    id: TypeId,
    /// The type's name and size, computed on demand.
    facts: fn() -> (&'static str, usize),
    /// The size, if the type is unknown.
    unsized_bytes: usize,
}

impl Element {
    #[inline]
    pub(crate) fn of<T: Pod>() -> Self {
        let facts = || (std::any::type_name::<T>(), size_of::<T>());
        Self { id: TypeId::of::<T>(), facts, unsized_bytes: 0 }
    }

    /// A value of `bytes` bytes whose type is unknown here.
    pub(crate) fn of_bytes(bytes: usize) -> Self {
        Self { id: TypeId::of::<[u8]>(), facts: || ("[u8]", 0), unsized_bytes: bytes }
    }

    pub(super) fn id(&self) -> TypeId {
        self.id
    }

    pub fn bytes(&self) -> usize {
        self.unsized_bytes + (self.facts)().1
    }
}

/// Compares ids only; the launch path compares every argument.
impl PartialEq for Element {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id && self.unsized_bytes == other.unsized_bytes
    }
}

impl fmt::Debug for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str((self.facts)().0)
    }
}
