//! Hosts that die or refuse. The groups in which they receive wait for them, go on without them or fail, as their policies say.

use std::time::Duration;

use castnet_proto::v1;
use castnet_proto::v1::{GroupPhase, MemberLoss, MemberState};
use tokio::time::{Instant, sleep};

use super::{LOOK, Loss, MEMBERS, PATIENCE, World, create, found};
use crate::frames::Stream;

/// How the name of a group begins, and what becomes of it when a receiver stalls.
const EVICTS: &str = "evicts";
const POLICIES: [(&str, Option<MemberLoss>); 3] = [
    (EVICTS, Some(MemberLoss::Evict)),
    ("fails", Some(MemberLoss::Fail)),
    ("waits", None),
];
/// A receiver stalls after so many milliseconds.
const STALLS_AFTER_MS: u32 = 1000;
/// A group that waits for a receiver does so for as long. Switches report the stall twice meanwhile.
const WAITS: Duration = Duration::from_secs(5);

/// A member that was put out of a group whose policy does not say so, if there is one.
pub(super) fn wrongly_put_out(group: &v1::GroupState) -> Option<&str> {
    let mut members = group.members.iter();
    let out = members.find(|member| !member.put_out.is_empty() && !group.name.starts_with(EVICTS));
    out.map(|member| member.host.as_str())
}

impl World {
    /// A receiver of a group that carries messages dies: its host has no link any more. Or, where the group goes on without it, it ends its
    /// connection with a fatal NAK. A controller that leads may be killed meanwhile.
    pub(super) async fn lose_host(&mut self, step: u64) -> Result<(), String> {
        let (begins, policy) = *self.random.one(&POLICIES);
        let name = format!("{begins}{step}");
        let mut hosts = ["h0", "h1", "h2", "h3"];
        // The other hosts are tenants: they may have no group left.
        hosts.rotate_left(self.random.below(2) as usize);
        let lost = hosts[1 + self.random.below(3) as usize];
        self.qpn += 1;
        let request = v1::CreateGroupRequest {
            on_member_stall: policy.map(|then| v1::StallPolicy {
                after_ms: STALLS_AFTER_MS,
                then: then.into(),
            }),
            ..Self::request(&self.topology, &name, &hosts, self.qpn)
        };
        self.unknown.insert(name.clone());
        let group = create(&self.candidates, &request).await?;
        let mut stream = Stream::open(&mut self.frames.lock(), &group, self.qpn)?;
        self.goes_on(&mut stream, &name).await?;
        let (link, _, _) = self.topology.attachment(lost).ok_or("a host without a link")?;
        let refuses = policy == Some(MemberLoss::Evict) && step.is_multiple_of(2);
        let what = if refuses { "refuses" } else { "dies" };
        self.log.line(format_args!("{lost} {what}, a receiver of {name}"));
        let mark = self.mark()?;
        match refuses {
            true => stream.refuse(lost),
            false => self.set_link(link, false),
        }
        if self.random.below(2) == 0 {
            self.kill_leader().await;
        }
        match policy {
            Some(MemberLoss::Fail) => {
                let fails = |state: &v1::GroupState| state.phase() == GroupPhase::Failed;
                let state = self.until(&mut stream, &name, fails).await?;
                if !state.reason.contains(lost) {
                    return Err(format!("{name} fails with {lost}, and says {:?}", state.reason));
                }
            }
            Some(_) => {
                let why = if refuses { "fatal NAK" } else { "" };
                let is_out = |member: &MemberState| {
                    member.host == lost && !member.put_out.is_empty() && member.put_out.contains(why)
                };
                let is_without = |state: &v1::GroupState| state.members.iter().any(is_out);
                self.until(&mut stream, &name, is_without).await?;
                stream.leave(&mut self.frames.lock(), lost);
                self.goes_on(&mut stream, &name).await?;
            }
            None => {
                let began = Instant::now();
                let waits = |_: &v1::GroupState| began.elapsed() > WAITS;
                self.until(&mut stream, &name, waits).await?;
            }
        }
        if !refuses {
            self.log.line(format_args!("{lost} is back"));
            self.set_link(link, true);
        }
        if policy.is_none() {
            self.goes_on(&mut stream, &name).await?;
        }
        stream.close(&mut self.frames.lock());
        let loss = match MEMBERS.contains(&lost) {
            true => Loss::Frames,
            false => Loss::Nothing,
        };
        self.check_since(mark, loss)?;
        self.ends(&name).await
    }

    /// The state of a group that carries messages, when it is so.
    async fn until(
        &self,
        stream: &mut Stream,
        name: &str,
        is_so: impl Fn(&v1::GroupState) -> bool,
    ) -> Result<v1::GroupState, String> {
        let began = Instant::now();
        loop {
            stream.go_on(&mut self.frames.lock())?;
            let (_, mut leader) = self.candidates.leader(None).await;
            let state = found(&mut leader, name).await;
            match state {
                Ok(state) if is_so(&state) => return Ok(state),
                state if began.elapsed() > PATIENCE => {
                    return Err(format!("{name} has lost a receiver, and is as it was: {state:?}"));
                }
                _ => sleep(LOOK).await,
            }
        }
    }
}
