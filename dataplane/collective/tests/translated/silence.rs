//! A loss costs about a round trip (S9): whichever frame is lost, and where no later packet shows it, nobody waits for a time-out of a host.

use crate::net::{Net, Setting};
use crate::program::call;
use crate::tree::Tree;
use castnet_collective::translated::CollectiveMode;
use castnet_wire::{Nanos, Primitive};
use std::cell::Cell;
use std::rc::Rc;

/// An eighth of the hosts' time-out, half of a tick. The first answers are overdue after a millisecond, as no round trip was measured before.
const SOON: Nanos = Nanos::from_micros(8_388);

/// The network in which the frames with these numbers are lost, after its end; and how many frames there were.
fn run(setting: &Setting, lost: &[u64]) -> (Net, u64) {
    let mut net = Net::new(setting.clone());
    let (sent, lost) = (Rc::new(Cell::new(0)), lost.to_vec());
    let count = sent.clone();
    net.filter = Some(Box::new(move |_, _, _| {
        let number = count.replace(count.get() + 1);
        lost.contains(&number)
    }));
    net.finish();
    (net, sent.get())
}

fn settings(soft: bool) -> impl Iterator<Item = Setting> {
    let calls = [
        call(Primitive::AllReduce, 0, 13),
        call(Primitive::Reduce, 2, 5),
        call(Primitive::Broadcast, 1, 9),
        call(Primitive::AllReduce, 0, 1),
    ];
    let programs = calls.into_iter().map(|one| vec![one]).chain([calls.to_vec()]);
    let programs: Vec<_> = programs.collect();
    let modes = [CollectiveMode::Translated, CollectiveMode::Augmented];
    modes.into_iter().flat_map(move |mode| {
        programs.clone().into_iter().flat_map(move |calls| {
            [Tree::star(3), Tree::two_leaves()].map(|tree| {
                let mut setting = Setting::new(tree, calls.clone());
                (setting.mode, setting.soft, setting.message_packets) = (mode, soft, 4);
                setting
            })
        })
    })
}

#[test]
fn whichever_frame_is_lost_nobody_waits_for_a_time_out() {
    for setting in settings(true) {
        let (lossless, frames) = run(&setting, &[]);
        assert!(lossless.now < SOON, "{}", lossless.story());
        for lost in 0..frames {
            let (net, _) = run(&setting, &[lost]);
            assert!(
                net.now < SOON,
                "frame {lost} of {:?}: {}",
                setting.calls,
                net.story()
            );
            assert!(net.hosts.iter().all(|host| host.timeouts == 0));
        }
    }
}

/// Two frames, among them what repairs the loss of the first.
#[test]
fn what_repairs_a_loss_may_be_lost_as_well() {
    for setting in settings(true).step_by(3) {
        let (_, frames) = run(&setting, &[]);
        for first in 0..frames {
            for second in (first + 1..frames + 6).step_by(3) {
                let (net, _) = run(&setting, &[first, second]);
                let which = format!("frames {first}, {second} of {:?}", setting.calls);
                assert!(net.now < SOON, "{which}: {}", net.story());
            }
        }
    }
}

/// RNICs as rxe ask for nothing by themselves: what a switch cannot know to be lost waits for their time-out. That is the last ACK, and the loss of
/// what it had not begun to receive where nobody else had sent it. All else does not.
#[test]
fn a_switch_asks_a_host_that_asks_for_nothing() {
    let (mut waited, mut all) = (0, 0);
    for setting in settings(false) {
        let (_, frames) = run(&setting, &[]);
        for lost in 0..frames {
            let (net, _) = run(&setting, &[lost]);
            waited += u64::from(net.hosts.iter().any(|host| host.timeouts > 0));
            all += 1;
        }
    }
    assert!(waited * 10 < all, "{waited} of {all} losses wait for a host");
}
