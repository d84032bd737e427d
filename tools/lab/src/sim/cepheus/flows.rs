//! Figure 14: a multicast flow and two unicast flows that share bottlenecks, under DCQCN.

use std::net::Ipv4Addr;

use castnet_console::plot::{Axes, Curve, Panel};
use castnet_endpoint::{
    Access, Endpoint, LocalSlice, QpConfig, QueueLimits, ReactionConfig, RecvWr, SendOp, SendWr, Status,
};
use castnet_pfc::PfcConfig;
use castnet_planner::{LinkLoad, Member, Request, RoomTable, plan};
use castnet_rules::{BitRate, MulticastRule};
use castnet_sim::{LinkProfile, SimConfig, Simulation};
use castnet_wire::red::RedConfig;
use castnet_wire::{ClassSet, MacAddr, McstId, Nanos, Pmtu, Psn, Qpn, TrafficClass};

use super::Extent;
use crate::sim::figures::Failed;
use crate::sim::lab::Fabric;
use crate::sim::report::{Cell, FigureReport, Headline, Plot, Table};

/// Rate of all links, in bits per second.
const LINE: u64 = 100_000_000_000;
const PMTU: Pmtu = Pmtu::B4096;
/// Of the multicast flow.
const GROUP_QPN: Qpn = Qpn::new(0x11);
const MESSAGE: u32 = 128 << 10;

/// Sends from `start` to `end`; the first node is the source. Times are in milliseconds.
struct Flow {
    name: &'static str,
    nodes: Vec<usize>,
    start: u64,
    end: u64,
}

impl Flow {
    /// Messages for all the time at the rate of the link.
    fn messages(&self) -> u64 {
        (self.end - self.start) * (LINE / 8000) / u64::from(MESSAGE) + 1
    }
}

/// Nodes N0 to N15 of the paper: 16 hosts spread over all pods and racks.
fn host(node: usize) -> String {
    format!("h{}", (node * 397 + 11) % 1024)
}

/// DCQCN's paper has 40 Gb/s. Its thresholds and steps grow with the rate.
const RED: RedConfig = RedConfig {
    least_bytes: 12_500,
    most_bytes: 500_000,
    most_ppm: 10_000,
};

/// Bytes that the send queue of a port takes: more than [`RED`] needs, so that marks come before PAUSE.
const QUEUE: u64 = 1 << 20;

/// The network is lossless, as the paper recommends. Headroom: both send queues, both directions of the cable, a frame at each end.
fn pfc(delay: Nanos) -> Result<PfcConfig, Failed> {
    let class = TrafficClass::new(3).ok_or("a class")?;
    let cable = LINE * delay.0 / 8_000_000_000;
    Ok(PfcConfig {
        headroom_bytes: 2 * QUEUE + 2 * cable + 2 * 4202,
        ..PfcConfig::new(ClassSet::from_iter([class]))
    })
}

fn reaction() -> Result<ReactionConfig, Failed> {
    let rate = |mbps: u64| BitRate::new(mbps * 1_000_000).ok_or("a rate");
    Ok(ReactionConfig {
        additive: rate(100)?,
        hyper: rate(1000)?,
        ..ReactionConfig::new(rate(LINE / 1_000_000)?)
    })
}

fn qp(qpn: Qpn, remote: (Ipv4Addr, MacAddr, Qpn), messages: u64) -> Result<QpConfig, Failed> {
    let limit = messages as usize;
    Ok(QpConfig {
        pmtu: PMTU,
        limits: QueueLimits {
            send: limit,
            receive: limit,
        },
        cnp_interval: Some(QpConfig::CNP_INTERVAL),
        reaction: Some(reaction()?),
        // DSCP 26, class 3, ECN-capable.
        tos: 26 << 2 | 2,
        window: 1024,
        ..QpConfig::new(qpn, remote.0, remote.1, remote.2)
    })
}

fn post(endpoint: &mut Endpoint, config: QpConfig, messages: u64, sends: bool) -> Result<(), Failed> {
    let qpn = config.qpn;
    endpoint.create_qp(config)?;
    let local = LocalSlice {
        key: endpoint.register_void(MESSAGE.into(), Access::LOCAL)?,
        offset: 0,
        length: MESSAGE,
    };
    for wr_id in 0..messages {
        match sends {
            true => endpoint.post_send(qpn, SendWr::new(wr_id, SendOp::Send, local))?,
            false => endpoint.post_recv(qpn, RecvWr { wr_id, local })?,
        }
    }
    Ok(())
}

struct Lab {
    sim: Simulation,
    fabric: Fabric,
}

impl Lab {
    fn new() -> Result<Self, Failed> {
        // Three flows are too few for several threads.
        let fabric = Fabric::fat_tree(1)?;
        let config = SimConfig {
            poll_delay: Nanos::ZERO,
            pfc: Some(pfc(fabric.delay)?),
            links: LinkProfile {
                delay: fabric.delay,
                ecn: Some(RED),
                queue_bytes: QUEUE,
                ..LinkProfile::default()
            },
            ..SimConfig::new(1)
        };
        let mut sim = Simulation::new(&fabric.topology, config, ())?;
        sim.install_routes(&fabric.routes)?;
        Ok(Self { sim, fabric })
    }

