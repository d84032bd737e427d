//! [`PortSpec`]: the description of a port before it is opened.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use castnet_pfc::PfcConfig;
use castnet_wire::Nanos;
use castnet_wire::red::RedConfig;

use crate::af_packet::AfPacketSpec;
use crate::dpdk::{self, DpdkSpec};
use crate::faulty::{FaultControl, Faults};
use crate::marking::Marking;
use crate::memif::{self, MemifSpec};
use crate::memory::{MemEnd, MemLink, MemLinkConfig};
use crate::obeying::Obeying;
use crate::pcap::PcapSpec;
use crate::pfc;
use crate::pool::Pool;
use crate::port::{BoxPort, Sides};

/// Error of opening a port, with a hint for the operator.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum OpenError {
    /// The interface does not exist in this network namespace.
    #[error("no interface `{0}` in this network namespace: `ip link` lists those there are")]
    NoSuchInterface(String),
    /// The process has no permission to open raw sockets.
    #[error(
        "no permission to open a raw socket on `{interface}`: needs CAP_NET_RAW; run as root, or `setcap cap_net_raw+ep` the program"
    )]
    NoPermission { interface: String },
    /// The kernel rejected a step of the setup.
    #[error("cannot set up `{interface}` ({step}): {source}; {hint}")]
    SetUp {
        interface: String,
        step: &'static str,
        source: io::Error,
        hint: &'static str,
    },
    /// A file cannot be opened.
    #[error("cannot open `{}`: {source}", .path.display())]
    File { path: PathBuf, source: io::Error },
    /// A file is not a capture of Ethernet frames.
    #[error("`{}` is not a pcap or pcapng file of Ethernet frames: {reason}", .path.display())]
    NotACapture { path: PathBuf, reason: String },
    /// The program or context does not support DPDK devices.
    #[error(
        "`{device}` is a DPDK device, which only a switch built with DPDK can open: install libdpdk-dev, then `cargo build --release -p castnet --features dpdk`"
    )]
    NoDpdk { device: String },
    /// The memory for frames cannot be allocated.
    #[error("no buffers for frames: {0}")]
    Buffers(String),
    /// Error of another backend.
    #[error("cannot open port `{name}`: {reason}")]
    Other { name: String, reason: String },
}

/// A backend outside this crate.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Opens the port for the thread that owns `pool`.
    fn open(&self, pool: &Pool, sides: Sides) -> Result<BoxPort, OpenError>;

    /// The text form of the port.
    fn text(&self) -> String;
}

