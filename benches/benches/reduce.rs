//! The arithmetic of collectives, each figure beside a copy of as many bytes; and the complete handling of a
//! contribution: its ICRC is verified, then it is added to its slot.

mod common;
#[path = "../../dataplane/reduce/tests/reduce/common/scalar.rs"]
mod scalar;

use std::hint::black_box;
use std::time::{Duration, Instant};

use castnet_reduce::{CallFlags, Checksum, DataType, Kernel, Level, Operation};
use castnet_wire::{FrameBuf, Opcode, Parsed, RoceHeader, icrc, parse_frame};
use common::MCST;
use common::samples::{SAMPLES, lowest};

const KIB: usize = 1024;

fn timed(rounds: usize, mut each: impl FnMut(usize)) -> (Duration, u64) {
    let start = Instant::now();
    for round in 0..rounds {
        each(round);
    }
    (start.elapsed(), rounds as u64)
}

/// Numbers near one, so that none becomes subnormal or infinite.
fn ones(ty: DataType, bytes: usize) -> Vec<u8> {
    let one: u64 = match ty {
        DataType::F32 => 0x3F80_0000,
        DataType::F64 => 0x3FF0_0000_0000_0000,
        DataType::F16 => 0x3C00,
        DataType::Bf16 => 0x3F80,
        _ => 1,
    };
    one.to_le_bytes()[..ty.size()]
        .iter()
        .copied()
        .cycle()
        .take(bytes)
        .collect()
}

fn main() {
    println!(
        "Lowest of {SAMPLES} samples each; figures compare within this run only. Instruction set: {:?}.\n",
        Level::best()
    );
    contribution();
    levels();
    operations();
}

fn row(what: &str, ns: f64, bytes: usize, copy: f64) {
    println!(
        "{what:<44} {ns:>8.1} ns {:>8.1} GB/s {:>8.1} x a copy",
        bytes as f64 / ns,
        ns / copy
    );
}

fn frame(fill: u8) -> (Vec<u8>, RoceHeader) {
    let mut payload = ones(DataType::F32, KIB);
    payload[0] = fill;
    let out = common::frame(MCST, 0, Opcode::SendMiddle, fill.into(), None, &payload);
    match parse_frame(&out, out.len()) {
        Ok(Parsed::Roce(header)) => (out, header),
        other => panic!("what was written: {other:?}"),
    }
}

/// A frame as in a port's buffer: a head, a body shared by replicas, the last four bytes.
struct Pieces {
    head: Vec<u8>,
    body: Vec<u8>,
    trailer: [u8; 4],
}

impl FrameBuf for Pieces {
    fn length(&self) -> usize {
        self.head.len() + self.body.len() + 4
    }
    fn head(&self) -> &[u8] {
        &self.head
    }
    fn head_mut(&mut self) -> &mut [u8] {
        &mut self.head
    }
    fn trailer(&self) -> [u8; 4] {
        self.trailer
    }
    fn set_trailer(&mut self, bytes: [u8; 4]) {
        self.trailer = bytes;
    }
    fn segments(&self) -> [&[u8]; 3] {
        [&self.head, &self.body, &self.trailer]
    }
}

