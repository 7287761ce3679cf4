//! Names of values, as `libibverbs` gives them to programs that print them.

use core::ffi::{CStr, c_char, c_int};

fn name(names: &'static [&'static CStr], value: c_int, unknown: &'static CStr) -> *const c_char {
    usize::try_from(value).ok().and_then(|value| names.get(value)).unwrap_or(&unknown).as_ptr()
}

pub(crate) extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    const NAMES: [&CStr; 24] = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    name(&NAMES, status, c"unknown")
}

pub(crate) extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    const NAMES: [&CStr; 20] = [
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
    ];
    name(&NAMES, event, c"unknown")
}

pub(crate) extern "C" fn ibv_node_type_str(node: c_int) -> *const c_char {
    const NAMES: [&CStr; 8] = [
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    name(&NAMES, node, c"unknown")
}

pub(crate) extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    const NAMES: [&CStr; 6] =
        [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];
    name(&NAMES, state, c"invalid state")
}

/// The codes of rates, in multiples of 2.5 Gb/s and in Mb/s.
const RATES: [(c_int, c_int, c_int); 22] = [
    (2, 1, 2_500),
    (5, 2, 5_000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, 5, 14_062),
    (12, 45, 112_500),
    (13, 22, 56_250),
    (14, 67, 168_750),
    (15, 10, 25_781),
    (16, 41, 103_125),
    (17, 82, 206_250),
    (18, 123, 309_375),
    (19, 11, 28_125),
    (20, 20, 50_000),
    (21, 160, 400_000),
    (22, 240, 600_000),
    (23, 320, 800_000),
];

fn rate(find: impl Fn(&(c_int, c_int, c_int)) -> Option<c_int>) -> Option<c_int> {
    RATES.iter().find_map(find)
}

pub(crate) extern "C" fn ibv_rate_to_mult(code: c_int) -> c_int {
    rate(|row| (row.0 == code).then_some(row.1)).unwrap_or(-1)
}

pub(crate) extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_int {
    rate(|row| (row.1 == mult).then_some(row.0)).unwrap_or(0)
}

pub(crate) extern "C" fn ibv_rate_to_mbps(code: c_int) -> c_int {
    rate(|row| (row.0 == code).then_some(row.2)).unwrap_or(-1)
}

pub(crate) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    rate(|row| (row.2 == mbps).then_some(row.0)).unwrap_or(0)
}
