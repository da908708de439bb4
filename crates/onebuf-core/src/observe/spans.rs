//! Events as spans of the `tracing` crate.

use super::{Event, What};
use crate::Cause;
use tracing::{Span, field::Empty, span::EnteredSpan, trace_span};

/// Opens a span. Its fields are recorded at the end, because most are known only then.
pub(super) fn open(what: What) -> EnteredSpan {
    macro_rules! span {
        ($name:literal) => {
            trace_span!(
                target: "onebuf", $name, of = Empty, device = Empty, queue = Empty, from = Empty,
                bytes = Empty, route = Empty, sync = Empty, buffer = Empty, implied = Empty,
                frame = Empty, failed = Empty, why = Empty,
            )
        };
    }
    let span = match what {
        What::Launch => span!("launch"),
        What::HandOver => span!("hand_over"),
        What::Wait => span!("wait"),
        What::Copy => span!("copy"),
        What::Stage => span!("stage"),
        What::Graft => span!("graft"),
    };
    span.entered()
}

pub(super) fn record(span: &Span, event: &Event) {
    if span.is_disabled() {
        return;
    }
    span.record("of", event.name.as_str());
    span.record("device", event.device.get());
    span.record("queue", event.queue);
    span.record("from", event.from.map(|from| from.get()));
    span.record("bytes", event.bytes);
    span.record("route", event.route.map(tracing::field::display));
    span.record("sync", event.sync_method.map(tracing::field::display));
    span.record("buffer", event.buffer.as_deref());
    span.record("implied", event.cause.map(|cause| cause == Cause::Implied));
    span.record("frame", event.frame);
    span.record("failed", event.failed);
    span.record("why", event.why.as_deref());
}
