//! Collectives of ranks in network namespaces, over veth pairs and over shared memory (memif), beside Open MPI over TCP
//! between the same namespaces.
//!
//! `cargo bench -p castnet-benches --bench mpi`. Needs root, `ip`, `ethtool`, `mpicc` and `mpirun` (Debian: iproute2,
//! ethtool, openmpi-bin, libopenmpi-dev). Times are medians over calls, of the best of several turns; the sides alternate.
//!
//! For quick runs: `--only allreduce,barrier --sizes 4096,65536 --turns 1`; `--help` lists all options.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use castnet_console::plot::{self, Curve, Panel};
use castnet_e2e::lab::Lab;
use castnet_e2e::net::{self, Namespace};
use clap::{Parser, ValueEnum};
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// MTU of all interfaces. Frames of both sides have this length if segmentation is not offloaded.
const MTU: u32 = 4200;
const COLLECTIVES: [&str; 6] = [
    "allreduce",
    "reduce",
    "broadcast",
    "reducescatter",
    "allgather",
    "barrier",
];
const SIZES: [u64; 7] = [4, 256, 4 << 10, 16 << 10, 64 << 10, 1 << 20, 16 << 20];

/// Microseconds by collective, bytes and side.
type Times = BTreeMap<(usize, u64, Side), f64>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Side {
    /// Castnet, in the switch, over veth pairs
    Network,
    /// Castnet, in the switch, over shared memory
    Memif,
    /// Castnet's algorithms between hosts
    Hosts,
    /// Open MPI with segmentation offload
    Mpi,
    /// Open MPI without
    MpiSingle,
}

impl Side {
    const fn label(self) -> &'static str {
        match self {
            Self::Network => "in the network",
            Self::Memif => "memif",
            Self::Hosts => "between hosts",
            Self::Mpi => "Open MPI",
            Self::MpiSingle => "Open MPI, gso off",
        }
    }
}

#[derive(Parser)]
struct Options {
    /// Only these collectives
    #[arg(long = "only", value_delimiter = ',', default_values = COLLECTIVES)]
    collectives: Vec<String>,
    /// Only these sizes, in bytes
    #[arg(long, value_delimiter = ',', default_values_t = SIZES)]
    sizes: Vec<u64>,
    /// Only these sides
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Side::value_variants().to_vec())]
    sides: Vec<Side>,
    /// Number of ranks, each in a namespace of its own
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=32))]
    ranks: u16,
    /// Measurements of each side
    #[arg(long, default_value_t = 3)]
    turns: usize,
    /// Milliseconds of calls per collective, size and turn
    #[arg(long = "budget", default_value_t = 200)]
    budget_ms: u32,
    /// Writes all times as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// Draws all times
    #[arg(long)]
    svg: Option<PathBuf>,
    /// More flags for the ranks' commands
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    flags: String,
    /// This castnet instead of one built now
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Passed by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    if let Some(why) = missing(&options) {
        eprintln!("SKIPPED: collectives beside Open MPI: {why}");
        return Ok(());
    }
    castnet_e2e::process::use_binary(match &options.binary {
        Some(path) => path.clone(),
        None => castnet_e2e::process::build(&["--release"])?,
    });
    let hosts: Vec<String> = (1..=options.ranks).map(|n| format!("h{n}")).collect();
    let names: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let lab = Lab::start_with(&[("sw", &names)], |lab, _| {
        let port = |name: &&str| format!("--port=m{name}={}", memif(lab, name));
        Ok(names.iter().map(port).collect())
    })?;
    let bridge = Bridge::new(&lab, &names)?;
    let mut best = Times::new();
    for turn in 1..=options.turns {
        for &side in &options.sides {
            eprintln!("turn {turn} of {}: {}", options.turns, side.label());
            let rows = match side {
                Side::Network | Side::Memif | Side::Hosts => castnet(&lab, &names, side, turn, &options)?,
                Side::Mpi | Side::MpiSingle => bridge.mpi(side == Side::Mpi, &options)?,
            };
            for row in serde_json::Deserializer::from_slice(&rows).into_iter::<Value>() {
                let row = row?;
                let collective = COLLECTIVES.iter().position(|name| row["collective"] == **name);
                let (bytes, us) = (row["bytes"].as_u64(), row["time_median_us"].as_f64());
                if let (Some(collective), Some(bytes), Some(us)) = (collective, bytes, us) {
                    let entry = best.entry((collective, bytes, side)).or_insert(us);
                    *entry = entry.min(us);
                }
            }
        }
    }
    print(&best, &options);
    if let Some(file) = &options.json {
        let row = |(&(collective, bytes, side), us): (&(usize, u64, Side), &f64)| json!({"collective": COLLECTIVES[collective], "bytes": bytes, "side": side.label(), "time_median_us": us});
        let rows: Vec<_> = best.iter().map(row).collect();
        std::fs::write(file, serde_json::to_string_pretty(&rows)?)?;
    }
    if let Some(file) = &options.svg {
        draw(file, &best, &options)?;
    }
    Ok(())
}

