//! Two members of a group whose source may change send at once, without turns: over queue pairs that post messages all the time. The
//! switches serve one after the other, or with the numbers of the group only the one that was first, and name the other one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use castnet_e2e::Lab;
use castnet_e2e::lab::{self, TWO_TIERS};
use castnet_e2e::process::{PATIENCE, Process, castnet};
use castnet_endpoint::{Access, LocalSlice, RecvWr, SendOp, SendWr, Status};
use castnet_member::{Group, MemberConfig};
use castnet_port::PortSpec;
use castnet_rnic::messages::fill;
use castnet_rnic::stream::Flow;
use castnet_rnic::{MemoryRegion, Rnic, SoftRnic, SoftRnicConfig};
use castnet_wire::Qpn;
use serde_json::Value;

const GROUP: &str = "contest";
/// h1 is the source first; h4, at the other leaf, sends as well once it has received some of that.
const MEMBERS: [&str; 4] = ["h1", "h2", "h4", "h5"];
const FIRST: u32 = 1;
const SECOND: u32 = 4;
const SWITCHES: [(&str, u32); 2] = [("leaf1", FIRST), ("leaf2", SECOND)];

const SIZE: u32 = 32 << 10;
const SLOTS: u32 = 64;
const IN_FLIGHT: u32 = 8;
/// What the first one has sent when the other one begins, and what each sends once the conflict was shown.
const HEAD: u32 = 20;
const TAIL: u32 = 40;

/// A message, as its immediate: who sends it, its number there, and whether it is the last one. Its bytes are drawn from that.
fn message(sender: u32, number: u32, is_last: bool) -> u32 {
    sender << 28 | u32::from(is_last) << 27 | number
}

fn sender_of(message: u32) -> u32 {
    message >> 28
}

fn is_last(message: u32) -> bool {
    message >> 27 & 1 == 1
}

/// What all members share.
#[derive(Default)]
struct Contest {
    /// The second one is heard at the end.
    serves_both: bool,
    is_shown: AtomicBool,
    ready: AtomicUsize,
    done: AtomicUsize,
    has_failed: Arc<AtomicBool>,
}

impl Contest {
    fn all(&self, count: &AtomicUsize) -> bool {
        count.load(Ordering::SeqCst) == MEMBERS.len()
    }
}

/// A member's queue pair and its memory: first what it receives, then what it sends.
struct Raw<'a> {
    rnic: &'a mut dyn Rnic,
    qpn: Qpn,
    memory: MemoryRegion,
    me: u32,
    posted: u32,
    completed: u32,
    has_ended: bool,
    received: Vec<u32>,
}

