//! How far a collective group is at a switch, and how far each of its endpoints.

use castnet_console::api;
use castnet_console::columns;
use castnet_console::output::named;
use castnet_console::units::count;
use castnet_wire::Psn;
use castnet_worker::engine::{EndpointCounters, copy_endpoint_counters};
use serde::Serialize;

use super::super::show::virtual_qpn;
use super::ranks_text;

/// How far a collective group is at a switch.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Progress {
    pub(crate) base_psn: u32,
    pub(crate) sequence: Option<u32>,
    pub(crate) call: String,
    pub(crate) slots_used: u32,
    pub(crate) slots: u32,
    pub(crate) finished: u64,
    pub(crate) failed: bool,
    pub(crate) memory_bytes: u64,
}

/// How far an endpoint is. PSNs are the group's.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EndpointRow {
    pub(super) port: u32,
    virtual_qpn: u32,
    pub(super) next_hop: String,
    pub(super) ranks: Vec<u32>,
    parent: bool,
    /// The next packet that is expected of it.
    expected_psn: Option<u32>,
    /// The next packet that it is sent.
    next_psn: Option<u32>,
    /// The oldest packet that it has not acknowledged.
    unacknowledged_psn: Option<u32>,
    /// Packets that it has sent fewer than the foremost endpoint here; not told of the parent, which sends results.
    pub(super) behind: Option<u32>,
    waited_for: bool,
    #[serde(flatten, serialize_with = "named")]
    counters: EndpointCounters,
}

impl EndpointRow {
    fn ranks(&self) -> String {
        ranks_text(&self.ranks)
    }

    fn remark(&self) -> &'static str {
        match (self.parent, self.waited_for) {
            (true, true) => "parent; waited for",
            (true, false) => "parent",
            (false, true) => "waited for",
            (false, false) => "",
        }
    }
}

columns!(row: EndpointRow => row {
    port, virtual_qpn as "qpn", next_hop, ranks(), expected_psn, next_psn, unacknowledged_psn, behind,
} (row.counters) { contributions, repeats, results, naks_in, naks_out, keep_alives } row { remark() });

pub(crate) fn progress(installed: &api::InstalledGroup) -> Option<Progress> {
    installed.translated().map(|state| Progress {
        base_psn: state.base_psn,
        sequence: state.sequence,
        call: state.call.clone(),
        slots_used: state.slots_used,
        slots: state.slots,
        finished: state.finished,
        failed: state.failed,
        memory_bytes: state.memory_bytes,
    })
}

pub(crate) fn endpoint_rows(installed: &api::InstalledGroup) -> Vec<EndpointRow> {
    let state = installed.translated().cloned().unwrap_or_default();
    // From the lowest packet that is not finished, as PSNs wrap.
    let done = |endpoint: &api::EndpointStatus| {
        let expected = endpoint.expected_psn.filter(|_| !endpoint.parent)?;
        Some(expected.wrapping_sub(state.base_psn) & (Psn::MODULUS - 1))
    };
    let foremost = state.endpoints.iter().filter_map(done).max().unwrap_or(0);
    let row = |(i, endpoint): (usize, &api::EndpointStatus)| EndpointRow {
        behind: done(endpoint).map(|done| foremost - done),
        port: endpoint.port,
        virtual_qpn: virtual_qpn(installed, i),
        next_hop: endpoint.next_hop.clone(),
        ranks: endpoint.ranks.clone(),
        parent: endpoint.parent,
        expected_psn: endpoint.expected_psn,
        next_psn: endpoint.next_psn,
        unacknowledged_psn: endpoint.unacknowledged_psn,
        waited_for: endpoint.waited_for,
        counters: copy_endpoint_counters!(endpoint.counters.unwrap_or_default() => EndpointCounters),
    };
    state.endpoints.iter().enumerate().map(row).collect()
}

pub(crate) fn progress_text(progress: Option<&Progress>) -> String {
    let Some(p) = progress else {
        return String::new();
    };
    let call = match (&p.sequence, p.failed) {
        (Some(sequence), true) => format!(", failed at collective {sequence} ({})", p.call),
        (None, true) => ", failed".to_owned(),
        (Some(sequence), false) => format!(", now collective {sequence} ({})", p.call),
        (None, false) => ", idle".to_owned(),
    };
    format!(
        ": {} finished{call}; {} of {} slots in use from PSN {}",
        count(p.finished),
        p.slots_used,
        p.slots,
        p.base_psn
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use castnet_console::output::Row;

    #[test]
    fn who_is_behind_is_told_over_the_wrap_of_the_psns_and_not_of_the_parent() {
        let endpoint = |port, expected_psn, parent| api::EndpointStatus {
            port,
            expected_psn,
            parent,
            ..Default::default()
        };
        let state = api::TranslatedState {
            base_psn: 0xFF_FFF0,
            endpoints: vec![
                endpoint(0, Some(0xFF_FFF0), false),
                endpoint(1, Some(4), false),
                endpoint(2, None, false),
                endpoint(3, Some(0xFF_FFF0), true),
            ],
            ..Default::default()
        };
        let installed = api::InstalledGroup {
            state: Some(api::installed_group::State::Translated(state)),
            ..Default::default()
        };
        let rows = endpoint_rows(&installed);
        let behind: Vec<_> = rows.iter().map(|row| row.behind).collect();
        assert_eq!(behind, [Some(20), Some(0), None, None]);
        assert_eq!(rows[0].cells().len(), EndpointRow::COLUMNS.len());
    }

    #[test]
    fn progress_is_a_sentence() {
        let mut progress = Progress {
            base_psn: 77,
            sequence: Some(3),
            call: "allreduce sum f32".to_owned(),
            slots_used: 5,
            slots: 128,
            finished: 3,
            failed: false,
            memory_bytes: 0,
        };
        let says = ": 3 finished, now collective 3 (allreduce sum f32); 5 of 128 slots in use from PSN 77";
        assert_eq!(progress_text(Some(&progress)), says);
        (progress.sequence, progress.failed) = (None, true);
        assert!(progress_text(Some(&progress)).contains("finished, failed; "));
        assert_eq!(progress_text(None), "");
    }
}
