//! Collectives through `castnet switch` over AF_PACKET: groups of each mode, ranks that come late, disagree, hang or die, switches without
//! room, switches and controllers that are killed. The fabric is processes in network namespaces; ranks are threads of this process inside
//! the hosts' namespaces, or `castnet host` where they shall end badly. Results under loss, delay and disorder are those of the simulator.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use castnet_comm::CollectiveMode::{Augmented, Terminated, Translated};
use castnet_comm::{
    Collectives, CommConfig, CommError, CommPath, Communicator, Controllers, Element, Fallback, Operation,
};
use castnet_e2e::Lab;
use castnet_e2e::lab::{self, Plan, STAR, TWO_TIERS};
use castnet_e2e::process::{PATIENCE, Process};
use castnet_port::{Pool, PoolConfig, PortSpec, Sides};
use castnet_rnic::{SoftRnic, SoftRnicConfig};
use castnet_wire::{Pmtu, Qpn};

/// Runs `test` in a lab of `plan`, or says why it cannot.
fn in_lab(plan: Plan<'_>, extra: &[&str], test: impl FnOnce(&mut Lab) -> Result<()>) {
    lab::in_lab("collectives over AF_PACKET", plan, extra, test);
}

/// A rank on a thread inside its host's namespace.
pub(crate) struct Rank {
    pub(crate) comm: Communicator,
    here: Sender<u16>,
    go: Receiver<()>,
}

impl Rank {
    fn connect(config: CommConfig, here: Sender<u16>, go: Receiver<()>) -> Result<Self> {
        let (pool, ip) = (Pool::new(PoolConfig::default()), Lab::ip(&config.host).parse()?);
        // A host may have several ranks.
        let port = "af_packet:eth0,rx=1024,tx=128"
            .parse::<PortSpec>()
            .map_err(|e| anyhow!("{e}"))?
            .for_rnic(ip)
            .open(&pool, Sides::Both)?;
        let rnic = SoftRnic::new(
            port,
            pool,
            SoftRnicConfig {
                first_qpn: Qpn::new(0x100 + 16 * u32::from(config.rank)),
                ..SoftRnicConfig::new(ip)
            },
        )?;
        Ok(Self {
            comm: Communicator::connect(config, Box::new(rnic))?,
            here,
            go,
        })
    }

    /// Waits until the test has seen all ranks here and lets them go on. Nobody looks after the RNIC meanwhile.
    pub(crate) fn pause(&self) -> Result<()> {
        self.here.send(self.comm.rank()).context("the test has ended")?;
        self.go.recv_timeout(PATIENCE).context("the test did not go on")
    }
}

/// All ranks of a job.
pub(crate) struct Job {
    threads: Vec<JoinHandle<Result<()>>>,
    here: Receiver<u16>,
    go: Vec<Sender<()>>,
}

impl Job {
    /// Starts ranks 0 to `size - 1` at h1 and so on.
    pub(crate) fn start(
        lab: &Lab,
        name: &str,
        size: u16,
        change: impl Fn(&mut CommConfig),
        part: impl Fn(&mut Rank) -> Result<()> + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::start_at(size, lab, name, size, change, part)
    }

    /// The same where there are so many hosts: a further rank is at the first one again, and so on.
    fn start_at(
        hosts: u16,
        lab: &Lab,
        name: &str,
        size: u16,
        change: impl Fn(&mut CommConfig),
        part: impl Fn(&mut Rank) -> Result<()> + Send + Sync + 'static,
    ) -> Result<Self> {
        let (part, (here, arrivals)) = (Arc::new(part), channel());
        let mut job = Self {
            threads: Vec::new(),
            here: arrivals,
            go: Vec::new(),
        };
        for rank in 0..size {
            let host = format!("h{}", rank % hosts + 1);
            let controller = lab
                .socket("controller")
                .parse::<Controllers>()
                .map_err(|e| anyhow!("{e}"))?;
            let mut config = CommConfig::new(controller, name, rank, size, &host);
            config.fallback = Fallback::Forbidden;
            config.pmtu = Pmtu::B4096;
            change(&mut config);
            let (here, part, (go, gone)) = (here.clone(), part.clone(), channel());
            job.go.push(go);
            let run = move || {
                let number = config.rank;
                let mut rank = Rank::connect(config, here, gone)?;
                // The others wait for it until the test ends.
                part(&mut rank).inspect_err(|error| eprintln!("rank {number}: {error:#}"))?;
                rank.comm.close()?;
                Ok(())
            };
            job.threads.push(lab.host(&host)?.thread(run)?);
        }
        Ok(job)
    }

