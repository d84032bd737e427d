//! `castnet demo`: a fabric in one process, without privileges; a transfer and an AllReduce, with and without losses.

mod act;
mod allreduce;
mod fabric;
mod links;
mod report;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Instant;

use castnet_comm::CollectiveMode::{Augmented, Translated};
use castnet_console::exit::{self, Failure, Outcome};
use castnet_console::output::Output;
use castnet_console::units::{Ratio, Size};
use castnet_controller::{Config, Controller, SwitchConfig};
use castnet_proto::transport::Address;
use castnet_wire::Pmtu;
use clap::Args;

use act::{Content, Script};
use allreduce::Played;
use fabric::{Fabric, HOSTS, LOOPBACK};
use links::{AllReduceReport, LinkReport};
use report::DemoReport;

/// Runs a controller, three switches in two tiers and five hosts in one process
#[derive(Debug, Args)]
#[command(
    after_help = "Agents and controller talk gRPC over loopback, hosts join as `castnet host` does, and frames use links in memory. One host sends to four, first without losses, then with losses. Then the five hosts are ranks of a job, and the switches compute an AllReduce of f32, without losses, with losses, and with losses that are repaired at each hop. The sums are compared bit for bit with sums computed at one place, and the bytes that each link carried with those of a ring between the hosts. The exit code is 0 if every receiver has every byte and every rank every sum, each time.

Examples:
  castnet demo
  castnet demo --size 1GiB --loss 0.1%
  castnet demo --file model.bin --seed 7
  castnet demo --size 1MiB --allreduce 64MiB --loss 0.5%
  castnet demo --output json"
)]
pub struct DemoCommand {
    /// Bytes to send
    #[arg(long, value_name = "SIZE", default_value = "64MiB", conflicts_with = "file")]
    size: Size,
    /// Sends this file instead
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Bytes of f32 that each host contributes to the AllReduce; 0: no AllReduce
    #[arg(long, value_name = "SIZE", default_value = "16MiB")]
    allreduce: Size,
    /// Share of the frames that each link loses in acts 2, 4 and 5, in each direction
    #[arg(long, value_name = "SHARE", default_value = "1%")]
    loss: Ratio,
    /// Seed of losses and content
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Payload bytes of a full packet: 256, 512, 1024, 2048 or 4096
    #[arg(long, value_name = "BYTES", default_value_t = Pmtu::B4096)]
    pmtu: Pmtu,
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
        };
        [
            script("Act 1", "demo-1", Ratio(0.0)),
            script("Act 2", "demo-2", self.loss),
        ]
    }

    /// Runs all acts. Fails if anything does not start or end, a receiver lacks a byte, or a rank a sum.
    pub async fn run(self, output: Output) -> Outcome {
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
            pmtu: self.pmtu.bytes() as u32,
            seed: self.seed,
            source: HOSTS[0].to_owned(),
            receivers: HOSTS[1..].iter().map(ToString::to_string).collect(),
            sha256: String::new(),
            tree: None,
            acts: Vec::new(),
            collective_tree: None,
            collectives: Vec::new(),
            ok: true,
            seconds: 0.0,
        };
        for script in self.scripts(&content) {
            let bar = output.byte_bar(Some(content.size())).with_message(script.name);
            let played = act::play(&fabric, &address, script, &bar).await;
            bar.finish_and_clear();
            let (act, tree, sha256) = played?;
            report.ok &= act.ok;
            report.tree = report.tree.or(tree);
            report.sha256 = sha256;
            report.acts.push(act);
        }
        self.collectives(&fabric, &address, output, &mut report).await?;
        controller.stop().await;
        fabric.stop().await?;
        report.seconds = start.elapsed().as_secs_f64();
        let verdict = if report.ok {
            Ok(())
        } else if report.collectives.iter().all(|act| act.ok) {
            Err(Failure::failed("not every receiver had every byte"))
        } else {
            Err(Failure::failed("not every rank had every sum"))
        };
        output.conclude(&report, verdict)
    }

    async fn collectives(
        &self,
        fabric: &Fabric,
        controller: &Address,
        output: Output,
        report: &mut DemoReport,
    ) -> Outcome {
        let elements = usize::try_from(self.allreduce.0 / 4).map_err(Failure::usage)?;
        if elements == 0 {
            return Ok(());
        }
        let seed = self.seed;
        let sums = tokio::task::spawn_blocking(move || allreduce::sums(seed, elements));
        let sums = sums.await.map_err(Failure::failed)?;
        let payload = elements as u64 * 4;
        let play = async |name, job, (ring, mode), loss: Ratio| {
            // The links of a ring carry all blocks but one, twice.
            let carried = if ring {
                payload * 2 * (HOSTS.len() as u64 - 1) / HOSTS.len() as u64
            } else {
                payload
            };
            let bar = output
                .byte_bar(Some(carried))
                .with_message(if ring { "  ring" } else { name });
            let script = allreduce::Script {
                job,
                ring,
                mode,
                loss,
                pmtu: self.pmtu,
                seed,
            };
            let played = allreduce::play(fabric, controller, script, &sums, &bar).await;
            bar.finish_and_clear();
            played.map_err(|failure| failure.while_doing(name))
        };
        let none = Ratio(0.0);
        let switches = |mode| (false, mode);
        let ring = (true, Translated);
        let clean = play("Act 3", "demo-sums-1", switches(Translated), none).await?;
        let ring = play("Act 3", "demo-ring", ring, none).await?;
        let lossy = play("Act 4", "demo-sums-2", switches(Translated), self.loss).await?;
        let hops = play("Act 5", "demo-sums-3", switches(Augmented), self.loss).await?;
        report.collective_tree = clean.counted.tree.clone();
        let acts = [
            ("Act 3", "demo-sums-1", (Translated, none), clean, Some(ring)),
            ("Act 4", "demo-sums-2", (Translated, self.loss), lossy, None),
            ("Act 5", "demo-sums-3", (Augmented, self.loss), hops, None),
        ];
        for (name, group, (mode, loss), played, ring) in acts {
            let is_right = |played: &Played| played.ranks.iter().all(|rank| rank.wrong == 0);
            let ok = is_right(&played) && ring.as_ref().is_none_or(is_right);
            report.ok &= ok;
            report.collectives.push(AllReduceReport {
                name,
                group: group.to_owned(),
                mcst_id: played.mcst_id,
                operation: "sum",
                data_type: "f32",
                elements: elements as u64,
                bytes: payload,
                loss,
                mode: mode.name(),
                ok,
                seconds: played.seconds,
                ring_seconds: ring.as_ref().map(|ring| ring.seconds),
                links: LinkReport::all(
                    &played.counted.links,
                    ring.as_ref().map(|ring| ring.counted.links.as_slice()),
                    payload,
                ),
                switches: played.counted.switches,
                ranks: played.ranks,
                drops: played.counted.drops,
                bars: std::io::stdout().is_terminal(),
            });
        }
        Ok(())
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
