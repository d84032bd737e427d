//! Edges: all values of small fields, the bounds of large ones, and what limits give to others.

use castnet_wire::icrc::{Shift, shift};
use castnet_wire::ipv4::is_forwarded_multicast;
use castnet_wire::red::mark_frame;
use castnet_wire::{
    BitRate, ClassSet, CounterSet, Ipv4, Ipv6, NakCode, Nanos, Opcode, Psn, RateLimit, RnrTimer, Syndrome,
    TokenBucket, TrafficClass, ipv4, ipv6,
};

/// Of ECN's four values, ECT(0) and ECT(1) become CE; the others stay. Nothing else changes, and a right checksum stays right.
#[test]
fn a_mark_needs_a_sender_that_understands_it() {
    for (ecn, marked) in [(0, false), (1, true), (2, true), (3, false)] {
        for dscp in [0_u8, 26, 63] {
            let tos = dscp << 2 | ecn;
            let expected = if marked { tos | 3 } else { tos };

            let v4 = |tos| {
                let ip = Ipv4 {
                    tos,
                    ..Ipv4::udp([10, 0, 0, 1].into(), [10, 0, 0, 2].into())
                };
                ip.to_bytes()
            };
            let mut bytes = v4(tos);
            assert!(ipv4::checksum_is_right(&bytes));
            assert_eq!(ipv4::mark_congestion(&mut bytes), marked, "v4 {tos:#x}");
            assert_eq!(bytes, v4(expected), "v4 {tos:#x}");

            let v6 = |traffic_class| {
                let ip = Ipv6 {
                    traffic_class,
                    ..Ipv6::parse(&[&[0x60], &[0; 39][..]].concat()).expect("IPv6")
                };
                ip.to_bytes()
            };
            let mut bytes = v6(tos);
            assert_eq!(ipv6::mark_congestion(&mut bytes), marked, "v6 {tos:#x}");
            assert_eq!(bytes, v6(expected), "v6 {tos:#x}");

            // The same in frames, with and without a VLAN tag; other packets have no mark.
            for tag in [&[][..], &[0x81, 0, 0, 7]] {
                let frame = |ethertype: [u8; 2], packet: &[u8]| [&[2; 12], tag, &ethertype, packet].concat();
                for (ethertype, before, after) in [
                    ([0x08, 0], v4(tos).to_vec(), v4(expected).to_vec()),
                    ([0x86, 0xDD], v6(tos).to_vec(), v6(expected).to_vec()),
                ] {
                    let mut head = frame(ethertype, &before);
                    assert_eq!(mark_frame(&mut head), marked);
                    assert_eq!(head, frame(ethertype, &after));
                    let mut other = frame([0x08, 6], &before);
                    assert!(!mark_frame(&mut other));
                    assert_eq!(other, frame([0x08, 6], &before));
                    let mut short = frame(ethertype, &before[..before.len() - 1]);
                    assert!(!mark_frame(&mut short));
                }
            }
        }
    }
}

#[test]
fn a_set_of_classes_has_those_that_were_inserted() {
    let mut set = ClassSet::default();
    assert!(set.is_empty());
    for class in TrafficClass::all() {
        set.insert(class);
        assert!(set.has(class) && !set.is_empty());
        set.insert(class);
        assert_eq!(set.iter().collect::<Vec<_>>(), [class]);
        set.remove(class);
        set.remove(class);
        assert!(set.is_empty() && !set.has(class));
    }
    assert_eq!([7, 8].map(|n| TrafficClass::new(n).is_some()), [true, false]);
}

