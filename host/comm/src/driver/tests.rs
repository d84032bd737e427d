//! A driver over a software RNIC whose peer plays the switch.

use std::collections::VecDeque;
use std::time::Duration;

use castnet_rnic::conformance::{TwoDevices, software};
use castnet_rnic::{
    LocalSlice, MemoryKey, MemoryRegion, QpOptions, QpRemote, QpState, QueueLimits, RecvWr, SendOp, SendWr,
    Status,
};
use castnet_wire::control::{Control, DataType, Operation};

use super::*;
use crate::buffers::LentBytes;
use crate::machine::{
    Action, ChannelShape, Collective, Content, Event, InNetwork, InNetworkConfig, Place, Waiting,
};

const MTU: usize = 1500;
const BYTES: usize = 200_000;

struct Bench {
    rank: Box<dyn Rnic>,
    switch: Box<dyn Rnic>,
    driver: Driver,
    qpns: [Qpn; 2],
    /// Slots of the switch: half for receives, half for sends.
    slots: MemoryRegion,
    slot_bytes: u32,
    /// Messages that the switch answers at most.
    answers: usize,
    sent: u64,
}

impl Bench {
    fn new(machine: impl Machine + Send + 'static) -> Self {
        let TwoDevices(rank, switch) = software(MTU).expect("RNICs");
        let mut rnics: [Box<dyn Rnic>; 2] = [Box::new(rank), Box::new(switch)];
        let shape = machine.shape();
        let limits = QueueLimits {
            send: shape.send_slots as usize,
            receive: shape.receive_slots as usize,
        };
        let options = QpOptions { limits, qpn: None };
        let qpns = rnics
            .each_mut()
            .map(|rnic| rnic.create_qp(&options).expect("a QP"));
        let hosts = rnics.each_ref().map(|rnic| rnic.attributes().clone());
        for (at, rnic) in rnics.iter_mut().enumerate() {
            let remote = QpRemote {
                mac: Some(hosts[1 - at].mac),
                ..QpRemote::new(hosts[1 - at].ip, qpns[1 - at])
            };
            rnic.connect_qp(qpns[at], &remote, Duration::ZERO)
                .expect("connected");
        }
        let [mut rank, mut switch] = rnics;
        let slots = 2 * shape.send_slots as usize * shape.slot_bytes as usize;
        let slots = switch.register_memory(slots, Access::LOCAL).expect("slots");
        let driver = Driver::new(&mut *rank, Box::new(machine), vec![qpns[0]]).expect("a driver");
        let mut bench = Self {
            rank,
            switch,
            driver,
            qpns,
            slots,
            slot_bytes: shape.slot_bytes,
            answers: usize::MAX,
            sent: 0,
        };
        (0..shape.send_slots).for_each(|slot| bench.expect_message(slot.into()));
        bench
    }

    fn expect_message(&mut self, slot: u64) {
        let local = self.slot(slot, self.slot_bytes);
        let wr = RecvWr { wr_id: slot, local };
        self.switch.post_recv(self.qpns[1], wr).expect("posted");
    }

    fn slot(&self, slot: u64, length: u32) -> LocalSlice {
        LocalSlice {
            key: self.slots.key,
            offset: slot * u64::from(self.slot_bytes),
            length,
        }
    }

    /// Starts an AllReduce in place, of bytes that differ.
    fn start(&mut self) -> TaskId {
        let bytes: Vec<u8> = (0..BYTES).map(byte).collect();
        let memory = LentBytes::in_place(bytes.leak());
        let task = Task {
            collective: Collective::AllReduce,
            operation: Operation::Sum,
            data_type: DataType::U8,
            elements: BYTES as u64,
            ..Task::BARRIER
        };
        self.driver.start(task, Memory::Lent(memory))
    }

    fn step_rank(&mut self) {
        let now = self.rank.now();
        self.driver.progress(&mut *self.rank, now).expect("progress");
    }

    /// The switch answers a control message with itself, and data with the same bytes, each larger by 1.
    fn step_switch(&mut self) {
        let (now, qpn) = (self.switch.now(), self.qpns[1]);
        self.switch.poll(now).expect("polled");
        while self.answers > 0
            && let Some(got) = self.switch.poll_recv_completion(qpn)
        {
            if got.status != Status::Success {
                continue;
            }
            self.answers -= 1;
            let mut message = vec![0; got.byte_len as usize];
            let slot = self.slot(got.wr_id, got.byte_len);
            self.switch
                .read_memory(slot.key, slot.offset, &mut message)
                .expect("read");
            self.expect_message(got.wr_id);
            if got.imm.is_none() {
                message.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
            }
            self.send(&message, got.imm);
        }
        while self.switch.poll_send_completion(qpn).is_some() {}
    }

    fn send(&mut self, message: &[u8], imm: Option<u32>) {
        let half = self.slots.length as u64 / u64::from(self.slot_bytes) / 2;
        let local = self.slot(half + self.sent % half, message.len() as u32);
        self.switch
            .write_memory(local.key, local.offset, message)
            .expect("written");
        let op = imm.map_or(SendOp::Send, SendOp::SendImm);
        let wr = SendWr::new(self.sent, op, local);
        self.sent += 1;
        self.switch.post_send(self.qpns[1], wr).expect("posted");
    }

    fn end(&mut self, task: TaskId) -> TaskEnd {
        for _ in 0..100_000 {
            if let Some(end) = self.driver.take(task) {
                return end;
            }
            self.step_rank();
            self.step_switch();
        }
        panic!("it does not end: {:?}", self.driver.machine().waiting_for());
    }