/// Description of a port. It can be sent to the thread that will use the port. Clones describe the same port.
///
/// The text form (`FromStr`, `Display`) is the kind, a colon, the arguments and the options, separated by commas:
///
/// - `af_packet:eth0`; options `rx=FRAMES`, `tx=FRAMES` (capacities), `promiscuous=no`, `bypass=no` (send through the
///   queueing discipline), `offloads=keep`, `roce=share` (the kernel's stack sees RoCE frames too), `gso=off` (send no
///   super-frames).
/// - `pcap:in.pcap,out.pcapng`; either may be left out, as in `pcap:,out.pcap`; options `timed=yes`, `mtu=BYTES`.
/// - `memory:NAME`: a link inside this process. The first port with this name gets one end, the second port the other.
/// - `dpdk:DEVICE`: a PCI address or a virtual device (`net_memif0`); options `rx=FRAMES`, `tx=FRAMES` (ring sizes),
///   `queues=NUMBER` (to receive from), `mtu=BYTES`, `promiscuous=no`; all others are the driver's own
///   (`dpdk:net_pcap0,rx_pcap=in.pcap,tx_pcap=out.pcap`). Opened by switches that were built with DPDK.
/// - `memif:PATH`: memory shared with another process, over the Unix socket PATH (`@NAME`: an abstract one); options
///   `role=server` or `role=client`, `id=NUMBER`, `secret=TEXT`, `ring=FRAMES`, `buffer=BYTES`, `mtu=BYTES`, `mac=ADDRESS`,
///   `mode=0660`, `group=GROUP`, `uid=USER` (`any`), `seals=unchecked`.
/// - `ecn=on`, for each kind but `dpdk`: marks frames of ECN-capable senders as congested when the send queue is long: with DCQCN's
///   thresholds, or with others as in `ecn=5000:200000:1%` (bytes from which on some frames are marked, bytes beyond which all are, and
///   the share of those marked at that depth).
/// - `pfc=CLASSES` such as `pfc=3` or `pfc=3+4`: these classes are lossless ([`PfcConfig`]); and `pfc.xoff=BYTES`,
///   `pfc.xon=BYTES`, `pfc.headroom=BYTES`, `pfc.speed=MBPS`, `pfc.dscp=DSCP:CLASS+...`, `pfc.watchdog=TIME` or `off`.
/// - Faults, for each kind, in both directions or in one with the prefix `rx.` or `tx.`: `loss=1%` (or
///   `0.01`), `duplicate=`, `reorder=`, `corrupt=`, `delay=50us`, `jitter=1ms`; and `seed=NUMBER`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PortSpec {
    /// One end of a memory link.
    Memory(MemEnd),
    /// Capture files.
    Pcap(PcapSpec),
    /// A network interface.
    AfPacket(AfPacketSpec),
    /// A DPDK device. [`PortSpec::open`] refuses it because its frames live in DPDK's buffers.
    Dpdk(DpdkSpec),
    /// Memory shared with another process.
    Memif(MemifSpec),
    /// A port that marks frames when its send queue is long.
    Marking(Box<PortSpec>, RedConfig),
    /// A port behind a fault injector.
    Faulty(Box<PortSpec>, FaultControl),
    /// A port with flow control. Opened it is that of an RNIC, which only obeys it. A switch takes the configuration out and opens the
    /// port itself ([`PortSpec::split_pfc`]).
    Pfc(Box<PortSpec>, Box<PfcConfig>),
    /// A port of another backend.
    Custom(Arc<dyn Backend>),
}

impl PortSpec {
    /// Opens the port for the thread that owns `pool`. This thread is the only user of the port, or the first one.
    pub fn open(&self, pool: &Pool, sides: Sides) -> Result<BoxPort, OpenError> {
        self.open_queue(pool, sides, 0)
    }

    /// Opens the port for one of several threads. `queue` is the thread's index; 0 is the first that receives. It selects
    /// the part of the fault injector's random stream.
    pub fn open_queue(&self, pool: &Pool, sides: Sides, queue: usize) -> Result<BoxPort, OpenError> {
        Ok(match self {
            Self::Memory(end) => Box::new(end.open(pool, sides)),
            Self::Pcap(spec) => Box::new(spec.open(pool, sides)?),
            Self::AfPacket(spec) => Box::new(spec.open(pool, sides)?),
            Self::Dpdk(spec) => {
                return Err(OpenError::NoDpdk {
                    device: spec.device.clone(),
                });
            }
            Self::Memif(spec) => spec.open(pool, sides)?,
            Self::Marking(inner, config) => {
                let inner = inner.open_queue(pool, sides, queue)?;
                Box::new(Marking::new(inner, *config, queue as u64))
            }
            Self::Faulty(inner, control) => {
                Box::new(control.wrap(inner.open_queue(pool, sides, queue)?, queue))
            }
            Self::Pfc(inner, config) => {
                let inner = inner.open_queue(pool, sides, queue)?;
                Box::new(Obeying::new(inner, (**config).clone()))
            }
            Self::Custom(backend) => backend.open(pool, sides)?,
        })
    }

    /// With the defaults of the port of an RNIC that has this address, also inside a port that marks or has faults.
    pub fn for_rnic(self, ip: Ipv4Addr) -> Self {
        match self {
            Self::AfPacket(spec) => Self::AfPacket(spec.for_rnic()),
            Self::Memif(spec) => Self::Memif(spec.for_rnic(ip)),
            Self::Marking(inner, config) => Self::Marking(Box::new(inner.for_rnic(ip)), config),
            Self::Faulty(inner, control) => Self::Faulty(Box::new(inner.for_rnic(ip)), control),
            Self::Pfc(inner, config) => Self::Pfc(Box::new(inner.for_rnic(ip)), config),
            other => other,
        }
    }

