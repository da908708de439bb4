//! Logs allocations and returns.

use super::{AllocationRequest, Block, MemoryResource, PoolStatistics};
use onebuf_hal::Result;

/// Logs every take and give at debug level, with the requesting source location.
#[derive(Debug, Default)]
pub struct Log<S>(pub S);

impl<S: MemoryResource> MemoryResource for Log<S> {
    fn take(&self, request: &AllocationRequest<'_>) -> Result<Block> {
        let taken = self.0.take(request);
        let (bytes, place) = (request.bytes, request.place);
        match &taken {
            Ok(block) => {
                let (number, capacity) = (block.number, block.capacity());
                tracing::debug!(target: "onebuf::pool", number, bytes, capacity, %place, "pool: taken");
            }
            Err(error) => {
                tracing::debug!(target: "onebuf::pool", bytes, %place, %error, "pool: request failed")
            }
        }
        taken
    }

    fn give(&self, block: Block) {
        let (number, capacity) = (block.number, block.capacity());
        tracing::debug!(target: "onebuf::pool", number, capacity, "pool: given back");
        self.0.give(block);
    }

    fn trim(&self, keep_bytes: u64) -> u64 {
        let freed = self.0.trim(keep_bytes);
        tracing::debug!(target: "onebuf::pool", keep_bytes, freed, "pool: trimmed");
        freed
    }

    fn count(&self, statistics: &mut PoolStatistics) {
        self.0.count(statistics);
    }
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use super::{super::Fresh, *};
    use crate::Pool;
    use std::{
        fmt,
        sync::{Arc, Mutex},
    };
    use tracing::{Event, Metadata, Subscriber, field, span};

    /// Records every line.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<String>>>);

    impl Subscriber for Lines {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target().starts_with("onebuf::pool")
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut line = Line::default();
            event.record(&mut line);
            self.0.lock().unwrap().push(line.0);
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    #[derive(Default)]
    struct Line(String);

    impl field::Visit for Line {
        fn record_debug(&mut self, field: &field::Field, value: &dyn fmt::Debug) {
            self.0.push_str(&format!("{field}={value:?} "));
        }
    }

    #[test]
    fn every_take_and_give_is_told_with_its_place() {
        let lines = Lines::default();
        let place = tracing::subscriber::with_default(lines.clone(), || {
            let hub = crate::builder()
                .without(["opencl", "vulkan", "gl"])
                .verdicts(Default::default())
                .build()
                .unwrap();
            let pool = Pool::over(&hub, Log(Fresh::default()));
            let (buffer, line) = (pool.get(&hub.buffer::<u8>(100)).unwrap(), line!());
            drop(buffer);
            pool.get(&hub.buffer::<u8>(1 << 50)).unwrap_err();
            format!("log.rs:{line}")
        });
        let lines = lines.0.lock().unwrap();
        let told = ["pool: taken", "pool: given back", "pool: request failed", "pool: trimmed"];
        assert_eq!(lines.len(), told.len(), "{lines:?}");
        for (line, told) in lines.iter().zip(told) {
            assert!(line.contains(told), "{line}");
        }
        assert!(lines[0].contains(&place) && lines[0].contains("bytes=100"), "{}", lines[0]);
    }
}
