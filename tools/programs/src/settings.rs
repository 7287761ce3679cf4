//! What the environment says of the devices to show and their planes. Nothing is opened here.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::PathBuf;

use spindrift::path::PlaneSet;
use spindrift_pmd::fault::FaultPlan;

/// A device and the planes that it consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicSettings {
    /// Its name, as programs see it.
    pub name: String,
    /// The address of each plane.
    pub planes: Vec<IpAddr>,
    /// Those that stand by for the others, as the planes of a second NIC.
    pub standby: PlaneSet,
}

impl NicSettings {
    /// A device whose planes are all used.
    pub fn new(name: impl Into<String>, planes: Vec<IpAddr>) -> Self {
        Self { name: name.into(), planes, standby: PlaneSet(0) }
    }
}

/// See the [module documentation](self).
#[derive(Clone, Debug)]
pub struct Settings {
    /// The devices, at least one.
    pub nics: Vec<NicSettings>,
    /// The first of the UDP ports by which processes are found.
    pub control_port: u16,
    /// `vendor_part_id` of the devices. Some programs decide by it what a device can do.
    pub part_id: u32,
    /// Faults of all planes, as in `--fault`.
    pub fault: Option<FaultPlan>,
    /// The seed of the faults' draws.
    pub seed: u64,
    /// Where the socket for `spindrift ctl` is.
    pub control_dir: OperatorFolder,
    /// The folder in which controllers keep the state of devices. Default: one that only the administrator may write.
    pub device_dir: Option<PathBuf>,
    /// Peers that send no messages to find each other, such as NICs; programs say all that a connection needs.
    pub peers: Option<StaticPeers>,
}

/// Peers to which queue pairs connect by what their program says alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticPeers {
    /// The UDP port of MRC, on both sides.
    pub udp_port: u16,
    /// The planes of each peer, whose GID has the first one's address. Empty: each peer has one plane.
    pub planes: Vec<Vec<IpAddr>>,
}

impl StaticPeers {
    /// The planes of the peer with this address.
    pub fn planes(&self, address: IpAddr) -> Option<Vec<IpAddr>> {
        if self.planes.is_empty() {
            return Some(vec![address]);
        }
        self.planes.iter().find(|planes| planes.first() == Some(&address)).cloned()
    }
}

/// The folder of the socket through which an operator sees and moves queue pairs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OperatorFolder {
    /// The one where `spindrift ctl` looks.
    #[default]
    Usual,
    /// There is no socket.
    None,
    /// Another one.
    At(PathBuf),
}

impl OperatorFolder {
    fn of(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            path if path.starts_with('/') => Ok(Self::At(path.into())),
            _ => Err("write a folder from / on, or none".to_owned()),
        }
    }
}

/// A setting that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{name}={value}: {reason}")]
pub struct SettingsError {
    name: &'static str,
    value: String,
    reason: String,
}

/// The first control port, if the environment names none.
pub const CONTROL_PORT: u16 = 24_971;
/// The UDP port of MRC, if the environment names none.
pub const UDP_PORT: u16 = 4_971;
/// Characters of a device's name, at most.
const MAX_NAME: usize = 32;
/// Planes of a device, at most.
const MAX_PLANES: usize = spindrift::verbs::negotiate::MAX_PORTS;

