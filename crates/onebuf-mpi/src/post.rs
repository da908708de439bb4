//! Records to and from one rank, in their order.
//!
//! # Safety
//! Each record has memory of its own, in a box, which lives as long as the actor that owns it. The engine keeps an actor until
//! its last transfer has ended.

#![allow(unsafe_code)]

use crate::{
    engine::{Io, Standing},
    layout::Layout,
    transport::{Address, Lane, Transfer, Way},
    wire::{RECORD, Record},
};
use onebuf_hal::Result;

/// Memory of one record, and the request that sends or receives it.
struct Cell {
    record: Box<[u8; RECORD]>,
    standing: Standing,
    busy: bool,
}

impl Cell {
    fn new(io: &mut Io<'_>, way: Way, peer: usize, tag: i32) -> Result<Self> {
        let mut record = Box::new([0; RECORD]);
        let (at, layout) = (Address::new(record.as_mut_ptr()), Layout::contiguous(RECORD));
        // SAFETY: the box lives as long as the cell, and the cell as long as its actor.
        let standing =
            unsafe { io.prepare(&Transfer { way, at, layout, peer, lane: Lane::Head, tag }) }?;
        Ok(Self { record, standing, busy: false })
    }

    fn start(&mut self, io: &mut Io<'_>, mark: u64) -> Result<()> {
        // SAFETY: as above; the cell is not busy.
        unsafe { io.start(mark, self.standing) }?;
        self.busy = true;
        Ok(())
    }
}

/// Sends records to a rank.
pub(crate) struct Outbox {
    peer: usize,
    tag: i32,
    /// Marks from here on belong to the cells.
    first_mark: u64,
    cells: Vec<Cell>,
}

impl Outbox {
    pub fn new(peer: usize, tag: i32, first_mark: u64) -> Self {
        Self { peer, tag, first_mark, cells: Vec::new() }
    }

    pub fn send(&mut self, io: &mut Io<'_>, record: &Record) -> Result<()> {
        let free = self.cells.iter().position(|cell| !cell.busy);
        let at = match free {
            Some(at) => at,
            None => {
                self.cells.push(Cell::new(io, Way::Send, self.peer, self.tag)?);
                self.cells.len() - 1
            }
        };
        *self.cells[at].record = record.encode();
        self.cells[at].start(io, self.first_mark + at as u64)
    }

    /// Notes that a record was sent; false for a mark of something else.
    pub fn ended(&mut self, mark: u64) -> bool {
        let at = mark.checked_sub(self.first_mark).and_then(|at| usize::try_from(at).ok());
        let Some(cell) = at.and_then(|at| self.cells.get_mut(at)) else { return false };
        cell.busy = false;
        true
    }

    pub fn is_idle(&self) -> bool {
        self.cells.iter().all(|cell| !cell.busy)
    }

    /// Frees the requests that are not under way.
    pub fn release(&mut self, io: &mut Io<'_>) {
        if self.is_idle() {
            self.cells.drain(..).for_each(|cell| io.release(cell.standing));
        }
    }
}

/// Receives records from a rank, one after another.
pub(crate) struct Inbox {
    peer: usize,
    tag: i32,
    mark: u64,
    cell: Option<Cell>,
}

impl Inbox {
    pub fn new(peer: usize, tag: i32, mark: u64) -> Self {
        Self { peer, tag, mark, cell: None }
    }

    /// Begins to receive the next record.
    pub fn start(&mut self, io: &mut Io<'_>) -> Result<()> {
        let cell = match self.cell.as_mut() {
            Some(cell) => cell,
            None => self.cell.insert(Cell::new(io, Way::Receive, self.peer, self.tag)?),
        };
        cell.start(io, self.mark)
    }

    /// The record that has come.
    pub fn take(&mut self) -> Result<Record> {
        let bytes = self.cell.as_mut().map_or([0; RECORD], |cell| {
            cell.busy = false;
            *cell.record
        });
        Record::decode(&bytes, self.peer)
    }

    /// Gives up the next record, if it has not come.
    pub fn cancel(&self, io: &mut Io<'_>) {
        if !self.is_idle() {
            io.cancel(self.mark);
        }
    }

    /// Notes that the receive was cancelled.
    pub fn cancelled(&mut self) {
        self.cell.iter_mut().for_each(|cell| cell.busy = false);
    }

    pub fn is_idle(&self) -> bool {
        self.cell.as_ref().is_none_or(|cell| !cell.busy)
    }

    /// Frees the request, if it is not under way.
    pub fn release(&mut self, io: &mut Io<'_>) {
        if let Some(cell) = self.cell.take_if(|cell| !cell.busy) {
            io.release(cell.standing);
        }
    }
}
