//! Cost of a frame over memif, beside a link inside the process and a veth pair of the kernel: nanoseconds of one
//! thread that sends a batch at one end and receives it at the other.
//!
//! `cargo bench -p castnet-port`. The veth pair needs root and `ip`; it is made in a network namespace of this program.

use std::process::Command;
use std::time::{Duration, Instant};

use castnet_port::{BATCH, Batch, BoxPort, MemLink, MemLinkConfig, Pool, PoolConfig, PortSpec, Sides};
use castnet_wire::Nanos;
use nix::sched::{CloneFlags, unshare};

const LENGTHS: [usize; 4] = [64, 256, 1082, 4154];
/// Of each measurement; the best one counts. Shorter than a time slice, so that other threads of the core disturb few.
const LENGTH: Duration = Duration::from_millis(1);
const TURNS: usize = 400;

fn main() {
    let pool = Pool::new(PoolConfig::default());
    let folder = tempfile::tempdir().expect("a folder");
    let open = |text: &str| {
        let spec: PortSpec = text.parse().expect("a port");
        spec.open(&pool, Sides::Both)
    };
    let (near, far) = MemLink::pair(&MemLinkConfig::default());
    let inside = [near, far].map(|end| Box::new(end.open(&pool, Sides::Both)) as BoxPort);
    let socket = folder.path().join("s");
    let memif =
        ["", ",role=client"].map(|role| open(&format!("memif:{}{role}", socket.display())).expect("memif"));
    let mut links = vec![("memory", inside), ("memif", memif)];
    match veth().map(|()| ["veth0", "veth1"].map(|name| open(&format!("af_packet:{name}")))) {
        Ok([Ok(a), Ok(b)]) => links.push(("veth", [a, b])),
        _ => eprintln!("SKIPPED: veth: needs root and ip"),
    }
    print!("{:>8}", "bytes");
    links.iter().for_each(|(name, _)| print!("{name:>10}"));
    println!("   ns per frame, sent and received");
    for length in LENGTHS {
        let mut best = vec![f64::MAX; links.len()];
        for _ in 0..TURNS {
            for ((_, ends), best) in links.iter_mut().zip(&mut best) {
                *best = best.min(measure(ends, &pool, length));
            }
        }
        print!("{length:>8}");
        best.iter().for_each(|ns| print!("{ns:>10.1}"));
        println!();
    }
}

fn veth() -> Result<(), Box<dyn std::error::Error>> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    for line in [
        "link add veth0 mtu 4200 type veth peer name veth1 mtu 4200",
        "link set veth0 up",
        "link set veth1 up",
    ] {
        let ran = Command::new("ip").args(line.split(' ')).status()?;
        ran.success().then_some(()).ok_or("ip")?;
    }
    Ok(())
}

fn measure([a, b]: &mut [BoxPort; 2], pool: &Pool, length: usize) -> f64 {
    let (bytes, mut batch, start) = (vec![0x5A; length], Batch::new(), Instant::now());
    let now = || Nanos(start.elapsed().as_nanos() as u64);
    while !(a.is_up() && b.is_up()) {
        a.poll(now());
        b.poll(now());
    }
    let (mut frames, begin) = (0, Instant::now());
    while begin.elapsed() < LENGTH {
        a.poll(now());
        b.poll(now());
        for _ in 0..BATCH {
            batch.extend(pool.copy_from(&bytes));
        }
        a.send(&mut batch);
        loop {
            b.receive(&mut batch);
            frames += batch.len();
            if batch.is_empty() {
                break;
            }
            batch.clear();
        }
    }
    begin.elapsed().as_nanos() as f64 / frames.max(1) as f64
}
