//! Hides RoCE frames from the kernel's IP stack. The stack would route each frame that a port has received,
//! find no socket and reply. A classifier at the interface's ingress, right behind the packet sockets, drops
//! these frames. On a veth pair this saves a third of the cost of a frame.
//!
//! Only frames to UDP port 4791 are dropped, and only while the port is open: the classifier is bound to a
//! file descriptor.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use castnet_wire::udp::ROCE_PORT;

const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
/// BPF_PROG_TYPE_SCHED_CLS and its attach point BPF_TCX_INGRESS (Linux 6.6).
const SCHED_CLS: u32 = 3;
const TCX_INGRESS: u32 = 46;
/// Results of the classifier: continue, or drop.
const TCX_NEXT: i32 = -1;
const TCX_DROP: i32 = 2;

/// `struct bpf_insn`: operation, registers (destination in the low bits, source in the high bits), jump, constant.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u8,
    registers: u8,
    jump: i16,
    constant: i32,
}

const fn instruction(code: u8, registers: u8, jump: i16, constant: i32) -> Instruction {
    Instruction {
        code,
        registers,
        jump,
        constant,
    }
}

/// r0 = the byte, or the big-endian 16-bit word, at `offset`. A shorter frame passes.
const fn byte_at(offset: i32) -> Instruction {
    instruction(0x30, 0, 0, offset)
}
const fn word_at(offset: i32) -> Instruction {
    instruction(0x28, 0, 0, offset)
}
/// Skips `by` instructions if r0 is not `value`.
const fn unless(value: i32, by: i16) -> Instruction {
    instruction(0x55, 0, by, value)
}
const fn set_r0(value: i32) -> Instruction {
    instruction(0xb7, 0, 0, value)
}
const EXIT: Instruction = instruction(0x95, 0, 0, 0);

/// Matches UDP to RoCE's port over IPv4 without options or IPv6 without extension headers; all other RoCE frames pass.
/// VLAN tags are not part of the frame here.
const PROGRAM: [Instruction; 19] = [
    // r6 = the frame, which load instructions use.
    instruction(0xbf, 0x16, 0, 0),
    word_at(12),
    unless(0x0800, 7),
    byte_at(14),
    unless(0x45, 12),
    byte_at(23),
    unless(17, 10),
    word_at(36),
    unless(ROCE_PORT as i32, 8),
    // Jump to the drop.
    instruction(0x05, 0, 5, 0),
    unless(0x86DD, 6),
    byte_at(20),
    unless(17, 4),
    word_at(56),
    unless(ROCE_PORT as i32, 2),
    set_r0(TCX_DROP),
    EXIT,
    set_r0(TCX_NEXT),
    EXIT,
];

/// The used part of PROG_LOAD's arguments.
#[repr(C)]
#[derive(Default)]
struct Load {
    program_type: u32,
    instructions: u32,
    instructions_at: u64,
    license_at: u64,
    log_level: u32,
    log_size: u32,
    log_at: u64,
    kernel: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct Attach {
    program: u32,
    interface: u32,
    kind: u32,
    flags: u32,
    relative: u32,
    _pad: u32,
    revision: u64,
}

/// Hides arriving RoCE frames from the kernel's stack while it exists.
#[derive(Debug)]
pub(super) struct RoceFilter {
    /// The kernel removes the classifier when the last descriptor of its link is closed.
    _link: OwnedFd,
}

impl RoceFilter {
    /// Fails if the kernel is older than Linux 6.6, or the process lacks CAP_NET_ADMIN and CAP_BPF.
    pub(super) fn new(interface: u32) -> io::Result<Self> {
        let load = Load {
            program_type: SCHED_CLS,
            instructions: PROGRAM.len() as u32,
            instructions_at: PROGRAM.as_ptr() as u64,
            license_at: c"Dual MIT/GPL".as_ptr() as u64,
            ..Load::default()
        };
        let program = bpf(PROG_LOAD, &load)?;
        let attach = Attach {
            program: program.as_raw_fd().cast_unsigned(),
            interface,
            kind: TCX_INGRESS,
            ..Attach::default()
        };
        Ok(Self {
            _link: bpf(LINK_CREATE, &attach)?,
        })
    }
}

/// Runs a bpf command that creates a descriptor. `A` is the start of the matching `union bpf_attr`.
fn bpf<A>(command: libc::c_int, arguments: &A) -> io::Result<OwnedFd> {
    // SAFETY: the pointer and the length describe `arguments`, which outlives the call, as does what it points to
    // (constants); the kernel only reads.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *arguments, size_of::<A>()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor (bpf(2) sets close-on-exec) without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}
