//! `-p` and `--port`: perftest's TCP port, and the kind and places of the planes' ports.

use std::str::FromStr;

use anyhow::Result;

use crate::driver::{self, Driver};
use crate::place::Place;
use crate::usage::usage;

/// `-p 18515`, `--port udp`, or `--port af_xdp:eth0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PortArg {
    Tcp(u16),
    Kind(&'static Driver, Option<Place>),
}

impl FromStr for PortArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(port) = text.parse()
            && port != 0
        {
            return Ok(Self::Tcp(port));
        }
        let (kind, place) = text.split_once(':').map_or((text, None), |(kind, place)| (kind, Some(place)));
        let driver = driver::find(kind).ok_or_else(|| {
            let known = driver::names_between_hosts(", ");
            format!("`{text}` is neither a TCP port (1 to 65535) nor a kind of port ({known}) with or without its place (af_xdp:eth0)")
        })?;
        Ok(Self::Kind(driver, place.map(|place| driver.place(place)).transpose()?))
    }
}

/// What all of them say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ports {
    pub(super) tcp: Option<u16>,
    pub(super) kind: Option<&'static Driver>,
    /// By plane.
    pub(super) places: Vec<Place>,
}

impl Ports {
    pub(super) fn new(args: &[PortArg]) -> Result<Self> {
        let mut ports = Self::default();
        for arg in args {
            match arg {
                PortArg::Tcp(port) => ports.tcp = Some(*port),
                PortArg::Kind(kind, place) => {
                    if let Some(other) = ports.kind.filter(|other| other != kind) {
                        let (one, other) = (other.name, kind.name);
                        return Err(usage(format!(
                            "--port {one} and --port {other}: all planes need ports of one kind"
                        )));
                    }
                    ports.kind = Some(*kind);
                    ports.places.extend(place.clone());
                }
            }
        }
        Ok(ports)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::driver::UDP;

    fn read(args: &[&str]) -> Result<Ports, String> {
        let args: Vec<PortArg> = args.iter().map(|arg| arg.parse()).collect::<Result<_, _>>()?;
        Ports::new(&args).map_err(|error| error.to_string())
    }

    #[test]
    fn ports_are_numbers_kinds_and_places() {
        let place = |text: &str| Place::from(text.to_owned());
        let af_xdp = driver::find("af_xdp");
        let both = read(&["af_xdp:eth1", "7000", "af_xdp:eth0"]).unwrap();
        let planes = vec![place("eth1"), place("eth0")];
        assert_eq!(both, Ports { tcp: Some(7000), kind: af_xdp, places: planes });
        assert_eq!(
            read(&["udp:::1"]).unwrap(),
            Ports { tcp: None, kind: Some(UDP), places: vec![place("::1")] }
        );
        assert_eq!(read(&["udp", "udp"]).unwrap(), Ports { kind: Some(UDP), ..Ports::default() });
        assert_eq!(read(&["1", "65535"]).unwrap().tcp, Some(65_535));
    }

    #[test]
    fn what_is_neither_is_named() {
        let refused = |args: &[&str], parts: &[&str]| {
            let error = read(args).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        };
        for bad in ["0", "65536", "tcp", "", "rdma:eth0", "UDP"] {
            refused(&[bad], &[bad, "1 to 65535", "udp, af_xdp"]);
        }
        refused(&["af_xdp:"], &["``", "neither an address nor the name of an interface"]);
        refused(&["udp:eth0:1"], &["eth0:1", "neither an address"]);
        refused(&["udp:eth0", "af_xdp:eth1"], &["--port udp and --port af_xdp", "one kind"]);
    }
}
