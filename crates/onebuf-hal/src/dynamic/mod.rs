//! The object-safe traits, for every backend that implements the typed ones.
//!
//! Arguments are checked here and nowhere else: whether an object belongs to this backend and device, whether a range lies
//! inside its memory, whether a transfer is empty, and how a region or a kernel may access memory. Each object is downcast
//! once, by `typed/own.rs`. The implementations are generic over all backends' types, so objects have no wrapper and no additional allocation.

mod device;
mod memory;
mod queue;
