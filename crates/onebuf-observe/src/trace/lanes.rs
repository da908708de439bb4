//! Lanes for concurrent events: two events in one lane are nested or disjoint.
//!
//! Viewers draw a thread's events as a stack. Several threads may use one queue at the same time, and their events would not
//! nest.

use super::Event;
use std::time::Duration;

/// The lane of each event. The events must be sorted by start, the longer one first.
pub(super) fn assign(events: &[&Event]) -> Vec<usize> {
    let mut lanes: Vec<Vec<Duration>> = Vec::new();
    events.iter().map(|event| place(&mut lanes, event)).collect()
}

fn place(lanes: &mut Vec<Vec<Duration>>, event: &Event) -> usize {
    for (number, open) in lanes.iter_mut().enumerate() {
        while open.last().is_some_and(|end| *end <= event.start) {
            open.pop();
        }
        if open.last().is_none_or(|end| event.end <= *end) {
            open.push(event.end);
            return number;
        }
    }
    lanes.push(vec![event.end]);
    lanes.len() - 1
}
