//! Events side by side: of two in one lane, one lies inside of the other or they do not meet.
//!
//! Viewers draw a thread's events as a stack. Several threads use one queue, and what they do at the same time would not
//! be one.

use super::Event;
use std::time::Duration;

/// For each event the number of its lane. They are in the order of their starts, the longer one first.
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
