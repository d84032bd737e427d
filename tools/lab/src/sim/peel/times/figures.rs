//! Figures 4 to 7, and the guard timer.

use castnet_console::plot::{Axes, Curve, Panel};

use super::network::{Config, Limit};
use super::points::{LOAD, Points, Setting, measure};
use super::runs::{Kind, Measured, Placement, Run};
use super::schemes::Scheme;
use crate::sim::figures::Failed;
use crate::sim::peel::Extent;
use crate::sim::report::{Cell, FigureReport, Headline, Plot, Table};

const MIB: u64 = 1 << 20;

/// The model, in the text above each table.
fn model(extent: Extent) -> String {
    format!(
        "Trains of packets over links of 100 Gb/s and 1 us; PFC and DCQCN, with a\n\
         guard timer of 50 us at multicast sources. A group is consecutive hosts of 8 GPUs, from any ToR on; any of them is the source.\n\
         Alone: one broadcast at a time, mean of {}. Otherwise {}, which arrive as a Poisson process with 30 % load of the links to hosts.\n\
         Seed {}. Links: bytes on all links for each byte of the message.",
        (extent.draws.clamp(2, 300) / 3).max(2),
        extent.draws.clamp(2, 300),
        extent.seed,
    )
}

/// What the names of schemes mean.
const SCHEMES: &str = "PEEL: one packet for each prefix of each pod. One packet: to the smallest blocks of pods and of ToRs, as if cores had prefixes of\n\
     pods. Cores: after N(10 ms, 5 ms) one packet, which the core sends with one prefix to each pod. Orca: after the same delay to a\n\
     host at each ToR, which sends to the others; to hosts: to all. Tree: binary, of hosts or of GPUs by number. Ring: of GPUs.";

/// Milliseconds, for a reason.
fn ms(seconds: f64) -> String {
    let ms = seconds * 1e3;
    match ms {
        100.0.. => format!("{ms:.0} ms"),
        _ => format!("{ms:.2} ms"),
    }
}

/// Message sizes in MiB.
const SIZES: [u32; 5] = [2, 8, 32, 128, 512];

pub(in crate::sim::peel) fn fig4(extent: Extent) -> Result<FigureReport, Failed> {
    use Scheme::{Optimal, Orca, OrcaAtOnce, OrcaToHosts};
    let sizes = if extent.quick { &[2, 32][..] } else { &SIZES };
    let setting = |mib: u32| Setting::new(512, u64::from(mib) * MIB);
    let settings: Vec<_> = sizes.iter().map(|mib| (*mib, setting(*mib))).collect();
    let points = Points::of(&settings, &[Orca, OrcaAtOnce, OrcaToHosts, Optimal], extent)?;
    let tail = Measured::tail;
    let loaded = |scheme| points.loaded(32, scheme, tail);
    let alone = |scheme| points.alone(32, scheme, tail);
    let by_hosts = alone(OrcaToHosts) / alone(Optimal);
    Ok(FigureReport {
        name: "fig4",
        title: "Completion time of Orca with and without its set-up delay",
        setting: format!("512 of 1,024 GPUs. {}\n{SCHEMES}", model(extent)),
        table: points.table("MiB"),
        headlines: vec![
            Headline::single(
                "p99 with over without set-up, 32 MiB, 30 % load",
                8.0,
                loaded(Orca) / loaded(OrcaAtOnce),
            )
            .because(format!(
                "the hosts that pass data on are the bottleneck: their links carry three copies, that of the source four. Without\n\
                 set-up the 99th percentile is {} instead of the tree's {}, so the delay adds little to it",
                ms(loaded(OrcaAtOnce)),
                ms(loaded(Optimal)),
            )),
            Headline::single(
                "the same, one at a time",
                8.0,
                alone(Orca) / alone(OrcaAtOnce),
            )
            .because(format!(
                "the same hosts: {} without set-up. If switches send to all hosts, it is {by_hosts:.2}: the paper's 8 is that of a tree whose\n\
                 last hop costs nothing",
                ms(alone(OrcaAtOnce)),
            )),
            Headline::single(
                "the same, one at a time, switches send to all hosts",
                8.0,
                by_hosts,
            )
            .because("the 99th percentile of the delay is 21.6 ms, and that of few broadcasts differs"),
        ],
        events: points.events(),
        plot: points.plot(Axes::logarithmic("MiB", "ms")),
    })
}

