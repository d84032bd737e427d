//! `softroce`: a lab of SoftRoCE machines, for a person at a terminal.

mod down;
mod ps;
mod run;
mod shell;
mod signals;
mod up;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use castnet_softroce::{LabError, LabState, labs};
use clap::{Args, Parser, Subcommand, ValueEnum};
use indicatif::ProgressBar;

/// Virtual machines whose RNIC is the Linux kernel's own SoftRoCE, on taps for a switch to take
///
/// A first look, as root:
///   softroce install
///   softroce up --bridge                          (stays; Ctrl-C takes all away)
///   softroce run h1 -- ibv_devinfo                (in another terminal)
///   softroce run h1 -- ping -c 3 10.0.0.2
#[derive(Parser)]
#[command(name = "softroce", version, verbatim_doc_comment)]
struct Cli {
    #[command(subcommand)]
    command: Commands,
}

#[derive(Subcommand)]
enum Commands {
    /// Boots a lab and holds it until Ctrl-C
    Up(Up),
    /// Runs a command in a machine; its output, exit code and end are this command's
    Run(Run),
    /// Opens a shell in a machine; Ctrl-] leaves it
    Shell(Shell),
    /// Shows the labs of this machine
    Ps(Ps),
    /// Takes a lab down, or what is left of one
    Down(Down),
    /// Installs the Debian packages that the lab needs, and fetches its kernel
    Install,
    /// Builds the image that the machines boot, where there is none or a stale one
    Image(Image),
}

#[derive(Args)]
struct Up {
    /// How many machines, 1 to 16
    #[arg(long, default_value_t = 2, value_name = "N")]
    hosts: usize,
    /// MTU of their data interfaces: 1500 gives a path MTU of 1024, 4200 gives 4096
    #[arg(long, default_value_t = 1500)]
    mtu: u32,
    /// Memory of each machine
    #[arg(long, default_value_t = 192, value_name = "MIB")]
    memory: u32,
    /// Joins the taps by a plain Linux bridge, for a lab without a switch under test
    #[arg(long)]
    bridge: bool,
    /// The lab's name, and that of its network namespace
    #[arg(long, default_value = "softroce")]
    name: String,
    /// A program that all machines shall have, such as target/release/castnet; may be given again
    #[arg(long, value_name = "FILE")]
    share: Vec<PathBuf>,
    /// How long the machines may take to come up
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    boot_timeout: u64,
    #[command(flatten)]
    cache: Cache,
}

#[derive(Args)]
struct Cache {
    /// Where images are kept [default: ~/.cache/castnet/softroce]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
}

#[derive(Args)]
struct Which {
    /// The lab, where there are several
    #[arg(long, value_name = "NAME")]
    lab: Option<String>,
    /// The machine: h1, h2, ...
    host: String,
}

#[derive(Args)]
struct Run {
    #[command(flatten)]
    which: Which,
    /// Kills the command when it takes longer
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// A command and its arguments; a single word is a script for bash: run h1 -- 'ip link | wc -l'
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

#[derive(Args)]
struct Shell {
    #[command(flatten)]
    which: Which,
}

#[derive(Args)]
struct Ps {
    /// Output format
    #[arg(short = 'O', long, value_enum, default_value = "table")]
    output: Format,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// For people
    Table,
    /// For machines: one array
    Json,
}

#[derive(Args)]
struct Down {
    /// The lab; may be left out where there is one
    name: Option<String>,
    /// All labs that `softroce up` holds, and all that are left over
    #[arg(long, conflicts_with = "name")]
    all: bool,
    /// Also labs that other programs hold, such as tests
    #[arg(long)]
    force: bool,
}

#[derive(Args)]
struct Image {
    /// Fetches Debian's newest kernel first
    #[arg(long)]
    refresh: bool,
    #[command(flatten)]
    cache: Cache,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Commands::Up(up) => up::up(&up),
        Commands::Run(run) => run::run(&run),
        Commands::Shell(shell) => shell::shell(&shell),
        Commands::Ps(ps) => ps::ps(&ps),
        Commands::Down(down) => down::down(&down),
        Commands::Install => install(),
        Commands::Image(image) => build(&image),
    };
    result.unwrap_or_else(|error| {
        eprintln!("softroce: {error}");
        ExitCode::FAILURE
    })
}

struct Steps(ProgressBar);

impl Steps {
    fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(bar)
    }

    fn say(&self, step: &str) {
        if self.0.is_hidden() {
            eprintln!("softroce: {step}");
        } else {
            self.0.set_message(step.to_owned());
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn install() -> Result<ExitCode, LabError> {
    let steps = Steps::new();
    castnet_softroce::install(&|step| steps.say(step))?;
    drop(steps);
    println!("All that the lab needs is there.");
    Ok(ExitCode::SUCCESS)
}

fn build(ask: &Image) -> Result<ExitCode, LabError> {
    let steps = Steps::new();
    let image = castnet_softroce::image(ask.cache.cache.as_deref(), ask.refresh, &|step| steps.say(step))?;
    drop(steps);
    println!("{} (kernel {})", image.directory().display(), image.version());
    Ok(ExitCode::SUCCESS)
}

/// Only root sees labs.
fn as_root() -> Result<(), LabError> {
    if nix::unistd::Uid::effective().is_root() {
        return Ok(());
    }
    Err(LabError::Config("labs are root's: try it with sudo".into()))
}

/// The lab of this name, or the only one that is ready.
fn find_lab(name: Option<&str>) -> Result<LabState, LabError> {
    as_root()?;
    let ready: Vec<LabState> = labs()
        .into_iter()
        .filter(|lab| lab.ready && lab.owner_lives())
        .collect();
    let names = ready
        .iter()
        .map(|lab| lab.name.as_str())
        .collect::<Vec<_>>()
        .join(", ");
    let fault = match (name, ready.len()) {
        (Some(name), _) => match ready.into_iter().find(|lab| lab.name == name) {
            Some(lab) => return Ok(lab),
            None => format!("no lab {name} is up; there are: {names}"),
        },
        (None, 0) => "no lab is up: softroce up".into(),
        (None, 1) => return Ok(ready.into_iter().next().expect("one")),
        (None, _) => format!("several labs are up, choose one by --lab: {names}"),
    };
    Err(LabError::Config(fault))
}

fn find_host(which: &Which) -> Result<castnet_softroce::Host, LabError> {
    let lab = find_lab(which.lab.as_deref())?;
    let hosts = castnet_softroce::hosts_of(&lab)?;
    let last = hosts.len();
    hosts
        .into_iter()
        .find(|host| host.name() == which.host)
        .ok_or_else(|| LabError::Config(format!("{} has h1 to h{last}, and no {}", lab.name, which.host)))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_follows_two_dashes_is_the_command() {
        let cli = Cli::try_parse_from(["softroce", "run", "h2", "--", "ping", "-c", "1", "10.0.0.1"]);
        let Ok(Cli {
            command: Commands::Run(run),
        }) = cli
        else {
            panic!("not understood");
        };
        assert_eq!((run.which.host.as_str(), run.command.len()), ("h2", 4));
    }
}
