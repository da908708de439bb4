//! What Vulkan's validation layers report. wgpu loads them in builds with debug assertions, and logs what they say.

use std::sync::{Mutex, PoisonError};

/// What is no mistake of ours: layers of 2023 do not know the number of wgpu's shading language, and lose track of semaphores that
/// the host signals, which they call a bug of theirs.
const KNOWN: [&str; 2] =
    ["Invalid source language operand: 10", "This is most likely a validation bug"];

struct Layers(Mutex<Vec<String>>);

static LAYERS: Layers = Layers(Mutex::new(Vec::new()));

impl log::Log for Layers {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let text = record.args().to_string();
        let known = KNOWN.iter().any(|known| text.contains(known));
        if text.starts_with("VALIDATION") && !known {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        }
    }

    fn flush(&self) {}
}

/// Listens from now on, and forgets what was told.
pub fn listen() {
    if log::set_logger(&LAYERS).is_ok() {
        log::set_max_level(log::LevelFilter::Warn);
    }
    told();
}

/// What was told since the last call.
pub fn told() -> Vec<String> {
    std::mem::take(&mut LAYERS.0.lock().unwrap_or_else(PoisonError::into_inner))
}
