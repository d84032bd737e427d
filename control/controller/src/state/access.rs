//! Who may call what at the controller: a host joins as itself, and sees its own groups.

use castnet_proto::access::{Caller, Right, Role};
use castnet_proto::convert::ExchangeCall;
use castnet_proto::v1::{self, ExchangeAmong};
use castnet_rules::HostEndpoint;
use castnet_wire::MacAddr;

use crate::error::Refusal;
use crate::state::kinds::collective::secret::Secret;
use crate::state::kinds::collective::view;
use crate::state::{Collective, Core, Entry, Record};

/// The right that a method needs. The test below fails if one is missing.
pub(crate) fn right(method: &str) -> Option<Right> {
    Some(match method {
        "CreateGroup" | "CreateCollective" | "DestroyGroup" | "AddMember" | "EvictMember" | "ForgetHost"
        | "PurgeGroups" => Right::Operate,
        "JoinGroup" | "LeaveGroup" | "ReportUnreached" | "InitGroup" | "Exchange" | "RegisterHost" => {
            Right::Join
        }
        "GetGroup" => Right::Look,
        "FindLeader" => Right::Reach,
        "ListGroups" | "PlanGroup" | "ListSwitches" | "ListHosts" | "GetTopology" | "WatchEvents" => {
            Right::Read
        }
        _ => return None,
    })
}

impl Core {
    /// Refuses a host that acts for the rank of another one. A rank that no host has is free for all.
    pub(crate) fn check_rank(
        &self,
        caller: &Caller,
        job: &str,
        rank: u32,
        what: &str,
    ) -> Result<(), Refusal> {
        let Ok((_, group)) = self.collective(job) else {
            return Ok(());
        };
        let is_open = |host: &str| host.is_empty() || caller.may_be(host);
        let may = match group.ranks.get(rank as usize) {
            Some(place) => is_open(&place.host),
            // Others do not learn how many ranks there are.
            None => group.ranks.iter().any(|place| is_open(&place.host)),
        };
        if may {
            return Ok(());
        }
        let what = format!("{what} as rank {rank} of group {job:?}");
        let rule = "another host has this rank; a host acts for its own ranks alone, an operator for all";
        Err(caller.denied(what, rule).into())
    }

    /// Refuses a host that does not have this rank in the exchange. In a job without a group no rank belongs to a host; its secret keeps
    /// strangers out.
    pub(crate) fn check_exchange(&self, caller: &Caller, call: &ExchangeCall) -> Result<(), Refusal> {
        let ExchangeCall { job, rank, .. } = call;
        if call.among == ExchangeAmong::Unspecified {
            self.check_rank(caller, job, (*rank).into(), "exchange")?;
            if let Ok((_, group)) = self.collective(job) {
                check_size(job, group.ranks.len(), call.size)?;
            }
            return self.check_secret(job, *rank, &Secret::new(job, &call.secret));
        }
        let seats = self.multicast(job)?.0.record().seats(call.among, call.round);
        // Others do not learn how many members there are, and who they are.
        if !seats.iter().flatten().any(|host| caller.may_be(host)) {
            self.check_member(caller, job, "exchange beside")?;
        }
        // It may have been chosen, and the member that calls does not know yet.
        let seats = seats.ok_or_else(|| {
            let number = call.round;
            let reason =
                format!("no receiver outside of the tree of group {job:?} has the number {number} now");
            Refusal::later("round", reason)
        })?;
        check_size(job, seats.len(), call.size)?;
        match seats.get(usize::from(*rank)) {
            Some(host) if caller.may_be(host) => Ok(()),
            host => {
                let what = format!("exchange as rank {rank} beside group {job:?}");
                let rule = format!(
                    "this is the place of host {:?}",
                    host.copied().unwrap_or_default()
                );
                Err(caller.denied(what, rule).into())
            }
        }
    }

    /// Refuses a host that takes an address of another one, or another spelling of its name: a certificate is one host. A machine that
    /// has got another name has both in its certificate, or an operator forgets the old one. Who is back in a group with the connection
    /// that it has there was checked when it came, and who has an Ethernet address keeps it.
    pub(crate) fn check_itself(
        &self,
        caller: &Caller,
        endpoint: &HostEndpoint,
        group: Option<&str>,
    ) -> Result<(), Refusal> {
        let HostEndpoint {
            name: host, ip, mac, ..
        } = endpoint;
        if caller.role != Role::Host {
            return Ok(());
        }
        let own = caller.peer.names.iter().flatten();
        if let Some(name) = own.into_iter().find(|name| name.eq_ignore_ascii_case(host))
            && name != host
            && !self.facts.knows_host(host)
        {
            let reason = format!(
                "host {host:?} is not known; the certificate of the caller has the name {name:?}: use this one"
            );
            return Err(Refusal::wrong("host", reason));
        }
        match self.facts.host_of(*ip, Some(host)) {
            Some(other)
                if !caller.may_be(other)
                    && !group.is_some_and(|group| self.groups.has_queue_pair(endpoint, group)) =>
            {
                Err(Refusal::address_taken("ip", *ip, other))
            }
            _ => self.check_mac(caller, host, *mac),
        }
    }