    /// Opens the port without its [interface](Self::interface).
    pub fn set_absent(&mut self) {
        match self {
            Self::AfPacket(spec) => spec.is_absent = true,
            Self::Marking(inner, _) | Self::Faulty(inner, _) | Self::Pfc(inner, _) => inner.set_absent(),
            _ => {}
        }
    }

    /// True if frames pass through an interface of the kernel, which sees them as well.
    pub fn is_of_kernel(&self) -> bool {
        match self {
            Self::Memory(_) | Self::Memif(_) => false,
            Self::Marking(inner, _) | Self::Faulty(inner, _) | Self::Pfc(inner, _) => inner.is_of_kernel(),
            _ => true,
        }
    }

    /// The interface of the kernel that this port takes for itself, also behind a fault injector.
    pub fn interface(&self) -> Option<&str> {
        match self {
            Self::AfPacket(spec) => Some(&spec.interface),
            Self::Marking(inner, _) | Self::Faulty(inner, _) | Self::Pfc(inner, _) => inner.interface(),
            _ => None,
        }
    }

    /// The file that this port writes, also behind a fault injector.
    pub fn output_file(&self) -> Option<&Path> {
        match self {
            Self::Pcap(spec) => spec.output.as_deref(),
            Self::Marking(inner, _) | Self::Faulty(inner, _) | Self::Pfc(inner, _) => inner.output_file(),
            _ => None,
        }
    }

    /// Wraps the port in a fault injector.
    pub fn with_faults(self, control: FaultControl) -> Self {
        Self::Faulty(Box::new(self), control)
    }

    /// The number of threads that receive from the port.
    pub fn receivers(&self) -> usize {
        self.dpdk().map_or(1, |spec| spec.queues)
    }

    /// The DPDK device of this port, also behind a fault injector.
    pub fn dpdk(&self) -> Option<&DpdkSpec> {
        match self {
            Self::Dpdk(spec) => Some(spec),
            Self::Faulty(inner, _) | Self::Pfc(inner, _) => inner.dpdk(),
            _ => None,
        }
    }

    /// The control of the port's fault injector, if it has one.
    pub fn faults(&self) -> Option<&FaultControl> {
        match self {
            Self::Faulty(_, control) => Some(control),
            Self::Pfc(inner, _) => inner.faults(),
            _ => None,
        }
    }

    /// The port itself, and its flow control.
    pub fn split_pfc(self) -> (Self, Option<PfcConfig>) {
        match self {
            Self::Pfc(inner, config) => (*inner, Some(*config)),
            other => (other, None),
        }
    }
}

macro_rules! from_kinds {
    ($($kind:ty => $variant:ident),*) => {
        $(impl From<$kind> for PortSpec {
            fn from(kind: $kind) -> Self {
                Self::$variant(kind)
            }
        })*
    };
}

from_kinds!(MemEnd => Memory, AfPacketSpec => AfPacket, DpdkSpec => Dpdk, MemifSpec => Memif, PcapSpec => Pcap);

impl fmt::Display for PortSpec {
    /// Writes the kind and the arguments. Of the options only the thresholds of marking and the seed are written, because faults can change.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = |p: &Option<PathBuf>| p.as_ref().map(|p| p.display().to_string()).unwrap_or_default();
        match self {
            Self::Memory(end) => write!(f, "memory:{}", end.name()),
            Self::Pcap(spec) => write!(f, "pcap:{},{}", path(&spec.input), path(&spec.output)),
            Self::AfPacket(spec) => write!(f, "af_packet:{}", spec.interface),
            Self::Dpdk(spec) => write!(f, "dpdk:{}", spec.devargs()),
            Self::Memif(spec) => write!(f, "memif:{spec}"),
            Self::Marking(inner, config) => {
                let percent = f64::from(config.most_ppm) * 100.0 / f64::from(RedConfig::PPM);
                write!(
                    f,
                    "{inner},ecn={}:{}:{percent}%",
                    config.least_bytes, config.most_bytes
                )
            }
            Self::Faulty(inner, control) => write!(f, "{inner},seed={}", control.seed()),
            Self::Pfc(inner, config) => write!(f, "{inner},{config}"),
            Self::Custom(backend) => f.write_str(&backend.text()),
        }
    }
}

