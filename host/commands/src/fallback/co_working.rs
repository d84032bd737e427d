//! Receivers that the tree of their group does not reach, while the others are in the network.

use std::time::{Duration, Instant};

use castnet_console::output::remark;
use castnet_member::fallback::PathReport;
use castnet_member::{Member, MemberConfig, MemberError, Outside, Source, StreamReceiver};

use super::{FallbackArg, Ways};
use crate::sink::Target;

/// Receivers that can be outside, and sources that wait for them. A file is kept, so it can be passed on.
pub(crate) fn configure(
    config: MemberConfig,
    fallback: FallbackArg,
    target: Option<&Target>,
) -> MemberConfig {
    let co_works = fallback == FallbackArg::Auto && config.group.name().is_some();
    MemberConfig {
        co_works,
        passes_on: co_works && target.is_some_and(Target::is_kept),
        ..config
    }
}

fn text(outside: &[Outside]) -> String {
    let each = outside
        .iter()
        .map(|out| format!("{} (from {}: {})", out.host, out.via, out.reason));
    each.collect::<Vec<_>>().join(", ")
}

/// A source waits for the receivers outside, after the stream.
pub(super) fn remark_waiting(outside: &[Outside]) {
    remark(&format!(
        "all others have it; waits for what the tree does not reach: {}",
        text(outside)
    ));
}

/// What becomes of the way of a stream while some receivers are outside.
pub(crate) struct Watched {
    begun: Instant,
    outside: Vec<Outside>,
}

impl Watched {
    /// The receivers that are outside when the group begins.
    pub(crate) fn begin<T>(host: &str, member: &Member<'_, T>) -> Self {
        let outside = member.outside();
        if let Some(own) = member.own_outside() {
            remark(&format!(
                "{host}: the tree does not reach it: {}; gets the stream from {}",
                own.reason, own.via
            ));
        }
        Self {
            begun: Instant::now(),
            outside,
        }
    }

    fn ways(&self, bytes: u64, now: &[Outside]) -> Ways {
        let mut ways = Ways::all_in_group(self.begun, bytes);
        ways.note_outside(&self.outside);
        ways.note_outside(now);
        ways
    }

    /// The source has sent its stream to all in the tree: waits for the others. `None`: there were none.
    pub(crate) fn sent(
        self,
        source: &mut Member<'_, Source>,
        bytes: u64,
    ) -> Result<Option<Ways>, MemberError> {
        let mut ways = self.ways(bytes, &source.outside());
        let waits = Instant::now();
        source.await_outside(&mut remark_waiting)?;
        let waited: Duration = waits.elapsed();
        Ok((!ways.is_plain()).then(|| {
            ways.note_waited(waited);
            ways
        }))
    }

    /// A receiver has everything: it passes the stream on as long as it has to.
    pub(crate) fn received(
        self,
        receiver: &mut Member<'_, StreamReceiver>,
        bytes: u64,
        kept: &mut dyn FnMut(u64, &mut [u8]) -> std::io::Result<usize>,
    ) -> Result<Option<Ways>, MemberError> {
        let mut ways = self.ways(bytes, &receiver.outside());
        for change in receiver.came_from() {
            ways.came_from(change.at_byte, bytes, (change.at, &change.reason));
        }
        receiver.pass_on(kept)?;
        ways.note_outside(&receiver.outside());
        ways.note_passed_on(receiver.passed_on());
        Ok((!ways.is_plain()).then_some(ways))
    }
}
