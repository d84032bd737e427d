//! What each stage decided about one frame, and why.
//!
//! The stages themselves tell it: they are generic over an [`Observer`], which compiles to nothing on the fast path and
//! to a recorder when somebody watches. So a trace cannot differ from what is done.

use core::fmt;

use castnet_wire::{DropReason, FrameBuf, McstId, Nanos, PortId, describe};

/// A part of the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Bytes into headers.
    Parse,
    /// Which group, path and class; or none.
    Classify,
    /// The checks that come before the group's machine: ICRC, path MTU.
    Verify,
    /// The group's machine.
    Machine,
    /// Copies to paths.
    Replicate,
    /// Payload into a slot of a collective group.
    Aggregate,
    /// Headers of results, one connection each (EPIC's TranslateHeader).
    Translate,
    /// Acknowledgements and CNPs towards the source.
    Feedback,
    /// ARP for a McstID or an own address.
    Arp,
    /// LLDP.
    Lldp,
    /// Learning of the source's Ethernet address.
    Learn,
    /// IPv4 routing.
    Route,
    /// Ethernet switching.
    Switch,
    /// Handing to a port.
    Send,
}

impl Stage {
    /// Its name, lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Parse => "parse",
            Self::Classify => "classify",
            Self::Verify => "verify",
            Self::Machine => "machine",
            Self::Replicate => "replicate",
            Self::Aggregate => "aggregate",
            Self::Translate => "translate",
            Self::Feedback => "feedback",
            Self::Arp => "arp",
            Self::Lldp => "lldp",
            Self::Learn => "learn",
            Self::Route => "route",
            Self::Switch => "switch",
            Self::Send => "send",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What one stage decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The stage.
    pub stage: Stage,
    /// What it decided.
    pub decision: String,
    /// Why.
    pub why: String,
    /// What else is worth knowing: one fact per line.
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

/// How a frame ended. Each frame has exactly one end (contract S1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Sent on to one port by Ethernet address.
    Switched,
    /// Sent on by IPv4 route.
    Routed,
    /// Sent on to all ports that flood.
    Flooded,
    /// Data of a group, sent on to one or more paths.
    Replicated,
    /// Read by the switch itself.
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

/// A frame that a traced one, or a timer, made leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentFrame {
    /// By which port.
    pub port: PortId,
    /// The group that sent it; one timer call may send for many.
    pub group: Option<McstId>,
    /// Its bytes, all of them. In a [dry run](crate::DryRun) zeros stand for payload from a group's slots.
    pub bytes: Vec<u8>,
}

/// The way of one frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// When it came in.
    pub at: Nanos,
    /// Where.
    pub ingress: PortId,
    /// The frame as it came in.
    pub frame: Vec<u8>,
    /// The group that it was taken for.
    pub group: Option<McstId>,
    /// The stages that it passed.
    pub steps: Vec<Step>,
    /// The frames that left because of it, in order.
    pub sent: Vec<SentFrame>,
    /// Its end.
    pub verdict: Verdict,
}

impl fmt::Display for Trace {
    /// A line for the frame, one per step with its facts below, one for the end.
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

/// What the stages report to. Off, it compiles to nothing.
pub(crate) trait Observer {
    /// Notes a step; the closure is only called when somebody watches.
    fn step(&mut self, step: impl FnOnce() -> Step);

    /// What follows belongs to this group.
    fn group(&mut self, mcst_id: McstId);

    /// A frame leaves.
    fn sent(&mut self, port: PortId, frame: &impl FrameBuf);
}

/// Nobody watches.
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

/// Writes everything down.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    trace: Trace,
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
        }
    }

    pub(crate) fn finish(mut self, verdict: Verdict) -> Trace {
        self.trace.verdict = verdict;
        self.trace
    }
}

impl Observer for Recorder {
    fn step(&mut self, step: impl FnOnce() -> Step) {
        self.trace.steps.push(step());
    }

    fn group(&mut self, mcst_id: McstId) {
        self.trace.group = Some(mcst_id);
    }

    fn sent(&mut self, port: PortId, frame: &impl FrameBuf) {
        let bytes = frame.segments().concat();
        let text = describe(&bytes, bytes.len()).to_string();
        self.trace
            .steps
            .push(Step::new(Stage::Send, format!("to port {port}"), text));
        let group = self.trace.group;
        self.trace.sent.push(SentFrame { port, group, bytes });
    }
}
