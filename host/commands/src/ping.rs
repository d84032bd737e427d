use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use castnet_console::exit::{Failure, Outcome};
use castnet_console::output::{Output, Row, Rows};
use castnet_console::units::{Span, span};
use castnet_rnic::Rnic;
use clap::Args;
use serde::Serialize;

use super::device::{Device, Kind};
use super::{Stop, failure};

#[derive(Debug, Args)]
pub(crate) struct PingCommand {
    #[command(flatten)]
    device: Device,
    /// Addresses to resolve
    #[arg(required = true, value_name = "IP")]
    targets: Vec<Ipv4Addr>,
    /// How long to wait for each answer
    #[arg(long, value_name = "TIME", default_value = "1s")]
    wait: Span,
}

#[derive(Debug, Serialize)]
struct Answer {
    ip: Ipv4Addr,
    mac: Option<String>,
    seconds: f64,
}

impl Row for Answer {
    const COLUMNS: &'static [&'static str] = &["ip", "mac", "after"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.ip.to_string(),
            self.mac.clone().unwrap_or_else(|| "no answer".to_owned()),
            span(Duration::from_secs_f64(self.seconds)),
        ]
    }
}

impl PingCommand {
    pub(crate) fn run(self, output: Output, stop: &Stop) -> Outcome {
        if self.device.rnic == Kind::Verbs {
            return Err(Failure::usage(
                "with an RDMA device the kernel resolves addresses; it has a ping of its own",
            )
            .next("ping IP; ip neighbour show IP"));
        }
        let mut rnic = self.device.open_soft()?;
        let mut answers = Vec::new();
        for ip in self.targets.iter().copied() {
            if stop.load(Ordering::Relaxed) {
                return Err(failure::interrupted());
            }
            let start = Instant::now();
            let mac = rnic
                .resolve_within(ip, self.wait.0)
                .ok()
                .map(|mac| mac.to_string());
            answers.push(Answer {
                ip,
                mac,
                seconds: start.elapsed().as_secs_f64(),
            });
        }
        let silent = answers.iter().filter(|a| a.mac.is_none()).count();
        let from = rnic.attributes().mac;
        let verdict = match silent {
            0 => Ok(()),
            _ => Err(Failure::unreachable(format!(
                "{silent} of {} did not answer {from}",
                self.targets.len()
            ))
            .next("check that they run, and that the switch has this port: castnet port; castnet fdb")),
        };
        output.conclude(&Rows::new(answers, "no address was given"), verdict)
    }
}
