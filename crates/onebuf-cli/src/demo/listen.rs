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
    fn sockets_are_opened() {
        let open = |text: &str| text.parse::<UdpListen>().unwrap().open();
        assert_eq!(open("127.0.0.1:0?sockets=3").unwrap().meter().sockets().len(), 3);
        assert!(open("127.0.0.1:0?sockets=0").is_err());
    }
}
