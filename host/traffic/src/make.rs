//! Makes a flow from its plan, with its templates in the sender's memory.

use castnet_wire::{Call, CallFlags, Control, DataType, FrameBuf, Opcode, Operation, Primitive, Verdict};

use crate::flow::{Flow, Kind};
use crate::plan::{FlowPlan, PlanError, Role};
use crate::rank::{PACKETS, Rank, RankConfig};
use crate::receiver::{Answers, Receiver};
use crate::scenario::{Pattern, Scenario};
use crate::source::{Positions, Source, SourceConfig};
use crate::template::{Ready, Shifts, Template};

type Gather<'a, B> = &'a mut dyn FnMut(&[u8]) -> Option<B>;

impl FlowPlan {
    /// Returns true if the pattern measures the frames of this flow.
    pub fn drives(&self) -> bool {
        match self.role {
            Role::Source { .. } => matches!(self.pattern, Pattern::Multicast | Pattern::Nak),
            Role::Receiver { .. } => matches!(self.pattern, Pattern::Ack | Pattern::Cnp),
            Role::Rank { .. } => true,
        }
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.pattern == Pattern::Cnp && matches!(self.role, Role::Source { .. })
    }

    /// Whether frames are parts of longer messages, and so all full.
    fn joins_frames(&self, scenario: &Scenario) -> bool {
        scenario.sizes.parts() == [(self.pmtu.bytes(), 1)] && self.pattern == Pattern::Multicast
    }

    /// PSNs per data frame, and data frames per acknowledgement.
    fn psns_and_frames_per_ack(&self, scenario: &Scenario) -> (u32, u32) {
        match self.pattern {
            Pattern::Ack => ((scenario.window / 2).max(1), 1),
            Pattern::Nak => (1, scenario.window.max(2)),
            _ => (1, scenario.message.min(scenario.window / 2).max(1)),
        }
    }

    pub(crate) fn make<B: FrameBuf>(
        &self,
        scenario: &Scenario,
        shifts: &mut Shifts,
        gather: Gather<'_, B>,
    ) -> Result<Flow<B>, PlanError> {
        let (stride, message) = self.psns_and_frames_per_ack(scenario);
        let kind = match self.role {
            Role::Source { start } => Kind::Source(Source::new(SourceConfig {
                frames: self.sizes(scenario, shifts, gather)?,
                sequence: scenario.sizes.sequence(),
                start,
                stride,
                message: message.into(),
                joined: self.joins_frames(scenario),
                window: match self.pattern {
                    Pattern::Ack => 2,
                    _ => u64::from(scenario.window.max(2)),
                },
                goes_back: self.pattern == Pattern::Nak,
            })),
            Role::Receiver { start, number, of } => {
                let (answers, template) = match self.pattern {
                    Pattern::Cnp => (Answers::Cnps, Template::cnp(&self.ends, shifts)?),
                    // Half of the receivers refuse, at least one.
                    Pattern::Nak if number < of.div_ceil(2) => {
                        let back = (scenario.window.max(2) / 2) as i32 - 1;
                        let burst = scenario.burst.max(1);
                        (
                            Answers::Naks { back, burst },
                            Template::feedback(&self.ends, shifts)?,
                        )
                    }
                    _ => (Answers::Acks, Template::feedback(&self.ends, shifts)?),
                };
                let every = if self.pattern == Pattern::Ack { 1 } else { message };
                let answer = Ready::new(template, gather).ok_or(PlanError::NoBuffer)?;
                Kind::Receiver(Receiver::new(answers, answer, start, stride, every))
            }
            Role::Rank { .. } => Kind::Rank(Box::new(Rank::new(self.rank(shifts, gather)?))),
        };
        Ok(Flow {
            kind,
            counts: Default::default(),
            stamped: scenario.sizes.parts().iter().all(|(size, _)| *size >= 8),
        })
    }

    fn sizes<B: FrameBuf>(
        &self,
        scenario: &Scenario,
        shifts: &mut Shifts,
        gather: Gather<'_, B>,
    ) -> Result<Vec<Positions<B>>, PlanError> {
        let mut sizes = Vec::new();
        for (size, _) in scenario.sizes.parts() {
            // The first eight bytes are a timestamp, or zeros.
            let payload: Vec<u8> = (0..*size).map(|i| if i < 8 { 0 } else { i as u8 }).collect();
            let template = |opcode| Template::data(&self.ends, opcode, &payload, shifts);
            sizes.push(positions(self.joins_frames(scenario), template, gather)?);
        }
        Ok(sizes)
    }

    fn rank<B: FrameBuf>(
        &self,
        shifts: &mut Shifts,
        gather: Gather<'_, B>,
    ) -> Result<RankConfig<B>, PlanError> {
        let Role::Rank {
            rank,
            of,
            sq,
            rq,
            window,
            message,
        } = self.role
        else {
            return Err(PlanError::NoHost(0));
        };
        let elements = self.pmtu.bytes() / 4;
        // Small integers: their sum is exact in any order.
        let payload = |times: f32| -> Vec<u8> {
            let values = (0..elements).map(|i| times * (i % 8) as f32);
            values.flat_map(f32::to_le_bytes).collect()
        };
        let call = Call {
            primitive: Primitive::AllReduce,
            root: 0,
            roots: 1,
            operation: Operation::Sum,
            data_type: DataType::F32,
            flags: CallFlags::NONE,
            elements: elements as u64 * u64::from(PACKETS),
            packets: PACKETS,
        };
        let control = Control {
            sequence: 0,
            rank,
            call,
            verdict: Verdict::Agreed,
        };
        let control = Template::control(&self.ends, &control, shifts)?;
        let answer = Template::feedback(&self.ends, shifts)?;
        let mine = payload(1.0);
        let data = positions(
            true,
            |opcode| Template::contribution(&self.ends, opcode, &mine, shifts),
            gather,
        )?;
        Ok(RankConfig {
            control: Ready::new(control, gather).ok_or(PlanError::NoBuffer)?,
            data,
            answer: Ready::new(answer, gather).ok_or(PlanError::NoBuffer)?,
            result: payload(f32::from(of)),
            sq,
            rq,
            window: u64::from(window),
            message: u64::from(message),
        })
    }
}

fn positions<B: FrameBuf>(
    joined: bool,
    mut template: impl FnMut(Opcode) -> Result<Template, castnet_wire::EmitError>,
    gather: Gather<'_, B>,
) -> Result<Positions<B>, PlanError> {
    let mut make = |opcode, wanted: bool| -> Result<Option<Ready<B>>, PlanError> {
        if !wanted {
            return Ok(None);
        }
        Ready::new(template(opcode)?, gather)
            .map(Some)
            .ok_or(PlanError::NoBuffer)
    };
    Ok([
        make(Opcode::SendFirst, joined)?,
        make(Opcode::SendMiddle, joined)?,
        make(Opcode::SendLast, joined)?,
        make(Opcode::SendOnly, true)?,
    ])
}
