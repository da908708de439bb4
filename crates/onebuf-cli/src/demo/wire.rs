//! Frames that come over the network.

use super::judge::Judge;
use crate::out::{Failure, Result};
use onebuf::{
    Complex32,
    pipeline::{
        Filled, WhenFull,
        source::{self, Tcp, Udp, UdpCounts, UdpMeter},
    },
};
use std::{net::TcpListener, time::Duration};

/// For how long nobody may send anything: long enough to start the other program by hand.
const PATIENCE: Duration = Duration::from_secs(60);

/// Frames that are kept, to be measured with afterwards.
const KEPT: usize = 2;

/// Where to listen.
#[derive(Clone, Debug, PartialEq)]
pub enum Listen {
    Udp(String),
    Tcp(String),
}

/// Something that sends.
enum Line {
    Udp(Box<Udp>),
    Tcp(Tcp),
}

/// A line, and what came over it.
pub struct Wire {
    line: Line,
    meter: Option<UdpMeter>,
    kept: Vec<Vec<Complex32>>,
}

impl Wire {
    /// Listens, says where on stderr, and for a connection waits.
    pub fn open(listen: &Listen, hint: &str) -> Result<Self> {
        let line = match listen {
            Listen::Udp(address) => {
                let udp = Udp::bind(address.as_str())?.timeout(PATIENCE);
                say("udp", &udp.address()?, hint);
                Line::Udp(Box::new(udp))
            }
            Listen::Tcp(address) => {
                let about = |error| Failure::new(format!("tcp:{address}: {error}"));
                let listener = TcpListener::bind(address).map_err(about)?;
                say("tcp", &listener.local_addr().map_err(about)?, hint);
                Line::Tcp(Tcp::accept(&listener, PATIENCE)?)
            }
        };
        let meter = if let Line::Udp(udp) = &line { Some(udp.meter()) } else { None };
        Ok(Self { line, meter, kept: Vec::new() })
    }

    /// A whole frame, waited for.
    pub fn first(&mut self, samples: usize) -> Result<Vec<Complex32>> {
        let mut frame = vec![Complex32::ZERO; samples];
        loop {
            match self.fill(&mut frame)? {
                Filled::Frame => return Ok(frame),
                Filled::End => return Err(Failure::new("the sender ended before a whole frame")),
                // The source itself is patient only for so long.
                Filled::Incomplete | Filled::Idle => (),
            }
        }
    }

    /// Packets do not wait for us; a connection does.
    pub fn when_full(&self) -> WhenFull {
        match self.line {
            Line::Udp(_) => WhenFull::DropOldest,
            Line::Tcp(_) => WhenFull::Block,
        }
    }

    /// What has come over UDP.
    pub fn counts(&self) -> Option<UdpCounts> {
        self.meter.as_ref().map(UdpMeter::counts)
    }

    /// Some of the frames that came.
    pub fn into_kept(self) -> Vec<Vec<Complex32>> {
        self.kept
    }

    /// So many whole frames, which somebody looks at.
    pub fn frames<'w>(&'w mut self, count: u64, judge: &'w Judge) -> ReceivedFrames<'w> {
        ReceivedFrames { wire: self, judge, left: count, number: 0 }
    }

    fn fill(&mut self, frame: &mut [Complex32]) -> onebuf::Result<Filled> {
        use source::FrameSource;
        match &mut self.line {
            Line::Udp(udp) => udp.fill(frame),
            Line::Tcp(tcp) => tcp.fill(frame),
        }
    }
}

fn say(protocol: &str, address: &std::net::SocketAddr, hint: &str) {
    let wait = PATIENCE.as_secs();
    eprintln!("onebuf: listening at {protocol}:{address} for {wait} s, for {hint}");
}

/// Frames that somebody sees come.
pub struct ReceivedFrames<'w> {
    wire: &'w mut Wire,
    judge: &'w Judge,
    left: u64,
    /// As the pipeline counts: incomplete ones too.
    number: u64,
}

impl source::FrameSource<Complex32> for ReceivedFrames<'_> {
    fn fill(&mut self, frame: &mut [Complex32]) -> onebuf::Result<Filled> {
        if self.left == 0 {
            return Ok(Filled::End);
        }
        let filled = self.wire.fill(frame)?;
        if filled == Filled::Frame {
            self.left -= 1;
            self.judge.sees(self.number, frame);
            if self.wire.kept.len() < KEPT {
                self.wire.kept.push(frame.to_vec());
            }
        }
        self.number += u64::from(matches!(filled, Filled::Frame | Filled::Incomplete));
        Ok(filled)
    }
}
