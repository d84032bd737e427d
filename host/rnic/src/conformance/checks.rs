use std::slice::SliceIndex;
use std::time::{Duration, Instant};

use castnet_endpoint::{
    Access, Completion, CompletionOp, LocalSlice, PostError, QpState, SendOp, SendWr, Status,
};
use castnet_wire::{Pmtu, Psn};

use super::{Checked, Session, expect_equal, fail, good, pattern, whole};
use crate::error::{RnicError, status_text};
use crate::rnic::MemoryRegion;

type Check = fn(&mut Session<'_>) -> Checked<String>;

/// Name, description and function of each check.
pub(super) const ALL: [(&str, &str, Check); 19] = [
    (
        "memory",
        "regions can be written and read within their bounds, and not after their release",
        memory,
    ),
    (
        "qp-life",
        "QPs move from init to ready to error, and do not exist after their destruction",
        qp_life,
    ),
    ("send", "SEND of 0 bytes to 1 MiB fills the next receive", send),
    (
        "send-imm",
        "SEND with immediate delivers the same 32 bits",
        send_imm,
    ),
    (
        "write",
        "WRITE fills the addressed memory only, without a completion at the receiver",
        write,
    ),
    (
        "write-imm",
        "WRITE with immediate completes a receive and does not change its buffer",
        write_imm,
    ),
    (
        "path-mtu",
        "every path MTU up to the port's carries messages of about its size; a larger one is refused",
        path_mtu,
    ),
    ("psn-wrap", "start PSNs are as configured, and wrap", psn_wrap),
    (
        "reset",
        "a QP that is reset keeps its number, and is connected again with other PSNs",
        reset,
    ),
    (
        "order",
        "300 messages complete in order at both ends, with 32 in flight",
        order,
    ),
    ("unsignaled", "only signaled requests complete", unsignaled),
    (
        "queue-full",
        "a full queue refuses requests and loses none",
        queue_full,
    ),
    ("rnr", "a message waits for a receive and is not lost", rnr),
    (
        "rnr-exceeded",
        "with few RNR retries the sender fails",
        rnr_exceeded,
    ),
    ("rkey", "a WRITE with a wrong key fails at both ends", rkey),
    (
        "bounds",
        "a WRITE outside its region fails and changes nothing",
        bounds,
    ),
    (
        "too-long",
        "a SEND longer than the receive buffer fails at both ends",
        too_long,
    ),
    ("flush", "a failed QP flushes its requests", flush),
    (
        "events",
        "a wait sleeps without events, and ends at a completion",
        events,
    ),
];

fn memory(s: &mut Session<'_>) -> Checked<String> {
    let bytes = pattern(10_000, 1);
    let region = s.region(0, Access::LOCAL, &bytes)?;
    expect_equal("the region's length", region.length, bytes.len())?;
    let mut read = vec![0; bytes.len()];
    s.rnic(0).read_memory(region.key, 0, &mut read)?;
    expect_equal("the written data", read == bytes, true)?;
    let over = s.rnic(0).read_memory(region.key, 9_999, &mut [0; 2]);
    if !matches!(over, Err(RnicError::OutOfBounds { .. })) {
        return fail(format!("a read beyond the region gave {over:?}"));
    }
    let over = s.rnic(0).write_memory(region.key, u64::MAX, &[0]);
    if !matches!(over, Err(RnicError::OutOfBounds { .. })) {
        return fail(format!("a write beyond the region gave {over:?}"));
    }
    let fresh = s.rnic(0).register_memory(5000, Access::REMOTE_WRITE)?;
    let mut read = vec![1; 5000];
    s.rnic(0).read_memory(fresh.key, 0, &mut read)?;
    expect_equal("a new region", read == [0; 5000], true)?;
    s.rnic(0).deregister_memory(fresh.key)?;
    if s.rnic(0).read_memory(fresh.key, 0, &mut [0]).is_ok() {
        return fail("a released region can be read");
    }
    Ok(format!("va {:#x}, rkey {:#x}", region.va, region.rkey))
}

fn qp_life(s: &mut Session<'_>) -> Checked<String> {
    let pair = s.pair(|_| {})?;
    s.state(0, pair[0], QpState::Ready)?;
    let remote = s.towards(0, pair[1]);
    if s.rnic(0).connect_qp(pair[0], &remote, Duration::ZERO).is_ok() {
        return fail("a connected QP can be connected again");
    }
    let early = s.create(0)?;
    s.state(0, early, QpState::Init)?;
    let posted = s
        .rnic(0)
        .post_send(early, SendWr::new(1, SendOp::Send, LocalSlice::EMPTY));
    if !matches!(posted, Err(RnicError::Post(PostError::NotConnected { .. }))) {
        return fail(format!("a send on a QP that is not connected gave {posted:?}"));
    }
    s.rnic(0).fail_qp(pair[0])?;
    s.state(0, pair[0], QpState::Error)?;
    let destroyed = s.rnic(0).create_qp(&Default::default())?;
    s.rnic(0).destroy_qp(destroyed)?;
    if s.rnic(0).qp_state(destroyed).is_ok() {
        return fail("a destroyed QP still exists");
    }
    Ok(format!("QPs {} and {}", pair[0], pair[1]))
}

/// Compares bytes of a region at end 1.
fn expect_bytes(
    s: &mut Session<'_>,
    what: &str,
    region: &MemoryRegion,
    range: impl SliceIndex<[u8], Output = [u8]>,
    expected: &[u8],
) -> Checked {
    let mut bytes = vec![0; region.length];
    s.rnic(1).read_memory(region.key, 0, &mut bytes)?;
    expect_equal(what, &bytes[range] == expected, true)
}

/// Sends one message by SEND and compares it at the other end.
fn one_send(s: &mut Session<'_>, pair: super::Pair, length: usize, imm: Option<u32>) -> Checked {
    let bytes = pattern(length, length as u64);
    let from = s.region(0, Access::READ, &bytes)?;
    let to = s.region(1, Access::LOCAL, &vec![0; length + 3])?;
    s.post_recv(1, pair[1], 70, whole(&to))?;
    let op = imm.map_or(SendOp::Send, SendOp::SendImm);
    s.post_send(0, pair[0], 7, op, whole(&from))?;
    let received = s.received(1, pair[1])?;
    good(&received, CompletionOp::Recv, 70)?;
    expect_equal("the length received", received.byte_len, length as u32)?;
    expect_equal("the immediate", received.imm, imm)?;
    good(&s.sent(0, pair[0])?, CompletionOp::Send, 7)?;
    expect_bytes(s, "the bytes sent", &to, ..length, &bytes)?;
    expect_bytes(s, "the bytes after them", &to, length.., &[0; 3])
}

fn send(s: &mut Session<'_>) -> Checked<String> {
    let pair = s.pair(|_| {})?;
    let sizes = [0, 1, 2, 3, 4, 1023, 1024, 1025, 5000, 65_537, 1 << 20];
    for size in sizes {
        one_send(s, pair, size, None)?;
    }
    Ok(format!("{} sizes", sizes.len()))
}

fn send_imm(s: &mut Session<'_>) -> Checked<String> {
    let pair = s.pair(|_| {})?;
    for imm in [0, 1, 0x0102_0304, u32::MAX] {
        one_send(s, pair, 100, Some(imm))?;
    }
    Ok("4 immediates".to_owned())
}

fn write(s: &mut Session<'_>) -> Checked<String> {
    let pair = s.pair(|_| {})?;
    let bytes = pattern(5000, 3);
    let from = s.region(0, Access::READ, &bytes)?;
    let to = s.region(1, Access::REMOTE_WRITE, &[0xAA; 6000])?;
    s.post_recv(1, pair[1], 70, LocalSlice::EMPTY)?;
    let op = SendOp::Write {
        va: to.va + 500,
        rkey: to.rkey,
    };
    s.post_send(0, pair[0], 7, op, whole(&from))?;
    good(&s.sent(0, pair[0])?, CompletionOp::Write, 7)?;
    expect_bytes(s, "the bytes written", &to, 500..5500, &bytes)?;
    expect_bytes(s, "the bytes before", &to, ..500, &[0xAA; 500])?;
    expect_bytes(s, "the bytes after", &to, 5500.., &[0xAA; 500])?;
    expect_equal(
        "the completion at the receiver",
        s.rnic(1).poll_recv_completion(pair[1]),
        None,
    )?;
    Ok("5000 bytes".to_owned())
}

fn write_imm(s: &mut Session<'_>) -> Checked<String> {
    let pair = s.pair(|_| {})?;
    let to = s.region(1, Access::REMOTE_WRITE, &vec![0; 1 << 20])?;
    let room = s.region(1, Access::LOCAL, &[0x55; 64])?;
    for (i, size) in [0, 1, 1025, 1 << 20].into_iter().enumerate() {
        let bytes = pattern(size, i as u64);
        let from = s.region(0, Access::READ, &bytes)?;
        s.post_recv(1, pair[1], i as u64, whole(&room))?;
        let op = SendOp::WriteImm {
            va: to.va,
            rkey: to.rkey,
            imm: 0x0A0B_0C00 + i as u32,
        };
        s.post_send(0, pair[0], i as u64, op, whole(&from))?;
        let received = s.received(1, pair[1])?;
        good(&received, CompletionOp::RecvWriteImm, i as u64)?;
        expect_equal("the length", received.byte_len, size as u32)?;
        expect_equal("the immediate", received.imm, Some(0x0A0B_0C00 + i as u32))?;
        good(&s.sent(0, pair[0])?, CompletionOp::Write, i as u64)?;
        expect_bytes(s, "the bytes written", &to, ..size, &bytes)?;
    }
    expect_bytes(s, "the receive buffer", &room, .., &[0x55; 64])?;
    Ok("0 bytes to 1 MiB".to_owned())
}

fn path_mtu(s: &mut Session<'_>) -> Checked<String> {
    let active = s
        .rnic(0)
        .attributes()
        .active_pmtu
        .min(s.rnic(1).attributes().active_pmtu);
    for pmtu in Pmtu::ALL {
        if pmtu <= active {
            let pair = s.pair(|remote| remote.pmtu = pmtu)?;
            for size in [pmtu.bytes() - 1, pmtu.bytes(), pmtu.bytes() + 1, 3 * pmtu.bytes()] {
                one_send(s, pair, size, Some(1))?;
            }
            continue;
        }
        let qpn = s.create(0)?;
        let mut remote = s.towards(0, qpn);
        remote.pmtu = pmtu;
        let refused = s.rnic(0).connect_qp(qpn, &remote, Duration::ZERO);
        if !matches!(refused, Err(RnicError::PmtuTooLarge { .. })) {
            return fail(format!("path MTU {} gave {refused:?}", pmtu.bytes()));
        }
    }
    Ok(format!("up to {}", active.bytes()))
}

fn psn_wrap(s: &mut Session<'_>) -> Checked<String> {
    let start = Psn::new(0xFF_FFF0);
    let pair = s.pair(|remote| {
        (remote.sq_psn, remote.rq_psn) = (start, start);
        remote.pmtu = Pmtu::B256;
    })?;
    for size in [1, 256 * 10, 256 * 100] {
        one_send(s, pair, size, Some(2))?;
    }
    Ok(format!("from {:#x}", start.value()))
}

/// The PSN synchronization of Cepheus (III.E): both ends go on from the PSN of the end that has sent.
fn reset(s: &mut Session<'_>) -> Checked<String> {
    let pair = s.pair(|remote| (remote.sq_psn, remote.rq_psn) = (Psn::new(7), Psn::new(7)))?;
    let local = s.region(1, Access::LOCAL, &[0; 64])?;
    // The second receive is lost by the reset.
    for wr_id in 0..2 {
        s.post_recv(1, pair[1], wr_id, whole(&local))?;
    }
    let sent = s.region(0, Access::LOCAL, &[1; 64])?;
    s.post_send(0, pair[0], 1, SendOp::Send, whole(&sent))?;
    good(&s.sent(0, pair[0])?, CompletionOp::Send, 1)?;
    good(&s.received(1, pair[1])?, CompletionOp::Recv, 0)?;
    for end in 0..2 {
        s.rnic(end).reset_qp(pair[end])?;
        s.state(end, pair[end], QpState::Init)?;
        let mut remote = s.towards(end, pair[1 - end]);
        (remote.sq_psn, remote.rq_psn) = (Psn::new(8), Psn::new(8));
        s.rnic(end).connect_qp(pair[end], &remote, super::TIMEOUT)?;
    }
    let back = s.region(0, Access::LOCAL, &[0; 64])?;
    s.post_recv(0, pair[0], 5, whole(&back))?;
    s.post_send(1, pair[1], 6, SendOp::Send, whole(&local))?;
    good(&s.received(0, pair[0])?, CompletionOp::Recv, 5)?;
    good(&s.sent(1, pair[1])?, CompletionOp::Send, 6)?;
    for (end, qpn) in pair.into_iter().enumerate() {
        let left = s.rnic(end).poll_recv_completion(qpn);
        expect_equal("a completion of a receive before the reset", left, None)?;
    }
    one_send(s, pair, 64, None)?;
    Ok(format!("PSNs from 8 on, still QP {}", pair[0]))
}

fn order(s: &mut Session<'_>) -> Checked<String> {
    const COUNT: u64 = 300;
    let pair = s.pair(|_| {})?;
    let from = s.region(0, Access::READ, &pattern(200, 9))?;
    let to = s.region(1, Access::LOCAL, &[0; 200])?;
    let (mut posted, mut sent, mut received, mut room) = (0, 0, 0, 0);
    s.until("the last of 300 messages", |s| {
        while room < COUNT && room < received + 48 {
            s.post_recv(1, pair[1], room, whole(&to))?;
            room += 1;
        }
        while posted < COUNT && posted < sent + 32 {
            s.post_send(0, pair[0], posted, SendOp::SendImm(posted as u32), whole(&from))?;
            posted += 1;
        }
        while let Some(done) = s.rnic(0).poll_send_completion(pair[0]) {
            good(&done, CompletionOp::Send, sent)?;
            sent += 1;
        }
        while let Some(done) = s.rnic(1).poll_recv_completion(pair[1]) {
            good(&done, CompletionOp::Recv, received)?;
            expect_equal("the immediate", done.imm, Some(received as u32))?;
            received += 1;
        }
        Ok((sent == COUNT && received == COUNT).then_some(()))
    })?;
    Ok(format!("{COUNT} messages"))
}

fn unsignaled(s: &mut Session<'_>) -> Checked<String> {
    let pair = s.pair(|_| {})?;
    for wr_id in 0..5 {
        s.post_recv(1, pair[1], wr_id, LocalSlice::EMPTY)?;
    }
    for wr_id in 0..5 {
        let wr = SendWr {
            signaled: wr_id == 4,
            ..SendWr::new(wr_id, SendOp::Send, LocalSlice::EMPTY)
        };
        s.rnic(0).post_send(pair[0], wr)?;
    }
    good(&s.sent(0, pair[0])?, CompletionOp::Send, 4)?;
    expect_equal(
        "a completion after the last",
        s.rnic(0).poll_send_completion(pair[0]),
        None,
    )?;
    for wr_id in 0..5 {
        good(&s.received(1, pair[1])?, CompletionOp::Recv, wr_id)?;
    }
    Ok("1 of 5".to_owned())
}

fn queue_full(s: &mut Session<'_>) -> Checked<String> {
    let pair = s.pair(|_| {})?;
    let mut posted = 0;
    let refused = loop {
        match s.post_recv(1, pair[1], posted, LocalSlice::EMPTY) {
            Ok(()) if posted < 1000 => posted += 1,
            Ok(()) => return fail("1000 receives fit a queue of 64"),
            Err(fault) => break fault,
        }
    };
    if !matches!(
        &refused,
        super::Fault::Rnic(RnicError::Post(PostError::QueueFull { .. }))
    ) {
        return fail(format!("the last one failed with: {refused}"));
    }
    expect_equal("the receives that fit", posted, 64)?;
    for wr_id in 0..3 {
        s.post_send(0, pair[0], wr_id, SendOp::Send, LocalSlice::EMPTY)?;
    }
    for wr_id in 0..3 {
        good(&s.received(1, pair[1])?, CompletionOp::Recv, wr_id)?;
        good(&s.sent(0, pair[0])?, CompletionOp::Send, wr_id)?;
    }
    Ok(format!("{posted} receives"))
}

fn rnr(s: &mut Session<'_>) -> Checked<String> {
    let pair = s.pair(|remote| remote.min_rnr_timer = 12)?;
    let bytes = pattern(3000, 4);
    let from = s.region(0, Access::READ, &bytes)?;
    let to = s.region(1, Access::LOCAL, &[0; 3000])?;
    s.post_send(0, pair[0], 1, SendOp::SendImm(5), whole(&from))?;
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        s.bench.poll_or_wait(super::POLL_INTERVAL)?;
    }
    expect_equal(
        "a completion before there was a receive",
        s.rnic(0).poll_send_completion(pair[0]),
        None,
    )?;
    s.post_recv(1, pair[1], 2, whole(&to))?;
    good(&s.received(1, pair[1])?, CompletionOp::Recv, 2)?;
    good(&s.sent(0, pair[0])?, CompletionOp::Send, 1)?;
    expect_bytes(s, "the bytes sent", &to, .., &bytes)?;
    Ok("waited 50 ms".to_owned())
}