    /// Waits until all ranks pause.
    pub(crate) fn paused(&self) -> Result<()> {
        for _ in &self.threads {
            let patience = Instant::now();
            while self.here.recv_timeout(Duration::from_millis(100)).is_err() {
                if patience.elapsed() > PATIENCE || self.threads.iter().any(JoinHandle::is_finished) {
                    bail!("not all ranks came to the pause");
                }
            }
        }
        Ok(())
    }

    /// Lets all ranks go on.
    pub(crate) fn go_on(&self) {
        for go in &self.go {
            // One that has ended says why at its end.
            let _ = go.send(());
        }
    }

    /// Pauses, does `then`, and goes on.
    fn when_paused(&self, then: impl FnOnce() -> Result<()>) -> Result<()> {
        self.paused()?;
        then()?;
        self.go_on();
        Ok(())
    }

    /// Waits for all ranks' ends; the errors of all that failed.
    pub(crate) fn finish(self) -> Result<()> {
        let mut failed = Vec::new();
        for (rank, thread) in self.threads.into_iter().enumerate() {
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => failed.push(format!("rank {rank}: {error:#}")),
                Err(_) => failed.push(format!("rank {rank} panicked")),
            }
        }
        ensure!(failed.is_empty(), "{}", failed.join("\n"));
        Ok(())
    }
}

/// What a rank contributes as element `index`: small whole numbers, exact in all types here.
pub(crate) fn value(rank: u16, index: usize) -> i32 {
    ((index * 7 + usize::from(rank) * 3) % 11) as i32
}

pub(crate) fn sum(size: u16, index: usize) -> i32 {
    (0..size).map(|rank| value(rank, index)).sum()
}

pub(crate) fn same<T: Element>(got: &[T], what: &str, must: impl Fn(usize) -> T) -> Result<()> {
    for (index, got) in got.iter().enumerate() {
        let must = must(index);
        ensure!(
            *got == must,
            "{what}: element {index} is {got:?}, must be {must:?}"
        );
    }
    Ok(())
}

/// All six collectives of vectors of `bytes`, checked.
fn everything<T: Element>(comm: &mut Communicator, bytes: usize, of: fn(i32) -> T) -> Result<()> {
    let (rank, size, n) = (comm.rank(), comm.size(), bytes / size_of::<T>());
    let what = |which: &str| format!("{which} of {bytes} bytes of {:?} at rank {rank}", T::DATA_TYPE);
    let vector =
        |length: usize, at: &dyn Fn(usize) -> i32| (0..length).map(|i| of(at(i))).collect::<Vec<T>>();
    let mine = || vector(n, &|i| value(rank, i));
    // Another root each time.
    let root = (bytes / 4 % usize::from(size)) as u16;

    let mut data = mine();
    comm.allreduce(&mut data, Operation::Sum)?;
    same(&data, &what("allreduce"), |i| of(sum(size, i)))?;

    let (from, mut to) = (mine(), vector(n, &|_| 77));
    comm.reduce((&from, &mut to), Operation::Sum, root)?;
    same(&to, &what("reduce"), |i| {
        if rank == root { of(sum(size, i)) } else { of(77) }
    })?;

    let mut data = if rank == root { mine() } else { vector(n, &|_| 77) };
    comm.broadcast(&mut data, root)?;
    same(&data, &what("broadcast"), |i| of(value(root, i)))?;

    comm.barrier()?;

    let block = n / usize::from(size);
    let own = usize::from(rank) * block;
    let (from, mut to) = (
        vector(block * usize::from(size), &|i| value(rank, i)),
        vector(block, &|_| 77),
    );
    comm.reduce_scatter((&from, &mut to), Operation::Sum)?;
    same(&to, &what("reduce_scatter"), |i| of(sum(size, own + i)))?;

    let (from, mut to) = (
        vector(block, &|i| value(rank, i)),
        vector(block * usize::from(size), &|_| 77),
    );
    comm.allgather((&from, &mut to))?;
    same(&to, &what("allgather"), |i| {
        of(value((i / block) as u16, i % block))
    })
}