fn print(best: &Times, options: &Options) {
    println!(
        "{} ranks, f32, MTU {MTU}; microseconds per call: medians, best of {} turns; ratio: Open MPI's time over ours",
        options.ranks, options.turns
    );
    print!("{:<14}{:>10}", "", "bytes");
    options
        .sides
        .iter()
        .for_each(|side| print!("{:>19}", side.label()));
    println!("{:>8}{:>12}{:>8}", "ratio", "to gso off", "memif");
    let mut keys: Vec<_> = best
        .keys()
        .map(|&(collective, bytes, _)| (collective, bytes))
        .collect();
    keys.dedup();
    for (collective, bytes) in keys {
        let of = |side| best.get(&(collective, bytes, side)).copied();
        print!("{:<14}{bytes:>10}", COLLECTIVES[collective]);
        for &side in &options.sides {
            print!("{:>19}", of(side).map_or("-".to_owned(), |us| format!("{us:.1}")));
        }
        let ratio = |theirs, ours| match (of(theirs), of(ours)) {
            (Some(theirs), Some(ours)) => format!("{:.2}", theirs / ours),
            _ => "-".to_owned(),
        };
        println!(
            "{:>8}{:>12}{:>8}",
            ratio(Side::Mpi, Side::Network),
            ratio(Side::MpiSingle, Side::Network),
            ratio(Side::Mpi, Side::Memif)
        );
    }
}

fn draw(file: &Path, best: &Times, options: &Options) -> Result<()> {
    let panels: Vec<_> = (0..COLLECTIVES.len() - 1)
        .map(|index| Panel {
            title: COLLECTIVES[index].to_owned(),
            curves: options
                .sides
                .iter()
                .map(|&side| Curve {
                    name: side.label().to_owned(),
                    points: best
                        .iter()
                        .filter(|((collective, _, of), _)| *collective == index && *of == side)
                        .map(|((_, bytes, _), us)| (*bytes as f64, *us))
                        .collect(),
                })
                .collect(),
        })
        .collect();
    plot::write(file, "bytes", "microseconds per call", &panels)
}

fn missing(options: &Options) -> Option<String> {
    let has_mpi = options
        .sides
        .iter()
        .any(|side| matches!(side, Side::Mpi | Side::MpiSingle));
    let programs = [
        ("mpicc", "libopenmpi-dev"),
        ("mpirun", "openmpi-bin"),
        ("ethtool", "ethtool"),
    ];
    for (program, package) in programs.into_iter().filter(|_| has_mpi) {
        let version = Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .status();
        if version.is_err() {
            return Some(format!(
                "needs {program} (package {package}), or --sides network,hosts"
            ));
        }
    }
    net::missing()
}

/// The port of a switch, and of the host with this name.
fn memif(lab: &Lab, name: &str) -> String {
    format!("memif:{}", lab.folder().join(format!("{name}.sock")).display())
}

/// The output of rank 0.
fn castnet(lab: &Lab, hosts: &[&str], side: Side, turn: usize, options: &Options) -> Result<Vec<u8>> {
    let sizes: Vec<_> = options.sizes.iter().map(u64::to_string).collect();
    let only = if side == Side::Hosts { "hosts" } else { "network" };
    let ranks: Vec<_> = hosts
        .iter()
        .enumerate()
        .map(|(rank, host)| {
            let mut command = lab.host(host)?.command(castnet_e2e::process::castnet());
            let (name, interface, ip) = match side {
                Side::Memif => (
                    format!("m{host}"),
                    memif(lab, host),
                    format!("10.0.0.{}", 101 + rank),
                ),
                _ => (host.to_string(), "eth0".to_owned(), Lab::ip(host)),
            };
            command.args([
                "host",
                "bench",
                "--name",
                &name,
                "--job",
                &format!("{side:?}-{turn}"),
            ]);
            command.args(["--rank", &rank.to_string(), "--size", &hosts.len().to_string()]);
            command.args(["--interface", &interface, "--ip", &format!("{ip}/24")]);
            command.args(["--controller", &lab.socket("controller"), "--pmtu", "4096"]);
            command.args(["--only", only, "--collectives", &options.collectives.join(",")]);
            command.args([
                "--bytes",
                &sizes.join(","),
                "--budget",
                &format!("{}ms", options.budget_ms),
            ]);
            command
                .args(["--output", "json"])
                .args(options.flags.split_whitespace());
            Ok(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
        })
        .collect::<Result<_>>()?;
    let mut first = Vec::new();
    for (rank, child) in ranks.into_iter().enumerate() {
        let out = child.wait_with_output()?;
        if !out.status.success() {
            return Err(format!("rank {rank}: {}", String::from_utf8_lossy(&out.stderr)).into());
        }
        if rank == 0 {
            first = out.stdout;
        }
    }
    Ok(first)
}

/// A second interface at each host, all on a kernel bridge: the network of Open MPI.
struct Bridge<'a> {
    lab: &'a Lab,
    hosts: &'a [&'a str],
    switch: Namespace,
    folder: PathBuf,
}

