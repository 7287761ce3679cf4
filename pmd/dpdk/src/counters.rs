//! What drivers count beside what ports do.

use crate::sys::Device;

/// Counters of a device, by the names that its driver gives them (`xstats`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// The device as DPDK names it, such as `net_memif0` or `0000:3b:00.0`.
    pub device: String,
    /// Name and count since the device was opened, in the driver's order. Counters that are levels, and not counts, are
    /// differences too.
    pub counters: Vec<(String, u64)>,
}

/// What the drivers of all devices count that this process has open. It asks the drivers, so it is not for every packet, and
/// waits while a device is opened or closed.
pub fn device_counters() -> Vec<DeviceCounters> {
    Device::counters().into_iter().map(|(device, counters)| DeviceCounters { device, counters }).collect()
}