/// All schemes of figures 5 and 6.
const ALL: [Scheme; 10] = [
    Scheme::Optimal,
    Scheme::Peel,
    Scheme::PeelCores,
    Scheme::PeelOne,
    Scheme::PeelOneCores,
    Scheme::Orca,
    Scheme::OrcaToHosts,
    Scheme::Ring,
    Scheme::Tree,
    Scheme::TreeOfGpus,
];

pub(in crate::sim::peel) fn fig5(extent: Extent) -> Result<FigureReport, Failed> {
    use Scheme::{Optimal, Orca, OrcaToHosts, Peel, PeelCores, PeelOne, PeelOneCores, Ring};
    let (small, large) = (2, 512);
    let sizes = if extent.quick { &[2, 512][..] } else { &SIZES };
    let setting = |mib: u32| Setting::new(512, u64::from(mib) * MIB);
    let settings: Vec<_> = sizes.iter().map(|mib| (*mib, setting(*mib))).collect();
    let points = Points::of(&settings, &ALL, extent)?;
    let (mean, tail) = (Measured::mean, Measured::tail);
    // Alone, and with load.
    let over = |x, a, b, value| {
        let alone = points.alone(x, a, value) / points.alone(x, b, value);
        (alone, points.loaded(x, a, value) / points.loaded(x, b, value))
    };
    let near = |(alone, loaded): (f64, f64)| format!("{alone:.2} alone and {loaded:.2} with load");
    // The load that the paper's numbers fit.
    let loads = [0.01, 0.03, 0.1];
    let runs = loads.map(|load| [Orca, PeelOne].map(|scheme| setting(small).run(scheme, load, extent)));
    let light = measure(&runs.concat())?;
    let light: Vec<String> = light
        .chunks(2)
        .map(|pair| format!("{:.0}", pair[0].tail() / pair[1].tail()))
        .collect();
    // Other groups: the paper does not give how its GPUs lie.
    let placements = [Placement::Aligned, Placement::Spread];
    let runs = placements.map(|placement| {
        let setting = Setting {
            placement,
            ..setting(small)
        };
        [PeelOne, Optimal].map(|scheme| setting.run(scheme, LOAD, extent))
    });
    let placed = measure(&runs.concat())?;
    let placed: Vec<String> = placed
        .chunks(2)
        .map(|pair| format!("{:.2}", pair[0].mean() / pair[1].mean()))
        .collect();
    let mut headlines = Vec::new();
    let mut add = |what: String, paper: f64, ours: (f64, f64), reason: String| {
        headlines.push(Headline::range(&what, (paper, paper), ours).because(reason));
    };
    for (mib, paper) in [(small, 1.23), (large, 1.18)] {
        add(
            format!("mean, one packet over optimal, {mib} MiB"),
            paper,
            over(mib, PeelOne, Optimal, mean),
            format!(
                "a single packet costs the source's link no time, and its superfluous copies end at ToRs. A packet for each prefix of each\n\
                 pod costs {}. For {small} MiB with load and groups at a multiple of their size, or of any\n\
                 hosts, it is {}. The paper's source seems to send 1.2 packets for each of the message on average",
                near(over(mib, Peel, Optimal, mean)),
                placed.join(" and "),
            ),
        );
    }
    add(
        format!("p99, Orca over one packet, {small} MiB"),
        101.0,
        over(small, Orca, PeelOne, tail),
        format!(
            "the load is not that of the paper. Alone, {:.0} if switches send to all hosts. With 1, 3 and 10 % load it is {}:\n\
             broadcasts that meet share links, and DCQCN takes longer to recover than such a message takes. The paper's number leaves\n\
             PEEL 1.3 times the message's time on the link at its 99th percentile, so hardly any of its broadcasts meet",
            over(small, OrcaToHosts, PeelOne, tail).0,
            light.join(", "),
        ),
    );
    add(
        format!("p99, one packet over Orca, {large} MiB"),
        0.79,
        over(large, PeelOne, Orca, tail),
        format!(
            "hosts of Orca that pass data on send it three times, the source four times. If switches send to all hosts, it is {}.\n\
             The paper's Orca does not wait for such hosts",
            near(over(large, PeelOne, OrcaToHosts, tail)),
        ),
    );
    let reason = format!(
        "the source sends {:.1} packets for each at first. If it begins with one packet, it is {}",
        points.alone(large, Peel, mean) / points.alone(large, Optimal, mean),
        near(over(large, PeelOneCores, Optimal, tail)),
    );
    add(
        format!("p99, PEEL + cores over optimal, {large} MiB"),
        1.014,
        over(large, PeelCores, Optimal, tail),
        reason,
    );
    add(
        format!("p99, PEEL + cores over PEEL, {large} MiB"),
        0.86,
        over(large, PeelCores, Peel, tail),
        format!(
            "as PEEL alone is slower here than in the paper. From one packet, cores gain nothing: {}",
            near(over(large, PeelOneCores, PeelOne, tail)),
        ),
    );
    let links = |scheme| points.alone(small, scheme, |measured| measured.links);
    let fewer = |scheme| (1.0 - links(scheme) / links(Ring)) * 100.0;
    add(
        "percent fewer bytes on links than the ring, PEEL".to_owned(),
        23.0,
        (fewer(Peel), fewer(PeelOne)),
        format!(
            "{:.1} % with a packet for each prefix, {:.1} % with one packet. The ring's hosts follow one another, four at each ToR; `prefixes`\n\
             has groups of which 23 % is the number",
            fewer(Peel),
            fewer(PeelOne)
        ),
    );
    Ok(FigureReport {
        name: "fig5",
        title: "Completion time over the message size",
        setting: format!("512 of 1,024 GPUs. {}\n{SCHEMES}", model(extent)),
        table: points.table("MiB"),
        headlines,
        events: points.events(),
        plot: points.plot(Axes::logarithmic("MiB", "ms")),
    })
}

