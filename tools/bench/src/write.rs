//! Writes frames of a pattern into a packet file, for other generators and for reading.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use castnet_console::exit::{Failure, Outcome, cannot_write};
use castnet_console::files;
use castnet_console::output::{Done, Output};
use castnet_console::units::plural;
use castnet_port::pcap::check_replaceable;
use castnet_traffic::{Host, Place, Plan, Scenario};
use castnet_wire::{Batch, Nanos};
use pcap_file::PcapError;
use pcap_file::pcap::{PcapPacket, PcapWriter};
use serde::Serialize;

use super::no_plan;

/// Without --frames.
const FRAMES: u64 = 64;
/// Other generators read a packet file into memory.
const FRAMES_MAX: u64 = 1 << 20;
/// Between frames in the file.
const STEP: Duration = Duration::from_micros(1);

#[derive(Serialize)]
struct Written<'a> {
    file: &'a Path,
    host: &'a str,
    pattern: String,
    frames: usize,
}

/// Writes the frames of a host. The same command always writes the same file.
pub(super) fn write(
    output: Output,
    scenarios: &[Scenario],
    path: &Path,
    host: Option<&str>,
    chosen: bool,
) -> Outcome {
    let [scenario] = scenarios else {
        return Err(Failure::usage("a packet file holds one pattern with one --size")
            .next("castnet bench ack --write ack.pcap"));
    };
    if !chosen {
        return Err(
            Failure::usage("a packet file needs a pattern").next("castnet bench ack --write ack.pcap")
        );
    }
    let wanted = scenario.frames.unwrap_or(FRAMES);
    if wanted > FRAMES_MAX {
        return Err(Failure::usage(format!(
            "{wanted} frames are too many for a packet file: at most {FRAMES_MAX}"
        )));
    }
    let scenario = Scenario {
        frames: None,
        rate: Default::default(),
        ..scenario.clone()
    };
    let plan = Plan::own(&scenario, &Place::star(scenario.places())).map_err(|e| no_plan(&e))?;
    let drives = |place: usize| plan.hosts[place].flows.iter().any(|f| f.drives());
    let place = match host {
        None => (0..plan.hosts.len()).find(|p| drives(*p)),
        Some(name) => plan.hosts.iter().position(|h| h.name == name),
    };
    let Some(place) = place else {
        let names: Vec<_> = plan.hosts.iter().map(|h| h.name.as_str()).collect();
        return Err(
            Failure::usage(format!("no host '{}' takes part", host.unwrap_or_default()))
                .next(format!("give one of these: {}", names.join(", "))),
        );
    };
    let frames = frames(&plan, place, wanted as usize)?;
    let written = check_replaceable(path).and_then(|()| store(path, &frames));
    written.map_err(|error| cannot_write(path, &error))?;
    let name = plan.hosts[place].name.as_str();
    output.show(&Done {
        sentence: format!(
            "{}: {} of {name}, {}, {} bytes of payload",
            path.display(),
            plural(frames.len(), "frame"),
            scenario.workload,
            scenario.sizes
        ),
        facts: Written {
            file: path,
            host: name,
            pattern: scenario.workload.to_string(),
            frames: frames.len(),
        },
    })
}

/// Frames of the host if all of them are answered at once.
fn frames(plan: &Plan, place: usize, wanted: usize) -> Outcome<Vec<Vec<u8>>> {
    let mut host =
        Host::<Vec<u8>>::new(plan, place, |bytes| Some(bytes.to_vec())).map_err(|e| no_plan(&e))?;
    host.unbind();
    let mut frames = Vec::new();
    while frames.len() < wanted {
        let mut batch = Batch::new();
        // No time passes, so that the file is always the same.
        host.fill(Nanos::ZERO, &mut batch, |template| Some(template.clone()));
        if batch.is_empty() {
            return Err(Failure::usage(format!(
                "{} sends nothing in this pattern",
                plan.hosts[place].name
            )));
        }
        frames.extend(batch);
    }
    frames.truncate(wanted);
    Ok(frames)
}

fn store(path: &Path, frames: &[Vec<u8>]) -> io::Result<()> {
    let failed = |error| match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    };
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    let file = files::open(path, &options)?;
    let mut writer = PcapWriter::new(BufWriter::new(file)).map_err(failed)?;
    for (at, frame) in (0_u32..).zip(frames) {
        let packet = PcapPacket::new(STEP * at, frame.len() as u32, frame);
        writer.write_packet(&packet).map_err(failed)?;
    }
    writer.into_writer().flush()
}
