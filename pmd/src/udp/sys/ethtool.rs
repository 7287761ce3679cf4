//! What ethtool (linux/ethtool.h) knows of an interface's link. It is asked through a socket, so that it is about the
//! interface of the socket's network namespace; `/sys/class/net` may show another's.

use std::io;
use std::mem::{offset_of, zeroed};
use std::os::fd::AsRawFd;

use super::{check, interface_request};

/// `SIOCETHTOOL` (linux/sockios.h).
const SIOCETHTOOL: u32 = 0x8946;

/// Drivers of virtual links that make a rate up: 10 Gb/s and 10 Mb/s.
const MADE_UP: [&[u8]; 2] = [b"veth\0", b"tun\0"];

/// The rate of the interface's link in bits per second; `None` if the driver does not say, or makes it up.
pub(super) fn rate_bps(fd: &impl AsRawFd, name: &str) -> Option<u64> {
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

// As linux/ethtool.h has them.
const _: () = assert!(size_of::<LinkSettings>() == 44 && size_of::<DriverInfo>() == 196);
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

impl LinkSettings {
    /// The speed is in Mb/s; 0 and all ones mean that nobody knows it.
    fn rate_bps(&self) -> Option<u64> {
        let mbps = u32::from(self.speed_high) << 16 | u32::from(self.speed_low);
        (mbps != 0 && mbps != u32::MAX).then(|| u64::from(mbps) * 1_000_000)
    }
}

fn get<T: Answer>(fd: &impl AsRawFd, name: &str) -> io::Result<T> {
    // SAFETY: zero bytes are valid integers.
    let mut answer: T = unsafe { zeroed() };
    let mut request = interface_request(name);
    request.ifr_ifru.ifru_data = (&raw mut answer).cast();
    // SAFETY: the answer starts with its command and is as long as the kernel takes it to be; the request is live and named,
    // and so is the answer, to which nothing else refers.
    unsafe {
        (&raw mut answer).cast::<u32>().write(T::COMMAND);
        check(libc::ioctl(fd.as_raw_fd(), SIOCETHTOOL as libc::Ioctl, &raw mut request))?;
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