/// A sender keeps to 255/256 of the rate, and to a quarter of the burst; but a full packet of 4,224 bytes fits, if the burst has one.
#[test]
fn a_sender_keeps_below_the_limit_that_meters_it() {
    let limit = |rate, burst_bytes| RateLimit {
        rate: BitRate::new(rate).expect("a rate"),
        burst_bytes,
    };
    for (rate, burst, sender_rate, sender_burst) in [
        (256_000, 1 << 20, 255_000, 1 << 18),
        (10_000_000_000, 4 * 4224, 9_960_937_500, 4224),
        (256_000, 4 * 4224 - 1, 255_000, 4224),
        (256_000, 4224, 255_000, 4224),
        (256_000, 4223, 255_000, 4223),
        (256_000, 1, 255_000, 1),
        // Below the lowest rate there is none.
        (1_000, 1 << 20, 1_000, 1 << 18),
    ] {
        let sender = limit(rate, burst).for_sender();
        assert_eq!(sender, limit(sender_rate, sender_burst), "{rate}, {burst}");
    }
    for (lanes, rate, burst) in [
        (0, 9_000, 900),
        (1, 9_000, 900),
        (3, 3_000, 300),
        (7, 1_285, 128),
        (16, 1_000, 56),
    ] {
        assert_eq!(
            limit(9_000, 900).per_lane(lanes),
            limit(rate, burst),
            "{lanes} lanes"
        );
    }
    // 4 ms of the rate, 256 KiB at least.
    let default = |rate| RateLimit::of(BitRate::new(rate).expect("a rate")).burst_bytes;
    assert_eq!(default(524_288_000), 256 << 10);
    assert_eq!(default(524_800_000), 262_400);
    assert_eq!(default(10_000_000_000), 5_000_000);
    assert_eq!(
        [999, 1_000, 1_000_000_000_000, 1_000_000_000_001].map(|n| BitRate::new(n).is_some()),
        [false, true, true, false]
    );
}

/// 8,000 b/s are a byte per millisecond.
#[test]
fn a_bucket_is_low_below_half_and_ready_to_the_nanosecond() {
    let limit = RateLimit {
        rate: BitRate::new(8_000).expect("a rate"),
        burst_bytes: 100,
    };
    let mut bucket = TokenBucket::new(limit);
    assert!(!bucket.take(101));
    assert_eq!((bucket.bytes_above_half(), bucket.is_low()), (50, false));
    assert!(bucket.take(50));
    assert_eq!((bucket.bytes_above_half(), bucket.is_low()), (0, false));
    assert!(bucket.take(1));
    assert!(bucket.is_low());
    assert!(bucket.take(49) && !bucket.take(1));
    let ms = Nanos::from_millis;
    assert_eq!(bucket.ready_at(0), Nanos::ZERO);
    assert_eq!(bucket.ready_at(1), ms(1));
    assert_eq!([100, 101, u64::MAX].map(|n| bucket.ready_at(n)), [ms(100); 3]);
    bucket.refill(Nanos(ms(1).0 - 1));
    assert!(!bucket.take(1));
    bucket.refill(ms(1));
    assert!(bucket.take(1));
    bucket.set_rate(ms(2), BitRate::new(16_000).expect("a rate"));
    assert!(bucket.take(1) && !bucket.take(1), "from before the change");
    bucket.refill(ms(3));
    assert!(bucket.take(2) && !bucket.take(1));
    bucket.refill(ms(53));
    assert!(bucket.take(100) && !bucket.take(1));
}

#[test]
fn each_syndrome_has_its_bytes() {
    let naks = [
        NakCode::PsnSequenceError,
        NakCode::InvalidRequest,
        NakCode::RemoteAccessError,
        NakCode::RemoteOperationalError,
    ];
    for byte in 0..=255 {
        let expected = match byte {
            0..0x20 => Some(Syndrome::Ack),
            0x20..0x40 => Some(Syndrome::RnrNak(RnrTimer::new(byte - 0x20))),
            0x60..0x64 => Some(Syndrome::Nak(naks[usize::from(byte - 0x60)])),
            _ => None,
        };
        assert_eq!(Syndrome::from_byte(byte), expected, "{byte:#x}");
        if byte >= 0x1F
            && let Some(syndrome) = expected
        {
            assert_eq!(syndrome.byte(), byte);
        }
    }
    assert_eq!(naks.map(NakCode::is_fatal), [false, true, true, true]);
    // IBA table 46.
    for (code, us) in [(0, 655_360), (1, 10), (12, 640), (31, 491_520), (32, 655_360)] {
        assert_eq!(RnrTimer::new(code).wait(), Nanos::from_micros(us));
    }
}

