//! A collective group on a dataplane over memory links: contributions, sums, and the counters that control reads.

use crate::common::*;
use castnet_rules::{GroupRule, TranslatedRule};
use castnet_wire::{
    Bth, Call, CallFlags, Control, DataType, Ethernet, ExtHeaders, Network, Opcode, Operation, Primitive,
    Psn, Qpn, Verdict, emit_roce, icrc,
};
use castnet_worker::engine::{EventKind, InstallError as Refused};
use castnet_worker::{InstallError, Installed, SwitchEventKind};

const RANKS: usize = 3;

fn sums(n: usize) -> GroupRule {
    collective(n, RANKS, TranslatedRule::root(64), |rank| (10 * rank, 0xFF_FFFF))
}

fn frame(rank: usize, group: usize, offset: u32, imm: Option<u32>, payload: &[u8]) -> Vec<u8> {
    let ethernet = Ethernet {
        dst: host_mac(99),
        src: host_mac(rank),
        vlan: None,
        ethertype: 0x0800,
    };
    let opcode = if imm.is_some() {
        Opcode::SendOnlyImm
    } else {
        Opcode::SendOnly
    };
    let bth = Bth {
        ack_request: true,
        ..Bth::new(opcode, Qpn::VIRTUAL, Psn::new(10 * rank as u32 + offset))
    };
    let (network, ext) = (
        Network::v4(host_ip(rank), mcst(group).0),
        ExtHeaders {
            imm,
            ..ExtHeaders::NONE
        },
    );
    let mut out = vec![0; payload.len() + 128];
    let n = emit_roce(&mut out, &ethernet, &network, 0xC000, &bth, &ext, payload).unwrap();
    out.truncate(n);
    out
}

fn control(rank: usize, group: usize, elements: u64) -> Vec<u8> {
    let call = Call {
        primitive: Primitive::AllReduce,
        root: 0,
        roots: 1,
        operation: Operation::Sum,
        data_type: DataType::F32,
        flags: CallFlags::default(),
        elements,
        packets: 1,
    };
    let mut bytes = [0; Control::LEN];
    Control {
        sequence: 0,
        rank: rank as u16,
        call,
        verdict: Verdict::Agreed,
    }
    .emit(&mut bytes);
    frame(rank, group, 0, Some(Control::IMMEDIATE), &bytes)
}

