use castnet_console::api;
use castnet_console::output::Row;
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct LaneLine {
    lane: String,
    mcst_id: String,
    workers: Vec<AtWorker>,
}

#[derive(Debug, Serialize)]
pub(crate) struct AtWorker {
    switch: String,
    worker: u32,
}

impl Row for LaneLine {
    const COLUMNS: &'static [&'static str] = &["lane", "mcst id", "workers"];

    fn cells(&self) -> Vec<String> {
        let at = |w: &AtWorker| format!("{}:{}", w.switch, w.worker);
        let workers: Vec<String> = self.workers.iter().map(at).collect();
        vec![self.lane.clone(), self.mcst_id.clone(), workers.join(" ")]
    }
}

/// An older controller reports no lanes: then the group itself is its lane.
pub(crate) fn of(lanes: &[api::Lane], group: &str, mcst_id: &str) -> Vec<api::Lane> {
    match lanes.len() {
        0 => vec![api::Lane {
            name: group.to_owned(),
            mcst_id: mcst_id.to_owned(),
        }],
        _ => lanes.to_vec(),
    }
}

pub(crate) fn at<'l>(lane: &'l api::Lane, own: &'l [api::Lane]) -> &'l str {
    let own = own.iter().find(|own| own.name == lane.name);
    &own.unwrap_or(lane).mcst_id
}

/// The address of a group or, if switches have their own, each with its members: `10.201.0.1 for h1 h2`.
pub(crate) fn addresses<'m>(
    common: &str,
    members: impl Iterator<Item = (&'m str, Option<&'m str>)>,
) -> String {
    let mut by_address: Vec<(&str, Vec<&str>)> = Vec::new();
    for (member, own) in members.filter_map(|(member, own)| Some((member, own?))) {
        match by_address.iter_mut().find(|(address, _)| *address == own) {
            Some((_, members)) => members.push(member),
            None => by_address.push((own, vec![member])),
        }
    }
    let each = by_address.iter();
    let each: Vec<String> = each
        .map(|(address, members)| format!("{address} for {}", members.join(" ")))
        .collect();
    match each.is_empty() {
        true => common.to_owned(),
        false => each.join(", "),
    }
}

/// `parts`: switch, lane and worker.
pub(crate) fn lines<'p>(
    lanes: &[api::Lane],
    parts: impl Iterator<Item = (&'p str, &'p str, Option<u32>)> + Clone,
) -> Vec<LaneLine> {
    let line = |lane: &api::Lane| {
        let here = parts.clone().filter(|(_, name, _)| *name == lane.name);
        let at = here.filter_map(|(switch, _, worker)| {
            Some(AtWorker {
                switch: switch.to_owned(),
                worker: worker?,
            })
        });
        LaneLine {
            lane: lane.name.clone(),
            mcst_id: lane.mcst_id.clone(),
            workers: at.collect(),
        }
    };
    lanes.iter().map(line).collect()
}

/// Text behind a switch's name in a title; empty for one lane.
pub(crate) fn title(lanes: usize, lane: &str, worker: Option<u32>) -> String {
    match (lanes, worker) {
        (0 | 1, _) => String::new(),
        (_, Some(worker)) => format!(", lane {lane}, worker {worker}"),
        (_, None) => format!(", lane {lane}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_told_with_its_workers() {
        let lane = |n: u8| api::Lane {
            name: format!("g/{n}"),
            mcst_id: format!("10.200.0.{n}"),
        };
        let parts = [
            ("leaf1", "g/0", Some(1)),
            ("leaf1", "g/1", Some(0)),
            ("spine", "g/0", None),
            ("spine", "g/1", Some(3)),
        ];
        let lines = lines(&[lane(0), lane(1)], parts.into_iter());
        assert_eq!(lines[0].cells(), ["g/0", "10.200.0.0", "leaf1:1"]);
        assert_eq!(lines[1].cells(), ["g/1", "10.200.0.1", "leaf1:0 spine:3"]);
        assert_eq!(of(&[], "g", "10.200.0.9")[0].mcst_id, "10.200.0.9");
        let own = [api::Lane {
            mcst_id: "10.201.0.7".to_owned(),
            ..lane(7)
        }];
        assert_eq!(
            (at(&lane(7), &own), at(&lane(7), &[])),
            ("10.201.0.7", "10.200.0.7")
        );
        let members = [
            ("h1", Some("10.201.0.1")),
            ("h2", Some("10.202.0.1")),
            ("h3", Some("10.201.0.1")),
        ];
        assert_eq!(
            addresses("10.200.0.1", members.into_iter()),
            "10.201.0.1 for h1 h3, 10.202.0.1 for h2"
        );
        assert_eq!(addresses("10.200.0.1", [("h1", None)].into_iter()), "10.200.0.1");
        assert_eq!(title(1, "g", Some(0)), "");
        assert_eq!(title(2, "g/1", Some(0)), ", lane g/1, worker 0");
    }
}
