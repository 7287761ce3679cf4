//! What the kernel knows of PCI devices: whose they are.

use std::fs;
use std::path::Path;

use crate::DpdkError;

/// Where the kernel shows them.
pub(crate) const DEVICES: &str = "/sys/bus/pci/devices";
/// Drivers of the kernel under which DPDK has a device.
const FOR_USER_SPACE: [&str; 3] = ["vfio-pci", "uio_pci_generic", "igb_uio"];
/// Drivers of the kernel that share their device with DPDK.
const SHARED: [&str; 3] = ["mlx5_core", "mlx4_core", "mana"];
/// First two digits of the class of network devices.
const NETWORK: &str = "0x02";

/// The whole PCI address that a device description begins with, if it does.
pub(crate) fn address(device: &str) -> Option<String> {
    let text = device.split(',').next()?;
    let text = text.strip_prefix("pci:").unwrap_or(text);
    let (place, function) = text.rsplit_once('.')?;
    let parts: Vec<&str> = place.split(':').collect();
    let (domain, bus, slot) = match parts[..] {
        [bus, slot] => ("0000", bus, slot),
        [domain, bus, slot] => (domain, bus, slot),
        _ => return None,
    };
    let is_hex = |text: &str, len| text.len() == len && text.chars().all(|c| c.is_ascii_hexdigit());
    let fits = is_hex(domain, 4) && is_hex(bus, 2) && is_hex(slot, 2) && is_hex(function, 1);
    fits.then(|| format!("{domain}:{bus}:{slot}.{function}").to_ascii_lowercase())
}

fn driver(folder: &Path) -> Option<String> {
    let link = fs::read_link(folder.join("driver")).ok()?;
    Some(link.file_name()?.to_string_lossy().into_owned())
}

/// The addresses of the network devices in a folder.
pub(crate) fn nics(devices: &Path) -> Vec<String> {
    let network = |entry: &fs::DirEntry| {
        fs::read_to_string(entry.path().join("class")).is_ok_and(|class| class.starts_with(NETWORK))
    };
    let all = fs::read_dir(devices).into_iter().flatten().flatten().filter(network);
    let mut addresses: Vec<String> =
        all.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    addresses.sort();
    addresses
}

/// The network devices in a folder, with their drivers.
pub(crate) fn known(devices: &Path) -> Vec<String> {
    let with_driver = |address: String| {
        let driver = driver(&devices.join(&address)).unwrap_or_else(|| "no driver".to_owned());
        format!("{address} ({driver})")
    };
    nics(devices).into_iter().map(with_driver).collect()
}

/// Whether DPDK can have a device.
pub(crate) fn check(devices: &Path, address: &str) -> Result<(), DpdkError> {
    let folder = devices.join(address);
    if !folder.exists() {
        let known = known(devices);
        let known = if known.is_empty() { "no PCI NIC".to_owned() } else { known.join(", ") };
        return Err(DpdkError::NoDevice { device: address.to_owned(), known, log: Vec::new() });
    }
    let device = address.to_owned();
    match driver(&folder) {
        None => Err(DpdkError::Unbound { device }),
        Some(driver) if FOR_USER_SPACE.iter().chain(&SHARED).any(|known| *known == driver) => Ok(()),
        Some(driver) => Err(DpdkError::KernelDriver { device, driver }),
    }
}

/// The other devices of a device's IOMMU group, with their drivers.
pub(crate) fn group(devices: &Path, address: &str) -> Vec<String> {
    let folder = devices.join(address).join("iommu_group/devices");
    let mut others: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|other| other != address)
        .map(|other| {
            let driver = driver(&devices.join(&other)).unwrap_or_else(|| "no driver".to_owned());
            format!("{other} ({driver})")
        })
        .collect();
    others.sort();
    others
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn addresses_are_told_from_names() {
        assert_eq!(address("0000:3b:00.0").as_deref(), Some("0000:3b:00.0"));
        assert_eq!(address("3B:00.1,arg=1").as_deref(), Some("0000:3b:00.1"));
        assert_eq!(address("pci:0000:01:02.7").as_deref(), Some("0000:01:02.7"));
        for name in ["", "net_ring0", "net_memif0,role=client", "3b:0.0", "3b:00", "3b:00.x", "0:0:3b:00.0"] {
            assert_eq!(address(name), None, "{name}");
        }
    }

    struct Bus(PathBuf);

    impl Bus {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("spindrift-pci-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn add(&self, address: &str, class: &str, driver: Option<&str>) {
            let folder = self.0.join(address);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("class"), class).unwrap();
            if let Some(driver) = driver {
                symlink(Path::new("/drivers").join(driver), folder.join("driver")).unwrap();
            }
        }
    }

    impl Drop for Bus {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    #[test]
    fn errors_tell_whose_a_device_is() {
        let bus = Bus::new();
        bus.add("0000:01:00.0", "0x020000", Some("ixgbe"));
        bus.add("0000:01:00.1", "0x020000", None);
        bus.add("0000:02:00.0", "0x020000", Some("vfio-pci"));
        bus.add("0000:03:00.0", "0x010802", Some("nvme"));
        bus.add("0000:04:00.0", "0x020000", Some("mlx5_core"));
        let all = ["0000:01:00.0", "0000:01:00.1", "0000:02:00.0", "0000:04:00.0"];
        assert_eq!(nics(&bus.0), all);
        let error = |address| check(&bus.0, address).unwrap_err().to_string();
        assert!(check(&bus.0, "0000:02:00.0").is_ok() && check(&bus.0, "0000:04:00.0").is_ok());
        let text = error("0000:01:00.0");
        assert!(
            text.contains("driver ixgbe") && text.contains("dpdk-devbind.py --bind=vfio-pci 0000:01:00.0"),
            "{text}"
        );
        let text = error("0000:01:00.1");
        assert!(text.contains("no driver") && text.contains("--bind=vfio-pci 0000:01:00.1"), "{text}");
        let text = error("0000:09:00.0");
        let parts = [
            "no device 0000:09:00.0",
            "0000:01:00.0 (ixgbe), 0000:01:00.1 (no driver)",
            "0000:02:00.0 (vfio-pci)",
        ];
        assert!(parts.iter().all(|part| text.contains(part)) && !text.contains("nvme"), "{text}");
        let group_folder = bus.0.join("0000:02:00.0/iommu_group/devices");
        for member in ["0000:02:00.0", "0000:01:00.0"] {
            fs::create_dir_all(group_folder.join(member)).unwrap();
        }
        let others = group(&bus.0, "0000:02:00.0");
        assert_eq!(others, ["0000:01:00.0 (ixgbe)"]);
        let text = DpdkError::NotViable { device: "0000:02:00.0".to_owned(), others }.to_string();
        assert!(text.contains("group of 0000:02:00.0 is not viable") && text.contains("(ixgbe)"), "{text}");
    }
}