impl Raw<'_> {
    fn post_receive(&mut self, slot: u64) -> Result<()> {
        let local = LocalSlice {
            key: self.memory.key,
            offset: slot * u64::from(SIZE),
            length: SIZE,
        };
        Ok(self.rnic.post_recv(self.qpn, RecvWr { wr_id: slot, local })?)
    }

    /// As many messages as may be in flight. The last one is sent when the conflict was shown, and some more.
    fn post_sends(&mut self, end: &mut Option<u32>, is_shown: bool) -> Result<()> {
        while !self.has_ended && self.posted - self.completed < IN_FLIGHT {
            if is_shown && end.is_none() {
                *end = Some(self.posted + TAIL);
            }
            self.has_ended = *end == Some(self.posted);
            let message = message(self.me, self.posted, self.has_ended);
            let mut bytes = vec![0; SIZE as usize];
            fill(message.into(), &mut bytes);
            let local = LocalSlice {
                key: self.memory.key,
                offset: u64::from((SLOTS + self.posted % IN_FLIGHT) * SIZE),
                length: SIZE,
            };
            self.rnic.write_memory(local.key, local.offset, &bytes)?;
            let wr = SendWr::new(self.posted.into(), SendOp::SendImm(message), local);
            self.rnic.post_send(self.qpn, wr)?;
            self.posted += 1;
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<()> {
        self.rnic.poll_or_wait(Duration::from_millis(10))?;
        while let Some(sent) = self.rnic.poll_send_completion(self.qpn) {
            ensure!(sent.status == Status::Success, "a send: {:?}", sent.status);
            ensure!(sent.wr_id == u64::from(self.completed), "not in order: {sent:?}");
            self.completed += 1;
        }
        while let Some(came) = self.rnic.poll_recv_completion(self.qpn) {
            ensure!(came.status == Status::Success, "a receive: {:?}", came.status);
            let message = came.imm.context("an immediate")?;
            let (mut bytes, mut must) = (vec![0; SIZE as usize], vec![0; SIZE as usize]);
            ensure!(came.byte_len == SIZE, "{message:#x} has {} bytes", came.byte_len);
            let offset = came.wr_id * u64::from(SIZE);
            self.rnic.read_memory(self.memory.key, offset, &mut bytes)?;
            fill(message.into(), &mut must);
            ensure!(bytes == must, "{message:#x} has other bytes than were sent");
            self.received.push(message);
            self.post_receive(came.wr_id)?;
        }
        Ok(())
    }

    fn has_last_of(&self, sender: u32) -> bool {
        let is_it = |message: &u32| sender_of(*message) == sender && is_last(*message);
        sender == self.me || self.received.iter().any(is_it)
    }

    /// Sends if it is one of the two, and receives, until all is there.
    fn run(&mut self, contest: &Contest, flow: &mut dyn FnMut(u64) -> Flow) -> Result<()> {
        (0..SLOTS).try_for_each(|slot| self.post_receive(slot.into()))?;
        contest.ready.fetch_add(1, Ordering::SeqCst);
        let (mut end, mut is_done, begin) = (None, false, Instant::now());
        while !contest.all(&contest.done) {
            if contest.all(&contest.ready) {
                let is_turn = self.me == FIRST || self.me == SECOND && self.received.len() >= HEAD as usize;
                if is_turn {
                    self.post_sends(&mut end, contest.is_shown.load(Ordering::SeqCst))?;
                }
            }
            self.poll()?;
            let is_served = self.me == FIRST || self.me == SECOND && contest.serves_both;
            let has_sent = !is_served || self.has_ended && self.completed == self.posted;
            let hears = self.has_last_of(FIRST) && (!contest.serves_both || self.has_last_of(SECOND));
            if has_sent && hears && !std::mem::replace(&mut is_done, true) {
                contest.done.fetch_add(1, Ordering::SeqCst);
            }
            let progress = self.received.len() + self.completed as usize;
            ensure!(flow(progress as u64) == Flow::Continue, "stopped");
            ensure!(
                begin.elapsed() < PATIENCE,
                "{} posted, {} acknowledged, {} received",
                self.posted,
                self.completed,
                self.received.len()
            );
        }
        Ok(())
    }
}

/// What a member has sent, and what it has received, in this order.
struct Seen {
    sent: u32,
    received: Vec<u32>,
}

fn be_member(host: &str, config: MemberConfig, contest: &Contest) -> Result<Seen> {
    let port: PortSpec = "af_packet:eth0".parse().map_err(|e| anyhow!("{e}"))?;
    let mut rnic = SoftRnic::open(&port, SoftRnicConfig::new(Lab::ip(host).parse()?))?;
    let length = (SIZE * (SLOTS + IN_FLIGHT)) as usize;
    let memory = rnic.register_memory(length, Access::REMOTE_WRITE)?;
    let mut member = castnet_member::region(config, &mut rnic, memory)?.join()?;
    let qpn = member.qpns()[0];
    let (seen, lost) = member.run(|rnic, flow| -> Result<Seen> {
        let mut raw = Raw {
            rnic,
            qpn,
            memory,
            me: host.trim_start_matches('h').parse()?,
            posted: 0,
            completed: 0,
            has_ended: false,
            received: Vec::new(),
        };
        raw.run(contest, flow)?;
        Ok(Seen {
            sent: raw.posted,
            received: raw.received,
        })
    });
    let left = member.leave();
    let seen = lost.map_or(seen, |lost| Err(lost.into()))?;
    left?;
    Ok(seen)
}

type Threads = BTreeMap<&'static str, JoinHandle<Result<Seen>>>;

fn start(lab: &Lab, contest: &Arc<Contest>) -> Result<Threads> {
    let mut threads = Threads::new();
    for host in MEMBERS {
        let group = Group::Named {
            name: GROUP.into(),
            controller: lab.socket("controller").parse().map_err(|e| anyhow!("{e}"))?,
            security: Default::default(),
            wait: PATIENCE,
        };
        let config = MemberConfig {
            interrupt: Some(contest.has_failed.clone()),
            ..MemberConfig::new(host, group)
        };
        let contest = contest.clone();
        let run = move || {
            let seen = be_member(host, config, &contest);
            // The others do not wait for it.
            let seen = seen.inspect_err(|_| contest.has_failed.store(true, Ordering::SeqCst));
            seen.with_context(|| host)
        };
        threads.insert(host, lab.host(host)?.thread(run)?);
    }
    Ok(threads)
}

/// `castnet events` of a switch.
fn watch(lab: &Lab, switch: &str, format: &str) -> Result<Process> {
    let mut command = std::process::Command::new(castnet());
    command.args(["events", "--agent", &lab.socket(switch), "--output", format]);
    Process::start(&format!("{switch}-events-{format}"), lab.folder(), command)
}

/// Watches both leaves, in both formats. Something happens until all show it: what comes then will be shown.
fn watch_all(lab: &Lab) -> Result<Vec<(&'static str, u32, [Process; 2])>> {
    let mut all = Vec::new();
    for (switch, member) in SWITCHES {
        let mut shown = [watch(lab, switch, "table")?, watch(lab, switch, "json")?];
        let host = if switch == "leaf1" { "h3" } else { "h6" };
        let (agent, mut is_up) = (lab.socket(switch), true);
        for process in &mut shown {
            process.wait_until("it showed a link", |process| {
                // One change after the other: the switch tells of each when it has seen it.
                let port = lab.castnet_json(&["port", host, "--agent", &agent]);
                if port.is_ok_and(|port| port[0]["up"] == is_up) {
                    is_up = !is_up;
                    let _ = lab.set_link(switch, host, is_up);
                }
                process.output().contains(host)
            })?;
        }
        lab.set_link(switch, host, true)?;
        all.push((switch, member, shown));
    }
    Ok(all)
}

/// The event, if there is one.
fn conflict(shown: &Process) -> Option<Value> {
    let lines = shown.output();
    let mut lines = lines
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.find(|line| line["kind"] == "sources-compete")
}

/// Waits until a switch has named a member that waits, in both formats. Returns the switch.
fn named(
    watched: &[(&'static str, u32, [Process; 2])],
    contest: &Contest,
    generation: &Value,
) -> Result<&'static str> {
    let begin = Instant::now();
    loop {
        for (switch, member, [text, json]) in watched {
            let line =
                format!("sources-compete: {GROUP}: h{member} wants to send while another member sends");
            let (Some(event), true) = (conflict(json), text.output().contains(&line)) else {
                continue;
            };
            let host = format!("h{member}");
            let fields = [
                ("group", Value::from(GROUP)),
                ("port", Value::from(host.as_str())),
                ("next_hop", Value::from(host.as_str())),
                ("generation", generation.clone()),
                (
                    "message",
                    format!("{host} wants to send while another member sends").into(),
                ),
            ];
            for (name, must) in fields {
                ensure!(event[name] == must, "{switch}: {name} is not {must}: {event}");
            }
            return Ok(switch);
        }
        let has_failed = contest.has_failed.load(Ordering::SeqCst);
        if has_failed || begin.elapsed() > PATIENCE {
            let all = watched.iter().flat_map(|(.., shown)| shown);
            let all: Vec<_> = all.map(Process::output).collect();
            bail!("no switch names a member that waits:\n{}", all.join("---\n"));
        }
        nix::poll::poll(&mut [], 10_u8).ok();
    }
}

fn of_sender(all: &[u32], sender: u32) -> Vec<u32> {
    let its = all
        .iter()
        .copied()
        .filter(|message| sender_of(*message) == sender);
    its.collect()
}

/// Everybody has each message of those who are heard once, whole, and all in one order.
fn check(seen: &BTreeMap<&str, Seen>, serves_both: bool) -> Result<()> {
    let order = &seen["h2"].received;
    ensure!(seen["h5"].received == *order, "h2 and h5 have other orders");
    for (host, sender) in [("h1", FIRST), ("h4", SECOND)] {
        let sent = match sender == FIRST || serves_both {
            true => seen[host].sent,
            false => 0,
        };
        let must: Vec<u32> = (0..sent)
            .map(|number| message(sender, number, number + 1 == sent))
            .collect();
        let other = if host == "h1" { "h4" } else { "h1" };
        ensure!(of_sender(order, sender) == must, "h2 lacks messages of {host}");
        ensure!(seen[other].received == must, "{other} lacks messages of {host}");
    }
    let first = order.iter().take(HEAD as usize);
    ensure!(
        first.copied().all(|message| sender_of(message) == FIRST),
        "h1 was not first"
    );
    Ok(())
}

fn at_once(any_source: &str, serves_both: bool) {
    lab::in_lab("members that compete", TWO_TIERS, &[], |lab| {
        let controller = lab.socket("controller");
        let members = MEMBERS[1..].join(",");
        let create = ["group", "create", GROUP, "--source", "h1", "--members", &members];
        let more = ["--pmtu", "4096", any_source, "--controller", &controller];
        lab.castnet(&[&create[..], &more].concat())?;
        let watched = watch_all(lab)?;
        let contest = Arc::new(Contest {
            serves_both,
            ..Contest::default()
        });
        let threads = start(lab, &contest)?;
        let shown = named(&watched, &contest, &Value::from(1));
        match shown {
            Ok(_) => contest.is_shown.store(true, Ordering::SeqCst),
            Err(_) => contest.has_failed.store(true, Ordering::SeqCst),
        }
        let mut seen = BTreeMap::new();
        let mut failed = Vec::new();
        for (host, thread) in threads {
            match thread.join() {
                Ok(Ok(its)) => drop(seen.insert(host, its)),
                Ok(Err(error)) => failed.push(format!("{error:#}")),
                Err(_) => failed.push(format!("{host} panicked")),
            }
        }
        ensure!(failed.is_empty(), "{}\n{shown:?}", failed.join("\n"));
        let switch = shown?;
        check(&seen, serves_both)?;
        let drops = lab.castnet(&["drops", "--agent", &lab.socket(switch)])?;
        ensure!(drops.contains("not-source"), "{switch}:\n{drops}");
        Ok(())
    });
}

/// Both are served, one after the other.
#[test]
fn members_that_send_at_once_are_named_and_both_arrive_whole_in_one_order() {
    at_once("--any-source", true);
}

/// Nothing of the other one arrives anywhere, and nothing of the first one is lost.
#[test]
fn with_the_numbers_of_the_group_the_source_loses_nothing_to_a_member_that_sends_too() {
    at_once("--any-source=synchronized", false);
}
