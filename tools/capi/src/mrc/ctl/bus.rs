//! How the processes of a host that use one device reach each other: datagram sockets in the abstract namespace, which is that of the
//! network, with names that begin with the device's.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::state::Profile;

/// Bytes of a message, at most.
const MAX_MESSAGE: usize = 64 << 10;
/// Changes of entropy values in a message, at most.
pub(crate) const MAX_CHANGES: usize = 256;

/// What one process has to say to the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) enum Message {
    /// The state of the device has changed.
    Changed,
    /// Entropy values of a profile have changed their state; so many more are not here.
    Events { profile: u64, changes: Vec<Change>, lost: u32 },
    /// Who uses this profile?
    Ask(Profile),
    /// Queue pairs that use it, and its entropy values that are `ASSUMED_BAD` for one of these.
    Uses { queue_pairs: u32, bad: Vec<(u32, u8)> },
}

/// A change of an entropy value's state, as the interface numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Change {
    pub(crate) value: u32,
    pub(crate) port: u8,
    pub(crate) state: u32,
}

impl Message {
    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// `None`: it is none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

/// The socket of a process for one device.
#[derive(Debug)]
pub(crate) struct Bus {
    socket: UnixDatagram,
    prefix: String,
}

/// What the processes say of a profile.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    pub(crate) queue_pairs: u64,
    pub(crate) bad: Vec<(u32, u8)>,
    /// Processes that have not replied.
    pub(crate) silent: usize,
}

fn bind(name: &str) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A message and its sender; `None` if there is none now.
fn receive(socket: &UnixDatagram) -> Option<(Option<Message>, SocketAddr)> {
    let mut buffer = vec![0; MAX_MESSAGE];
    let (len, from) = socket.recv_from(&mut buffer).ok()?;
    Some((buffer.get(..len).and_then(Message::decode), from))
}

impl Bus {
    /// `nonce` is nobody else's.
    pub(crate) fn open(device: IpAddr, nonce: u64) -> io::Result<Self> {
        let prefix = format!("spindrift-device/{device}/");
        Ok(Self { socket: bind(&format!("{prefix}{nonce:016x}"))?, prefix })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// The sockets of all processes that use the device, this one's too.
    pub(crate) fn processes(&self) -> Vec<String> {
        // Other programs name sockets as they like, and not always in UTF-8.
        let sockets = fs::read("/proc/net/unix").unwrap_or_default();
        let sockets = String::from_utf8_lossy(&sockets);
        let names =
            sockets.lines().filter_map(|line| line.split_ascii_whitespace().nth(7)?.strip_prefix('@'));
        names.filter(|name| name.starts_with(&self.prefix)).map(str::to_owned).collect()
    }

    /// Sends to one of them. Returns whether its queue is full.
    pub(crate) fn send_to(&self, name: &str, message: &Message) -> bool {
        let to = SocketAddr::from_abstract_name(name);
        let sent = to.and_then(|to| self.socket.send_to_addr(&message.encode(), &to));
        // One that has ended needs nothing.
        sent.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    /// What has arrived, with what a reply needs. `None`: nothing.
    pub(crate) fn receive(&self) -> Option<(Option<Message>, SocketAddr)> {
        receive(&self.socket)
    }

    pub(crate) fn reply(&self, to: &SocketAddr, message: &Message) {
        // One that does not wait for it any more needs none.
        let _ = self.socket.send_to_addr(&message.encode(), to);
    }

    /// Asks all processes that use the device for their use of a profile, and waits until all have replied, at most for `patience`.
    pub(crate) fn ask(&self, nonce: u64, profile: Profile, patience: Duration) -> io::Result<Census> {
        let socket = bind(&format!("spindrift-controller/{nonce:016x}"))?;
        let question = Message::Ask(profile).encode();
        let until = Instant::now() + patience;
        let mut census = Census::default();
        for name in self.processes() {
            let to = SocketAddr::from_abstract_name(&name)?;
            match socket.send_to_addr(&question, &to) {
                Ok(_) => census.silent += 1,
                // It is there, and cannot say anything.
                Err(error) if error.kind() == ErrorKind::WouldBlock => census.silent += 1,
                Err(_) => {}
            }
        }
        while census.silent > 0 {
            match receive(&socket) {
                Some((Some(Message::Uses { queue_pairs, bad }), _)) => {
                    census.silent -= 1;
                    census.queue_pairs += u64::from(queue_pairs);
                    census.bad.extend(bad);
                }
                Some(_) => {}
                None => {
                    let left = until.saturating_duration_since(Instant::now());
                    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                    let ms = left.as_millis().min(1 << 20) as libc::c_int;
                    // SAFETY: one element of this function.
                    if left.is_zero() || unsafe { libc::poll(&raw mut poll, 1, ms + 1) } == 0 {
                        break;
                    }
                }
            }
        }
        Ok(census)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const DEVICE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 77, 1));

    fn nonce(test: u64) -> u64 {
        u64::from(std::process::id()) << 16 | test
    }

    #[test]
    fn all_processes_of_a_device_hear_and_no_others() {
        let other = Bus::open(IpAddr::from([127, 0, 77, 10]), nonce(1)).unwrap();
        let odd = [&[0xff, 0xfe, b'/'], &nonce(1).to_le_bytes()[..]].concat();
        let _odd = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(odd).unwrap()).unwrap();
        let device = IpAddr::from([127, 0, 77, 100]);
        let buses = [2, 3].map(|test| Bus::open(device, nonce(test)).unwrap());
        let event = Change { value: 7, port: 2, state: 1 };
        let said = Message::Events { profile: 9, changes: vec![event], lost: 3 };
        let names = buses[0].processes();
        assert_eq!(names.len(), 2);
        assert!(names.iter().all(|name| !buses[0].send_to(name, &said)));
        for bus in &buses {
            assert_eq!(bus.receive().unwrap().0, Some(said.clone()));
            assert!(bus.receive().is_none());
        }
        assert!(other.receive().is_none());
    }