/// All of nothing, one element, a packet and a bit, and many packets: in the network.
fn several_sizes(rank: &mut Rank) -> Result<()> {
    ensure!(
        matches!(rank.comm.path(), CommPath::InNetwork { .. }),
        "{}",
        rank.comm.path()
    );
    for bytes in [0, 4, 1028, 204_796] {
        everything::<f32>(&mut rank.comm, bytes, |v| v as f32)?;
    }
    Ok(())
}

/// Ten ranks at eight hosts, two of which have two.
pub(crate) fn ten_ranks_at_eight_hosts(lab: &Lab) -> Result<()> {
    Job::start_at(8, lab, "ten", 10, |_| (), several_sizes)?.finish()
}

/// A group of an operator has its mode, and half of the slots; ranks take it as it is, or are refused with another one.
fn an_augmented_group(lab: &Lab) -> Result<()> {
    let controller = lab.socket("controller");
    let on = ["--controller", &controller];
    let create = [
        "job",
        "create",
        "hop",
        "--ranks",
        "h1,h2,h3,h4,h5,h6",
        "--mode",
        "augmented",
    ];
    lab.castnet(&[&create[..], &on].concat())?;
    let shown = lab.castnet(&[&["group", "show", "hop"][..], &on].concat())?;
    ensure!(shown.contains("128 slots per switch"), "{shown}");
    let json = lab.castnet_json(&[&["group", "show", "hop"][..], &on].concat())?;
    ensure!(json["mode"] == "augmented", "{json}");
    let run = |rank, more: &[&str]| {
        let args = [
            "--bytes",
            "4K..64K",
            "--verify",
            "--fallback",
            "forbidden",
            "--iters",
            "2",
        ];
        lab.start_rank("allreduce", "hop", rank, 6, &[&args, more].concat())
    };
    let mut other = run(0, &["--mode", "translated"])?;
    ensure!(!other.wait()?.success(), "another mode was accepted");
    ensure!(other.output().contains("--mode: "), "{}", other.output());
    let mut ranks = (0..6).map(|rank| run(rank, &[])).collect::<Result<Vec<_>>>()?;
    ranks.iter_mut().try_for_each(Process::succeed)
}

/// Mode-III at the spine, Mode-I and Mode-II at the leaves; and what cannot be.
fn modes_of_switches(lab: &Lab) -> Result<()> {
    let controller = lab.socket("controller");
    let on = ["--controller", &controller];
    let create = |more: &[&str]| {
        let ranks = ["--ranks", "h1,h2,h3,h4,h5,h6", "--mode", "augmented"];
        lab.castnet(&[&["job", "create", "mixed"][..], &ranks, more, &on].concat())
    };
    for (flags, says) in [
        (
            &["--mode-at", "leaf9=terminated"][..],
            "there is no switch \"leaf9\"",
        ),
        (&["--mode-at", "leaf1=best"][..], "is no mode"),
        (&["--mode-at", "leaf1"][..], "is no SWITCH=MODE"),
        (
            &["--mode-at", "leaf1=terminated", "--loss-policy", "reflect"][..],
            "each switch repairs",
        ),
    ] {
        let refused = create(flags).err().context("it was created")?;
        ensure!(format!("{refused:#}").contains(says), "{flags:?}: {refused:#}");
    }
    create(&["--mode-at", "leaf1=terminated", "--mode-at", "leaf2=translated"])?;
    let shown = lab.castnet(&[&["group", "show", "mixed"][..], &on].concat())?;
    ensure!(shown.contains("leaf1 terminated, leaf2 translated"), "{shown}");
    for collective in ["allreduce", "broadcast", "allgather", "barrier"] {
        let sizes: &[&str] = match collective {
            "barrier" => &[],
            _ => &["--bytes", "4K..64K", "--verify"],
        };
        let more = [sizes, &["--fallback", "forbidden", "--iters", "2"]].concat();
        let run = |rank| lab.start_rank(collective, "mixed", rank, 6, &more);
        let mut ranks = (0..6).map(run).collect::<Result<Vec<_>>>()?;
        ranks.iter_mut().try_for_each(Process::succeed)?;
    }
    Ok(())
}

