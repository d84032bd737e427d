//! The first table: over DPDK's virtual devices. Each switch is a process that moves frames on the same core, reads the
//! same frames with net_pcap, and sends to net_null devices.

mod castnet;
mod eal;
mod endless;
mod ipv4_multicast;
mod ovs;
mod testpmd;

use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use castnet_dpdk_tests::frames::data;
use castnet_dpdk_tests::write_pcap;
use castnet_wire::ipv4::checksum;
use tempfile::TempDir;

pub use castnet::{Kind, Part, Plan};

use crate::machine::{Cores, Reserved};
use crate::options::{Name, Options};
use crate::process::serve;
use crate::run::Field;

/// First argument that makes this program run Castnet; the plan follows as JSON.
pub const PART: &str = "castnet-part";
/// Frames of a file; net_pcap keeps all of them in buffers and repeats them.
const FRAMES: usize = 512;
/// Largest frame: net_pcap wants buffers for it in one piece.
const ROOM: usize = 9216;

/// Runs Castnet, and answers each line of input with its count, until the end of input.
pub fn part(mut words: impl Iterator<Item = String>) -> Result<()> {
    let plan = serde_json::from_str(&words.next().context("no plan")?)?;
    let part = Part::start(&plan)?;
    serve(|| part.count())
}

pub(crate) struct Shared {
    folder: PathBuf,
    cores: Cores,
    hugepages: bool,
}

#[derive(Clone, Copy)]
enum Frames {
    Group(usize),
    /// The same frames to 224.0.0.N, an address of ipv4_multicast's table.
    Table(u8),
}

impl Shared {
    /// Written on first use.
    fn file(&self, frames: Frames, payload: usize) -> PathBuf {
        let (name, group, address) = match frames {
            Frames::Group(group) => (format!("group{group}"), group, None),
            Frames::Table(last) => (format!("table{last}"), 0, Some(last)),
        };
        let file = self.folder.join(format!("{name}-{payload}.pcap"));
        if !file.exists() {
            let mut frame = data(group, group, 0, payload, false);
            if let Some(last) = address {
                to_address(&mut frame, last);
            }
            write_pcap(&file, &vec![frame; FRAMES]);
        }
        file
    }

    fn fresh(&self, name: &str) -> Result<PathBuf> {
        let folder = self.folder.join(name);
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        std::fs::create_dir(&folder)?;
        Ok(folder)
    }
}

const ETHERNET: usize = 14;

/// Changes the destination of a frame to 224.0.0.`last` and its Ethernet address.
fn to_address(frame: &mut [u8], last: u8) {
    frame[..6].copy_from_slice(&[0x01, 0x00, 0x5E, 0, 0, last]);
    let header = &mut frame[ETHERNET..ETHERNET + 20];
    header[16..].copy_from_slice(&[224, 0, 0, last]);
    header[10..12].fill(0);
    let sum = checksum(header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

fn source(number: usize, file: &Path, tx: &str) -> String {
    format!("net_pcap{number},rx_pcap={},infinite_rx=1{tx}", file.display())
}

fn sink(number: usize) -> String {
    format!("net_null{number},no-rx=1")
}

/// Argument for each send queue of a device that reads a file.
const NO_CAPTURE: &str = ",tx_pcap=/dev/null";

pub(crate) struct Over {
    shared: Rc<Shared>,
    why_no_hugepages: Option<String>,
    _reserved: Option<Reserved>,
    _folder: TempDir,
}

impl Over {
    pub(crate) fn new(options: &Options, cores: Cores) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("castnet-peers-").tempdir()?;
        let (reserved, why) = Reserved::new(options.hugepages)?;
        let shared = Shared {
            folder: folder.path().to_owned(),
            cores,
            hugepages: reserved.is_some(),
        };
        Ok(Self {
            shared: Rc::new(shared),
            why_no_hugepages: why,
            _reserved: reserved,
            _folder: folder,
        })
    }

    pub(crate) fn describe(&self) -> String {
        let memory = match (&self.why_no_hugepages, self.shared.hugepages) {
            (_, true) => "hugepages".to_owned(),
            (None, false) => "no hugepages".to_owned(),
            (Some(why), false) => format!("no hugepages: {why}"),
        };
        format!("{}, {memory}", castnet_dpdk::version())
    }

    pub(crate) fn field(&self, options: &Options) -> Field {
        let (mut field, shared) = (Field::default(), &self.shared);
        let castnet = |kind| Ok(castnet::Castnet::new(kind, shared.clone()));
        field.add(Name::Copy, options, || castnet(Kind::Copy));
        field.add(Name::Castnet, options, || castnet(Kind::Switch));
        field.add(Name::CastnetTwo, options, || match shared.cores.are_two() {
            true => castnet(Kind::Two),
            false => bail!("needs a second core"),
        });
        field.add(Name::Ipv4Multicast, options, || {
            ipv4_multicast::Ipv4Multicast::new(shared.clone())
        });
        field.add(Name::Ovs, options, || ovs::Ovs::new(shared.clone()));
        field.add(Name::Testpmd, options, || testpmd::Testpmd::new(shared.clone()));
        field
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use castnet_wire::ipv4::checksum_is_right;

    #[test]
    fn frames_for_another_table_are_as_long_and_as_right() {
        let ours = data(0, 0, 0, 64, false);
        let mut theirs = ours.clone();
        to_address(&mut theirs, 115);
        assert_eq!(theirs.len(), ours.len());
        assert!(checksum_is_right(&theirs[ETHERNET..ETHERNET + 20]));
        assert_eq!(theirs[30..34], [224, 0, 0, 115]);
        assert_eq!(theirs[34..], ours[34..]);
    }
}
