//! What an engine hands to whoever watches: live traces and captured frames, in bounded queues that the worker drains.
//! Off, it costs a branch per batch. On, it may allocate.

use std::collections::VecDeque;

use castnet_wire::{DropReason, McstId, Nanos, PortId};

use crate::trace::{Trace, TraceFilter, Verdict};

/// Traces and captured frames that wait for the worker, of each kind.
const QUEUE_MAX: usize = 1024;

/// Which frames a capture wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureFilter {
    /// That came in or left here; `None` for anywhere.
    pub port: Option<PortId>,
    /// That belong to this group; `None` for any frame.
    pub group: Option<McstId>,
    /// Only those that were dropped.
    pub drops: bool,
    /// Bytes of each frame that are kept.
    pub length_max: usize,
}

impl Default for CaptureFilter {
    /// Every frame, whole.
    fn default() -> Self {
        Self {
            port: None,
            group: None,
            drops: false,
            length_max: usize::MAX,
        }
    }
}

/// Where a captured frame was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It came in and went on or was absorbed.
    In,
    /// It came in and was dropped.
    Dropped(DropReason),
    /// It left.
    Out,
}

/// A captured frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// When its batch was taken in.
    pub at: Nanos,
    /// Where it came in or left.
    pub port: PortId,
    /// Which of these.
    pub seen: Seen,
    /// The group it belongs to.
    pub group: Option<McstId>,
    /// Its length on the wire, without FCS.
    pub length: usize,
    /// Its first bytes, as many as were asked for.
    pub bytes: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Armed<F> {
    filter: F,
    left: u64,
}

/// Filters and queues.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taps {
    trace: Option<Armed<TraceFilter>>,
    capture: Option<Armed<CaptureFilter>>,
    traces: VecDeque<Trace>,
    captured: VecDeque<Captured>,
    lost: u64,
}

impl Taps {
    /// Whether frames must be recorded.
    pub(crate) fn armed(&self) -> bool {
        self.trace.is_some() || self.capture.is_some()
    }

    pub(crate) fn arm_trace(&mut self, filter: TraceFilter, count: u64) {
        self.trace = (count > 0).then_some(Armed { filter, left: count });
    }

    pub(crate) fn arm_capture(&mut self, filter: CaptureFilter, count: u64) {
        self.capture = (count > 0).then_some(Armed { filter, left: count });
    }

    /// Whether a live trace or a capture still wants frames.
    pub(crate) fn left(&self) -> (u64, u64) {
        (
            self.trace.as_ref().map_or(0, |a| a.left),
            self.capture.as_ref().map_or(0, |a| a.left),
        )
    }

    pub(crate) fn disarm(&mut self) {
        self.trace = None;
        self.capture = None;
    }

    pub(crate) fn pop_trace(&mut self) -> Option<Trace> {
        self.traces.pop_front()
    }

    pub(crate) fn pop_captured(&mut self) -> Option<Captured> {
        self.captured.pop_front()
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Takes what was recorded of a frame that came in.
    pub(crate) fn take(&mut self, trace: Trace) {
        let seen = match trace.verdict {
            Verdict::Dropped(reason) => Seen::Dropped(reason),
            _ => Seen::In,
        };
        self.capture(trace.at, trace.ingress, seen, trace.group, &trace.frame);
        self.take_sent(&trace);
        if self
            .trace
            .as_ref()
            .is_some_and(|armed| armed.filter.wants(&trace))
        {
            if self.traces.len() < QUEUE_MAX {
                self.traces.push_back(trace);
            } else {
                self.lost += 1;
            }
            count_down(&mut self.trace);
        }
    }

    /// Takes the frames that were recorded as sent, of a frame or of a timer.
    pub(crate) fn take_sent(&mut self, trace: &Trace) {
        for sent in &trace.sent {
            self.capture(trace.at, sent.port, Seen::Out, trace.group, &sent.bytes);
        }
    }

    fn capture(&mut self, at: Nanos, port: PortId, seen: Seen, group: Option<McstId>, bytes: &[u8]) {
        let Some(Armed { filter, .. }) = &self.capture else {
            return;
        };
        let wanted = filter.port.is_none_or(|p| p == port)
            && filter.group.is_none_or(|g| Some(g) == group)
            && (!filter.drops || matches!(seen, Seen::Dropped(_)));
        if !wanted {
            return;
        }
        if self.captured.len() < QUEUE_MAX {
            let kept = bytes.get(..filter.length_max).unwrap_or(bytes);
            self.captured.push_back(Captured {
                at,
                port,
                seen,
                group,
                length: bytes.len(),
                bytes: kept.to_vec(),
            });
        } else {
            self.lost += 1;
        }
        count_down(&mut self.capture);
    }
}

fn count_down<F>(armed: &mut Option<Armed<F>>) {
    if let Some(a) = armed {
        a.left -= 1;
        if a.left == 0 {
            *armed = None;
        }
    }
}
