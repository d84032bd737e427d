//! What a collective group takes at its installation, and what cannot be installed.

use crate::common::collective::*;
use crate::common::*;
use castnet_engine::{Context, Engine, InstallError, PortInfo};
use castnet_rules::CollectiveMode::{Augmented, Terminated, Translated};
use castnet_rules::GroupRule;
use castnet_wire::{Nanos, Pmtu};

#[test]
fn what_a_group_takes_is_what_its_rule_says_and_no_more() {
    let all = [Translated, Augmented, Terminated];
    for ((ranks, slots, pmtu, reproducible), mode) in [
        (2_usize, 2_u16, Pmtu::B256, false),
        (8, 512, Pmtu::B1024, false),
        (8, 512, Pmtu::B1024, true),
        (64, 4096, Pmtu::B256, false),
        (2, 32768, Pmtu::B256, false),
        (64, 64, Pmtu::B4096, true),
        (65, 512, Pmtu::B1024, false),
        (1024, 2, Pmtu::B256, false),
        (1024, 4096, Pmtu::B1024, false),
        (1024, 4, Pmtu::B4096, true),
    ]
    .into_iter()
    .flat_map(|case| all.map(|mode| (case, mode)))
    {
        // Mode-I has buffers for each endpoint: no more than what the test's machine has.
        let slots = match mode {
            Translated => slots,
            Augmented => slots.max(4),
            Terminated => slots
                .min(((1_u32 << 18) >> ranks.ilog2() >> pmtu.bytes().ilog2()) as u16)
                .max(2),
        };
        let rule = GroupRule {
            pmtu,
            ..one_armed_star(ranks).with_translated(|rule| {
                (rule.slots, rule.message_packets, rule.reproducible) = (slots, 1, reproducible);
                rule.mode = mode;
            })
        };
        let slot_bytes = rule.translated().unwrap().slot_bytes(pmtu, ranks);
        let group = Context::compile(&rule, &ports(64)).unwrap();
        let (said, takes) = (
            rule.reserved_bytes() as usize,
            group.collective().unwrap().footprint(),
        );
        println!(
            "{mode}, {ranks} ranks, {slots} slots of {} B: {said} bytes said, {takes} taken, {} of them slots",
            pmtu.bytes(),
            slot_bytes
        );
        assert_eq!(group.memory_bytes(), said);
        assert!(takes <= said && takes as u64 >= slot_bytes, "{takes} of {said}");
        let room = castnet_engine::EngineConfig {
            memory_bytes_max: said,
            ..config(64)
        };
        let mut engine = Engine::new(room.clone()).unwrap();
        install_collective(&mut engine, &rule);
        assert_eq!(engine.group_memory_bytes(), said);
        assert_eq!(engine.remove(GROUP).map(|g| g.memory_bytes()), Some(said));
        assert_eq!(engine.group_memory_bytes(), 0);
        let mut engine = Engine::new(castnet_engine::EngineConfig {
            memory_bytes_max: said - 1,
            ..room
        })
        .unwrap();
        let (refused, _) = engine.install(Nanos::ZERO, group).unwrap_err();
        assert_eq!(
            refused,
            InstallError::NoMemory {
                need: said,
                left: said - 1,
                max: said - 1
            }
        );
    }
}

#[test]
fn what_cannot_run_is_refused_with_its_reason() {
    let rule = collective_star(3);
    let refused =
        |rule: &GroupRule, ports: &[PortInfo]| Context::compile(rule, ports).map(|_| ()).unwrap_err();
    assert!(matches!(
        refused(&rule, &ports(2)),
        InstallError::Faults(f) if f[0].field == "endpoints[2].port"
    ));
    let narrow: Vec<PortInfo> = ports(3).into_iter().map(|p| PortInfo { mtu: 303, ..p }).collect();
    assert!(matches!(
        refused(&rule, &narrow),
        InstallError::MtuTooSmall {
            need: 304,
            mtu: 303,
            ..
        }
    ));
    let faulty = rule.clone().with_translated(|rule| rule.slots = 3);
    assert!(
        matches!(refused(&faulty, &ports(3)), InstallError::Faults(faults) if faults[0].field == "slots")
    );

    // A group replaces one of another kind, and is replaced itself.
    let mut engine = engine(4);
    install(
        &mut engine,
        &GroupRule {
            mcst_id: GROUP,
            ..star(2)
        },
    );
    let group = || Context::compile(&rule, &ports(4)).unwrap();
    let replaced = engine
        .install(Nanos::ZERO, group())
        .unwrap()
        .expect("the multicast group");
    assert!(replaced.multicast().is_some() && engine.group(GROUP).is_none());
    assert!(
        engine.install(Nanos::ZERO, group()).unwrap().is_some(),
        "the same rule again: what runs stays"
    );
    assert_eq!(
        (engine.group_count(), engine.collective(GROUP).is_some()),
        (1, true)
    );
}
