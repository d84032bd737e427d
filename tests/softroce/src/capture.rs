//! What passed the switch, in its own order, and what must hold of that order.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use castnet_e2e::process::PATIENCE;
use castnet_proto::transport::{Address, Security, connect};
use castnet_proto::v1;
use castnet_proto::v1::agent_client::AgentClient;
use castnet_wire::{Kind, NakCode, Parsed, Psn, RoceHeader, Syndrome, parse_frame};
use tokio::runtime::Runtime;

/// A frame that came in by a port of the switch, or went out by it.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The port's name: the host's.
    pub port: String,
    /// Whether it came in from the host.
    pub from_host: bool,
    /// Bytes on the wire.
    pub length: usize,
    /// Its RoCE headers, where it has them.
    pub roce: Option<RoceHeader>,
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
    arriving: Receiver<v1::CapturedFrame>,
    ports: BTreeMap<u32, String>,
    _runtime: Runtime,
}

impl Capture {
    /// Copies the frames of the group `mcst_id`, `snap` bytes of each (0: all), from now on.
    pub(crate) fn start(agent: &str, mcst_id: &str, snap: u32) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let agent: Address = agent.parse()?;
        let request = v1::CaptureRequest {
            filter: Some(v1::FrameFilter {
                mcst_id: Some(mcst_id.to_owned()),
                ..v1::FrameFilter::default()
            }),
            snap_length: snap,
            frames_max: 0,
        };
        let (ports, mut stream) = runtime.block_on(async {
            let mut client = AgentClient::new(connect(&agent, &Security::default()).await?);
            let ports = client
                .list_ports(v1::ListPortsRequest {})
                .await?
                .into_inner()
                .ports;
            let ports: BTreeMap<u32, String> = ports.into_iter().map(|p| (p.port, p.name)).collect();
            let start = Instant::now();
            loop {
                match client.capture(request.clone()).await {
                    Ok(answer) => return anyhow::Ok((ports, answer.into_inner())),
                    // A switch has one at a time, and may not know yet that the one before has ended.
                    Err(status) if status.message().contains("another") && start.elapsed() < PATIENCE => {
                        tokio::task::yield_now().await;
                    }
                    Err(status) => return Err(status.into()),
                }
            }
        })?;
        let (tell, arriving) = channel();
        runtime.spawn(async move {
            while let Ok(Some(frame)) = stream.message().await {
                if tell.send(frame).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            arriving,
            ports,
            _runtime: runtime,
        })
    }

    /// Ends it when it has `answers` ACKs and NAKs to the host `source`, and gives all frames so far in the order in which
    /// they passed.
    ///
    /// # Errors
    /// Frames passed too fast to be copied, or there are fewer answers.
    pub fn finish(self, source: &str, answers: u64) -> Result<Vec<Frame>> {
        let deadline = Instant::now() + PATIENCE;
        let (mut frames, mut seen) = (Vec::new(), 0);
        while seen < answers {
            let rest = deadline.saturating_duration_since(Instant::now());
            let captured = self
                .arriving
                .recv_timeout(rest)
                .with_context(|| format!("{seen} of {answers} answers to {source} were captured"))?;
            ensure!(
                captured.lost == 0,
                "{} frames passed too fast to be copied",
                captured.lost
            );
            let frame = self.frame(captured);
            seen += u64::from(!frame.from_host && frame.port == source && frame.acknowledges().is_some());
            frames.push(frame);
        }
        Ok(frames)
    }

    fn frame(&self, captured: v1::CapturedFrame) -> Frame {
        let length = captured.length as usize;
        let roce = match parse_frame(&captured.bytes, length) {
            Ok(Parsed::Roce(header)) => Some(header),
            _ => None,
        };
        Frame {
            port: self.ports.get(&captured.port).cloned().unwrap_or_default(),
            from_host: captured.direction() == v1::Direction::In,
            length,
            roce,
        }
    }
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
