//! When a transfer cannot come to its end any more: nobody answers, or the group is not what it was.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use castnet_console::api;
use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::remark;
use castnet_rnic::stream::Flow;

use crate::host::device::HostDevice;
use crate::host::member::{Dial, Stop};

/// Silence after which a source is told that nobody answers.
const REMARK_AFTER: Duration = Duration::from_secs(5);

/// How long a source has sent and heard nothing. Its QP tries for ever, so that a switch may come back; a receiver that
/// is gone does not, and somebody must say so.
///
/// A receiver that takes its time answers with RNR NAKs: that is no silence.
pub(super) struct Silence {
    since: Instant,
    /// Answers heard, and bytes taken from the source: it is not the network that is waited for where these come late.
    seen: (u64, u64),
    told: bool,
    give_up: Option<Duration>,
    over: bool,
}

impl Silence {
    pub(super) fn new(give_up: Option<Duration>) -> Self {
        Self {
            since: Instant::now(),
            seen: (0, 0),
            told: false,
            give_up,
            over: false,
        }
    }

    pub(super) fn look<R: HostDevice>(&mut self, rnic: &R, bytes: u64) -> Flow {
        self.step(Instant::now(), (rnic.answers(), bytes))
    }

    fn step(&mut self, now: Instant, seen: (u64, u64)) -> Flow {
        if seen != self.seen {
            (self.seen, self.since, self.told) = (seen, now, false);
            return Flow::Continue;
        }
        let silent = now.saturating_duration_since(self.since);
        if !self.told && silent >= REMARK_AFTER {
            self.told = true;
            remark(
                "nothing has been acknowledged for 5 s: castnet group show tells which receiver is waited for",
            );
        }
        self.over = self.give_up.is_some_and(|most| silent >= most);
        if self.over { Flow::Stop } else { Flow::Continue }
    }

    /// The failure of a source that has given up.
    pub(super) fn failure(&self) -> Option<Failure> {
        let most = self.give_up.filter(|_| self.over)?;
        let what = format!(
            "nothing has been acknowledged for {}",
            castnet_console::units::span(most)
        );
        Some(Failure::unreachable(what).next("castnet group show GROUP tells which receiver is waited for"))
    }
}

/// Why a transfer cannot come to its end any more, as the controller sees it; found out beside the transfer, which is
/// then stopped.
#[derive(Clone, Default)]
pub(super) struct Fate(Arc<OnceLock<Failure>>);

impl Fate {
    /// The failure that ended the transfer, instead of the one that it ended with.
    pub(super) fn or<T>(&self, outcome: Outcome<T>) -> Outcome<T> {
        outcome.map_err(|failure| self.0.get().cloned().unwrap_or(failure))
    }

    /// Stops the transfer of `host` when its group is destroyed, or when the source leaves before this receiver has all.
    pub(super) async fn watch(self, controller: Dial, group: String, host: String, stop: Stop) {
        let mut gone_for = 0;
        loop {
            tokio::time::sleep(FATE_INTERVAL).await;
            let request = api::GetGroupRequest { group: group.clone() };
            let Ok(mut client) = controller.connect().await else {
                continue;
            };
            let what = match client.get_group(request).await {
                Ok(answer) => {
                    let state = answer.into_inner().state.unwrap_or_default();
                    let source = state.members.iter().find(|m| m.host == state.source);
                    let is_in = source.is_some_and(|m| m.phase() == api::MemberPhase::Joined);
                    // What was sent last may still be on its way from the port to the file.
                    gone_for = if is_in || state.source == host {
                        0
                    } else {
                        gone_for + 1
                    };
                    if gone_for < 3 {
                        continue;
                    }
                    format!("{} has left group {group} before the end", state.source)
                }
                Err(status) if status.code() == tonic::Code::NotFound => {
                    format!("group {group} was destroyed before the end")
                }
                Err(_) => continue,
            };
            // Set before the stop is asked for: who sees the stop sees why.
            let _ = self.0.set(Failure::failed(what));
            return stop.ask();
        }
    }
}

/// How often a host asks whether its group is still there.
const FATE_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// What `silence` says after `seconds` of the same counts.
    fn after(silence: &mut Silence, seconds: u32, seen: (u64, u64)) -> Flow {
        let now = silence.since + seconds * SECOND;
        silence.step(now, seen)
    }

    #[test]
    fn a_source_that_hears_nothing_is_told_and_then_gives_up() {
        let mut silence = Silence::new(Some(60 * SECOND));
        assert_eq!(after(&mut silence, 4, (0, 0)), Flow::Continue);
        assert!(!silence.told);
        assert_eq!(after(&mut silence, 6, (0, 0)), Flow::Continue);
        assert!(silence.told && silence.failure().is_none());
        assert_eq!(after(&mut silence, 60, (0, 0)), Flow::Stop);
        assert_eq!(silence.failure().map(|f| f.code()), Some(4));
    }

    #[test]
    fn answers_and_bytes_that_come_late_are_no_silence_and_it_can_be_told_to_go_on_for_ever() {
        let mut silence = Silence::new(Some(60 * SECOND));
        for seen in [(1, 0), (2, 0), (2, 1)] {
            assert_eq!(after(&mut silence, 100, seen), Flow::Continue);
        }
        let mut silence = Silence::new(None);
        assert_eq!(after(&mut silence, 1_000_000, (0, 0)), Flow::Continue);
    }
}