    #[test]
    fn a_full_queue_is_told_and_not_waited_for() {
        let device = IpAddr::from([127, 0, 77, 2]);
        let [from, to] = [4, 5].map(|test| Bus::open(device, nonce(test)).unwrap());
        let name = format!("{}{:016x}", to.prefix, nonce(5));
        let mut sent = 0;
        while !from.send_to(&name, &Message::Changed) {
            sent += 1;
            assert!(sent < 100_000);
        }
        assert!(to.receive().is_some());
        assert!(!from.send_to(&name, &Message::Changed));
        drop(to);
        assert!(!from.send_to(&name, &Message::Changed), "it has ended");
    }

    #[test]
    fn a_census_counts_who_replies_and_who_does_not() {
        let (asker, one) = (Bus::open(DEVICE, nonce(6)).unwrap(), Bus::open(DEVICE, nonce(7)).unwrap());
        let census = std::thread::scope(|scope| {
            let asked =
                scope.spawn(|| asker.ask(nonce(8), Profile::Entropy(4), Duration::from_millis(200)).unwrap());
            let question = loop {
                if let Some(question) = one.receive() {
                    break question;
                }
                std::thread::yield_now();
            };
            assert_eq!(question.0, Some(Message::Ask(Profile::Entropy(4))));
            one.reply(&question.1, &Message::Changed);
            one.reply(&question.1, &Message::Uses { queue_pairs: 3, bad: vec![(1, 2)] });
            asked.join().unwrap()
        });
        // The one that asks has not replied to itself.
        assert_eq!(census, Census { queue_pairs: 3, bad: vec![(1, 2)], silent: 1 });
    }

    #[test]
    fn what_is_no_message_is_none() {
        for bytes in [&b""[..], b"{}", b"\"Other\"", &[0xff; 9], br#"{"Ask":{"Entropy":-1}}"#] {
            assert_eq!(Message::decode(bytes), None);
        }
        assert_eq!(Message::decode(br#""Changed""#), Some(Message::Changed));
    }
}
