//! A file from host to host, where the switches cannot install its group, or it is slow: the flags, the reports, and the files of
//! [`castnet_member::fallback`].

mod co_working;
mod incoming;
mod receiving;
mod sending;
mod turns;
mod ways;

use std::time::Duration;

use castnet_comm::{CommConfig, CommError, Communicator, Fallback, Timeouts};
use castnet_console::exit::{Failure, Outcome};
use castnet_console::files;
use castnet_console::output::remark;
use castnet_console::units::{Ratio, Span, positive_span};
use castnet_member::fallback::{FallbackError, Ranks};
use castnet_member::{Group, Hosts, MemberConfig, MemberError, ReceiverState, Safeguard};
use castnet_rnic::Rnic;
use castnet_rules::BitRate;
use clap::{Args, ValueEnum};

use super::collective::failure;
use super::{MemberArgs, Stop};
pub(super) use co_working::{Watched, configure};
pub(super) use incoming::Incoming;
pub(super) use receiving::show;
pub(super) use turns::{Held, Instead, Turns};
pub(super) use ways::Ways;

/// What to do if the switches cannot install the group, or it is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum FallbackArg {
    /// Send from host to host, over unicast connections. All members need it
    Auto,
    /// Fail
    Off,
}

/// How hosts wait for each other when they send from host to host.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct PatienceArgs {
    /// From host to host, fails if a member does not answer for so long
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = positive_span)]
    fallback_give_up: Span,
}

impl PatienceArgs {
    /// How long the source waits until all have joined their group again. Meanwhile, no member may give up.
    fn join_again(self) -> Duration {
        self.fallback_give_up.0 / 3
    }
}

/// When the source of a group goes on from host to host, and tries the group again.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "If the switches cannot install the group, or it is slow (docs/safeguard.md)")]
pub(super) struct GuardArgs {
    #[command(flatten)]
    pub(super) slow: SlowArgs,
    /// The group is tried again after this time, and after twice the time whenever that fails; 0: never
    #[arg(long, value_name = "TIME", default_value = "30s")]
    fallback_retry: Span,
}

/// When the source of a group goes on from host to host.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "If the switches cannot install the group, or it is slow (docs/safeguard.md)")]
pub(super) struct SlowArgs {
    /// What to do then
    #[arg(long, value_enum, value_name = "HOW", default_value_t = FallbackArg::Auto)]
    pub(super) fallback: FallbackArg,
    /// The group is slow if its goodput is a smaller share of the expected one
    #[arg(long, value_name = "SHARE", default_value = "50%")]
    fallback_share: Ratio,
    /// How long the goodput must be smaller
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = positive_span)]
    fallback_after: Span,
    /// Expected goodput, in bits per second, such as 10G [default: the best of this transfer; then a group is slow only if it loses packets
    /// or delivers nothing]
    #[arg(long, value_name = "RATE")]
    expect: Option<BitRate>,
    #[command(flatten)]
    pub(super) patience: PatienceArgs,
}

impl SlowArgs {
    /// `None`: the group stays, however slow it is. The members of a group of a rule file do not know each other.
    pub(super) fn safeguard(&self, config: &MemberConfig) -> Option<Safeguard> {
        let is_on = self.fallback == FallbackArg::Auto && !matches!(config.group, Group::Fixed { .. });
        is_on.then(|| Safeguard {
            share: self.fallback_share.0,
            after: self.fallback_after.0,
            expected: self.expect.map(|rate| rate.bits_per_second() as f64),
        })
    }
}

impl GuardArgs {
    fn retry(&self) -> Option<Duration> {
        Some(self.fallback_retry.0).filter(|time| !time.is_zero())
    }
}

/// A group that could not be installed, or is slow.
#[derive(Debug)]
pub(super) struct Refused {
    group: String,
    reason: String,
    hosts: Hosts,
    /// Whether the group was installed, and its source has left it.
    was_installed: bool,
    /// At the source: what became of the receivers before, where it knows.
    before: Vec<ReceiverState>,
}

impl FallbackArg {
    /// The group, if its members are to send from host to host instead; otherwise the error.
    pub(super) fn instead(self, error: MemberError) -> Result<Refused, MemberError> {
        match error {
            MemberError::NotInstalled { group, reason, hosts } if self == Self::Auto => Ok(Refused {
                group,
                reason,
                hosts,
                was_installed: false,
                before: Vec::new(),
            }),
            MemberError::Diverted { group, reason, hosts } if self == Self::Auto => {
                Ok(Refused::diverted(group, reason, hosts))
            }
            error => Err(error),
        }
    }
}

