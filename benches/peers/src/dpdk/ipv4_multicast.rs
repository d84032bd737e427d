//! DPDK's example ipv4_multicast: new Ethernet headers before a body that all copies share. It is built from its source
//! into a temporary folder.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use anyhow::{Context, Result, bail, ensure};

use super::{Frames, NO_CAPTURE, ROOM, Shared, eal, sink, source};
use crate::measure::Running;
use crate::options::Name;
use crate::process::{missing, output};
use crate::report::Setting;
use crate::run::Peer;

const SOURCE: &str = "/usr/share/dpdk/examples/ipv4_multicast/main.c";

/// Changes of its source: buffers for the longest frame in one piece, as net_pcap wants; no offload that net_pcap
/// lacks; a table entry with eight ports.
const CHANGES: [(&str, &str); 3] = [
    (
        "PKT_MBUF_DATA_SIZE\tRTE_MBUF_DEFAULT_BUF_SIZE",
        "PKT_MBUF_DATA_SIZE\t(BYTES + RTE_PKTMBUF_HEADROOM)",
    ),
    (".offloads = RTE_ETH_TX_OFFLOAD_MULTI_SEGS", ".offloads = 0"),
    ("{RTE_IPV4(224,0,0,114), 0xE}", "{RTE_IPV4(224,0,0,114), 0xFF}"),
];

pub(super) struct Ipv4Multicast {
    shared: Rc<Shared>,
    program: PathBuf,
}

impl Ipv4Multicast {
    pub(super) fn new(shared: Rc<Shared>) -> Result<Self> {
        if let Some(why) = missing("cc", "gcc").or_else(|| missing("pkg-config", "pkg-config")) {
            bail!(why);
        }
        ensure!(Path::new(SOURCE).exists(), "needs {SOURCE} (package dpdk-doc)");
        let text = std::fs::read_to_string(SOURCE).context("reading its source")?;
        let folder = shared.fresh("ipv4_multicast-build")?;
        let (file, program) = (folder.join("main.c"), folder.join("ipv4_multicast"));
        std::fs::write(&file, change(&text)?)?;
        let flags = output(Command::new("pkg-config").args(["--cflags", "--libs", "libdpdk"]))
            .context("needs DPDK's headers (package libdpdk-dev)")?;
        let mut cc = Command::new("cc");
        cc.args(["-O3", "-march=native", "-w", "-o"])
            .arg(&program)
            .arg(&file);
        output(cc.args(flags.split_whitespace())).context("building it")?;
        Ok(Self { shared, program })
    }
}

fn change(text: &str) -> Result<String> {
    let mut text = text.to_owned();
    for (old, new) in CHANGES {
        let times = text.matches(old).count();
        ensure!(
            times == 1,
            "its source is of an unknown version: `{old}` is in it {times} times"
        );
        text = text.replace(old, &new.replace("BYTES", &ROOM.to_string()));
    }
    Ok(text)
}

impl Peer for Ipv4Multicast {
    fn name(&self) -> Name {
        Name::Ipv4Multicast
    }

    /// Its table has masks of up to four ports, and by our change of eight.
    fn can(&self, setting: Setting) -> bool {
        group(setting.fanout).is_some()
    }

    fn start(&self, setting: Setting) -> Result<Box<dyn Running>> {
        let group = group(setting.fanout).context("no entry in its table")?;
        let file = self.shared.file(Frames::Table(group), setting.payload);
        // Its masks begin at port 0, so the sinks come first.
        let mut devices: Vec<_> = (1..=setting.fanout).map(sink).collect();
        devices.push(source(0, &file, NO_CAPTURE));
        let (ports, mask) = (
            devices.len().to_string(),
            format!("{:x}", (1 << devices.len()) - 1),
        );
        eal::program(
            &self.shared,
            "ipv4_multicast",
            &self.program,
            &["-l".into(), self.shared.cores.switch.to_string()],
            &devices,
            &["-p", &mask, "-q", &ports],
        )
    }
}

/// Last byte of the address whose frames go to the first `fanout` ports.
fn group(fanout: usize) -> Option<u8> {
    match fanout {
        1 => Some(101),
        2 => Some(103),
        3 => Some(107),
        4 => Some(115),
        8 => Some(114),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_source_is_changed_where_it_is_known_and_refused_where_not() {
        let known: String = CHANGES.iter().map(|(old, _)| format!("{old}\n")).collect();
        let changed = change(&known).expect("known");
        assert!(
            changed.contains("0xFF}") && changed.contains("(9216 + RTE_PKTMBUF_HEADROOM)"),
            "{changed}"
        );
        let why = change(&known.replace("114", "116"))
            .expect_err("unknown")
            .to_string();
        assert!(why.contains("114") && why.contains("0 times"), "{why}");
    }
}