    /// Number of slots of the rank that had data in them.
    fn used_slots(&self) -> usize {
        let (channel, shape) = (&self.driver.executor.channels[0], self.driver.machine().shape());
        let used = |key: MemoryKey, slots: u32| {
            let mut bytes = vec![0; slots as usize * self.slot_bytes as usize];
            self.rank.read_memory(key, 0, &mut bytes).expect("read");
            let slots = bytes.chunks_exact(self.slot_bytes as usize);
            slots
                .filter(|slot| slot[Control::LEN..].iter().any(|&byte| byte != 0))
                .count()
        };
        used(channel.sends, shape.send_slots) + used(channel.receives, shape.receive_slots)
    }
}

fn byte(at: usize) -> u8 {
    (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]
}

fn bytes_of(memory: &mut Memory) -> Vec<u8> {
    let place = Place::output(0);
    let bytes = memory.data().into_read(place, BYTES as u64);
    bytes.expect("the driver has the memory").to_vec()
}

fn in_network() -> InNetwork {
    InNetwork::new(InNetworkConfig::new(0, 2))
}

fn sums() -> Vec<u8> {
    (0..BYTES).map(|at| byte(at).wrapping_add(1)).collect()
}

#[test]
fn data_pass_no_slot_in_lent_memory() {
    let mut bench = Bench::new(in_network());
    for _ in 0..300 {
        let task = bench.start();
        let (result, mut memory) = bench.end(task);
        assert_eq!(result, Ok(()));
        assert!(bytes_of(&mut memory) == sums());
    }
    assert_eq!(bench.used_slots(), 0);
}

#[test]
fn data_pass_slots_if_the_rnic_refuses_the_memory() {
    let mut bench = Bench::new(in_network());
    while bench.rank.register_memory(1, Access::READ).is_ok() {}
    let task = bench.start();
    let (result, mut memory) = bench.end(task);
    assert_eq!(result, Ok(()));
    assert!(bytes_of(&mut memory) == sums());
    assert!(bench.used_slots() > 10);
}

#[test]
fn results_that_arrive_later_do_not_change_memory_that_was_taken_back() {
    let mut bench = Bench::new(in_network());
    let task = bench.start();
    // The control result, and some of the data.
    bench.answers = 4;
    for _ in 0..1000 {
        bench.step_rank();
        bench.step_switch();
    }
    let mut pending = bench.driver.executor.tasks.remove(&task).expect("it runs");
    assert!(!pending.is_done());
    pending.end_lending(&mut *bench.rank);
    let before = bytes_of(&mut pending.memory);
    let first = 3 * bench.slot_bytes as usize;
    assert!(before[..first] == sums()[..first]);
    bench.answers = usize::MAX;
    for _ in 0..1000 {
        let _ = bench.driver.progress(&mut *bench.rank, Nanos::ZERO);
        bench.step_switch();
    }
    assert!(bytes_of(&mut pending.memory) == before);
    assert_eq!(bench.rank.qp_state(bench.qpns[0]).expect("a QP"), QpState::Error);
}

/// Sends one message of each task, and ends the task at once.
struct SendOnce {
    tasks: u64,
    actions: VecDeque<Action>,
}

impl Machine for SendOnce {
    fn shape(&self) -> ChannelShape {
        ChannelShape {
            send_slots: 4,
            receive_slots: 4,
            slot_bytes: 1024,
        }
    }

    fn channels(&self) -> u16 {
        1
    }

    fn start(&mut self, _: Task) -> TaskId {
        let (task, wr) = (TaskId(self.tasks), self.tasks);
        self.tasks += 1;
        let (from, length) = (Place::input(0), 1000);
        self.actions.extend([
            Action::Send {
                channel: ChannelId(0),
                wr,
                slot: 0,
                task,
                content: Content::Data { from, length },
                immediate: None,
            },
            Action::Done { task, result: Ok(()) },
        ]);
        task
    }

    fn scratch_bytes(&self, _: &Task) -> u64 {
        0
    }

    fn may_send_from_tasks(&self) -> bool {
        true
    }

    fn handle(&mut self, _: Event<'_>) {}

    fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn is_drained(&self) -> bool {
        true
    }

    fn has_failed(&self) -> bool {
        false
    }

    fn waiting_for(&self) -> Option<Waiting> {
        None
    }
}

#[test]
fn memory_comes_back_when_what_was_sent_from_it_is_acknowledged() {
    let machine = || SendOnce {
        tasks: 0,
        actions: VecDeque::new(),
    };
    for fails in [false, true] {
        let mut bench = Bench::new(machine());
        let task = bench.start();
        for _ in 0..10 {
            bench.step_rank();
            assert!(bench.driver.take(task).is_none() && !bench.driver.is_idle());
        }
        if fails {
            // Then nothing is sent again.
            bench.rank.fail_qp(bench.qpns[0]).expect("a QP");
            bench.step_rank();
        }
        let (result, mut memory) = bench.end(task);
        assert_eq!(result, Ok(()));
        assert_eq!(bytes_of(&mut memory)[7], byte(7));
        // A task that is closed while it runs has its memory back, too.
        let task = bench.start();
        bench.driver.close(&mut *bench.rank);
        let pending = bench
            .driver
            .executor
            .tasks
            .get_mut(&task)
            .expect("it is not taken");
        assert_eq!(bytes_of(&mut pending.memory)[7], byte(7));
    }
}