impl<'a> Bridge<'a> {
    fn new(lab: &'a Lab, hosts: &'a [&'a str]) -> Result<Self> {
        let switch = Namespace::new("bridge")?;
        let name = switch.name();
        net::ip(&format!("-n {name} link add br0 type bridge"))?;
        net::ip(&format!("-n {name} link set br0 mtu {MTU} up"))?;
        for (index, host) in hosts.iter().enumerate() {
            let namespace = lab.host(host)?;
            net::veth(&switch, host, namespace, "eth1", MTU)?;
            net::ip(&format!("-n {name} link set {host} master br0"))?;
            let address = format!("10.1.0.{}/24", index + 1);
            net::ip(&format!("-n {} addr add {address} dev eth1", namespace.name()))?;
        }
        Ok(Self {
            lab,
            hosts,
            switch,
            folder: lab.folder().to_path_buf(),
        })
    }

    /// Builds the program, and writes the script that mpirun calls instead of ssh.
    fn prepare(&self) -> Result<()> {
        if self.program().exists() {
            return Ok(());
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("mpi/collectives.c");
        let compiled = Command::new("mpicc")
            .args(["-O2", "-o"])
            .args([self.program(), source])
            .status()?;
        if !compiled.success() {
            return Err("mpicc failed".into());
        }
        let mut agent = String::from("#!/bin/sh\nhost=$1; shift\ncase $host in\n");
        for (index, host) in self.hosts.iter().enumerate() {
            let namespace = self.lab.host(host)?.name();
            agent.push_str(&format!("10.1.0.{}) namespace={namespace};;\n", index + 1));
        }
        agent.push_str(
            "esac\nexec ip netns exec $namespace unshare --uts sh -c \"hostname node-${host##*.}; $*\"\n",
        );
        std::fs::write(self.agent(), agent)?;
        Command::new("chmod").arg("+x").arg(self.agent()).status()?;
        Ok(())
    }

    fn program(&self) -> PathBuf {
        self.folder.join("collectives")
    }

    fn agent(&self) -> PathBuf {
        self.folder.join("mpi-agent")
    }

    fn set_offload(&self, on: bool) -> Result<()> {
        let state = if on { "on" } else { "off" };
        for host in self.hosts {
            for (at, interface) in [(&self.switch, *host), (self.lab.host(host)?, "eth1")] {
                let flags = ["-K", interface, "tso", state, "gso", state, "gro", state];
                at.command("ethtool").args(flags).stderr(Stdio::null()).status()?;
            }
        }
        Ok(())
    }

    fn mpi(&self, offload: bool, options: &Options) -> Result<Vec<u8>> {
        self.prepare()?;
        self.set_offload(offload)?;
        let count = self.hosts.len();
        let addresses: Vec<_> = (1..=count).map(|n| format!("10.1.0.{n}")).collect();
        let mut line = format!("hostname node-1; exec mpirun --allow-run-as-root -np {count}");
        line.push_str(&format!(
            " --host {} --mca btl tcp,self --mca pml ob1",
            addresses.join(",")
        ));
        line.push_str(
            " --mca btl_tcp_if_include eth1 --mca oob_tcp_if_include eth1 --mca mpi_yield_when_idle 1",
        );
        line.push_str(&format!(
            " --mca plm_rsh_agent {} {} {}",
            self.agent().display(),
            self.program().display(),
            f64::from(options.budget_ms) / 1000.0
        ));
        for name in &options.collectives {
            let in_blocks = name == "reducescatter" || name == "allgather";
            let least = if in_blocks { 4 * count as u64 } else { 0 };
            let sizes = if name == "barrier" {
                &[0][..]
            } else {
                &options.sizes
            };
            for bytes in sizes.iter().filter(|&&bytes| bytes >= least) {
                line.push_str(&format!(" {name} {bytes}"));
            }
        }
        let out = self
            .lab
            .host(self.hosts[0])?
            .command("unshare")
            .args(["--uts", "sh", "-c", &line])
            .output()?;
        if !out.status.success() {
            return Err(format!("mpirun: {}", String::from_utf8_lossy(&out.stderr)).into());
        }
        Ok(out.stdout)
    }
}
