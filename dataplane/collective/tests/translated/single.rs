//! One switch, a few hosts, nothing lost: the plain course of things.

use crate::net::{Net, Setting};
use crate::program::call;
use crate::tree::Tree;
use castnet_wire::Primitive::{AllReduce, Broadcast, Reduce};

#[test]
fn each_primitive_on_a_star() {
    for call in [
        call(AllReduce, 0, 20),
        call(Reduce, 2, 20),
        call(Broadcast, 1, 20),
        call(AllReduce, 0, 0),
    ] {
        let mut net = Net::new(Setting::new(Tree::star(3), vec![call]));
        net.finish();
        assert!(net.drops.is_empty(), "{:?}", net.drops);
        assert!(net.hosts.iter().all(|h| h.repeated == 0 && h.naks == 0));
    }
}

#[test]
fn each_primitive_on_a_tree() {
    for call in [
        call(AllReduce, 0, 20),
        call(Reduce, 2, 20),
        call(Broadcast, 1, 20),
        call(AllReduce, 0, 0),
    ] {
        let mut net = Net::new(Setting::new(Tree::two_leaves(), vec![call]));
        net.finish();
        assert!(net.drops.is_empty(), "{:?}", net.drops);
        assert!(net.hosts.iter().all(|h| h.repeated == 0 && h.naks == 0));
    }
}
