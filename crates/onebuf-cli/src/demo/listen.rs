//! Where to listen for frames, and how: `udp:HOST:PORT?sockets=4&cpus=0-3&busy_poll=50`.

use onebuf::pipeline::source::Udp;
use std::{str::FromStr, time::Duration};

/// Where to listen.
#[derive(Clone, Debug, PartialEq)]
pub enum Listen {
    Udp(UdpListen),
    Tcp(String),
}

/// A UDP address with options.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UdpListen {
    address: String,
    sockets: usize,
    cpus: Vec<usize>,
    busy_poll: Option<Duration>,
}

impl UdpListen {
    /// The address of one of several ranks: the port is the first one's plus the rank. Each rank of port 0 gets a free one.
    pub fn of_rank(&self, rank: usize) -> Result<Self, String> {
        let parts = self.address.rsplit_once(':');
        let parts = parts.and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        let (host, first) = parts.ok_or_else(|| format!("{}: write HOST:PORT", self.address))?;
        let port = if first == 0 { Some(0) } else { usize::from(first).checked_add(rank) };
        let port = port.filter(|port| *port <= usize::from(u16::MAX)).ok_or_else(|| {
            format!("udp:{}: rank {rank} would have the port {first} + {rank}", self.address)
        })?;
        Ok(Self { address: format!("{host}:{port}"), ..self.clone() })
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn open(&self) -> onebuf::Result<Udp> {
        let udp = Udp::bind(self.address.as_str())?.sockets(self.sockets)?;
        let udp = udp.cpus(self.cpus.clone());
        Ok(match self.busy_poll {
            Some(time) => udp.busy_poll(time),
            None => udp,
        })
    }
}

impl FromStr for UdpListen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, options) = text.split_once('?').unwrap_or((text, ""));
        let mut listen = Self { address: address.into(), sockets: 1, ..Self::default() };
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let wrong =
                || format!("`{option}`: write sockets=N, cpus=0-3,8 or busy_poll=MICROSECONDS");
            let (name, value) = option.split_once('=').ok_or_else(wrong)?;
            match name {
                "sockets" => listen.sockets = value.parse().map_err(|_| wrong())?,
                "cpus" => listen.cpus = cpus(value).ok_or_else(wrong)?,
                "busy_poll" => {
                    let micros = value.parse().map_err(|_| wrong())?;
                    listen.busy_poll = Some(Duration::from_micros(micros));
                }
                _ => return Err(wrong()),
            }
        }
        Ok(listen)
    }
}

/// The processors of a list such as `0-3,8`.
fn cpus(list: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse().ok()?, last.parse::<u16>().ok()?);
        all.extend(first..=usize::from(last));
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_follow_the_address() {
        let listen: UdpListen = "[::1]:5?sockets=4&cpus=0-2,8&busy_poll=50".parse().unwrap();
        let wanted = UdpListen {
            address: "[::1]:5".into(),
            sockets: 4,
            cpus: vec![0, 1, 2, 8],
            busy_poll: Some(Duration::from_micros(50)),
        };
        assert_eq!(listen, wanted);
        for wrong in ["sockets", "sockets=x", "cpus=", "cpus=3-", "busy_poll=-1", "speed=9"] {
            let why = format!("a:1?{wrong}").parse::<UdpListen>().unwrap_err();
            assert!(why.contains(wrong) && why.contains("sockets=N"), "{why}");
        }
    }

    #[test]
    fn ranks_have_consecutive_ports() {
        let of = |text: &str, rank| text.parse::<UdpListen>().unwrap().of_rank(rank);
        assert_eq!(of("0.0.0.0:5000?sockets=2", 3), "0.0.0.0:5003?sockets=2".parse());
        assert_eq!(of("[::1]:65534", 1), "[::1]:65535".parse());
        assert_eq!(of("a:0", 7), "a:0".parse(), "any free port");
        assert!(of("a:65535", 1).is_err_and(|why| why.contains("rank 1") && why.contains("65535")));
        assert!(of("a:b", 0).is_err_and(|why| why.contains("HOST:PORT")));
    }

    #[test]
    fn sockets_are_opened() {
        let open = |text: &str| text.parse::<UdpListen>().unwrap().open();
        assert_eq!(open("127.0.0.1:0?sockets=3").unwrap().meter().sockets().len(), 3);
        assert!(open("127.0.0.1:0?sockets=0").is_err());
    }
}
