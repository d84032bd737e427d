//! `castnet switch` with two memif ports, and their other ends in a second process over DPDK: plain frames and a group's
//! data and feedback cross between the two, in ordinary memory and in hugepages. The ports of the switch are DPDK's, or
//! Castnet's own in either role. DPDK starts once in a process, so each of these is
//! a pair of processes of its own, and this program plays the second one when it is told so.

fn main() {
    #[cfg(feature = "dpdk")]
    dpdk::main();
    #[cfg(not(feature = "dpdk"))]
    castnet_wrap_up::skip(
        "DPDK devices",
        "built without the feature dpdk, which needs libdpdk-dev",
    );
}

#[cfg(feature = "dpdk")]
mod dpdk {
    use std::collections::VecDeque;
    use std::fs;
    use std::path::Path;
    use std::process::Command;
    use std::time::Instant;

    use anyhow::{Context, Result, bail, ensure};
    use castnet_dpdk::{Config, DpdkMemory, Hugepages, Mbuf, Runtime};
    use castnet_dpdk_tests::PATIENCE;
    use castnet_dpdk_tests::frames::{ack, data, host_ip, host_mac, mcst, plain};
    use castnet_dpdk_tests::program::{Running, binary};
    use castnet_e2e::net::skip;
    use castnet_e2e::process::Process;
    use castnet_port::{Batch, Memory, MemoryPort, PoolConfig, Port, PortSpec, Sides};
    use castnet_wire::{MacAddr, Parsed, Psn, RoceHeader, Syndrome, icrc, parse_frame};

    /// Tells this program to be the second process, and in which folder.
    const FOLDER: &str = "CASTNET_MEMIF_FOLDER";
    const HUGEPAGES: &str = "CASTNET_MEMIF_HUGEPAGES";
    /// The role of the second process.
    const ROLE: &str = "CASTNET_MEMIF_ROLE";
    /// The file that tells the second process that the switch sees both links.
    const GO: &str = "go";
    const HOSTS: [&str; 2] = ["a", "b"];
    /// MiB of hugepages that both processes together need.
    const NEEDED: usize = 320;

    pub(super) fn main() {
        if let Some(folder) = std::env::var_os(FOLDER) {
            let hugepages = match std::env::var(HUGEPAGES).as_deref() {
                Ok("yes") => Hugepages::Yes,
                _ => Hugepages::No,
            };
            let role = std::env::var(ROLE).unwrap_or_default();
            if let Err(error) = peer(Path::new(&folder), hugepages, &role) {
                eprintln!("{error:#}");
                std::process::exit(1);
            }
            return;
        }
        let binary = binary().expect("castnet with the feature dpdk");
        // A second worker takes from the second port, has a ring to hand frames over by, and sends through the first.
        for workers in [1, 2] {
            pair(&binary, Ports::Dpdk, "no", workers).expect("a pair in ordinary memory");
        }
        println!("test a_memif_pair_in_ordinary_memory ... ok");
        for (ports, workers) in [
            (Ports::Server, 1),
            (Ports::Server, 2),
            (Ports::Client, 1),
            (Ports::Client, 2),
        ] {
            pair(&binary, ports, "no", workers).expect("a pair of Castnet's own port and DPDK's");
        }
        println!("test castnets_own_memif_ports_and_dpdks_in_both_roles ... ok");
        match Pages::reserve() {
            Ok(_pages) => {
                pair(&binary, Ports::Dpdk, "yes", 2).expect("a pair in hugepages");
                println!("test a_memif_pair_in_hugepages ... ok");
            }
            Err(why) => skip("memif in hugepages", &format!("{why:#}")),
        }
    }

    /// Hugepages that this test has reserved; given back on drop.
    struct Pages {
        before: Option<String>,
    }

    const PAGES: &str = "/proc/sys/vm/nr_hugepages";
    const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

    impl Pages {
        fn reserve() -> Result<Self> {
            let free = || -> Result<usize> {
                let text = fs::read_to_string(FREE).context("no hugepages of 2 MiB in this kernel")?;
                Ok(2 * text.trim().parse::<usize>()?)
            };
            if free()? >= NEEDED {
                return Ok(Self { before: None });
            }
            let before = fs::read_to_string(PAGES)?;
            let more = before.trim().parse::<usize>()? + NEEDED / 2;
            fs::write(PAGES, more.to_string()).context("hugepages can be reserved by root alone")?;
            let pages = Self { before: Some(before) };
            ensure!(
                free()? >= NEEDED,
                "the kernel has no {NEEDED} MiB of hugepages to give"
            );
            Ok(pages)
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            if let Some(before) = &self.before {
                let _ = fs::write(PAGES, before.trim());
            }
        }
    }

