//! Random input: nothing panics, every call ends, and no endpoint gets an acknowledgement of packets that it has not sent.

use crate::net::endpoint;
use crate::program::{call, control};
use crate::rules::{Bench, config};
use castnet_collective::translated::{Effect, Event};
use castnet_collective::{LossPolicy, PacketShape};
use castnet_wire::{Opcode, Primitive, Psn, Syndrome};
use proptest::prelude::*;

fn events() -> impl Strategy<Value = Vec<(u8, usize, i32, u8, bool)>> {
    proptest::collection::vec((0u8..8, 0usize..6, -3i32..24, any::<u8>(), any::<bool>()), 1..250)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    #[test]
    fn any_traffic_at_all(events in events(), parent: bool, reflect: bool, augmented: bool) {
        let mut config = config(3, 2, parent);
        if augmented {
            config.mode = castnet_collective::translated::CollectiveMode::Augmented;
        }
        if reflect {
            config.loss = LossPolicy::Reflect;
        }
        let mut b = Bench::new(config);
        let mut sent = [0i32; 3];
        for (kind, from, index, what, ack_request) in events {
            let rank = from < 3;
            let start = |per: u32| Psn::new(if rank { per * (from as u32 + 1) } else { 2 });
            let psn = start(1000).add(index);
            let e = endpoint(from);
            if rank && kind < 5 {
                sent[from] = sent[from].max(index + 1);
            }
            let effects = match kind {
                0 | 1 => {
                    let primitive = [Primitive::AllReduce, Primitive::Reduce, Primitive::Broadcast][usize::from(what % 3)];
                    let root = [0, 1, 50, 60, 61, 99][usize::from(what >> 2) % 6];
                    let says = if rank { from as u16 } else { [50, 60, 61][usize::from(what) % 3] };
                    b.event(Event::Control { from: e, psn, control: control(index.max(0) as usize / 3, says, call(primitive, root, u32::from(what % 4))), ack_request })
                }
                2..=4 => {
                    let shape = PacketShape { opcode: Opcode::SendMiddle, payload: 4 * u16::from(what < 8), pad: 0 };
                    b.event(Event::Data { from: e, psn, shape, ack_request })
                }
                5 | 6 => {
                    let syndrome = Syndrome::from_byte(what).unwrap_or(Syndrome::Ack);
                    b.event(Event::Feedback { from: e, psn: start(5000).add(index), msn: 0, syndrome })
                }
                _ if b.machine.poll_timeout().is_some_and(|(_, r)| r == castnet_collective::translated::TimerReason::Tick) => b.tick(),
                _ => Vec::new(),
            };
            for effect in effects {
                if let Effect::Acknowledge { to, psn, syndrome, .. } = effect && to.index() < 3 {
                    let start = Psn::new(1000 * (to.index() as u32 + 1));
                    let covers = psn.diff(start) + i32::from(syndrome == Syndrome::Ack);
                    prop_assert!(covers >= 0 && covers <= sent[to.index()], "an ACK ahead of the data: {:?}", effect);
                }
            }
        }
        b.machine.status();
        prop_assert!(b.machine.footprint() > 0);
    }
}