    fn start(&mut self, flow: &Flow) -> Result<(), Failed> {
        let hosts: Vec<String> = flow.nodes.iter().map(|node| host(*node)).collect();
        let messages = flow.messages();
        let mcst_id = McstId(Ipv4Addr::new(10, 255, 0, 1));
        let is_group = hosts.len() > 2;
        if is_group {
            let members = hosts.iter().map(|h| Member::new(h, GROUP_QPN)).collect();
            let rule = MulticastRule {
                start_psn: Some(Psn::new(0)),
                ..MulticastRule::default()
            };
            let request = Request::multicast("f1", mcst_id, PMTU, members, rule);
            let plan = plan(
                &self.fabric.topology,
                &LinkLoad::new(),
                &RoomTable::new(),
                &request,
            )?;
            self.sim.install_plan(&plan)?;
        }
        for (i, name) in hosts.iter().enumerate() {
            let mac = self.sim.first_hop_mac(name).ok_or("a link")?;
            let own = Self::qpn(flow, i);
            let (ip, qpn) = match is_group {
                true => (mcst_id.0, Qpn::VIRTUAL),
                false => {
                    let peer = self.sim.endpoint(&hosts[1 - i]).ok_or("a host")?;
                    (peer.config().ip, Self::qpn(flow, 1 - i))
                }
            };
            let config = qp(own, (ip, mac, qpn), messages)?;
            let made = self
                .sim
                .with_endpoint(name, |endpoint, _| post(endpoint, config, messages, i == 0));
            made.ok_or("a host")??;
        }
        Ok(())
    }

    /// Numbers of QPs are unique at each host.
    fn qpn(flow: &Flow, index: usize) -> Qpn {
        match flow.nodes.len() {
            0..=2 => Qpn::new(0x100 + flow.nodes[index] as u32),
            _ => GROUP_QPN,
        }
    }

    fn stop(&mut self, flow: &Flow) -> Result<(), Failed> {
        for (i, node) in flow.nodes.iter().enumerate() {
            let qpn = Self::qpn(flow, i);
            let ended = self
                .sim
                .with_endpoint(&host(*node), |endpoint, _| endpoint.destroy_qp(qpn));
            ended.ok_or("a host")??;
        }
        Ok(())
    }

    /// Gb/s that are acknowledged to the source of a flow, in each of its milliseconds.
    fn goodput(&self, flow: &Flow, end: u64) -> Vec<f64> {
        let mut bits = vec![0.0; end as usize];
        for (at, completion) in self.sim.completions(&host(flow.nodes[0])) {
            let slot = bits.get_mut((at.0 / 1_000_000) as usize);
            if let Some(slot) = slot.filter(|_| completion.qpn == Self::qpn(flow, 0))
                && completion.status == Status::Success
            {
                *slot += f64::from(MESSAGE) * 8.0;
            }
        }
        bits.into_iter().map(|bits| bits / 1e6).collect()
    }
}

/// Milliseconds of a mean, short of which a rate varies even without other flows.
const WINDOW: usize = 5;

/// What one phase shows.
struct Phase {
    /// The mean rate of each flow in the second half of the phase, in Gb/s.
    settled: [f64; 3],
    /// Milliseconds from the start of the phase until the rate of f1 stays near its settled one: the end of the last window of
    /// [`WINDOW`] milliseconds whose mean is not within 10 % of it. `None` if the phase is shorter than a window.
    settled_after: Option<usize>,
}

impl Phase {
    /// `rates` holds one row per flow, in Gb/s for each millisecond; a phase lasts `unit` of them.
    fn of(rates: &[Vec<f64>], phase: usize, unit: usize) -> Self {
        let of = |flow: usize| {
            rates[flow]
                .get(phase * unit..(phase + 1) * unit)
                .unwrap_or_default()
        };
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let settled = [0, 1, 2].map(|flow| mean(&of(flow)[unit / 2..]));
        let windows: Vec<f64> = of(0).windows(WINDOW).map(mean).collect();
        let last = windows
            .iter()
            .rposition(|rate| (rate / settled[0] - 1.0).abs() > 0.1);
        Self {
            settled,
            settled_after: (!windows.is_empty()).then(|| last.map_or(0, |at| at + WINDOW)),
        }
    }
}

/// The flows of the paper: f1 to all other nodes, f2 from N1 to N2, f3 from N3 to N4, which start one after the other.
fn flows(unit: u64) -> [Flow; 3] {
    let flow = |name, nodes, start, end| Flow {
        name,
        nodes,
        start: start * unit,
        end: end * unit,
    };
    [
        flow("f1", (0..16).collect(), 0, 5),
        flow("f2", vec![1, 2], 1, 2),
        flow("f3", vec![3, 4], 3, 4),
    ]
}