pub(in crate::sim::peel) fn fig6(extent: Extent) -> Result<FigureReport, Failed> {
    use Scheme::{Optimal, Orca, OrcaToHosts, Peel, PeelOne, Ring, Tree, TreeOfGpus};
    const AT: u32 = 256;
    let scales: &[u32] = match extent.quick {
        true => &[32, 256],
        false => &[32, 64, 128, 256, 512, 1024],
    };
    let settings: Vec<_> = scales
        .iter()
        .map(|gpus| (*gpus, Setting::new(*gpus, 64 * MIB)))
        .collect();
    let points = Points::of(&settings, &ALL, extent)?;
    let mean = Measured::mean;
    let alone = |scheme| points.alone(AT, scheme, mean) / points.alone(AT, PeelOne, mean);
    let loaded = |scheme| points.loaded(AT, scheme, mean) / points.loaded(AT, PeelOne, mean);
    let line = |scheme: &str, how: &str| format!("mean, {scheme} over one packet, {AT} GPUs, {how}");
    let shared = format!(
        "multicasts that meet share links, and their senders recover slowly: one packet takes {:.1} times as long as alone, the\n\
         ring {:.1} times, as its links are idle most of the time",
        points.loaded(AT, PeelOne, mean) / points.alone(AT, PeelOne, mean),
        points.loaded(AT, Ring, mean) / points.alone(AT, Ring, mean),
    );
    let literal = points.alone(AT, Peel, mean) / points.alone(AT, Optimal, mean);
    let (gpus, orca) = (alone(TreeOfGpus), alone(OrcaToHosts));
    Ok(FigureReport {
        name: "fig6",
        title: "Completion time over the number of GPUs",
        setting: format!("64 MiB. {}\n{SCHEMES}", model(extent)),
        table: points.table("GPUs"),
        headlines: vec![
            Headline::single(&line("ring", "alone"), 5.0, alone(Ring))
                .because("blocks of an eighth of the message pass 32 hosts, one after the other"),
            Headline::single(&line("ring", "30 % load"), 5.0, loaded(Ring)).because(shared.clone()),
            Headline::single(&line("tree of hosts", "alone"), 13.0, alone(Tree)).because(format!(
                "the paper does not say of what its tree is. A tree of all GPUs by number is {gpus:.1}: a host's link carries 16 copies, as\n\
                 most edges are between hosts. 13 is between both"
            )),
            Headline::single(&line("tree of hosts", "30 % load"), 13.0, loaded(Tree)).because(
                "as above. The tree of GPUs has more traffic than the links to hosts carry with this load: its times grow without end",
            ),
            Headline::single(&line("Orca", "alone"), 2.5, alone(Orca)).because(format!(
                "hosts of Orca pass data on. If switches send to all hosts, it is {orca:.2}. The same over PEEL with a packet for each prefix of\n\
                 each pod, which is {literal:.2} times the optimum, is {:.2}; with 1.2 packets it would be {:.2}",
                orca / literal,
                orca / 1.2,
            )),
            Headline::single(&line("Orca", "30 % load"), 2.5, loaded(Orca)).because(format!(
                "the links of hosts that pass data on carry more than their rate. If switches send to all hosts, it is {:.2}",
                loaded(OrcaToHosts)
            )),
        ],
        events: points.events(),
        plot: points.plot(Axes::logarithmic("GPUs", "ms")),
    })
}

