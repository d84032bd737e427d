use std::fs::{File, TryLockError};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use castnet_console::api;
use castnet_console::connect::AgentArgs;
use castnet_console::exit::{Failure, Outcome};
use castnet_console::files;
use castnet_console::output::{Done, Output};
use castnet_console::units::{Span, bytes, count};
use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;

use crate::packets::{self, Record, Writer};
use crate::pick::{Deadline, FilterArgs};
use crate::port::PortNames;

/// Copies frames of a port, of a group or only dropped ones into a pcapng file
#[derive(Debug, Args)]
#[command(
    after_help = "Ends after --count frames, after --seconds, or with Ctrl-C; the file is complete in each case. Dropped frames carry the reason as a packet comment. A switch takes 8 live traces and captures at once, and ends one whose reader reads nothing for 5 s; lost frames are counted.

Examples:
  castnet capture --port h1 -o h1.pcapng --seconds 10s
  castnet capture --group g -o g.pcapng --count 1000
  castnet capture --drops -o drops.pcapng
  castnet capture --group g -o - | tshark -r -"
)]
pub(crate) struct CaptureCommand {
    /// The file; `-` is stdout. Only a capture or an empty file is replaced
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Ends after so many frames
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Ends after this time
    #[arg(long, value_name = "TIME")]
    seconds: Option<Span>,
    /// Keeps only so many bytes of each frame
    #[arg(long, value_name = "BYTES", default_value_t = 0, hide_default_value = true)]
    snap: u32,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    agent: AgentArgs,
}

#[derive(Debug, Serialize)]
struct Captured {
    file: String,
    frames: u64,
    bytes: u64,
    lost: u64,
    seconds: f64,
}

impl CaptureCommand {
    pub(crate) async fn run(self, output: Output) -> Outcome {
        let to_stdout = self.out.as_os_str() == "-";
        let path = if to_stdout { Path::new("stdout") } else { &self.out };
        match to_stdout {
            true => files::check_open(io::stdout(), "stdout", "--out")?,
            false => packets::check_replaceable(path)?,
        }
        // A pipe waits for its reader before the request: a switch ends a call that nobody reads.
        let special = match !to_stdout && path.metadata().is_ok_and(|file| !file.is_file()) {
            true => Some(create(path)?),
            false => None,
        };
        let mut agent = self.agent.connect().await?;
        let names = PortNames::fetch(&mut agent).await?;
        let filter = self.filter.resolve(&mut agent, &names).await?;
        let request = api::CaptureRequest {
            filter: Some(filter),
            snap_length: self.snap,
            frames_max: self.count.unwrap_or(0),
        };
        let mut frames = agent.capture(request).await?.into_inner();

        let file: Box<dyn Write + Send> = match special {
            Some(file) => Box::new(file),
            None if to_stdout => Box::new(io::stdout()),
            // Opened only now: a refused request leaves an older capture as it was.
            None => Box::new(create(path)?),
        };
        // Interfaces are numbered as the ports are listed.
        let ports: Vec<u32> = names.iter().map(|(number, _)| number).collect();
        let mut writer = Writer::new(
            BufWriter::new(file),
            path,
            names.iter().map(|(_, name)| name),
            self.snap,
        )?;
        writer.flush()?;

        let progress = progress(output);
        let mut deadline = Deadline::new(self.seconds)?;
        let mut captured = Captured {
            file: self.out.display().to_string(),
            frames: 0,
            bytes: 0,
            lost: 0,
            seconds: 0.0,
        };
        let ended = loop {
            if self.count.is_some_and(|most| captured.frames >= most) {
                break Ok(());
            }
            let frame = match deadline.next(&mut frames).await {
                Ok(Some(frame)) => frame,
                Ok(None) => break Ok(()),
                Err(failure) => break Err(failure),
            };
            writer.write(&record(&frame, &ports))?;
            captured.frames += 1;
            captured.bytes += u64::from(frame.length);
            captured.lost = captured.lost.max(frame.lost);
            progress.set_message(format!(
                "{} frames, {}",
                count(captured.frames),
                bytes(captured.bytes)
            ));
            if to_stdout {
                writer.flush()?;
            }
        };
        writer.flush()?;
        progress.finish_and_clear();
        captured.seconds = deadline.elapsed().as_secs_f64();
        let lost = match captured.lost {
            0 => String::new(),
            lost => format!("; {} more came too fast to be copied", count(lost)),
        };
        let sentence = format!(
            "{} frames ({}) into {}{lost}",
            count(captured.frames),
            bytes(captured.bytes),
            captured.file
        );
        let done = Done {
            facts: captured,
            sentence,
        };
        match to_stdout {
            true => ended.and(output.remark_report(&done)),
            false => output.conclude(&done, ended),
        }
    }
}

fn create(path: &Path) -> Outcome<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(false);
    let failed = |e| {
        Failure::usage(format!("cannot write {}: {e}", path.display()))
            .next("give a file in a folder that this user may write to")
    };
    let file = files::open(path, &options).map_err(failed)?;
    if file.metadata().is_ok_and(|of| of.is_file()) {
        // Two that write into one file destroy what both have written. Some network file systems have no locks.
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            let error = format!("{}: another process captures into it", path.display());
            return Err(Failure::usage(error).next("give another name, or wait for its end"));
        }
        file.set_len(0).map_err(failed)?;
    }
    Ok(file)
}

fn record<'f>(frame: &'f api::CapturedFrame, ports: &[u32]) -> Record<'f> {
    let interface = ports.iter().position(|p| *p == frame.port).unwrap_or(0) as u32;
    let outbound = match frame.direction() {
        api::Direction::In => Some(false),
        api::Direction::Out => Some(true),
        api::Direction::Unspecified => None,
    };
    Record {
        interface,
        at_unix_ns: frame.at_unix_ns,
        length: frame.length,
        bytes: &frame.bytes,
        outbound,
        comment: frame
            .drop_reason
            .as_ref()
            .map(|reason| format!("dropped: {reason}")),
    }
}

fn progress(output: Output) -> ProgressBar {
    let bar = output.bar(None, "{spinner} {elapsed} {msg}  (Ctrl-C ends)");
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both said that they had written it.
    #[test]
    fn two_do_not_capture_into_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("h1.pcapng");
        std::fs::write(&path, "an older capture").unwrap();
        let mut first = create(&path).unwrap();
        assert_eq!(first.metadata().unwrap().len(), 0);
        first.write_all(b"frames").unwrap();
        let refused = create(&path).unwrap_err();
        assert!(
            refused.what.contains("another process captures into it"),
            "{}",
            refused.what
        );
        drop(first);
        assert_eq!(std::fs::read(&path).unwrap(), b"frames");
        create(&path).unwrap();
    }
}