    /// Refuses a host the Ethernet address of another one: as that one has reported, as the file has it, or as it was seen where the file
    /// has that host.
    fn check_mac(&self, caller: &Caller, host: &str, mac: MacAddr) -> Result<(), Refusal> {
        if mac == MacAddr::UNSPECIFIED {
            return Ok(());
        }
        for hosts in [self.facts.hosts_with(mac.0), self.facts.hosts_seen_with(mac.0)] {
            if hosts.contains(host) {
                return Ok(());
            }
            if let Some(other) = hosts.into_iter().find(|other| !caller.may_be(other)) {
                let host = other.into();
                return Err(Refusal::MacTaken { mac, host });
            }
        }
        Ok(())
    }

    /// Refuses a host that is no member of a group.
    pub(crate) fn check_member(&self, caller: &Caller, group: &str, what: &str) -> Result<(), Refusal> {
        if caller.role != Role::Host || is_member(caller, self.group(group)?) {
            return Ok(());
        }
        let what = format!("{what} group {group:?}");
        Err(caller.denied(what, "it is no member of it").into())
    }

    /// A group as the caller may see it. A host sees its own groups, and of a job with a free rank what it needs to join.
    pub(crate) fn seen_by(&self, caller: &Caller, name: &str) -> Result<v1::Group, Refusal> {
        let entry = self.group(name)?;
        let refused = match self.check_member(caller, name, "see") {
            Ok(()) => return Ok(entry.record().kind.behaviour().view(self, entry)),
            Err(refused) => refused,
        };
        let has_free_rank = |group: &&Collective| group.ranks.iter().any(|r| r.host.is_empty());
        let group = entry.record().collective().filter(has_free_rank).ok_or(refused)?;
        let collective = v1::Collective {
            state: Some(view::to_join(group, entry)),
            ..Default::default()
        };
        Ok(v1::Group {
            collective: Some(collective),
            ..Default::default()
        })
    }
}

impl Record {
    /// The hosts that may exchange, by rank; an empty name: any host. `None`: nobody has a seat by this group.
    pub(crate) fn seats(&self, among: ExchangeAmong, round: u64) -> Option<Vec<&str>> {
        match among {
            ExchangeAmong::Unspecified => {
                let ranks = self.collective()?.ranks.iter();
                Some(ranks.map(|rank| rank.host.as_str()).collect())
            }
            ExchangeAmong::Members => Some(self.multicast()?.source_first()),
            ExchangeAmong::Outside => self.multicast()?.ends_outside(round),
        }
    }
}

/// Refuses a call that gives another number of ranks than its job, group or round has.
pub(crate) fn check_size(job: &str, size: usize, given: u16) -> Result<(), Refusal> {
    match size == usize::from(given) {
        true => Ok(()),
        false => Err(Refusal::OtherSize {
            job: job.into(),
            size: size as u16,
            given,
        }),
    }
}

