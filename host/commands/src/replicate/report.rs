//! Reports of replicated writes.

use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Page, Report};
use castnet_console::units::{bit_rate, bytes, count, plural, rate_of};
use castnet_replicate::{Checked, ClientWork, ServerInfo, Spread, Workload};
use castnet_rnic::Traffic;
use serde::Serialize;

/// A run of writes.
#[derive(Debug, Serialize)]
pub struct WriteReport {
    /// `one`, `unicasts` or `multicast`.
    pub by: &'static str,
    #[serde(flatten)]
    workload: Workload,
    depth: u32,
    writes: u64,
    seconds: f64,
    /// Acknowledged writes per second.
    iops: f64,
    /// The same in the parts of the run; `null`: it was too short.
    spread: Option<SpreadReport>,
    /// Of blocks, counted once.
    goodput_bits_per_s: f64,
    /// Of single writes.
    pub latency_us: Latency,
    /// Processor time of the client while it wrote, as a share of one processor.
    client_cpu: f64,
    /// Frames that the client sent; not counted by every device.
    frames_sent: Option<u64>,
    frames_again: Option<u64>,
    servers: Vec<ServerReport>,
}

/// Microseconds from a write to its acknowledgement by all servers.
#[derive(Debug, Serialize)]
pub struct Latency {
    least: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    p999: f64,
    most: f64,
}

/// Writes per second in the slowest and in the fastest part of a run, of so many milliseconds each.
#[derive(Clone, Copy, Debug, Serialize)]
struct SpreadReport {
    part_ms: f64,
    least: f64,
    most: f64,
}

impl From<Spread> for SpreadReport {
    fn from(Spread { part, least, most }: Spread) -> Self {
        let part_ms = part.0 as f64 / 1e6;
        Self { part_ms, least, most }
    }
}

impl SpreadReport {
    fn text(&self) -> String {
        format!("{} to {}", count(self.least as u64), count(self.most as u64))
    }

    /// Whether the rate of the whole run says little.
    fn is_wider_than(&self, result: f64) -> bool {
        self.most - self.least > result
    }
}

/// Said where a rate says little.
const WIDE: &str = "the spread is wider than the result, which says little: repeat it, for a longer time, on a machine with less to do";

#[derive(Debug, Serialize)]
struct ServerReport {
    name: String,
    file: Option<String>,
    /// As that of the client.
    cpu: f64,
    /// Bytes written to the file.
    saved: Option<u64>,
    /// `null` with --no-verify.
    checked: Option<Checked>,
}

impl WriteReport {
    pub(super) fn new(
        by: &'static str,
        (workload, depth): (Workload, u32),
        work: ClientWork,
        servers: &[ServerInfo],
        checked: Option<Vec<Checked>>,
        (before, after): (Traffic, Traffic),
    ) -> Self {
        let (written, seconds) = (&work.written, work.written.elapsed.as_secs_f64());
        let share = |cpu: f64| if seconds > 0.0 { cpu / seconds } else { 0.0 };
        let us = |nanos: u64| nanos as f64 / 1e3;
        let at = |share: f64| us(written.latencies.value_at_quantile(share));
        let since = |count: fn(&Traffic) -> Option<u64>| Some(count(&after)?.saturating_sub(count(&before)?));
        let mut checked = checked.map(Vec::into_iter);
        let server = |(info, work): (&ServerInfo, &castnet_replicate::ServerWork)| ServerReport {
            name: info.name.clone(),
            file: info.file.clone(),
            cpu: share(work.cpu_seconds),
            saved: work.saved,
            checked: checked.as_mut().and_then(Iterator::next),
        };
        Self {
            by,
            workload,
            depth,
            writes: written.writes,
            seconds,
            iops: share(written.writes as f64),
            spread: written.spread.map(SpreadReport::from),
            goodput_bits_per_s: rate_of(written.writes * u64::from(workload.block), seconds),
            latency_us: Latency {
                least: us(written.latencies.min()),
                p50: at(0.5),
                p90: at(0.9),
                p99: at(0.99),
                p999: at(0.999),
                most: us(written.latencies.max()),
            },
            client_cpu: share(work.cpu_seconds),
            frames_sent: since(|traffic| traffic.frames_sent),
            frames_again: since(|traffic| traffic.retransmissions),
            servers: servers.iter().zip(&work.servers).map(server).collect(),
        }
    }

    fn rate(&self) -> String {
        let rate = count(self.iops as u64);
        let Some(spread) = self.spread else {
            return rate;
        };
        let wide = if self.is_wide() {
            format!("; {WIDE}")
        } else {
            String::new()
        };
        format!(
            "{rate}; {} in parts of {:.0} ms{wide}",
            spread.text(),
            spread.part_ms
        )
    }

    fn is_wide(&self) -> bool {
        self.spread.is_some_and(|spread| spread.is_wider_than(self.iops))
    }

    fn checks(&self) -> impl Iterator<Item = &Checked> {
        self.servers.iter().filter_map(|server| server.checked.as_ref())
    }

    /// Whether all servers hold what was written.
    ///
    /// # Errors
    /// Names the servers that do not.
    pub fn verdict(&self) -> Outcome {
        verdict(self.checks(), self.workload.block)
    }

    fn server_cpu(&self) -> f64 {
        let all: f64 = self.servers.iter().map(|server| server.cpu).sum();
        all / self.servers.len().max(1) as f64
    }

    /// Processor time of the client, for people.
    pub fn client_cpu(&self) -> String {
        percent(self.client_cpu)
    }