/// The groups are on both workers, and frames arrive on the ports of both.
#[test]
fn contributions_of_all_ranks_are_summed() {
    for workers in [1, 2] {
        let lab = Lab::with(RANKS, workers, |config| config.engine.lldp_interval = None);
        // The first group is placed on worker 0, the second on the next worker.
        for n in 1..=workers {
            let installed = lab.dataplane.install(&sums(n)).unwrap();
            assert_eq!(installed, Installed::New { worker: n - 1 });
        }
        assert_eq!(lab.dataplane.install(&sums(1)).unwrap(), Installed::Unchanged);
        let mut hosts: Vec<Host> = lab.ends.iter().map(Host::new).collect();
        for n in 1..=workers {
            for (rank, host) in hosts.iter_mut().enumerate() {
                let floats: Vec<u8> = (0..256)
                    .flat_map(|i| ((i * (rank + 1)) as f32).to_le_bytes())
                    .collect();
                host.send(&[control(rank, n, 256), frame(rank, n, 1, None, &floats)]);
            }
            for (rank, host) in hosts.iter_mut().enumerate() {
                // The hosts acknowledge nothing: results come again, those of the group before, too.
                let mut results: Vec<Vec<u8>> = Vec::new();
                while results.len() < 2 {
                    for frame in host.receive(1) {
                        let header = roce(&frame);
                        let (bth, is_result) = (header.bth, header.aeth.is_none());
                        let is_new = results.iter().all(|before| roce(before).bth.psn != bth.psn);
                        if bth.dest_qp == qpn(n, rank) && is_result && is_new {
                            results.push(frame);
                        }
                    }
                }
                // The ring of a host may be full with results of the group before, and the first one of this group comes only when it is repeated.
                results.sort_by_key(|frame| roce(frame).imm.is_none());
                let header = roce(&results[0]);
                assert_eq!(header.imm, Some(Control::IMMEDIATE));
                let (bytes, header) = (&results[1], roce(&results[1]));
                assert!(icrc::verify_bytes(bytes, header.l3, header.frame_len));
                assert_eq!(header.bth.dest_qp, qpn(n, rank));
                assert_eq!(header.bth.psn, Psn::new(0));
                let sum: Vec<f32> = bytes[header.payload_at..header.payload_at + 1024]
                    .as_chunks::<4>()
                    .0
                    .iter()
                    .map(|b| f32::from_le_bytes(*b))
                    .collect();
                assert!(
                    sum.iter().enumerate().all(|(i, v)| *v == (6 * i) as f32),
                    "{sum:?}"
                );
            }
            let group = lab.dataplane.group(mcst(n)).unwrap().unwrap();
            assert_eq!((group.worker, &group.rule), (n - 1, &sums(n)));
            let counters = group.status.collective().unwrap().counters;
            assert_eq!(counters.contributions, 3);
            assert!(counters.results >= 3);
        }
        let counters = lab.dataplane.counters().unwrap();
        assert_eq!(counters.groups.len(), workers);
        assert_eq!(counters.groups[0].name, "c1");
        assert_eq!(counters.groups[0].counters.multicast(), None);
        let (_, endpoints) = counters.groups[0].counters.translated().unwrap();
        assert_eq!(endpoints.len(), RANKS);
        assert_eq!(lab.dataplane.rule(mcst(1)), Some(sums(1)));
        assert_eq!(
            (lab.dataplane.groups().unwrap().len(), lab.dataplane.rules().len()),
            (workers, workers)
        );
        assert_eq!(lab.dataplane.remove_group(mcst(1)).unwrap(), Some(sums(1)));
        assert_eq!(lab.dataplane.group(mcst(1)).unwrap(), None);
        assert!(lab.dataplane.stop().is_some());
    }
}

#[test]
fn slots_are_counted_refused_and_freed() {
    let need = sums(1).reserved_bytes() as usize;
    let lab = Lab::with(RANKS, 1, |config| config.engine.memory_bytes_max = 2 * need);
    lab.dataplane.install(&sums(1)).unwrap();
    lab.dataplane.install(&sums(2)).unwrap();
    let used = |lab: &Lab| lab.dataplane.runtime().unwrap()[0].group_memory_bytes;
    assert_eq!(used(&lab), 2 * need);
    assert_eq!(
        lab.dataplane.install(&sums(3)),
        Err(InstallError::Refused(Refused::NoMemory {
            need,
            left: 0,
            max: 2 * need
        }))
    );
    lab.dataplane.remove_group(mcst(2)).unwrap();
    assert_eq!(used(&lab), need);
    let newer = GroupRule {
        generation: 2,
        ..sums(1)
    };
    assert_eq!(
        lab.dataplane.install(&newer).unwrap(),
        Installed::Replaced { before: 1 }
    );
    assert!(matches!(
        lab.dataplane.install(&sums(1)),
        Err(InstallError::Older {
            running: 2,
            given: 1,
            ..
        })
    ));
    lab.dataplane.install(&sums(3)).unwrap();
    assert_eq!(used(&lab), 2 * need);
}

#[test]
fn ranks_that_disagree_raise_an_event() {
    let lab = Lab::with(RANKS, 1, |config| config.engine.lldp_interval = None);
    lab.dataplane.install(&sums(1)).unwrap();
    let events = lab.dataplane.events();
    let mut hosts: Vec<Host> = lab.ends.iter().map(Host::new).collect();
    for (rank, host) in hosts.iter_mut().enumerate() {
        host.send_one(control(rank, 1, 256 - rank as u64 / 2));
    }
    let event = loop {
        let event = events.recv_timeout(TIMEOUT).expect("an event");
        if let SwitchEventKind::Engine(EventKind::CollectiveConflict {
            mcst_id,
            generation,
            control,
        }) = event.kind
        {
            assert_eq!(generation, sums(1).generation);
            break (mcst_id, control.verdict);
        }
    };
    assert_eq!(event.0, mcst(1));
    assert!(matches!(event.1, Verdict::Conflict { .. }));
}
