//! Collectives of four ranks in network namespaces, beside Open MPI over TCP between the same namespaces.
//!
//! `cargo bench -p castnet-benches --bench mpi`; `-- --offload` leaves segmentation offload on. Needs root, `ip`,
//! `ethtool`, `mpicc` and `mpirun` (Debian: iproute2, ethtool, openmpi-bin, libopenmpi-dev). Times are means over
//! calls and ranks, of the best of several measurements; the two sides alternate.
//!
//! For quick runs: `--only allreduce,barrier --sizes 4096,65536 --turns 1`; `--help` lists all options.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use castnet_e2e::lab::{Lab, STAR};
use castnet_e2e::net::{self, Namespace};
use clap::Parser;
use serde_json::Value;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const HOSTS: [&str; 4] = ["h1", "h2", "h3", "h4"];
/// MTU of all interfaces. Frames of both sides have this length if segmentation is not offloaded.
const MTU: u32 = 4200;
const SIZES: [(u64, u32); 6] = [
    (4 << 10, 400),
    (16 << 10, 200),
    (64 << 10, 100),
    (256 << 10, 40),
    (1 << 20, 20),
    (4 << 20, 8),
];

/// Microseconds by primitive and bytes.
type Times = BTreeMap<(&'static str, u64), f64>;

const PRIMITIVES: [&str; 3] = ["allreduce", "broadcast", "barrier"];

#[derive(Parser)]
struct Options {
    /// Leave segmentation offload on
    #[arg(long)]
    offload: bool,
    /// Castnet without Open MPI
    #[arg(long)]
    alone: bool,
    /// Only these primitives
    #[arg(long = "only", value_delimiter = ',', default_values = PRIMITIVES)]
    primitives: Vec<String>,
    /// Only these sizes, in bytes
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<u64>,
    /// Measurements of each side
    #[arg(long, default_value_t = 3)]
    turns: usize,
    /// Factor for the number of iterations
    #[arg(long = "iters", default_value_t = 1)]
    iterations: u32,
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

impl Options {
    fn sizes(&self, primitive: &str) -> Vec<(u64, u32)> {
        let sizes = if primitive == "barrier" {
            &[(0, 400)]
        } else {
            &SIZES[..]
        };
        let wanted = |bytes| primitive == "barrier" || self.sizes.is_empty() || self.sizes.contains(bytes);
        let sizes = sizes.iter().filter(|(bytes, _)| wanted(bytes));
        sizes.map(|&(bytes, n)| (bytes, n * self.iterations)).collect()
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    let (offload, turns) = (options.offload, options.turns);
    if let Some(why) = missing() {
        eprintln!("SKIPPED: collectives beside Open MPI: {why}");
        return Ok(());
    }
    castnet_e2e::process::use_binary(match &options.binary {
        Some(path) => path.clone(),
        None => castnet_e2e::process::build(&["--release"])?,
    });
    let lab = Lab::start(STAR, &[])?;
    let bridge = Bridge::new(&lab, offload)?;
    let (mut ours, mut theirs) = (Times::new(), Times::new());
    for turn in 0..turns {
        for primitive in PRIMITIVES
            .into_iter()
            .filter(|p| options.primitives.iter().any(|name| name == p))
        {
            eprintln!("turn {} of {turns}: {primitive}", turn + 1);
            keep_best(&mut ours, castnet(&lab, primitive, turn, &options)?);
            if !options.alone {
                keep_best(&mut theirs, bridge.mpi(primitive, &options)?);
            }
        }
    }
    print(&ours, &theirs, &options);
    Ok(())
}

fn keep_best(best: &mut Times, new: Times) {
    for (key, us) in new {
        let entry = best.entry(key).or_insert(us);
        *entry = entry.min(us);
    }
}

fn print(ours: &Times, theirs: &Times, options: &Options) {
    let state = if options.offload { "on" } else { "off" };
    println!(
        "4 ranks, f32, MTU {MTU}, segmentation offload {state}; microseconds per call, best of {} turns",
        options.turns
    );
    println!(
        "{:<10} {:>9} {:>12} {:>12} {:>7} {:>14}",
        "", "bytes", "castnet", "Open MPI", "ratio", "castnet MB/s"
    );
    for primitive in PRIMITIVES {
        for ((name, bytes), us) in ours.iter().filter(|((name, _), _)| *name == primitive) {
            let mpi = theirs.get(&(*name, *bytes)).copied().unwrap_or(f64::NAN);
            let rate = *bytes as f64 / us;
            println!(
                "{name:<10} {bytes:>9} {us:>12.1} {mpi:>12.1} {:>7.2} {rate:>14.0}",
                mpi / us
            );
        }
    }
}

fn missing() -> Option<String> {
    for (program, package) in [
        ("mpicc", "libopenmpi-dev"),
        ("mpirun", "openmpi-bin"),
        ("ethtool", "ethtool"),
    ] {
        if Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .status()
            .is_err()
        {
            return Some(format!("needs {program} (package {package})"));
        }
    }
    net::missing()
}

fn castnet(lab: &Lab, primitive: &'static str, turn: usize, options: &Options) -> Result<Times> {
    let mut times = Times::new();
    for (bytes, iterations) in options.sizes(primitive) {
        let job = format!("{primitive}-{bytes}-{turn}");
        let ranks: Vec<_> = (0..HOSTS.len())
            .map(|rank| {
                let host = HOSTS[rank];
                let mut command = lab.host(host)?.command(castnet_e2e::process::castnet());
                command.args(["host", primitive, "--name", host, "--job", &job, "--size", "4"]);
                command.args(["--rank", &rank.to_string(), "--interface", "eth0"]);
                command.args(["--ip", &format!("{}/24", Lab::ip(host))]);
                command.args(["--controller", &lab.socket("controller")]);
                command.args(["--pmtu", "4096", "--fallback", "forbidden"]);
                command.args(["--iters", &iterations.to_string()]);
                command.args(["--warmup", &(iterations / 10 + 2).to_string()]);
                if primitive != "barrier" {
                    command.args(["--type", "f32", "--bytes", &bytes.to_string(), "--verify"]);
                }
                command
                    .args(["--output", "json"])
                    .args(options.flags.split_whitespace());
                let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
                Ok(child)
            })
            .collect::<Result<_>>()?;
        for (rank, child) in ranks.into_iter().enumerate() {
            let out = child.wait_with_output()?;
            if !out.status.success() {
                return Err(format!("{job}, rank {rank}: {}", String::from_utf8_lossy(&out.stderr)).into());
            }
            for row in serde_json::Deserializer::from_slice(&out.stdout).into_iter::<Value>() {
                if let Some(us) = row?["time_avg_us"].as_f64() {
                    times.insert((primitive, bytes), us);
                }
            }
        }
    }
    Ok(times)
}

/// A second interface at each host, all on a kernel bridge: the network of Open MPI.
struct Bridge<'a> {
    lab: &'a Lab,
    _switch: Namespace,
    folder: PathBuf,
}

impl<'a> Bridge<'a> {
    fn new(lab: &'a Lab, offload: bool) -> Result<Self> {
        let switch = Namespace::new("bridge")?;
        let name = switch.name();
        net::ip(&format!("-n {name} link add br0 type bridge"))?;
        net::ip(&format!("-n {name} link set br0 mtu {MTU} up"))?;
        for (index, host) in HOSTS.into_iter().enumerate() {
            let namespace = lab.host(host)?;
            net::veth(&switch, host, namespace, "eth1", MTU)?;
            net::ip(&format!("-n {name} link set {host} master br0"))?;
            let address = format!("10.1.0.{}/24", index + 1);
            net::ip(&format!("-n {} addr add {address} dev eth1", namespace.name()))?;
            if !offload {
                for (at, interface) in [(&switch, host), (namespace, "eth1")] {
                    let flags = ["-K", interface, "tso", "off", "gso", "off", "gro", "off"];
                    at.command("ethtool").args(flags).stderr(Stdio::null()).status()?;
                }
            }
        }
        let bridge = Self {
            lab,
            _switch: switch,
            folder: lab.folder().to_path_buf(),
        };
        bridge.prepare()?;
        Ok(bridge)
    }

    /// Builds the program, and writes the script that mpirun calls instead of ssh.
    fn prepare(&self) -> Result<()> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("mpi/collectives.c");
        let compiled = Command::new("mpicc")
            .args(["-O2", "-o"])
            .args([self.program(), source])
            .status()?;
        if !compiled.success() {
            return Err("mpicc failed".into());
        }
        let mut agent = String::from("#!/bin/sh\nhost=$1; shift\ncase $host in\n");
        for (index, host) in HOSTS.into_iter().enumerate() {
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

    fn mpi(&self, primitive: &'static str, options: &Options) -> Result<Times> {
        let mut line = String::from("hostname node-1; exec mpirun --allow-run-as-root -np 4");
        line.push_str(" --host 10.1.0.1,10.1.0.2,10.1.0.3,10.1.0.4 --mca btl tcp,self --mca pml ob1");
        line.push_str(
            " --mca btl_tcp_if_include eth1 --mca oob_tcp_if_include eth1 --mca mpi_yield_when_idle 1",
        );
        line.push_str(&format!(
            " --mca plm_rsh_agent {} {} {primitive}",
            self.agent().display(),
            self.program().display()
        ));
        for (bytes, iterations) in options.sizes(primitive) {
            line.push_str(&format!(" {bytes} {iterations}"));
        }
        let out = self
            .lab
            .host(HOSTS[0])?
            .command("unshare")
            .args(["--uts", "sh", "-c", &line])
            .output()?;
        if !out.status.success() {
            return Err(format!("mpirun: {}", String::from_utf8_lossy(&out.stderr)).into());
        }
        let mut times = Times::new();
        for row in serde_json::Deserializer::from_slice(&out.stdout).into_iter::<Value>() {
            let row = row?;
            if let (Some(bytes), Some(us)) = (row["bytes"].as_u64(), row["us"].as_f64()) {
                times.insert((primitive, bytes), us);
            }
        }
        Ok(times)
    }
}