fn failed(done: &Completion, expected: &[Status]) -> Checked<String> {
    if expected.contains(&done.status) {
        return Ok(status_text(done.status).into_owned());
    }
    let seen = status_text(done.status);
    fail(format!("it ended with: {seen}, expected one of {expected:?}"))
}

fn failed_receive(s: &mut Session<'_>, pair: super::Pair) -> Checked<Completion> {
    let done = s.received(1, pair[1])?;
    if done.status == Status::Success {
        return fail("the receiver's request succeeded");
    }
    Ok(done)
}

fn rnr_exceeded(s: &mut Session<'_>) -> Checked<String> {
    let pair = s.pair(|remote| (remote.rnr_retry, remote.min_rnr_timer) = (1, 1))?;
    s.post_send(0, pair[0], 1, SendOp::Send, LocalSlice::EMPTY)?;
    s.post_send(0, pair[0], 2, SendOp::Send, LocalSlice::EMPTY)?;
    let seen = failed(&s.sent(0, pair[0])?, &[Status::RnrRetryExceeded])?;
    failed(&s.sent(0, pair[0])?, &[Status::Flushed])?;
    s.state(0, pair[0], QpState::Error)?;
    Ok(seen)
}

fn rkey(s: &mut Session<'_>) -> Checked<String> {
    let pair = s.pair(|_| {})?;
    let from = s.region(0, Access::READ, &pattern(64, 5))?;
    let to = s.region(1, Access::REMOTE_WRITE, &[0; 64])?;
    s.post_recv(1, pair[1], 9, LocalSlice::EMPTY)?;
    let op = SendOp::WriteImm {
        va: to.va,
        rkey: to.rkey ^ 0x55,
        imm: 1,
    };
    s.post_send(0, pair[0], 1, op, whole(&from))?;
    let seen = failed(&s.sent(0, pair[0])?, &[Status::RemoteAccessError])?;
    s.state(0, pair[0], QpState::Error)?;
    s.state(1, pair[1], QpState::Error)?;
    failed_receive(s, pair)?;
    expect_bytes(s, "the memory", &to, .., &[0; 64])?;
    Ok(seen)
}

