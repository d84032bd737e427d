//! A receiver of a stream from host to host.

use std::cell::RefCell;
use std::time::Instant;

use castnet_comm::Communicator;
use castnet_console::exit::Outcome;
use castnet_console::output::Output;
use castnet_member::fallback::{FallbackError, PathReport, Ranks, Receiving, joining_within};
use castnet_member::{MemberConfig, StreamSummary, Transferred};
use castnet_rnic::Rnic;
use indicatif::ProgressBar;

use super::{Incoming, PatienceArgs, Refused, Ways, close, failed};
use crate::report::{Earlier, TransferReport};
use crate::{MemberArgs, Stop, failure};

/// Shows how much of a stream has come, whose length is known with its first bytes.
pub(crate) fn show(bar: &ProgressBar, length: Option<u64>, bytes: u64) {
    if let Some(length) = length
        && bar.length().is_none()
    {
        bar.set_length(length);
    }
    bar.set_position(bytes);
}

/// Keeps what was received from host to host, and reports it.
pub(super) fn keep(
    args: &MemberArgs,
    (ranks, hosts): (&Ranks, &Communicator),
    incoming: &RefCell<Incoming<'_>>,
    received: Result<StreamSummary, FallbackError>,
    (begun, ways): (Instant, Ways),
) -> Outcome<TransferReport> {
    let summary = received.map_err(|error| failed(ranks, error))?;
    let path = incoming.borrow_mut().keep(summary.clone());
    let path = path.map_err(failure::sink)?;
    let elapsed = begun.elapsed();
    let transferred = Transferred { summary, elapsed };
    let report = TransferReport::of_stream(args, "receiver", transferred, path, hosts.rnic());
    Ok(report.by(Some(ways)))
}

impl Refused {
    /// Receives what is left of a file.
    pub(crate) fn receive(
        self,
        (args, patience): (&MemberArgs, PatienceArgs),
        config: MemberConfig,
        rnic: Box<dyn Rnic>,
        incoming: &RefCell<Incoming<'_>>,
        (begun, earlier): (Instant, Earlier),
        (output, stop): (Output, &Stop),
    ) -> Outcome {
        let (in_group, from_members) = incoming.borrow().came();
        let mut ways = Ways::new(begun, in_group, &self.reason);
        ways.add_between_hosts(from_members);
        let (mut hosts, mut ranks) = self.connect((args, &config), patience, rnic, stop)?;
        let bar = output.byte_bar(None);
        let receiving = Receiving {
            ranks: &mut ranks,
            // So that the source is the first to give up.
            config: MemberConfig {
                join_within: Some(patience.join_again() * 2),
                ..joining_within(config, patience.join_again())
            },
            patience: patience.fallback_give_up.0,
            hosts: &mut hosts,
            incoming,
            path: &mut ways,
            progress: &mut |length, bytes| show(&bar, length, bytes),
        };
        let received = receiving.run();
        bar.finish_and_clear();
        let report = keep(args, (&ranks, &hosts), incoming, received, (begun, ways))?.after(earlier);
        close(hosts);
        let incoming = incoming.borrow();
        match incoming.messages() {
            Some(messages) => output.show_next(&report.checks(args, messages)),
            None => incoming.target.report(&report, output),
        }
    }
}