pub(super) fn fig14(extent: Extent) -> Result<FigureReport, Failed> {
    // Milliseconds between two changes.
    let unit = if extent.quick { 4 } else { 80 };
    let flows = flows(unit);
    let mut lab = Lab::new()?;
    for change in 0..=5 {
        lab.sim.run(Nanos::from_millis(change * unit));
        for flow in &flows {
            if flow.start == change * unit {
                lab.start(flow)?;
            } else if flow.end == change * unit && change < 5 {
                lab.stop(flow)?;
            }
        }
    }
    let flow = lab.sim.flow_totals();
    let dropped = lab.sim.totals().queue_full + flow.overflows + flow.storm_drops;
    if dropped > 0 {
        return Err(format!("fig14: {dropped} frames were dropped: {flow:?}").into());
    }
    let rates: Vec<Vec<f64>> = flows.iter().map(|flow| lab.goodput(flow, 5 * unit)).collect();
    let phases: Vec<Phase> = (0..5)
        .map(|phase| Phase::of(&rates, phase, unit as usize))
        .collect();
    // "Total bandwidth" in the paper: the payload that a link carries.
    let most = 100.0 * 4096.0 / 4178.0;
    let share = |phase: usize, flow: usize| {
        let rates = phases[phase].settled;
        rates[0] / (rates[0] + rates[flow])
    };
    let title = "Throughput of a multicast flow and two unicast flows";
    let quick = format!("phases last {unit} ms, too short for DCQCN to settle");
    Ok(FigureReport {
        name: "fig14",
        title,
        setting: format!(
            "f1: N0 to N1 up to N15. f2: N1 to N2, in the second phase. f3: N3 to N4, in the fourth. Five phases of {unit} ms; 16 of 1,024 hosts of\n\
             the fat tree, 100 Gb/s, 1 us per link. DCQCN with the parameters of its paper, thresholds and steps times 2.5, as the\n\
             rate; PFC on all links: no frame dropped, {} PAUSE frames, {} frames held. Gb/s are means of the second half of a phase. f1 has\n\
             settled when its means of {WINDOW} ms stay within 10 % of that.",
            flow.pause_sent, flow.held
        ),
        table: Table {
            columns: vec![
                "phase",
                "f1 Gbit per s",
                "f2 Gbit per s",
                "f3 Gbit per s",
                "f1 settles after ms",
            ],
            rows: phases
                .iter()
                .enumerate()
                .map(|(number, phase)| {
                    let mut cells = vec![Cell::Text((number + 1).to_string())];
                    cells.extend(phase.settled.map(Cell::Number));
                    cells.push(Cell::Text(
                        phase.settled_after.map_or("-".to_owned(), |ms| ms.to_string()),
                    ));
                    cells
                })
                .collect(),
        },
        headlines: vec![
            Headline::single("f1 alone, Gb/s", most, phases[0].settled[0]),
            Headline::single("share of f1 beside f2", 0.5, share(1, 1)).because(quick.clone()),
            Headline::single("f1 after f2, Gb/s", most, phases[2].settled[0]).because(quick.clone()),
            Headline::single("share of f1 beside f3", 0.5, share(3, 2)).because(quick),
        ],
        events: lab.sim.events(),
        plot: Plot {
            axes: Axes::linear("ms", "Gb/s"),
            panels: vec![Panel {
                title: title.to_owned(),
                curves: flows
                    .iter()
                    .zip(&rates)
                    .map(|(flow, rates)| Curve {
                        name: flow.name.to_owned(),
                        points: rates
                            .iter()
                            .enumerate()
                            .map(|(ms, rate)| (ms as f64 + 0.5, *rate))
                            .collect(),
                    })
                    .collect(),
            }],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_has_settled_after_the_last_window_that_is_not_near_its_end() {
        let mut f1 = vec![50.0; 40];
        f1[12] = 90.0;
        let phase = Phase::of(&[f1.clone(), f1.clone(), f1], 0, 40);
        // The last window with the outlier begins with it.
        assert_eq!((phase.settled, phase.settled_after), ([50.0; 3], Some(17)));
    }

    #[test]
    fn a_multicast_flow_shares_a_link_with_a_unicast_flow() {
        let report = fig14(Extent {
            threads: 2,
            quick: true,
            whole: 1 << 20,
        });
        let report = report.expect("it runs");
        let ours: Vec<f64> = report.headlines.iter().map(|h| h.castnet.0).collect();
        assert!(report.headlines[0].is_met(), "{:?}", report.headlines);
        assert!((0.3..0.7).contains(&ours[1]), "{:?}", report.headlines);
        let Cell::Number(beside) = report.table.rows[1][1] else {
            panic!("a number")
        };
        assert!(beside < 0.6 * ours[0], "{beside}");
        // It rises again when the other flow has ended.
        assert!(ours[2] > 1.1 * beside, "{:?}", report.headlines);
    }
}
