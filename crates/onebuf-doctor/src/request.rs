//! What the doctor asks a helper to do: one line of text for each experiment.

use onebuf_hal::{Error, Result, RouteKind, SyncMethod};
use serde::de::DeserializeOwned;
use std::{fmt, str::FromStr};

/// One experiment with two devices, by their ids.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Request {
    pub from: String,
    pub to: String,
    pub what: What,
}

/// The kind of an experiment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum What {
    /// Whether the route shares memory, with buffers of up to this many bytes.
    Share(RouteKind, u64),
    /// What the route costs. It was seen to work with this sync method and those below it.
    Time(RouteKind, SyncMethod),
    /// Whether programs can be grafted.
    Graft,
    /// Whether the queues of one device work together.
    Life,
    /// Whether one device computes every element of a buffer of this many bytes.
    Large(u64),
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, what } = self;
        match what {
            What::Share(kind, reach) => write!(f, "share {from} {to} {kind} {reach}"),
            What::Time(kind, sync) => write!(f, "time {from} {to} {kind} {sync}"),
            What::Graft => write!(f, "graft {from} {to}"),
            What::Life => write!(f, "life {from} {to}"),
            What::Large(bytes) => write!(f, "large {from} {to} {bytes}"),
        }
    }
}

impl FromStr for Request {
    type Err = Error;

    fn from_str(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (ids, what) = match words[..] {
            ["share", from, to, kind, reach] => {
                ([from, to], What::Share(name(kind)?, number(reach)?))
            }
            ["time", from, to, kind, sync] => ([from, to], What::Time(name(kind)?, name(sync)?)),
            ["graft", from, to] => ([from, to], What::Graft),
            ["life", from, to] => ([from, to], What::Life),
            ["large", from, to, bytes] => ([from, to], What::Large(number(bytes)?)),
            _ => return Err(Error::invalid(format!("`{line}` is no experiment"))),
        };
        let [from, to] = ids.map(str::to_owned);
        Ok(Self { from, to, what })
    }
}

/// A kind of route or a sync method, by its name in JSON.
fn name<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_value(text.into())
        .map_err(|_| Error::invalid(format!("`{text}` is not known")))
}

fn number(text: &str) -> Result<u64> {
    text.parse().map_err(|_| Error::invalid(format!("`{text}` is not a number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_were_written() {
        let all = [
            What::Share(RouteKind::OpaqueFd, 1 << 30),
            What::Time(RouteKind::HostPointer, SyncMethod::WaitValue),
            What::Graft,
            What::Life,
            What::Large(u64::MAX),
        ];
        for what in all {
            let request = Request { from: "opencl:0".into(), to: "host".into(), what };
            assert_eq!(request.to_string().parse::<Request>().unwrap(), request);
        }
        for wrong in
            ["", "share a b", "share a b nothing 1", "share a b staged x", "time a b staged 3"]
        {
            assert!(wrong.parse::<Request>().is_err(), "{wrong}");
        }
    }
}
