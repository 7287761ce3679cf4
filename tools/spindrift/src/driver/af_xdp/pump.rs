//! `spindrift pump af_xdp`: what `AF_XDP` rings can do at best. Every build has its options.

use std::net::Ipv6Addr;

use anyhow::Result;
use clap::Args;

use crate::bench::pin::WaitName;
use crate::config::XdpModeName;
use crate::place::Place;
use crate::pump::{Common, PumpCommand};

/// Frames through `AF_XDP` rings, past the kernel's network stack.
#[derive(Args, Debug)]
pub(super) struct AfXdpPumpArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// Interface, or its address. A sender may leave it to the kernel's routes.
    #[arg(long, value_name = "ADDR|IF", required_unless_present = "remote")]
    pub(super) local: Option<Place>,
    /// Send under an outer IPv6 header to this address, such as the first destination that `spindrift path --ev` tells.
    #[arg(long, value_name = "ADDR", requires = "remote")]
    pub(super) carrier: Option<Ipv6Addr>,
    /// What a receiver does while there is nothing.
    #[arg(long, value_enum, default_value_t, conflicts_with = "remote")]
    pub(super) wait: WaitName,
    /// Who runs the XDP program.
    #[arg(long, value_enum, default_value_t)]
    pub(super) xdp_mode: XdpModeName,
}

impl PumpCommand for AfXdpPumpArgs {
    fn common(&self) -> &Common {
        &self.common
    }

    fn run(&self) -> Result<()> {
        super::built::pump(self)
    }
}