/// A text that does not describe a port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a port: {reason}")]
pub struct BadPortSpec {
    /// The text.
    pub text: String,
    /// The reason.
    pub reason: String,
}

impl FromStr for PortSpec {
    type Err = BadPortSpec;

    fn from_str(text: &str) -> Result<Self, BadPortSpec> {
        parse(text).map_err(|reason| BadPortSpec {
            text: text.to_owned(),
            reason,
        })
    }
}

const KINDS: &str = "af_packet:INTERFACE, pcap:IN,OUT, dpdk:DEVICE, memif:PATH or memory:NAME";

fn parse(text: &str) -> Result<PortSpec, String> {
    let (kind, rest) = text.split_once(':').ok_or_else(|| format!("write {KINDS}"))?;
    let mut options = Options::default();
    let mut plain = Vec::new();
    for part in rest.split(',') {
        match part.split_once('=') {
            None if options.0.is_empty() => plain.push(part),
            None => return Err(format!("`{part}` comes after an option: options go last")),
            Some((key, value)) => options.0.push((key, value)),
        }
    }
    let control = faults(&mut options)?;
    let what = "on, or KMIN:KMAX:PMAX such as 5000:200000:1%: bytes, KMIN not above KMAX, and a share";
    let marking = options.take("ecn", what, thresholds)?;
    let pfc = pfc::read(&mut options)?;
    let mut spec = match kind {
        "af_packet" => PortSpec::AfPacket(af_packet(&plain, &mut options)?),
        "pcap" => PortSpec::Pcap(pcap(&plain, &mut options)?),
        "dpdk" => PortSpec::Dpdk(dpdk(&plain, &mut options)?),
        "memif" => PortSpec::Memif(memif::parse(&plain, &mut options)?),
        "memory" => PortSpec::Memory(memory(&plain)?),
        _ => return Err(format!("unknown kind `{kind}`: write {KINDS}")),
    };
    if let Some(config) = marking {
        if kind == "dpdk" {
            return Err("`ecn`: DPDK does not report the depth of send queues".into());
        }
        spec = PortSpec::Marking(Box::new(spec), config);
    }
    if let Some(control) = control {
        spec = spec.with_faults(control);
    }
    if let Some(config) = pfc {
        spec = PortSpec::Pfc(Box::new(spec), Box::new(config));
    }
    match options.0.first() {
        Some((key, _)) => Err(format!("{kind} has no option `{key}`")),
        None => Ok(spec),
    }
}

fn af_packet(plain: &[&str], options: &mut Options<'_>) -> Result<AfPacketSpec, String> {
    let [interface] = plain else {
        return Err("write af_packet:INTERFACE".into());
    };
    // The kernel's limit: IFNAMSIZ minus the terminating zero.
    if interface.is_empty() || interface.len() > 15 || interface.contains(['/', ' ']) {
        return Err(format!("`{interface}` cannot be an interface's name"));
    }
    let mut spec = AfPacketSpec::new(*interface);
    spec.rx_frames = options.number("rx", "a number of frames", 1..=1 << 20)?;
    spec.tx_frames = options.number("tx", "a number of frames", 1..=1 << 20)?;
    options.yes_or_no("promiscuous", &mut spec.promiscuous)?;
    options.yes_or_no("bypass", &mut spec.qdisc_bypass)?;
    let word = |word| move |value: &str| (value == word).then_some(true);
    options.set("offloads", "keep", word("keep"), &mut spec.keep_offloads)?;
    options.set("roce", "share", word("share"), &mut spec.share_roce)?;
    let switch = |value: &str| match value {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    };
    options.set("gso", "on or off", switch, &mut spec.segmentation)?;
    Ok(spec)
}