impl SettingsError {
    /// The variable.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What it says.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Why that cannot be used.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl Settings {
    /// Those that `get` gives, by name of the variable.
    ///
    /// # Errors
    /// [`SettingsError`] names the variable.
    pub fn from(get: impl Fn(&'static str) -> Option<String>) -> Result<Self, SettingsError> {
        fn parsed<T>(
            (name, value): (&'static str, Option<String>),
            parse: impl FnOnce(&str) -> Result<T, String>,
        ) -> Result<Option<T>, SettingsError> {
            let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(None) };
            parse(&value).map(Some).map_err(|reason| SettingsError { name, value, reason })
        }
        let of = |name| (name, get(name));
        let number = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
        let part_id = |text: &str| text.parse::<u32>().map_err(|error| error.to_string());
        let nics = parsed(of("SPINDRIFT_NICS"), nics)?;
        let planes = parsed(of("SPINDRIFT_PLANES"), planes)?;
        if planes.is_some() && nics.is_some() {
            let reason = "SPINDRIFT_PLANES is set too; leave one of them out".to_owned();
            let (name, value) = of("SPINDRIFT_NICS");
            return Err(SettingsError { name, value: value.unwrap_or_default(), reason });
        }
        let nics = nics.unwrap_or_else(|| {
            let (planes, standby) = planes.unwrap_or_else(|| (vec![usual_address()], PlaneSet(0)));
            vec![NicSettings { name: "spindrift0".to_owned(), planes, standby }]
        });
        let port = parsed(of("SPINDRIFT_CONTROL_PORT"), |text| {
            text.parse::<u16>().ok().filter(|port| (1_024..=60_000).contains(port)).ok_or_else(|| {
                "write a port from 1024 to 60000; processes use it and those that follow".to_owned()
            })
        })?;
        let fault = parsed(of("SPINDRIFT_FAULT"), |text| {
            text.parse().map_err(|error: spindrift_pmd::fault::FaultPlanError| error.to_string())
        })?;
        let peers = parsed(of("SPINDRIFT_STATIC_PEERS"), static_peers)?;
        if peers.is_some() && nics.iter().any(|nic| nic.standby.0 != 0) {
            let reason =
                "such peers do not follow a failover, so devices have one NIC; leave out the +".to_owned();
            let (name, value) = of("SPINDRIFT_STATIC_PEERS");
            return Err(SettingsError { name, value: value.unwrap_or_default(), reason });
        }
        let udp_port = parsed(of("SPINDRIFT_UDP_PORT"), |text| match (text.parse(), &peers) {
            (Ok(0) | Err(_), _) => Err("write a UDP port from 1 to 65535".to_owned()),
            (Ok(_), None) => {
                Err("processes have UDP ports of their own but with SPINDRIFT_STATIC_PEERS".to_owned())
            }
            (Ok(port), Some(_)) => Ok(port),
        })?;
        let udp_port = udp_port.unwrap_or(UDP_PORT);
        Ok(Self {
            peers: peers.map(|planes| StaticPeers { udp_port, planes }),
            nics,
            control_port: port.unwrap_or(CONTROL_PORT),
            part_id: parsed(of("SPINDRIFT_VENDOR_PART_ID"), part_id)?.unwrap_or(0),
            fault,
            seed: parsed(of("SPINDRIFT_SEED"), number)?.unwrap_or(1),
            control_dir: parsed(of("SPINDRIFT_CONTROL_DIR"), OperatorFolder::of)?.unwrap_or_default(),
            device_dir: parsed(of("SPINDRIFT_DEVICE_DIR"), |text| {
                let path = PathBuf::from(text);
                if path.is_absolute() { Ok(path) } else { Err("write a folder from / on".to_owned()) }
            })?,
        })
    }
}

/// `name=address,address+address;name=address`.
fn nics(text: &str) -> Result<Vec<NicSettings>, String> {
    let mut all: Vec<NicSettings> = Vec::new();
    for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, addresses) =
            part.split_once('=').ok_or_else(|| format!("{part}: write NAME=ADDRESS,ADDRESS"))?;
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(fits) {
            return Err(format!("{name}: a name has 1 to {MAX_NAME} letters, digits, - and _"));
        }
        if all.iter().any(|other| other.name == name) {
            return Err(format!("{name}: there are two of this name"));
        }
        let (planes, standby) = planes(addresses)?;
        all.push(NicSettings { name: name.to_owned(), planes, standby });
    }
    if all.is_empty() { Err("there is no device".to_owned()) } else { Ok(all) }
}

/// `any`, or the planes of each peer: `address,address;address,address`.
fn static_peers(text: &str) -> Result<Vec<Vec<IpAddr>>, String> {
    if text == "any" {
        return Ok(Vec::new());
    }
    let mut all: Vec<Vec<IpAddr>> = Vec::new();
    for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        let (peer, standby) = planes(part)?;
        if standby.0 != 0 {
            return Err(format!(
                "{part}: a peer whose NIC cannot fail over has no second one, so there is no +"
            ));
        }
        if let Some(first) =
            peer.first().filter(|first| all.iter().any(|other| other.first() == Some(*first)))
        {
            return Err(format!("{first} is the first plane of two peers"));
        }
        all.push(peer);
    }
    if all.is_empty() {
        Err("there is no peer; any stands for all that have one plane".to_owned())
    } else {
        Ok(all)
    }
}