    /// `3 connections` or `multicast to 3`.
    pub fn way(&self) -> String {
        let servers = self.servers.len();
        match self.by {
            "one" => "1 server".to_owned(),
            "unicasts" => format!("{servers} connections"),
            _ => format!("multicast to {servers}"),
        }
    }

    /// `yes`, `no`, or `-` if it was not checked.
    pub fn is_right(&self) -> String {
        match self
            .checks()
            .map(|check| check.differing)
            .reduce(|all, more| all + more)
        {
            None => "not checked".to_owned(),
            Some(0) => "yes".to_owned(),
            Some(differing) => format!("{} differ", plural(differing as usize, "block")),
        }
    }
}

/// Names the first blocks that differ.
fn verdict<'a>(checks: impl Iterator<Item = &'a Checked>, block: u32) -> Outcome {
    let differing: Vec<String> = checks
        .filter(|check| check.differing > 0)
        .map(|check| {
            let first = check.first.iter().take(4).map(|difference| {
                let at = difference.block * u64::from(block);
                format!(
                    "block {} (byte {at}) does not hold write {}",
                    difference.block, difference.write
                )
            });
            let first = first.collect::<Vec<_>>().join(", ");
            format!(
                "{}: {} of {} blocks differ: {first}",
                check.server, check.differing, check.blocks
            )
        })
        .collect();
    match differing.is_empty() {
        true => Ok(()),
        false => Err(Failure::failed(differing.join("\n"))),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

impl Report for WriteReport {
    fn page(&self, page: &mut Page) {
        let (size, latency) = (bytes(self.workload.block.into()), &self.latency_us);
        page.line(format!(
            "{} writes of {size} by {}, {} under way at once",
            count(self.writes),
            self.by,
            self.depth
        ));
        let mut facts = vec![
            ("time", format!("{:.3} s", self.seconds)),
            ("writes per second", self.rate()),
            ("goodput", bit_rate(self.goodput_bits_per_s)),
            (
                "latency",
                format!(
                    "{:.0} us median, {:.0} us p99, {:.0} us most",
                    latency.p50, latency.p99, latency.most
                ),
            ),
            ("client's CPU", percent(self.client_cpu)),
        ];
        if let (Some(sent), Some(again)) = (self.frames_sent, self.frames_again) {
            facts.push((
                "frames sent",
                format!("{}, of them {} again", count(sent), count(again)),
            ));
        }
        page.facts(&facts);
        let rows = self.servers.iter().map(|server| {
            let (blocks, differing) = server.checked.as_ref().map_or_else(
                || ("-".to_owned(), "-".to_owned()),
                |check| (count(check.blocks), count(check.differing)),
            );
            let saved = server.saved.map_or_else(|| "-".to_owned(), bytes);
            vec![server.name.clone(), percent(server.cpu), saved, blocks, differing]
        });
        let columns = ["server", "cpu", "saved", "blocks checked", "differing"];
        page.table(&columns, rows.collect());
    }
}

/// Several ways and sizes.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(super) struct Comparison {
    pub(super) rows: Vec<WriteReport>,
}

impl Report for Comparison {
    fn page(&self, page: &mut Page) {
        let rows = self.rows.iter().map(|row| {
            vec![
                bytes(row.workload.block.into()),
                row.way(),
                count(row.iops as u64),
                row.spread
                    .as_ref()
                    .map_or_else(|| "-".to_owned(), SpreadReport::text),
                bit_rate(row.goodput_bits_per_s),
                format!("{:.0}", row.latency_us.p50),
                format!("{:.0}", row.latency_us.p99),
                row.client_cpu(),
                percent(row.server_cpu()),
                row.is_right(),
            ]
        });
        let columns = [
            "size",
            "by",
            "writes/s",
            "in parts of the run",
            "goodput",
            "p50 us",
            "p99 us",
            "client cpu",
            "server cpu",
            "all there",
        ];
        page.table(&columns, rows.collect());
        for row in self.rows.iter().filter(|row| row.is_wide()) {
            page.line(format!(
                "{}, {}: {WIDE}",
                bytes(row.workload.block.into()),
                row.way()
            ));
        }
    }
}

/// What the servers hold of an earlier run.
#[derive(Debug, Serialize)]
pub(super) struct VerifyReport {
    pub(super) block_bytes: u32,
    pub(super) servers: Vec<Checked>,
}

impl VerifyReport {
    pub(super) fn verdict(&self) -> Outcome {
        verdict(self.servers.iter(), self.block_bytes)
    }
}

impl Report for VerifyReport {
    fn page(&self, page: &mut Page) {
        let row = |check: &Checked| vec![check.server.clone(), count(check.blocks), count(check.differing)];
        page.table(
            &["server", "blocks checked", "differing"],
            self.servers.iter().map(row).collect(),
        );
    }
}

#[cfg(test)]
mod tests {
    use castnet_wire::Nanos;

    use super::*;

    #[test]
    fn a_spread_that_is_wider_than_the_result_is_said() {
        let spread = |least: f64, most: f64| {
            let part = Nanos::from_millis(100);
            SpreadReport::from(Spread { part, least, most })
        };
        assert_eq!(spread(0.0, 15_271.0).text(), "0 to 15 271");
        assert!(spread(0.0, 15_271.0).is_wider_than(3_000.0));
        assert!(!spread(29_000.0, 31_000.0).is_wider_than(30_000.0));
    }
}
