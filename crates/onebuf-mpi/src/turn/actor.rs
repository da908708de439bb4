//! A corner turn on the communication thread.
//!
//! Each frame has a record for every other rank, and the blocks that belong to it. A rank is at most as many frames ahead as it
//! has slots, because a frame is turned only when all ranks have sent their blocks of it; so nothing else limits the senders.
//!
//! # Safety
//! The owner keeps the memory of a frame until the frame is reported as turned, or, after a failure, until nothing is under way;
//! otherwise forever.

#![allow(unsafe_code)]

mod agreement;
mod state;

use super::{
    division::Shape,
    log::{Exchange, TurnLog},
};
use crate::{
    board::Board,
    ending::{Fate, burst, tell, tell_now},
    engine::{Actor, Io, Standing},
    layout::Layout,
    post::{Inbox, Outbox},
    ranks::Ranks,
    transport::{Address, Lane, Outcome, Transfer, Way},
    wire::{Kind, Record},
    world::World,
};
use onebuf_hal::{
    Error, Result,
    locks::{Mutex, lock},
};
use state::{Begun, Turning, Wanted};
use std::{
    collections::VecDeque,
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

/// The tags of turns follow those of streams.
const FIRST_TAG: i32 = 24_576;

/// The way to another rank.
struct Partner {
    rank: usize,
    out: Outbox,
    inbox: Inbox,
    agreed: bool,
    /// Records of frames that came before this rank began them.
    early: VecDeque<u64>,
    /// Frames that it has announced.
    announced: u64,
    said: bool,
    heard: bool,
    /// Nothing of it is under way any more that will not be received.
    levelled: bool,
}

struct TurnWires {
    begun: bool,
    partners: Vec<Partner>,
    /// By slot: the addresses, and the requests of each partner.
    standing: Vec<Option<SlotRequests>>,
    /// Frames that were begun.
    started: u64,
    /// Memory for blocks that are not wanted, and how many of them are under way.
    discarded: Vec<Vec<u8>>,
    discarding: usize,
}

/// The requests of one slot.
struct SlotRequests {
    from: Address,
    into: Address,
    /// The partner's place in the list, and the request.
    all: Vec<(usize, Standing)>,
}

pub(super) struct TurnActor {
    pub board: Board<Turning>,
    wires: Mutex<TurnWires>,
    shape: Shape,
    number: u32,
    run: u64,
    timeout: Duration,
    ranks: Arc<Ranks>,
    log: Option<TurnLog>,
}

/// Marks: the record that comes from each partner, the blocks of slots, and the records that go.
const BLOCKS: u64 = 1 << 24;
const GO: u64 = 1 << 48;
const GO_EACH: u64 = 1 << 16;
const DISCARDED: u64 = u64::MAX;

/// The mark of a slot's message.
fn block_mark(slot: usize, index: usize) -> u64 {
    BLOCKS + ((slot as u64) << 24) + index as u64
}

impl TurnActor {
    pub fn new(
        shape: Shape,
        number: u32,
        run: u64,
        slots: usize,
        timeout: Duration,
        world: &World,
    ) -> Self {
        let turning = Turning {
            wanted: VecDeque::new(),
            begun: VecDeque::new(),
            reported: 0,
            end: None,
            fate: Fate::default(),
            burst: burst(slots, shape.received()),
            blamed: None,
            heard: Instant::now(),
        };
        let tag = FIRST_TAG + number as i32;
        let partner = |(at, rank): (usize, usize)| Partner {
            rank,
            out: Outbox::new(rank, tag, GO + at as u64 * GO_EACH),
            inbox: Inbox::new(rank, tag, at as u64),
            agreed: false,
            early: VecDeque::new(),
            announced: 0,
            said: false,
            heard: false,
            levelled: false,
        };
        let others = (0..world.size()).filter(|&rank| rank != world.rank());
        let wires = TurnWires {
            begun: false,
            partners: others.enumerate().map(partner).collect(),
            standing: (0..slots).map(|_| None).collect(),
            started: 0,
            discarded: Vec::new(),
            discarding: 0,
        };
        Self {
            board: Board::new(turning),
            wires: Mutex::new(wires),
            shape,
            number,
            run,
            timeout,
            ranks: world.ranks(),
            log: None,
        }
    }

    /// Records exchanges in this log.
    pub fn recorded(self, log: Option<TurnLog>) -> Self {
        Self { log, ..self }
    }

    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The bytes that other ranks send for a frame.
    pub fn received_bytes(&self) -> usize {
        self.shape.received()
    }

    /// Queues a frame. The engine must be woken afterwards.
    ///
    /// # Safety
    /// The memory of both is valid, and that of the output has no other user, until the frame is reported: see the module.
    pub unsafe fn turn(&self, slot: usize, number: u64, from: Address, into: Address) {
        let mut turning = self.board.lock();
        if turning.begun.is_empty() && turning.wanted.is_empty() {
            turning.heard = Instant::now();
        }
        if !turning.fate.over {
            turning.fate.busy += 1;
            turning.wanted.push_back(Wanted { slot, number, from, into });
        }
    }

    /// Whether the oldest frame is turned. It is not reported again.
    ///
    /// # Errors
    /// Why the turn has failed; [`Error::Timeout`] with the ranks that are late.
    pub fn poll(&self) -> Result<bool> {
        let mut turning = self.board.lock();
        if turning.begun.front().is_some_and(Begun::is_done)
            && let Some(begun) = turning.begun.pop_front()
        {
            turning.reported += 1;
            drop(turning);
            self.log(&begun);
            return Ok(true);
        }
        if let Some(error) = &turning.fate.error {
            return Err(error.clone());
        }
        if turning.heard.elapsed() < self.timeout {
            return Ok(false);
        }
        let begun = turning.begun.front();
        let late = begun.map(|begun| self.late_of(begun));
        match late {
            Some((number, late)) => {
                turning.blamed = late.first().copied();
                Err(self.late(&format!("frame {number}"), &late))
            }
            None if turning.wanted.is_empty() => Ok(false),
            None => {
                drop(turning);
                Err(self.late_ranks("the beginning", |partner| !partner.agreed))
            }
        }
    }

    /// Records when the exchange of a frame with each rank ended.
    fn log(&self, begun: &Begun) {
        let Some(log) = &self.log else { return };
        let others = begun.ended.iter().enumerate().filter(|(rank, _)| *rank != self.shape.rank);
        log.note(others.map(|(peer, &ended)| Exchange {
            frame: begun.number,
            peer,
            received_bytes: self.bytes_of(peer) as u64,
            began: begun.since,
            ended,
        }));
    }

    /// The bytes that a rank sends for a frame.
    fn bytes_of(&self, peer: usize) -> usize {
        let columns = self.shape.frequencies.part(self.shape.rank).len();
        self.shape.channels.part(peer).len() * columns * self.shape.element
    }

    /// Whether this or another rank has waited for one in vain.
    pub fn has_waited_in_vain(&self) -> bool {
        self.board.lock().blamed.is_some()
    }

    /// Ends the turn, in order or not. The engine must be woken afterwards.
    pub fn end(&self, orderly: bool) {
        self.board.lock().end.get_or_insert(orderly);
    }

    /// Describes this rank to all others.
    fn introduce(&self, wires: &mut TurnWires, io: &mut Io<'_>) -> Result<()> {
        if wires.begun {
            return Ok(());
        }
        wires.begun = true;
        for partner in &mut wires.partners {
            partner.inbox.start(io)?;
            partner.out.send(io, &self.open())?;
        }
        Ok(())
    }

    /// Begins the frames that the owner wants, once all ranks agree.
    fn begin_frames(&self, wires: &mut TurnWires, io: &mut Io<'_>) -> Result<()> {
        while wires.partners.iter().all(|partner| partner.agreed && !partner.said) {
            let Some(wanted) = self.board.lock().wanted.pop_front() else { return Ok(()) };
            let (many, since) = (self.ranks.all.len(), Instant::now());
            let mut begun = Begun {
                number: wanted.number,
                slot: wanted.slot,
                open: vec![0; many],
                announced: vec![false; many],
                ended: self.log.as_ref().map(|_| vec![since; many]).unwrap_or_default(),
                since,
            };
            begun.announced[self.shape.rank] = true;
            let outcome = self.begin_frame(wires, io, wanted, &mut begun);
            // The owner sees the frame only now: until all of its messages are counted it would seem to be done.
            let mut turning = self.board.lock();
            turning.begun.push_back(begun);
            turning.settle();
            drop(turning);
            outcome?;
        }
        Ok(())
    }

    fn begin_frame(
        &self,
        wires: &mut TurnWires,
        io: &mut Io<'_>,
        wanted: Wanted,
        begun: &mut Begun,
    ) -> Result<()> {
        self.prepare(wires, io, wanted)?;
        let words = [wanted.number, 0, 0];
        let record = Record { number: wires.started, words, ..self.record(Kind::Frame) };
        wires.started += 1;
        let mut outcome = Ok(());
        for at in 0..wires.partners.len() {
            let partner = &mut wires.partners[at];
            let rank = partner.rank;
            if let Some(number) = partner.early.pop_front() {
                outcome = outcome.and(self.check_frame(rank, number, wanted.number));
                begun.announced[rank] = true;
            }
            let sent = partner.out.send(io, &record);
            let blocks = sent.and_then(|()| {
                self.start_blocks(wires, io, wanted.slot, at, &mut begun.open[rank])
            });
            // A record without all of its blocks: later ones would be taken for these.
            outcome = outcome.and(blocks.inspect_err(|error| io.give_up_on(rank, error)));
        }
        io.expect(self.received_bytes());
        outcome
    }

    /// Starts a partner's messages of a slot, and counts them.
    fn start_blocks(
        &self,
        wires: &TurnWires,
        io: &mut Io<'_>,
        slot: usize,
        partner: usize,
        open: &mut usize,
    ) -> Result<()> {
        let requests =
            wires.standing[slot].iter().flat_map(|requests| requests.all.iter().enumerate());
        for (index, (_, standing)) in requests.filter(|(_, (of, _))| *of == partner) {
            // SAFETY: the owner keeps the frame's memory.
            unsafe { io.start(block_mark(slot, index), *standing) }?;
            *open += 1;
        }
        Ok(())
    }

    /// Makes the requests of a slot, unless they are there.
    fn prepare(&self, wires: &mut TurnWires, io: &mut Io<'_>, wanted: Wanted) -> Result<()> {
        let Wanted { slot, from, into, .. } = wanted;
        if wires.standing[slot]
            .as_ref()
            .is_some_and(|known| (known.from, known.into) == (from, into))
        {
            return Ok(());
        }
        if let Some(old) = wires.standing[slot].take() {
            old.all.into_iter().for_each(|(_, standing)| io.release(standing));
        }
        let mut all = Vec::new();
        let tag = self.tag();
        for (at, partner) in wires.partners.iter().enumerate() {
            let peer = partner.rank;
            let receives =
                self.shape.receives(peer).into_iter().map(|piece| (Way::Receive, into, piece));
            let sends = self.shape.sends(peer).into_iter().map(|piece| (Way::Send, from, piece));
            for (way, base, (offset, layout)) in receives.chain(sends) {
                let transfer =
                    Transfer { way, at: base.plus(offset), layout, peer, lane: Lane::Data, tag };
                // SAFETY: the owner keeps the memory whenever the request is started.
                all.push((at, unsafe { io.prepare(&transfer) }?));
            }
        }
        wires.standing[slot] = Some(SlotRequests { from, into, all });
        Ok(())
    }

    /// A record of a partner has come. The next one is received, unless it was the last.
    fn told(&self, wires: &mut TurnWires, io: &mut Io<'_>, at: usize) -> Result<()> {
        let partner = &mut wires.partners[at];
        let record = partner.inbox.take();
        let done = record.and_then(|record| self.obey(partner, &record));
        match partner.heard {
            true => done,
            false => done.and(partner.inbox.start(io)),
        }
    }

    fn obey(&self, partner: &mut Partner, record: &Record) -> Result<()> {
        let (rank, turn) = (partner.rank, self.number);
        let refused =
            |what: &str| Error::refused(format!("rank {rank} sent {what} in corner turn {turn}"));
        if record.channel != turn {
            return Err(refused("a record of another one"));
        }
        match record.kind {
            Kind::Open if !partner.agreed => {
                self.check_open(rank, record)?;
                partner.agreed = true;
                Ok(())
            }
            Kind::Frame if partner.agreed && record.number == partner.announced => {
                partner.announced += 1;
                self.announced(partner, record.words[0])
            }
            Kind::End if partner.agreed => {
                partner.heard = true;
                Ok(())
            }
            Kind::Stop => {
                partner.heard = true;
                Err(self.stopped(rank, record))
            }
            _ => Err(refused("an unexpected record")),
        }
    }

    /// A partner has begun its next frame.
    fn announced(&self, partner: &mut Partner, number: u64) -> Result<()> {
        let mut turning = self.board.lock();
        let next = turning.begun.iter_mut().find(|begun| !begun.announced[partner.rank]);
        match next {
            None => partner.early.push_back(number),
            Some(begun) => {
                self.check_frame(partner.rank, number, begun.number)?;
                begun.announced[partner.rank] = true;
                begun.heard_of(partner.rank);
                turning.heard = Instant::now();
                turning.settle();
            }
        }
        Ok(())
    }

    /// Sends this rank's last record to all others.
    fn say_last(&self, wires: &mut TurnWires, io: &mut Io<'_>, kind: Kind) -> Result<()> {
        let blamed = self.blamed().filter(|_| kind == Kind::Stop);
        let extra = blamed.map_or(0, |rank| rank as u32 + 1);
        let record = Record { number: wires.started, extra, ..self.record(kind) };
        let mut outcome = Ok(());
        for partner in wires.partners.iter_mut().filter(|partner| !partner.said) {
            partner.said = true;
            outcome = outcome.and(partner.out.send(io, &record));
        }
        outcome
    }

    /// Does what the owner wants.
    fn step(&self, wires: &mut TurnWires, io: &mut Io<'_>) -> Result<()> {
        self.introduce(wires, io)?;
        self.begin_frames(wires, io)?;
        let (end, waiting) = {
            let turning = self.board.lock();
            (turning.end, !turning.wanted.is_empty())
        };
        match end {
            Some(true) if !waiting => self.say_last(wires, io, Kind::End)?,
            Some(false) => self.say_last(wires, io, Kind::Stop)?,
            _ => {}
        }
        self.check_ends(wires)
    }

    /// Records a failure: nothing more is begun, and the other ranks are told.
    fn fail(&self, wires: &mut TurnWires, io: &mut Io<'_>, error: Error) {
        let told = self.say_last(wires, io, Kind::Stop);
        if told.is_err() {
            wires.partners.iter().for_each(|partner| partner.inbox.cancel(io));
        }
        self.board.lock().fate.fail(error);
    }

    /// Brings this rank and those that have said their last to the same frame: gives up blocks that will not come, and receives
    /// those that were sent for frames which this rank does not begin any more. Otherwise they would be taken for later ones.
    fn level(&self, wires: &mut TurnWires, io: &mut Io<'_>) -> Result<()> {
        for at in 0..wires.partners.len() {
            let partner = &mut wires.partners[at];
            if !partner.heard || !partner.said || mem::replace(&mut partner.levelled, true) {
                continue;
            }
            let (rank, ahead) = (partner.rank, partner.announced.saturating_sub(wires.started));
            for begun in self.board.lock().begun.iter().filter(|begun| !begun.announced[rank]) {
                let requests = wires.standing[begun.slot]
                    .iter()
                    .flat_map(|requests| &requests.all)
                    .enumerate();
                let mine = requests.filter(|(_, (of, _))| *of == at);
                mine.for_each(|(index, _)| io.cancel(block_mark(begun.slot, index)));
            }
            for _ in 0..ahead {
                self.discard(wires, io, rank)?;
            }
        }
        Ok(())
    }

    /// Receives the blocks of one frame of a rank, and forgets them.
    fn discard(&self, wires: &mut TurnWires, io: &mut Io<'_>, peer: usize) -> Result<()> {
        for (_, layout) in self.shape.receives(peer) {
            let mut memory = vec![0u8; layout.bytes()];
            let at = Address::new(memory.as_mut_ptr());
            let layout = Layout::contiguous(layout.bytes());
            let transfer =
                Transfer { way: Way::Receive, at, layout, peer, lane: Lane::Data, tag: self.tag() };
            wires.discarded.push(memory);
            // SAFETY: the memory lives as long as the actor.
            unsafe { io.begin(DISCARDED, &transfer) }?;
            wires.discarding += 1;
        }
        Ok(())
    }

    fn tag(&self) -> i32 {
        FIRST_TAG + self.number as i32
    }

    /// Tells the owner, and the engine if there is nothing more to do.
    fn tell(&self, wires: &mut TurnWires, io: &mut Io<'_>) {
        if let Err(error) = self.level(wires, io) {
            self.board.lock().fate.fail(error);
        }
        let mut turning = self.board.lock();
        let (said, heard) = wires.partners.iter().fold((true, true), |(said, heard), partner| {
            (said && partner.said, heard && partner.heard)
        });
        if turning.fate.error.is_some()
            || turning.end == Some(false)
            || (said && !wires.partners.is_empty())
        {
            // What was not begun is not in use.
            turning.fate.busy -= turning.wanted.len();
            turning.wanted.clear();
            turning.fate.over = true;
        }
        let sent = wires.partners.iter().all(|partner| partner.out.is_idle());
        let levelled = wires.discarding == 0;
        let ends = turning.end.is_some() || turning.fate.error.is_some();
        turning.fate.closed = ends && said && heard && sent && levelled;
        let idle = sent
            && levelled
            && turning.fate.busy == 0
            && wires.partners.iter().all(|partner| partner.inbox.is_idle());
        if idle && (turning.fate.closed || turning.fate.error.is_some()) {
            turning.fate.closed = true;
            wires.release(io);
            io.retire();
        }
        tell(&self.board, turning, io);
    }
}

impl TurnWires {
    fn release(&mut self, io: &mut Io<'_>) {
        for partner in &mut self.partners {
            partner.out.release(io);
            partner.inbox.release(io);
        }
        let requests =
            self.standing.iter_mut().filter_map(Option::take).flat_map(|requests| requests.all);
        requests.for_each(|(_, standing)| io.release(standing));
    }
}

impl Actor for TurnActor {
    fn woken(&self, io: &mut Io<'_>) {
        let mut wires = lock(&self.wires);
        if self.board.lock().fate.abandoned {
            wires.partners.iter_mut().filter(|partner| !partner.heard).for_each(|partner| {
                partner.inbox.cancel(io);
                partner.heard = true;
            });
        }
        if self.board.lock().fate.error.is_none()
            && let Err(error) = self.step(&mut wires, io)
        {
            self.fail(&mut wires, io, error);
        }
        self.tell(&mut wires, io);
    }

    fn ended(&self, io: &mut Io<'_>, mark: u64, outcome: Outcome) {
        let mut wires = lock(&self.wires);
        let next = if mark == DISCARDED {
            wires.discarding -= 1;
            Ok(())
        } else if mark >= GO {
            let at = ((mark - GO) / GO_EACH) as usize;
            wires.partners[at].out.ended(mark);
            outcome.check(wires.partners[at].rank)
        } else if mark >= BLOCKS {
            let (slot, index) =
                (((mark - BLOCKS) >> 24) as usize, ((mark - BLOCKS) & (BLOCKS - 1)) as usize);
            let of = wires.standing[slot].as_ref().and_then(|requests| requests.all.get(index));
            let rank = of.map_or(self.shape.rank, |(at, _)| wires.partners[*at].rank);
            self.board.lock().ended(slot, rank);
            outcome.check(rank)
        } else {
            let at = mark as usize;
            match outcome {
                Outcome::Done(_) => self.told(&mut wires, io, at),
                other => {
                    wires.partners[at].inbox.cancelled();
                    other.check(wires.partners[at].rank)
                }
            }
        };
        let failed = self.board.lock().fate.error.is_some();
        let next = if failed { next } else { next.and_then(|()| self.step(&mut wires, io)) };
        if let Err(error) = next {
            self.fail(&mut wires, io, error);
        }
        self.tell(&mut wires, io);
    }

    fn failed(&self, io: &mut Io<'_>, error: &Error) {
        let mut wires = lock(&self.wires);
        wires.partners.iter_mut().for_each(|partner| partner.heard = true);
        self.fail(&mut wires, io, error.clone());
        self.tell(&mut wires, io);
    }
    fn calm(&self) {
        tell_now(&self.board);
    }
}
