//! What changes in a buffer's life: who holds it, what must be waited for, where the contents are.

use super::{
    core::{HOME, Site},
    marks::Marks,
};
use crate::{
    hal::Rung,
    queue::{Line, Position},
    sync::Arc,
};

#[derive(Debug)]
pub(crate) struct State {
    pub marks: Marks,
    pub writes: Vec<Position>,
    pub reads: Vec<Position>,
    /// By group: whether it holds the newest contents, and which site wrote them last.
    pub groups: Vec<Group>,
    /// By site: the queue that used it last; its residency changes go there.
    pub lines: Vec<Option<Arc<Line>>>,
    pub rung: Rung,
    /// A wait for this buffer's work ran out of time: its memory must not be freed.
    pub quarantined: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub current: bool,
    pub writer: Option<usize>,
}

impl State {
    pub fn new(sites: &[Site]) -> Self {
        let groups = sites.iter().map(|s| s.group).max().unwrap_or(0) + 1;
        let group = |g| Group { current: g == HOME, writer: None };
        Self {
            marks: Marks::default(),
            writes: Vec::new(),
            reads: Vec::new(),
            groups: (0..groups).map(group).collect(),
            lines: vec![None; sites.len()],
            rung: Rung::SameQueue,
            quarantined: false,
        }
    }

    /// The newest point of each queue is enough: queues run in order.
    pub fn note_read(&mut self, position: Position) {
        match self.reads.iter_mut().find(|p| p.same_line(&position)) {
            Some(older) => *older = position,
            None => self.reads.push(position),
        }
    }

    /// What `position` waited for is behind it.
    pub fn note_write(&mut self, position: Position) {
        self.reads.clear();
        self.writes.clear();
        self.writes.push(position);
    }

    /// A residency change waited for earlier writes, but readers elsewhere may still run.
    pub fn note_change(&mut self, position: Position) {
        self.writes.retain(|p| !p.same_line(&position));
        self.writes.push(position);
    }

    /// Work that failed is over; the buffer's contents are whatever it left.
    pub fn forget_failed(&mut self) {
        self.writes.retain(|p| !p.is_over());
        self.reads.retain(|p| !p.is_over());
        // What is left may be running: only the question about it failed.
        self.quarantined |= !(self.writes.is_empty() && self.reads.is_empty());
    }

    /// The memory must outlive this buffer: somebody may still use it.
    pub fn quarantine(&mut self) {
        self.quarantined = true;
    }
}
