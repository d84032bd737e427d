//! Lent memory: nothing reads or writes it after it was returned, whatever is in flight. And regions that are not stored.

use crate::common::*;
use castnet_endpoint::{
    Access, Endpoint, EndpointConfig, Lent, LocalSlice, MemoryError, MemoryKey, PostError, QpConfig, QpState,
    RecvWr, SendOp, SendWr, Status,
};
use castnet_wire::{MacAddr, Opcode, Psn};

fn bench() -> Bench {
    Bench::new(QpConfig {
        rq_psn: Psn::new(100),
        ..config()
    })
}

fn leak(length: usize) -> &'static mut [u8] {
    Box::leak((0..length).map(pattern).collect())
}

fn lend(b: &mut Bench, memory: Lent) -> MemoryKey {
    b.endpoint.lend_memory(memory).expect("a free region")
}

const fn slice(key: MemoryKey, length: u32) -> LocalSlice {
    LocalSlice {
        key,
        offset: 0,
        length,
    }
}

#[test]
fn messages_leave_from_lent_memory_and_arrive_in_it() {
    let borrowed = (
        Lent::shared(leak(2000)),
        Lent::exclusive(Box::leak(vec![0; 2000].into())),
    );
    let owned = (
        Lent::counted(leak(2000).to_vec().into()),
        Lent::owned(vec![0; 2000]),
    );
    for (from, to) in [borrowed, owned] {
        let mut b = bench();
        let (from, to) = (lend(&mut b, from), lend(&mut b, to));
        let local = slice(from, 2000);
        b.endpoint
            .post_send(MY_QPN, SendWr::new(1, SendOp::Send, local))
            .unwrap();
        b.endpoint
            .post_recv(
                MY_QPN,
                RecvWr {
                    wr_id: 2,
                    local: slice(to, 2000),
                },
            )
            .unwrap();
        b.sends(&["SEND_FIRST 0 [1024]", "SEND_LAST 1 A [976]"]);
        b.ack(1);
        b.feed(&Packet::request(Opcode::SendFirst, 100, 1024));
        b.feed(&Packet::request(Opcode::SendLast, 101, 976));
        b.completes(&[(1, Status::Success), (2, Status::Success)]);
        let back = b.endpoint.end_lending(to).expect("lent");
        assert!(
            back.bytes()[..1024]
                .iter()
                .enumerate()
                .all(|(i, &byte)| byte == pattern(i))
        );
        assert_eq!(b.endpoint.end_lending(from).expect("lent").bytes().len(), 2000);
    }
}

#[test]
fn memory_that_was_returned_is_not_written() {
    let mut b = bench();
    let key = lend(&mut b, Lent::exclusive(Box::leak(vec![0; 2000].into())));
    b.endpoint
        .post_recv(
            MY_QPN,
            RecvWr {
                wr_id: 1,
                local: slice(key, 2000),
            },
        )
        .unwrap();
    b.feed(&Packet::request(Opcode::SendFirst, 100, 1024));
    let back = b.endpoint.end_lending(key).expect("lent");
    b.feed(&Packet::request(Opcode::SendLast, 101, 976).ack_request());
    assert!(back.bytes()[1024..].iter().all(|&byte| byte == 0));
    b.completes(&[(1, Status::LocalProtectionError)]);
    assert_eq!(b.endpoint.qp_status(MY_QPN).unwrap().state, QpState::Error);
}

#[test]
fn memory_that_was_returned_is_not_sent_again() {
    let mut b = bench();
    let key = lend(&mut b, Lent::exclusive(leak(2000)));
    let send = SendWr::new(1, SendOp::Send, slice(key, 2000));
    b.endpoint.post_send(MY_QPN, send).unwrap();
    assert_eq!(b.drain().len(), 2);
    b.endpoint.end_lending(key).expect("lent");
    b.wait();
    b.sends(&[]);
    b.completes(&[(1, Status::LocalProtectionError)]);
}

#[test]
fn lent_memory_has_no_more_rights_than_its_owner_gave() {
    let mut b = bench();
    for memory in [Lent::shared(leak(64)), Lent::counted(leak(64).to_vec().into())] {
        let key = lend(&mut b, memory);
        let refused = b.endpoint.post_recv(
            MY_QPN,
            RecvWr {
                wr_id: 1,
                local: slice(key, 64),
            },
        );
        assert_eq!(refused, Err(PostError::NotWritable { key }));
        assert_eq!(
            b.endpoint.memory_mut(key).err(),
            Some(MemoryError::ReadOnly { key })
        );
    }
    // No remote writes to it: the endpoint gives it no virtual address.
    let key = lend(&mut b, Lent::exclusive(leak(64)));
    b.feed(&Packet::request(Opcode::WriteOnly, 100, 4).reth(0, key.rkey(), 4));
    b.sends(&["NAK2 100 #0"]);
    let owned = Err(MemoryError::UnknownKey { key });
    assert_eq!(b.endpoint.deregister_memory(key), owned);
    assert!(b.endpoint.end_lending(b.key).is_err(), "it is not lent");
    assert_eq!(b.endpoint.memory(b.key).map(<[u8]>::is_empty), Ok(false));
}

#[test]
fn memory_that_is_refused_comes_back() {
    let mut endpoint = Endpoint::new(EndpointConfig {
        regions_max: 1,
        ..EndpointConfig::new(MacAddr([2, 0, 0, 0, 0, 1]), [10, 0, 0, 1].into())
    });
    let key = endpoint
        .lend_memory(Lent::exclusive(leak(3)))
        .expect("a free region");
    let (back, error) = endpoint.lend_memory(Lent::exclusive(leak(7))).expect_err("full");
    assert_eq!((back.bytes().len(), error), (7, MemoryError::TooMany { max: 1 }));
    endpoint.end_lending(key).expect("lent");
    let again = endpoint.lend_memory(back).expect("a free region");
    assert_ne!(again, key);
}

#[test]
fn void_regions_send_zeros_take_everything_and_keep_their_bounds() {
    let mut b = bench();
    // Longer than the memory of this machine.
    let void = b
        .endpoint
        .register_void(1 << 50, Access::LOCAL)
        .expect("a region");
    let far = LocalSlice {
        offset: 1 << 49,
        ..slice(void, 2000)
    };
    b.endpoint
        .post_send(MY_QPN, SendWr::new(1, SendOp::Send, far))
        .unwrap();
    b.endpoint
        .post_recv(MY_QPN, RecvWr { wr_id: 2, local: far })
        .unwrap();
    b.sends(&["SEND_FIRST 0 [1024]", "SEND_LAST 1 A [976]"]);
    b.ack(1);
    b.feed(&Packet::request(Opcode::SendFirst, 100, 1024));
    b.feed(&Packet::request(Opcode::SendLast, 101, 976));
    b.completes(&[(1, Status::Success), (2, Status::Success)]);
    let beyond = LocalSlice {
        offset: (1 << 50) - 1,
        ..slice(void, 2)
    };
    let refused = b.endpoint.post_recv(
        MY_QPN,
        RecvWr {
            wr_id: 3,
            local: beyond,
        },
    );
    assert!(
        matches!(refused, Err(PostError::OutOfBounds { .. })),
        "{refused:?}"
    );
    assert_eq!(b.endpoint.memory(void).map(<[u8]>::len), Ok(0));
    assert!(matches!(
        b.endpoint.deregister_memory(void),
        Err(MemoryError::UnknownKey { .. })
    ));
}
