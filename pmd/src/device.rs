//! What the kernel knows of a network interface. It is asked through a socket, so that it is about the interface of the socket's
//! network namespace; `/sys/class/net` may show another's.

use std::io;
use std::mem::{offset_of, zeroed};
use std::os::fd::{AsFd, AsRawFd as _};

use libc::c_int;

use crate::Medium;

/// `SIOCETHTOOL` (linux/sockios.h).
const SIOCETHTOOL: u32 = 0x8946;

/// Drivers of virtual links that make a rate up: 10 Gb/s and 10 Mb/s.
const MADE_UP: [&[u8]; 2] = [b"veth\0", b"tun\0"];

fn check(rc: c_int) -> io::Result<()> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn interface_request(name: &str) -> libc::ifreq {
    // SAFETY: all-zero bytes are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { zeroed() };
    // The last byte stays zero.
    for (to, from) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

/// The present name of the interface with this number; an error if there is no such interface.
pub fn name(fd: impl AsFd, index: u32) -> io::Result<String> {
    let mut request = interface_request("");
    request.ifr_ifru.ifru_ifindex = index as c_int;
    // SAFETY: SIOCGIFNAME reads `ifru_ifindex` of a live request and fills in its name.
    unsafe {
        check(libc::ioctl(fd.as_fd().as_raw_fd(), libc::SIOCGIFNAME as libc::Ioctl, &raw mut request))?;
    }
    let bytes: Vec<u8> = request.ifr_name.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether the interface is up and has carrier.
pub fn is_running(fd: impl AsFd, name: &str) -> io::Result<bool> {
    let wanted = libc::IFF_UP | libc::IFF_RUNNING;
    Ok(interface_flags(fd, name)? & wanted == wanted)
}

/// `IFF_*` of the interface.
fn interface_flags(fd: impl AsFd, name: &str) -> io::Result<c_int> {
    let mut request = interface_request(name);
    // SAFETY: SIOCGIFFLAGS fills in `ifru_flags` of a live, named request.
    unsafe {
        check(libc::ioctl(fd.as_fd().as_raw_fd(), libc::SIOCGIFFLAGS as libc::Ioctl, &raw mut request))?;
        Ok(c_int::from(request.ifr_ifru.ifru_flags))
    }
}

/// What the interface is connected to.
pub fn medium(fd: impl AsFd, name: &str) -> Medium {
    let fd = fd.as_fd();
    match interface_flags(fd, name) {
        Ok(flags) if flags & libc::IFF_LOOPBACK != 0 => Medium::Host,
        _ => Medium::Network { rate_bps: rate_bps(fd, name) },
    }
}

/// The name of its driver.
pub fn driver(fd: impl AsFd, name: &str) -> io::Result<String> {
    let info: DriverInfo = get(fd, name)?;
    let len = info.name.iter().position(|&byte| byte == 0).unwrap_or(info.name.len());
    Ok(String::from_utf8_lossy(&info.name[..len]).into_owned())
}

/// How many receive queues are in use; 1 if the driver does not say.
pub fn receive_queues(fd: impl AsFd, name: &str) -> u32 {
    get::<Channels>(fd, name).map_or(1, |channels| (channels.receive + channels.combined).max(1))
}

/// The rate of the interface's link in bits per second; `None` if the driver does not say, or makes it up.
fn rate_bps(fd: impl AsFd, name: &str) -> Option<u64> {
    let fd = fd.as_fd();
    let driver: DriverInfo = get(fd, name).ok()?;
    if MADE_UP.iter().any(|made_up| driver.name.starts_with(made_up)) {
        return None;
    }
    get::<LinkSettings>(fd, name).ok()?.rate_bps()
}

/// What the kernel writes for a command.
///
/// # Safety
/// Plain integers, the first of them the command, in as many bytes as the kernel's structure for it has.
unsafe trait Answer {
    const COMMAND: u32;
}

/// `struct ethtool_cmd`. The newer `ETHTOOL_GLINKSETTINGS` says nothing else of the rate, in two calls and a structure
/// without a fixed size.
#[repr(C)]
struct LinkSettings {
    command: u32,
    modes: [u32; 2],
    speed_low: u16,
    kinds: [u8; 6],
    interrupts: [u32; 2],
    speed_high: u16,
    crossing: [u8; 2],
    partner_modes: u32,
    reserved: [u32; 2],
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    command: u32,
    /// Zero-terminated.
    name: [u8; 32],
    rest: [u8; 160],
}

/// `struct ethtool_channels`: how many there may be, and how many there are.
#[repr(C)]
struct Channels {
    command: u32,
    most: [u32; 4],
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

// As linux/ethtool.h has them.
const _: () =
    assert!(size_of::<LinkSettings>() == 44 && size_of::<DriverInfo>() == 196 && size_of::<Channels>() == 36);
const _: () =
    assert!(offset_of!(LinkSettings, speed_low) == 12 && offset_of!(LinkSettings, speed_high) == 28);

// SAFETY: as asked; the size is checked above.
unsafe impl Answer for LinkSettings {
    /// `ETHTOOL_GSET`.
    const COMMAND: u32 = 1;
}

// SAFETY: as asked; the size is checked above.
unsafe impl Answer for DriverInfo {
    /// `ETHTOOL_GDRVINFO`.
    const COMMAND: u32 = 3;
}

// SAFETY: as asked; the size is checked above.
unsafe impl Answer for Channels {
    /// `ETHTOOL_GCHANNELS`.
    const COMMAND: u32 = 0x3c;
}

impl LinkSettings {
    /// The speed is in Mb/s; 0 and all ones mean that nobody knows it.
    fn rate_bps(&self) -> Option<u64> {
        let mbps = u32::from(self.speed_high) << 16 | u32::from(self.speed_low);
        (mbps != 0 && mbps != u32::MAX).then(|| u64::from(mbps) * 1_000_000)
    }
}

fn get<T: Answer>(fd: impl AsFd, name: &str) -> io::Result<T> {
    // SAFETY: zero bytes are valid integers.
    let mut answer: T = unsafe { zeroed() };
    let mut request = interface_request(name);
    request.ifr_ifru.ifru_data = (&raw mut answer).cast();
    // SAFETY: the answer starts with its command and is as long as the kernel takes it to be; the request is live and named,
    // and so is the answer, to which nothing else refers.
    unsafe {
        (&raw mut answer).cast::<u32>().write(T::COMMAND);
        check(libc::ioctl(fd.as_fd().as_raw_fd(), SIOCETHTOOL as libc::Ioctl, &raw mut request))?;
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_speed(speed_high: u16, speed_low: u16) -> Option<u64> {
        // SAFETY: zero bytes are valid integers.
        LinkSettings { speed_low, speed_high, ..unsafe { zeroed() } }.rate_bps()
    }

    #[test]
    fn a_speed_is_in_megabits_and_may_be_unknown() {
        assert_eq!(of_speed(0, 1_000), Some(1_000_000_000));
        // 400 Gb/s and 800 Gb/s take both halves.
        assert_eq!(of_speed(6, 6_784), Some(400_000_000_000));
        assert_eq!(of_speed(12, 13_568), Some(800_000_000_000));
        assert_eq!((of_speed(0, 0), of_speed(u16::MAX, u16::MAX)), (None, None));
    }
}
