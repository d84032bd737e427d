//! memif beside another implementation: DPDK's testpmd, which swaps the Ethernet addresses of each frame and returns it.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use castnet_port::{Batch, BoxPort, FrameBuf, Pool, PoolBuf, PoolConfig, Port, PortSpec, Sides};
use castnet_wire::Nanos;

const PATIENCE: Duration = Duration::from_secs(60);
const FRAMES: usize = 3000;
/// Frames on their way at a time.
const WINDOW: usize = 64;

const PROBE_AGAIN: Duration = Duration::from_millis(20);
/// Shorter than all other frames.
const PROBE: [u8; 59] = [0; 59];

struct Testpmd(Child);

impl Testpmd {
    /// A client of DPDK 22.11 does not clear the flag of a chain when it uses a slot again, so its buffers hold whole frames.
    fn start(folder: &Path, role: &str) -> Self {
        let device = format!(
            "--vdev=net_memif0,role={role},socket={},socket-abstract=no,secret=a-secret,id=5,bsize=4352",
            folder.join("s").display()
        );
        let memory = [
            "--no-huge",
            "--no-shconf",
            "-m",
            "128",
            "--no-pci",
            "--no-telemetry",
        ];
        let ports = [
            "--forward-mode=macswap",
            "--auto-start",
            "--total-num-mbufs=8192",
            "--no-mlockall",
            "--stats-period=1000000",
        ];
        let child = Command::new("dpdk-testpmd")
            .args(memory)
            .args(["--lcores=0@0,1@0", &device, "--"])
            .args(ports)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        // Without a word to us, as `kill -9`.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct End {
    port: BoxPort,
    pool: Pool,
    start: Instant,
}

impl End {
    fn open(folder: &Path, options: &str) -> Self {
        let pool = Pool::new(PoolConfig::default());
        let text = format!(
            "memif:{},id=5,secret=a-secret{options}",
            folder.join("s").display()
        );
        let spec: PortSpec = text.parse().unwrap();
        Self {
            port: spec.open(&pool, Sides::Both).unwrap(),
            pool,
            start: Instant::now(),
        }
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut BoxPort) -> bool) {
        let start = Instant::now();
        while !done(&mut self.port) {
            assert!(start.elapsed() < PATIENCE, "{what}: {:?}", self.port.stats());
            self.port.poll(Nanos(self.start.elapsed().as_nanos() as u64));
            std::thread::yield_now();
        }
    }

    /// A DPDK client lends buffers when it first asks for frames, some time after its link is up. Probes are few: testpmd drops what
    /// it cannot return at once, and frames behind a full ring of probes would be lost there.
    fn probe(&mut self) {
        let (pool, mut batch) = (self.pool.clone(), Batch::new());
        let mut last: Option<Instant> = None;
        self.until("testpmd returns nothing", |port| {
            if last.is_none_or(|at| at.elapsed() > PROBE_AGAIN) {
                last = Some(Instant::now());
                batch.push(pool.copy_from(&PROBE).unwrap());
                port.send(&mut batch);
            }
            port.receive(&mut batch);
            let any = !batch.is_empty();
            batch.clear();
            any
        });
    }

    /// Sends frames of all lengths and gets each back, in order.
    fn exchange(&mut self, longest: usize) {
        let before = self.port.stats().drops.total();
        let frame = |i: usize| {
            let length = 60 + i * 37 % (longest - 59);
            let mut frame: Vec<u8> = (0..length).map(|at| (at * 7 + i) as u8).collect();
            frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
            frame
        };
        let mut batch: Batch<PoolBuf> = Batch::new();
        for first in (0..FRAMES).step_by(WINDOW) {
            for i in first..FRAMES.min(first + WINDOW) {
                batch.push(self.pool.copy_from(&frame(i)).unwrap());
                if batch.is_full() {
                    self.port.send(&mut batch);
                }
            }
            self.port.send(&mut batch);
            let mut next = first;
            self.until("a frame is missing", |port| {
                port.receive(&mut batch);
                for got in batch.drain(..).filter(|f| f.length() != PROBE.len()) {
                    let mut expected = frame(next);
                    expected[..12].rotate_left(6);
                    let got = got.to_vec();
                    let at = got.iter().zip(&expected).position(|(a, b)| a != b);
                    assert!(
                        got == expected,
                        "frame {next}: {} of {} bytes, differs at {at:?}",
                        got.len(),
                        expected.len()
                    );
                    next += 1;
                }
                next == FRAMES.min(first + WINDOW)
            });
        }
        assert_eq!(self.port.stats().drops.total(), before);
    }
}

#[test]
fn frames_come_back_from_testpmd_in_both_roles_and_after_it_was_killed() {
    if Command::new("dpdk-testpmd")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_err()
    {
        castnet_wrap_up::skip("memif with testpmd", "needs dpdk-testpmd (package dpdk-dev)");
        return;
    }
    for (role, options) in [("client", ""), ("server", ",role=client,buffer=2048")] {
        let folder = tempfile::tempdir().unwrap();
        let mut end = End::open(folder.path(), options);
        for _ in 0..2 {
            // Of a server that was killed: DPDK does not take the place of its own socket.
            if role == "server" {
                let _ = std::fs::remove_file(folder.path().join("s"));
            }
            let testpmd = Testpmd::start(folder.path(), role);
            end.until("testpmd is there", |port| port.is_up());
            // Above 2048 bytes, a frame takes several of this client's buffers.
            end.probe();
            end.exchange(1514);
            end.exchange(4000);
            drop(testpmd);
            end.until("testpmd is gone", |port| !port.is_up());
        }
    }
}