fn pcap(plain: &[&str], options: &mut Options<'_>) -> Result<PcapSpec, String> {
    let path = |p: &&str| Some(PathBuf::from(p)).filter(|_| !p.is_empty());
    let (input, output) = match plain {
        [input] => (path(input), None),
        [input, output] => (path(input), path(output)),
        _ => return Err("write pcap:IN,OUT".into()),
    };
    if input.is_none() && output.is_none() {
        return Err("neither a file to read nor one to write: write pcap:IN,OUT".into());
    }
    let mut spec = PcapSpec::new(input, output);
    options.yes_or_no("timed", &mut spec.timed)?;
    let mtu = |v: &str| v.parse().ok().filter(|mtu| (68..=9198).contains(mtu));
    options.set("mtu", "bytes, from 68 to 9198", mtu, &mut spec.mtu)?;
    Ok(spec)
}

fn dpdk(plain: &[&str], options: &mut Options<'_>) -> Result<DpdkSpec, String> {
    let [device] = plain else {
        return Err("write dpdk:DEVICE,OPTION=VALUE".into());
    };
    if !dpdk::is_device(device) {
        return Err(format!(
            "`{device}` is no DPDK device: write a PCI address (0000:3b:00.0), or a virtual device's driver and number (net_memif0)"
        ));
    }
    let mut spec = DpdkSpec::new(*device, "");
    for (key, frames) in [("rx", &mut spec.rx_frames), ("tx", &mut spec.tx_frames)] {
        // Most NICs need a power of two. DPDK's own limit is 16 bits.
        *frames = options
            .number(key, "a number of frames", 1..=32768)?
            .unwrap_or(*frames);
    }
    spec.queues = options.number("queues", "a number", 1..=64)?.unwrap_or(1);
    spec.mtu = options.number("mtu", "bytes,", 68..=65535)?;
    options.yes_or_no("promiscuous", &mut spec.promiscuous)?;
    // The remaining options belong to the driver, which reports unknown ones.
    let left: Vec<_> = options.0.drain(..).map(|(k, v)| format!("{k}={v}")).collect();
    spec.arguments = left.join(",");
    Ok(spec)
}

/// Links by name. The value is the end that has not been taken yet.
static NAMED: Mutex<BTreeMap<String, Option<MemEnd>>> = Mutex::new(BTreeMap::new());

fn memory(plain: &[&str]) -> Result<MemEnd, String> {
    let name = match plain {
        [name] if !name.is_empty() => *name,
        _ => return Err("write memory:NAME".into()),
    };
    let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
    match named.get_mut(name) {
        None => {
            let (near, far) = MemLink::pair(&MemLinkConfig::between(
                &format!("{name}.0"),
                &format!("{name}.1"),
            ));
            named.insert(name.to_owned(), Some(far));
            Ok(near)
        }
        Some(far) => far
            .take()
            .ok_or_else(|| format!("both ends of the link `{name}` are taken")),
    }
}

fn faults(options: &mut Options<'_>) -> Result<Option<FaultControl>, String> {
    let seed = options.take("seed", "a number", |v| v.parse().ok())?;
    let both = direction(options, "", Faults::NONE)?;
    let (rx, tx) = (direction(options, "rx.", both)?, direction(options, "tx.", both)?);
    if seed.is_none() && (rx, tx) == (Faults::NONE, Faults::NONE) {
        return Ok(None);
    }
    Ok(Some(FaultControl::new(seed.unwrap_or(0)).with(rx, tx)))
}

fn direction(options: &mut Options<'_>, prefix: &str, start: Faults) -> Result<Faults, String> {
    let mut faults = start;
    for (name, field) in [
        ("loss", &mut faults.loss),
        ("duplicate", &mut faults.duplicate),
        ("reorder", &mut faults.reorder),
        ("corrupt", &mut faults.corrupt),
    ] {
        let what = "a probability such as 1% or 0.01";
        options.set(&format!("{prefix}{name}"), what, probability, field)?;
    }
    for (name, field) in [("delay", &mut faults.delay), ("jitter", &mut faults.jitter)] {
        let what = "a time such as 50us or 1ms";
        options.set(&format!("{prefix}{name}"), what, duration, field)?;
    }
    Ok(faults)
}

