//! The fast path of the machine beside its slow one. The fuzzer uses it too.

use castnet_collective::Translated;
use castnet_collective::translated::{Effect, Effects, Event};
use castnet_wire::Nanos;

/// Handles a frame. Data takes both paths, and the results must be equal.
pub(crate) fn handle(machine: &mut Translated, now: Nanos, event: Event, out: &mut Effects) {
    let Event::Data {
        from,
        psn,
        shape,
        ack_request,
    } = event
    else {
        return machine.handle(now, event, out);
    };
    let (mut twin, mut expected) = (machine.clone(), Effects::new());
    twin.handle(now, event, &mut expected);
    let next = machine
        .nexts(now, from)
        .and_then(|mut nexts| Some((nexts.take(psn, shape, ack_request)?, *nexts.call())));
    match (next, &expected[..]) {
        (
            Some(taken),
            &[
                effect @ Effect::Aggregate {
                    slot,
                    first: false,
                    kernel,
                    ..
                },
            ],
        ) if taken == (slot, *twin.call(kernel)) => {
            out.clear();
            out.push(effect);
        }
        (Some(taken), other) => panic!("{event:?}: {taken:?} is not {other:?}"),
        (None, _) => machine.handle(now, event, out),
    }
    assert_eq!(out, &expected, "{event:?}");
    assert!(*machine == twin, "{event:?}: {machine:?} is not {twin:?}");
}