/// Addresses, separated by commas.
fn addresses(text: &str) -> Result<Vec<IpAddr>, String> {
    let address = |part: &str| part.parse().map_err(|_| format!("{part} is no address"));
    text.split(',').map(str::trim).map(address).collect()
}

/// Addresses of one family, one for each plane, and those planes of them that stand by: after a `+`, as those of a second NIC.
fn planes(text: &str) -> Result<(Vec<IpAddr>, PlaneSet), String> {
    let nics: Vec<_> = text.split('+').map(addresses).collect::<Result<_, _>>()?;
    if nics.len() > 2 {
        return Err("a device has two NICs at most, so there is at most one +".to_owned());
    }
    let primary = nics.first().map_or(0, Vec::len);
    let planes = nics.concat();
    if let Some(twice) =
        planes.iter().enumerate().find(|(at, plane)| planes.iter().take(*at).any(|other| other == *plane))
    {
        return Err(format!("{} is the address of two planes", twice.1));
    }
    let is_v4 = |address: &IpAddr| address.is_ipv4();
    if planes.iter().any(is_v4) && !planes.iter().all(is_v4) {
        return Err("the planes of a device have addresses of one family".to_owned());
    }
    if planes.len() > MAX_PLANES {
        return Err(format!("a device has at most {MAX_PLANES} planes"));
    }
    let standby = PlaneSet::first(planes.len() as u8).0 & !PlaneSet::first(primary as u8).0;
    Ok((planes, PlaneSet(standby)))
}

