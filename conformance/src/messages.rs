//! What onebuf logs, for tests: one subscriber, whose messages a function receives.

use std::fmt;
use tracing::{
    Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// Calls the function with each message of this level or a more severe one, in the whole process. Only the first call counts.
pub fn on_message(level: Level, call: fn(&str)) {
    let _ = tracing::subscriber::set_global_default(Messages { level, call });
}

struct Messages {
    level: Level,
    call: fn(&str),
}

struct Message(fn(&str));

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            (self.0)(&format!("{value:?}"));
        }
    }
}

impl Subscriber for Messages {
    fn enabled(&self, of: &Metadata<'_>) -> bool {
        *of.level() <= self.level
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut Message(self.call));
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}