pub(in crate::sim::peel) fn fig7(extent: Extent) -> Result<FigureReport, Failed> {
    use Scheme::{Optimal, Ring, Tree, TreeOfGpus};
    const MOST: u32 = 10;
    let percents: &[u32] = match extent.quick {
        true => &[1, MOST],
        false => &[1, 2, 4, 6, 8, MOST],
    };
    let setting = |failed: u32| Setting {
        kind: Kind::LeafSpine { failed },
        ..Setting::new(64, 8 * MIB)
    };
    let settings: Vec<_> = percents
        .iter()
        .map(|failed| (*failed, setting(*failed)))
        .collect();
    let points = Points::of(&settings, &[Optimal, Ring, Tree, TreeOfGpus], extent)?;
    let tail = Measured::tail;
    let over = |scheme| {
        let alone = points.alone(MOST, scheme, tail) / points.alone(MOST, Optimal, tail);
        (
            alone,
            points.loaded(MOST, scheme, tail) / points.loaded(MOST, Optimal, tail),
        )
    };
    // Less load, and the same load without DCQCN.
    let light = |scheme| Run {
        broadcasts: extent.draws.clamp(2, 300),
        ..setting(MOST).run(scheme, LIGHT, extent)
    };
    let free = |scheme| {
        let run = setting(MOST).run(scheme, LOAD, extent);
        let config = Config {
            is_controlled: false,
            ..run.config
        };
        Run { config, ..run }
    };
    let runs = [
        light(Optimal),
        light(Ring),
        light(TreeOfGpus),
        free(Optimal),
        free(Ring),
    ];
    let measured = measure(&runs)?;
    let ratio = |a: usize, b: usize| measured[a].tail() / measured[b].tail();
    let gpus = points.alone(MOST, TreeOfGpus, tail) / points.alone(MOST, Optimal, tail);
    Ok(FigureReport {
        name: "fig7",
        title: "Completion time where links have failed",
        setting: format!(
            "Leaf-spine: 16 spines, 48 leaves, two hosts each; so many percent of the links between switches fail, other ones for each 100\n\
             broadcasts (10 alone). 8 MiB to 64 GPUs. {}\n\
             Optimal is the planner's tree. It is PEEL's too: layer peeling finds trees as small in this fabric (`trees`).\n\
             Tree: binary, of hosts or of GPUs in order. Ring: of GPUs.",
            model(extent),
        ),
        table: points.table("failed percent"),
        headlines: vec![
            Headline::range("p99, ring over PEEL, 10 % failed", (3.0, 3.0), over(Ring)).because(format!(
                "a ring of 8 hosts passes 8 blocks over 7 hops: 14 eighths of the message's time, and NVLink. With {} % load it is {:.2};\n\
                 with 30 % load and no DCQCN {:.2}. The paper does not give the load of this figure; none here makes the ring 3 times as slow",
                LIGHT * 100.0,
                ratio(1, 0),
                ratio(4, 3),
            )),
            Headline::range("p99, tree of hosts over PEEL, 10 % failed", (30.0, 30.0), over(Tree))
                .because("see the tree of GPUs: the paper's tree is of GPUs, or nearly so"),
            Headline::range(
                "p99, tree of GPUs over PEEL, 10 % failed, alone to 5 % load",
                (30.0, 30.0),
                (gpus, ratio(2, 0)),
            )
            .because("it grows with the load, which the paper does not give. With 30 % load it has more traffic than links carry"),
        ],
        events: points.events(),
        plot: points.plot(Axes::linear("failed links, percent", "ms")),
    })
}

