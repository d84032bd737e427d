//! `castnet host selftest`: an RNIC against itself, or two software RNICs against each other.

use std::time::Duration;

use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Output, Page, Report, Row, remark};
use castnet_console::units::span;
use castnet_rnic::conformance::{self, CheckReport, OneDevice};
use castnet_rnic::{DeviceAttributes, Rnic};
use clap::Args;
use serde::Serialize;

use super::device::{Device, Kind};
use super::failure;

#[derive(Debug, Args)]
#[command(
    after_help = "Connects two QPs of the device to each other, and checks everything that Castnet needs: SEND and WRITE with and without
immediate, path MTUs, start PSNs, RNR, wrong keys, flushes, waiting for events. No switch is needed. With --rnic soft, two software RNICs on a link in memory; --interface and --ip are not needed.

Examples:
  castnet host selftest --rnic verbs
  castnet host selftest --rnic verbs --device mlx5_0 --output json"
)]
pub(crate) struct SelftestCommand {
    #[command(flatten)]
    device: Device,
}

/// Fits path MTU 4096.
const SOFT_MTU: usize = 4200;

#[derive(Debug, Serialize)]
struct SelftestReport {
    rnic: Kind,
    device: String,
    ip: String,
    mtu: usize,
    active_pmtu: usize,
    failed: usize,
    checks: Vec<CheckLine>,
}

#[derive(Clone, Debug, Serialize)]
struct CheckLine {
    name: &'static str,
    about: &'static str,
    ok: bool,
    seen: String,
    seconds: f64,
}

impl From<&CheckReport> for CheckLine {
    fn from(report: &CheckReport) -> Self {
        let (Ok(seen) | Err(seen)) = &report.outcome;
        Self {
            name: report.name,
            about: report.about,
            ok: report.outcome.is_ok(),
            seen: seen.clone(),
            seconds: report.elapsed.as_secs_f64(),
        }
    }
}

impl Row for CheckLine {
    const COLUMNS: &'static [&'static str] = &["", "check", "what is checked", "seen", "after"];

    fn cells(&self) -> Vec<String> {
        vec![
            if self.ok { "OK" } else { "FAILED" }.to_owned(),
            self.name.to_owned(),
            self.about.to_owned(),
            self.seen.clone(),
            span(Duration::from_secs_f64(self.seconds)),
        ]
    }
}

impl Report for SelftestReport {
    fn page(&self, page: &mut Page) {
        page.line(format!(
            "{}, {}, MTU {}, path MTU up to {}",
            self.device, self.ip, self.mtu, self.active_pmtu
        ));
        page.rows(&self.checks, "no checks");
        page.title(match self.failed {
            0 => "This RNIC does what Castnet needs.".to_owned(),
            failed => format!("{failed} of {} checks failed.", self.checks.len()),
        });
    }
}

impl SelftestCommand {
    /// All checks run, also after one has failed.
    pub(crate) fn run(self, output: Output) -> Outcome {
        let mut each = |report: &CheckReport| {
            if let Err(wrong) = &report.outcome {
                remark(&format!("{}: {wrong}", report.name));
            }
        };
        let (attributes, reports) = if self.device.rnic == Kind::Verbs {
            let mut rnic = self.device.open()?;
            let attributes = rnic.attributes().clone();
            (
                attributes,
                conformance::run(&mut OneDevice(&mut *rnic), &mut each),
            )
        } else {
            let mut bench = conformance::software(SOFT_MTU).map_err(failure::rnic)?;
            let attributes = bench.0.attributes().clone();
            (attributes, conformance::run(&mut bench, &mut each))
        };
        let report = self.report(&attributes, &reports);
        let verdict = match report.failed {
            0 => Ok(()),
            failed => Err(
                Failure::failed(format!("{failed} of {} checks failed", reports.len()))
                    .next("this RNIC or its driver cannot be used for groups with its current settings; see its documentation"),
            ),
        };
        output.conclude(&report, verdict)
    }

    fn report(&self, attributes: &DeviceAttributes, reports: &[CheckReport]) -> SelftestReport {
        SelftestReport {
            rnic: self.device.rnic,
            device: attributes.name.clone(),
            ip: attributes.ip.to_string(),
            mtu: attributes.mtu,
            active_pmtu: attributes.active_pmtu.bytes(),
            failed: reports.iter().filter(|r| r.outcome.is_err()).count(),
            checks: reports.iter().map(CheckLine::from).collect(),
        }
    }
}
