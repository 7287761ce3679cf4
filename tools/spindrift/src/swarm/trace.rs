//! Every packet on every link, in a file.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError};
use spindrift::time::Time;
use spindrift_fabric::swarm::{Case, Watch};
use spindrift_fabric::{Packet, Sight};
use spindrift_srv6::Node;

/// `if_tsresol` of timestamps in nanoseconds: 10 to the power of -9.
const NANOSECONDS: u8 = 9;

/// A capture with an interface for each direction of each cable. A packet is in it once for each link, at the time at which it comes
/// to the end, with a comment if it does not go on from there.
pub(super) struct Trace {
    path: PathBuf,
    inner: Rc<RefCell<Inner>>,
}

struct Inner {
    out: PcapNgWriter<BufWriter<File>>,
    interfaces: BTreeMap<(Node, Node), u32>,
    /// The first error; nothing is written after it.
    failed: Option<PcapError>,
}

impl Trace {
    pub(super) fn create(path: &Path, case: &Case) -> Result<Self> {
        let context = || format!("cannot write {}", path.display());
        let fabric = case.fabric.fabric()?;
        let file = File::create(path).with_context(context)?;
        let mut out = PcapNgWriter::new(BufWriter::new(file)).with_context(context)?;
        let mut interfaces = BTreeMap::new();
        for (lower, upper) in fabric.links() {
            for (from, to) in [(lower, upper), (upper, lower)] {
                let name = format!("{} > {}", fabric.name(from), fabric.name(to));
                let options = vec![
                    InterfaceDescriptionOption::IfName(Cow::Owned(name)),
                    InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
                ];
                let block = InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 0, options };
                out.write_pcapng_block(block).with_context(context)?;
                interfaces.insert((from, to), interfaces.len() as u32);
            }
        }
        let inner = Inner { out, interfaces, failed: None };
        Ok(Self { path: path.to_owned(), inner: Rc::new(RefCell::new(inner)) })
    }

    pub(super) fn watch(&self) -> Watch {
        let inner = Rc::clone(&self.inner);
        Box::new(move |at, ends, sight, packet| inner.borrow_mut().write(at, ends, sight, packet))
    }

    /// Sees to it that all is in the file.
    pub(super) fn finish(self) -> Result<()> {
        let inner = &mut *self.inner.borrow_mut();
        let flushed = inner.out.get_mut().flush().map_err(PcapError::IoError);
        let result = inner.failed.take().map_or(flushed, Err);
        result.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

impl Inner {
    fn write(&mut self, at: Time, ends: (Node, Node), sight: Sight, packet: &Packet) {
        let comment = match sight {
            Sight::Sent => return,
            Sight::Arrived => None,
            Sight::Lost => Some("lost on the link"),
            Sight::Dropped => Some("dropped: the link is down or its queue is full"),
            Sight::Discarded => Some("discarded: the node at the end of the link does not take it"),
        };
        let Some(&interface_id) = self.interfaces.get(&ends).filter(|_| self.failed.is_none()) else {
            return;
        };
        let mut data = packet.head().to_vec();
        data.extend_from_slice(packet.body().unwrap_or_default());
        let block = EnhancedPacketBlock {
            interface_id,
            timestamp: Duration::from_nanos(at.0),
            original_len: packet.frame_len(),
            data: Cow::Owned(data),
            options: comment.map(|text| EnhancedPacketOption::Comment(text.into())).into_iter().collect(),
        };
        if let Err(error) = self.out.write_pcapng_block(block) {
            self.failed = Some(error);
        }
    }
}
