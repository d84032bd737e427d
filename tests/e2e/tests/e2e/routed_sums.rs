//! A sum over two switches with a router between them, from rule files: ranks of a queue pair each, without CommLib and without a
//! controller.

use std::fmt::Write as _;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use castnet_e2e::lab::{self, ROUTED_LEAVES};
use castnet_e2e::process::PATIENCE;
use castnet_e2e::{Lab, net};
use castnet_port::{Pool, PoolConfig, PortSpec, Sides};
use castnet_rnic::{
    Access, LocalSlice, MemoryRegion, QpOptions, QpRemote, RecvWr, Rnic, SendOp, SendWr, SoftRnic,
    SoftRnicConfig, Status,
};
use castnet_wire::{Call, CallFlags, Control, DataType, Operation, Primitive, Psn, Qpn, Verdict};

const RANKS: usize = 4;
const ELEMENTS: usize = 20_000;
const PMTU: usize = 1024;
/// Bytes of a full message.
const MESSAGE: usize = 16 * PMTU;
const BYTES: usize = 4 * ELEMENTS;

/// What there is to know of a rank: two at each leaf.
struct Place {
    rank: usize,
    leaf: usize,
}

impl Place {
    fn of(rank: usize) -> Self {
        Self { rank, leaf: rank / 2 }
    }

    fn ip(&self) -> String {
        format!("10.20{}.0.{}", 1 + self.leaf, 1 + self.rank)
    }

    fn qpn(&self) -> Qpn {
        Qpn::new(0x21 + self.rank as u32)
    }

    /// Near the wrap.
    fn psns(&self) -> (Psn, Psn) {
        let rank = self.rank as u32;
        (Psn::new(0xFF_FFF0 + rank), Psn::new(0xFF_FFC0 + 16 * rank))
    }
}

fn mcst_id(leaf: usize) -> String {
    format!("10.20{}.0.201", 1 + leaf)
}

/// The rules of a leaf; the first one is the root of the tree.
fn rules(lab: &Lab, leaf: usize) -> Result<String> {
    let (name, other) = (format!("leaf{}", 1 + leaf), 1 - leaf);
    let ranks = [[0, 1], [2, 3]];
    let parent = if leaf == 0 { "" } else { "parent = \"leaf1\"\n" };
    let mut rules = format!(
        "[[groups]]\nkind = \"translated\"\nname = \"sums\"\nmcst_id = \"{}\"\npmtu = {PMTU}\nslots = 256\n{parent}",
        mcst_id(leaf)
    );
    let far = format!(
        "[[groups.endpoints]]\nport = 2\nswitch = {{ name = \"leaf{}\", ip = \"{}\", mac = \"{}\", ranks = {:?} }}\n",
        1 + other,
        mcst_id(other),
        lab.port_mac("rt1", &name)?,
        ranks[other],
    );
    // In the order of the ranks.
    if leaf == 1 {
        rules.push_str(&far);
    }
    for rank in ranks[leaf] {
        let place = Place::of(rank);
        let (sq_psn, rq_psn) = place.psns();
        write!(
            rules,
            "[[groups.endpoints]]\nport = {}\nhost = {{ rank = {rank}, name = \"h{}\", ip = \"{}\", qpn = {}, mac = \"{}\", \
             sq_psn = {sq_psn}, rq_psn = {rq_psn} }}\n",
            rank % 2,
            1 + rank,
            place.ip(),
            place.qpn(),
            lab.mac(&format!("h{}", 1 + rank))?,
        )?;
    }
    if leaf == 0 {
        rules.push_str(&far);
    }
    Ok(rules)
}

/// What a rank contributes.
fn element(rank: usize, index: usize) -> i32 {
    (index as i32).wrapping_mul(0x9E37_79B9_u32 as i32) ^ (rank as i32) << 20
}

fn bytes_of(elements: impl Iterator<Item = i32>) -> Vec<u8> {
    elements.flat_map(i32::to_le_bytes).collect()
}

fn allreduce(elements: usize, sequence: u32, rank: usize) -> [u8; Control::LEN] {
    let call = Call {
        primitive: Primitive::AllReduce,
        root: 0,
        roots: 1,
        operation: Operation::Sum,
        data_type: DataType::I32,
        flags: CallFlags::default(),
        elements: elements as u64,
        packets: (4 * elements).div_ceil(PMTU) as u32,
    };
    let control = Control {
        sequence,
        rank: rank as u16,
        call,
        verdict: Verdict::Agreed,
    };
    let mut bytes = [0; Control::LEN];
    control.emit(&mut bytes);
    bytes
}