impl From<Refused> for MemberError {
    fn from(refused: Refused) -> Self {
        let Refused {
            group,
            reason,
            hosts,
            was_installed,
            before: _,
        } = refused;
        match was_installed {
            true => Self::Diverted { group, reason, hosts },
            false => Self::NotInstalled { group, reason, hosts },
        }
    }
}

impl Refused {
    /// A group that its source has left.
    pub(super) fn diverted(group: String, reason: String, hosts: Hosts) -> Self {
        Self {
            group,
            reason,
            hosts,
            was_installed: true,
            before: Vec::new(),
        }
    }

    /// Of a source that knows what became of the receivers of the group.
    pub(super) fn knowing(self, before: Vec<ReceiverState>) -> Self {
        Self { before, ..self }
    }

    /// Connects this member with all others.
    fn connect(
        self,
        (args, config): (&MemberArgs, &MemberConfig),
        patience: PatienceArgs,
        mut rnic: Box<dyn Rnic>,
        stop: &Stop,
    ) -> Outcome<(Communicator, Ranks)> {
        let Self {
            group,
            reason,
            hosts,
            was_installed,
            before: _,
        } = self;
        let what = match was_installed {
            true => format!("{reason}; the stream of group {group} goes on from host to host"),
            false => {
                format!("group {group} could not be installed: {reason}; it is sent from host to host")
            }
        };
        remark(&format!("{}: {what}", args.name));
        let rank = hosts.rank(&args.name);
        let rank =
            rank.ok_or_else(|| Failure::failed(format!("{} is no member of group {group}", args.name)))?;
        let ranks = Ranks::meet(&mut *rnic, config, group, hosts, &reason);
        let ranks = ranks.map_err(super::failure::member)?;
        let config = CommConfig {
            rendezvous: ranks.rendezvous(),
            security: args.tls.security()?,
            qp_timeout: args.qp.qp_timeout,
            retry_cnt: args.qp.retry_cnt,
            is_of_members: true,
            fallback: Fallback::Only,
            timeouts: Timeouts {
                join: patience.fallback_give_up.0,
                collective: patience.fallback_give_up.0,
                ..Timeouts::default()
            },
            interrupt: Some(stop.clone()),
            ..CommConfig::new(
                args.join.controller.clone(),
                ranks.group.clone(),
                rank,
                ranks.members.len() as u16,
                &args.name,
            )
        };
        let hosts = Communicator::connect(config, rnic).map_err(|error| not_all(&ranks, error))?;
        Ok((hosts, ranks))
    }
}

/// A step of all hosts failed.
fn not_all(ranks: &Ranks, error: CommError) -> Failure {
    let is_here = matches!(error, CommError::Interrupted | CommError::Rnic(_));
    let failed = failure(error, &ranks.group);
    if is_here {
        return failed;
    }
    let members = ranks.members.iter().enumerate();
    let members: Vec<_> = members.map(|(rank, host)| format!("{rank} is {host}")).collect();
    failed.next(format!(
        "see why a member does not answer, and send again; the ranks: {}",
        members.join(", ")
    ))
}

/// A stream from host to host failed.
fn failed(ranks: &Ranks, error: FallbackError) -> Failure {
    match error {
        FallbackError::Hosts(error) => not_all(ranks, error),
        FallbackError::Group(error) => super::failure::member(error),
        FallbackError::Write(error) => super::failure::sink(error),
        FallbackError::Read(ref source) if files::is_by_signal(source) => super::failure::interrupted(),
        error => Failure::failed(error),
    }
}

/// A member of a group that is registered with MRP goes on from host to host if `fallback` says so.
pub(super) fn called(mut config: MemberConfig, fallback: FallbackArg) -> MemberConfig {
    if let Group::InBand { registration, .. } = &mut config.group {
        registration.calls = fallback == FallbackArg::Auto;
    }
    config
}

/// What was transferred is complete.
fn close(hosts: Communicator) {
    if let Err(error) = hosts.close() {
        tracing::warn!(%error, "not closed");
    }
}
