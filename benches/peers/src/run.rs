//! The run: all switches in all settings, turn by turn.

use anyhow::Result;
use clap::Parser;

use crate::machine::{self, Cores};
use crate::measure::{Running, measure};
use crate::options::{Format, Name, Options};
use crate::report::{LeftOut, Report, Setting};
use crate::{plot, veth};

/// A switch that can be started.
pub trait Peer {
    /// Its name.
    fn name(&self) -> Name;

    /// Whether it supports a setting.
    fn can(&self, setting: Setting) -> bool;

    /// Starts it. Fails with its output if it does not start.
    fn start(&self, setting: Setting) -> Result<Box<dyn Running>>;
}

/// The switches that take part, and those that cannot.
#[derive(Default)]
pub struct Field {
    /// Switches to measure.
    pub peers: Vec<Box<dyn Peer>>,
    /// Switches that cannot be measured.
    pub left_out: Vec<LeftOut>,
}

impl Field {
    /// Adds a switch if it is wanted, or the reason why it cannot be measured.
    pub fn add<P: Peer + 'static>(
        &mut self,
        name: Name,
        options: &Options,
        make: impl FnOnce() -> Result<P>,
    ) {
        if !options.wants(name) {
            return;
        }
        match make() {
            Ok(peer) => self.peers.push(Box::new(peer)),
            Err(why) => self.left_out.push(LeftOut {
                name,
                why: format!("{why:#}"),
            }),
        }
    }
}

/// Measures as the command line says, and prints the results. Fails if something wanted is not available, or at an
/// interrupt. Processes are ended and hugepages released before.
pub fn main() -> Result<()> {
    // The same program runs Castnet in a process of its own.
    let mut words = std::env::args().skip(1);
    match words.next().as_deref() {
        Some(veth::PART) => return veth::part(words),
        #[cfg(feature = "dpdk")]
        Some(crate::dpdk::PART) => return crate::dpdk::part(words),
        _ => {}
    }
    let options = Options::parse();
    machine::catch_interrupts()?;
    let cores = Cores::choose(options.core)?;
    // This keeps everything else off the core of the switches, which pin themselves.
    machine::pin(cores.other)?;
    let mut report = Report {
        machine: machine::describe(),
        core: cores.switch,
        seconds: options.seconds,
        turns: options.turns,
        ..Report::default()
    };
    over_dpdk(&options, cores, &mut report)?;
    let mut field = Field::default();
    veth::join(&mut field, &options, cores);
    turns(field, &options, &mut report)?;
    report.judge();
    match options.output {
        Format::Table => print!("{}", report.page()),
        Format::Json => println!("{}", serde_json::to_string_pretty(&report)?),
    }
    if let Some(file) = &options.svg
        && !plot::write(file, &report)?
    {
        eprintln!("nothing to draw: the plot shows switches over DPDK's devices");
    }
    Ok(())
}

#[cfg(feature = "dpdk")]
fn over_dpdk(options: &Options, cores: Cores, report: &mut Report) -> Result<()> {
    let over = crate::dpdk::Over::new(options, cores)?;
    report.dpdk = over.describe();
    turns(over.field(options), options, report)
}

#[cfg(not(feature = "dpdk"))]
fn over_dpdk(options: &Options, _: Cores, report: &mut Report) -> Result<()> {
    let all = [
        Name::Copy,
        Name::Castnet,
        Name::Testpmd,
        Name::Ipv4Multicast,
        Name::Ovs,
    ];
    let why = "is measured with --features dpdk (package libdpdk-dev)";
    let left_out = all.into_iter().filter(|&name| options.wants(name));
    report.left_out.extend(left_out.map(|name| LeftOut {
        name,
        why: why.into(),
    }));
    Ok(())
}

/// Measures turn by turn. A switch that fails is left out from then on.
fn turns(mut field: Field, options: &Options, report: &mut Report) -> Result<()> {
    report.left_out.append(&mut field.left_out);
    for turn in 1..=options.turns {
        for setting in options.settings() {
            let mut failed = Vec::new();
            for (index, peer) in field.peers.iter().enumerate().filter(|(_, p)| p.can(setting)) {
                let Setting { payload, fanout } = setting;
                let name = peer.name();
                eprintln!(
                    "turn {turn} of {}: {payload} B to {fanout}: {}",
                    options.turns,
                    name.label()
                );
                let rate = peer
                    .start(setting)
                    .and_then(|mut running| measure(running.as_mut(), options.time()));
                match rate {
                    Ok(rate) => report.add(name, setting, rate),
                    Err(why) => {
                        machine::check()?;
                        let why = format!("failed at {payload} B to {fanout}: {why:#}");
                        eprintln!("{}: {why}", name.label());
                        report.left_out.push(LeftOut { name, why });
                        failed.push(index);
                    }
                }
            }
            for index in failed.into_iter().rev() {
                field.peers.remove(index);
            }
        }
    }
    Ok(())
}