/// A load that even the tree of GPUs bears.
const LIGHT: f64 = 0.05;

pub(in crate::sim::peel) fn guard(extent: Extent) -> Result<FigureReport, Failed> {
    const AT: (u64, f64) = (32, LOAD);
    let sizes: &[u64] = match extent.quick {
        true => &[32],
        false => &[2, 8, 32, 128],
    };
    let loads = [LIGHT, 0.1, LOAD];
    let places: Vec<(u64, f64)> = sizes
        .iter()
        .flat_map(|mib| loads.map(|load| (*mib, load)))
        .collect();
    let runs = places.iter().flat_map(|(mib, load)| {
        let run = Setting::new(64, mib * MIB).run(Scheme::PeelOne, *load, extent);
        [Limit::Guard, Limit::Receivers].map(|multicast| Run {
            config: Config {
                multicast,
                ..run.config
            },
            ..run
        })
    });
    let measured = measure(&runs.collect::<Vec<_>>())?;
    let pairs: Vec<(&(u64, f64), &[Measured])> = places.iter().zip(measured.chunks(2)).collect();
    let ratio = |pair: &[Measured]| pair[1].tail() / pair[0].tail();
    let at = |place: (u64, f64)| {
        let found = pairs
            .iter()
            .find(|(at, _)| at.0 == place.0 && (at.1 - place.1).abs() < 1e-9);
        found.map_or(f64::NAN, |(_, pair)| ratio(pair))
    };
    let rows = pairs.iter().map(|((mib, load), pair)| {
        let ms = |seconds: f64| Cell::Number(seconds * 1e3);
        let cuts = |measured: &Measured| {
            Cell::Number(measured.totals.cuts as f64 / measured.times.len().max(1) as f64)
        };
        vec![
            Cell::Count(*mib as usize),
            Cell::Number(load * 100.0),
            ms(pair[0].mean()),
            ms(pair[0].tail()),
            cuts(&pair[0]),
            ms(pair[1].mean()),
            ms(pair[1].tail()),
            cuts(&pair[1]),
            Cell::Number(ratio(pair)),
        ]
    });
    let panel = |load: f64| {
        let curve = |name: &str, index: usize| Curve {
            name: name.to_owned(),
            points: pairs
                .iter()
                .filter(|(at, _)| (at.1 - load).abs() < 1e-9)
                .map(|(at, pair)| (at.0 as f64, pair[index].tail() * 1e3))
                .collect(),
        };
        Panel {
            title: format!("{:.0} % load, 99th percentile", load * 100.0),
            curves: vec![curve("guard timer", 0), curve("receivers limit CNPs", 1)],
        }
    };
    Ok(FigureReport {
        name: "guard",
        title: "Completion time with and without a guard timer",
        setting: format!(
            "PEEL with one packet, 64 of 1,024 GPUs. {}\n\
             Guard: the source reacts once in 50 us. Without, each of the 7 receivers sends a CNP once in 50 us, and the source reacts to\n\
             each, as DCQCN does. Cuts: reactions for each broadcast. Ratio: of the 99th percentiles.",
            model(extent),
        ),
        table: Table {
            columns: vec![
                "MiB",
                "load percent",
                "guard mean ms",
                "guard p99 ms",
                "guard cuts",
                "without mean ms",
                "without p99 ms",
                "without cuts",
                "ratio",
            ],
            rows: rows.collect(),
        },
        headlines: vec![
            Headline::single(
                "p99 without over with guard timer, 32 MiB, 30 % load",
                12.0,
                at(AT),
            )
            .because(format!(
                "it grows with the load, which the paper does not give here: {:.1} with 5 %, {:.1} with 10 %",
                at((AT.0, LIGHT)),
                at((AT.0, 0.1)),
            )),
        ],
        events: measured.iter().map(|measured| measured.totals.events).sum(),
        plot: Plot {
            axes: Axes::logarithmic("MiB", "ms"),
            panels: loads.map(panel).to_vec(),
        },
    })
}