/// The options of a port's text that were not read yet.
#[derive(Default)]
pub(crate) struct Options<'a>(Vec<(&'a str, &'a str)>);

impl Options<'_> {
    pub(crate) fn take<T>(
        &mut self,
        key: &str,
        what: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let Some(at) = self.0.iter().position(|(k, _)| *k == key) else {
            return Ok(None);
        };
        let (_, value) = self.0.remove(at);
        read(value)
            .map(Some)
            .ok_or_else(|| format!("`{key}={value}`: must be {what}"))
    }

    pub(crate) fn set<T>(
        &mut self,
        key: &str,
        what: &str,
        read: impl Fn(&str) -> Option<T>,
        field: &mut T,
    ) -> Result<(), String> {
        if let Some(value) = self.take(key, what, read)? {
            *field = value;
        }
        Ok(())
    }

    fn yes_or_no(&mut self, key: &str, field: &mut bool) -> Result<(), String> {
        let read = |value: &str| match value {
            "yes" => Some(true),
            "no" => Some(false),
            _ => None,
        };
        self.set(key, "yes or no", read, field)
    }

    /// Parses a number within `range`. `what` describes it in the error.
    pub(crate) fn number(
        &mut self,
        key: &str,
        what: &str,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, String> {
        let what = format!("{what} from {} to {}", range.start(), range.end());
        self.take(key, &what, |v| v.parse().ok().filter(|n| range.contains(n)))
    }
}

fn probability(value: &str) -> Option<f64> {
    let p = match value.strip_suffix('%') {
        Some(percent) => percent.parse::<f64>().ok()? / 100.0,
        None => value.parse().ok()?,
    };
    (0.0..=1.0).contains(&p).then_some(p)
}

/// The second number of bytes is not less than the first.
fn thresholds(value: &str) -> Option<RedConfig> {
    if value == "on" {
        return Some(RedConfig::default());
    }
    let mut parts = value.split(':');
    let config = RedConfig {
        least_bytes: parts.next()?.parse().ok()?,
        most_bytes: parts.next()?.parse().ok()?,
        most_ppm: (probability(parts.next()?)? * f64::from(RedConfig::PPM)).round() as u32,
    };
    (parts.next().is_none() && config.least_bytes <= config.most_bytes).then_some(config)
}

