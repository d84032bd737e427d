//! DPDK's testpmd: swaps the Ethernet addresses of each frame and forwards it. It has no fan-out.

use std::rc::Rc;

use anyhow::{Result, bail};

use super::{Frames, NO_CAPTURE, ROOM, Shared, eal, sink, source};
use crate::measure::Running;
use crate::options::Name;
use crate::process::missing;
use crate::report::Setting;
use crate::run::Peer;

pub(super) struct Testpmd {
    shared: Rc<Shared>,
}

impl Testpmd {
    pub(super) fn new(shared: Rc<Shared>) -> Result<Self> {
        match missing("dpdk-testpmd", "dpdk") {
            Some(why) => bail!(why),
            None => Ok(Self { shared }),
        }
    }
}

impl Peer for Testpmd {
    fn name(&self) -> Name {
        Name::Testpmd
    }

    fn can(&self, setting: Setting) -> bool {
        setting.fanout == 1
    }

    fn start(&self, setting: Setting) -> Result<Box<dyn Running>> {
        let (shared, cores) = (&self.shared, self.shared.cores);
        let lcores = format!("0@{},1@{}", cores.other, cores.switch);
        let file = shared.file(Frames::Group(0), setting.payload);
        let room = format!("--mbuf-size={}", ROOM + 128);
        eal::program(
            shared,
            "testpmd",
            "dpdk-testpmd",
            &["--lcores".into(), lcores, "--main-lcore".into(), "0".into()],
            &[source(0, &file, NO_CAPTURE), sink(1)],
            &[
                "--forward-mode=macswap",
                "--nb-cores=1",
                &room,
                "--total-num-mbufs=8192",
                "--max-pkt-len=9018",
                "--burst=32",
            ],
        )
    }
}
