//! Frames from the network.

use super::{judge::Judge, listen::Listen};
use crate::out::{Failure, Result};
use onebuf::{
    Complex32,
    pipeline::{
        Filled, WhenFull,
        source::{self, Tcp, Udp, UdpCounts, UdpMeter},
    },
};
use std::{net::TcpListener, time::Duration};

/// Time without data before giving up: long enough to start the other program by hand.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Frames that are kept, to be measured with afterwards.
const KEPT: usize = 2;

/// A network source.
enum Line {
    Udp(Box<Udp>),
    Tcp(Tcp),
}

/// A network source, and what it received.
pub struct Wire {
    line: Line,
    meter: Option<UdpMeter>,
    kept: Vec<Vec<Complex32>>,
}

impl Wire {
    /// Opens the source and prints `listening at …` to stderr; for TCP it also waits for the connection.
    pub fn open(listen: &Listen, hint: &str) -> Result<Self> {
        let line = match listen {
            Listen::Udp(address) => {
                let udp = address.open()?.timeout(PATIENCE);
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

    /// Waits for a complete frame.
    pub fn first(&mut self, samples: usize) -> Result<Vec<Complex32>> {
        let mut frame = vec![Complex32::ZERO; samples];
        loop {
            match self.fill(&mut frame)? {
                Filled::Frame => return Ok(frame),
                Filled::End => {
                    return Err(Failure::new("the sender ended before a complete frame arrived"));
                }
                // The source itself has a shorter timeout.
                Filled::Incomplete | Filled::Idle => (),
            }
        }
    }

    /// Drops the oldest frames for UDP, whose packets are lost while nothing reads them; blocks for TCP, whose sender waits.
    pub fn when_full(&self) -> WhenFull {
        match self.line {
            Line::Udp(_) => WhenFull::DropOldest,
            Line::Tcp(_) => WhenFull::Block,
        }
    }

    /// The counters of UDP.
    pub fn counts(&self) -> Option<UdpCounts> {
        self.meter.as_ref().map(UdpMeter::counts)
    }

    /// The counters of each of UDP's sockets.
    pub fn socket_counts(&self) -> Vec<UdpCounts> {
        self.meter.as_ref().map(UdpMeter::sockets).unwrap_or_default()
    }

    /// Some of the received frames.
    pub fn into_kept(self) -> Vec<Vec<Complex32>> {
        self.kept
    }

    /// A source of this many complete frames, which the judge observes.
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
    eprintln!("onebuf: listening at {protocol}:{address} for up to {wait} s; expecting {hint}");
}

/// Reports each received frame to the judge.
pub struct ReceivedFrames<'w> {
    wire: &'w mut Wire,
    judge: &'w Judge,
    left: u64,
    /// The pipeline's frame number, which also counts incomplete frames.
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
