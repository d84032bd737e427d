use castnet_console::exit::Outcome;
use castnet_console::output::Output;
use castnet_console::program::{Everywhere, client, service};
use clap::{Parser, Subcommand};

const ABOUT: &str =
    "A software switch for RDMA: one RoCEv2 RC sender reaches many ordinary receivers, reliably";

const AFTER_HELP: &str = "Start here:
  castnet demo                    a fabric of three switches and five hosts in this one process
  castnet bench                   how fast this machine's switch is
  castnet doctor                  what this machine has and lacks, and what to do

Then, on real interfaces (each in its own terminal or unit; see deploy/):
  castnet controller --listen http://127.0.0.1:7470 --switch leaf1=http://127.0.0.1:7471
  castnet switch --name leaf1 --port h1=veth-h1 --port h2=veth-h2 --listen http://127.0.0.1:7471
  castnet group create g --source h1 --members h2
  castnet host receive --interface veth0 --ip 10.0.0.2/24 --name h2 --group g --out copy.bin
  castnet host send    --interface veth0 --ip 10.0.0.1/24 --name h1 --group g --file data.bin

Experiments, such as the figures of papers, are a program of their own: castnet-lab --help.

Exit codes:
  0  done
  1  failed: the command ran, and failed, or what it checked has faults
  2  usage: the command line or a file is wrong; nothing was tried
  3  refused: the other side refused
  4  unreachable: the other side did not answer

Environment: CASTNET_AGENT and CASTNET_CONTROLLER say where a switch and the controller listen; CASTNET_TLS_CA, CASTNET_TLS_CERT and CASTNET_TLS_KEY name PEM files; RUST_LOG (such as castnet_controller=debug) overrides -v.";

/// With commit and features (`build.rs`).
pub(crate) const VERSION: &str = env!("CASTNET_VERSION");

/// The command line.
#[derive(Debug, Parser)]
#[command(name = "castnet", version = VERSION, about = ABOUT, after_help = AFTER_HELP, max_term_width = 110)]
#[command(arg_required_else_help = true, subcommand_required = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) everywhere: Everywhere,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The nouns and verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Demo(castnet_demo::DemoCommand),
    Bench(castnet_bench::BenchCommand),
    Switch(crate::switch::SwitchCommand),
    Controller(crate::controller::ControllerCommand),
    Host(castnet_commands::HostCommand),
    Group(crate::group::GroupCommand),
    Job(crate::job::JobCommand),
    #[command(visible_alias = "ports")]
    Port(crate::port::PortCommand),
    Counters(crate::counters::CountersCommand),
    Drops(crate::drops::DropsCommand),
    Runtime(crate::runtime::RuntimeCommand),
    Fdb(crate::fdb::FdbCommand),
    #[command(visible_alias = "routes")]
    Route(crate::route::RouteCommand),
    #[command(visible_alias = "neighbors")]
    Neighbours(crate::neighbours::NeighboursCommand),
    Topology(crate::topology::TopologyCommand),
    Store(crate::store::StoreCommand),
    Events(crate::events::EventsCommand),
    Trace(crate::trace::TraceCommand),
    Capture(crate::capture::CaptureCommand),
    Rules(crate::rules::RulesCommand),
    LogLevel(crate::log_level::LogLevelCommand),
    Pki(crate::pki::PkiCommand),
    Doctor(castnet_doctor::DoctorCommand),
    Completions(crate::completions::CompletionsCommand),
}

impl Cli {
    pub(crate) fn run(self, output: Output) -> Outcome {
        match self.command {
            Command::Rules(command) => command.run(output),
            Command::Pki(command) => command.run(output),
            Command::Doctor(command) => command.run(output),
            Command::Completions(command) => command.run(),
            Command::Demo(command) => service(command.run(output)),
            Command::Bench(command) => service(command.run(output)),
            Command::Switch(command) => service(command.run(output)),
            Command::Controller(command) => service(command.run(output)),
            Command::Host(command) => command.run(output),
            Command::Group(command) => client(command.run(output)),
            Command::Job(command) => client(command.run(output)),
            Command::Port(command) => client(command.run(output)),
            Command::Counters(command) => client(command.run(output)),
            Command::Drops(command) => client(command.run(output)),
            Command::Runtime(command) => client(command.run(output)),
            Command::Fdb(command) => client(command.run(output)),
            Command::Route(command) => client(command.run(output)),
            Command::Neighbours(command) => client(command.run(output)),
            Command::Topology(command) => client(command.run(output)),
            Command::Store(command) => client(command.run(output)),
            Command::Events(command) => client(command.run(output)),
            Command::Trace(command) => client(command.run(output)),
            Command::Capture(command) => client(command.run(output)),
            Command::LogLevel(command) => client(command.run(output)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_tree_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_units_start_commands_that_exist() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/systemd");
        for (unit, command) in [
            ("castnet-switch.service", "switch"),
            ("castnet-controller.service", "controller"),
        ] {
            let text = std::fs::read_to_string(format!("{folder}/{unit}")).expect("a unit");
            let start = text
                .lines()
                .find_map(|line| line.strip_prefix("ExecStart="))
                .expect("ExecStart");
            let cli = Cli::try_parse_from(start.split_whitespace()).expect("a command line");
            assert!(
                format!("{:?}", cli.command).to_lowercase().starts_with(command),
                "{unit}"
            );
        }
    }

    #[test]
    fn every_command_teaches_by_example() {
        for command in Cli::command().get_subcommands() {
            let help = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(
                help.contains("Examples:"),
                "castnet {} --help has no examples",
                command.get_name()
            );
            assert!(
                command.get_about().is_some(),
                "castnet {} says not what it is",
                command.get_name()
            );
        }
    }

    #[test]
    fn every_command_line_in_pages_is_one_that_the_program_takes() {
        let (count, faults) =
            castnet_house::commands::faults("castnet", |words| Cli::try_parse_from(words).map(drop));
        assert!(count > 100, "only {count} are found");
        assert!(faults.is_empty(), "\n{}", faults.join("\n"));
    }
}
