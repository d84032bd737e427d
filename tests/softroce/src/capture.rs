//! What passed the switch, in its own order, and what must hold of that order.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use castnet_e2e::process::PATIENCE;
use castnet_wire::{Kind, NakCode, Parsed, Psn, RoceHeader, Syndrome, parse_frame};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::{Block, PcapNgReader};

/// A frame that came in by a port of the switch, or went out by it.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The port's name: the host's.
    pub port: String,
    /// Whether it came in from the host.
    pub from_host: bool,
    /// Nanoseconds since the Unix epoch.
    pub at_ns: u64,
    /// Bytes on the wire.
    pub length: usize,
    /// What was kept of them.
    pub bytes: Vec<u8>,
    /// Its RoCE headers, where it has them.
    pub roce: Option<RoceHeader>,
    /// Why the switch dropped it.
    pub dropped: Option<String>,
}

impl Frame {
    /// Opcode's kind and PSN, of RoCE frames.
    pub fn kind(&self) -> Option<(Kind, Psn)> {
        self.roce.as_ref().map(|h| (h.bth.opcode.info().kind, h.bth.psn))
    }

    /// The newest PSN that it acknowledges, of ACKs and NAKs: a NAK acknowledges all before its own.
    pub fn acknowledges(&self) -> Option<Psn> {
        let header = self.roce.as_ref()?;
        let aeth = header
            .aeth
            .filter(|_| header.bth.opcode.info().kind == Kind::Ack)?;
        match aeth.syndrome {
            Syndrome::Ack => Some(header.bth.psn),
            Syndrome::Nak(_) | Syndrome::RnrNak(_) => Some(header.bth.psn.prev()),
        }
    }

    /// Whether it is a request of SEND or WRITE.
    pub fn is_data(&self) -> bool {
        matches!(self.kind(), Some((Kind::Send | Kind::Write, _)))
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.from_host { "from" } else { "to" };
        write!(f, "{way} {}: ", self.port)?;
        let Some(h) = &self.roce else {
            return write!(f, "{} bytes, no RoCE", self.length);
        };
        write!(f, "{} psn {}", h.bth.opcode.info().name, h.bth.psn.value())?;
        if h.bth.ack_request {
            f.write_str(" ackreq")?;
        }
        if let Some(aeth) = h.aeth {
            match aeth.syndrome {
                Syndrome::Ack => write!(f, " ACK msn {}", aeth.msn)?,
                Syndrome::Nak(NakCode::PsnSequenceError) => write!(f, " NAK sequence msn {}", aeth.msn)?,
                Syndrome::Nak(code) => write!(f, " NAK {code:?} msn {}", aeth.msn)?,
                Syndrome::RnrNak(t) => write!(f, " RNR NAK {} msn {}", t.code(), aeth.msn)?,
            }
        }
        write!(f, ", {} bytes", self.length)
    }
}

/// A capture under way.
pub struct Capture {
    child: Child,
    file: PathBuf,
    said: PathBuf,
}

impl Capture {
    pub(crate) fn start(mut command: Command, file: PathBuf, folder: &Path) -> Result<Self> {
        let said = folder.join("capture.log");
        let start = Instant::now();
        loop {
            let _ = std::fs::remove_file(&file);
            let log = File::create(&said)?;
            let child = command
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .spawn()?;
            let (file, said) = (file.clone(), said.clone());
            let mut capture = Self { child, file, said };
            // The file is made when the switch has begun to copy.
            while !capture.file.exists() && capture.child.try_wait()?.is_none() {
                nix::poll::poll(&mut [], 10u8).ok();
                if start.elapsed() > PATIENCE {
                    bail!("no capture: {}", capture.said());
                }
            }
            if capture.file.exists() {
                return Ok(capture);
            }
            // A switch has one at a time, and may not know yet that the one before has ended.
            let words = capture.said();
            if !words.contains("another live") || start.elapsed() > PATIENCE {
                bail!("no capture: {words}");
            }
        }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// Ends it, and gives the frames in the order in which they passed.
    ///
    /// # Errors
    /// Frames passed too fast to be copied, or the file is none.
    pub fn finish(mut self) -> Result<Vec<Frame>> {
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT)?;
        self.child.wait()?;
        let said = self.said();
        let told: serde_json::Value = serde_json::from_str(&said).with_context(|| said.clone())?;
        if told["lost"] != 0 {
            bail!("the capture has gaps: {said}");
        }
        read(&self.file)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The frames of a file that `castnet capture` wrote.
///
/// # Errors
/// It is no such file.
pub fn read(path: &Path) -> Result<Vec<Frame>> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut reader = PcapNgReader::new(BufReader::new(file))?;
    let (mut ports, mut frames) = (Vec::new(), Vec::new());
    while let Some(block) = reader.next_block() {
        match block? {
            Block::InterfaceDescription(interface) => {
                let name = interface.options.iter().find_map(|o| match o {
                    InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                    _ => None,
                });
                ports.push(name.unwrap_or_default());
            }
            Block::EnhancedPacket(packet) => {
                let (mut outbound, mut dropped) = (false, None);
                for option in &packet.options {
                    match option {
                        EnhancedPacketOption::Flags(flags) => outbound = flags & 0b11 == 0b10,
                        EnhancedPacketOption::Comment(text) => dropped = Some(text.to_string()),
                        _ => {}
                    }
                }
                let bytes = packet.data.into_owned();
                let length = packet.original_len as usize;
                let roce = match parse_frame(&bytes, length) {
                    Ok(Parsed::Roce(header)) => Some(header),
                    _ => None,
                };
                frames.push(Frame {
                    port: ports
                        .get(packet.interface_id as usize)
                        .cloned()
                        .unwrap_or_default(),
                    from_host: !outbound,
                    at_ns: packet.timestamp.as_nanos() as u64,
                    length,
                    bytes,
                    roce,
                    dropped,
                });
            }
            _ => {}
        }
    }
    Ok(frames)
}

/// Checks M1 and M2 on what passed: whatever went to the source acknowledges only what every receiver had acknowledged
/// before. Returns how many answers the source got.
///
/// # Errors
/// The first answer for which this does not hold.
pub fn check_order(frames: &[Frame], source: &str, receivers: &[&str]) -> Result<usize> {
    let mut newest: BTreeMap<&str, Psn> = BTreeMap::new();
    let mut answers = 0;
    for frame in frames {
        let Some(psn) = frame.acknowledges() else { continue };
        if frame.from_host {
            if let Some(receiver) = receivers.iter().find(|r| **r == frame.port) {
                let entry = newest.entry(receiver).or_insert(psn);
                if psn.diff(*entry) > 0 {
                    *entry = psn;
                }
            }
        } else if frame.port == source {
            answers += 1;
            for receiver in receivers {
                // A NAK of the very first packet acknowledges nothing, and needs nobody's answer.
                let has = newest.get(receiver).is_some_and(|has| psn.diff(*has) <= 0);
                let is_first = frame.roce.as_ref().is_some_and(|h| {
                    h.aeth.is_some_and(|a| a.syndrome != Syndrome::Ack) && newest.is_empty()
                });
                if !has && !is_first {
                    bail!(
                        "{frame}: {receiver} has only acknowledged {:?}",
                        newest.get(receiver)
                    );
                }
            }
        }
    }
    Ok(answers)
}