/// An AllReduce and a barrier, by one queue pair at `<McstID, QPN 1>`. `through` counts the ranks that have all of it.
fn run(rank: usize, through: &AtomicUsize) -> Result<()> {
    let place = Place::of(rank);
    let pool = Pool::new(PoolConfig::default());
    let port: PortSpec = "af_packet:eth0".parse().map_err(|e| anyhow!("{e}"))?;
    let port = port.open(&pool, Sides::Both)?;
    let mut rnic = SoftRnic::new(port, pool, SoftRnicConfig::new(place.ip().parse()?))?;
    let options = QpOptions {
        qpn: Some(place.qpn()),
        ..QpOptions::default()
    };
    let qpn = rnic.create_qp(&options)?;

    // All that it sends: a control message, the data in messages, the control message of the barrier.
    let data = bytes_of((0..ELEMENTS).map(|i| element(rank, i)));
    let mut sends: Vec<(SendOp, Vec<u8>)> =
        data.chunks(MESSAGE).map(|m| (SendOp::Send, m.to_vec())).collect();
    let control = SendOp::SendImm(Control::IMMEDIATE);
    sends.insert(0, (control, allreduce(ELEMENTS, 0, rank).into()));
    sends.push((control, allreduce(0, 1, rank).into()));
    let outgoing: MemoryRegion = rnic.register_memory(sends.len() * MESSAGE, Access::READ)?;
    let incoming = rnic.register_memory(sends.len() * MESSAGE, Access::LOCAL)?;
    let slice = |region: &MemoryRegion, i: usize, length: usize| LocalSlice {
        key: region.key,
        offset: (i * MESSAGE) as u64,
        length: length as u32,
    };
    for i in 0..sends.len() {
        let local = slice(&incoming, i, MESSAGE);
        rnic.post_recv(
            qpn,
            RecvWr {
                wr_id: i as u64,
                local,
            },
        )?;
    }
    let (sq_psn, rq_psn) = place.psns();
    let remote = QpRemote {
        sq_psn,
        rq_psn,
        timeout: 14,
        ..QpRemote::new(mcst_id(place.leaf).parse()?, Qpn::VIRTUAL)
    };
    rnic.connect_qp(qpn, &remote, PATIENCE)?;
    for (i, (op, bytes)) in sends.iter().enumerate() {
        rnic.write_memory(outgoing.key, (i * MESSAGE) as u64, bytes)?;
        rnic.post_send(qpn, SendWr::new(i as u64, *op, slice(&outgoing, i, bytes.len())))?;
    }

    let (start, mut sent, mut got) = (Instant::now(), 0, Vec::new());
    while sent < sends.len() || got.len() < sends.len() {
        ensure!(
            start.elapsed() < PATIENCE,
            "rank {rank}: {sent} sent, {} came",
            got.len()
        );
        if !rnic.poll(rnic.now())? {
            rnic.wait(Duration::from_millis(10))?;
        }
        while let Some(done) = rnic.poll_send_completion(qpn) {
            ensure!(done.status == Status::Success, "rank {rank}: {done:?}");
            sent += 1;
        }
        while let Some(done) = rnic.poll_recv_completion(qpn) {
            ensure!(done.status == Status::Success, "rank {rank}: {done:?}");
            let mut bytes = vec![0; done.byte_len as usize];
            rnic.read_memory(incoming.key, (got.len() * MESSAGE) as u64, &mut bytes)?;
            got.push(bytes);
        }
    }
    // Others may still ask for what this one has: an acknowledgement may be lost.
    through.fetch_add(1, Ordering::Relaxed);
    while through.load(Ordering::Relaxed) < RANKS && start.elapsed() < PATIENCE {
        if !rnic.poll(rnic.now())? {
            rnic.wait(Duration::from_millis(10))?;
        }
    }
    let sums = |i| (0..RANKS).map(|rank| element(rank, i)).fold(0, i32::wrapping_add);
    let result: Vec<u8> = got[1..got.len() - 1].concat();
    ensure!(
        result.len() == BYTES && result == bytes_of((0..ELEMENTS).map(sums)),
        "rank {rank} has another sum"
    );
    for (bytes, sequence) in [(&got[0], 0), (&got[got.len() - 1], 1)] {
        let control = Control::parse(bytes).map_err(|e| anyhow!("{e}"))?;
        ensure!(
            (control.sequence, control.verdict) == (sequence, Verdict::Agreed),
            "{control:?}"
        );
    }
    Ok(())
}

#[test]
fn ranks_at_two_switches_with_a_router_between_them_get_their_sum() {
    let _turn = lab::turn();
    if net::is_skipped("sums over a router") {
        return;
    }
    let mut lab = Lab::start_with(ROUTED_LEAVES, |lab, switch| {
        let file = lab.folder().join(format!("{switch}.toml"));
        fs::write(&file, rules(lab, usize::from(switch == "leaf2"))?)?;
        let flags = ["--rules", &file.to_string_lossy(), "--fault", "loss=1%,seed=9"];
        Ok(flags.map(String::from).into())
    })
    .expect("the lab starts");
    lab.kill_controller();
    let through = Arc::new(AtomicUsize::new(0));
    let start = |rank: usize| {
        let through = through.clone();
        let host = lab.host(&format!("h{}", 1 + rank))?;
        host.thread(move || run(rank, &through))
    };
    let ranks: Result<Vec<_>> = (0..RANKS).map(start).collect();
    for rank in ranks.expect("threads") {
        if let Err(error) = rank.join().expect("a rank ends") {
            panic!("{error:#}\n{}", lab.logs());
        }
    }
}