#[test]
fn opcodes_start_and_end_messages_by_their_position() {
    for byte in 0..=255 {
        let Some(opcode) = Opcode::from_byte(byte) else {
            continue;
        };
        let (info, name) = (opcode.info(), opcode.to_string());
        assert_eq!((opcode.byte(), info.opcode), (byte, opcode));
        let has = |word: &str| name.contains(word);
        let is_response = has("RESPONSE") || has("ACK") || has("CNP") || has("CASTNET");
        assert_eq!(info.is_request(), !is_response, "{name}");
        assert_eq!(info.starts_message(), !has("MIDDLE") && !has("LAST"), "{name}");
        assert_eq!(info.ends_message(), !has("MIDDLE") && !has("FIRST"), "{name}");
    }
}

#[test]
fn psns_are_compared_on_their_circle() {
    use std::cmp::Ordering::{Equal, Greater, Less};
    for (a, b, order) in [
        (5, 5, Equal),
        (5, 6, Less),
        (6, 5, Greater),
        (0xFF_FFFF, 0, Less),
        (0, 0xFF_FFFF, Greater),
        (0, 0x7F_FFFF, Less),
    ] {
        let (a, b) = (Psn::new(a), Psn::new(b));
        assert_eq!(a.compare(b), order);
        assert_eq!((a.is_before(b), a.is_after(b)), (order == Less, order == Greater));
    }
    assert_eq!(
        (Psn::new(0xFF_FFFF).next(), Psn::new(0).prev()),
        (Psn::new(0), Psn::new(0xFF_FFFF))
    );
    assert_eq!(Psn::new(0x1_23_45_67), Psn::new(0x23_45_67));
}

#[test]
fn zero_bytes_are_appended_in_any_number() {
    for (bytes, halves) in [
        (0, 0),
        (1, 0),
        (2, 1),
        (15, 7),
        (16, 8),
        (255, 100),
        (4096, 1),
        (9000, 8999),
    ] {
        for crc in [1, 0xFFFF_FFFF, 0x1234_5678] {
            let twice = shift(shift(crc, halves), bytes - halves);
            assert_eq!(shift(crc, bytes), twice);
            assert_eq!(Shift::by_bytes(bytes).apply(crc), twice);
        }
    }
}

#[test]
fn routers_forward_multicast_from_224_0_1_0_on() {
    for (first, length, expected) in [
        ([224, 0, 1, 0], 24, true),
        ([224, 0, 0, 255], 32, false),
        ([239, 255, 255, 255], 32, true),
        ([240, 0, 0, 0], 32, false),
        ([232, 0, 0, 0], 4, true),
        ([232, 0, 0, 0], 3, false),
        ([10, 0, 0, 1], 32, false),
    ] {
        assert_eq!(
            is_forwarded_multicast(first.into(), length),
            expected,
            "{first:?}/{length}"
        );
    }
}

castnet_wire::counters! {
    /// Two counters.
    pub struct Two { one, two, }
}

#[test]
fn counters_add_and_subtract_by_name() {
    let before = Two { one: 5, two: 7 };
    let mut now = before;
    now.add(&Two { one: 1, two: 20 });
    assert_eq!(now.fields().collect::<Vec<_>>(), [("one", 6), ("two", 27)]);
    assert_eq!(now.since(&before), Two { one: 1, two: 20 });
    // It has restarted.
    assert_eq!(before.since(&now), Two::default());
}