#[test]
fn groups_of_each_mode_are_created_shown_and_used_over_links_that_lose() {
    let loss = ["--fault", "loss=1%,seed=42"];
    in_lab(TWO_TIERS, &loss, |lab| {
        for mode in [Translated, Augmented, Terminated] {
            let name = format!("job-{mode}");
            Job::start(lab, &name, 6, |config| config.mode = Some(mode), several_sizes)?.finish()?;
        }
        for switch in ["spine", "leaf1", "leaf2"] {
            let drops = lab.castnet(&["drops", "--agent", &lab.socket(switch)])?;
            ensure!(drops.contains("injected"), "{switch} lost nothing:\n{drops}");
        }
        an_augmented_group(lab)?;
        modes_of_switches(lab)
    });
}

/// Groups that a switch has, and the bytes that they take there.
fn at_switch(lab: &Lab, switch: &str) -> Result<Vec<(String, u64)>> {
    let listed = lab.castnet_json(&["group", "list", "--agent", &lab.socket(switch)])?;
    let line = |line: &serde_json::Value| {
        let name = line["group"].as_str().context("a name")?;
        Ok((name.to_owned(), line["memory_bytes"].as_u64().unwrap_or(0)))
    };
    listed.as_array().context("a list")?.iter().map(line).collect()
}