fn bounds(s: &mut Session<'_>) -> Checked<String> {
    let pair = s.pair(|_| {})?;
    let from = s.region(0, Access::READ, &pattern(64, 6))?;
    let to = s.region(1, Access::REMOTE_WRITE, &[0; 64])?;
    let op = SendOp::Write {
        va: to.va + 1,
        rkey: to.rkey,
    };
    s.post_send(0, pair[0], 1, op, whole(&from))?;
    let seen = failed(&s.sent(0, pair[0])?, &[Status::RemoteAccessError])?;
    expect_bytes(s, "the memory", &to, .., &[0; 64])?;
    Ok(seen)
}

fn too_long(s: &mut Session<'_>) -> Checked<String> {
    let pair = s.pair(|_| {})?;
    let from = s.region(0, Access::READ, &pattern(200, 7))?;
    let to = s.region(1, Access::LOCAL, &[0; 200])?;
    let room = LocalSlice {
        length: 100,
        ..whole(&to)
    };
    s.post_recv(1, pair[1], 9, room)?;
    s.post_send(0, pair[0], 1, SendOp::Send, whole(&from))?;
    // The specification (9.7.4.1.4) requires invalid request; rxe returns remote operational error.
    let expected = [Status::RemoteInvalidRequest, Status::RemoteOperationalError];
    let seen = failed(&s.sent(0, pair[0])?, &expected)?;
    let done = failed_receive(s, pair)?;
    expect_bytes(s, "the bytes after the buffer", &to, 100.., &[0; 100])?;
    Ok(format!("{seen}; at the receiver {}", status_text(done.status)))
}