/// The address from which this host reaches others, or its loopback address.
fn usual_address() -> IpAddr {
    // Nothing is sent: the kernel looks up the route.
    let source = |bind: &str, to: &str| {
        let socket = UdpSocket::bind((bind, 0)).ok()?;
        socket.connect((to, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    source("0.0.0.0", "192.0.2.1")
        .or_else(|| source("::", "2001:db8::1"))
        .unwrap_or(Ipv4Addr::LOCALHOST.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&'static str, &str)]) -> Result<Settings, String> {
        let get = |name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Settings::from(get).map_err(|error| error.to_string())
    }

    #[test]
    fn devices_are_named_or_one() {
        let addresses =
            |text: &[&str]| text.iter().map(|part| part.parse().unwrap()).collect::<Vec<IpAddr>>();
        let one = of(&[("SPINDRIFT_PLANES", "10.0.0.1, 10.1.0.1")]).unwrap();
        let planes = addresses(&["10.0.0.1", "10.1.0.1"]);
        assert_eq!(one.nics, [NicSettings::new("spindrift0", planes)]);
        assert_eq!((one.control_port, one.part_id), (CONTROL_PORT, 0));
        let two =
            of(&[("SPINDRIFT_NICS", "a=::1;b-1=::2,::3"), ("SPINDRIFT_CONTROL_PORT", "30000")]).unwrap();
        assert_eq!(two.nics[1], NicSettings::new("b-1", addresses(&["::2", "::3"])));
        assert_eq!(two.control_port, 30_000);
        assert_eq!(of(&[]).unwrap().nics.len(), 1);
        // As a shell leaves it.
        assert_eq!(of(&[("SPINDRIFT_NICS", "")]).unwrap().nics[0].name, "spindrift0");
    }

    #[test]
    fn an_operator_has_a_folder_or_none() {
        for (text, folder) in [
            ("", OperatorFolder::Usual),
            ("none", OperatorFolder::None),
            ("/run/a", OperatorFolder::At("/run/a".into())),
        ] {
            assert_eq!(of(&[("SPINDRIFT_CONTROL_DIR", text)]).unwrap().control_dir, folder);
        }
    }

    #[test]
    fn a_second_nic_stands_by() {
        let one = of(&[("SPINDRIFT_PLANES", "10.0.0.1, 10.1.0.1 + 10.2.0.1")]).unwrap();
        assert_eq!((one.nics[0].planes.len(), one.nics[0].standby), (3, PlaneSet(0b100)));
        let two = of(&[("SPINDRIFT_NICS", "a=::1+::2,::3;b=::4")]).unwrap();
        assert_eq!(two.nics[0].planes[2], "::3".parse::<IpAddr>().unwrap());
        assert_eq!([two.nics[0].standby, two.nics[1].standby], [PlaneSet(0b110), PlaneSet(0)]);
    }

    #[test]
    fn static_peers_have_planes() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(of(&[]).unwrap().peers, None);
        let any = of(&[("SPINDRIFT_STATIC_PEERS", "any")]).unwrap().peers.unwrap();
        assert_eq!((any.udp_port, any.planes(ip("10.0.0.9"))), (UDP_PORT, Some(vec![ip("10.0.0.9")])));
        let variables =
            [("SPINDRIFT_STATIC_PEERS", "10.0.0.2,10.1.0.2; ::3"), ("SPINDRIFT_UDP_PORT", "4791")];
        let standby = of(&[("SPINDRIFT_STATIC_PEERS", "any"), ("SPINDRIFT_PLANES", "::1+::2")]).unwrap_err();
        assert!(standby.starts_with("SPINDRIFT_STATIC_PEERS=any: such peers do not follow"), "{standby}");
        let two = of(&variables).unwrap().peers.unwrap();
        assert_eq!(
            (two.udp_port, two.planes(ip("10.0.0.2"))),
            (4791, Some(vec![ip("10.0.0.2"), ip("10.1.0.2")]))
        );
        assert_eq!((two.planes(ip("::3")), two.planes(ip("10.1.0.2"))), (Some(vec![ip("::3")]), None));
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let both = of(&[("SPINDRIFT_PLANES", "::1"), ("SPINDRIFT_NICS", "a=::1")]).unwrap_err();
        assert_eq!(both, "SPINDRIFT_NICS=a=::1: SPINDRIFT_PLANES is set too; leave one of them out");
        for (name, value, reason) in [
            ("SPINDRIFT_PLANES", "10.0.0.1,x", "x is no address"),
            ("SPINDRIFT_PLANES", "10.0.0.1,10.0.0.1", "two planes"),
            ("SPINDRIFT_PLANES", "10.0.0.1,::1", "one family"),
            ("SPINDRIFT_PLANES", "10.0.0.1+::1", "one family"),
            ("SPINDRIFT_PLANES", "10.0.0.1+10.0.0.1", "two planes"),
            ("SPINDRIFT_PLANES", "10.0.0.1+", " is no address"),
            ("SPINDRIFT_PLANES", "+10.0.0.1", " is no address"),
            ("SPINDRIFT_PLANES", "10.0.0.1+10.0.0.2+10.0.0.3", "two NICs at most"),
            ("SPINDRIFT_NICS", "10.0.0.1", "NAME=ADDRESS"),
            ("SPINDRIFT_NICS", "a b=10.0.0.1", "a name has"),
            ("SPINDRIFT_NICS", "a=10.0.0.1;a=10.0.0.2", "two of this name"),
            ("SPINDRIFT_NICS", ";", "no device"),
            ("SPINDRIFT_CONTROL_PORT", "70000", "1024 to 60000"),
            ("SPINDRIFT_CONTROL_PORT", "80", "1024 to 60000"),
            ("SPINDRIFT_FAULT", "los=1%", "unknown word"),
            ("SPINDRIFT_SEED", "x", "invalid digit"),
            ("SPINDRIFT_CONTROL_DIR", "here", "from / on, or none"),
            ("SPINDRIFT_DEVICE_DIR", "here", "from / on"),
            ("SPINDRIFT_UDP_PORT", "4971", "but with SPINDRIFT_STATIC_PEERS"),
            ("SPINDRIFT_UDP_PORT", "0", "from 1 to 65535"),
            ("SPINDRIFT_STATIC_PEERS", "10.0.0.1,x", "x is no address"),
            ("SPINDRIFT_STATIC_PEERS", ";", "there is no peer"),
            ("SPINDRIFT_STATIC_PEERS", "10.0.0.1+10.0.0.2", "no second one"),
            ("SPINDRIFT_STATIC_PEERS", "10.0.0.1;10.0.0.1,10.0.0.2", "first plane of two peers"),
            ("SPINDRIFT_VENDOR_PART_ID", "4294967296", "too large"),
        ] {
            let error = of(&[(name, value)]).unwrap_err();
            assert!(error.starts_with(&format!("{name}={value}: ")) && error.contains(reason), "{error}");
        }
    }
}
