//! Network namespaces and veth pairs, by `ip`, which is what an operator would type.

use std::fs::File;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns};

/// Why namespaces cannot be had here, or `None` where they can.
pub fn missing() -> Option<String> {
    if !nix::unistd::Uid::effective().is_root() {
        return Some("needs root, to make network namespaces".into());
    }
    match Command::new("ip").arg("-V").output() {
        Ok(out) if out.status.success() => {}
        _ => return Some("needs the command `ip` (package iproute2)".into()),
    }
    let probe = Namespace::new("probe");
    probe
        .err()
        .map(|e| format!("cannot make a network namespace here: {e:#}"))
}

pub use castnet_wrap_up::skip;

/// Whether `what` cannot be tested here, which is said then.
pub fn is_skipped(what: &str) -> bool {
    missing().inspect(|why| skip(what, why)).is_some()
}

/// Runs `ip` with the words of `line`.
pub fn ip(line: &str) -> Result<Output> {
    let out = Command::new("ip")
        .args(line.split_whitespace())
        .output()
        .context("running ip")?;
    if !out.status.success() {
        bail!("ip {line}: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(out)
}

/// A network namespace of its own making; deleted on drop, and its interfaces with it.
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes one whose name holds `role`, and sets its loopback up.
    pub fn new(role: &str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "castnet-{}-{}-{role}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        ip(&format!("netns add {name}"))?;
        let namespace = Self { name };
        ip(&format!("-n {} link set lo up", namespace.name))?;
        Ok(namespace)
    }

    /// Its name, as `ip netns` shows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that will run inside.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs `part` on a thread of this process that is inside, with all threads that it starts. Files are this process's own:
    /// `/sys` is not the namespace's.
    pub fn thread<R: Send + 'static>(
        &self,
        part: impl FnOnce() -> Result<R> + Send + 'static,
    ) -> Result<JoinHandle<Result<R>>> {
        let file = File::open(format!("/run/netns/{}", self.name)).context("opening a namespace")?;
        let role = self.name.rsplit('-').next().unwrap_or_default().to_owned();
        let inside = move || {
            setns(file, CloneFlags::CLONE_NEWNET).context("entering a namespace")?;
            part()
        };
        Ok(std::thread::Builder::new().name(role).spawn(inside)?)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = ip(&format!("netns del {}", self.name));
    }
}

/// Joins two namespaces by a veth pair, `a_name` in `a` and `b_name` in `b`, both up, of the MTU given.
pub fn veth(a: &Namespace, a_name: &str, b: &Namespace, b_name: &str, mtu: u32) -> Result<()> {
    ip(&format!(
        "link add {a_name} netns {} type veth peer name {b_name} netns {}",
        a.name, b.name
    ))?;
    for (namespace, interface) in [(a, a_name), (b, b_name)] {
        // No IPv6 chatter: the frames of a test are the test's own.
        let quiet = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
        let _ = namespace
            .command("sh")
            .args(["-c", &format!("echo 1 > {quiet}")])
            .output();
        ip(&format!(
            "-n {} link set {interface} mtu {mtu} up",
            namespace.name
        ))?;
    }
    Ok(())
}

/// Makes `ports` of a namespace ports of its bridge, which is made with the first.
pub fn bridge(namespace: &Namespace, ports: &[&str], mtu: u32) -> Result<()> {
    let name = &namespace.name;
    if ip(&format!("-n {name} link show bridge0")).is_err() {
        ip(&format!("-n {name} link add bridge0 type bridge"))?;
        ip(&format!("-n {name} link set bridge0 mtu {mtu} up"))?;
    }
    for port in ports {
        ip(&format!("-n {name} link set {port} master bridge0"))?;
    }
    Ok(())
}