fn is_member(caller: &Caller, entry: &Entry) -> bool {
    let parties = entry.record().kind.behaviour().parties();
    parties.iter().any(|p| caller.may_be(p.host))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use castnet_proto::transport::Peer;
    use castnet_topology::{End, Topology};
    use tonic::Status;

    use super::*;
    use crate::state::core::tests::{core, join};
    use crate::state::fabric::tests::host as known;
    use crate::state::fabric::{NeighbourReport, SwitchReport, Who};

    fn host(name: &str) -> Caller {
        let peer = Peer {
            address: String::new(),
            names: Some(vec![name.into()]),
        };
        Caller::new(Arc::new(peer), Role::Host)
    }

    /// A topology file that was taken over since gives its address to another host.
    #[test]
    fn who_is_back_keeps_its_address() {
        let mut core = core(|_| {});
        let rank = join("job", 0, 2, "");
        core.seat_rank(rank.clone(), "h0").map(drop).unwrap();
        // With another Ethernet address.
        core.facts.set_host("new", Some(known("new", 1)));
        let checked = |group| core.check_itself(&host("h0"), &rank.endpoint, group);
        assert!(checked(Some("job")).is_ok());
        for group in [None, Some("another")] {
            assert!(
                matches!(checked(group), Err(Refusal::AddressTaken { .. })),
                "{group:?}"
            );
        }
        core.seat_rank(rank, "h0").map(drop).unwrap();
        assert!(
            core.seat_rank(join("b", 0, 2, ""), "h0").is_err(),
            "it does not join with it"
        );
    }

    /// It was seen at the port of the other one then.
    #[test]
    fn a_host_takes_no_ethernet_address_of_another_one() {
        let mut core = core(|_| {});
        let HostEndpoint { mac, .. } = join("job", 1, 2, "").endpoint;
        let own = join("job", 0, 2, "").endpoint;
        let taken = HostEndpoint { mac, ..own.clone() };
        let is_refused = |core: &Core, caller: &Caller, endpoint: &HostEndpoint| {
            let each = [None, Some("job")].map(|group| core.check_itself(caller, endpoint, group));
            let refused = each.map(|checked| matches!(checked, Err(Refusal::MacTaken { .. })));
            assert_eq!(refused[0], refused[1]);
            refused[0]
        };
        assert!(!is_refused(&core, &host("h0"), &taken), "nobody has it");
        core.seat_rank(join("job", 1, 2, ""), "h1").map(drop).unwrap();
        core.seat_rank(join("job", 0, 2, ""), "h0").map(drop).unwrap();
        assert!(is_refused(&core, &host("h0"), &taken));
        assert!(!is_refused(&core, &host("h0"), &own));
        let both = Peer {
            address: String::new(),
            names: Some(vec!["h0".into(), "h1".into()]),
        };
        let both = Caller::new(Arc::new(both), Role::Host);
        assert!(!is_refused(&core, &both, &taken), "a machine with two names");
        // Who has it keeps it, also if another one had got it before that was refused.
        core.facts.set_host("h0", Some(known("h0", 1)));
        assert!(!is_refused(&core, &host("h0"), &taken));
        let of_h1 = join("job", 1, 2, "").endpoint;
        assert!(!is_refused(&core, &host("h1"), &of_h1));
    }

    /// Refusals told each host who has which address.
    #[test]
    fn a_host_is_not_told_who_has_the_address_that_it_may_not_take() {
        let mut core = core(|_| {});
        let (own, other) = (join("job", 0, 2, "").endpoint, join("job", 1, 2, ""));
        let HostEndpoint { ip, mac, .. } = other.endpoint;
        core.seat_rank(other, "h1").map(drop).unwrap();
        let operator = Caller::new(host("ops").peer, Role::Operator);
        for taken in [
            HostEndpoint { ip, ..own.clone() },
            HostEndpoint { mac, ..own.clone() },
        ] {
            let told = |caller: &Caller| {
                let refused = core.check_itself(&host("h0"), &taken, None).unwrap_err();
                Status::from(refused.told_to(caller)).message().to_owned()
            };
            let (to_host, to_operator) = (told(&host("h0")), told(&operator));
            assert!(to_host.ends_with("address of another host"), "{to_host}");
            assert!(!to_host.contains("h1"), "{to_host}");
            assert!(to_operator.ends_with("address of host \"h1\""), "{to_operator}");
        }
    }

    /// The file says who it is, or by which port the host comes that it was seen with.
    #[test]
    fn a_host_takes_no_ethernet_address_of_a_host_of_the_file() {
        let HostEndpoint { mac, .. } = join("job", 1, 2, "").endpoint;
        let taken = HostEndpoint {
            mac,
            ..join("job", 0, 2, "").endpoint
        };
        for (filed, port, refuses) in [(Some(mac.0), 2, true), (None, 1, true), (None, 2, false)] {
            let mut file = Topology::new();
            file.add_switch("s", (0..3).map(|port| (port, [6, 0, 0, 0, 0, port])))
                .unwrap();
            for (number, mac) in [(0, None), (1, filed)] {
                let name = format!("h{number}");
                file.add_host(&name, Some([10, 0, 0, number + 1].into()), mac)
                    .unwrap();
                file.connect(End::port("s", number), End::host(name), 1500)
                    .unwrap();
            }
            let mut core = core(|config| config.topology = Some(file));
            let who = Who::Host {
                ip: [10, 0, 0, 2].into(),
                mac: mac.0,
            };
            let report = SwitchReport {
                neighbours: vec![NeighbourReport { port, age_ns: 0, who }],
                ..SwitchReport::default()
            };
            core.facts.report("s", report);
            let checked = core.check_itself(&host("h0"), &taken, None);
            assert_eq!(
                matches!(checked, Err(Refusal::MacTaken { .. })),
                refuses,
                "{filed:?} {port}"
            );
        }
    }

    #[test]
    fn no_state_is_made_for_a_host_that_may_not_see_it() {
        let mut core = core(|_| {});
        core.seat_rank(join("job", 0, 2, ""), "h0").map(drop).unwrap();
        let made = |core: &Core| core.numbers.load(Ordering::Relaxed);
        let before = made(&core);
        let free = core
            .seen_by(&host("h9"), "job")
            .unwrap()
            .collective
            .unwrap()
            .state
            .unwrap();
        assert_eq!(
            (free.name.as_str(), free.members.len(), free.lanes.len()),
            ("job", 0, 1)
        );
        assert!(free.settings.is_some() && free.mcst_id.is_empty());
        core.seat_rank(join("job", 1, 2, ""), "h1").map(drop).unwrap();
        let refused = core.seen_by(&host("h9"), "job").unwrap_err();
        assert!(matches!(refused, Refusal::Denied(_)), "{refused}");
        assert_eq!(made(&core), before);
        core.seen_by(&host("h1"), "job").unwrap();
        assert_eq!(made(&core), before + 1);
    }

    #[test]
    fn each_method_needs_a_right_and_the_document_says_who_has_it() {
        let document = include_str!("../../../../docs/security.md");
        let proto = include_str!("../../../../proto/castnet/v1/controller.proto");
        let faults =
            castnet_proto::access::document_faults(document, "Calls to the controller", proto, right);
        assert_eq!(faults, [""; 0]);
        assert_eq!(right("Reboot"), None);
    }
}
