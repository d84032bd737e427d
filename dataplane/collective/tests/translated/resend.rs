//! A lost frame costs one repetition, of that frame, on that link: between a switch and a host that sends single packets again and keeps what it
//! receives behind a gap, and between switches.

use crate::net::{Frame, Net, Node, Setting};
use crate::program::call;
use crate::tree::Tree;
use castnet_collective::translated::CollectiveMode;
use castnet_wire::Primitive;
use std::collections::BTreeMap;

const PACKETS: u32 = 13;
/// In each run.
const LOST: [&[u32]; 3] = [&[5], &[1, 2], &[5, 6, 8]];

/// An AllReduce in which the data packets with these numbers, from 1, are lost for the first time on that link.
fn run(mode: CollectiveMode, tree: Tree, link: Option<(Node, Node)>, lost: &'static [u32]) -> Net {
    let mut setting = Setting::new(tree, vec![call(Primitive::AllReduce, 0, PACKETS)]);
    (setting.mode, setting.soft, setting.message_packets) = (mode, true, 4);
    let mut net = Net::new(setting);
    let mut number = 0;
    net.filter = Some(Box::new(move |from, to, frame| {
        let counts = Some((from, to)) == link && matches!(frame, Frame::Data { .. });
        number += u32::from(counts);
        counts && lost.contains(&number)
    }));
    net.finish();
    net
}

#[test]
fn a_lost_packet_is_sent_again_and_nothing_else() {
    for mode in [CollectiveMode::Translated, CollectiveMode::Augmented] {
        for tree in [Tree::star(3), Tree::two_leaves()] {
            let lossless = run(mode, tree.clone(), None, &[]);
            // The control message, too.
            assert!(
                lossless
                    .data
                    .values()
                    .all(|count| *count == u64::from(PACKETS) + 1)
            );
            for &link in lossless.data.keys() {
                for lost in LOST {
                    let net = run(mode, tree.clone(), Some(link), lost);
                    let more: BTreeMap<_, _> = net
                        .data
                        .iter()
                        .map(|(at, count)| (*at, count - lossless.data[at]))
                        .filter(|(_, more)| *more > 0)
                        .collect();
                    let expected = BTreeMap::from([(link, lost.len() as u64)]);
                    assert_eq!(more, expected, "{mode:?}, {lost:?} on {link:?}");
                }
            }
        }
    }
}