/// One contribution of 1 KiB of f32. Its 256 slots stay in L2.
fn contribution() {
    const SLOTS: usize = 256;
    const ROUNDS: usize = 1024;
    let frames: Vec<_> = (0..64).map(frame).collect();
    let pieces: Vec<_> = frames
        .iter()
        .map(|(f, _)| Pieces {
            head: f[..128].to_vec(),
            body: f[128..f.len() - 4].to_vec(),
            trailer: f.trailer(),
        })
        .collect();
    let header = frames[0].1;
    let payload = |i: usize| {
        let (frame, header) = &frames[i % frames.len()];
        &frame[header.payload_at..][..header.payload_len]
    };
    let kernel = Kernel::select(Operation::Sum, DataType::F32, CallFlags::NONE);
    let [mut a, mut b, mut c, mut d] = [(); 4].map(|()| vec![0u8; SLOTS * KIB]);
    let slot = |slots: &mut Vec<u8>, i: usize, use_it: &mut dyn FnMut(&mut [u8])| {
        use_it(&mut slots[i % SLOTS * KIB..][..KIB]);
    };
    let verify = |i: usize| {
        let (frame, header) = black_box(&frames[i % frames.len()]);
        assert!(icrc::verify_bytes(frame, header.l3, header.frame_len));
    };
    let checksum = Checksum::select();
    let [copy, add, verified, in_pieces, both, plain, folded, fused] = lowest([
        &mut || {
            timed(ROUNDS, |i| {
                slot(&mut a, i, &mut |s| s.copy_from_slice(black_box(payload(i))))
            })
        },
        &mut || {
            timed(ROUNDS, |i| {
                slot(&mut b, i, &mut |s| kernel.apply(s, black_box(payload(i))))
            })
        },
        &mut || timed(ROUNDS, verify),
        &mut || {
            timed(ROUNDS, |i| {
                let frame = black_box(&pieces[i % pieces.len()]);
                assert!(icrc::verify(frame, header.l3, header.frame_len));
            })
        },
        &mut || {
            timed(ROUNDS, |i| {
                verify(i);
                slot(&mut c, i, &mut |s| kernel.apply(s, black_box(payload(i))));
            })
        },
        &mut || {
            timed(ROUNDS, |i| {
                let (frame, header) = black_box(&frames[i % frames.len()]);
                black_box(crc32fast::hash(&frame[header.l3..header.frame_len - 4]));
            })
        },
        &mut || {
            timed(ROUNDS, |i| {
                let frame = black_box(&pieces[i % pieces.len()]);
                black_box(checksum.update(0, &frame.head[54..], &frame.body));
            })
        },
        &mut || {
            timed(ROUNDS, |i| {
                let frame = black_box(&pieces[i % pieces.len()]);
                // As in the engine, the CRC register after the header is known.
                let (first, second) = (&frame.head[54..], &frame.body[..]);
                if checksum.update(0, first, second) != 0 {
                    slot(&mut d, i, &mut |s| kernel.apply_pieces(s, first, second));
                }
            })
        },
    ]);
    println!("1 KiB of f32, slots in L2");
    row("copied to its slot", copy, KIB, copy);
    row("added to its slot", add, KIB, copy);
    row("ICRC verified", verified, KIB, copy);
    row("ICRC verified, in three pieces", in_pieces, KIB, copy);
    row("  beside it: CRC-32 by crc32fast", plain, KIB, copy);
    row("ICRC verified and added", both, KIB, copy);
    row("CRC of the payload in two pieces", folded, KIB, copy);
    println!("  {:.2} x crc32fast over the whole frame", plain / folded);
    row("that CRC, and added: the engine's way", fused, KIB, copy);
    let most = plain + add;
    println!(
        "  goal: at most what crc32fast and the sum take one after the other, {most:.1} ns: {}\n",
        if fused <= most { "met" } else { "MISSED" }
    );
}

fn one(ty: DataType, run: &dyn Fn(&mut [u8], &[u8])) -> (f64, f64) {
    let (mut acc, mut to, from) = (ones(ty, KIB), vec![0; KIB], ones(ty, KIB));
    let [ns, copy] = lowest([
        &mut || timed(64, |_| run(black_box(&mut acc), black_box(&from))),
        &mut || timed(64, |_| black_box(&mut to).copy_from_slice(black_box(&from))),
    ]);
    (ns, copy)
}

fn levels() {
    println!("1 KiB in L1, by instruction set");
    for (op, ty) in [
        (Operation::Sum, DataType::F32),
        (Operation::Sum, DataType::F16),
        (Operation::Sum, DataType::Bf16),
        (Operation::Max, DataType::F32),
    ] {
        let flags = CallFlags::NONE;
        let (ns, copy) = one(ty, &|acc, from| scalar::reduce(op, ty, flags, acc, from));
        row(&format!("{op} of {ty}, the twin"), ns, KIB, copy);
        for level in Level::available() {
            let kernel = Kernel::with(level, op, ty, flags);
            let (ns, copy) = one(ty, &|acc, from| kernel.apply(acc, from));
            row(&format!("{op} of {ty}, {level:?}"), ns, KIB, copy);
        }
    }
    println!();
}

fn operations() {
    println!("1 KiB in L1, all operations: ns (s: saturating)");
    print!("{:<8}", "");
    for ty in DataType::ALL {
        print!("{ty:>8}");
    }
    println!();
    let lines = Operation::ALL.iter().map(|op| (*op, CallFlags::NONE));
    let saturating = [Operation::Sum, Operation::Prod].map(|op| (op, CallFlags::SATURATE));
    for (op, flags) in lines.chain(saturating) {
        let s = if flags == CallFlags::SATURATE { " s" } else { "" };
        print!("{:<8}", format!("{op}{s}"));
        for ty in DataType::ALL {
            if op.supports(*ty) && (s.is_empty() || !ty.is_float()) {
                let kernel = Kernel::select(op, *ty, flags);
                let (ns, _) = one(*ty, &|acc, from| kernel.apply(acc, from));
                print!("{ns:>8.1}");
            } else {
                print!("{:>8}", "-");
            }
        }
        println!();
    }
}