/// Waits until the switch has no group.
fn is_empty(lab: &mut Lab) -> Result<()> {
    lab.wait_for("the switch had no group", |lab| {
        let left = at_switch(lab, "sw")?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
}

/// The last rank's process starts when the group has long been waiting for it, and the controller says so.
fn a_rank_starts_late(lab: &Lab) -> Result<()> {
    let args = [
        "--bytes",
        "4K",
        "--verify",
        "--fallback",
        "forbidden",
        "--iters",
        "2",
    ];
    let mut ranks = (0..3)
        .map(|rank| lab.start_rank("allreduce", "tardy", rank, 4, &args))
        .collect::<Result<Vec<_>>>()?;
    let controller = lab.socket("controller");
    ranks[0].wait_until("the missing rank was named", |_| {
        lab.castnet(&["group", "show", "tardy", "--controller", &controller])
            .is_ok_and(|shown| shown.contains("gathering: waits for rank 3"))
    })?;
    ranks.push(lab.start_rank("allreduce", "tardy", 3, 4, &args)?);
    ranks.iter_mut().try_for_each(Process::succeed)
}

/// Who said what is told to all; the group that an operator made is there for those that come again.
fn ranks_disagree(lab: &Lab) -> Result<()> {
    let controller = lab.socket("controller");
    let hosts = "h1,h2,h3,h4,h5,h6";
    let create = [
        "job",
        "create",
        "odd",
        "--ranks",
        hosts,
        "--controller",
        &controller,
    ];
    lab.castnet(&create)?;
    let run = |odd: &'static str| {
        let rank = |rank| {
            let data_type = if rank == 4 { odd } else { "f32" };
            let args = [
                "--bytes",
                "100K",
                "--verify",
                "--fallback",
                "forbidden",
                "--type",
                data_type,
            ];
            lab.start_rank("allreduce", "odd", rank, 6, &args)
        };
        (0..6).map(rank).collect::<Result<Vec<_>>>()
    };
    for (number, mut rank) in run("i32")?.into_iter().enumerate() {
        ensure!(
            !rank.wait()?.success(),
            "rank {number} knows nothing of a conflict"
        );
        let said = rank.output();
        for part in ["rank 4", "h5", "i32", "f32"] {
            ensure!(said.contains(part), "rank {number} does not say {part}:\n{said}");
        }
    }
    run("f32")?.iter_mut().try_for_each(Process::succeed)
}

/// Its host has hung, or a debugger has it: its sockets stay open. When it goes on it must not come between those that have gone on without it.
fn a_rank_is_stopped(lab: &mut Lab) -> Result<()> {
    let args = [
        "--bytes",
        "4K",
        "--window",
        "64",
        "--fallback",
        "forbidden",
        "--iters",
        "100000000",
    ];
    let mut ranks = (0..4)
        .map(|rank| lab.start_rank("allreduce", "stopped", rank, 4, &args))
        .collect::<Result<Vec<_>>>()?;
    let agent = lab.socket("sw");
    ranks[0].wait_until("sums were made", |_| {
        lab.castnet_json(&["group", "show", "stopped", "--agent", &agent])
            .is_ok_and(|group| group["progress"]["finished"].as_u64() > Some(20))
    })?;
    ranks[2].stop()?;
    for rank in [0, 1, 3, 2] {
        if rank == 2 {
            is_empty(lab)?;
            ranks[2].go_on()?;
        }
        ensure!(!ranks[rank].wait()?.success(), "rank {rank} ended well");
        let said = ranks[rank].output();
        ensure!(
            said.contains("rank 2 (h3) is gone"),
            "rank {rank} does not say who is gone:\n{said}"
        );
    }
    Ok(())
}

/// `kill -9`: the others hear of it, and the switch has no group left. Its memory is enough for one group of this window.
fn a_rank_dies(lab: &mut Lab) -> Result<()> {
    let args = |iters| {
        [
            "--bytes",
            "4K",
            "--window",
            "64",
            "--pmtu",
            "4096",
            "--fallback",
            "forbidden",
            "--iters",
            iters,
        ]
    };
    let start = |lab: &Lab, job: &str, iters| {
        (0..4)
            .map(|rank| lab.start_rank("allreduce", job, rank, 4, &args(iters)))
            .collect::<Result<Vec<_>>>()
    };
    let mut ranks = start(lab, "dying", "100000000")?;
    let agent = lab.socket("sw");
    ranks[0].wait_until("sums were made", |_| {
        lab.castnet_json(&["group", "show", "dying", "--agent", &agent])
            .is_ok_and(|group| group["progress"]["finished"].as_u64() > Some(20))
    })?;
    let groups = at_switch(lab, "sw")?;
    ensure!(groups.len() == 1 && groups[0].1 > 512 << 10, "{groups:?}");
    ranks[2].kill();
    for rank in [0, 1, 3] {
        ensure!(!ranks[rank].wait()?.success());
        let said = ranks[rank].output();
        ensure!(said.contains("rank 2 (h3) is gone"), "rank {rank}:\n{said}");
    }
    is_empty(lab)?;
    start(lab, "next", "5")?.iter_mut().try_for_each(Process::succeed)
}

/// The switch's memory is short: `forbidden` refuses, `allowed` says aloud why it takes another way, and is right.
fn there_is_no_room(lab: &mut Lab) -> Result<()> {
    let run = |job: &str, fallback: &'static str| {
        let args = [
            "--bytes",
            "0,4,200K",
            "--verify",
            "--window",
            "1024",
            "--iters",
            "2",
            "--fallback",
            fallback,
        ];
        (0..4)
            .map(|rank| lab.start_rank("allreduce", job, rank, 4, &args))
            .collect::<Result<Vec<_>>>()
    };
    for mut rank in run("no", "forbidden")? {
        ensure!(!rank.wait()?.success());
        let said = rank.output();
        ensure!(said.contains("sw") && said.contains(" bytes"), "{said}");
    }
    let mut ranks = run("ring", "allowed")?;
    ranks.iter_mut().try_for_each(Process::succeed)?;
    for rank in &ranks {
        let said = rank.output();
        ensure!(
            said.contains("between hosts (ring") && said.contains(" bytes"),
            "{said}"
        );
    }
    let right = ranks[0].output().matches("\"wrong\":0").count();
    ensure!(right == 3, "{}", ranks[0].output());
    is_empty(lab)
}

