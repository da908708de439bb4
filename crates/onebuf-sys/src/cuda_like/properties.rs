//! The one property of HIP's devices that has no attribute.

use super::{CudaLike, Refused};
use std::ffi::c_void;

/// Room for either structure, the larger of which has 1472 bytes.
const ROOM_BYTES: usize = 4096;
/// The offset of the architecture's name, in ROCm 6's structure and in the older one.
const ARCHITECTURE_AT: [usize; 2] = [1160, 396];
const ARCHITECTURE_BYTES: usize = 256;

impl CudaLike {
    /// Returns the target of a HIP device, such as `gfx90a:sramecc+:xnack-`; `None` for other APIs and runtimes.
    ///
    /// # Errors
    /// The call's errors.
    pub fn architecture(&self, device: i32) -> Result<Option<String>, Refused> {
        let mut room = [0u64; ROOM_BYTES / 8];
        let to = room.as_mut_ptr().cast::<c_void>();
        let (asked, at) = if self.has_properties_0600() {
            // SAFETY: `room` is larger than the structure of this call.
            (unsafe { self.properties_0600(to, device) }, ARCHITECTURE_AT[0])
        } else if self.has_properties_old() {
            // SAFETY: as above; the call without a version suffix always fills the older structure.
            (unsafe { self.properties_old(to, device) }, ARCHITECTURE_AT[1])
        } else {
            return Ok(None);
        };
        asked?;
        let bytes: Vec<u8> = room.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let name = bytes[at..at + ARCHITECTURE_BYTES].split(|byte| *byte == 0).next();
        let name = name.and_then(|name| std::str::from_utf8(name).ok());
        Ok(name.filter(|name| name.starts_with("gfx")).map(str::to_owned))
    }
}