pub(crate) fn duration(value: &str) -> Option<Nanos> {
    let digits = value.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = value[..digits].parse().ok()?;
    let unit = match &value[digits..] {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    number.checked_mul(unit).map(Nanos)
}

/// Checks the text of a port and completes it. A bare interface name is short for `af_packet:INTERFACE`.
///
/// # Errors
/// The text describes no port.
pub fn port_text(spec: &str) -> Result<String, String> {
    // Options may have colons: the colon of a kind is before the first option.
    let head = spec.split(',').next().unwrap_or(spec);
    let whole = if head.contains(':') {
        spec.to_owned()
    } else {
        format!("af_packet:{spec}")
    };
    // A memory link can be parsed only once, when the port is opened: parsing takes its end.
    if !whole.starts_with("memory:") {
        whole.parse::<PortSpec>().map_err(|e| e.to_string())?;
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_parsed() {
        let PortSpec::AfPacket(spec) = "af_packet:eth0,rx=64,tx=32,bypass=no,gso=off".parse().unwrap() else {
            panic!()
        };
        assert_eq!(
            (spec.interface.as_str(), spec.rx_frames, spec.tx_frames),
            ("eth0", Some(64), Some(32))
        );
        assert_eq!(
            (spec.qdisc_bypass, spec.promiscuous, spec.segmentation),
            (false, true, false)
        );

        let PortSpec::Pcap(spec) = "pcap:a.pcap,b.pcapng,timed=yes".parse().unwrap() else {
            panic!()
        };
        assert_eq!(
            (spec.input, spec.output),
            (Some("a.pcap".into()), Some("b.pcapng".into()))
        );
        assert!(spec.timed);

        let text =
            "memif:/run/a.sock,role=client,id=3,secret=s,ring=64,buffer=2048,mtu=9000,mac=02:00:00:00:00:07";
        let text = format!("{text},mode=0660,group=0,uid=any,seals=unchecked,loss=1%");
        let PortSpec::Faulty(inner, _) = text.parse().unwrap() else {
            panic!()
        };
        assert_eq!(inner.to_string(), "memif:/run/a.sock,id=3");
        let PortSpec::Memif(spec) = *inner else { panic!() };
        assert_eq!(
            (
                spec.role(),
                spec.ring,
                spec.buffer_bytes(),
                spec.mtu,
                spec.mode,
                spec.group,
                spec.seals
            ),
            (memif::Role::Client, 64, 2048, 9000, 0o660, Some(0), false)
        );
        assert_eq!(
            (spec.peers, spec.mac),
            (memif::Peers::Any, Some(castnet_wire::MacAddr([2, 0, 0, 0, 0, 7])))
        );

        let text = "dpdk:net_pcap0,rx_pcap=a.pcap,rx=64,mtu=4200,queues=2,infinite_rx=1,loss=1%";
        let spec: PortSpec = text.parse().unwrap();
        let (faults, spec) = (spec.faults().is_some(), spec.dpdk().unwrap().clone());
        assert_eq!(spec.devargs(), "net_pcap0,rx_pcap=a.pcap,infinite_rx=1");
        assert_eq!(
            (spec.rx_frames, spec.tx_frames, spec.queues, spec.mtu, faults),
            (64, 1024, 2, Some(4200), true)
        );
        let spec: PortSpec = "dpdk:0000:3b:00.0".parse().unwrap();
        assert_eq!(spec.to_string(), "dpdk:0000:3b:00.0");
        assert!(spec.dpdk().unwrap().is_pci());
        let refused = spec
            .open(&Pool::new(Default::default()), Sides::Both)
            .err()
            .unwrap();
        assert!(refused.to_string().contains("--features dpdk"), "{refused}");

        let spec: PortSpec = "af_packet:eth0,ecn=on,loss=1%".parse().unwrap();
        assert_eq!(spec.to_string(), "af_packet:eth0,ecn=5000:200000:1%,seed=0");
        let again: PortSpec = "af_packet:eth0,ecn=0:18446744073709551615:0.0025"
            .parse()
            .unwrap();
        assert_eq!(
            again.to_string(),
            "af_packet:eth0,ecn=0:18446744073709551615:0.25%"
        );
        assert!(again.is_of_kernel() && again.dpdk().is_none());

        let text = "pfc=3+4,pfc.xoff=9000,pfc.xon=100,pfc.headroom=7,pfc.speed=400000,pfc.dscp=10:4,pfc.watchdog=5000000ns";
        let spec: PortSpec = format!("af_packet:eth0,loss=1%,{text}").parse().unwrap();
        assert!(spec.faults().is_some() && spec.is_of_kernel());
        assert_eq!(spec.to_string(), format!("af_packet:eth0,seed=0,{text}"));
        let spec: PortSpec = "dpdk:net_null0,pfc=0,pfc.watchdog=off".parse().unwrap();
        let (spec, config) = spec.split_pfc();
        assert_eq!(
            (spec.to_string(), config.unwrap().watchdog),
            ("dpdk:net_null0".into(), None)
        );

        let spec: PortSpec = "memory:spec-test,loss=1%,tx.loss=0.5,rx.delay=50us,seed=7"
            .parse()
            .unwrap();
        let control = spec.faults().unwrap();
        let [rx, tx] = control.faults();
        assert_eq!(
            (control.seed(), tx.loss, rx.delay, tx.delay),
            (7, 0.5, Nanos::from_micros(50), Nanos::ZERO)
        );
        assert!((rx.loss - 0.01).abs() < 1e-9);
        assert!("memory:spec-test".parse::<PortSpec>().is_ok());
        let third = "memory:spec-test".parse::<PortSpec>().unwrap_err();
        assert!(third.to_string().contains("both ends"), "{third}");
    }

    #[test]
    fn errors_name_the_problem() {
        for (text, word) in [
            ("memif:", "`` is no socket"),
            ("memif:@", "`@` is no socket"),
            ("memif:/a,/b", "write memif:PATH"),
            ("memif:/a,role=both", "server or client"),
            ("memif:/a,ring=100", "a power of two from 2 to 16384"),
            (
                "memif:/a,secret=longer-than-24-bytes-of-it",
                "a text of at most 24 bytes",
            ),
            ("memif:/a,mtu=9199", "bytes, from 68 to 9198"),
            ("memif:/a,mac=ff:ff:ff:ff:ff:ff", "a unicast Ethernet address"),
            ("memif:/a,mode=1000", "a mode such as 0660"),
            ("memif:/a,uid=no-such-user", "a user of this machine"),
            ("memif:/a,bsize=2048", "memif has no option `bsize`"),
            ("eth0", "af_packet:INTERFACE"),
            ("ebpf:0", "unknown kind `ebpf`"),
            ("dpdk:0", "no DPDK device"),
            ("dpdk:net_null0,net_null1", "write dpdk:DEVICE"),
            ("dpdk:net_null0,mtu=9", "bytes, from 68 to 65535"),
            ("dpdk:net_null0,queues=0", "a number from 1 to 64"),
            ("af_packet:", "interface's name"),
            ("af_packet:a-name-that-is-too-long", "interface's name"),
            ("af_packet:eth0,eth1", "write af_packet:INTERFACE"),
            ("af_packet:eth0,speed=9", "no option `speed`"),
            ("af_packet:eth0,rx=0", "`rx=0`: must be a number of frames"),
            ("af_packet:eth0,rx=8,eth1", "options go last"),
            ("pcap:", "neither"),
            ("pcap:a,b,c", "write pcap:IN,OUT"),
            ("pcap:a,timed=maybe", "yes or no"),
            ("memory:", "write memory:NAME"),
            ("af_packet:eth0,ecn=yes", "on, or KMIN:KMAX:PMAX"),
            ("af_packet:eth0,ecn=2:1:1%", "on, or KMIN:KMAX:PMAX"),
            ("af_packet:eth0,ecn=1:2:101%", "on, or KMIN:KMAX:PMAX"),
            ("af_packet:eth0,ecn=1:2:1%:3", "on, or KMIN:KMAX:PMAX"),
            ("dpdk:net_null0,ecn=on", "the depth of send queues"),
            ("af_packet:eth0,pfc=8", "`pfc=8`: must be classes from 0 to 7"),
            ("af_packet:eth0,pfc=3+", "classes from 0 to 7"),
            (
                "af_packet:eth0,pfc.speed=1000",
                "`pfc.speed`: needs `pfc=CLASSES`",
            ),
            ("dpdk:net_null0,pfc.xon=1", "`pfc.xon`: needs `pfc=CLASSES`"),
            (
                "af_packet:eth0,pfc=3,pfc.xon=5,pfc.xoff=5",
                "less than pfc.xoff, 5",
            ),
            ("af_packet:eth0,pfc=3,pfc.xoff=0", "bytes from 1 to"),
            ("af_packet:eth0,pfc=3,pfc.dscp=64:3", "DSCPs and their classes"),
            ("af_packet:eth0,pfc=3,pfc.dscp=1:8", "DSCPs and their classes"),
            ("af_packet:eth0,pfc=3,pfc.watchdog=0ms", "or off"),
            ("af_packet:eth0,loss=2", "a probability"),
            ("af_packet:eth0,delay=5", "a time"),
            ("af_packet:eth0,gso=no", "must be on or off"),
            ("af_packet:eth0,delay=99999999999999999999s", "a time"),
        ] {
            let error = text.parse::<PortSpec>().unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
