//! The EAL's settings, from its arguments as every DPDK program takes them.

use std::str::FromStr;

use spindrift_dpdk::{DpdkConfig, EalConfig};

/// What these devices need, changed by what `words` say. Arguments that are no settings of ours go to the EAL as they are.
pub(super) fn config(words: &str, devices: &[DpdkConfig]) -> Result<EalConfig, String> {
    let mut config = EalConfig::for_devices(devices);
    let mut words = words.split_whitespace();
    while let Some(word) = words.next() {
        let (name, mut value) =
            word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let mut value = || {
            let value = value.take().or_else(|| words.next());
            value.ok_or_else(|| format!("`{name}` takes a value"))
        };
        match name {
            "--no-huge" => config.huge_pages = false,
            "--in-memory" => config.in_memory = true,
            "--no-pci" => config.pci = false,
            "-m" => config.memory_mib = Some(number(name, value()?)?),
            "--file-prefix" => {
                value()?.clone_into(&mut config.file_prefix);
                // Files are shared with those who know the name.
                config.in_memory = false;
            }
            "--lcores" => config.lcores = Some(value()?.to_owned()),
            "-l" | "-c" => {
                let value = value()?;
                return Err(format!("`{name} {value}`: give lcores with --lcores, as in --lcores 0@{value}"));
            }
            _ => config.extra_args.push(word.to_owned()),
        }
    }
    Ok(config)
}

fn number<T: FromStr>(name: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{name} {text}`: {text} is no number"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_the_eal_are_its_settings() {
        let usual = EalConfig::for_devices(&[]);
        assert_eq!(config("", &[]).unwrap(), usual);
        let all =
            "--no-huge -m 64 --file-prefix=mine --lcores 0@1 --no-pci --iova-mode=va --log-level lib.eal:8";
        let expected = EalConfig {
            huge_pages: false,
            memory_mib: Some(64),
            in_memory: false,
            file_prefix: "mine".to_owned(),
            pci: false,
            lcores: Some("0@1".to_owned()),
            extra_args: ["--iova-mode=va", "--log-level", "lib.eal:8"].map(str::to_owned).to_vec(),
        };
        assert_eq!(config(all, &[]).unwrap(), expected);
        assert!(config("--file-prefix mine --in-memory", &[]).unwrap().in_memory);
        let nic = DpdkConfig { device: "0000:3b:00.0".to_owned(), ..DpdkConfig::default() };
        assert!(config("", std::slice::from_ref(&nic)).unwrap().pci);
        assert!(!config("--no-pci", &[nic]).unwrap().pci);
        for (bad, part) in
            [("-m", "`-m`"), ("-m x", "`-m x`"), ("--lcores", "`--lcores`"), ("-l 1", "--lcores 0@1")]
        {
            assert!(config(bad, &[]).unwrap_err().contains(part), "{bad}");
        }
    }
}
