//! `castnet demo`: a whole fabric in one process, without privileges, and a transfer over it, without and with losses.

mod act;
mod fabric;
mod report;

use std::path::PathBuf;
use std::time::Instant;

use castnet_controller::{Config, Controller, SwitchConfig};
use castnet_proto::transport::Address;
use clap::Args;

use crate::exit::{self, Failure, Outcome};
use crate::group::pmtu;
use crate::host::bar;
use crate::output::Output;
use crate::units::{Ratio, Size};
use act::{Content, Script};
use fabric::{Fabric, HOSTS, LOOPBACK};
use report::DemoReport;

/// Shows it all in one process: a controller, three switches in two tiers, five hosts
#[derive(Debug, Args)]
#[command(
    after_help = "The parts are those that run apart elsewhere: agents and controller speak gRPC over loopback, hosts join as hosts do, frames go over links in memory. One host sends to four, first over good links, then over links that lose frames. Exit code 0 only if every receiver had every byte, both times.

Examples:
  castnet demo
  castnet demo --size 1GiB --loss 0.1%
  castnet demo --file model.bin --seed 7
  castnet demo --output json"
)]
pub(crate) struct DemoCommand {
    /// Bytes to send
    #[arg(long, value_name = "SIZE", default_value = "64MiB", conflicts_with = "file")]
    size: Size,
    /// Sends this file instead
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Share of the frames that each link loses in the second act, each way
    #[arg(long, value_name = "SHARE", default_value = "1%")]
    loss: Ratio,
    /// What losses and content are drawn from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Payload bytes of a full packet: 256, 512, 1024, 2048 or 4096
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = pmtu)]
    pmtu: u32,
}

impl DemoCommand {
    fn content(&self) -> Outcome<Content> {
        match &self.file {
            None => Ok(Content::Drawn {
                size: self.size.0,
                seed: self.seed,
            }),
            Some(path) => {
                let meta = std::fs::metadata(path).map_err(|e| exit::cannot_read(path, &e))?;
                if !meta.is_file() {
                    return Err(Failure::usage(format!("{} is no file", path.display())));
                }
                Ok(Content::File {
                    path: path.clone(),
                    size: meta.len(),
                })
            }
        }
    }

    fn scripts(&self, content: &Content) -> [Script; 2] {
        let script = |name, group: &str, loss| Script {
            name,
            group: group.to_owned(),
            loss,
            pmtu: self.pmtu,
            content: content.clone(),
            manner: Script::manner(loss),
        };
        [
            script("Act 1", "demo-1", Ratio(0.0)),
            script("Act 2", "demo-2", self.loss),
        ]
    }

    /// Plays both acts.
    pub(crate) async fn run(self, output: Output) -> Outcome {
        let start = Instant::now();
        let content = self.content()?;
        let fabric = Fabric::start(self.seed).await?;
        let controller = controller(&fabric).await?;
        let address = controller
            .address()
            .cloned()
            .ok_or_else(|| Failure::failed("the controller serves nowhere"))?;
        let mut report = DemoReport {
            size: content.size(),
            pmtu: self.pmtu,
            seed: self.seed,
            source: HOSTS[0].to_owned(),
            receivers: HOSTS[1..].iter().map(ToString::to_string).collect(),
            sha256: String::new(),
            tree: None,
            acts: Vec::new(),
            ok: true,
            seconds: 0.0,
        };
        for script in self.scripts(&content) {
            let bar = bar(output, Some(content.size())).with_message(script.name);
            let played = act::play(&fabric, &address, script, &bar).await;
            bar.finish_and_clear();
            let (act, tree, sha256) = played?;
            report.ok &= act.ok;
            report.tree = report.tree.or(tree);
            report.sha256 = sha256;
            report.acts.push(act);
        }
        controller.stop().await;
        fabric.stop().await?;
        report.seconds = start.elapsed().as_secs_f64();
        output.show(&report)?;
        if report.ok {
            return Ok(());
        }
        Err(Failure::failed("not every receiver had every byte"))
    }
}

async fn controller(fabric: &Fabric) -> Outcome<Controller> {
    let switch = |s: &fabric::Switch| SwitchConfig {
        name: s.name.to_owned(),
        agent: s.address.clone(),
    };
    let mut config = Config::new(fabric.switches.iter().map(switch).collect());
    config.listen = LOOPBACK.parse::<Address>().map_err(Failure::failed)?;
    Controller::start(config).await.map_err(Failure::failed)
}
