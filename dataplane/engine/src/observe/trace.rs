//! Traces: the decision of each stage about one frame, and its reason. The stages are generic over an [`Observer`]. On the fast path it
//! compiles to nothing; for a traced frame it is a recorder. So a trace always agrees with the processing.

use core::fmt;

use castnet_wire::{DropReason, FrameBuf, McstId, Nanos, PortId, describe, names};

names! {
    /// A stage of the pipeline.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Stage {
        /// Parsing of headers.
        Parse => "parse",
        /// Look-up of group, path and class.
        Classify => "classify",
        /// Checks before the group's machine: ICRC, path MTU.
        Verify => "verify",
        /// The rate limit of the group.
        Meter => "meter",
        /// The group's machine.
        Machine => "machine",
        /// Sending of copies to paths.
        Replicate => "replicate",
        /// Aggregation of a payload into a slot of a collective group.
        Aggregate => "aggregate",
        /// Headers of results for each connection (EPIC's TranslateHeader).
        Translate => "translate",
        /// Acknowledgements and CNPs towards the source.
        Feedback => "feedback",
        /// ARP for a McstID or an own address.
        Arp => "arp",
        /// LLDP.
        Lldp => "lldp",
        /// Learning of the source Ethernet address.
        Learn => "learn",
        /// IPv4 routing.
        Route => "route",
        /// Ethernet switching.
        Switch => "switch",
        /// Sending to a port.
        Send => "send",
    }
}

/// The decision of one stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The stage.
    pub stage: Stage,
    /// The decision.
    pub decision: String,
    /// The reason.
    pub why: String,
    /// Further facts, one per line.
    pub facts: Vec<String>,
}

impl Step {
    pub(crate) fn new(stage: Stage, decision: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            stage,
            decision: decision.into(),
            why: why.into(),
            facts: Vec::new(),
        }
    }

    pub(crate) fn with(mut self, facts: Vec<String>) -> Self {
        self.facts = facts;
        self
    }
}

/// The verdict on a frame. Each frame has exactly one (contract S1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Sent to one port by Ethernet address.
    Switched,
    /// Sent by IPv4 route.
    Routed,
    /// Sent to all flood ports.
    Flooded,
    /// Data of a group, sent to one or more paths.
    Replicated,
    /// Consumed by the switch itself.
    Absorbed,
    /// Dropped.
    Dropped(DropReason),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switched => f.write_str("switched"),
            Self::Routed => f.write_str("routed"),
            Self::Flooded => f.write_str("flooded"),
            Self::Replicated => f.write_str("replicated"),
            Self::Absorbed => f.write_str("absorbed"),
            Self::Dropped(reason) => write!(f, "dropped: {reason}"),
        }
    }
}

/// A frame that was sent because of a traced frame or a timer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentFrame {
    /// Egress port.
    pub port: PortId,
    /// The group that sent it. One timer call may send for several groups.
    pub group: Option<McstId>,
    /// All its bytes. In a [dry run](crate::DryRun), payload from a group's slots is zeros.
    pub bytes: Vec<u8>,
}

/// The trace of one frame through the pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Time of receipt.
    pub at: Nanos,
    /// Ingress port.
    pub ingress: PortId,
    /// The received bytes.
    pub frame: Vec<u8>,
    /// The group of the frame.
    pub group: Option<McstId>,
    /// The stages that it passed: the first 256 steps, and one that counts what was left out.
    pub steps: Vec<Step>,
    /// The frames that were sent because of it, in order: the first 64.
    pub sent: Vec<SentFrame>,
    /// The verdict.
    pub verdict: Verdict,
}

impl fmt::Display for Trace {
    /// A line for the frame, for each step with its facts below, and for the verdict.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "port {} | {}",
            self.ingress,
            describe(&self.frame, self.frame.len())
        )?;
        for step in &self.steps {
            writeln!(f, "  {:<9} {}: {}", step.stage, step.decision, step.why)?;
            for fact in &step.facts {
                writeln!(f, "            - {fact}")?;
            }
        }
        write!(f, "  {:<9} {}", "end", self.verdict)
    }
}

/// [`Off`] compiles to nothing.
pub(crate) trait Observer {
    /// Only a recorder calls the closure.
    fn step(&mut self, step: impl FnOnce() -> Step);

    /// Sets the group of all further reports.
    fn group(&mut self, mcst_id: McstId);

    fn sent(&mut self, port: PortId, frame: &impl FrameBuf);
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Off;

impl Observer for Off {
    #[inline(always)]
    fn step(&mut self, _: impl FnOnce() -> Step) {}

    #[inline(always)]
    fn group(&mut self, _: McstId) {}

    #[inline(always)]
    fn sent(&mut self, _: PortId, _: &impl FrameBuf) {}
}

/// Bounds of a trace: a frame may be sent to 1,024 endpoints.
const STEPS_MAX: usize = 256;
const SENT_MAX: usize = 64;

#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    trace: Trace,
    steps_left_out: usize,
    sent_left_out: usize,
}

impl Recorder {
    pub(crate) fn new(at: Nanos, ingress: PortId, frame: Vec<u8>) -> Self {
        let verdict = Verdict::Absorbed;
        Self {
            trace: Trace {
                at,
                ingress,
                frame,
                group: None,
                steps: Vec::new(),
                sent: Vec::new(),
                verdict,
            },
            steps_left_out: 0,
            sent_left_out: 0,
        }
    }

    pub(crate) fn finish(mut self, verdict: Verdict) -> Trace {
        let (steps, sent) = (self.steps_left_out, self.sent_left_out);
        if steps + sent > 0 {
            let what = format!("{steps} more steps, {sent} more frames");
            let step = Step::new(Stage::Send, what, "a trace is bounded");
            self.trace.steps.push(step);
        }
        self.trace.verdict = verdict;
        self.trace
    }
}

impl Observer for Recorder {
    fn step(&mut self, step: impl FnOnce() -> Step) {
        match self.trace.steps.len() < STEPS_MAX {
            true => self.trace.steps.push(step()),
            false => self.steps_left_out += 1,
        }
    }

    fn group(&mut self, mcst_id: McstId) {
        self.trace.group = Some(mcst_id);
    }

    fn sent(&mut self, port: PortId, frame: &impl FrameBuf) {
        if self.trace.sent.len() == SENT_MAX {
            self.sent_left_out += 1;
            return;
        }
        let bytes = frame.segments().concat();
        self.step(|| {
            let text = describe(&bytes, bytes.len()).to_string();
            Step::new(Stage::Send, format!("to port {port}"), text)
        });
        let group = self.trace.group;
        self.trace.sent.push(SentFrame { port, group, bytes });
    }
}