#[test]
fn ranks_that_hang_or_die_are_named_and_their_memory_is_free_again() {
    in_lab(STAR, &["--memory", "1MiB"], |lab| {
        a_rank_is_stopped(lab)?;
        a_rank_dies(lab)?;
        there_is_no_room(lab)
    });
}

/// Calls AllReduce until it does what it must: a group whose switch was restarted fails first, and is joined again.
pub(crate) fn sum_again(rank: &mut Rank, failures_max: u32) -> Result<u32> {
    for failures in 0..=failures_max {
        let mut data: Vec<i32> = (0..5000).map(|i| value(rank.comm.rank(), i)).collect();
        match rank.comm.allreduce(&mut data, Operation::Sum) {
            Ok(()) => {
                let size = rank.comm.size();
                same(&data, "allreduce", |i| sum(size, i))?;
                return Ok(failures);
            }
            Err(CommError::GroupFailed { .. } | CommError::Aborted) if failures < failures_max => {}
            Err(error) => return Err(error.into()),
        }
    }
    bail!("more than {failures_max} failures")
}

/// No rank is at fault, and no switch: the link is named, and ranks that come when it is back find all as before.
fn a_link_goes_down(lab: &Lab) -> Result<()> {
    let start = |iters| {
        let args = ["--bytes", "4K", "--fallback", "forbidden", "--iters", iters];
        (0..6)
            .map(|rank| lab.start_rank("allreduce", "cut", rank, 6, &args))
            .collect::<Result<Vec<_>>>()
    };
    let mut ranks = start("100000000")?;
    let agent = lab.socket("spine");
    ranks[0].wait_until("sums were made", |_| {
        lab.castnet_json(&["group", "show", "cut", "--agent", &agent])
            .is_ok_and(|group| group["progress"]["finished"].as_u64() > Some(20))
    })?;
    lab.set_link("leaf2", "spine", false)?;
    for (number, mut rank) in ranks.into_iter().enumerate() {
        ensure!(!rank.wait()?.success(), "rank {number} summed without a link");
        let said = rank.output();
        ensure!(
            said.contains("link leaf2:3 - spine:1 has been down"),
            "rank {number} says:\n{said}"
        );
    }
    lab.set_link("leaf2", "spine", true)?;
    start("2")?.iter_mut().try_for_each(Process::succeed)
}

/// Control may be gone and come, and a switch that was restarted fails the group by name; it is joined again.
fn control_and_switches_are_killed(lab: &mut Lab) -> Result<()> {
    let part = |rank: &mut Rank| {
        sum_again(rank, 0)?;
        rank.pause()?; // to show the tree, and to kill the controller
        sum_again(rank, 0)?;
        rank.pause()?; // to restart the spine
        sum_again(rank, 2)?;
        rank.pause()?; // to restart a leaf
        sum_again(rank, 2)?;
        Ok(())
    };
    let job = Job::start(lab, "lasting", 6, |_| {}, part)?;
    let controller = lab.socket("controller");
    let show = |lab: &Lab| lab.castnet(&["group", "show", "lasting", "--controller", &controller]);
    job.paused()?;
    let shown = show(lab)?;
    for line in [
        "Collective group lasting, active",
        "[spine] ",
        "├─ [leaf1] ",
        "│  ├─ rank 0: h1 (10.0.0.1)",
        "│  └─ rank 2: h3 (10.0.0.3)",
        "   └─ rank 5: h6 (10.0.0.6)",
        "Switch leaf2: 1 finished",
    ] {
        ensure!(shown.contains(line), "{line} is not in\n{shown}");
    }
    lab.kill_controller();
    lab.start_controller()?;
    job.go_on();
    job.when_paused(|| lab.restart_switch("spine"))?;
    job.when_paused(|| lab.restart_switch("leaf2"))?;
    job.finish()
}

#[test]
fn ranks_that_come_late_or_disagree_and_links_and_switches_that_are_lost_are_named() {
    in_lab(TWO_TIERS, &[], |lab| {
        a_rank_starts_late(lab)?;
        ranks_disagree(lab)?;
        control_and_switches_are_killed(lab)?;
        a_link_goes_down(lab)
    });
}