    /// Group 0 from `a` to `b`, as a rule file.
    fn rules() -> String {
        let mut rules = format!(
            "[[groups]]\nname = \"g0\"\nmcst_id = \"{}\"\npmtu = 4096\nstart_psn = 0\nsource = 0\n",
            mcst(0).0
        );
        for (n, name) in HOSTS.iter().enumerate() {
            let (ip, mac, qpn) = (host_ip(n), host_mac(n), 0x100 + n);
            rules += &format!(
                "[[groups.endpoints]]\nport = {n}\nhost = {{ name = \"{name}\", ip = \"{ip}\", qpn = {qpn}, mac = \"{mac}\" }}\n"
            );
        }
        rules
    }

    /// The ports of the switch.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Ports {
        /// DPDK's, as servers.
        Dpdk,
        /// Castnet's own, by their role.
        Server,
        Client,
    }

    impl Ports {
        fn spec(self, n: usize, socket: &Path) -> String {
            let socket = socket.display();
            match self {
                Self::Dpdk => {
                    format!("dpdk:net_memif{n},role=server,socket={socket},socket-abstract=no,bsize=9216")
                }
                Self::Server => format!("memif:{socket},mtu=9000"),
                Self::Client => format!("memif:{socket},role=client,mtu=9000,buffer=9216"),
            }
        }

        fn role_of_peer(self) -> &'static str {
            match self {
                Self::Dpdk | Self::Server => "client",
                Self::Client => "server",
            }
        }
    }

    fn pair(binary: &Path, ports: Ports, hugepages: &str, workers: usize) -> Result<()> {
        let folder = tempfile::tempdir()?;
        let folder = folder.path();
        // Another test may build the same file with other features meanwhile.
        let own = folder.join("castnet");
        fs::copy(binary, &own)?;
        let (file, ready) = (folder.join("rules.toml"), folder.join("ready"));
        fs::write(&file, rules())?;
        let agent = format!("unix:{}", folder.join("sw.sock").display());
        let mut command = Command::new(&own);
        command.args(["switch", "--name", "sw", "--listen", &agent, "--lldp", "0s"]);
        command.args(["--hugepages", hugepages]);
        command.args(vec!["--worker=any"; workers]);
        command.arg("--rules").arg(&file).arg("--ready-file").arg(&ready);
        for (n, name) in HOSTS.iter().enumerate() {
            let socket = folder.join(format!("{name}.sock"));
            command.args(["--port", &format!("{name}={}", ports.spec(n, &socket))]);
        }
        let mut switch = Running::start("sw", folder, command)?;
        let said = switch.said();
        switch.wait_until(|| ready.exists()).with_context(&said)?;

        let mut command = Command::new(std::env::current_exe()?);
        command.env(FOLDER, folder).env(HUGEPAGES, hugepages);
        command.env(ROLE, ports.role_of_peer());
        let mut peer = Process::start("peer", folder, command)?;
        let rows = || -> Result<Vec<serde_json::Value>> {
            let asked = Command::new(&own)
                .args(["port", "--agent", &agent, "--output", "json"])
                .output()?;
            let ports: serde_json::Value = serde_json::from_slice(&asked.stdout)
                .with_context(|| String::from_utf8_lossy(&asked.stderr).into_owned())?;
            let rows = ports.as_array().or_else(|| ports["ports"].as_array());
            rows.cloned().with_context(|| format!("no rows: {ports}"))
        };
        // The switch looks after its links at times; nothing is flooded to one that it thinks is down.
        let start = Instant::now();
        while !rows()?.iter().all(|row| row["up"] == true) {
            ensure!(
                start.elapsed() < PATIENCE,
                "the links do not come up: {}",
                peer.output()
            );
        }
        fs::write(folder.join(GO), "")?;
        peer.succeed()
            .with_context(|| format!("the switch says: {}{:?}", said(), rows()))?;

        let rows = rows()?;
        ensure!(rows.len() == 2, "{rows:?}");
        for (n, row) in rows.iter().enumerate() {
            ensure!(row["mtu"] == 9000 && row["name"] == HOSTS[n], "{row}");
            // Plain frames, and data from one, ACKs from the other.
            ensure!(row["rx_frames"].as_u64() == Some((PLAIN + DATA) as u64), "{row}");
            ensure!(
                row["tx_full"] == 0 && row["rx_missed"] == 0 && row["dropped"] == 0,
                "{row}"
            );
        }
        switch.stop()
    }

    /// Plain frames in each direction, and packets of the group.
    const PLAIN: usize = 1000;
    const DATA: usize = 1000;
    /// Frames on their way at a time.
    const WINDOW: usize = 64;

    /// A host: one end of a memif link.
    struct Host {
        port: MemoryPort<DpdkMemory>,
        memory: DpdkMemory,
        got: VecDeque<Vec<u8>>,
    }

    impl Host {
        fn open(memory: &DpdkMemory, spec: &PortSpec) -> Result<Self> {
            Ok(Self {
                port: memory.open(spec, Sides::Both, 0)?,
                memory: memory.clone(),
                got: VecDeque::new(),
            })
        }

        fn send(&mut self, frames: impl Iterator<Item = Vec<u8>>) -> Result<()> {
            let mut batch = Batch::<Mbuf>::new();
            for frame in frames {
                batch.push(self.memory.copy_from(&frame).context("a buffer")?);
                if batch.is_full() {
                    self.port.send(&mut batch);
                }
            }
            self.port.send(&mut batch);
            let stats = self.port.stats();
            ensure!(stats.drops.total() == 0, "{stats:?}");
            Ok(())
        }

        fn receive(&mut self) -> Result<Vec<u8>> {
            let start = Instant::now();
            loop {
                if let Some(frame) = self.got.pop_front() {
                    return Ok(frame);
                }
                ensure!(
                    start.elapsed() < PATIENCE,
                    "no frame comes; {:?}",
                    self.port.stats()
                );
                let mut batch = Batch::new();
                self.port.receive(&mut batch);
                if batch.is_empty() {
                    std::thread::yield_now();
                }
                self.got.extend(batch.iter().map(Mbuf::to_vec));
            }
        }
    }

    fn spec(folder: &Path, n: usize, role: &str) -> Result<PortSpec> {
        let socket = folder.join(format!("{}.sock", HOSTS[n]));
        let text = format!(
            "dpdk:net_memif{n},role={role},socket={},socket-abstract=no,bsize=9216",
            socket.display()
        );
        Ok(text.parse()?)
    }

    fn peer(folder: &Path, hugepages: Hugepages, role: &str) -> Result<()> {
        let specs = [spec(folder, 0, role)?, spec(folder, 1, role)?];
        let runtime = Runtime::start(&Config {
            threads: 1,
            pool: PoolConfig::default(),
            hand_over: 0,
            hugepages,
            devices: specs.iter().filter_map(|s| s.dpdk().cloned()).collect(),
        })?;
        ensure!(
            runtime.hugepages() == (hugepages == Hugepages::Yes),
            "other memory than asked for"
        );
        let memory = runtime.memory()?;
        let mut a = Host::open(&memory, &specs[0])?;
        let mut b = Host::open(&memory, &specs[1])?;
        let start = Instant::now();
        while !(a.port.is_up() && b.port.is_up() && folder.join(GO).exists()) {
            ensure!(
                start.elapsed() < PATIENCE,
                "the links do not come up, or the switch does not see it"
            );
            std::thread::yield_now();
        }

        // A memif client hands out buffers to be filled when it first asks for frames.
        for host in [&mut a, &mut b] {
            let mut none = Batch::new();
            host.port.receive(&mut none);
            ensure!(none.is_empty(), "a frame that nobody sent");
        }

        // The switch learns of both from the first frames, which are broadcast.
        let length = |i: usize| 60 + i * 37 % 8900;
        for n in 0..2 {
            let (from, to) = if n == 0 {
                (&mut a, &mut b)
            } else {
                (&mut b, &mut a)
            };
            let frame = |i: usize| {
                let destination = if i == 0 {
                    MacAddr::BROADCAST
                } else {
                    host_mac(1 - n)
                };
                plain(host_mac(n), destination, length(i), i as u8)
            };
            for first in (0..PLAIN).step_by(WINDOW) {
                let range = first..PLAIN.min(first + WINDOW);
                from.send(range.clone().map(frame))?;
                for i in range {
                    let got = to.receive()?;
                    ensure!(
                        got == frame(i),
                        "frame {i} of {} bytes came as {} others",
                        length(i),
                        got.len()
                    );
                }
            }
        }

        for first in (0..DATA).step_by(WINDOW) {
            let range = first..DATA.min(first + WINDOW);
            a.send(
                range
                    .clone()
                    .map(|psn| data(0, 0, psn as u32, psn * 41 % 4097, false)),
            )?;
            for psn in range.clone() {
                let got = b.receive()?;
                let header = roce(&got)?;
                ensure!(
                    header.bth.psn == Psn::new(psn as u32) && header.bth.dest_qp.value() == 0x101,
                    "{header:?}"
                );
                ensure!(
                    got[..6] == host_mac(1).0 && got[30..34] == host_ip(1).octets(),
                    "not bridged"
                );
                ensure!(
                    icrc::verify_bytes(&got, 14, header.frame_len),
                    "the ICRC of PSN {psn} is wrong"
                );
                let sent = data(0, 0, psn as u32, psn * 41 % 4097, false);
                ensure!(
                    got[54..got.len() - 4] == sent[54..sent.len() - 4],
                    "the payload of PSN {psn}"
                );
            }
            let last = range.end - 1;
            b.send(range.map(|psn| ack(0, 1, psn as u32, Syndrome::Ack)))?;
            loop {
                let header = roce(&a.receive()?)?;
                if header.bth.psn == Psn::new(last as u32) {
                    break;
                }
            }
        }
        Ok(())
    }

    fn roce(frame: &[u8]) -> Result<RoceHeader> {
        match parse_frame(frame, frame.len()) {
            Ok(Parsed::Roce(header)) => Ok(header),
            other => bail!("not RoCEv2: {other:?}"),
        }
    }
}
