//! Tells what ports would be without opening them.

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use spindrift_bpf::attached;
use spindrift_pmd::{PortCaps, device};

use crate::config::{AfXdpConfig, AfXdpError, XdpMode};
use crate::features::{Features, features};
use crate::filter::Wanted;
use crate::open::{INHERITED_FD_GRACE, Maps, Plane, retry_for, system_error};
use spindrift_pmd::netlink::Netlink;

/// What ports on an interface would be, as far as that can be told without opening one. Nothing changes at the interface.
pub(crate) fn prospect(config: &AfXdpConfig, lanes: usize) -> Result<PortCaps, AfXdpError> {
    let Plane { interface, queues, mut caps, .. } = Plane::look_at(config, lanes)?;
    let name = interface.name;
    let socket = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None);
    socket.map_err(|error| system_error("open an AF_XDP socket on a queue", error.into(), &name, 0))?;
    let filter = |source| AfXdpError::of_filter(&name, source);
    let wanted = Wanted { ip: caps.local_ip, ports: config.udp_ports.clone() };
    Maps::new(queues).and_then(|maps| maps.program(&wanted)).map_err(filter)?;
    let free = || match attached(interface.index).map_err(filter)? {
        Some(there) => Err(AfXdpError::Busy { interface: name.clone(), program: Some(there.program) }),
        None => Ok(()),
    };
    retry_for(INHERITED_FD_GRACE, free, |error| matches!(error, AfXdpError::Busy { .. }))?;
    let driver = device::driver(
        &Netlink::open().map_err(|error| system_error("ask for the driver", error, &name, 0))?,
        &name,
    );
    let driver = driver.unwrap_or_else(|_| "unknown".to_owned());
    let features =
        features(interface.index).map_err(|error| system_error("ask for XDP features", error, &name, 0))?;
    if config.mode == XdpMode::Native && features.is_some_and(|features| !features.native) {
        return Err(AfXdpError::NotNative { interface: name, driver });
    }
    caps.notes.push(describe_driver(&driver, features));
    caps.notes.push(if queues == 1 {
        "1 queue: 1 lane".to_owned()
    } else {
        format!("{queues} queues: up to as many lanes")
    });
    Ok(caps)
}

/// What an interface's driver offers, for people.
fn describe_driver(driver: &str, features: Option<Features>) -> String {
    match features {
        None => {
            format!("driver {driver}: the kernel (older than 6.3) does not tell whether it has native XDP")
        }
        Some(Features { native: false, .. }) => {
            format!("driver {driver} without native XDP: generic, with copies")
        }
        Some(Features { zero_copy: false, .. }) => format!("driver {driver}: native XDP, with copies"),
        Some(Features { zero_copy: true, segments: 2.., .. }) => {
            format!("driver {driver}: native XDP, zero-copy")
        }
        Some(_) => format!("driver {driver}: native XDP; zero-copy for frames in one buffer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_driver_has_its_words() {
        let of = |native, zero_copy, segments| {
            describe_driver("mlx5_core", Some(Features { native, zero_copy, segments }))
        };
        assert_eq!(of(false, false, 1), "driver mlx5_core without native XDP: generic, with copies");
        assert_eq!(of(true, false, 1), "driver mlx5_core: native XDP, with copies");
        assert_eq!(of(true, true, 1), "driver mlx5_core: native XDP; zero-copy for frames in one buffer");
        assert_eq!(of(true, true, 5), "driver mlx5_core: native XDP, zero-copy");
        assert!(describe_driver("veth", None).contains("veth: the kernel (older than 6.3)"));
    }
}
