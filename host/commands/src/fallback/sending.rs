//! The source of a stream from host to host.

use std::time::{Duration, Instant};

use castnet_console::exit::Outcome;
use castnet_console::output::Output;
use castnet_member::fallback::{Course, Outgoing, Sending, joining_within};
use castnet_member::{MemberConfig, Messages, Transferred};
use castnet_rnic::Rnic;

use super::{GuardArgs, Refused, Ways, close, failed};
use crate::receivers::Receivers;
use crate::report::TransferReport;
use crate::{MemberArgs, Stop};

impl Refused {
    /// Sends what is left of a file to all other members. Returns when they have it.
    pub(crate) fn send(
        mut self,
        (args, guard): (&MemberArgs, &GuardArgs),
        config: MemberConfig,
        rnic: Box<dyn Rnic>,
        (outgoing, checks): (&mut Outgoing<'_>, Option<Messages>),
        (output, stop): (Output, &Stop),
    ) -> Outcome<TransferReport> {
        let before = std::mem::take(&mut self.before);
        // The group waits for all its members, also for those that are out.
        let is_whole = before.iter().all(|one| self.hosts.names.contains(&one.host));
        let mut ways = Ways::new(outgoing.begun, outgoing.position(), &self.reason);
        let patience = guard.slow.patience;
        let (mut hosts, mut ranks) = self.connect((args, &config), patience, rnic, stop)?;
        let bar = output.byte_bar(outgoing.header.length);
        let sending = Sending {
            guard: guard.slow.safeguard(&config),
            config: joining_within(config, patience.join_again()),
            patience: patience.fallback_give_up.0,
            ranks: &mut ranks,
            hosts: &mut hosts,
            outgoing: &mut *outgoing,
            course: Course::new(Duration::ZERO, guard.retry().filter(|_| is_whole)),
            path: &mut ways,
            start: Instant::now(),
            progress: &mut |bytes| bar.set_position(bytes),
        };
        let sent = sending.run();
        bar.finish_and_clear();
        let summary = sent.map_err(|error| failed(&ranks, error))?;
        let bytes = summary.bytes;
        let elapsed = outgoing.begun.elapsed();
        let transferred = Transferred { summary, elapsed };
        let report = TransferReport::of_stream(args, "source", transferred, None, hosts.rnic());
        close(hosts);
        let others = ranks.members.iter().skip(1);
        let report = report
            .by(Some(ways))
            .to(Receivers::between_hosts(others, before, bytes));
        Ok(match checks {
            Some(messages) => report.checks(args, messages),
            None => report,
        })
    }
}