fn flush(s: &mut Session<'_>) -> Checked<String> {
    let pair = s.pair(|_| {})?;
    for wr_id in 0..3 {
        s.post_recv(1, pair[1], wr_id, LocalSlice::EMPTY)?;
    }
    s.rnic(1).fail_qp(pair[1])?;
    for wr_id in 0..3 {
        let done = s.received(1, pair[1])?;
        failed(&done, &[Status::Flushed])?;
        expect_equal("the flushed request", done.wr_id, wr_id)?;
    }
    // The other end is not notified. Its packets are no longer answered.
    Ok("3 receives".to_owned())
}

fn events(s: &mut Session<'_>) -> Checked<String> {
    const IDLE: Duration = Duration::from_millis(50);
    // Code 20 is 10 ms, after which the message is retransmitted while both ends sleep.
    let pair = s.pair(|remote| remote.min_rnr_timer = 20)?;
    // A single wait may end early, but not every one.
    let mut slept = false;
    for _ in 0..20 {
        for end in 0..2 {
            let now = s.rnic(end).now();
            while s.rnic(end).poll(now)? {}
        }
        let start = Instant::now();
        s.rnic(1).wait(IDLE)?;
        slept |= start.elapsed() >= IDLE / 2;
        if slept {
            break;
        }
    }
    if !slept {
        return fail("20 waits of 50 ms returned at once without an event");
    }
    let (start, mut waits, mut received, mut sent) = (Instant::now(), 0, None, None);
    s.post_send(0, pair[0], 2, SendOp::SendImm(3), LocalSlice::EMPTY)?;
    s.bench.poll_or_wait(Duration::ZERO)?;
    s.post_recv(1, pair[1], 1, LocalSlice::EMPTY)?;
    while received.is_none() || sent.is_none() {
        if waits == 1000 {
            return fail("no completion after 1000 waits");
        }
        waits += u32::from(s.bench.poll_or_wait(super::TIMEOUT)?);
        received = received.or(s.rnic(1).poll_recv_completion(pair[1]));
        sent = sent.or(s.rnic(0).poll_send_completion(pair[0]));
    }
    for (done, op, wr_id) in [(received, CompletionOp::Recv, 1), (sent, CompletionOp::Send, 2)] {
        done.map_or(Ok(()), |done| good(&done, op, wr_id))?;
    }
    if start.elapsed() >= super::TIMEOUT {
        return fail("no event: the wait ended by its timeout");
    }
    Ok(format!(
        "{waits} waits, {:.1} ms",
        start.elapsed().as_secs_f64() * 1e3
    ))
}
